"""What a binlog says: places in it, tables, changes of rows, and the ends of transactions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from mqtrail.wire import MQError

Value = int | float | str | list[str] | None
"""A column's value as JSON has it (docs/how-to/binlog.md)."""
Row = Mapping[str, Value]

SYSTEM_DATABASES: Final = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


class BinlogError(MQError):
    """The source, its binlog, the state or the topic is not what is needed. A retry would not change it."""


class SourceAway(MQError):
    """The database server does not answer, or closed the connection. A retry may succeed."""


class BinlogPlace(NamedTuple):
    """A place in the binlog: bytes from the start of a file. Places of one server have an order."""

    file: str
    position: int

    @property
    def order(self) -> tuple[int, int]:
        """Comparable with that of other places: 1 000 000 follows 999 999 also in names of files."""
        digits = re.search(r"\d+$", self.file)
        return int(digits[0]) if digits else 0, self.position

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


def order_text(place: BinlogPlace, row: int, part: int = 0) -> str:
    """Return the order of a change as text of a fixed length: as texts compare, so do changes of one server.

    row: number of the row in the event at place. part: 1 for the insert of a changed key, whose delete is part 0.
    """
    file, position = place.order
    return f"{file:010}.{position:012}.{row:08}.{part}"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table map. kind: type number of the binlog. meta: its metadata. charset: id of the collation."""

    name: str
    kind: int
    meta: int = 0
    is_unsigned: bool = False
    charset: int = 0
    members: tuple[bytes, ...] = ()  # of ENUM and SET, in their character set


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table at the time of its changes. key: names of the columns of the primary key."""

    table_id: int
    database: str
    table: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]

    @property
    def name(self) -> str:
        """database.table."""
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    """A transaction begins at place. ends_itself: one statement, without a commit."""

    place: BinlogPlace
    gtid: str
    time_ms: int
    ends_itself: bool = False


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row of an event at place. before: None for an insert. after: None for a delete. size: bytes, about."""

    database: str
    table: str
    key: tuple[str, ...]
    before: Row | None
    after: Row | None
    place: BinlogPlace
    row: int
    time_ms: int
    size: int = 0

    @property
    def name(self) -> str:
        """database.table."""
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A statement that changes tables or databases. names: database.table of the tables, or databases, it names."""

    kind: str
    names: tuple[str, ...]
    statement: str
    database: str
    place: BinlogPlace
    time_ms: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """A transaction ends; the next one begins at place."""

    place: BinlogPlace


@dataclass(frozen=True, slots=True)
class NothingNew:
    """The server has sent all that it has. place: the end."""

    place: BinlogPlace


BinlogItem = TransactionBegin | RowChange | SchemaChange | TransactionEnd | NothingNew
