"""Writing to a database: one transaction commits all records that have gathered (group commit).

Records have their places before (`appending`); they are committed in that order and without gaps: a row is never
visible before an earlier one of its queue.

If the connection to a server is lost in the middle of a commit, it is unknown whether it took place. The next attempt
finds out: a transaction also moves the end of the log in `mqtrail_store`, so that row tells. If a commit fails in any
other way, everything after it is refused until the store is opened again.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, update

from mqtrail.wire import decode_head

from ..errors import StoreAway, StoreBroken
from .database import Database
from .inserting import insert_messages, insert_rows, note_ends
from .queues import Allotment, TableQueue, TableQueues, WaitingRecord, save, save_released
from .rows import key_hashes, row_of
from .schema import KEY, PLACE, STORE, STORE_ROW, UNQUEUED, QueueUse, message_table_name

COMMIT_RECORDS_MAX = 5_000  # in one transaction


@dataclass(slots=True)
class TablesEnd:
    """Where the log of a store ends. last_offset: physical offset of the last record since the start; -1: none."""

    end_offset: int
    store_ms: int
    last_offset: int = -1


class RowWriter:
    """Commits to one database. end_offset: of its last record. flushed_offset: its records below it are committed.
    fault: why nothing is accepted any more. unready: why nothing is accepted yet. waiting_size: bytes of the records in
    memory."""

    def __init__(self, database: Database, queues: TableQueues) -> None:
        self._database = database
        self._queues = queues
        self.waiting_size = 0
        self.start()
        self.fault: str | None = None
        self.unready: str | None = None
        self._appended: list[WaitingRecord] = []
        self._to_commit: deque[WaitingRecord] = deque()  # who has the turn to write takes from its left end
        self._batch: list[WaitingRecord] = []  # taken from there, and not known to be committed
        self._allotment = Allotment({}, [])  # of the batch
        self._in_doubt = False  # whether the batch may be committed
        self._to_release: deque[TableQueue] = deque()
        self._committed: deque[list[WaitingRecord]] = deque()  # batches that the caller's thread still has in memory

    def start(self) -> None:
        """Begin where the database ends, once it is open."""
        self.end_offset = self.flushed_offset = self._stored_end = self._database.end_offset

    @property
    def waits_for_commit(self) -> bool:
        """Whether there is anything that a commit would write."""
        return self.flushed_offset < self.end_offset or bool(self._to_release)

    def appended(self) -> list[WaitingRecord]:
        """Return the records that are not committed, in order."""
        self.forget_committed()
        return self._appended

    def take(self, written: Sequence[WaitingRecord]) -> None:
        """Take records that have their places in the log and in queues of this database."""
        if self.flushed_offset == self.end_offset:  # nothing waits here: what the log has before them is elsewhere
            self.flushed_offset = written[0].physical_offset
        for one in written:
            if one.queue is not None:
                if not one.queue.number and one.queue.born_offset < 0:
                    one.queue.born_offset = one.physical_offset
                one.queue.next_offset += 1
                one.queue.waiting.append(one)
            self.waiting_size += len(one.record)
        self.end_offset = written[-1].end_offset
        self._appended += written
        self._to_commit += written

    def release(self, topic: str) -> None:
        """Forget the topic's queues; the next commit records that in the database."""
        self.forget_committed()
        released = self._queues.release(topic)
        self._to_release += released
        self._queues.released += released

    def release_table(self, queue: TableQueue) -> None:
        """Empty the table of what TableQueues.detach returned; the next commit records that in the database."""
        self._to_release.append(queue)
        self._queues.released.append(queue)

    def forget_committed(self) -> None:
        """Remove from memory what the database has. Only the caller's thread does so: its reads use both."""
        while self._committed:
            batch = self._committed.popleft()
            del self._appended[: len(batch)]
            self.waiting_size -= sum(len(one.record) for one in batch)
            for queue, count in Counter(one.queue for one in batch).items():
                if queue is not None:
                    del queue.waiting[:count]
                    if queue.use is QueueUse.USED:
                        self._queues.by_number[queue.number] = queue

    def begin_commit(self) -> Callable[[], int]:
        """Return a function for any thread: it commits what is appended now and returns the flushed offset."""
        if self.fault is not None:
            raise StoreBroken(self.fault)
        self.forget_committed()
        end_offset = self.end_offset
        released = len(self._to_release)

        def commit() -> int:
            nonlocal released
            self._database.revive()
            while self.flushed_offset < end_offset or released:
                self._commit(end_offset, released)
                released = 0
            return self.flushed_offset

        return commit

    def _commit(self, end_offset: int, released: int) -> None:
        """Commit one transaction. StoreAway: the next call goes on. StoreBroken: no later one can be committed."""
        queues: list[TableQueue] = []

        def committed() -> None:
            for _ in queues:
                self._to_release.popleft()
            if self._batch:
                self._queues.allotted(self._allotment)
                self._committed.append(self._batch)
                self.flushed_offset = self._stored_end = self._database.end_offset = self._batch[-1].end_offset
                self._batch, self._allotment, self._in_doubt = [], Allotment({}, []), False

        try:
            with self._database.transaction(committed) as connection:
                if self.fault is not None:
                    raise StoreBroken(self.fault)
                queues = [self._to_release[number] for number in range(min(released, len(self._to_release)))]
                save_released(connection, queues)
                self._take(end_offset)
                if self._batch and not self._is_committed(connection):
                    self._allotment = self._queues.allot(connection, _without_table(self._batch))
                    self._in_doubt = True
                    _write(connection, self._batch, self._allotment.numbers, self._stored_end)
        except StoreAway:
            raise
        except BaseException as error:
            self.fault = self.fault or str(error)
            raise

    def _take(self, end_offset: int) -> None:
        """Take the records of the next transaction, unless those of an earlier attempt are left."""
        if self._batch:
            return
        while self._to_commit and self._to_commit[0].end_offset <= end_offset and len(self._batch) < COMMIT_RECORDS_MAX:
            self._batch.append(self._to_commit.popleft())

    def _is_committed(self, connection: Connection) -> bool:
        """Return whether the last attempt did commit. StoreBroken: the database has neither all nor nothing of it."""
        if not self._in_doubt:
            return False
        found: int = connection.execute(select(STORE.c.end_offset).where(STORE.c.id == STORE_ROW)).scalar_one()
        if found not in (self._stored_end, self._batch[-1].end_offset):
            raise _other_end(self._stored_end, found)
        return found != self._stored_end


def _other_end(expected: int, found: int | None = None) -> StoreBroken:
    place = "elsewhere" if found is None else f"at {found}"
    return StoreBroken(
        f"the log in the database ends {place} and not at {expected}: commits are lost, or belong to another writer"
    )


def _without_table(batch: Sequence[WaitingRecord]) -> list[TableQueue]:
    """Return the queues of a batch that have no table yet."""
    return list(dict.fromkeys(one.queue for one in batch if one.queue is not None and not one.queue.number))


def _write(
    connection: Connection, batch: Sequence[WaitingRecord], numbers: Mapping[TableQueue, int], stored_end: int
) -> None:
    """Insert the rows of a batch, their places and keys, and note the new ends. numbers: of tables that are new to
    their queues. stored_end: where the database ends."""
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
            number = one.queue.number or numbers[one.queue]
            places.append({"physical_offset": row["physical_offset"], "queue": number, "queue_offset": row["id"]})
            topic = one.queue.topic
        keys += [{"key_hash": key_hash, **place} for key_hash in key_hashes(topic, row["properties"])]
    known_ends: dict[int, int] = {}
    for queue, found in rows.items():
        number, end = queue.number or numbers[queue], found[-1]["id"] + 1
        insert_messages(connection, message_table_name(number), found)
        if queue.number:
            known_ends[number] = end
        else:
            save(connection, queue, number, end)
    note_ends(connection, known_ends)
    for table, found in ((PLACE, places), (KEY, keys), (UNQUEUED, unqueued)):
        if found:
            insert_rows(connection, table, found)
    ends = {"end_offset": batch[-1].end_offset, "store_ms": place["store_ms"]}
    here = (STORE.c.id == STORE_ROW) & (STORE.c.end_offset == stored_end)
    if connection.execute(update(STORE).where(here).values(ends)).rowcount != 1:
        raise _other_end(stored_end)
