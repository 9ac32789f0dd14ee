"""Reading messages from a replica of a database, which lags.

A replica repeats the transactions of its primary in their order, and a transaction inserts the rows of a queue and
notes its end. So a queue has, on the replica, all rows below the end that the replica itself notes; ends only rise. A
read takes rows below that end and never looks behind it. What the replica does not have yet is read from the primary.

A table may have been another queue's before. The replica knows that it is this queue's as soon as the end of its log
is behind the first record of the queue; and it has everything of earlier starts as soon as it has the present start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, Select, select
from sqlalchemy.exc import SQLAlchemyError

from mqtrail.wire import InvalidParameter

from ..errors import StoreAway
from .database import Database, cause
from .engines import is_server, make_engine, parse
from .queues import TableQueue
from .schema import HOME_NAME, QUEUE, STORE, VERSION, QueueUse

SILENCE_S: Final = 3.0  # without a byte from the replica, while a statement is running
Begin = Callable[[Callable[[], Any]], object]


@dataclass(frozen=True, slots=True)
class ReplicaDatabase:
    """A replica. name: of the node whose database it repeats. thread: of its reads; see NodeFetch. begin: starts a
    function in that thread. TimeoutError: an earlier one still runs."""

    name: str
    url: str
    thread: str
    begin: Begin


@dataclass(frozen=True, slots=True)
class _Progress:
    """What the replica has. ends: by the number of a table, whose queue it is and where that ends."""

    end_offset: int = -1
    ends: Mapping[int, tuple[str, int, int]] = field(default_factory=dict)


class TableReplica:
    """One replica. away: why nothing is read from it at present; None: it is read."""

    def __init__(self, given: ReplicaDatabase, primary: Database) -> None:
        """InvalidParameter: its URL is unusable, or of a file."""
        url = parse(given.url)
        if not is_server(url):
            raise InvalidParameter(
                f"found a file as replica of {given.name}, expected a server: leave the replica of {given.name} out"
            )
        self.thread = given.thread
        self.away: str | None = None
        self._begin = given.begin
        self._primary = primary
        self._engine: Engine = make_engine(url, reads=True, silence_s=SILENCE_S)
        self._connection: Connection | None = None
        self._progress = _Progress()

    def end_of(self, queue: TableQueue) -> int:
        """Return the queue offset below which the replica has all rows of a queue; 0: it has none."""
        progress = self._progress
        topic, queue_id, end = progress.ends.get(queue.number, ("", 0, 0))
        is_its_table = (topic, queue_id) == (queue.topic, queue.queue_id) and progress.end_offset > queue.born_offset
        return end if is_its_table else 0

    def look(self) -> None:
        """Have its thread ask how far it is."""
        with suppress(TimeoutError):  # the last one still runs
            self._begin(self._look)

    def _look(self) -> None:
        """In its thread: note what it has."""
        try:
            stores = self._ask(select(STORE).where(STORE.c.version == VERSION, STORE.c.writer == self._primary.writer))
            if not stores:
                self._leave("it does not have the present start of the broker yet")
                return
            used = QUEUE.c.state == QueueUse.USED
            ends = self._ask(select(QUEUE.c.id, QUEUE.c.topic, QUEUE.c.queue_id, QUEUE.c.next_offset).where(used))
        except StoreAway:
            return
        found = {row.id: (row.topic, row.queue_id, row.next_offset) for row in ends}
        self._progress = _Progress(stores[0].end_offset, found)
        self.away = None

    def rows(self, query: Select[Any], queue: TableQueue, queue_offset: int, least: int) -> list[Row[Any]]:
        """In its thread: return all rows of a query for a queue from an offset on, at least so many. StoreAway: it does
        not answer, or lacks rows below the end that it notes."""
        if self.away is not None:
            raise StoreAway(self.away)
        rows = self._ask(query)
        if len(rows) < least and queue.first_offset <= queue_offset:  # else they are expired
            why = f"it has {len(rows)} rows of {queue.topic}/{queue.queue_id} from {queue_offset} on, not {least}"
            self._leave(why)
            raise StoreAway(why)
        return rows

    def _ask(self, query: Select[Any]) -> list[Row[Any]]:
        try:
            if self._connection is None:
                self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            with self._connection.execute(query) as result:
                return list(result)
        except SQLAlchemyError as error:
            self._leave(cause(error))
            raise StoreAway(cause(error)) from error

    def _leave(self, why: str) -> None:
        """Read nothing from it until it was asked again, on a new connection: it may be another server
        then."""
        self.away = why
        self._progress = _Progress()
        if self._connection is not None:
            with suppress(SQLAlchemyError):
                self._connection.invalidate()
                self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close its connection. A read that is under way fails."""
        self._leave("it was closed")
        self._engine.dispose()


def parse_replica(given: str) -> tuple[str, str]:
    """Return name and URL of NAME=URL; the name is home or a node's. InvalidParameter."""
    from .registry import parse_node

    name, equals, url = given.partition("=")
    if name == HOME_NAME and equals:
        parse(url)
        return name, url
    return parse_node(given)
