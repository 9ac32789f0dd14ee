"""A member's log as far as it is committed: what queues, index and readers see of it.

It ends with the last committed entry that has its queue entries. Entries behind it may still be taken back, so they
cannot be read. A separate file, mqtrail-dispatched, notes up to where queues are on disk; the log's durable mark
belongs to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable

from mqtrail.wire import LEDGER_HEAD_SIZE, LedgerHead, RecordError, RecordHead, check_record

from ..commitlog.log import CommitLog
from ..commitlog.mark import DurableMark, Mark
from ..disk import Disk, File
from ..errors import StoreBroken, StoreError
from .ledger import NOTHING, LedgerLog

DISPATCHED_FILE = "mqtrail-dispatched"


class CommittedLog(CommitLog):
    """See CommitLog. Offsets are positions of entries; a record begins LEDGER_HEAD_SIZE behind its entry.

    committed_index: of the last entry before the end; the store raises both.
    """

    is_plain = False

    def __init__(self, disk: Disk, ledger: LedgerLog) -> None:
        self._ledger = ledger
        self._entries = ledger.data
        self.segments = self._entries.segments
        self.committed_index = ledger.committed_index
        self.end_offset = self.flushed_offset = self._start_end = ledger.position_behind(ledger.committed_index)
        self.last_record = -1
        self.checked_from = 0
        self._companions: list[File] = []
        self._durable = DurableMark(disk, DISPATCHED_FILE)

    @property
    def fault(self) -> str | None:
        """Why nothing can be made durable until the store is opened again."""
        return self._entries.fault

    @fault.setter
    def fault(self, fault: str | None) -> None:
        self._entries.fault = fault

    @property
    def mark(self) -> Mark | None:
        """The last note of what queues have, not past what is known to be committed; None: there is none."""
        noted = self._durable.mark
        if noted is None:
            return None
        last = self._ledger.head(self.committed_index)
        last_record = min(noted.last_record, -1 if last is None else last.position)
        return Mark(self.end_offset, last_record, min(noted.dispatched_offset, self.end_offset))

    @property
    def is_wiping(self) -> bool:
        """False: the ledger wipes."""
        return False

    def move_to(self, index: int, end_offset: int) -> None:
        """Let the log end behind a committed entry."""
        self.committed_index = index
        self.end_offset = self.flushed_offset = end_offset

    def begin(self, end_offset: int, flushed_offset: int, last_record: int, *, scanned_from: int) -> None:
        """Continue where recovery ended. StoreError: committed entries cannot be read."""
        if end_offset != self._start_end:
            path = self.segments.path(self.segments.start_of(end_offset))
            raise StoreError(
                f"found no entry at position {end_offset} ({path}), expected committed ones up to {self._start_end}: "
                f"restore the file, or remove {self._ledger.folder}/ and mqtrail-durable: then this member copies the "
                "log from the others, which must have all of it"
            )
        self.last_record, self.checked_from = last_record, scanned_from

    def rewrite(self, physical_offset: int) -> None:
        """Do nothing: the ledger did it."""

    def wipe(self, physical_offset: int) -> int:
        """Return 0: the ledger wipes."""
        return 0

    def begin_flush(self, dispatched_offset: int) -> Callable[[], int]:
        """Return a function that notes up to where queues are on disk, and returns where this log ended.

        The ledger's own flushes make the log durable.
        """
        if self.fault is not None:
            raise StoreBroken(self.fault)
        mark = Mark(self.end_offset, self.last_record, dispatched_offset)
        companions, self._companions = self._companions, []

        def sync() -> int:
            for companion in companions:
                try:
                    companion.sync()
                except BaseException as error:
                    self.fault = f"the sync of a file beside {self._ledger.folder}/ failed ({error!r})"
                    raise
            known = self._durable.mark or Mark()
            if dispatched_offset > known.dispatched_offset or self._durable.mark is None:
                self._durable.note(mark)
            return mark.flushed_offset

        return sync

    def scan(
        self, physical_offset: int, *, crc: bool, torn_from: int | None = None
    ) -> tuple[RecordHead | None, memoryview, int]:
        """Return (head, view of the record, position behind it) of the entry at a position, or of the one with the
        record at that physical offset. See CommitLog. RecordError also behind the end, and where the log has no file:
        it may have begun anew."""
        if physical_offset >= self.end_offset:
            raise RecordError(f"found the end of what is committed, {self.end_offset}, at {physical_offset}")
        if not self.segments.has(physical_offset):
            raise RecordError(
                f"found no file with position {physical_offset}, expected one from {self.first_offset} on"
            )
        entries = self._entries
        start = self.segments.start_of(physical_offset)
        head = self._entry_at(physical_offset, start)
        segment = self.segments.file(start).view(0, self.segments.size)
        if head is None:
            return None, segment[:0], start + self.segments.size
        entries.check_body(head, crc=crc, torn_from=NOTHING)
        at = head.position - start
        view = segment[at + LEDGER_HEAD_SIZE : at + head.size]
        return check_record(view, crc=False), view, head.position + head.size

    def _entry_at(self, offset: int, start: int) -> LedgerHead | None:
        """Return the head of the entry at a position, or of the one with the record there; None: padding."""
        try:
            return self._entries.entry_head(offset)
        except RecordError:
            before = offset - LEDGER_HEAD_SIZE
            if before < start:
                raise
            head = self._entries.entry_head(before)
            if head is None:
                raise
            return head

    def close(self) -> None:
        """Close the mark's file; the segments are the ledger's."""
        self._durable.close()
