"""Checksums of an IndexFile, kept beside it: Apache's format has none, and without them a changed byte can hide a
message from queries.

    mqtrail-index/<name of the file>, big-endian:

    16  "mqtrail-index 2\\n"
    4   CRC-32 of what follows
    8   physical offset of its last record
    8   physical offset of the last record of the file before it, -1: it is the first file of all
    4   CRC-32 of the file's header
    4   number of its next entry
    4   count of pages of slots, then 4 for each: its CRC-32
    4   for each block of entries: its CRC-32; the last block ends at the next entry

The sums of a full file are written by the checkpoint that made it durable, those of the unfinished file at a clean
stop. After an unclean stop the unfinished file is always rebuilt. A file without sums is Apache's or an older
version's, and is used unchecked.
"""

from __future__ import annotations

import struct
import sys
from array import array
from zlib import crc32

FOLDER = "mqtrail-index"
MAGIC = b"mqtrail-index 2\n"
BLOCK_ENTRIES = 200  # 4 000 bytes, about what a page of slots has: a look-up reads one of each
_FIXED = struct.Struct(
    ">q"  # physical offset of the last record
    "q"  # physical offset of the last record of the file before
    "I"  # sum of the header
    "I"  # next entry number
    "I"  # count of pages of slots
)
_SUM = struct.Struct(">I")
IS_LITTLE_ENDIAN = sys.byteorder == "little"
assert array("I").itemsize == _SUM.size


class IndexSums:
    """The sums of one file. Entries are added in order, pages of slots replaced whole."""

    def __init__(self, page_sizes: list[int], entry_size: int) -> None:
        zeros = {size: crc32(bytes(size)) for size in set(page_sizes)}
        self.pages = array("I", [zeros[size] for size in page_sizes])
        self.header = 0
        self.next = 1
        self.end_offset = -1
        self.before_offset = -1
        self._entry_size = entry_size
        self.blocks = array("I", [crc32(bytes(entry_size))])  # entry 0 is never used

    def add_entries(self, data: bytes) -> None:
        """Add entries after the existing ones."""
        at = 0
        while at < len(data):
            room = BLOCK_ENTRIES - self.next % BLOCK_ENTRIES
            part = data[at : at + room * self._entry_size]
            if self.next % BLOCK_ENTRIES == 0:
                self.blocks.append(crc32(part))
            else:
                self.blocks[-1] = crc32(part, self.blocks[-1])
            self.next += len(part) // self._entry_size
            at += len(part)

    def encode(self) -> bytes:
        """Return the content to keep beside the file."""
        values = self.pages + self.blocks
        if IS_LITTLE_ENDIAN:
            values.byteswap()
        body = _FIXED.pack(self.end_offset, self.before_offset, self.header, self.next, len(self.pages))
        body += values.tobytes()
        return MAGIC + _SUM.pack(crc32(body)) + body


def decode_sums(data: bytes | None, page_sizes: list[int], entry_size: int) -> IndexSums | None:
    """Return the sums that were kept; None: there are none, they cannot be read, or they are of other settings."""
    body = _body(data)
    if body is None:
        return None
    sums = IndexSums(page_sizes, entry_size)
    sums.end_offset, sums.before_offset, sums.header, sums.next, page_count = _FIXED.unpack_from(body)
    values = struct.unpack(f">{(len(body) - _FIXED.size) // _SUM.size}I", body[_FIXED.size :])
    if page_count != len(page_sizes) or len(values) != page_count + (sums.next - 1) // BLOCK_ENTRIES + 1:
        return None
    sums.pages, sums.blocks = array("I", values[:page_count]), array("I", values[page_count:])
    return sums


def end_offset_of(data: bytes | None) -> int | None:
    """Return the physical offset of a file's last record from its sums; None: they cannot be read."""
    body = _body(data)
    if body is None:
        return None
    end_offset: int = _FIXED.unpack_from(body)[0]
    return end_offset


def _body(data: bytes | None) -> bytes | None:
    """Return what follows the sum of the sums; None: it is of another version, cut or changed."""
    head = len(MAGIC) + _SUM.size
    if data is None or len(data) < head + _FIXED.size or not data.startswith(MAGIC):
        return None
    body = data[head:]
    return body if _SUM.unpack_from(data, len(MAGIC))[0] == crc32(body) else None
