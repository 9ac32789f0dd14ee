"""The queues of a table store: which message table is whose, and what of a queue is not committed yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection, Table, insert, select, update

from mqtrail.wire import topic_length

from ..base import QueueState
from ..commitlog.foreign import refuse_bad_name
from .database import Database
from .schema import QUEUE, QueueUse, message_table, message_table_name

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
    """A queue. number: of its message table; 0 until its first record. waiting: its last records, which no committed
    row holds yet."""

    number: int = 0
    table: Table | None = None
    first_offset: int = 0
    waiting: list[WaitingRecord] = field(default_factory=list)

    @property
    def stored_end(self) -> int:
        """Queue offset behind the last committed row."""
        return self.next_offset - len(self.waiting)


class TableQueues:
    """by_key, by_number: the queues that exist. free: numbers of tables for new ones. released: queues of deleted
    topics, whose rows are to be removed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table_count = 0
        self.by_key: dict[tuple[str, int], TableQueue] = {}
        self.by_number: dict[int, TableQueue] = {}
        self.free: list[int] = []
        self.released: list[TableQueue] = []
        for row in database.rows(select(QUEUE).order_by(QUEUE.c.id)):
            self._table_count = row.id
            if row.state == QueueUse.FREE:
                self.free.append(row.id)
                continue
            queue = self._make(row.topic, row.queue_id)
            queue.number, queue.table = row.id, message_table(row.table_name)
            queue.first_offset, queue.next_offset = row.first_offset, row.next_offset
            if row.state == QueueUse.USED:
                self.by_key[row.topic, row.queue_id] = self.by_number[row.id] = queue
            else:
                self.released.append(queue)

    @staticmethod
    def _make(topic: str, queue_id: int) -> TableQueue:
        encoded = topic.encode()
        return TableQueue(topic, queue_id, topic_length(encoded) + encoded)

    def open(self, topic: str, queue_id: int) -> TableQueue:
        """Return the queue, making it when it is new. MessageIllegal: its topic has no valid name."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            refuse_bad_name(topic)
            queue = self.by_key[topic, queue_id] = self._make(topic, queue_id)
        return queue

    def allot(self, queue: TableQueue) -> None:
        """Give a queue a free table, making more when there is none. StoreBroken: the database failed."""
        if not self.free:
            self._make_tables()
        queue.number = self.free.pop(0)
        queue.table = message_table(message_table_name(queue.number))
        self.by_number[queue.number] = queue

    def _make_tables(self) -> None:
        numbers = range(self._table_count + 1, self._table_count + TABLES_A_STEP + 1)
        with self._database.transaction() as connection:
            for number in numbers:
                message_table(message_table_name(number)).create(connection)
            connection.execute(
                insert(QUEUE),
                [
                    {
                        "id": number,
                        "table_name": message_table_name(number),
                        "state": QueueUse.FREE,
                        "first_offset": 0,
                        "next_offset": 0,
                    }
                    for number in numbers
                ],
            )
        self._table_count = numbers[-1]
        self.free += numbers

    def release(self, topic: str) -> list[TableQueue]:
        """Forget the topic's queues; return those that have a table."""
        found = [key for key in self.by_key if key[0] == topic]
        queues = [queue for key in found if (queue := self.by_key.pop(key)).number]
        for queue in queues:
            del self.by_number[queue.number]
        return queues

    def ids(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues, sorted."""
        return sorted(queue_id for name, queue_id in self.by_key if name == topic)


def save(connection: Connection, queue: TableQueue, next_offset: int) -> None:
    """Note whose table it is, and where the queue ends."""
    connection.execute(
        update(QUEUE)
        .where(QUEUE.c.id == queue.number)
        .values(state=QueueUse.USED, topic=queue.topic, queue_id=queue.queue_id, next_offset=next_offset)
    )


def save_released(connection: Connection, queues: Sequence[TableQueue]) -> None:
    """Note that the topics of these queues were deleted."""
    for queue in queues:
        connection.execute(
            update(QUEUE)
            .where(QUEUE.c.id == queue.number)
            .values(state=QueueUse.RELEASED, topic=queue.topic, queue_id=queue.queue_id)
        )
