"""CommitLog: every record of a broker in one long file, and the mark of what is durable beside it.

A record never crosses a segment's end: where it and 8 bytes more do not fit, the rest is padding (its size, then
MAGIC_BLANK), and the record begins the next segment. Segments are reserved before use, so that a full disk is an error
on making one and never a fault in the middle of a record.

    mqtrail-durable    8 flushed offset, 8 where its last record starts, 8 queues are on disk up to here, 4 CRC-32

The mark is written after each sync, so it never promises too much; an older one promises less, which is safe.
Source of the padding: CommitLog.DefaultAppendMessageCallback, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from mqtrail.store.base import StoreError
from mqtrail.store.commitlog.segments import Segments
from mqtrail.store.disk import Disk, File
from mqtrail.wire import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RecordError, RecordHead, check_record

BLANK = struct.Struct(">iI")  # bytes to the segment's end, MAGIC_BLANK
MARK = struct.Struct(">qqqI")
MARK_FILE = "mqtrail-durable"
BLANK_SIZE_MIN = 8
WIPE_CHUNK = 1 << 20
TORN_BLOCK = bytes(512)  # the least that a disk writes or loses


@dataclass(frozen=True, slots=True)
class Mark:
    """What is known to be durable. last_record -1: nothing was ever flushed."""

    flushed_offset: int = 0
    last_record: int = -1
    dispatched_offset: int = 0

    def pack(self) -> bytes:
        """Return the mark's bytes."""
        fields = struct.pack(">qqq", self.flushed_offset, self.last_record, self.dispatched_offset)
        return fields + crc32(fields).to_bytes(4, "big")

    @classmethod
    def unpack(cls, data: bytes | None) -> Mark | None:
        """Return the mark, None when the bytes are torn or absent."""
        if data is None or len(data) < MARK.size:
            return None
        flushed, last, dispatched, crc = MARK.unpack(data[: MARK.size])
        return cls(flushed, last, dispatched) if crc32(data[: MARK.size - 4]) == crc else None


class CommitLog:
    """The segments and the place of the next record. `store` writes records; this keeps the bytes."""

    def __init__(self, disk: Disk, segment_size: int) -> None:
        self._disk = disk
        self.segments = Segments(disk, "commitlog", segment_size, reserve=True)
        self.end_offset = self.segments.first
        self.flushed_offset = 0
        self.last_record = -1
        self._unsynced: dict[int, File] = {}
        self.is_foreign = disk.size(MARK_FILE) is None  # Apache's, or new: there never was a mark
        self._mark_file = disk.open(MARK_FILE, MARK.size)
        self.mark = Mark.unpack(self._mark_file.read_at(0, MARK.size))
        self.file: File | None = None
        self.file_start = self.file_end = 0

    @property
    def first_offset(self) -> int:
        """Physical offset of the first kept byte."""
        return self.segments.first

    def begin(self, end_offset: int) -> None:
        """Go on writing at end_offset."""
        self.end_offset = self.flushed_offset = end_offset
        if self.segments.has(end_offset):
            self._use(self.segments.start_of(end_offset))

    def _use(self, start: int) -> None:
        self.file = self.segments.file(start)
        self.file_start, self.file_end = start, start + self.segments.size

    def prepare(self, start: int) -> None:
        """Make the segment that begins at start, when there is none. StoreFull before anything was written."""
        if not self.segments.has(start):
            self.segments.make(start)

    def write(self, data: bytes, last_record: int) -> None:
        """Append bytes that fit into the current segment; its last record starts at last_record."""
        assert self.file is not None
        self.file.write_at(self.end_offset - self.file_start, data)
        self._unsynced[self.file_start] = self.file
        self.end_offset += len(data)
        self.last_record = last_record

    def roll(self) -> None:
        """Pad the current segment and go on in the next one, which `prepare` has made."""
        if self.file is not None:
            left = self.file_end - self.end_offset
            if left:
                self.file.write_at(self.end_offset - self.file_start, BLANK.pack(left, MAGIC_BLANK))
                self._unsynced[self.file_start] = self.file
                self.end_offset = self.file_end
        self._use(self.end_offset)

    def begin_flush(self, dispatched_offset: int) -> Callable[[], int]:
        """Take note of what was written so far; return what syncs it, then the mark, and gives the flushed offset.

        To be called by the thread that writes; what it returns may run in any, one at a time. Taking note here, not
        there, is what keeps a write of the meantime from being taken for synced.
        """
        end, last = self.end_offset, self.last_record
        unsynced, self._unsynced = self._unsynced, {}

        def sync() -> int:
            try:
                for file in unsynced.values():
                    file.sync()
            except BaseException:
                self._unsynced = {**unsynced, **self._unsynced}
                raise
            if end > self.flushed_offset or self.mark is None or dispatched_offset > self.mark.dispatched_offset:
                self.mark = Mark(end, last, dispatched_offset)
                self._mark_file.write_at(0, self.mark.pack())
                self.flushed_offset = max(self.flushed_offset, end)
            return self.flushed_offset

        return sync

    def flush(self, dispatched_offset: int) -> int:
        """Sync what was written before the call, then the mark; return the flushed offset."""
        return self.begin_flush(dispatched_offset)()

    def read(self, physical_offset: int, size: int) -> memoryview:
        """Return bytes inside one segment, as a view that follows the file."""
        start = self.segments.start_of(physical_offset)
        return self.segments.file(start).view(physical_offset - start, size)

    def scan(self, physical_offset: int, *, crc: bool) -> tuple[RecordHead | None, memoryview, int]:
        """Return (head, view of the record, next offset) of what stands at physical_offset, which a segment holds.

        Padding gives (None, empty view, start of the next segment). RecordError: no record. StoreError: a kind of
        record that this version does not know, which must not be taken for a torn tail.
        """
        start = self.segments.start_of(physical_offset)
        segment = self.segments.file(start).view(0, self.segments.size)
        at = physical_offset - start
        if self.segments.size - at < BLANK_SIZE_MIN:
            raise RecordError(f"found {self.segments.size - at} bytes to the segment's end at {physical_offset}")
        size, magic = BLANK.unpack_from(segment, at)
        if magic == MAGIC_BLANK:
            if size != self.segments.size - at:
                raise RecordError(f"found padding of {size} bytes at {physical_offset}")
            return None, segment[:0], start + self.segments.size
        if magic not in (MAGIC_V1, MAGIC_V2) and size > 0 and magic >> 16 == MAGIC_V1 >> 16 and magic & 0xFF:
            raise StoreError(
                f"found a record with magic {magic:#010x} at {physical_offset}, expected {MAGIC_V1:#x} or "
                f"{MAGIC_V2:#x}: a later version wrote it; open this folder with that version"
            )
        if not 0 < size <= self.segments.size - at:
            raise RecordError(f"found a record size of {size} bytes at {physical_offset}")
        view = segment[at : at + size]
        head = check_record(view, crc=crc)
        if head.physical_offset != physical_offset:
            raise RecordError(f"found a record of {head.physical_offset} at {physical_offset}: a stale one")
        properties = bytes(view[head.properties_start : head.properties_end])
        if "\0" in head.topic or properties.endswith(b"\0") or TORN_BLOCK in properties:
            # The CRC is of the body alone: a tear behind it shows as the zeros that a segment is made of.
            raise RecordError(f"found zeros in the topic or properties of the record at {physical_offset}: a torn one")
        return head, view, physical_offset + size

    def wipe(self, physical_offset: int) -> int:
        """Zero everything from physical_offset on; return how many bytes of it were not zero.

        Without this a stale record behind the tear comes back once a new record of the same size fills the gap.
        """
        start = self.segments.start_of(physical_offset)
        wiped = 0
        for later in [known for known in self.segments.starts if known > start]:
            wiped += self._last_nonzero(later, 0)
        self.segments.drop_from(start + self.segments.size)
        if self.segments.has(physical_offset):
            file, at = self.segments.file(start), physical_offset - start
            used = self._last_nonzero(start, at)
            wiped += used
            for chunk in range(at, at + used, WIPE_CHUNK):
                file.write_at(chunk, bytes(min(WIPE_CHUNK, at + used - chunk)))
            if used:
                file.sync()
        return wiped

    def _last_nonzero(self, start: int, at: int) -> int:
        """Return the bytes from `at` to the last one that is not zero, in the segment that begins at start."""
        file, end = self.segments.file(start), self.segments.size
        while end > at:
            begin = max(at, end - WIPE_CHUNK)
            kept = len(file.read_at(begin, end - begin).rstrip(b"\0"))
            if kept:
                return begin + kept - at
            end = begin
        return 0

    def close(self) -> None:
        """Close the files."""
        self.segments.close()
        self._mark_file.close()
