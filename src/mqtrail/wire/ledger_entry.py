"""Entries of a DLedger log, and the units of its index.

    data file, one entry                                   index file, one unit at 32 x index
    0   magic i32: 1; -1: padding to the file's end        0   magic i32
    4   size i32: head and body; of padding: all of it     4   position i64
    8   index i64: 0, 1, 2, …                              12  size i32
    16  term i64                                           16  index i64
    24  position i64: of this entry in the log             24  term i64
    32  channel i32: 0
    36  chain CRC i32: 0, not used
    40  body CRC i32: 0, not used
    44  size of the body i32
    48  body: one record, whose PHYSICALOFFSET is position + 48

All integers are big-endian. An entry needs 8 bytes more than its size in its file: room for padding.

Source: DLedgerEntry, DLedgerEntryCoder, MmapFileList, openmessaging/dledger 0.3.1.2; DLedgerCommitLog, apache/rocketmq
store/.
"""

import struct
from dataclasses import dataclass
from typing import Final

from .errors import RecordError

__all__ = [
    "LEDGER_HEAD_SIZE",
    "LEDGER_MAGIC",
    "LEDGER_PADDING_SIZE_MIN",
    "LEDGER_UNIT",
    "LedgerEntry",
    "LedgerHead",
    "decode_ledger_entry",
    "decode_ledger_head",
    "encode_ledger_entry",
    "ledger_padding",
    "ledger_unit",
]

LEDGER_MAGIC: Final = 1
LEDGER_PADDING_MAGIC: Final = -1
_HEAD: Final = struct.Struct(
    ">i"  # magic
    "i"  # size
    "q"  # index
    "q"  # term
    "q"  # position
    "i"  # channel
    "i"  # chain CRC
    "i"  # body CRC
    "i"  # body size
)
LEDGER_HEAD_SIZE: Final = 48
assert _HEAD.size == LEDGER_HEAD_SIZE
LEDGER_UNIT: Final = struct.Struct(
    ">i"  # magic
    "q"  # position
    "i"  # size
    "q"  # index
    "q"  # term
)
assert LEDGER_UNIT.size == 32
_PADDING: Final = struct.Struct(">ii")  # magic, bytes to the file's end
LEDGER_PADDING_SIZE_MIN: Final = 8
assert _PADDING.size == LEDGER_PADDING_SIZE_MIN


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One entry. position: its place in the log, in bytes; its body begins LEDGER_HEAD_SIZE later."""

    index: int
    term: int
    position: int
    body: bytes
    magic: int = LEDGER_MAGIC
    channel: int = 0
    chain_crc: int = 0
    body_crc: int = 0

    @property
    def size(self) -> int:
        """Bytes of head and body."""
        return LEDGER_HEAD_SIZE + len(self.body)

    @property
    def end(self) -> int:
        """Position behind its last byte."""
        return self.position + LEDGER_HEAD_SIZE + len(self.body)

    @property
    def is_known(self) -> bool:
        """Whether this version can read the entry."""
        return self.magic == LEDGER_MAGIC

    def is_same(self, other: "LedgerEntry") -> bool:
        """Whether DLedger takes both for one entry: all but the CRCs are equal."""
        return (self.index, self.term, self.position, self.magic, self.channel, self.body) == (
            other.index,
            other.term,
            other.position,
            other.magic,
            other.channel,
            other.body,
        )


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The head of an entry, or padding: then size is all that is left of the file, and the rest is 0."""

    magic: int
    size: int
    index: int = 0
    term: int = 0
    position: int = 0
    channel: int = 0
    chain_crc: int = 0
    body_crc: int = 0

    @property
    def is_padding(self) -> bool:
        """Whether the next entry is in the next file."""
        return self.magic == LEDGER_PADDING_MAGIC

    @property
    def is_known(self) -> bool:
        """Whether this version can read the entry."""
        return self.magic == LEDGER_MAGIC


def encode_ledger_entry(entry: LedgerEntry) -> bytes:
    """Return the bytes of an entry in a data file. RecordError: a number does not fit."""
    body = entry.body
    try:
        head = _HEAD.pack(
            entry.magic,
            LEDGER_HEAD_SIZE + len(body),
            entry.index,
            entry.term,
            entry.position,
            entry.channel,
            entry.chain_crc,
            entry.body_crc,
            len(body),
        )
    except struct.error as error:
        raise RecordError(f"found entry {entry.index} with a number out of its field's range: {error}") from error
    return head + body


def decode_ledger_head(data: bytes | memoryview, at: int = 0) -> LedgerHead:
    """Return the head that begins at a place. RecordError: the bytes are no head. Its magic may be an unknown one."""
    try:
        magic, size = _PADDING.unpack_from(data, at)
        if magic == LEDGER_PADDING_MAGIC:
            return LedgerHead(magic, size)
        head = _HEAD.unpack_from(data, at)
    except struct.error as error:
        raise RecordError(f"found {len(data) - at} bytes, expected an entry's head: {error}") from error
    if head[8] < 0 or size != LEDGER_HEAD_SIZE + head[8]:
        raise RecordError(f"found an entry of {size} bytes with a body of {head[8]}, expected {LEDGER_HEAD_SIZE} more")
    return LedgerHead(*head[:8])


def decode_ledger_entry(data: bytes | memoryview, at: int = 0) -> LedgerEntry:
    """Return the entry that begins at a place. RecordError: there is no whole one that this version can read."""
    head = decode_ledger_head(data, at)
    if not head.is_known:
        raise RecordError(f"found an entry with magic {head.magic}, expected {LEDGER_MAGIC}")
    body = bytes(data[at + LEDGER_HEAD_SIZE : at + head.size])
    if len(body) != head.size - LEDGER_HEAD_SIZE:
        raise RecordError(f"found {len(data) - at} of the {head.size} bytes of an entry")
    return LedgerEntry(
        head.index, head.term, head.position, body, head.magic, head.channel, head.chain_crc, head.body_crc
    )


def ledger_padding(size: int) -> bytes:
    """Return what fills the last `size` bytes of a data file: the number, then zeros."""
    return _PADDING.pack(LEDGER_PADDING_MAGIC, size).ljust(size, b"\0")


def ledger_unit(head: LedgerEntry | LedgerHead) -> bytes:
    """Return an entry's unit in the index."""
    return LEDGER_UNIT.pack(head.magic, head.position, head.size, head.index, head.term)
