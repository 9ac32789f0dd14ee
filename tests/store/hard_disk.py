"""A disk at its worst: power goes inside a write or a sync, sectors are lost one by one, room ends in mid-write.

`crash_disk` loses whole writes or their ends; here a write that was not synced may also survive in some of its 512-byte
sectors and not in others, and every call may be the last one before the power goes.
"""

import random

from mqtrail.store import MemoryDisk, MemoryFile, StoreFull

SECTOR_SIZE = 512


class PowerCut(BaseException):
    """The machine stopped inside this call. Whatever the store would do next never happened."""


class HardFile(MemoryFile):
    """Remembers writes since the last sync, and asks its disk before each call whether it goes wrong."""

    def __init__(self, disk: "HardDisk", size: int) -> None:
        super().__init__(size)
        self._disk = disk
        self._unsynced: list[tuple[int, bytes, bytes]] = []  # offset, bytes before, bytes written

    def _write(self, offset: int, data: bytes) -> None:
        self._unsynced.append((offset, bytes(self.data[offset : offset + len(data)]), data))
        super().write_at(offset, data)

    def write_at(self, offset: int, data: bytes) -> None:
        data = bytes(data)
        fault = self._disk.fault()
        if fault is None:
            self._write(offset, data)
            return
        self._write(offset, data[: self._disk.chance.randrange(len(data) + 1)])
        raise fault

    def sync(self) -> None:
        fault = self._disk.fault()
        if isinstance(fault, PowerCut):
            raise fault
        self._unsynced.clear()

    def lose(self) -> None:
        """Take back what was not synced, then let each write survive whole, not at all, cut off, or in some sectors."""
        chance = self._disk.chance
        for offset, before, _ in reversed(self._unsynced):
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


class HardDisk(MemoryDisk):
    """Files in memory that go wrong as a seed decides. Making, renaming and removing files is durable at once."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.power_cut_rate = 0.0
        self.full_rate = 0.0

    def fault(self) -> PowerCut | StoreFull | None:
        """Decide how the next call ends."""
        drawn = self.chance.random()
        if drawn < self.power_cut_rate:
            return PowerCut()
        if drawn < self.power_cut_rate + self.full_rate:
            return StoreFull("the test's disk is full")
        return None

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        if path not in self.files:
            if (fault := self.fault()) is not None:
                raise fault
            self.files[path] = HardFile(self, size)
        return self.files[path]

    def stop(self, *, power: bool) -> None:
        """The process is gone; with the power, so is what was not synced."""
        for file in self.files.values():
            if power:
                assert isinstance(file, HardFile)
                file.lose()
        self.close()
