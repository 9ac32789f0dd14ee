"""The connections of a table store to its database: one that reads, and one that writes.

Only the caller's thread reads, in transactions of one statement. The writing connection is a pool of one: whoever
has it, the flush thread or the caller's, has the turn. A transaction begins by checking that this process is still the
writer, which also locks the row of the store: of two processes the one that started earlier cannot commit any more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    QueuePool,
    Row,
    Select,
    create_engine,
    event,
    insert,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from mqtrail.wire import InvalidParameter

from ..errors import StoreBroken, StoreError
from .schema import METADATA, STORE, STORE_ROW, VERSION, check_shape

Result = TypeVar("Result")
BUSY_S = 30  # how long a statement waits while another program has the database locked


class Database:
    """One database. end_offset, store_ms: of the log, as found at the start. is_new: it had no tables of ours."""

    def __init__(self, url: str) -> None:
        """Open it and become its writer. InvalidParameter: the URL is unusable. StoreError: the database is."""
        self._engine = _engine(url)
        try:
            with self._engine.begin() as connection:
                self.is_new = not check_shape(connection)
                if self.is_new:
                    METADATA.create_all(connection)
                    row = {"id": STORE_ROW, "version": VERSION, "writer": 0, "end_offset": 0, "store_ms": 0}
                    connection.execute(insert(STORE), row)
                found = connection.execute(select(STORE)).one()
                if found.version != VERSION:
                    raise StoreError(
                        f"found tables of version {found.version}, expected {VERSION}: another version of mqtrail "
                        "wrote them; start that one"
                    )
                self._writer: int = found.writer + 1
                connection.execute(update(STORE).values(writer=self._writer))
            self.end_offset: int = found.end_offset
            self.store_ms: int = found.store_ms
            self._reads = _engine(url).connect().execution_options(isolation_level="AUTOCOMMIT")
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise StoreError(
                f"found that the database cannot be opened ({cause(error)}), expected one that mqtrail may change: "
                "check its URL, its folder and its permissions"
            ) from error
        except BaseException:
            self._engine.dispose()
            raise

    def rows(self, query: Select[Any]) -> list[Row[Any]]:
        """Return all rows of a query, as committed now. StoreError: the database failed."""
        try:
            with self._reads.execute(query) as result:
                return list(result)
        except DBAPIError as error:
            raise StoreError(
                f"found that the database failed ({cause(error)}), expected rows: check the database, then try again"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Wait for the turn to write; commit at the end. StoreBroken: nothing was committed, or that is unknown."""
        try:
            with self._engine.begin() as connection:
                mine = update(STORE).where(STORE.c.writer == self._writer).values(writer=self._writer)
                if connection.execute(mine).rowcount != 1:
                    raise StoreBroken("another process opened the database as its writer")
                yield connection
        except DBAPIError as error:
            raise StoreBroken(f"the database failed: {cause(error)}") from error

    def close(self) -> None:
        """Close all connections. What is not committed is rolled back."""
        engine = self._reads.engine
        self._reads.close()
        engine.dispose()
        self._engine.dispose()


def cause(error: SQLAlchemyError) -> str:
    """Return what the database said, without the statement and its parameters, which may hold messages."""
    return str(error.orig) if isinstance(error, DBAPIError) else str(error)


def in_turns(steps: Generator[None, None, Result]) -> Generator[None, None, Result]:
    """Run slices of upkeep. StoreError instead of StoreBroken: nothing was promised, so it is tried again later."""
    try:
        return (yield from steps)
    except StoreBroken as error:
        raise StoreError(str(error)) from error


def _engine(url: str) -> Engine:
    """Return an engine with at most one connection."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidParameter(f"found the store {url!r}, expected a URL such as sqlite:///path/to/file.db") from error
    backend = parsed.get_backend_name()
    if backend != "sqlite":
        raise InvalidParameter(f"found the store {backend}://…, expected sqlite:///path/to/file.db")
    if not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise InvalidParameter("found a store in memory or with options, expected sqlite:///path/to/file.db")
    try:
        engine = create_engine(
            parsed,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_timeout=None,
            connect_args={"timeout": BUSY_S, "check_same_thread": False},
        )
    except NoSuchModuleError as error:
        raise InvalidParameter(f"found the store {url!r}: {error}") from error
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: Any, record: object) -> None:
    """A commit is durable when it returns; readers, also other programs, see the last commit and block nothing."""
    connection.isolation_level = None  # the driver begins no transactions by itself
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
