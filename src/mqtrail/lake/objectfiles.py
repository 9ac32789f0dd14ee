"""Objects of an S3 store as open files: what DuckDB and Arrow read from and write to."""

from __future__ import annotations

import io
import os
from threading import local
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .storeerrors import store_errors

if TYPE_CHECKING:
    from .objects import ObjectPath

TAIL_SIZE: Final = 64 * 1024  # read when a file is opened: a small one as a whole, of others the footer
PART_SIZE: Final = 8 * 1024 * 1024  # of an upload in parts


class ObjectStat(NamedTuple):
    """The fields of os.stat_result that are used of a file. st_mtime: by the clock of the store, s."""

    st_size: int
    st_mtime: float


class ObjectTail(NamedTuple):
    """The end of an object, of at most TAIL_SIZE."""

    stat: ObjectStat
    data: bytes


class ObjectReader(io.RawIOBase):
    """An object to read. Its tail is read at once, other parts when they are asked for.

    Each thread has its own position: DuckDB sets it and reads in two calls, side by side in several threads.
    """

    def __init__(self, path: ObjectPath, tail: ObjectTail) -> None:
        self._path = path
        self._at = local()
        self.size, self._tail = tail.stat.st_size, tail.data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(getattr(self._at, "position", 0))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self.size}[whence]
        self._at.position = start + offset
        return self.tell()

    def read(self, size: int | None = -1) -> bytes:
        first = self.tell()
        end = self.size if size is None or size < 0 else min(first + size, self.size)
        self._at.position = max(first, end)
        return self._range(first, end)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _range(self, first: int, end: int) -> bytes:
        import obstore

        if first >= end:
            return b""
        tail_first = self.size - len(self._tail)
        if first >= tail_first:
            return self._tail[first - tail_first : end - tail_first]
        with store_errors(self._path):
            return bytes(obstore.get_range(self._path.store, self._path.key, start=first, end=end))


class ObjectWriter(io.RawIOBase):
    """An object to write, from its start to its end."""

    def __init__(self, path: ObjectPath) -> None:
        import obstore

        self._path = path
        self._size = 0
        with store_errors(path):
            self._file = obstore.open_writer(path.store, path.key, buffer_size=PART_SIZE)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        with store_errors(self._path):
            self._file.write(bytes(data))
        self._size += len(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            super().close()
            with store_errors(self._path):
                self._file.close()
