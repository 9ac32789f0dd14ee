"""A disk that forgets: unsynced writes survive a crash whole, torn or not at all, as a seed decides."""

import random

from mqtrail.store import MemoryDisk, MemoryFile


class CrashFile(MemoryFile):
    """Remembers the writes since the last sync, to take some of them back."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.unsynced: list[tuple[int, bytes, bytes]] = []  # offset, bytes before, bytes written

    def write_at(self, offset: int, data: bytes) -> None:
        self.unsynced.append((offset, bytes(self.data[offset : offset + len(data)]), bytes(data)))
        super().write_at(offset, data)

    def sync(self) -> None:
        self.unsynced.clear()

    def crash(self, chance: random.Random) -> None:
        """Undo everything unsynced, then let each write survive whole, torn or not at all, in order."""
        for offset, before, _ in reversed(self.unsynced):
            self.data[offset : offset + len(before)] = before
        for offset, _, data in self.unsynced:
            kept = chance.choice((0, len(data), chance.randrange(len(data) + 1) if data else 0))
            self.data[offset : offset + kept] = data[:kept]
        self.unsynced.clear()


class CrashDisk(MemoryDisk):
    """A MemoryDisk of CrashFiles. Renames are durable, as RealDisk syncs them."""

    def open(self, path: str, size: int, *, reserve: bool = False) -> CrashFile:
        file = self.files.setdefault(path, CrashFile(size))
        assert isinstance(file, CrashFile)
        return file

    def crash(self, chance: random.Random) -> None:
        """Cut the power."""
        for file in self.files.values():
            assert isinstance(file, CrashFile)
            file.crash(chance)
        self.close()
