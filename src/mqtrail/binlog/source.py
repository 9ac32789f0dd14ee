"""The database server: what it must have, its tables, and a snapshot of them."""

from __future__ import annotations

import fnmatch
import re
import ssl
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.converters import conversions

from .charsets import CODECS
from .model import SYSTEM_DATABASES, BinlogError, BinlogPlace, SourceAway, Value
from .rows import Values, base64_of

CONNECT_S: Final = 10
SILENCE_S: Final = 60  # without a byte from the server: it is away
SNAPSHOT_SILENCE_S: Final = 24 * 3600  # how long the server keeps a snapshot's connection that reads slowly
CHUNK_COUNT: Final = 500  # rows of a snapshot in memory at once

_AWAY: Final = frozenset(
    {1040, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2055}
)
_CHANGED: Final = frozenset({1020, 1054, 1146, 1205, 1213, 1412})  # a table changed under a snapshot, or a lock
_DENIED: Final = frozenset({1044, 1045, 1142, 1143, 1227, 1698})
_MISSING: Final = frozenset({1049, 1146})  # no such database, no such table
_NEEDED: Final = (
    ("log_bin", "ON", "start the server with --log-bin"),
    ("binlog_format", "ROW", "SET GLOBAL binlog_format='ROW', and open new connections"),
    ("binlog_row_image", "FULL", "SET GLOBAL binlog_row_image='FULL', and open new connections"),
    ("binlog_row_metadata", "FULL", "SET GLOBAL binlog_row_metadata='FULL'"),
    ("log_bin_compress", "OFF", "SET GLOBAL log_bin_compress=OFF"),
)
_TEXT_AS_IS: Final = frozenset(
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "time", "date"}
)
_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_BYTES: Final = frozenset(
    {
        *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "uuid", "inet4", "inet6"),
    }
)
_KNOWN: Final = _TEXT_AS_IS | _INTEGERS | _BYTES | {"decimal", "float", "double", "set", "bit", "datetime", "timestamp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Where the server is. ssl_ca: file with certificates to check the server's with; '': TLS is used if the server
    offers it, unchecked."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    ssl_ca: str = ""

    @property
    def shown(self) -> str:
        """As a URL, without the password."""
        return f"mysql://{self.user}@{self.host}:{self.port}"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a connection."""
        found: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "connect_timeout": CONNECT_S,
            "read_timeout": SILENCE_S,
            "write_timeout": SILENCE_S,
        }
        if self.ssl_ca:
            found["ssl"] = ssl.create_default_context(cafile=self.ssl_ca)
        return found


def source_of(url: str, password: str, ssl_ca: str = "") -> SourceConfig:
    """Return the server of a URL mysql://user@host:port. BinlogError: the URL is not of this form."""
    parts = urlsplit(url)
    try:
        port = parts.port or 3306
    except ValueError:
        port = 0
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not parts.username or not port:
        raise BinlogError("found a source that is not a URL of a server, expected mysql://user@host:port")
    if parts.password is not None or parts.path not in ("", "/") or parts.query:
        raise BinlogError("found a source with a password, a database or options, expected mysql://user@host:port")
    return SourceConfig(host=parts.hostname, port=port, user=unquote(parts.username), password=password, ssl_ca=ssl_ca)


class TableFilter:
    """Which tables and columns are read: patterns of database.table, and names database.table.column."""

    def __init__(self, tables: Sequence[str], excluded: Sequence[str], columns: Sequence[str]) -> None:
        self._tables = tuple(tables) or ("*.*",)
        self._excluded = tuple(excluded)
        self._columns: dict[str, set[str]] = {}
        for pattern in (*self._tables, *self._excluded):
            if "." not in pattern:
                raise BinlogError(f"found the table {pattern!r}, expected database.table, for example 'shop.*'")
        for one in columns:
            table, _, column = one.rpartition(".")
            if "." not in table or not column:
                raise BinlogError(f"found the column {one!r}, expected database.table.column")
            self._columns.setdefault(table, set()).add(column)

    def has(self, name: str) -> bool:
        """Return whether a table, database.table, is read."""
        if name.partition(".")[0].lower() in SYSTEM_DATABASES:
            return False
        return any(fnmatch.fnmatchcase(name, one) for one in self._tables) and not any(
            fnmatch.fnmatchcase(name, one) for one in self._excluded
        )

    def may_mean(self, name: str) -> bool:
        """Return whether a statement's name of a table or database is one that is read, if case does not count."""
        folded = name.casefold()
        if "." not in name:
            return folded not in SYSTEM_DATABASES and any(
                fnmatch.fnmatchcase(folded, one.partition(".")[0].casefold()) for one in self._tables
            )
        return (
            folded.partition(".")[0] not in SYSTEM_DATABASES
            and any(fnmatch.fnmatchcase(folded, one.casefold()) for one in self._tables)
            and not any(fnmatch.fnmatchcase(name, one) for one in self._excluded)
        )

    def left_out(self, name: str) -> frozenset[str]:
        """Return the columns of a table that are not read."""
        return frozenset(self._columns.get(name, ()))


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column as information_schema has it. kind: its data type."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A table to be read."""

    database: str
    table: str
    columns: tuple[ReadColumn, ...]
    key: tuple[str, ...]

    @property
    def name(self) -> str:
        """database.table."""
        return f"{self.database}.{self.table}"


@contextmanager
def in_words(config: SourceConfig, doing: str) -> Iterator[None]:
    """Turn the driver's errors into SourceAway and BinlogError."""
    try:
        yield
    except pymysql.MySQLError as error:
        raise _error_of(error, config, doing) from error
    except OSError as error:
        raise SourceAway(f"{config.shown} is away while {doing}: {error}") from error


def _error_of(error: pymysql.MySQLError, config: SourceConfig, doing: str) -> Exception:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code in _AWAY or (isinstance(error, pymysql.InterfaceError) and not code):
        return SourceAway(f"{config.shown} is away while {doing}: {text or 'the connection is closed'}")
    if code in _CHANGED:
        return SourceAway(f"{config.shown}: a table changed while {doing}: {text}")
    if code in _DENIED:
        return BinlogError(
            f"{config.shown} denies {doing}: {text}: check user and password; the user needs "
            "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* and GRANT SELECT on the tables"
        )
    if code == 1236:
        return BinlogError(
            f"{config.shown} cannot send its binlog: {text}: if its files are purged, keep them longer "
            "(binlog_expire_logs_seconds), and take a new snapshot with a new --state"
        )
    return BinlogError(f"{config.shown} failed while {doing}: {text} (error {code})")


class BinlogSource:
    """Asks one server. Blocking: call it in a thread. SourceAway, BinlogError."""

    def __init__(self, config: SourceConfig) -> None:
        self.config = config

    @contextmanager
    def connected(self, doing: str, **further: Any) -> Iterator[Any]:
        arguments = self.config.arguments | further  # OSError: no certificates
        with in_words(self.config, doing):
            connection = pymysql.connect(autocommit=True, **arguments)
            try:
                yield connection
            finally:
                connection.close()

    def identity(self) -> str:
        """Check that its binlog can be read; return what tells this server from others."""
        with self.connected("reading its settings") as connection:
            (version,) = ask(connection, "SELECT @@version")[0]
            if "mariadb" not in version.lower() or tuple(map(int, re.findall(r"\d+", version)[:2])) < (10, 5):
                raise BinlogError(
                    f"found the server version {version} at {self.config.shown}, expected MariaDB 10.5 or newer"
                )
            found = {name.lower(): value for name, value in ask(connection, "SHOW GLOBAL VARIABLES")}
            grants = [text.upper() for (text,) in ask(connection, "SHOW GRANTS") if " ON *.* " in text.upper()]
        if not any("REPLICATION SLAVE" in text or "ALL PRIVILEGES" in text for text in grants):
            raise BinlogError(
                f"found no right REPLICATION SLAVE of the user at {self.config.shown}, expected it: GRANT REPLICATION "
                f"SLAVE, BINLOG MONITOR ON *.* TO {self.config.user}"
            )
        for name, expected, remedy in _NEEDED:
            if found.get(name, expected).upper() != expected:
                raise BinlogError(f"found {name}={found[name]} at {self.config.shown}, expected {expected}: {remedy}")
        uid = found.get("server_uid", "")
        return f"{found['server_id']} {uid}".strip()

    def charsets(self) -> dict[int, str]:
        """Return the character set of each collation, by its number."""
        with self.connected("reading its collations") as connection:
            table = "information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
            try:
                found = ask(connection, f"SELECT ID, CHARACTER_SET_NAME FROM {table}")
            except pymysql.OperationalError:  # before 10.10
                found = ask(connection, "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS")
        return {int(number): name for number, name in found}

    def end(self) -> tuple[BinlogPlace, str]:
        """Return the end of the binlog, and the GTIDs before it."""
        with self.connected("reading the end of its binlog") as connection:
            found = ask(connection, "SHOW MASTER STATUS")
            place = BinlogPlace(found[0][0], int(found[0][1]))
            return place, self._gtids(connection, place)

    def check_place(self, place: BinlogPlace, gtids: str) -> None:
        """Check that the binlog has a place, with these GTIDs before it. BinlogError: purged, or of another server."""
        with self.connected("looking for a place in its binlog") as connection:
            files = {name: int(size) for name, size, *_ in ask(connection, "SHOW BINARY LOGS")}
            if place.file not in files:
                first = min(files, key=lambda name: BinlogPlace(name, 0).order, default="none")
                raise BinlogError(
                    f"found no {place.file} in the binlog of {self.config.shown}, whose first file is {first}; "
                    "expected "
                    f"{place}, where the state ends: its changes are purged, so take a new snapshot with a new "
                    "--state, and keep the files longer (binlog_expire_logs_seconds)"
                )
            if place.position > files[place.file] or self._gtids(connection, place) != gtids:
                raise BinlogError(
                    f"found a binlog of {self.config.shown} that has other transactions before {place} than the state, "
                    f"expected the GTIDs {gtids or 'none'}: it is another server, or RESET MASTER was called; take a "
                    "new snapshot with a new --state"
                )

    def _gtids(self, connection: Any, place: BinlogPlace) -> str:
        found = ask(connection, "SELECT BINLOG_GTID_POS(%s, %s)", place)[0][0]
        return ",".join(sorted((found or "").split(",")))

    def check_readable(self, name: str) -> None:
        """Check that the rows of a table may be read, if it exists: a snapshot does not see others. BinlogError."""
        database, _, table = name.partition(".")
        with self.connected(f"reading {name}, of which the snapshot has no rows") as connection:
            try:
                ask(connection, f"SELECT 1 FROM {quoted(database)}.{quoted(table)} LIMIT 0")
            except pymysql.MySQLError as error:
                if not error.args or error.args[0] not in _MISSING:
                    raise

    def tables(self, chosen: TableFilter) -> list[ReadTable]:
        """Return the tables to be read. BinlogError: one cannot be."""
        with self.connected("reading the list of its tables") as connection:
            return _tables(connection, chosen)

    @contextmanager
    def snapshot(self, silence_s: int = SILENCE_S) -> Iterator[Snapshot]:
        """Begin a transaction that sees the tables as they are at its place in the binlog.

        silence_s: how long a statement may work without an answer.
        """
        further: dict[str, Any] = {"cursorclass": pymysql.cursors.SSCursor, "conv": _TEXTS, "use_unicode": True}
        further["read_timeout"] = silence_s
        with self.connected("reading a snapshot", **further) as connection:
            for statement in (
                "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                f"SET SESSION time_zone='+00:00', sql_mode='', net_write_timeout={SNAPSHOT_SILENCE_S}",
                "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            ):
                ask(connection, statement)
            found = dict(ask(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
            place = BinlogPlace(found["Binlog_snapshot_file"], int(found["Binlog_snapshot_position"]))
            with self.connected("reading the GTIDs of a snapshot") as other:
                gtids = self._gtids(other, place)
            yield Snapshot(connection, self.config, place, gtids)


class Snapshot:
    """Tables at one place in the binlog."""

    def __init__(self, connection: Any, config: SourceConfig, place: BinlogPlace, gtids: str) -> None:
        self._connection = connection
        self._config = config
        self.place = place
        self.gtids = gtids

    def tables(self, chosen: TableFilter) -> list[ReadTable]:
        """Return the tables to be read. BinlogError: one cannot be."""
        with in_words(self._config, "reading the list of its tables"):
            return _tables(self._connection, chosen)

    def ask(self, statement: str, doing: str) -> list[Any]:
        """Return all rows of a statement. SourceAway, BinlogError."""
        with in_words(self._config, doing):
            return ask(self._connection, statement)

    def chunks(self, table: ReadTable, where: str = "") -> Generator[list[Values]]:
        """Yield the rows of a table, by its key, in chunks. Read a table to its end before the next one.

        where: a condition in SQL.
        """
        columns = ", ".join(selected(column) for column in table.columns)
        key = ", ".join(map(quoted, table.key))
        chosen = f" WHERE {where}" if where else ""
        statement = f"SELECT {columns} FROM {quoted(table.database)}.{quoted(table.table)}{chosen} ORDER BY {key}"
        with in_words(self._config, f"reading {table.name}"):
            cursor = self._connection.cursor()
            is_whole = False
            try:
                cursor.execute(statement)
                while rows := cursor.fetchmany(CHUNK_COUNT):
                    yield [
                        {column.name: value_of(column, text) for column, text in zip(table.columns, row, strict=True)}
                        for row in rows
                    ]
                is_whole = True
            finally:
                if not is_whole:
                    _abandon(self._connection, cursor)
                cursor.close()


def _abandon(connection: Any, cursor: Any) -> None:
    """Close the connection at once. The cursor would first read all the rows that are left."""
    connection._force_close()
    if cursor._result is not None:
        cursor._result.unbuffered_active = False
        cursor._result.connection = None


_TEXTS: Final = {key: value for key, value in conversions.items() if type(key) is not int}  # values stay texts


def ask(connection: Any, statement: str, values: Sequence[object] = ()) -> list[Any]:
    """Return all rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def quoted(name: str) -> str:
    """Return a name for a statement."""
    return "`" + name.replace("`", "``") + "`"


def _tables(connection: Any, chosen: TableFilter) -> list[ReadTable]:
    system = ", ".join(f"'{name}'" for name in sorted(SYSTEM_DATABASES))
    where = f"TABLE_SCHEMA NOT IN ({system})"
    listed = ask(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE FROM information_schema.TABLES "
        f"WHERE {where} AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY 1, 2",
    )
    columns: dict[tuple[str, str], list[ReadColumn]] = {}
    charsets: dict[tuple[str, str, str], str] = {}
    for database, table, name, kind, charset in ask(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, CHARACTER_SET_NAME FROM information_schema.COLUMNS "
        f"WHERE {where} ORDER BY 1, 2, ORDINAL_POSITION",
    ):
        columns.setdefault((database, table), []).append(ReadColumn(name, kind.lower()))
        charsets[database, table, name] = charset or ""
    keys: dict[tuple[str, str], list[str]] = {}
    for database, table, name in ask(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS "
        f"WHERE {where} AND INDEX_NAME='PRIMARY' ORDER BY 1, 2, SEQ_IN_INDEX",
    ):
        keys.setdefault((database, table), []).append(name)
    found = []
    for database, table, engine in listed:
        name = f"{database}.{table}"
        if not chosen.has(name):
            continue
        left_out = chosen.left_out(name)
        own = tuple(one for one in columns.get((database, table), []) if one.name not in left_out)
        one = ReadTable(database, table, own, tuple(keys.get((database, table), [])))
        _check_table(one, engine or "", left_out, [(c, charsets[database, table, c.name]) for c in own])
        found.append(one)
    return found


def check_key(name: str, key: Sequence[str], left_out: frozenset[str]) -> None:
    """Check that the changes of a table can be put in order by its key. BinlogError."""
    if not key:
        raise BinlogError(
            f"found the table {name} without a primary key, expected one, since changes of a row are put in order by "
            f"it: add a primary key, or leave the table out: --exclude-table {name}"
        )
    if hidden := sorted(left_out & set(key)):
        raise BinlogError(
            f"found --exclude-column {name}.{hidden[0]}, a part of the primary key, expected another column"
        )


def _check_table(
    table: ReadTable, engine: str, left_out: frozenset[str], columns: Sequence[tuple[ReadColumn, str]]
) -> None:
    check_key(table.name, table.key, left_out)
    if engine.lower() != "innodb":
        raise BinlogError(
            f"found the table {table.name} with the engine {engine or 'none'}, expected InnoDB, which can be read as "
            f"of one moment: ALTER TABLE {table.name} ENGINE=InnoDB, or --exclude-table {table.name}"
        )
    for column, charset in columns:
        what = None
        if column.kind not in _KNOWN:
            what = f"the type {column.kind}"
        elif charset and charset not in CODECS:
            what = f"the character set {charset}"
        if what is not None:
            raise BinlogError(
                f"found {what} in the column {column.name} of {table.name}, expected one that mqtrail knows: convert "
                f"the column, or leave it out: --exclude-column {table.name}.{column.name}"
            )


def selected(column: ReadColumn) -> str:
    """Return the expression that gives a column's value as the binlog has it."""
    name = quoted(column.name)
    if column.kind == "float":
        return f"CAST({name} AS DOUBLE)"  # else it is rounded to six digits
    if column.kind == "uuid":
        return f"UNHEX(REPLACE({name}, '-', ''))"
    if column.kind in ("inet4", "inet6"):
        return f"INET6_ATON({name})"
    return name


def value_of(column: ReadColumn, found: str | bytes | None) -> Value:
    """Return a value of a snapshot as a change of the row would have it."""
    kind = column.kind
    if found is None:
        return None
    if isinstance(found, bytes) and kind in _BYTES:
        return base64_of(found)
    if kind == "bit":
        return int.from_bytes(found if isinstance(found, bytes) else found.encode("latin1"), "big")
    text = found.decode() if isinstance(found, bytes) else found
    if kind in _INTEGERS:
        return int(text)
    if kind in ("float", "double"):
        return float(text)
    if kind == "decimal":
        sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
        whole, point, rest = digits.partition(".")
        return f"{sign}{whole.lstrip('0') or '0'}{point}{rest}"
    if kind == "set":
        return text.split(",") if text else []
    if kind == "datetime":
        return text.replace(" ", "T")
    if kind == "timestamp":
        return f"{text.replace(' ', 'T')}Z"
    return text
