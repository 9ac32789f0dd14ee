"""What an operator wants to know of a database: its server, its size, its tables, its nodes; and states of nodes.

It opens connections of its own and never becomes the writer, so it may be used beside a broker, and without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, func, inspect, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from mqtrail.wire import InvalidParameter

from ..errors import StoreError
from .database import REMEDIES, cause
from .engines import BUSY_S, CLOCKS, is_server, make_engine, parse, shown_url, why_read_only
from .nodes import kind_of
from .schema import (
    ASSIGNMENT,
    HOME,
    HOME_NAME,
    NODE,
    PARKED,
    QUEUE,
    STORE,
    VERSION,
    WRITER,
    NodeKind,
    NodeState,
    QueueUse,
    check_shape,
    has_nodes,
    message_table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTable:
    """A message table. state: free, used or released. topic, queue: those that use it, or did; None: none yet.

    first, next: queue offsets of the first kept and of the next message, as committed. last_stored_ms: when the last
    message was stored; None: there is none. size: bytes of the table with its indexes; None: not measured, or unknown.
    """

    table: str
    state: str
    topic: str | None
    queue: int | None
    first: int
    next: int
    last_stored_ms: int | None
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStart:
    """A start of a broker on the database: which process became the writer. started_ms: the clock of the database."""

    writer: int
    started_ms: int
    host: str
    pid: int
    mqtrail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node of a store. queues: that it has, or will have. parked: messages that the home keeps for it. away: why it
    did not answer the broker, as last noted; None: it did. url: without the password."""

    name: str
    kind: str
    state: str
    away: str | None
    queues: int
    parked: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """A database of messages. Times are ms since 1970 UTC, sizes bytes; None: the server does not say.

    database: URL without the password. clock_ms: the server's clock. writer: number of the process that may write, one
    more at each start. writers: the last starts, the latest first. committed_size: bytes of all committed records since
    the first start. queues: None: not asked. nodes: of its store, the home first; none: there is only this database.
    """

    database: str
    dialect: str
    version: str
    clock_ms: int
    size: int | None
    connections: int | None
    connections_max: int | None
    is_read_only: bool
    tables_version: int
    tables_by_state: Mapping[str, int]
    writer: int
    writers: tuple[WriterStart, ...]
    committed_size: int
    last_stored_ms: int
    queues: tuple[QueueTable, ...] | None
    nodes: tuple[NodeFacts, ...]


_MYSQL: Final = {
    "version": "SELECT version()",
    "size": "SELECT CAST(sum(data_length + index_length) AS SIGNED) FROM information_schema.tables "
    "WHERE table_schema = database()",
    "connections": "SELECT count(*) FROM information_schema.processlist WHERE db = database()",
    "connections_max": "SELECT @@max_connections",
    "is_read_only": "SELECT @@read_only",
    "sizes": "SELECT table_name, data_length + index_length FROM information_schema.tables "
    "WHERE table_schema = database()",
}
_QUESTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {
        "version": "SELECT sqlite_version()",
        "size": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
        "is_read_only": "SELECT 0",
        "sizes": "SELECT name, sum(pgsize) FROM dbstat GROUP BY name",  # it reads the whole file
    },
    "postgresql": {
        "version": "SHOW server_version",
        "size": "SELECT pg_database_size(current_database())",
        "connections": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()",
        "connections_max": "SELECT CAST(current_setting('max_connections') AS integer)",
        "is_read_only": "SELECT pg_is_in_recovery()",
        "sizes": "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace",
    },
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
"""The query for each kind of server, which returns one value; `sizes`: names and bytes of all tables."""


def look_at(url: str, *, queues: bool = False, sizes: bool = False) -> DatabaseFacts:
    """Return the facts of a database. queues: with its message tables; sizes: and their bytes, which takes longer.

    InvalidParameter: the URL is unusable. StoreError: the database is, or it has no messages of mqtrail.
    """
    parsed = parse(url)
    engine = make_engine(parsed, reads=True) if is_server(parsed) else _read_only_engine(parsed)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            return _facts(connection, parsed, queues=queues, sizes=sizes)
    except SQLAlchemyError as error:
        raise StoreError(
            f"found that the database cannot be read ({cause(error)}), expected one of mqtrail: "
            f"{REMEDIES[is_server(parsed)]}"
        ) from error
    finally:
        engine.dispose()


def _read_only_engine(url: URL) -> Engine:
    """Return an engine that makes no file, and changes none."""
    shown = url.set(database=f"file:{quote(url.database or '')}", query={"mode": "ro", "uri": "true"})
    return create_engine(shown, poolclass=NullPool, connect_args={"timeout": BUSY_S})


def _facts(connection: Connection, url: URL, *, queues: bool, sizes: bool) -> DatabaseFacts:
    shown = shown_url(url)
    if not check_shape(connection):
        raise StoreError(f"found no messages of mqtrail in {shown}, expected some: start `mqtrail pmq up` on it first")
    row = connection.execute(select(STORE)).one()
    if row.version != VERSION:
        raise StoreError(
            f"found tables of version {row.version}, expected {VERSION}: use the version of mqtrail that wrote them"
        )
    questions = _QUESTIONS[url.drivername]
    known: dict[str, Any] = {
        name: connection.execute(text(question)).scalar_one() for name, question in questions.items() if name != "sizes"
    }
    tables = connection.execute(select(QUEUE).order_by(QUEUE.c.topic, QUEUE.c.queue_id, QUEUE.c.id)).all()
    measured = {}
    if queues and sizes:
        measured = {name: int(size) for name, size in connection.execute(text(questions["sizes"])) if size is not None}
    return DatabaseFacts(
        database=shown,
        dialect=url.drivername,
        version=str(known["version"]),
        clock_ms=int(connection.execute(text(CLOCKS[url.drivername])).scalar_one()),
        size=None if known["size"] is None else int(known["size"]),
        connections=known.get("connections"),
        connections_max=known.get("connections_max"),
        is_read_only=bool(known["is_read_only"]),
        tables_version=row.version,
        tables_by_state={use.value: sum(one.state == use for one in tables) for use in QueueUse},
        writer=row.writer,
        writers=_writers(connection),
        committed_size=row.end_offset,
        last_stored_ms=row.store_ms,
        queues=tuple(_queue_table(connection, one, measured) for one in tables) if queues else None,
        nodes=_nodes(connection, sum(one.state == QueueUse.USED for one in tables)),
    )


def _nodes(connection: Connection, home_queues: int) -> tuple[NodeFacts, ...]:
    if not has_nodes(connection):
        return ()
    counts = [
        connection.execute(select(table.c.node, func.count()).group_by(table.c.node)).all()
        for table in (ASSIGNMENT, PARKED)
    ]
    queues, parked = ({number: count for number, count in rows} for rows in counts)  # noqa: C416  # rows are no pairs
    queues[HOME] = home_queues
    return tuple(
        NodeFacts(
            name=row.name,
            kind=row.kind,
            state=row.state,
            away=row.away,
            queues=queues.get(row.number, 0),
            parked=parked.get(row.number, 0),
            url=row.url,
        )
        for row in connection.execute(select(NODE).order_by(NODE.c.number))
    )


def set_node(
    url: str, name: str, *, kind: str | None = None, state: str | None = None, force: bool = False
) -> NodeFacts:
    """Change a node of the store whose home is at url; return it. A running broker follows within a second.

    force: also if no node is left that takes new messages of a topic. InvalidParameter: kind or state is unknown, or no
    such node is left. StoreError: the database cannot be used, or has no such node.
    """
    parsed = parse(url)
    engine = make_engine(parsed, unfit=partial(why_read_only, parsed)) if is_server(parsed) else _engine_of_file(parsed)
    try:
        with engine.begin() as connection:
            nodes = _nodes(connection, 0) if check_shape(connection) else ()
            if name not in [node.name for node in nodes]:
                known = ", ".join(node.name for node in nodes) or "none"
                raise StoreError(f"found no node {name} in this store, expected one of its nodes: {known}")
            if name == HOME_NAME and state == NodeState.CLOSED:
                raise InvalidParameter("found the home to be closed, expected read-only: the broker itself reads it")
            if not force and state is not None and state != NodeState.READ_WRITE:
                _check_left(connection, name)
            changes = {"kind": kind and NodeKind(kind), "state": state and NodeState(state)}
            values = {column: value for column, value in changes.items() if value is not None}
            if values:
                connection.execute(update(NODE).where(NODE.c.name == name).values(values))
            used = select(func.count()).where(QUEUE.c.state == QueueUse.USED)
            home_queues: int = connection.execute(used).scalar_one()
            return next(node for node in _nodes(connection, home_queues) if node.name == name)
    except SQLAlchemyError as error:
        raise StoreError(
            f"found that the database cannot be changed ({cause(error)}), expected the home of a store: "
            f"{REMEDIES[is_server(parsed)]}"
        ) from error
    finally:
        engine.dispose()


def _engine_of_file(url: URL) -> Engine:
    """Return an engine that changes an existing file."""
    shown = url.set(database=f"file:{quote(url.database or '')}", query={"mode": "rw", "uri": "true"})
    return create_engine(shown, poolclass=NullPool, connect_args={"timeout": BUSY_S})


def _check_left(connection: Connection, name: str) -> None:
    """InvalidParameter: without this node no queue of some topic takes messages."""
    rows = connection.execute(select(NODE)).all()
    open_nodes = {row.number for row in rows if row.state == NodeState.READ_WRITE and row.name != name}
    left: dict[str, bool] = {}
    assigned = {(row.topic, row.queue_id): row.node for row in connection.execute(select(ASSIGNMENT))}
    at_home = connection.execute(select(QUEUE.c.topic, QUEUE.c.queue_id).where(QUEUE.c.state == QueueUse.USED))
    for topic, queue_id in [*assigned, *((row.topic, row.queue_id) for row in at_home)]:
        left[topic] = left.get(topic, False) or assigned.get((topic, queue_id), HOME) in open_nodes
    lost = sorted(topic for topic, is_left in left.items() if not is_left and kind_of(topic) is not None)
    if lost:
        raise InvalidParameter(
            f"found {len(lost)} topics with all queues on {name} or on nodes that are not read-write "
            f"({', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}), expected another writable queue of each: give "
            "them more queues first, or pass --force"
        )


def _writers(connection: Connection) -> tuple[WriterStart, ...]:
    if not inspect(connection).has_table(WRITER.name):
        return ()  # no version that notes it was started on it
    rows = connection.execute(select(WRITER).order_by(WRITER.c.writer.desc()))
    return tuple(WriterStart(**row._mapping) for row in rows)


def _queue_table(connection: Connection, row: Any, sizes: Mapping[str, int]) -> QueueTable:
    last_ms = None
    if row.state == QueueUse.USED and row.next_offset > row.first_offset:
        table = message_table(row.table_name)
        last_ms = connection.execute(select(table.c.store_ms).where(table.c.id == row.next_offset - 1)).scalar()
    return QueueTable(
        table=row.table_name,
        state=row.state,
        topic=row.topic,
        queue=row.queue_id,
        first=row.first_offset,
        next=row.next_offset,
        last_stored_ms=last_ms,
        size=sizes.get(row.table_name),
    )
