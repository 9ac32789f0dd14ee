"""Writing: records get their places in memory at once; one transaction commits all that have gathered (group commit).

A ticket is given before the commit, and the reply waits for it as it waits for a flush of the CommitLog. Places are
given in the order of the appends, and committed in that order and without gaps: a row is never visible before an
earlier one of its queue. If a commit fails, everything after it is refused until the store is opened again.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, insert, update

from mqtrail.wire import MessageIllegal, MessageSysFlag, RecordError, decode_head, encode_record

from ..base import Appended, PendingRecord
from ..commitlog.append import too_large
from ..errors import StoreBroken
from .database import Database
from .queues import TableQueue, TableQueues, WaitingRecord, save, save_released
from .rows import key_hashes, row_of
from .schema import KEY, PLACE, STORE, STORE_ROW, UNQUEUED

LONG_MAX = 1 << 63
COMMIT_RECORDS_MAX = 5_000  # in one transaction


class RowWriter:
    """Appends and commits. end_offset, store_ms: of the last record. fault: why nothing is accepted any more."""

    def __init__(self, database: Database, queues: TableQueues, store_host: bytes, record_size_max: int) -> None:
        self._database = database
        self._queues = queues
        self._store_host = store_host
        self._record_size_max = record_size_max
        self.end_offset = self.flushed_offset = database.end_offset
        self.store_ms = database.store_ms
        self.last_offset = -1
        self.fault: str | None = None
        self._appended: list[WaitingRecord] = []
        self._to_commit: deque[WaitingRecord] = deque()  # who writes takes from its left end
        self._to_release: deque[TableQueue] = deque()
        self._committed: deque[list[WaitingRecord]] = deque()  # batches that the caller's thread still has in memory

    def appended(self) -> list[WaitingRecord]:
        """Return the records that are not committed, in order."""
        self.forget_committed()
        return self._appended

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Give all of records their places, or none. MessageIllegal, StoreBroken."""
        if self.fault is not None:
            raise StoreBroken(self.fault)
        self.forget_committed()
        store_ms, position = max(self.store_ms, now_ms), self.end_offset
        offsets: dict[TableQueue, int] = {}  # their next ones, if all goes well
        written: list[WaitingRecord] = []
        tickets: list[Appended] = []
        opened: list[TableQueue] = []
        try:
            for record in map(PendingRecord._make, records):
                queue = self._queues.by_key.get((record.topic, record.queue_id))
                if queue is None:
                    queue = self._queues.open(record.topic, record.queue_id)
                    opened.append(queue)
                target = queue if _is_queued(record.sys_flag) else None
                queue_offset = 0 if target is None else offsets.get(queue, queue.next_offset)
                data = self._encode(record, queue_offset, position, store_ms)
                position += len(data)
                if target is not None:
                    offsets[queue] = queue_offset + 1
                written.append(WaitingRecord(target, data, record.tags_code, position))
                tickets.append(Appended(position - len(data), len(data), queue_offset, position))
            self._allot(written)
        except BaseException:
            for queue in opened:
                self._queues.by_key.pop((queue.topic, queue.queue_id), None)
            raise
        for one in written:
            if one.queue is not None:
                one.queue.next_offset += 1
                one.queue.waiting.append(one)
        if written:
            self.store_ms, self.end_offset, self.last_offset = store_ms, position, written[-1].physical_offset
            self._appended += written
            self._to_commit += written
        return tickets

    def check_size(self, record: PendingRecord) -> None:
        """MessageIllegal: the record cannot be stored."""
        self._encode(record, 0, 0, 0)

    def _encode(self, record: PendingRecord, queue_offset: int, physical_offset: int, store_ms: int) -> bytes:
        """Return the bytes of a record. MessageIllegal: it cannot be stored."""
        try:
            data = encode_record(
                record.topic,
                record.body,
                record.properties,
                queue_id=record.queue_id,
                queue_offset=queue_offset,
                physical_offset=physical_offset,
                flag=record.flag,
                sys_flag=record.sys_flag,
                born_timestamp_ms=record.born_timestamp_ms,
                born_host=record.born_host,
                store_timestamp_ms=store_ms,
                store_host=self._store_host,
                reconsume_times=record.reconsume_times,
                prepared_transaction_offset=record.prepared_transaction_offset,
            )
        except RecordError as error:
            raise MessageIllegal(f"found a record that cannot be stored: {error}") from error
        if not -LONG_MAX <= record.tags_code < LONG_MAX:
            raise MessageIllegal(f"found the tags code {record.tags_code}, expected a number of 64 bits")
        if len(data) > self._record_size_max:
            raise too_large(len(data), self._record_size_max, len(record.body), len(record.properties))
        return data

    def _allot(self, written: Sequence[WaitingRecord]) -> None:
        """Give each queue that has none a table."""
        for one in written:
            if one.queue is not None and not one.queue.number:
                try:
                    self._queues.allot(one.queue)
                except StoreBroken as error:
                    self.fault = f"no table could be made for a new queue: {error}"
                    raise

    def release(self, topic: str) -> None:
        """Forget the topic's queues; the next commit records that in the database."""
        self.forget_committed()
        released = self._queues.release(topic)
        self._to_release += released
        self._queues.released += released

    def forget_committed(self) -> None:
        """Remove from memory what the database has. Only the caller's thread does so: its reads use both."""
        while self._committed:
            batch = self._committed.popleft()
            del self._appended[: len(batch)]
            for queue, count in Counter(one.queue for one in batch).items():
                if queue is not None:
                    del queue.waiting[:count]

    def begin_commit(self) -> Callable[[], int]:
        """Return a function for any thread: it commits what is appended now and returns the flushed offset."""
        if self.fault is not None:
            raise StoreBroken(self.fault)
        self.forget_committed()
        end_offset = self.end_offset
        released = len(self._to_release)

        def commit() -> int:
            nonlocal released
            while self.flushed_offset < end_offset or released:
                self._commit(end_offset, released)
                released = 0
            return self.flushed_offset

        return commit

    def _commit(self, end_offset: int, released: int) -> None:
        """Commit one transaction. StoreBroken: nothing after it can be committed any more."""
        batch: list[WaitingRecord] = []
        try:
            with self._database.transaction() as connection:
                if self.fault is not None:
                    raise StoreBroken(self.fault)
                while (
                    self._to_commit and self._to_commit[0].end_offset <= end_offset and len(batch) < COMMIT_RECORDS_MAX
                ):
                    batch.append(self._to_commit.popleft())
                if batch:
                    _write(connection, batch)
                left = min(released, len(self._to_release))
                save_released(connection, [self._to_release.popleft() for _ in range(left)])
            if batch:
                self._committed.append(batch)
                self.flushed_offset = batch[-1].end_offset
        except BaseException as error:
            self.fault = self.fault or str(error)
            raise


def _is_queued(sys_flag: int) -> bool:
    """Return whether a record has a place in its queue: prepared and rolled back messages have none."""
    state = sys_flag & MessageSysFlag.TRANSACTION_MASK
    return state in (0, MessageSysFlag.TRANSACTION_COMMIT)


def _write(connection: Connection, batch: Sequence[WaitingRecord]) -> None:
    """Insert the rows of a batch, their places and keys, and note the new ends."""
    rows: dict[TableQueue, list[dict[str, Any]]] = defaultdict(list)
    places: list[dict[str, Any]] = []
    keys: list[dict[str, Any]] = []
    unqueued: list[dict[str, Any]] = []
    for one in batch:
        row = row_of(one)
        place = {name: row[name] for name in ("physical_offset", "store_ms")}
        if one.queue is None:
            unqueued.append({**place, "record": one.record})
            topic = decode_head(one.record).topic
        else:
            rows[one.queue].append(row)
            places.append(
                {"physical_offset": row["physical_offset"], "queue": one.queue.number, "queue_offset": row["id"]}
            )
            topic = one.queue.topic
        keys += [{"key_hash": key_hash, **place} for key_hash in key_hashes(topic, row["properties"])]
    for queue, found in rows.items():
        assert queue.table is not None
        connection.execute(insert(queue.table), found)
        save(connection, queue, found[-1]["id"] + 1)
    for table, found in ((PLACE, places), (KEY, keys), (UNQUEUED, unqueued)):
        if found:
            connection.execute(insert(table), found)
    ends = {"end_offset": batch[-1].end_offset, "store_ms": place["store_ms"]}
    connection.execute(update(STORE).where(STORE.c.id == STORE_ROW).values(ends))
