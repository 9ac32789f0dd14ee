"""The spool: a file per process for trace messages that neither the broker nor memory could take.

    offset  0          8
            +----------+---------+---------+----
            | MAGIC    | entry   | entry   | …
            +----------+---------+---------+----

    entry   0         4        8            8+L
            +---------+--------+------------+
            | L: u32  | CRC: u32 | payload  |
            +---------+--------+------------+

The payload is one trace message: msgpack of SpooledMessage. CRC is zlib's over the payload. A process keeps its file
locked (flock) until it ends. The next start takes over every unlocked file, sends its complete entries and removes it.
A torn tail, as left by kill -9 or a power failure, is cut off, and a damaged entry is skipped; both are logged.
Each entry is written by one `write` and not synced: it survives a crash of the process, but not of the machine.
"""

import contextlib
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mqtrail.net import Log, part_file

log = Log()

MAGIC = b"MQTSPL1\n"
_HEAD = struct.Struct(
    ">I"  # size of the payload
    "I"  # zlib.crc32 of the payload
)
assert _HEAD.size == 8
assert len(MAGIC) == 8

ENTRY_SIZE_MAX = 4 * 1024 * 1024  # bytes; a larger size means damage
DAMAGED_MAX = 1_000  # damaged entries of a file that are skipped; after more of them reading stops
NOTE_RESERVE = 64 * 1024  # bytes beyond the limit, reserved for messages that report losses


class SpooledMessage(msgspec.Struct, frozen=True, array_like=True):
    """One trace message as it will be sent. record_count: its contexts; start_id: of the client's start."""

    topic: str
    keys: str
    body: bytes
    record_count: int
    start_id: str
    business_topic: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SpooledMessage).decode


class SpoolError(OSError):
    """The spool cannot take the message: full, or its file cannot be written."""


class SpoolFull(SpoolError):
    """The file has reached its maximum size."""


def read_entries(file: int, position: int = len(MAGIC)) -> Iterator[tuple[SpooledMessage, int]]:
    """Yield (message, position after it) of each complete entry from position on. file: an open descriptor.

    An entry with a damaged payload is skipped; an impossible size, or more than DAMAGED_MAX such entries, end reading.
    """
    for message, _, end in _entries(file, position):
        yield message, end


def _entries(file: int, position: int) -> Iterator[tuple[SpooledMessage, int, int]]:
    """Yield message, position and end of each complete entry."""
    end = os.fstat(file).st_size
    damaged_count = 0
    while position + _HEAD.size <= end and damaged_count < DAMAGED_MAX:
        size, crc = _HEAD.unpack(os.pread(file, _HEAD.size, position))
        start, position = position, position + _HEAD.size + size
        if not 0 < size <= ENTRY_SIZE_MAX or position > end:
            return
        payload = os.pread(file, size, start + _HEAD.size)
        message = _opened(payload) if len(payload) == size and zlib.crc32(payload) == crc else None
        if message is None:
            damaged_count += 1
        else:
            yield message, start, position


def _opened(payload: bytes) -> SpooledMessage | None:
    try:
        return _decode(payload)
    except msgspec.MsgspecError:
        return None


class Spool:
    """One spool file: appended to while the broker is unreachable, read from the front afterwards.

    Not thread safe; the dispatcher calls it from one thread at a time. Raises SpoolError if the disk fails.
    """

    def __init__(self, path: Path, size_max: int) -> None:
        self.path = path
        self.size_max = size_max
        self.message_count = 0  # complete entries not taken yet
        self.record_count = 0
        self._file = -1
        self._read_position = len(MAGIC)
        self._end = len(MAGIC)

    @classmethod
    def adopt(cls, path: Path, size_max: int) -> "Spool | None":
        """Take over a file that another process left; None if its owner is running or the file is gone."""
        spool = cls(path, size_max)
        try:
            if not spool._open(create=False):
                return None
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning(
                "trace.spool_unusable", path=str(path), error=str(error), remedy="check the file; it is left unchanged"
            )
            return None
        return spool

    @property
    def size(self) -> int:
        """Bytes of entries not taken yet."""
        return self._end - self._read_position

    def append(self, message: SpooledMessage, *, note: bool = False) -> None:
        """Write one entry at the end. note: it may use the reserve beyond the limit. Raises SpoolFull, SpoolError."""
        payload = _encode(message)
        entry = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        bound = self.size_max + (NOTE_RESERVE if note else 0)
        if self._end + len(entry) > bound:
            raise SpoolFull(f"spool {self.path} is full: {self._end} of at most {self.size_max} bytes")
        try:
            if self._file < 0 and not self._open(create=True):
                raise SpoolError(f"spool {self.path} is locked by another process")
            written = os.pwrite(self._file, entry, self._end)
            if written != len(entry):
                raise SpoolError(f"spool {self.path}: only {written} of {len(entry)} bytes were written")
        except OSError as error:
            self._cut_back()
            raise error if isinstance(error, SpoolError) else SpoolError(f"spool {self.path}: {error}") from error
        self._end += len(entry)
        self.message_count += 1
        self.record_count += message.record_count

    def peek(self) -> tuple[SpooledMessage, int] | None:
        """Return the oldest entry and the position to pass to `drop` once it is sent; None if there is none."""
        if self._file < 0 or self._read_position >= self._end:
            return None
        return next(read_entries(self._file, self._read_position), None)

    def drop(self, message: SpooledMessage, position: int) -> None:
        """Remove the entry that `peek` returned. Truncates the file when all entries were taken."""
        self._read_position = position
        self.message_count -= 1
        self.record_count -= message.record_count
        if self._read_position >= self._end:
            os.ftruncate(self._file, len(MAGIC))
            self._read_position = self._end = len(MAGIC)

    def close(self) -> None:
        """Release the file; remove it if it has no entries left, else remove the entries already sent."""
        if self._file < 0:
            return
        try:
            if self._read_position >= self._end:
                self.path.unlink(missing_ok=True)
            elif self._read_position > len(MAGIC):
                self._compact()
        finally:
            os.close(self._file)
            self._file = -1

    def abandon(self) -> None:
        """Close this process's descriptor without changing file or lock: for a child after fork."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

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
        if os.fstat(file).st_size < len(MAGIC) or os.pread(file, len(MAGIC), 0) != MAGIC:
            if os.fstat(file).st_size > len(MAGIC):
                raise SpoolError(f"{self.path} is not a spool file of this version: move it away")
            os.ftruncate(file, 0)
            os.pwrite(file, MAGIC, 0)
        whole_size = len(MAGIC)
        for message, start, self._end in _entries(file, len(MAGIC)):
            whole_size += self._end - start
            self.message_count += 1
            self.record_count += message.record_count
        if lost_size := os.fstat(file).st_size - whole_size:
            log.warning("trace.spool_damaged", path=str(self.path), lost_size=lost_size, kept_count=self.message_count)
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
                target.write(MAGIC)
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
