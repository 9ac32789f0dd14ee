"""SQL through a connection of the application: a DB-API connection, or SQLAlchemy's `Connection`. Imports no driver.

Statements are written with `?`; each driver gets the placeholders of its own paramstyle. A statement holds no other
`?` and no `%`.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, Final

from .errors import ClientError

Connect = Callable[[], Any]
"""Opens a connection with `commit`, `rollback` and `close`: `lambda: sqlite3.connect(path)`, `engine.connect`."""

_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}(\.[A-Za-z_][A-Za-z0-9_]{0,39})?")
_PLACEHOLDERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class SqlDialect(StrEnum):
    """The databases whose SQL is known."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"  # and MariaDB


_DIALECTS: Final = {
    "sqlite": SqlDialect.SQLITE,
    "sqlite3": SqlDialect.SQLITE,
    "postgresql": SqlDialect.POSTGRESQL,
    "psycopg": SqlDialect.POSTGRESQL,
    "psycopg2": SqlDialect.POSTGRESQL,
    "mysql": SqlDialect.MYSQL,
    "mariadb": SqlDialect.MYSQL,
    "pymysql": SqlDialect.MYSQL,
    "MySQLdb": SqlDialect.MYSQL,
}
"""SQLAlchemy's names of dialects, and modules of drivers."""


class SqlConnection:
    """Runs statements through an open connection, in the transaction that is open there. Neither commits nor closes."""

    def __init__(self, connection: Any) -> None:
        """Raises ClientError for a connection that is not known, or that commits each statement by itself."""
        self._connection = connection
        self._sqlalchemy = hasattr(connection, "exec_driver_sql")
        driver = _driver_connection(connection, self._sqlalchemy)
        if self._sqlalchemy:
            name, style = connection.dialect.name, connection.dialect.paramstyle
        else:
            name, style = _driver(type(driver).__module__)
        dialect, placeholder = _DIALECTS.get(name), _PLACEHOLDERS.get(style)
        if dialect is None or placeholder is None:
            raise ClientError(
                f"found a connection of {name!r} with paramstyle {style!r}, expected SQLite, PostgreSQL (psycopg, "
                "psycopg2) or MySQL and MariaDB (pymysql, MySQLdb, mysql, mariadb), or a Connection of SQLAlchemy"
            )
        if _commits_by_itself(driver):
            raise ClientError(
                "found a connection in autocommit mode, expected one with transactions: the statements of one message "
                "must be committed together; turn autocommit off"
            )
        self.dialect = dialect
        self._placeholder = placeholder

    def run(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; return how many rows it changed."""
        return int(self._execute(statement, values).rowcount)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query."""
        return list(self._execute(statement, values).fetchall())

    def _execute(self, statement: str, values: Sequence[Any]) -> Any:
        statement = statement.replace("?", self._placeholder)
        if self._sqlalchemy:
            return self._connection.exec_driver_sql(statement, tuple(values))
        cursor = self._connection.cursor()
        cursor.execute(statement, tuple(values))
        return cursor


def _driver(module: str) -> tuple[str, str | None]:
    """Return the first part of a module's name, and the paramstyle of the package that has one."""
    names = [module[: match.start()] for match in re.finditer(r"\.|$", module)]
    styles = (getattr(sys.modules.get(name), "paramstyle", None) for name in names)
    return names[0], next((style for style in styles if style is not None), None)


def _driver_connection(connection: Any, sqlalchemy: bool) -> Any:
    """Return the driver's own connection below SQLAlchemy's and its pool's."""
    if sqlalchemy:
        connection = connection.connection
    return getattr(connection, "dbapi_connection", None) or connection


def _commits_by_itself(driver: Any) -> bool:
    if hasattr(driver, "get_autocommit"):  # pymysql, MySQLdb
        return bool(driver.get_autocommit())
    if getattr(driver, "autocommit", None) is True:  # psycopg, psycopg2; sqlite3 from Python 3.12 on
        return True
    # sqlite3; its later attribute is -1 while isolation_level decides
    return (
        hasattr(driver, "isolation_level")
        and hasattr(driver, "total_changes")
        and (driver.isolation_level is None and getattr(driver, "autocommit", -1) is not False)
    )


@contextmanager
def transaction(connect: Connect) -> Iterator[Any]:
    """Yield a new connection; commit at the end of the block, roll back after an exception, and close it."""
    connection = connect()
    try:
        yield connection
        connection.commit()
    except BaseException:
        with suppress(Exception):  # the connection broke: the database rolls back
            connection.rollback()
        raise
    finally:
        with suppress(Exception):  # what was committed stays committed
            connection.close()


def table_name(name: str) -> str:
    """Return a name that can be put into a statement. Raises ClientError for any other."""
    if not _TABLE.fullmatch(name):
        raise ClientError(
            f"found the table name {name!r}, expected letters, digits and underscores, 40 at most, perhaps after a "
            "schema and a dot"
        )
    return name


def delete_in_pieces(sql: SqlConnection, table: str, condition: str, values: Sequence[Any], count_max: int) -> int:
    """Delete at most count_max rows that meet a condition; return how many. The table's key is the column `id`."""
    found = [row[0] for row in sql.rows(f"SELECT id FROM {table} WHERE {condition} LIMIT {count_max}", values)]
    if not found:
        return 0
    return sql.run(f"DELETE FROM {table} WHERE id IN ({', '.join('?' * len(found))})", found)
