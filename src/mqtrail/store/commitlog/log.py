"""CommitLog: every record of a broker in one long file.

A record never crosses a segment's end: if it and 8 more bytes do not fit, the rest is padding (its size, then
MAGIC_BLANK), and the record begins the next segment. The space of a segment is reserved before use, so a full disk is
an error when a segment is made and never a fault in the middle of a record.

`put` writes bytes; `commit` adds them to the log (only it moves end_offset); `flush` makes them durable and then moves
the mark, in any thread.
Source of the padding: CommitLog.DefaultAppendMessageCallback, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from mqtrail.wire import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RecordError, RecordHead, check_record

from ..disk import SECTOR_SIZE, Disk, File
from ..errors import StoreBroken, StoreError, StoreFull
from ..segments import Segments, used_size
from .mark import DurableMark, Mark, WipingNote

FOLDER = "commitlog"
BLANK = struct.Struct(">iI")  # bytes to the segment's end, MAGIC_BLANK
BLANK_SIZE_MIN = 8
WIPE_CHUNK = 1 << 20
MAGICS = (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)


class CommitLog:
    """The segments, the offset of the next record, and the offset up to which all is durable.

    is_plain: records follow each other, with nothing between them but padding.
    """

    is_plain: ClassVar[bool] = True

    def __init__(self, disk: Disk, segment_size: int, folder: str = FOLDER) -> None:
        self.segments = Segments(disk, folder, segment_size, reserve=True)
        self.end_offset = self.segments.first
        self.flushed_offset = 0
        self.last_record = -1
        self.checked_from = 0  # records below were written before the start or long ago: a reader checks them
        self.fault: str | None = None  # why nothing can be made durable until the store is opened again
        self._unsynced: dict[int, File] = {}
        self._companions: list[File] = []  # files that the next flush makes durable first
        self._durable = DurableMark(disk)
        self._wiping = WipingNote(disk)
        self._take_backs = 0  # begun and ended: odd while one is under way

    @property
    def mark(self) -> Mark | None:
        """The last note of what is durable; None: no note can be read."""
        return self._durable.mark

    @property
    def is_foreign(self) -> bool:
        """Whether there never was a mark: the folder is Apache's, or new."""
        return self._durable.is_new

    @property
    def has_lost_mark(self) -> bool:
        """Whether there is a mark that cannot be read."""
        return self._durable.is_damaged

    @property
    def is_wiping(self) -> bool:
        """Whether zeros were being written behind the end and may not be on the disk."""
        return self._wiping.end_offset > 0

    @property
    def first_offset(self) -> int:
        """Physical offset of the first kept byte."""
        return self.segments.first

    def begin(self, end_offset: int, flushed_offset: int, last_record: int, *, scanned_from: int) -> None:
        """Continue to write at end_offset. Bytes from flushed_offset on were read but may not be synced.

        scanned_from: from there on records were checked.
        """
        self.flushed_offset = min(flushed_offset, end_offset)
        for start in self.segments.starts:
            if self.flushed_offset < start + self.segments.size and start < end_offset:
                self._unsynced[start] = self.segments.file(start)
        self.end_offset, self.last_record = end_offset, last_record
        self.checked_from = scanned_from

    def rewrite(self, physical_offset: int) -> None:
        """Write the bytes from physical_offset to the end once more.

        If a sync of the previous process failed, the kernel shows the written bytes as clean: it never writes them, and
        the next sync still succeeds.
        """
        first = physical_offset
        while first < self.end_offset:
            start = self.segments.start_of(first)
            last = min(first + WIPE_CHUNK, start + self.segments.size, self.end_offset)
            file = self.segments.file(start)
            file.write_at(first - start, file.read_at(first - start, last - first))
            first = last

    def begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin at a segment's start: the bytes before were never here. StoreFull: no space."""
        assert not self.segments.starts, "found a log with files, expected an empty one"
        self.segments.make(physical_offset)
        self.end_offset = self.flushed_offset = physical_offset

    def prepare(self, start: int) -> None:
        """Make the segment that begins at start if it is missing. StoreFull: no space; nothing was written."""
        if not self.segments.has(start):
            self.segments.make(start)

    def put(self, position: int, data: bytes) -> None:
        """Write bytes inside one segment, at or past end_offset. `commit` then adds them to the log."""
        start = position - position % self.segments.size
        file = self.segments.file(start)
        file.write_at(position - start, data)
        self._unsynced[start] = file

    def sync_too(self, file: File) -> None:
        """Let the next flush sync this file before it reports any part of the log as durable."""
        self._companions.append(file)

    def commit(self, end_offset: int, last_record: int) -> None:
        """Add the bytes put up to end_offset to the log."""
        self.end_offset, self.last_record = end_offset, last_record

    def take_back(self, end: int) -> None:
        """Zero, durably, the bytes put between end_offset and end, whose append failed. Otherwise a whole record in
        them would reappear behind the next one after a crash. If zeros cannot be written either, nothing can be
        appended until the store is opened again, which wipes as well.
        """
        with suppress(OSError, StoreFull):  # the note matters only if the zeros do not reach the disk
            self._wiping.note(end)
        self._take_backs += 1
        try:
            for start in self.segments.starts:
                first, last = max(start, self.end_offset), min(start + self.segments.size, end)
                if first < last:
                    _zero(self.segments.file(start), first - start, last - start)
        except Exception as error:
            self.fault = (
                f"an append failed and could not be undone at physical offset {self.end_offset} ({error!r}): "
                "its messages may reappear after the next start"
            )
            return
        finally:
            self._take_backs += 1
        with suppress(OSError):  # if the note stays, the next start only writes some zeros again
            self._wiping.remove()

    def begin_flush(self, dispatched_offset: int) -> Callable[[], int]:
        """Note the log's end; return a function that syncs the log up to it, moves the durable mark, and returns the
        flushed offset.

        Call it in the thread that writes; what it returns may run in any thread, one at a time. The end is noted here,
        so that later writes do not count as synced. After a failed sync the kernel may have dropped the written bytes,
        and a later sync would succeed anyway: so after the first failure nothing is flushed any more. If an append is
        undone meanwhile, the returned offset stays as it was: call it again.
        """
        if self.fault is not None:
            raise StoreBroken(self.fault)
        mark = Mark(self.end_offset, self.last_record, dispatched_offset)
        unsynced, self._unsynced = self._unsynced, {}
        companions, self._companions = self._companions, []

        def sync() -> int:
            take_backs = self._take_backs
            for companion in companions:
                try:
                    companion.sync()
                except BaseException as error:
                    self.fault = f"the sync of a file beside {self.segments.folder}/ failed ({error!r})"
                    raise
            for start, file in unsynced.items():
                try:
                    file.sync()
                except BaseException as error:
                    self.fault = f"the sync of {self.segments.path(start)} failed ({error!r})"
                    raise
            if self.fault is not None:
                raise StoreBroken(self.fault)
            if take_backs % 2 or take_backs != self._take_backs:
                # Zeros were synced meanwhile. Had that failed, the kernel would not have reported it to this sync.
                for start, file in unsynced.items():
                    self._unsynced.setdefault(start, file)
                return self.flushed_offset
            known = self.mark or Mark()
            if mark.flushed_offset > self.flushed_offset or dispatched_offset > known.dispatched_offset:
                self._durable.note(mark)
                self.flushed_offset = max(self.flushed_offset, mark.flushed_offset)
            return self.flushed_offset

        return sync

    def distrust_queues(self, physical_offset: int) -> None:
        """Lower the mark durably: queues are on disk only up to physical_offset; later entries will be removed."""
        mark = self.mark
        if mark is not None and mark.dispatched_offset > physical_offset:
            self._durable.note(replace(mark, dispatched_offset=physical_offset))
            self._durable.sync()

    def lower_mark(self, end_offset: int, last_record: int) -> None:
        """Let the mark say, durably, that the log ends with this record: what is behind it is wiped next."""
        dispatched = 0 if self.mark is None else self.mark.dispatched_offset
        self._durable.note(Mark(end_offset, last_record, max(0, min(dispatched, last_record))))
        self._durable.sync()

    def cut(self, end_offset: int, last_record: int) -> None:
        """End the log, durably, behind a record that it has. No job of begin_flush may run meanwhile."""
        self.wipe_behind(end_offset, last_record)
        self.end_cut(end_offset, last_record)

    def wipe_behind(self, end_offset: int, last_record: int) -> None:
        """Do the slow part of `cut`, in any thread; then call `end_cut`. Nothing may change the log meanwhile.

        A crash in between leaves the log as it was, or some of the bytes behind the new end. After an error of the
        wipe the log has a fault: some of its bytes may be zero, and its next start wipes the rest.
        """
        if end_offset < self.flushed_offset:
            self.lower_mark(end_offset, last_record)
        try:
            self.wipe(end_offset)
        except BaseException as error:
            self.fault = f"the log could not be cut off at physical offset {end_offset} ({error!r})"
            raise

    def end_cut(self, end_offset: int, last_record: int) -> None:
        """Go on at the new end."""
        self._unsynced.clear()
        flushed_offset = min(self.flushed_offset, end_offset)
        self.begin(end_offset, flushed_offset, last_record, scanned_from=min(self.checked_from, end_offset))

    def forget(self) -> None:
        """Drop the whole log, durably. No job of begin_flush may run meanwhile.

        A crash in between leaves the first part of it.
        """
        self._durable.note(Mark())
        self._durable.sync()
        self._unsynced.clear()
        self.segments.drop_from(self.segments.first)
        self.begin(0, 0, -1, scanned_from=0)

    def sync_mark(self) -> None:
        """Make the mark itself durable. Records are durable without it: with an older mark, recovery treats less of the
        log as flushed."""
        self._durable.sync()

    def read(self, physical_offset: int, size: int) -> memoryview:
        """Return bytes inside one segment, as a view that follows the file."""
        start = self.segments.start_of(physical_offset)
        return self.segments.file(start).view(physical_offset - start, size)

    def segment(self, physical_offset: int) -> tuple[int, memoryview]:
        """Return where the segment of an offset begins, and a view of all of it that follows the file."""
        start = self.segments.start_of(physical_offset)
        return start, self.segments.file(start).view(0, self.segments.size)

    def scan(
        self, physical_offset: int, *, crc: bool, torn_from: int | None = None
    ) -> tuple[RecordHead | None, memoryview, int]:
        """Return (head, view of the record, next offset) of the bytes at physical_offset, which a segment holds.

        torn_from: from there on a record may be torn; the CRC covers the body only. Padding gives (None, empty view,
        start of the next segment). RecordError: no record. StoreError: a kind of record that this version does not
        know, which is not a torn tail.
        """
        start = self.segments.start_of(physical_offset)
        segment = self.segments.file(start).view(0, self.segments.size)
        at = physical_offset - start
        left = self.segments.size - at
        if left < BLANK_SIZE_MIN:
            raise RecordError(f"found {left} bytes to the segment's end at {physical_offset}")
        size, magic = BLANK.unpack_from(segment, at)
        if magic == MAGIC_BLANK:
            if size != left:
                raise RecordError(f"found padding of {size} bytes at {physical_offset}")
            return None, segment[:0], start + self.segments.size
        if magic not in MAGICS and not any(_is_part(magic, known) for known in MAGICS):
            raise StoreError(
                f"found a record with magic {magic:#010x} at physical offset {physical_offset} "
                f"({self.segments.path(start)}), expected {MAGIC_V1:#x} or {MAGIC_V2:#x}: a later version wrote it, or "
                "it is damaged; open this folder with that version, or restore the file from a copy"
            )
        if not 0 < size <= left:
            raise RecordError(f"found a record size of {size} bytes at {physical_offset}")
        view = segment[at : at + size]
        head = check_record(view, crc=crc)
        if head.physical_offset != physical_offset:
            raise RecordError(f"found a stale record for physical offset {head.physical_offset} at {physical_offset}")
        if torn_from is not None and physical_offset >= torn_from and is_torn(view, head):
            raise RecordError(f"found a torn record, without all of its properties, at {physical_offset}")
        return head, view, physical_offset + size

    def has_record(self, physical_offset: int) -> bool:
        """Whether a record begins there, which a segment holds. Its body is not checked."""
        try:
            self.scan(physical_offset, crc=False)
        except (RecordError, StoreError):
            return False
        return True

    def wipe(self, physical_offset: int) -> int:
        """Zero everything from physical_offset on; return how many of these bytes were not zero.

        Otherwise a stale record behind the torn one reappears once a new record of the same size fills the gap.
        """
        start = self.segments.start_of(physical_offset)
        wiped = 0
        for later in [known for known in self.segments.starts if known > start]:
            wiped += used_size(self.segments.file(later), 0, self.segments.size)
        self.segments.drop_from(start + self.segments.size)
        if self.segments.has(physical_offset):
            file, at = self.segments.file(start), physical_offset - start
            used = used_size(file, at, self.segments.size)
            wiped += used
            end = max(at + used, min(self._wiping.end_offset - start, self.segments.size))
            if end > at:
                self._wiping.note(start + end)
            _zero(file, at, end)  # sync even if all is zero: the previous process's zeros may not be on the disk
        self._wiping.remove()
        return wiped

    def close(self) -> None:
        """Close the files."""
        self.segments.close()
        self._durable.close()


def _zero(file: File, first: int, end: int) -> None:
    """Write zeros over [first, end), durably."""
    for at in range(first, end, WIPE_CHUNK):
        file.write_at(at, bytes(min(WIPE_CHUNK, end - at)))
    file.sync()


def _is_part(found: int, known: int) -> bool:
    """Whether a magic equals a known one but for zero bytes that did not reach the disk."""
    return all(have in (0, want) for have, want in zip(found.to_bytes(4, "big"), known.to_bytes(4, "big"), strict=True))


def is_torn(view: memoryview, head: RecordHead) -> bool:
    """Whether a record's topic or properties end in a zero, or a whole sector of them is zero.

    Bytes that did not reach the disk are zero. The lengths or the CRC reveal a record torn before its topic.
    """
    position = head.physical_offset
    topic_start, topic_end = head.body_end + (1 if head.magic == MAGIC_V1 else 2), head.properties_start - 2
    for first, last in ((topic_start, topic_end), (head.properties_start, head.properties_end)):
        if first == last:
            continue
        if view[last - 1] == 0:
            return True
        at = first
        while at < last:
            sector_end = min(last, at + SECTOR_SIZE - (position + at) % SECTOR_SIZE)
            if (position + at) % SECTOR_SIZE == 0 and not any(view[at:sector_end]):
                return True
            at = sector_end
    return False
