"""Reading: committed rows from their tables, later records from memory.

A read does not look for rows at or behind `stored_end`, even if they are there: a commit may be under way. Rows that
another thread fetches may come from a replica, as far as that has them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, Table, select

from mqtrail.wire import check_record, decode_head, index_key_hash, properties_text

from ..base import GetStatus, IndexQueryResult, NodeFetch, ReadResult
from ..commitlog.indexer import keys_of
from ..commitlog.lookup import COUNT_MAX, RECORDS_MAX
from .database import Database
from .queues import TableQueue, TableQueues, WaitingRecord
from .replica import TableReplica
from .rows import queue_offset_of, record_of
from .schema import KEY, PLACE, UNQUEUED

SCAN_MAX = 800  # entries that one read goes through, as a CommitLog's
ROWS_A_QUERY = 64
RECORDS_A_SLICE = 64
WAITING_A_SLICE = 1 << 20  # bytes of waiting records that a query looks through at once
WAITING_COST = 1_000  # bytes that could be looked through in the time that each record takes besides
FETCHED_MAX = 64  # fetches whose rows wait for their reads


class Fetched(NamedTuple):
    """Rows that were read ahead. end: queue offset up to which they are all that were asked for."""

    end: int
    rows: Sequence[Row[Any]]


FetchKey = tuple[TableQueue, int, int, frozenset[int] | None]


def _rows_of(table: Table, stop: int, tags_codes: frozenset[int] | None, count: int) -> Select[Any]:
    """Return the query for rows below stop that have one of the codes."""
    query = select(table).where(table.c.id < stop).order_by(table.c.id).limit(count)
    return query if tags_codes is None else query.where(table.c.tags_code.in_(sorted(tags_codes)))


class TableReader:
    """Reads one database. appended: all records that are not committed, in order, also those in no queue. replica: has
    what it has, later."""

    def __init__(self, database: Database, queues: TableQueues, appended: Callable[[], list[WaitingRecord]]) -> None:
        self._database = database
        self._queues = queues
        self._appended = appended
        self._fetched: OrderedDict[FetchKey, Fetched] = OrderedDict()
        self.replica: TableReplica | None = None

    def is_on_replica(self, queue: TableQueue, queue_offset: int) -> bool:
        """Return whether the replica has that row of a queue."""
        return self.replica is not None and queue_offset < self.replica.end_of(queue)

    def begin_fetch(
        self, queue: TableQueue, queue_offset: int, count_max: int, tags_codes: frozenset[int] | None
    ) -> Callable[[], None] | None:
        """Return a function for another thread that fetches the first rows of such a read; None: it needs none."""
        stop = min(queue_offset + max(SCAN_MAX, count_max), queue.stored_end)
        replica = self.replica if self.is_on_replica(queue, queue_offset) else None
        if replica is not None:
            stop = min(stop, replica.end_of(queue))
        if queue.table is None or not queue.first_offset <= queue_offset < stop:
            return None
        count = min(count_max, ROWS_A_QUERY)
        query = _rows_of(queue.table, stop, tags_codes, count).where(queue.table.c.id >= queue_offset)

        def keep(rows: Sequence[Row[Any]]) -> None:
            end = rows[-1].id + 1 if len(rows) == count else stop
            self._fetched[queue, queue_offset, count, tags_codes] = Fetched(end, rows)
            while len(self._fetched) > FETCHED_MAX:
                self._fetched.popitem(last=False)

        if replica is None:
            return lambda: keep(self._database.rows_apart(query))
        least = min(count, stop - queue_offset) if tags_codes is None else 0
        return NodeFetch(replica.thread, lambda: keep(replica.rows(query, queue, queue_offset, least)))

    def read(
        self,
        queue: TableQueue | None,
        queue_offset: int,
        count_max: int,
        size_max: int,
        tags_codes: frozenset[int] | None,
        end_offset: int | None,
        accepts: Callable[[bytes], bool] | None,
        scan_max: int | None,
    ) -> ReadResult:
        """Return records from queue_offset on; see the contract."""
        if queue is None:
            return ReadResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, (), 0, 0, 0)
        first = queue.first_offset
        end = queue.next_offset if end_offset is None else self._visible_end(queue, end_offset)
        if end == 0:
            return ReadResult(GetStatus.NO_MESSAGE_IN_QUEUE, (), 0, first, end)
        if queue_offset < first:
            return ReadResult(GetStatus.OFFSET_TOO_SMALL, (), first, first, end)
        if queue_offset >= end:
            status = GetStatus.OFFSET_OVERFLOW_ONE if queue_offset == end else GetStatus.OFFSET_OVERFLOW_BADLY
            return ReadResult(status, (), end, first, end)
        scanned = max(SCAN_MAX, count_max)
        stop = min(queue_offset + (scanned if scan_max is None else min(scanned, scan_max)), end)
        count = min(count_max, ROWS_A_QUERY)
        fetched = self._fetched.pop((queue, queue_offset, count, tags_codes), None)
        if fetched is None:
            found = self._records(queue, queue_offset, stop, tags_codes, count)
        else:  # what follows needs another fetch
            stop = min(stop, fetched.end)
            found = ((row.id, record_of(queue, row)) for row in fetched.rows if row.id < stop)
        records: list[bytes] = []
        total = 0
        position = stop
        for place, record in found:
            if records and total + len(record) > size_max:
                position = place
                break
            if accepts is not None and not accepts(properties_text(record, 0, len(record))):
                continue
            records.append(record)
            total += len(record)
            if len(records) >= count_max:
                position = place + 1
                break
        status = GetStatus.FOUND if records else GetStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, records, position, first, end)

    def _records(
        self, queue: TableQueue, first: int, stop: int, tags_codes: frozenset[int] | None, count: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield queue offset and bytes of the records in [first, stop) that have one of the codes."""
        stored_end = queue.stored_end
        if queue.table is not None:
            table = queue.table
            query = _rows_of(table, min(stop, stored_end), tags_codes, count)
            while first < min(stop, stored_end):
                rows = self._database.rows(query.where(table.c.id >= first))
                for row in rows:
                    yield row.id, record_of(queue, row)
                if len(rows) < count:
                    break
                first = rows[-1].id + 1
        for number in range(max(first, stored_end), stop):
            written = queue.waiting[number - stored_end]
            if tags_codes is None or written.tags_code in tags_codes:
                yield number, written.record

    def _visible_end(self, queue: TableQueue, end_offset: int) -> int:
        low, high = queue.first_offset, queue.next_offset
        while low < high:
            middle = (low + high) // 2
            entries = self.entries(queue, middle, 1)
            if not entries or entries[0][0] + entries[0][1] <= end_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def entries(self, queue: TableQueue, queue_offset: int, count_max: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, size, tags code) of entries from queue_offset on."""
        found: list[tuple[int, int, int]] = []
        stored_end, stop = queue.stored_end, min(queue_offset + count_max, queue.next_offset)
        if not queue.first_offset <= queue_offset < stop:
            return found
        if queue.table is not None and queue_offset < stored_end:
            columns = queue.table.c
            found += [
                (row.physical_offset, row.size, row.tags_code)
                for row in self._database.rows(
                    select(columns.physical_offset, columns.size, columns.tags_code)
                    .where(columns.id >= queue_offset, columns.id < min(stop, stored_end))
                    .order_by(columns.id)
                )
            ]
        waiting = queue.waiting[max(queue_offset - stored_end, 0) : max(stop - stored_end, 0)]
        return found + [(one.physical_offset, len(one.record), one.tags_code) for one in waiting]

    def read_at(self, physical_offset: int) -> bytes | None:
        """Return the record that starts there; None: there is none."""
        for written in self._appended():
            if written.physical_offset == physical_offset:
                return written.record
        for place in self._database.rows(select(PLACE).where(PLACE.c.physical_offset == physical_offset)):
            queue = self._queues.by_number.get(place.queue)
            if queue is not None and queue.table is not None:
                table = queue.table
                for row in self._database.rows(select(table).where(table.c.id == place.queue_offset)):
                    return record_of(queue, row)
        for row in self._database.rows(select(UNQUEUED).where(UNQUEUED.c.physical_offset == physical_offset)):
            record: bytes = row.record
            return record
        return None

    def queue_offset_at(self, physical_offset: int) -> int | None:
        """Return the queue offset of the record that starts there; None: there is none."""
        record = self.read_at(physical_offset)
        return None if record is None else queue_offset_of(record)

    def store_time(self, queue: TableQueue | None, queue_offset: int) -> int:
        """Return the store time of a queue's record, -1 when it is not there."""
        if queue is None or not queue.first_offset <= queue_offset < queue.next_offset:
            return -1
        if queue_offset >= queue.stored_end:
            record = queue.waiting[queue_offset - queue.stored_end].record
            return check_record(record, crc=False).store_timestamp_ms
        assert queue.table is not None
        columns = queue.table.c
        rows = self._database.rows(select(columns.store_ms).where(columns.id == queue_offset))
        return rows[0].store_ms if rows else -1

    def offset_by_time(self, queue: TableQueue | None, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after timestamp_ms (upper: the last at or before)."""
        if queue is None:
            return 0
        low, high = queue.first_offset, queue.next_offset
        while low < high:
            middle = (low + high) // 2
            stored_ms = self.store_time(queue, middle)
            if stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.first_offset) if upper else low

    def query_in_slices(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, store_ms: int, last_offset: int
    ) -> Generator[None, None, IndexQueryResult]:
        """Return records under topic and key; see the contract."""
        count_max = min(count_max, COUNT_MAX)
        wanted = key.encode("utf-8", "replace")

        def has_key(record: bytes) -> bool:
            head = decode_head(record)
            return (
                head.topic == topic
                and begin_ms <= head.store_timestamp_ms < end_ms
                and wanted in keys_of(record[head.properties_start : head.properties_end])
            )

        found: dict[int, bytes] = {}
        waiting, size = self._appended()[:], 0  # those that are committed meanwhile are in it
        for one in reversed(waiting):
            size += WAITING_COST + len(one.record)
            if size > WAITING_A_SLICE:
                size = 0
                yield
            if len(found) < count_max and wanted in one.record and has_key(one.record):
                found[one.physical_offset] = one.record
        stop = waiting[0].physical_offset if waiting else None
        seen = 0
        for physical_offset in self._places(index_key_hash(topic, key), begin_ms, end_ms, stop):
            if len(found) >= count_max or seen >= RECORDS_MAX:
                break
            seen += 1
            if seen % RECORDS_A_SLICE == 0:
                yield
            record = self.read_at(physical_offset)
            if record is not None and has_key(record):  # None: expired meanwhile
                found[physical_offset] = record
        records = [found[physical_offset] for physical_offset in sorted(found)]
        return IndexQueryResult(records, store_ms, max(0, last_offset), seen >= RECORDS_MAX)

    def _places(self, key_hash: int, begin_ms: int, end_ms: int, stop: int | None) -> list[int]:
        """Return the physical offsets of rows that may have the key, the newest first, at most RECORDS_MAX.

        stop: the first one that was not committed; None: all were.
        """
        query = select(KEY.c.physical_offset).where(
            KEY.c.key_hash == key_hash, KEY.c.store_ms >= begin_ms, KEY.c.store_ms < end_ms
        )
        if stop is not None:
            query = query.where(KEY.c.physical_offset < stop)
        rows = self._database.rows(query.order_by(KEY.c.physical_offset.desc()).limit(RECORDS_MAX))
        return [row.physical_offset for row in rows]
