"""Removing rows: of expired messages, oldest first, and of deleted topics. Each slice is one small transaction."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from sqlalchemy import Connection, Delete, Row, Update, delete, func, select, tuple_, update

from .database import Database
from .queues import TableQueue, TableQueues
from .reading import TableReader
from .rows import key_hashes
from .schema import KEY, PLACE, QUEUE, UNQUEUED, QueueUse

ROWS_A_SLICE = 500


class Remover:
    """Removes rows of one store."""

    def __init__(self, database: Database, queues: TableQueues, reader: TableReader) -> None:
        self._database = database
        self._queues = queues
        self._reader = reader

    def first_physical_offset(self, end_offset: int) -> int:
        """Return where the first kept record starts; end_offset if there is none."""
        found = [self._database.rows(select(func.min(table.c.physical_offset)))[0][0] for table in (PLACE, UNQUEUED)]
        return min((place for place in found if place is not None), default=end_offset)

    def expire_in_slices(self, before_ms: int) -> Generator[None, None, int]:
        """Remove committed records stored before that time; return their bytes."""
        freed = 0
        for queue in list(self._queues.by_number.values()):
            end = min(self._reader.offset_by_time(queue, before_ms), queue.stored_end)
            while queue.first_offset < end and self._queues.by_number.get(queue.number) is queue:
                yield
                freed += self._remove_slice(queue, end)
        expired = UNQUEUED.c.store_ms < before_ms
        if self._database.rows(select(UNQUEUED.c.physical_offset).where(expired).limit(1)):
            self._database.change(lambda connection: _run(connection, delete(UNQUEUED).where(expired)))
        return freed

    def empty_released(self) -> Generator[None, None, None]:
        """Remove the rows of deleted topics; a table without rows is free again."""
        for queue in self._queues.released[:]:
            if queue.waiting or queue not in self._queues.released:
                continue  # its last records are not committed yet
            while queue.first_offset < queue.next_offset:
                self._remove_slice(queue, queue.next_offset)
                yield
            if queue.number:
                self._free(queue)
            self._queues.released.remove(queue)

    def _free(self, queue: TableQueue) -> None:
        values = {"state": QueueUse.FREE, "topic": None, "queue_id": None, "first_offset": 0, "next_offset": 0}
        freed = update(QUEUE).where(QUEUE.c.id == queue.number).values(values)
        self._database.change(lambda connection: _run(connection, freed))
        queue.use = QueueUse.FREE
        self._queues.free.append(queue.number)

    def _remove_slice(self, queue: TableQueue, end: int) -> int:
        """Remove the first rows of a queue, below queue offset end; return the bytes of their records."""
        assert queue.table is not None
        table = queue.table
        stop = min(queue.first_offset + ROWS_A_SLICE, end)
        rows = self._database.rows(
            select(table.c.physical_offset, table.c.size, table.c.properties).where(table.c.id < stop)
        )
        self._database.change(lambda connection: _remove(connection, queue, stop, rows))
        queue.first_offset = stop
        return sum(row.size for row in rows)


def _run(connection: Connection, statement: Update | Delete) -> None:
    connection.execute(statement)


def _remove(connection: Connection, queue: TableQueue, stop: int, rows: list[Row[Any]]) -> None:
    assert queue.table is not None
    if rows:
        places = [row.physical_offset for row in rows]
        keys = [(key_hash, row.physical_offset) for row in rows for key_hash in key_hashes(queue.topic, row.properties)]
        for first in range(0, len(keys), ROWS_A_SLICE):
            some = tuple_(KEY.c.key_hash, KEY.c.physical_offset).in_(keys[first : first + ROWS_A_SLICE])
            connection.execute(delete(KEY).where(some))
        connection.execute(delete(PLACE).where(PLACE.c.physical_offset.in_(places)))
        connection.execute(delete(queue.table).where(queue.table.c.id < stop))
    connection.execute(update(QUEUE).where(QUEUE.c.id == queue.number).values(first_offset=stop))
