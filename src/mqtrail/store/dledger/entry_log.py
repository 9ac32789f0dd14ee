"""The data files: a CommitLog whose records are bodies of entries.

Source of padding and checks: MmapFileList, DLedgerMmapFileStore.recover, openmessaging/dledger 0.3.1.2.
"""

from __future__ import annotations

from mqtrail.wire import (
    LEDGER_HEAD_SIZE,
    LEDGER_PADDING_SIZE_MIN,
    LedgerHead,
    RecordError,
    check_record,
    decode_ledger_head,
)

from ..commitlog.log import CommitLog, is_torn
from ..disk import Disk
from ..errors import StoreError


class EntryLog(CommitLog):
    """See CommitLog. Offsets are positions of entries; a record begins LEDGER_HEAD_SIZE behind its entry."""

    def __init__(self, disk: Disk, segment_size: int, folder: str) -> None:
        super().__init__(disk, segment_size, folder)

    def place(self, size: int) -> int:
        """Return the position of the next entry, which has so many bytes."""
        return self.place_behind(self.end_offset, size)

    def place_behind(self, end: int, size: int) -> int:
        """Return the position of an entry of so many bytes behind one that ends there."""
        segment_size = self.segments.size
        left = segment_size - end % segment_size
        return end + left if size + LEDGER_PADDING_SIZE_MIN > left else end

    def entry_head(self, position: int) -> LedgerHead | None:
        """Return the head of the entry at a position that a segment holds; None: padding, go on in the next segment.

        RecordError: no entry. StoreError: an entry of a later version.
        """
        start = self.segments.start_of(position)
        segment = self.segments.file(start).view(0, self.segments.size)
        at = position - start
        left = self.segments.size - at
        head = decode_ledger_head(segment, at)
        if head.is_padding:
            if head.size != left:
                raise RecordError(f"found padding of {head.size} bytes at {position}, expected {left}")
            return None
        if head.position != position or head.size > left or head.index < 0 or head.term < 0:
            raise RecordError(f"found an entry for position {head.position} of {head.size} bytes at {position}")
        if not head.is_known:
            # No torn write leaves a magic beside a right position and sizes that fit.
            raise StoreError(
                f"found an entry with magic {head.magic} at position {position} ({self.segments.path(start)}), "
                "expected 1: a later version of DLedger wrote it; open this folder with that version"
            )
        return head

    def check_body(self, head: LedgerHead, *, crc: bool, torn_from: int) -> None:
        """Check the record of an entry. RecordError: the bytes are not a whole record.

        torn_from: from there on an entry may be torn; the CRC covers the record's body only.
        """
        start = self.segments.start_of(head.position)
        at = head.position - start + LEDGER_HEAD_SIZE
        view = self.segments.file(start).view(at, head.size - LEDGER_HEAD_SIZE)
        record = check_record(view, crc=crc)
        place = head.position + LEDGER_HEAD_SIZE
        if record.physical_offset != place or record.size != len(view):
            raise RecordError(
                f"found a record of {record.size} bytes for physical offset {record.physical_offset} at {place}, "
                f"expected {len(view)} bytes"
            )
        if head.position >= torn_from and is_torn(view, record):
            raise RecordError(f"found a torn record, without all of its properties, at {place}")
