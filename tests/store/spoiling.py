"""Damage to a store's file in memory, while it is not open."""

from random import Random

from mqtrail.store import MemoryDisk

WAYS = ("gone", "cut", "zeroed", "random")
SPOILED_SIZE = 64 * 1024


def spoil(disk: MemoryDisk, path: str, how: str, at: int = 0) -> None:
    """Remove a file, cut it to its half, or replace up to SPOILED_SIZE bytes from at on."""
    file = disk.files.pop(path)
    size = len(file.data)
    if how == "cut":
        disk.open(path, size // 2).write_at(0, file.read_at(0, size // 2))
    elif how != "gone":
        spoiled = min(SPOILED_SIZE, size - at)
        file.write_at(at, bytes(spoiled) if how == "zeroed" else Random(5).randbytes(spoiled))
        disk.files[path] = file
