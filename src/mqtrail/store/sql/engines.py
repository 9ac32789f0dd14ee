"""From a URL to connections: SQLite, PostgreSQL, MySQL and MariaDB, and what a store expects of each.

The drivers are synchronous, psycopg and PyMySQL: commits run in the flush thread anyway, and the store's contract has
no coroutines. A commit is durable when it returns: `open_problem` refuses a server that is set up otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError

from mqtrail.wire import InvalidParameter

BUSY_S: Final = 30  # how long a statement waits while another program has rows or the database locked
TURN_S: Final = 1.0  # how long the loop's thread waits for a transaction of the flush thread, on a server
CONNECT_S: Final = 5
STATEMENT_SIZE: Final = 64 * 1024  # of an INSERT without the body
SILENCE_S: Final = BUSY_S + 5  # without a byte from a server, while a statement is running: the connection is given up
READ_S: Final = 2  # after that a server cancels a read
EXPECTED: Final = "sqlite:///path/to/file.db, postgresql://user@host/database or mysql://user@host/database"
Unfit = Callable[[Any], str | None]
"""Why a server is not the one to use, asked on a new connection of the driver; None: it is."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A kind of server. driver: of SQLAlchemy; module: that it imports; options: of a URL, that are passed to it.

    read_args: further arguments of connections that only read.
    """

    driver: str
    module: str
    extra: str
    options: frozenset[str]
    connect_args: Mapping[str, Any]
    read_args: Mapping[str, Any] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)


POSTGRESQL: Final = Backend(
    "postgresql+psycopg",
    "psycopg",
    "postgresql",
    frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"}),
    {
        "connect_timeout": CONNECT_S,
        "tcp_user_timeout": 10_000,  # ms until a server that no longer answers is given up
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "application_name": "mqtrail",
        "client_encoding": "UTF8",
    },
)
MYSQL: Final = Backend(
    "mysql+pymysql",
    "pymysql",
    "mysql",
    frozenset({"ssl_ca", "ssl_cert", "ssl_key"}),
    {"connect_timeout": CONNECT_S, "charset": "utf8mb4", "read_timeout": SILENCE_S, "write_timeout": SILENCE_S},
    {"read_timeout": READ_S},
    {"isolation_level": "READ COMMITTED"},
)
MARIADB: Final = replace(MYSQL, driver="mariadb+pymysql")
BACKENDS: Final = {"postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MARIADB}


def parse(url: str) -> URL:
    """Return the URL with its driver; further addresses of its host part are in its query (`addresses_of`).

    InvalidParameter: it is none that a store can use.
    """
    first, others = _without_others(url)
    try:
        parsed = make_url(first)
    except (ArgumentError, ValueError) as error:
        raise InvalidParameter(f"found a store that is not a URL, expected {EXPECTED}") from error
    if parsed.drivername == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise InvalidParameter("found a store in memory or with options, expected sqlite:///path/to/file.db")
        return parsed
    backend = BACKENDS.get(parsed.drivername)
    if backend is None:
        raise InvalidParameter(f"found the store {parsed.drivername}://…, expected {EXPECTED}")
    shown = shown_url(parsed)
    if not parsed.database:
        raise InvalidParameter(f"found the store {shown} without a database, expected {parsed.drivername}://…/database")
    if unknown := sorted(set(parsed.query) - backend.options):
        raise InvalidParameter(
            f"found the option {unknown[0]} in the store {shown}, expected only {', '.join(sorted(backend.options))}"
        )
    for other in others:
        if _ADDRESS.fullmatch(other) is None:
            raise InvalidParameter(f"found the address {other!r} in the store {shown}, expected host or host:port")
    return parsed.update_query_dict({_OTHERS: others}) if others else parsed


def _without_others(url: str) -> tuple[str, tuple[str, ...]]:
    """Return a URL with the first of its addresses, and the others: user@host1:1,host2:2/database."""
    found = _AUTHORITY.match(url)
    if found is None or "," not in found["hosts"] or found["scheme"] == "sqlite":
        return url, ()
    first, *others = found["hosts"].split(",")
    return url[: found.start("hosts")] + first + url[found.end("hosts") :], tuple(others)


_OTHERS: Final = "mqtrail_addresses"
_AUTHORITY: Final = re.compile(r"(?P<scheme>[^:/]+)://(?:[^/]*@)?(?P<hosts>[^/?@]*)")
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::(?P<port>\d{1,5}))?")


def addresses_of(url: URL) -> list[tuple[str | None, int | None]]:
    """Return host and port of each address of a URL; None: the driver's default."""
    found: list[tuple[str | None, int | None]] = [(url.host, url.port)]
    for other in url.query.get(_OTHERS, ()):
        match = _ADDRESS.fullmatch(other)
        assert match is not None, "parse checked it"
        found.append((match["host"].strip("[]"), int(match["port"]) if match["port"] else None))
    return found


def shown_url(url: URL) -> str:
    """Return a URL of `parse` for people: with all addresses, without the password."""
    others = url.query.get(_OTHERS, ())
    shown = url.difference_update_query([_OTHERS]).render_as_string(hide_password=True)
    if not others:
        return shown
    found = _AUTHORITY.match(shown)
    assert found is not None
    end = found.end("hosts")
    return f"{shown[:end]},{','.join(others)}{shown[end:]}"


def is_server(url: URL) -> bool:
    """Return whether the database is another process, which can be away while this one runs."""
    return url.drivername in BACKENDS


def _make_private(path: str) -> None:
    """Make the file of a new database, with the messages, for its owner only. SQLite gives its other files its mode."""
    with suppress(OSError):  # SQLite says what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def make_engine(url: URL, *, reads: bool = False, unfit: Unfit | None = None, silence_s: float | None = None) -> Engine:
    """Return an engine with at most one connection. reads: for statements that are each a transaction.

    unfit: refuses servers; None: the first address that answers is used. silence_s: instead of SILENCE_S.
    InvalidParameter: its driver is not installed.
    """
    if not is_server(url):
        _make_private(url.database or "")
        engine = create_engine(
            url,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_timeout=None,
            connect_args={"timeout": BUSY_S, "check_same_thread": False},
        )
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    backend = BACKENDS[url.drivername]
    try:
        engine = create_engine(
            url.set(drivername=backend.driver).difference_update_query([_OTHERS]),
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            pool_timeout=TURN_S,
            connect_args={**backend.connect_args, **(backend.read_args if reads else {})},
            **backend.engine_args,
        )
    except ImportError as error:
        raise InvalidParameter(
            f"found no module {error.name}, expected {backend.module} for {url.drivername}://…: pip install "
            f"'mqtrail[{backend.extra}]'"
        ) from error
    statements = _SESSIONS[url.drivername][reads]

    def configure(connection: Any, record: object) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()

    event.listen(
        engine, "do_connect", _Connector(addresses_of(url), unfit, SILENCE_S if silence_s is None else silence_s)
    )
    event.listen(engine, "connect", configure)
    return engine


class _Connector:
    """Connects to the first address that answers and is fit, beginning with the one that was so last."""

    def __init__(self, addresses: list[tuple[str | None, int | None]], unfit: Unfit | None, silence_s: float) -> None:
        self._addresses = addresses
        self._unfit = unfit
        self._silence_s = silence_s

    def __call__(self, dialect: Any, record: object, args: list[Any], options: dict[str, Any]) -> Any:
        failures: list[Exception] = []
        for place, (host, port) in enumerate(self._addresses):
            here = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
            try:
                connection = self._connect(dialect, args, {**options, **here})
            except dialect.loaded_dbapi.Error as error:
                failures.append(error)
                continue
            if (problem := self._problem(dialect, connection)) is None:
                self._addresses.insert(0, self._addresses.pop(place))
                return connection
            connection.close()
            failures.append(dialect.loaded_dbapi.OperationalError(problem))
        if len(failures) == 1:
            raise failures[0]
        shown = (
            f"{host}{'' if port is None else f':{port}'}: {_said(failure)}"
            for (host, port), failure in zip(self._addresses, failures, strict=True)
        )
        raise dialect.loaded_dbapi.OperationalError("; ".join(shown))

    def _connect(self, dialect: Any, args: list[Any], options: dict[str, Any]) -> Any:
        if dialect.name != "postgresql":
            return dialect.connect(*args, **options)
        from .patient import PatientConnection  # psycopg is an extra

        connection = PatientConnection.connect(*args, **options)
        connection.silence_s = self._silence_s
        return connection

    def _problem(self, dialect: Any, connection: Any) -> str | None:
        if self._unfit is None:
            return None
        try:
            return self._unfit(connection)
        except dialect.loaded_dbapi.Error as error:
            return _said(error)
        finally:
            with suppress(dialect.loaded_dbapi.Error):
                connection.rollback()


def _said(error: Exception) -> str:
    """Return what a driver's error says."""
    arguments: tuple[object, ...] = error.args
    return str(arguments[-1]) if arguments else str(error)


READ_ONLY_FOUND: Final = "it is read-only, as a replica is"
_READ_ONLY: Final = {
    "postgresql": "SHOW transaction_read_only",
    "mysql": "SELECT @@global.read_only",
    "mariadb": "SELECT @@global.read_only",
}


def why_read_only(url: URL, connection: Any) -> str | None:
    """Return why a server takes no changes; None: it takes them. connection: of its driver."""
    with connection.cursor() as cursor:
        cursor.execute(_READ_ONLY[url.drivername])
        (found,) = cursor.fetchone()
    return READ_ONLY_FOUND if str(found) not in ("off", "0", "OFF") else None


def says_read_only(error: BaseException | None) -> bool:
    """Return whether a driver's error says that the server takes no changes, as after it became a replica."""
    if getattr(error, "sqlstate", None) == "25006":
        return True
    arguments: tuple[object, ...] = () if error is None else error.args
    return bool(arguments) and arguments[0] in _MYSQL_READ_ONLY


_MYSQL_READ_ONLY: Final = (1290, 1792, 1836)  # the server or the transaction is read-only


_MYSQL_CLOCK: Final = "SELECT CAST(unix_timestamp(now(3)) * 1000 AS SIGNED)"
CLOCKS: Final = {
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    "postgresql": "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    "mysql": _MYSQL_CLOCK,
    "mariadb": _MYSQL_CLOCK,
}
"""Asks for the clock of the database, in ms since 1970 UTC."""
_MYSQL_SESSIONS: Final = {
    True: (),
    False: (f"SET SESSION innodb_lock_wait_timeout = {BUSY_S}",),
}
_SESSIONS: Final = {
    "mysql": _MYSQL_SESSIONS,
    "mariadb": _MYSQL_SESSIONS,
    "postgresql": {
        True: (f"SET statement_timeout = '{READ_S}s'",),
        False: (
            f"SET lock_timeout = '{BUSY_S}s'",
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') IN ('off', 'local')",
        ),
    },
}
"""What each new connection runs, by backend and by whether it only reads."""


def open_problem(connection: Connection, record_size_max: int) -> str | None:
    """Return why a database cannot keep messages safely: found, expected, remedy; None: it can."""
    match connection.dialect.name:
        case "postgresql":
            return _postgresql_problem(connection)
        case "mysql" | "mariadb":
            return _mysql_problem(connection, record_size_max)
        case _:
            return None


def _postgresql_problem(connection: Connection) -> str | None:
    version = connection.dialect.server_version_info or (0,)
    if version[0] < 15:
        return f"found PostgreSQL {'.'.join(map(str, version))}, expected 15 or later: upgrade the server"
    encoding, fsync = (_value(connection, f"SHOW {name}") for name in ("server_encoding", "fsync"))
    if encoding != "UTF8":
        return (
            f"found a database with the encoding {encoding}, expected UTF8: create one with CREATE DATABASE … ENCODING "
            "'UTF8' TEMPLATE template0"
        )
    if fsync != "on":
        return f"found a server with fsync = {fsync}, expected on: a power failure would lose messages; set it to on"
    return None


def _mysql_problem(connection: Connection, record_size_max: int) -> str | None:
    version = _value(connection, "SELECT VERSION()")
    name, least = ("MariaDB", (10, 6)) if "MariaDB" in version else ("MySQL", (8, 0))
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < least:
        return f"found {name} {version}, expected {'.'.join(map(str, least))} or later: upgrade the server"
    if (level := _value(connection, "SELECT @@innodb_flush_log_at_trx_commit")) != "1":
        return (
            f"found a server with innodb_flush_log_at_trx_commit = {level}, expected 1: a power failure would lose "
            "messages; set it to 1"
        )
    wanted = 2 * record_size_max + STATEMENT_SIZE  # bytes may be written as two
    if (found := int(_value(connection, "SELECT @@max_allowed_packet"))) < wanted:
        return (
            f"found a server with max_allowed_packet = {found}, expected at least {wanted} for the largest message: "
            "raise it, or lower message_size_max"
        )
    return None


def _value(connection: Connection, statement: str) -> str:
    return str(connection.execute(text(statement)).scalar_one())


def _configure_sqlite(connection: Any, record: object) -> None:
    """A commit is durable when it returns; readers, also other programs, see the last commit and block nothing."""
    connection.isolation_level = None  # the driver begins no transactions by itself
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
