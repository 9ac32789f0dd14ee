"""Spool files: one for each process or producer, for messages that cannot be sent now.

    offset  0          8
            +----------+---------+---------+----
            | magic    | entry   | entry   | …
            +----------+---------+---------+----

    entry   0         4        8            8+L
            +---------+--------+------------+
            | L: u32  | CRC: u32 | payload  |
            +---------+--------+------------+

The payload is one message, as the class of the file packs it. CRC is zlib's over the payload. A process keeps its file
locked (flock) until it ends. The next start takes over every unlocked file, sends its complete entries and removes it.
A torn tail, as left by kill -9 or a power failure, is cut off, and a damaged entry is skipped; both are logged.
Each entry is written by one `write`: it survives a crash of the process. Classes with `marks` set the highest bit of L
in entries that were sent; the others send a whole file again after a crash.
"""

import contextlib
import fcntl
import os
import re
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final, Generic, Self, TypeVar

from mqtrail.wire import part_file

E = TypeVar("E")

_HEAD = struct.Struct(
    ">I"  # size of the payload
    "I"  # zlib.crc32 of the payload
)
assert _HEAD.size == 8

DAMAGED_MAX: Final = 1_000  # damaged entries of a file that are skipped; after more of them reading stops
SENT: Final = 1 << 31  # bit of the size of an entry that was sent
_NAME_LENGTH_MAX: Final = 100


class SpoolError(OSError):
    """The spool cannot take the message: full, or its file cannot be written."""


class SpoolFull(SpoolError):
    """The file has reached its maximum size."""


class SpoolFile(ABC, Generic[E]):
    """One spool file: appended to while the broker is unreachable, read from the front afterwards.

    Not thread safe; its owner calls it from one thread at a time. Raises SpoolError if the disk fails.
    """

    magic: ClassVar[bytes]  # 8 bytes
    entry_size_max: ClassVar[int]  # bytes of a payload; a larger size means damage
    marks: ClassVar[bool] = False  # entries that were sent are marked in the file

    def __init__(self, path: Path, size_max: int) -> None:
        self.path = path
        self.size_max = size_max
        self.message_count = 0  # complete entries not taken yet
        self._file = -1
        self._read_position = len(self.magic)
        self._end = len(self.magic)

    @abstractmethod
    def pack(self, message: E) -> bytes:
        """Return a message's payload."""

    @classmethod
    @abstractmethod
    def unpack(cls, payload: bytes) -> E | None:
        """Return the message of a payload; None if it is damaged."""

    @classmethod
    @abstractmethod
    def report_unusable(cls, path: Path, error: OSError) -> None:
        """Log that a file cannot be taken over; it is left unchanged."""

    @abstractmethod
    def report_damaged(self, lost_size: int) -> None:
        """Log how many bytes of the file are no complete entries; message_count are."""

    def count(self, message: E, sign: int) -> None:
        """Note a message that was added (1) or removed (-1)."""
        self.message_count += sign

    @classmethod
    def adopt(cls, path: Path, size_max: int) -> Self | None:
        """Take over a file that another process left; None if its owner is running or the file is gone."""
        spool = cls(path, size_max)
        try:
            if not spool._open(create=False):
                return None
        except FileNotFoundError:
            return None
        except OSError as error:
            cls.report_unusable(path, error)
            return None
        return spool

    @property
    def size(self) -> int:
        """Bytes of entries not taken yet."""
        return self._end - self._read_position

    def add(self, message: E, *, reserve: int = 0, sync: bool = False) -> None:
        """Write one entry at the end. Raises SpoolFull, SpoolError.

        reserve: bytes beyond the limit that it may use. sync: return after the disk has it.
        """
        payload = self.pack(message)
        entry = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        if len(payload) > self.entry_size_max:
            raise SpoolError(f"spool {self.path}: a message of {len(payload)} bytes, at most {self.entry_size_max} fit")
        if self._end + len(entry) > self.size_max + reserve:
            raise SpoolFull(f"spool {self.path} is full: {self._end} of at most {self.size_max} bytes")
        try:
            if self._file < 0 and not self._open(create=True):
                raise SpoolError(f"spool {self.path} is locked by another process")
            written = os.pwrite(self._file, entry, self._end)
            if written != len(entry):
                raise SpoolError(f"spool {self.path}: only {written} of {len(entry)} bytes were written")
            if sync:
                os.fdatasync(self._file)
        except OSError as error:
            self._cut_back()
            raise error if isinstance(error, SpoolError) else SpoolError(f"spool {self.path}: {error}") from error
        self._end += len(entry)
        self.count(message, 1)

    def first(self, position: int = 0) -> tuple[E, int, int] | None:
        """Return the oldest entry from position on (0: the front), with its start and end; None if there is none."""
        position = max(position, self._read_position)
        if self._file < 0 or position >= self._end:
            return None
        return next(self.entries(self._file, position), None)

    def remove(self, message: E, start: int, end: int) -> None:
        """Remove an entry that `first` returned. Truncates the file when all entries were taken."""
        if self.marks:
            size = int.from_bytes(os.pread(self._file, 4, start), "big")
            os.pwrite(self._file, (size | SENT).to_bytes(4, "big"), start)
            if start == self._read_position:
                self._read_position = end
        else:
            self._read_position = end
        self.count(message, -1)
        if self._read_position >= self._end or (self.marks and not self.message_count):
            os.ftruncate(self._file, len(self.magic))
            self._read_position = self._end = len(self.magic)

    def close(self) -> None:
        """Release the file; remove it if it has no entries left, else remove the entries already sent."""
        if self._file < 0:
            return
        try:
            if self._read_position >= self._end:
                self.path.unlink(missing_ok=True)
            elif self._read_position > len(self.magic):
                self._compact()
        finally:
            os.close(self._file)
            self._file = -1

    def abandon(self) -> None:
        """Close this process's descriptor without changing file or lock: for a child after fork."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @classmethod
    def entries(cls, file: int, position: int | None = None) -> Iterator[tuple[E, int, int]]:
        """Yield (message, start, end) of each complete entry that is not marked as sent. file: an open descriptor.

        An entry with a damaged payload is skipped; an impossible size, or more than DAMAGED_MAX such entries, end
        reading.
        """
        for message, start, end in cls._all_entries(file, len(cls.magic) if position is None else position):
            if message is not None:
                yield message, start, end

    @classmethod
    def _all_entries(cls, file: int, position: int) -> Iterator[tuple[E | None, int, int]]:
        """Yield message, start and end of each complete entry; None instead of a message that was sent."""
        end = os.fstat(file).st_size
        damaged_count = 0
        while position + _HEAD.size <= end and damaged_count < DAMAGED_MAX:
            size, crc = _HEAD.unpack(os.pread(file, _HEAD.size, position))
            is_sent = cls.marks and bool(size & SENT)
            if is_sent:
                size ^= SENT
            start, position = position, position + _HEAD.size + size
            if not 0 < size <= cls.entry_size_max or position > end:
                return
            payload = os.pread(file, size, start + _HEAD.size)
            whole = len(payload) == size and zlib.crc32(payload) == crc
            message = cls.unpack(payload) if whole and not is_sent else None
            if message is None and not (whole and is_sent):
                damaged_count += 1
            else:
                yield message, start, position

    def _open(self, *, create: bool) -> bool:
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink == 0:  # its owner removed it after the open and before the lock
                os.close(file)
                return False
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file = file
        try:
            self._read_whole(file)
        except BaseException:
            os.close(file)
            self._file = -1
            raise
        return True

    def _read_whole(self, file: int) -> None:
        """Count the entries, and cut off a torn tail. Raises SpoolError if the file is not a spool."""
        if os.fstat(file).st_size < len(self.magic) or os.pread(file, len(self.magic), 0) != self.magic:
            if os.fstat(file).st_size > len(self.magic):
                raise SpoolError(f"{self.path} is not a spool file of this version: move it away")
            os.ftruncate(file, 0)
            os.pwrite(file, self.magic, 0)
        whole_size = len(self.magic)
        for message, start, end in self._all_entries(file, len(self.magic)):
            whole_size += end - start
            self._end = end
            if message is not None:
                self.count(message, 1)
        if lost_size := os.fstat(file).st_size - whole_size:
            self.report_damaged(lost_size)
        os.ftruncate(file, self._end)  # new entries must not follow a torn tail

    def _cut_back(self) -> None:
        if self._file >= 0:
            # If this fails too, readers stop at the torn entry, and later entries overwrite it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)

    def _compact(self) -> None:
        """Write the remaining messages to a new file and replace the old one; a crash leaves one of them intact."""
        with part_file(self.path.with_suffix(".tmp")) as rest:
            with open(rest, "wb") as target:
                target.write(self.magic)
                position = self._read_position
                while position < self._end:
                    piece = os.pread(self._file, min(1 << 20, self._end - position), position)
                    if not piece:
                        break
                    target.write(piece)
                    position += len(piece)
            os.replace(rest, self.path)


def orphans(folder: Path, own: Path | None = None) -> list[Path]:
    """Return the spool files in folder, oldest first, except own. They may be locked; `adopt` checks that."""
    try:
        found = [path for path in folder.iterdir() if path.suffix == ".spool" and path != own]
    except FileNotFoundError:
        return []
    return sorted(found)


def folder_name(names: Sequence[str]) -> str:
    """Return the name of a folder for a set of name servers or other names; their order does not matter."""
    joined = "+".join(sorted(names))
    name = re.sub(r"[^A-Za-z0-9.+-]", "_", joined)
    return name if len(name) <= _NAME_LENGTH_MAX else f"{name[:_NAME_LENGTH_MAX]}-{zlib.crc32(joined.encode()):08x}"
