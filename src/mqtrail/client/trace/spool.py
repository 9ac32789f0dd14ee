"""The spool: a file per process for trace messages that neither the broker nor memory could take.

The payload of an entry is msgpack of SpooledMessage; the file is that of `core.spool_file`. Entries are not synced:
they survive a crash of the process, but not of the machine.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from mqtrail.net import Log

from ..core import DAMAGED_MAX, SpoolError, SpoolFile, SpoolFull, orphans

__all__ = ["DAMAGED_MAX", "MAGIC", "Spool", "SpoolError", "SpoolFull", "SpooledMessage", "orphans", "read_entries"]

log = Log()

MAGIC = b"MQTSPL1\n"
assert len(MAGIC) == 8

ENTRY_SIZE_MAX = 4 * 1024 * 1024  # bytes; a larger size means damage
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


class Spool(SpoolFile[SpooledMessage]):
    """One spool file of trace messages; see SpoolFile."""

    magic = MAGIC
    entry_size_max = ENTRY_SIZE_MAX

    def __init__(self, path: Path, size_max: int) -> None:
        super().__init__(path, size_max)
        self.record_count = 0

    def pack(self, message: SpooledMessage) -> bytes:
        """Return a message's payload."""
        return _encode(message)

    @classmethod
    def unpack(cls, payload: bytes) -> SpooledMessage | None:
        """Return the message of a payload; None if it is damaged."""
        try:
            return _decode(payload)
        except msgspec.MsgspecError:
            return None

    @classmethod
    def report_unusable(cls, path: Path, error: OSError) -> None:
        """Log that a file cannot be taken over."""
        log.warning(
            "trace.spool_unusable", path=str(path), error=str(error), remedy="check the file; it is left unchanged"
        )

    def report_damaged(self, lost_size: int) -> None:
        """Log how many bytes are lost."""
        log.warning("trace.spool_damaged", path=str(self.path), lost_size=lost_size, kept_count=self.message_count)

    def count(self, message: SpooledMessage, sign: int) -> None:
        """Note a message that was added (1) or removed (-1)."""
        super().count(message, sign)
        self.record_count += sign * message.record_count

    def append(self, message: SpooledMessage, *, note: bool = False) -> None:
        """Write one entry at the end. note: it may use the reserve beyond the limit. Raises SpoolFull, SpoolError."""
        self.add(message, reserve=NOTE_RESERVE if note else 0)

    def peek(self) -> tuple[SpooledMessage, int] | None:
        """Return the oldest entry and the position to pass to `drop` once it is sent; None if there is none."""
        found = self.first()
        return None if found is None else (found[0], found[2])

    def drop(self, message: SpooledMessage, position: int) -> None:
        """Remove the entry that `peek` returned. Truncates the file when all entries were taken."""
        self.remove(message, self._read_position, position)


def read_entries(file: int, position: int = len(MAGIC)) -> Iterator[tuple[SpooledMessage, int]]:
    """Yield (message, position after it) of each complete entry from position on. file: an open descriptor."""
    for message, _, end in Spool.entries(file, position):
        yield message, end
