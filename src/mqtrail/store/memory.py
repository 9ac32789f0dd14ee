"""The store in memory: the same code over files that are memory. For tests, and for brokers without a disk."""

from __future__ import annotations

import mmap

from .commitlog import CommitLogConfig, CommitLogStore
from .errors import StoreError

MEMORY_SEGMENT_SIZE = 16 * 1024 * 1024
MEMORY_TIMER_LOG_FILE_SIZE = 1024 * 1024


class MemoryFile:
    """A file in memory. It takes memory as it is written: zeroing a byte array would take all of it at once."""

    def __init__(self, size: int) -> None:
        # An empty map is an error.
        self.data = memoryview(
            mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if size else bytearray()
        )

    def read_at(self, offset: int, size: int) -> bytes:
        """Return size bytes from offset on, fewer at the file's end."""
        return bytes(self.data[offset : offset + size])

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes without copying them."""
        return self.data[offset : offset + size].toreadonly()

    def next_data(self, offset: int) -> int | None:
        """Return offset: this file does not know where it has zeros."""
        return offset if offset < len(self.data) else None

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of data."""
        assert offset + len(data) <= len(self.data), "a write past the file's end"
        self.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        """Do nothing: memory is never durable."""

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class MemoryDisk:
    """Files by path. Two stores on one disk, one after the other, see the same files."""

    def __init__(self) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.small: dict[str, bytes] = {}
        self._locked = False

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        """Open a file of exactly size bytes, making it when absent."""
        if path not in self.files:
            self.files[path] = MemoryFile(size)
        return self.files[path]

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        prefix = f"{folder}/" if folder else ""
        return sorted(
            {path[len(prefix) :].split("/")[0] for path in (*self.files, *self.small) if path.startswith(prefix)}
        )

    def size(self, path: str) -> int | None:
        """Return a file's size, None when there is none."""
        if path in self.files:
            return len(self.files[path].data)
        return len(self.small[path]) if path in self.small else None

    def modified_ms(self, path: str) -> int:
        """Return 0: files in memory do not expire by age."""
        return 0

    def read(self, path: str) -> bytes | None:
        """Return a small file's content."""
        return self.small.get(path)

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file's content."""
        self.small[path] = data

    def keep(self, path: str, as_path: str) -> None:
        """Let as_path keep the present content of path."""
        if path in self.small:
            self.small[as_path] = self.small[path]

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        for table in (self.files, self.small):
            for known in [name for name in table if name == path or name.startswith(f"{path}/")]:
                del table[known]

    def lock(self, path: str) -> None:
        """Take the only lock."""
        if self._locked:
            raise StoreError(f"found {path} locked, expected this disk to be free: close the other store first")
        self._locked = True

    def usage(self) -> float:
        """Return 0: this disk never fills."""
        return 0.0

    def capacity(self) -> tuple[int, int]:
        """Return (0, 0): memory is not a partition."""
        return 0, 0

    def close(self) -> None:
        """Release the lock."""
        self._locked = False


class MemoryStore(CommitLogStore):
    """A CommitLogStore on a MemoryDisk, by default with small files."""

    def __init__(self, config: CommitLogConfig | None = None, disk: MemoryDisk | None = None) -> None:
        super().__init__(
            disk or MemoryDisk(),
            config
            or CommitLogConfig(
                segment_size=MEMORY_SEGMENT_SIZE,
                queue_entries=10_000,
                index_slots=10_000,
                index_entries=40_000,
                timer_log_file_size=MEMORY_TIMER_LOG_FILE_SIZE,
            ),
        )
