"""What an operator wants to know of a database: its server, its size, its tables. It only reads.

It opens connections of its own and never becomes the writer, so it may be used beside a broker, and without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

from ..errors import StoreError
from .database import REMEDIES, cause
from .engines import BUSY_S, CLOCKS, is_server, make_engine, parse
from .schema import QUEUE, STORE, VERSION, WRITER, QueueUse, check_shape, message_table


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
class DatabaseFacts:
    """A database of messages. Times are ms since 1970 UTC, sizes bytes; None: the server does not say.

    database: URL without the password. clock_ms: the server's clock. writer: number of the process that may write, one
    more at each start. writers: the last starts, the latest first. committed_size: bytes of all committed records since
    the first start. queues: None: not asked.
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
"""What is asked of each kind of server, one value each; `sizes`: names and bytes of all tables."""


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
    shown = url.render_as_string(hide_password=True)
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
