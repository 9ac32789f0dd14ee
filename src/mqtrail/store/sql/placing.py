"""What the home notes of where queues are: on which node, and where they go on after their table was taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select

from .database import Database
from .schema import ASSIGNMENT, HOME, START


class QueueChange(NamedTuple):
    """A change of it. queue_id None: the topic was deleted. start_offset: where the queue goes on without its table;
    None: it keeps its table, or had none."""

    topic: str
    queue_id: int | None = None
    node: int = HOME
    start_offset: int | None = None


def read_starts(home: Database) -> dict[tuple[str, int], int]:
    """Return where queues go on from which a table was taken."""
    if not home.has_table(START):
        return {}
    return {(row.topic, row.queue_id): row.start_offset for row in home.rows(select(START))}


def save_changes(connection: Connection, home: Database, changes: Sequence[QueueChange], *, has_nodes: bool) -> None:
    """Note changes, in their order. has_nodes: whether the home has the tables of a store with several databases."""
    if any(change.start_offset is not None for change in changes):
        START.create(connection, checkfirst=True)
        home.check_writer(connection)  # MySQL commits with each CREATE TABLE
    for topic, queue_id, node, start_offset in changes:
        for table in [*([ASSIGNMENT] if has_nodes else []), *([] if start_offset is None else [START])]:
            old = delete(table).where(table.c.topic == topic)
            connection.execute(old if queue_id is None else old.where(table.c.queue_id == queue_id))
        if queue_id is None:
            continue
        place = {"topic": topic, "queue_id": queue_id}
        if node != HOME:
            connection.execute(insert(ASSIGNMENT), {**place, "node": node, "next_offset": start_offset or 0})
        if start_offset is not None:
            connection.execute(insert(START), {**place, "start_offset": start_offset})
