"""A disk with all faults: power cuts inside a call, single lost sectors, a full disk, failed writes and syncs.

In addition to the faults of `crash_disk`, an unsynced write may survive in some of its 512-byte sectors and not in
others. Every call may be the last one before a power cut, also calls that make, replace and remove files. A failed sync
drops the data that it should have written, as Linux does: it never reaches the disk, although reads still show it.
"""

import errno
import random
from dataclasses import dataclass

from mqtrail.store import MemoryDisk, MemoryFile, StoreFull
from mqtrail.store.disk import read_whole

SECTOR_SIZE = 512


class PowerCut(BaseException):
    """The machine stopped inside this call. Whatever the store would do next never happened."""


@dataclass(slots=True)
class Rates:
    """How likely each call goes wrong, 0 to 1."""

    power_cut: float = 0.0  # any call that changes something
    full: float = 0.0  # making, writing or replacing a file
    write_error: float = 0.0
    sync_error: float = 0.0
    short_read: float = 0.0
    read_error: float = 0.0


class HardFile(MemoryFile):
    """Remembers writes since the last sync, and asks its disk before each call whether it goes wrong."""

    def __init__(self, disk: "HardDisk", size: int, path: str = "") -> None:
        super().__init__(size)
        self._disk = disk
        self.path = path
        self._unsynced: list[tuple[int, bytes, bytes]] = []  # offset, bytes before, bytes written
        self._dropped: list[
            tuple[int, bytes, bytes]
        ] = []  # the same for writes whose sync failed: the kernel treats them as clean

    def grow(self, size: int) -> None:
        """Make the file longer, by zeros."""
        data, unsynced, dropped = self.data, self._unsynced, self._dropped
        super().__init__(size)
        self.data[: len(data)] = data
        self._unsynced, self._dropped = unsynced, dropped

    def _write(self, offset: int, data: bytes) -> None:
        self._unsynced.append((offset, bytes(self.data[offset : offset + len(data)]), data))
        super().write_at(offset, data)

    def read_at(self, offset: int, size: int) -> bytes:
        self._disk.check_read(self.path)
        return read_whole(lambda at, left: super(HardFile, self).read_at(at, self._disk.read_size(left)), offset, size)

    def write_at(self, offset: int, data: bytes) -> None:
        data = bytes(data)
        fault = self._disk.write_fault()
        if fault is None:
            self._write(offset, data)
            return
        self._write(offset, data[: self._disk.chance.randrange(len(data) + 1)])
        raise fault

    def sync(self) -> None:
        fault = self._disk.sync_fault(self.path)
        if isinstance(fault, PowerCut):
            raise fault
        if fault is not None:
            self._dropped += self._unsynced
            self._unsynced = []
            raise fault
        self._settle(self._unsynced)
        self._unsynced = []

    def _settle(self, synced: list[tuple[int, bytes, bytes]]) -> None:
        """Let new writes over dropped data reach the disk."""
        if not self._dropped or not synced:
            return
        covered = bytearray(len(self.data))
        for offset, _, data in synced:
            covered[offset : offset + len(data)] = b"\1" * len(data)
        kept = []
        for offset, before, data in self._dropped:
            at = 0
            while at < len(data):
                end = at
                while end < len(data) and not covered[offset + end]:
                    end += 1
                if end > at:
                    kept.append((offset + at, before[at:end], data[at:end]))
                at = end + 1
        self._dropped = kept

    def lose(self) -> None:
        """Take back what was not synced, then let each write survive whole, not at all, cut off, or in some sectors."""
        chance = self._disk.chance
        # In the order of writing both kinds are mixed; taking all back from the last to the first is close enough:
        # what was dropped lies below what was written later.
        for offset, before, _ in reversed(self._unsynced):
            self.data[offset : offset + len(before)] = before
        for offset, before, _ in reversed(self._dropped):
            self.data[offset : offset + len(before)] = before
        for offset, _, data in self._unsynced:
            match chance.choice(("whole", "none", "cut", "sectors")):
                case "whole":
                    self.data[offset : offset + len(data)] = data
                case "cut":
                    kept = chance.randrange(len(data) + 1)
                    self.data[offset : offset + kept] = data[:kept]
                case "sectors":
                    at = offset
                    while at < offset + len(data):
                        end = min((at // SECTOR_SIZE + 1) * SECTOR_SIZE, offset + len(data))
                        if chance.random() < 0.5:
                            self.data[at:end] = data[at - offset : end - offset]
                        at = end
        self._unsynced.clear()
        self._dropped.clear()


class HardDisk(MemoryDisk):
    """Files in memory that go wrong as a seed decides. Names become durable in the order they change (a journal)."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.rates = Rates()
        self.calls = 0  # number of calls that changed something
        self._is_cut = False  # the power is off: every call fails
        self.power_cut_at = -1  # the number of the call in which the power goes, whatever the rates; -1: none

    def _power_cut(self) -> bool:
        if self._is_cut:
            raise PowerCut
        self.calls += 1
        self._is_cut = self.calls == self.power_cut_at or self.chance.random() < self.rates.power_cut
        return self._is_cut

    def write_fault(self) -> PowerCut | StoreFull | OSError | None:
        """Decide how a write ends."""
        if self._power_cut():
            return PowerCut()
        drawn = self.chance.random()
        if drawn < self.rates.full:
            return StoreFull("the test's disk is full")
        if drawn < self.rates.full + self.rates.write_error:
            return OSError(errno.EIO, "the test's disk fails to write")
        return None

    def sync_fault(self, path: str) -> PowerCut | OSError | None:
        """Decide how a sync ends."""
        if self._power_cut():
            return PowerCut()
        if self.chance.random() < self.rates.sync_error:
            return OSError(errno.EIO, f"the test's disk fails to sync {path}")
        return None

    def check_read(self, path: str) -> None:
        """Fail to read now and then."""
        if self.rates.read_error and self.chance.random() < self.rates.read_error:
            raise OSError(errno.EIO, f"the test's disk fails to read {path}")

    def read_size(self, size: int) -> int:
        """Return how many of the requested bytes a system call returns."""
        if size > 1 and self.rates.short_read and self.chance.random() < self.rates.short_read:
            return self.chance.randrange(1, size)
        return size

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        if path in self.files:
            found = self.files[path]
            if len(found.data) < size:
                assert isinstance(found, HardFile)
                found.grow(size)
            return found
        fault = self.write_fault()
        if isinstance(fault, PowerCut):
            # Made and not yet of its size, or with a part of its room; or not even made.
            left = self.chance.choice((None, 0, size // 2 // SECTOR_SIZE * SECTOR_SIZE, size))
            if left is not None:
                self.files[path] = HardFile(self, left, path)
        if fault is not None:
            raise fault
        self.files[path] = HardFile(self, size, path)
        return self.files[path]

    def replace(self, path: str, data: bytes) -> None:
        fault = self.write_fault()
        if fault is not None:
            if isinstance(fault, PowerCut) and self.chance.random() < 0.5:
                super().replace(path, data)
            raise fault
        super().replace(path, data)

    def keep(self, path: str, as_path: str) -> None:
        if self._power_cut():
            if self.chance.random() < 0.5:
                super().keep(path, as_path)
            raise PowerCut
        super().keep(path, as_path)

    def remove(self, path: str) -> None:
        if self._power_cut():
            inside = [name for table in (self.files, self.small) for name in table if name.startswith(f"{path}/")]
            for name in inside[: self.chance.randrange(len(inside) + 1)] or [path] * self.chance.randrange(2):
                super().remove(name)
            raise PowerCut
        super().remove(path)

    def stop(self, *, power: bool) -> None:
        """End the process; a power cut also loses unsynced data."""
        for file in self.files.values():
            if power:
                assert isinstance(file, HardFile)
                file.lose()
        self._is_cut = False
        self.close()
