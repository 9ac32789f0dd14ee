"""The queues of a database: which message table is whose, and what of a queue is not committed yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection, Table, insert, select, update

from mqtrail.wire import topic_length

from ..base import QueueState
from ..commitlog.foreign import refuse_bad_name
from .database import Database
from .schema import HOME, QUEUE, QueueUse, message_table, message_table_name

TABLES_A_STEP = 16  # made at once when no table is free


class WaitingRecord(NamedTuple):
    """An appended record. queue None: it is in no queue. end_offset: physical offset behind it."""

    queue: TableQueue | None
    record: bytes
    tags_code: int
    end_offset: int

    @property
    def physical_offset(self) -> int:
        """Where it starts."""
        return self.end_offset - len(self.record)


@dataclass(slots=True, eq=False)
class TableQueue(QueueState):
    """A queue. node: number of its node. number: of its message table; 0 until its first commit. born_offset: physical
    offset of its first record; -1: it had a table at the start. waiting: its last records, which no committed row holds
    yet."""

    node: int = HOME
    number: int = 0
    born_offset: int = -1
    use: QueueUse = QueueUse.USED
    table: Table | None = None
    first_offset: int = 0
    waiting: list[WaitingRecord] = field(default_factory=list)

    @property
    def stored_end(self) -> int:
        """Queue offset behind the last committed row."""
        return self.next_offset - len(self.waiting)


class Allotment(NamedTuple):
    """Tables for queues that had none. made: those among the tables, and further ones, that are new."""

    numbers: dict[TableQueue, int]
    made: list[int]


class TableQueues:
    """The queues of one database. by_key: the queues that exist, also those of other nodes of the store. by_number:
    those of this database that have a table. free: numbers of tables for new ones. released: queues of deleted topics,
    whose rows are to be removed.

    Who has the turn to write allots tables (`allot`, `allotted`); everything else is the caller's thread's.
    """

    def __init__(
        self,
        database: Database,
        node: int,
        by_key: dict[tuple[str, int], TableQueue],
        is_ours: Callable[[str, int, int], bool],
        start_of: Callable[[str, int], int],
    ) -> None:
        """is_ours: whether a table here that ends at an offset is still that of its queue; otherwise its topic was
        deleted, or the queue goes on elsewhere. start_of: where a queue without a table begins. A database that is away
        is loaded later."""
        self._database = database
        self._node = node
        self._table_count = 0
        self.by_key = by_key
        self.by_number: dict[int, TableQueue] = {}
        self.free: deque[int] = deque()
        self.released: list[TableQueue] = []
        self._is_ours = is_ours
        self._start_of = start_of
        self.is_loaded = False
        if database.away is None:
            self.load()

    def load(self) -> None:
        """Read which table is whose. Queues that `open` has made already get theirs. StoreAway."""
        rows = self._database.rows(select(QUEUE).order_by(QUEUE.c.id))
        self.is_loaded = True
        for queue in self.by_key.values():
            if queue.node == self._node:  # of those without a table
                queue.first_offset = queue.next_offset = self._start_of(queue.topic, queue.queue_id)
        for row in rows:
            self._table_count = row.id
            if row.state == QueueUse.FREE:
                self.free.append(row.id)
                continue
            is_used = row.state == QueueUse.USED and self._is_ours(row.topic, row.queue_id, row.next_offset)
            known = self.by_key.get((row.topic, row.queue_id)) if is_used else None
            queue = known or self._make(row.topic, row.queue_id)
            queue.number, queue.table, queue.use = row.id, message_table(row.table_name), QueueUse(row.state)
            queue.first_offset, queue.next_offset = row.first_offset, row.next_offset
            if queue.use is QueueUse.USED and not is_used:
                queue.use = QueueUse.RELEASED
            if queue.use is QueueUse.USED:
                self.by_key[row.topic, row.queue_id] = self.by_number[row.id] = queue
            else:
                self.released.append(queue)

    def _make(self, topic: str, queue_id: int) -> TableQueue:
        encoded = topic.encode()
        return TableQueue(topic, queue_id, topic_length(encoded) + encoded, node=self._node)

    def open(self, topic: str, queue_id: int) -> TableQueue:
        """Return the queue, making it when it is new. MessageIllegal: its topic has no valid name."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            refuse_bad_name(topic)
            queue = self.by_key[topic, queue_id] = self._make(topic, queue_id)
            queue.first_offset = queue.next_offset = self._start_of(topic, queue_id)
        return queue

    def allot(self, connection: Connection, queues: Sequence[TableQueue]) -> Allotment:
        """Choose a free table for each queue, making more when there are too few."""
        numbers, made = list(self.free)[: len(queues)], 0
        while len(numbers) + made < len(queues):
            made += TABLES_A_STEP
        numbers += range(self._table_count + 1, self._table_count + made + 1)
        if made:
            _make_tables(connection, numbers[-made:])
            self._database.check_writer(connection)  # MySQL commits with each CREATE TABLE
        return Allotment(dict(zip(queues, numbers, strict=False)), numbers[-made:] if made else [])

    def allotted(self, allotment: Allotment) -> None:
        """The tables of an allotment are committed. Others may have become free since it was chosen."""
        self._table_count += len(allotment.made)
        self.free += allotment.made
        for queue, number in allotment.numbers.items():
            self.free.remove(number)
            queue.number, queue.table = number, message_table(message_table_name(number))

    def release(self, topic: str) -> list[TableQueue]:
        """Forget the topic's queues; return those that have a table or wait for one."""
        found = [key for key, queue in self.by_key.items() if key[0] == topic and queue.node == self._node]
        queues = [queue for key in found if (queue := self.by_key.pop(key)).number or queue.waiting]
        for queue in queues:
            queue.use = QueueUse.RELEASED
            self.by_number.pop(queue.number, None)
        return queues

    def detach(self, queue: TableQueue) -> TableQueue:
        """Take its table from a queue without waiting records; return who has it then, to be released."""
        assert not queue.waiting
        old = self._make(queue.topic, queue.queue_id)
        old.number, old.table, old.use = queue.number, queue.table, QueueUse.RELEASED
        old.first_offset, old.next_offset = queue.first_offset, queue.next_offset
        self.by_number.pop(queue.number, None)
        queue.number, queue.table, queue.born_offset = 0, None, -1
        queue.first_offset = queue.next_offset
        return old

    def ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues, sorted."""
        return sorted(queue_id for name, queue_id in self.by_key if name == topic)


def _make_tables(connection: Connection, numbers: Sequence[int]) -> None:
    for number in numbers:
        message_table(message_table_name(number)).create(connection, checkfirst=True)
    values = {"state": QueueUse.FREE, "first_offset": 0, "next_offset": 0}
    rows = [{"id": number, "table_name": message_table_name(number), **values} for number in numbers]
    connection.execute(insert(QUEUE), rows)


def save(connection: Connection, queue: TableQueue, number: int, next_offset: int) -> None:
    """Note whose table it is, and where the queue ends."""
    connection.execute(
        update(QUEUE)
        .where(QUEUE.c.id == number)
        .values(
            state=queue.use,
            topic=queue.topic,
            queue_id=queue.queue_id,
            first_offset=queue.first_offset,
            next_offset=next_offset,
        )
    )


def save_released(connection: Connection, queues: Sequence[TableQueue]) -> None:
    """Note that the topics of these queues were deleted. A table that is free again may be another queue's."""
    for queue in queues:
        if queue.number and queue.use is QueueUse.RELEASED:
            connection.execute(
                update(QUEUE)
                .where(QUEUE.c.id == queue.number)
                .values(state=queue.use, topic=queue.topic, queue_id=queue.queue_id)
            )
