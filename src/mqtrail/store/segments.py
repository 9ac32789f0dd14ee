"""A sequence of files of equal size that form one long file, each named by the offset of its first byte.

    commitlog/00000000000000000000  [0, size)
    commitlog/00000000001073741824  [size, 2 size)      …

Source of names and load rules: MappedFileQueue, apache/rocketmq store/.
"""

from __future__ import annotations

from itertools import pairwise

from .disk import Disk, File
from .errors import StoreError

NAME_DIGITS = 20
FILES_OPEN_MAX = 64  # the current file and those read last
CHUNK = 64 * 1024


def used_size(file: File, first: int, end: int) -> int:
    """Return the bytes of [first, end) up to the last one that is not zero; 0 when all are. Holes are skipped."""
    used = at = first
    while (data_at := file.next_data(at)) is not None and data_at < end:
        data = file.read_at(data_at, min(CHUNK, end - data_at))
        if (size := len(data.rstrip(b"\0"))) > 0:
            used = data_at + size
        at = data_at + len(data)
    return used - first


class Segments:
    """The files of one folder. reserve: their space is reserved when they are made."""

    def __init__(self, disk: Disk, folder: str, size: int, *, reserve: bool) -> None:
        self._disk = disk
        self.folder = folder
        self.size = size
        self._reserve = reserve
        self._open: dict[int, File] = {}
        self.starts = self._load()

    def _load(self) -> list[int]:
        starts = []
        names = self._disk.list(self.folder)
        for name in names:
            if len(name) != NAME_DIGITS or not name.isdigit():
                raise StoreError(
                    f"found {self.folder}/{name}, expected only files named by {NAME_DIGITS} digits: "
                    "move other files away"
                )
            found = self._disk.size(f"{self.folder}/{name}")
            if name == names[-1] and found is not None and self._is_unfinished(name, found):
                self._disk.remove(f"{self.folder}/{name}")
                continue
            if found != self.size:
                raise StoreError(
                    f"found {self.folder}/{name} with {found} bytes, expected {self.size}: start with the segment size "
                    "of this folder, or restore the file"
                )
            starts.append(int(name))
        for before, after in pairwise(starts):
            if after != before + self.size:
                raise StoreError(
                    f"found no file between {self.folder}/{before:020} and {after:020}, expected one every {self.size} "
                    "bytes: restore the missing ones, or move the older ones away"
                )
        return starts

    def _is_unfinished(self, name: str, found: int) -> bool:
        """Return whether power was lost while the file was made: it is too short, and nothing was ever written to
        it."""
        path = f"{self.folder}/{name}"
        return found == 0 or (found < self.size and not used_size(self._disk.open(path, found), 0, found))

    @property
    def first(self) -> int:
        """Offset of the first byte; 0 without files."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """Offset after the last file's last byte; 0 without files."""
        return self.starts[-1] + self.size if self.starts else 0

    def start_of(self, offset: int) -> int:
        """Return where the file that holds offset begins."""
        return offset - offset % self.size

    def has(self, offset: int) -> bool:
        """Whether there is a file that holds offset."""
        return bool(self.starts) and self.starts[0] <= offset < self.end

    def path(self, start: int) -> str:
        """Return the path of the file that begins at start."""
        return f"{self.folder}/{start:0{NAME_DIGITS}}"

    def file(self, start: int) -> File:
        """Return the open file that begins at start, which is in `starts`."""
        file = self._open.get(start)
        if file is None:
            if len(self._open) >= FILES_OPEN_MAX:
                self._open.pop(next(iter(self._open))).close()  # it stays open while a writer or a sync uses it
            file = self._open[start] = self._disk.open(self.path(start), self.size, reserve=self._reserve)
        return file

    def make(self, start: int) -> File:
        """Make the file that begins at start, which follows the last one. StoreFull when there is no room."""
        assert not self.starts or start == self.end, f"{self.folder}: found {start}, expected {self.end}"
        try:
            file = self._disk.open(self.path(start), self.size, reserve=self._reserve)
        except BaseException:
            self._disk.remove(self.path(start))
            raise
        self._open[start] = file
        self.starts.append(start)
        return file

    def drop_first(self) -> int:
        """Remove the oldest file; return the bytes freed."""
        start = self.starts.pop(0)
        self._remove(start)
        return self.size

    def drop_from(self, start: int) -> int:
        """Remove the files that begin at or after start; return how many."""
        gone = [known for known in reversed(self.starts) if known >= start]
        for known in gone:  # the last one first: a crash in between must not leave a gap
            self._remove(known)
        self.starts = [known for known in self.starts if known < start]
        return len(gone)

    def _remove(self, start: int) -> None:
        if start in self._open:
            self._open.pop(start).close()  # no reference stays: the last one frees the file's space
        self._disk.remove(self.path(start))

    def close(self) -> None:
        """Close every file."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def destroy(self) -> None:
        """Remove every file and the folder."""
        self.close()
        self.starts.clear()
        self._disk.remove(self.folder)
