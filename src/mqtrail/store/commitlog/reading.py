"""Reading: records of a queue by queue offset, tag and time, and of the log by physical offset.

Records are views of the segment, so that a pull reply has them without a copy.
Source: DefaultMessageStore.getMessage, ConsumeQueue.getOffsetInQueueByTime, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mqtrail.wire import (
    QUEUE_OFFSET_AT,
    QueryNotFound,
    RecordError,
    RecordHead,
    check_record,
    decode_head,
    properties_text,
)

from ..base import GetStatus, ReadResult
from ..errors import DamagedRecord, StoreError
from .config import QUEUE_ENTRY_SIZE
from .damage import SKIP_REMEDY
from .log import CommitLog
from .queue import BLANK_ENTRY_SIZE_FIELD, ENTRY, ConsumeQueue

QUEUE_OFFSET = struct.Struct(">q")
SCAN_SIZE_MIN = 16_000  # one read scans at least these bytes of entries


class Reader:
    """Reads one store's log through its queues."""

    def __init__(
        self, log: CommitLog, queues: dict[tuple[str, int], ConsumeQueue], *, skip_damaged: bool = False
    ) -> None:
        """skip_damaged: damaged records are skipped, like expired ones."""
        self._log = log
        self._queues = queues
        self._skip_damaged = skip_damaged

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        size_max: int,
        tags_codes: frozenset[int] | None = None,
        end_offset: int | None = None,
        accepts: Callable[[bytes], bool] | None = None,
        scan_max: int | None = None,
    ) -> ReadResult:
        """Return records from queue_offset on; see the contract."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, (), 0, 0, 0)
        first, end = queue.first_offset, queue.next_offset
        if end_offset is not None and end > first and queue.physical_end() > end_offset:
            end = self._visible_end(queue, end_offset)
        if end == 0:
            return ReadResult(GetStatus.NO_MESSAGE_IN_QUEUE, (), 0, first, end)
        if queue_offset < first:
            return ReadResult(GetStatus.OFFSET_TOO_SMALL, (), first, first, end)
        if queue_offset >= end:
            status = GetStatus.OFFSET_OVERFLOW_ONE if queue_offset == end else GetStatus.OFFSET_OVERFLOW_BADLY
            return ReadResult(status, (), end, first, end)
        scanned = max(SCAN_SIZE_MIN // QUEUE_ENTRY_SIZE, count_max)
        scan_max = scanned if scan_max is None else min(scanned, scan_max)
        entries = queue.entries(queue_offset, min(scan_max, end - queue_offset))
        if not entries:
            return ReadResult(GetStatus.OFFSET_FOUND_NULL, (), queue_offset, first, end)
        records: list[memoryview] = []
        total = 0
        position = queue_offset
        log = self._log
        kept_from, log_end, checked_from = log.first_offset, log.end_offset, log.checked_from
        was_removed = False
        segment, start, stop = memoryview(b""), 0, 0
        for physical_offset, size, tags_code in ENTRY.iter_unpack(entries):
            if physical_offset < kept_from or size == BLANK_ENTRY_SIZE_FIELD:
                was_removed = True
            elif tags_codes is None or _low_32(tags_code) in tags_codes:
                if records and (total + size > size_max or len(records) >= count_max):
                    break
                if (physical_offset < checked_from or physical_offset + size > log_end) and (
                    damage := self._damage(queue, position, physical_offset, size)
                ):
                    if records:
                        break  # those before it are good
                    if not self._skip_damaged:
                        raise damage
                    was_removed = True
                    position += 1
                    continue
                if not start <= physical_offset < stop:  # records of one segment share its view
                    start, segment = log.segment(physical_offset)
                    stop = start + len(segment)
                at = physical_offset - start
                if accepts is not None and not _is_accepted(segment, at, at + size, accepts):
                    position += 1
                    continue
                record = segment[at : at + size]
                records.append(record if log.is_plain else _placed(record, position))
                total += size
                if len(records) >= count_max:
                    position += 1
                    break
            position += 1
        if records:
            return ReadResult(GetStatus.FOUND, records, position, first, end)
        status = GetStatus.MESSAGE_WAS_REMOVING if was_removed else GetStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, (), position, first, end)

    def _damage(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, size: int) -> StoreError | None:
        """Return what is wrong with an old record that an entry names; None: nothing is."""
        log = self._log
        files = f"consumequeue/{queue.topic}/{queue.queue_id}"
        remedy = f"stop the broker and remove {files}: it is built again at the start"
        if not 0 < size <= log.segments.size or physical_offset + size > log.end_offset:
            return StoreError(
                f"found an entry of {size} bytes at physical offset {physical_offset} as queue offset {queue_offset} "
                f"of {files}, expected one below {log.end_offset}: the file is damaged: {remedy}"
            )
        room = log.segments.start_of(physical_offset) + log.segments.size - physical_offset
        try:
            head = check_record(log.read(physical_offset, min(size, room)))
        except RecordError as error:
            return DamagedRecord(
                f"found damage in the CommitLog at physical offset {physical_offset} ({error}), queue offset "
                f"{queue_offset} of {queue.topic}/{queue.queue_id}: restore "
                f"{log.segments.path(log.segments.start_of(physical_offset))} from a copy, or {SKIP_REMEDY}",
                queue_offset,
            )
        expected = (queue.topic, queue.queue_id, queue_offset, physical_offset)
        record_offset = head.queue_offset if log.is_plain else queue_offset  # see _placed
        found = (head.topic, head.queue_id, record_offset, head.physical_offset)
        if found != expected:
            return DamagedRecord(
                f"found the record {found} (topic, queue id, queue offset, physical offset) where {files} names "
                f"{expected}: one of the two is damaged: {remedy}",
                queue_offset,
            )
        return None

    def _visible_end(self, queue: ConsumeQueue, end_offset: int) -> int:
        low, high = queue.first_offset, queue.next_offset
        while low < high:
            middle = (low + high) // 2
            physical_offset, size, _ = queue.entry(middle)
            if physical_offset + size <= end_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def read_at(self, physical_offset: int) -> bytes:
        """Return the record that starts there and that its queue names.

        QueryNotFound: there is none. StoreError: it is damaged. Offsets come from clients, and a body can contain bytes
        that look like a record, for example of another topic, or long enough to cover the messages behind it.
        """
        record = self._find(physical_offset)
        if record is None:
            raise self._not_found(physical_offset)
        if physical_offset != self._log.first_offset and not self._is_named(record, physical_offset):
            raise self._not_found(physical_offset)
        return self._checked(record, physical_offset)

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record that starts there, for offsets that the store itself noted. Errors: as read_at."""
        record = self._find(physical_offset)
        if record is None:
            raise self._not_found(physical_offset)
        return self._checked(record, physical_offset)

    def _checked(self, record: memoryview, physical_offset: int) -> bytes:
        log = self._log
        if physical_offset < log.checked_from:
            try:
                check_record(record)
            except RecordError as error:
                raise StoreError(
                    f"found damage in the CommitLog at physical offset {physical_offset} ({error}): restore "
                    f"{log.segments.path(log.segments.start_of(physical_offset))} from a copy, or {SKIP_REMEDY}"
                ) from error
        return bytes(record)

    def _not_found(self, physical_offset: int) -> QueryNotFound:
        return no_record_at(physical_offset, self._log.first_offset, self._log.end_offset)

    def _is_named(self, record: memoryview, physical_offset: int) -> bool:
        """Return whether the queue of a record has an entry for it."""
        head = decode_head(record)
        queue_offset = self._queue_offset_of(head, physical_offset)
        return queue_offset is not None and self._queues[head.topic, head.queue_id].entry(queue_offset)[1] == head.size

    def queue_offset_of(self, record: bytes) -> int | None:
        """Return the queue offset under which a record is read; None: its queue has no entry for it."""
        head = decode_head(record)
        return self._queue_offset_of(head, head.physical_offset)

    def _queue_offset_of(self, head: RecordHead, physical_offset: int) -> int | None:
        """It is the record's own, or another one in a DLedger log: see _placed."""
        queue = self._queues.get((head.topic, head.queue_id))
        found = None if queue is None else queue.offset_of(physical_offset, head.queue_offset)
        return found if found == head.queue_offset or not self._log.is_plain else None

    def _find(self, physical_offset: int) -> memoryview | None:
        """Return the record that starts there without checking its body; None: there is none."""
        log = self._log
        if not log.first_offset <= physical_offset < log.end_offset:
            return None
        start = log.segments.start_of(physical_offset)
        room = min(start + log.segments.size, log.end_offset) - physical_offset
        view = log.read(physical_offset, room)
        try:
            head = check_record(view, crc=False)
        except RecordError:
            return None
        return view[: head.size] if head.physical_offset == physical_offset else None

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a queue's record, -1 when it is not there."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.first_offset <= queue_offset < queue.next_offset:
            return -1
        record = self._find(queue.entry(queue_offset)[0])
        return -1 if record is None else check_record(record, crc=False).store_timestamp_ms

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after timestamp_ms (upper: the last at or before)."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.first_offset, queue.next_offset
        while low < high:
            middle = (low + high) // 2
            stored_ms = self.store_time(topic, queue_id, middle)
            if stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.first_offset) if upper else low


def no_record_at(physical_offset: int, first: int, end: int) -> QueryNotFound:
    """Return the error for a place without a record. The log has [first, end)."""
    return QueryNotFound(
        f"found no record at physical offset {physical_offset}, expected one in [{first}, {end}): it expired, or the "
        "id is another broker's"
    )


def _placed(record: memoryview, queue_offset: int) -> memoryview:
    """Return a record of a DLedger log with the queue offset under which it is read.

    Its leader may have given the offset a second time; then the queue has the record at another place.
    """
    if QUEUE_OFFSET.unpack_from(record, QUEUE_OFFSET_AT)[0] == queue_offset:
        return record
    copy = bytearray(record)
    QUEUE_OFFSET.pack_into(copy, QUEUE_OFFSET_AT, queue_offset)
    return memoryview(copy)


def _is_accepted(segment: memoryview, start: int, end: int, accepts: Callable[[bytes], bool]) -> bool:
    """Return whether a record passes. A damaged one does, so that its reader reports it."""
    try:
        return accepts(properties_text(segment, start, end))
    except RecordError:
        return True


def _low_32(value: int) -> int:
    low = value & 0xFFFFFFFF
    return low - 0x100000000 if low & 0x80000000 else low
