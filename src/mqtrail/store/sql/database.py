"""The connections of a table store to its database: one that reads, and one that writes.

Only the caller's thread reads, in transactions of one statement. The writing connection is a pool of one: whoever
has it, the flush thread or the caller's, has the turn. A transaction begins by checking that this process is still the
writer, which also locks the row of the store: of two processes the one that started earlier cannot commit any more.

A server may be away for a while. Then nothing in the caller's thread asks it again: the flush thread does, until it
answers (`revive`). Of several addresses in a URL, each connection uses the first one whose server takes changes and has
everything that was committed: after a fail-over that is the new primary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Connection, Row, Select, Table, delete, insert, inspect, or_, select, text, update
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoTurn

from mqtrail import __version__

from ..errors import StoreAway, StoreBroken, StoreBusy, StoreError
from .engines import CLOCKS, is_server, make_engine, open_problem, parse, says_read_only, why_read_only
from .schema import MEMBER, METADATA, STARTS_KEPT, STORE, STORE_ROW, VERSION, WRITER, check_shape

Result = TypeVar("Result")


class NodeMember(NamedTuple):
    """A node of a store. store: the id of the store."""

    name: str
    store: str


Apart = Callable[[Callable[[], Any]], Any]
"""Runs a function and returns its result, or raises TimeoutError when that takes too long."""

REMEDIES: Final = {
    True: "start it; check host, port, user and password in its URL, and that the user may create tables there",
    False: "check its URL, its folder and its permissions",
}


class Database:
    """One database. end_offset: of the log, as last known to be committed. store_ms: its time, as found at the start.
    is_new: it had no tables of ours.

    away: why a server does not answer at present; None: it does, as far as known. runs_apart: whether reads run in
    another thread.
    """

    def __init__(
        self,
        url: str,
        record_size_max: int,
        apart: Apart | None = None,
        member: NodeMember | None = None,
        *,
        may_be_away: bool = False,
    ) -> None:
        """Open it and become its writer. InvalidParameter: the URL is unusable. StoreError: the database is.

        record_size_max: bytes of the largest record. apart: runs what the caller's thread asks a server. member: which
        node of which store it is; None: the home of a store. may_be_away: a server that does not answer is opened by
        `revive`.
        """
        parsed = parse(url)
        self._is_server = is_server(parsed)
        self.runs_apart = apart is not None and self._is_server
        self._apart = apart if apart is not None and self._is_server else _here
        self.away: str | None = None
        self._url = parsed
        unfit = self._unfit if self._is_server else None
        self._engine = make_engine(parsed, unfit=unfit)
        self._reads_engine = make_engine(parsed, reads=True, unfit=unfit)
        self._reads: Connection | None = None
        self._as = record_size_max, member
        self.is_open = False
        self.end_offset = self.store_ms = 0
        try:
            self._open()
        except SQLAlchemyError as error:
            if may_be_away and self._may_be_away(error):
                self.away = cause(error)
                return
            self.close()
            raise StoreError(
                f"found that the database cannot be opened ({cause(error)}), expected one that mqtrail may change: "
                f"{REMEDIES[self._is_server]}"
            ) from error
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        record_size_max, member = self._as
        with self._engine.begin() as connection:
            self._take_over(connection, record_size_max, member)
        self.is_open = True
        self._connect_reads()

    def _take_over(self, connection: Connection, record_size_max: int, member: NodeMember | None) -> None:
        """Make the tables if there are none, and become the writer. StoreError: it is not a database for this."""
        if (problem := open_problem(connection, record_size_max)) is not None:
            raise StoreError(problem)
        if not check_shape(connection):
            METADATA.create_all(connection, tables=[table for table in METADATA.sorted_tables if table is not STORE])
            STORE.create(connection)  # last: without it the start is repeated
        WRITER.create(connection, checkfirst=True)  # a database of an earlier version has none
        if member is not None:
            MEMBER.create(connection, checkfirst=True)
        self.is_new = connection.execute(select(STORE.c.id)).first() is None
        if (problem := _member_problem(connection, member, is_new=self.is_new)) is not None:
            raise StoreError(problem)
        if self.is_new:
            row = {"id": STORE_ROW, "version": VERSION, "writer": 0, "end_offset": 0, "store_ms": 0}
            connection.execute(insert(STORE), row)
        found = connection.execute(select(STORE).with_for_update()).one()
        if found.version != VERSION:
            raise StoreError(
                f"found tables of version {found.version}, expected {VERSION}: another version of mqtrail "
                "wrote them; start that one"
            )
        self._writer: int = found.writer + 1
        connection.execute(update(STORE).values(writer=self._writer))
        _note_writer(connection, self._writer)
        self.end_offset = found.end_offset
        self.store_ms = found.store_ms

    @property
    def writer(self) -> int:
        """Number of this start of the writer."""
        return self._writer

    def _unfit(self, connection: Any) -> str | None:
        """Return why a server is not the primary of this database. connection: of its driver."""
        if (problem := why_read_only(self._url, connection)) is not None or not self.is_open:
            return problem
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT writer, end_offset FROM {STORE.name} WHERE id = {STORE_ROW}")
            writer, end_offset = cursor.fetchone() or (0, 0)
        if writer >= self._writer and end_offset >= self.end_offset:
            return None
        return (
            f"its log ends at {end_offset}, before {self.end_offset}: it lacks commits; let it catch up, or start the "
            "broker again to go on without them"
        )

    def _connect_reads(self) -> None:
        old, self._reads = self._reads, None  # a server may refuse the new one
        if old is not None:
            old.invalidate()
            old.close()
        self._reads = self._reads_engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def has_table(self, table: Table) -> bool:
        """Return whether it has a table. StoreError: it failed; StoreAway."""

        def ask() -> bool:
            assert self._reads is not None
            return inspect(self._reads).has_table(table.name)

        return bool(self._asked(lambda: self._apart(ask)))

    def rows(self, query: Select[Any]) -> list[Row[Any]]:
        """Return all rows of a query, as committed now. StoreError: the database failed; StoreAway: it is away."""
        return self._asked(lambda: self._apart(partial(self._rows, query)))

    def rows_apart(self, query: Select[Any]) -> list[Row[Any]]:
        """Do as `rows`, in the thread of `apart`."""
        return self._asked(partial(self._rows, query))

    def _asked(self, ask: Callable[[], Result]) -> Result:
        if self.away is not None:
            raise StoreAway(self.away)
        try:
            return ask()
        except (DBAPIError, TimeoutError) as error:
            if self._may_be_away(error):
                self.away = cause(error)
                raise StoreAway(self.away) from error
            raise StoreError(
                f"found that the database failed ({cause(error)}), expected rows: check the database, then try again"
            ) from error

    def _rows(self, query: Select[Any]) -> list[Row[Any]]:
        assert self._reads is not None
        with self._reads.execute(query) as result:
            return list(result)

    def change(self, act: Callable[[Connection], None]) -> None:
        """In the caller's thread: run act in a transaction. StoreBroken, StoreAway, StoreBusy: see `transaction`."""
        if self.away is not None:
            raise StoreAway(self.away)

        def run() -> None:
            with self.transaction() as connection:
                act(connection)

        try:
            self._apart(run)
        except TimeoutError as error:
            self.away = cause(error)
            raise StoreAway(self.away) from error

    @contextmanager
    def transaction(self, committed: Callable[[], None] | None = None) -> Iterator[Connection]:
        """Wait for the turn to write; commit at the end, and call committed before the turn ends.

        StoreBroken: nothing was committed, or that is unknown. StoreAway: the same, and it may be tried again.
        StoreBusy: nothing was done, because another transaction of this process has the turn.
        """
        try:
            with self._engine.connect() as connection:
                try:
                    with connection.begin():
                        self.check_writer(connection)
                        yield connection
                except DBAPIError as error:
                    if says_read_only(error.orig):
                        connection.invalidate()  # the next one may find the new primary
                    raise
                if committed is not None:
                    committed()
        except NoTurn as error:
            raise StoreBusy from error
        except DBAPIError as error:
            if self._may_be_away(error):
                self.away = cause(error)
                raise StoreAway(self.away) from error
            raise StoreBroken(f"the database failed: {cause(error)}") from error

    def check_writer(self, connection: Connection) -> None:
        """Lock the row of the store. StoreBroken: this process is not the writer any more."""
        mine = update(STORE).where(STORE.c.writer == self._writer).values(writer=self._writer)
        if connection.execute(mine).rowcount != 1:
            raise StoreBroken("another process opened the database as its writer")

    def revive(self) -> None:
        """In the flush thread: connect to a server that was away. StoreAway: it still is."""
        if self.away is None:
            return
        try:
            if self.is_open:
                with self.transaction():
                    pass
                self._connect_reads()
            else:
                self._open()
        except StoreAway:
            raise
        except NoTurn as error:
            raise StoreBusy from error
        except (DBAPIError, StoreError) as error:
            self.away = cause(error)
            raise StoreAway(self.away) from error
        self.away = None

    def _may_be_away(self, error: Exception) -> bool:
        """Return whether it may go well later: connections that broke, locks, deadlocks, a server without space, one
        that became read-only."""
        if isinstance(error, DBAPIError) and says_read_only(error.orig):
            return self._is_server
        return self._is_server and isinstance(error, OperationalError | InterfaceError | TimeoutError)

    def close(self) -> None:
        """Close all connections. Uncommitted changes are rolled back."""
        if self._reads is not None:
            if self.away is not None:
                self._reads.invalidate()  # a thread may still wait for its reply
            self._reads.close()
        for engine in (self._reads_engine, self._engine):
            engine.dispose()


def _member_problem(connection: Connection, member: NodeMember | None, *, is_new: bool) -> str | None:
    """Return why a database is not what it is opened as; None: it is. A new one becomes the member."""
    found = connection.execute(select(MEMBER)).first() if inspect(connection).has_table(MEMBER.name) else None
    if member is None:
        if found is None:
            return None
        return f"found the node {found.name} of another store, expected a home: name the database of that store's --db"
    if found is None and is_new:
        connection.execute(insert(MEMBER), {"id": 1, "name": member.name, "store": member.store})
        return None
    if found is not None and (found.name, found.store) == member:
        return None
    owner = "messages of a store of its own" if found is None else f"the node {found.name} of {found.store}"
    return (
        f"found {owner} in the database of the node {member.name}, expected an empty database or this node of "
        f"{member.store}: correct its URL, or name an empty database"
    )


def _note_writer(connection: Connection, writer: int) -> None:
    """Note for people who the writer is, since when. Old starts are forgotten."""
    row = {
        "writer": writer,
        "started_ms": connection.execute(text(CLOCKS[connection.dialect.name])).scalar_one(),
        "host": os.uname().nodename[:255],
        "pid": os.getpid(),
        "mqtrail": __version__[:40],
    }
    connection.execute(delete(WRITER).where(or_(WRITER.c.writer >= writer, WRITER.c.writer <= writer - STARTS_KEPT)))
    connection.execute(insert(WRITER), row)


def cause(error: Exception) -> str:
    """Return what the database said, without the statement and its parameters, which may hold messages."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    found: BaseException | None = error.orig if isinstance(error, DBAPIError) else error
    match None if found is None else found.args:
        case (int(), str(text)):  # PyMySQL: number and text
            return text
        case _:
            return " ".join(str(found).split())


def in_turns(steps: Generator[None, None, Result]) -> Generator[None, None, Result]:
    """Run slices of upkeep. StoreError instead of StoreBroken: nothing was promised, so it is tried again later."""
    try:
        return (yield from steps)
    except StoreBroken as error:
        raise StoreError(str(error)) from error


def _here(act: Callable[[], Any]) -> Any:
    return act()
