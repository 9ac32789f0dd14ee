"""A source table for comparisons: checksums that another engine can compute, rows, and changes since a place.

A row's text is that of its values in messages: of text its length and itself, of all else itself and a bar; a moment as
MariaDB shows it; N for NULL. For example `42|3:bobN2026-01-01 12:00:00|`. A checksum of rows is their number and the
XOR of 64 bits of the MD5 of each text. MariaDB computes it, so the rows need not be sent.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from .messages import key_text
from .model import BinlogError, BinlogPlace, NothingNew, Row, RowChange, SchemaChange, order_text
from .rows import Values
from .source import (
    BinlogSource,
    ReadColumn,
    ReadTable,
    Snapshot,
    SourceConfig,
    TableFilter,
    quoted,
    selected,
)
from .stream import BinlogStream

COMPARE_SILENCE_S: Final = 3_600  # of a statement that computes checksums
FILE_START: Final = 4  # position of the first event of each file of a binlog
_NUMBERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "decimal"})
_WHOLE: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXTS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"})
_INEXACT: Final = frozenset({"float", "double"})  # their texts are those of each engine


class TextForm(Enum):
    """How a column's value is in the text of a row."""

    LENGTH = "length:value"
    BAR = "value|"
    MOMENT = "value|, with a blank instead of T, and without Z"


Checksum = tuple[int, int]
"""Number of rows, and the XOR of their checksums."""


class SourceTable:
    """One table in a snapshot. columns: without those that are left out."""

    def __init__(self, snapshot: Snapshot, table: ReadTable) -> None:
        self._snapshot = snapshot
        self.table = table
        self.place = snapshot.place
        self._from = f"{quoted(table.database)}.{quoted(table.table)}"
        self._first = quoted(table.key[0])

    @classmethod
    @contextmanager
    def opened(cls, source: BinlogSource, name: str, left_out: Sequence[str]) -> Generator[SourceTable]:
        """Yield a table as it is now. left_out: columns. BinlogError: it is not there, or cannot be compared."""
        chosen = TableFilter((_escaped(name),), (), tuple(f"{name}.{column}" for column in left_out))
        with source.snapshot(COMPARE_SILENCE_S) as snapshot:
            found = snapshot.tables(chosen)
            if not found:
                raise BinlogError(
                    f"found no table {name} at {source.config.shown}, expected that of the Delta table: check the "
                    "server and the user's right GRANT SELECT"
                )
            yield cls(snapshot, found[0])

    @property
    def has_ranges(self) -> bool:
        """Whether rows can be chosen by ranges of a whole number, the first column of the key."""
        return self._kind(self.table.key[0]) in _WHOLE

    @property
    def inexact(self) -> tuple[str, ...]:
        """Columns that no checksum can have."""
        return tuple(column.name for column in self.table.columns if column.kind in _INEXACT)

    def form(self, name: str) -> TextForm:
        """Return how the values of a column are in the text of a row."""
        return _form(self._kind(name))

    def _kind(self, name: str) -> str:
        return next(column.kind for column in self.table.columns if column.name == name)

    def bounds(self) -> tuple[int, int, int]:
        """Return number of rows, lowest and highest first column of the key; has_ranges."""
        asked = f"SELECT COUNT(*), MIN({self._first}), MAX({self._first}) FROM {self._from}"
        [(count, low, high)] = self._ask(asked)
        return int(count), int(low or 0), int(high or 0)

    def count(self) -> int:
        """Return the number of rows."""
        [(count,)] = self._ask(f"SELECT COUNT(*) FROM {self._from}")
        return int(count)

    def range_checksum(self, first: int, end: int) -> Checksum:
        """Return the checksum of the rows with first <= key < end."""
        [(count, found)] = self._ask(f"SELECT {self._checksum()} FROM {self._from} WHERE {self._within(first, end)}")
        return int(count), int(found)

    def bucket_checksums(self, buckets: int) -> dict[int, Checksum]:
        """Return the checksum of each bucket of keys that has rows."""
        asked = f"SELECT {self._bucket(buckets)}, {self._checksum()} FROM {self._from} GROUP BY 1"
        return {int(bucket): (int(count), int(found)) for bucket, count, found in self._ask(asked)}

    def range_rows(self, first: int, end: int) -> Generator[Values]:
        """Yield the rows with first <= key < end, by key."""
        return self._rows(self._within(first, end))

    def bucket_rows(self, chosen: Sequence[int], buckets: int) -> Generator[Values]:
        """Yield the rows of some buckets."""
        return self._rows(f"{self._bucket(buckets)} IN ({', '.join(map(str, chosen))})")

    def key_text(self, row: Row) -> str:
        """Return the key of a row's messages."""
        return key_text(self.table.name, row, self.table.key)

    def _rows(self, where: str) -> Generator[Values]:
        with closing(self._snapshot.chunks(self.table, where)) as chunks:
            for chunk in chunks:
                yield from chunk

    def _ask(self, statement: str) -> list[tuple[str, ...]]:
        return self._snapshot.ask(statement, f"comparing {self.table.name}")

    def _within(self, first: int, end: int) -> str:
        return f"{self._first} >= {first} AND {self._first} < {end}"

    def _checksum(self) -> str:
        text = _row_text([column for column in self.table.columns if column.kind not in _INEXACT])
        return f"COUNT(*), BIT_XOR({_number(text, 16)})"

    def _bucket(self, buckets: int) -> str:
        by_name = {column.name: column for column in self.table.columns}
        return f"{_number(_row_text([by_name[name] for name in self.table.key]), 8)} MOD {buckets}"


def _escaped(name: str) -> str:
    """Return a pattern that only this name matches."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def _number(text: str, digits: int) -> str:
    return f"CAST(CONV(LEFT(MD5({text}), {digits}), 16, 10) AS UNSIGNED)"


def _row_text(columns: Sequence[ReadColumn]) -> str:
    return f"CONCAT({', '.join(map(_text, columns))})"


def _form(kind: str) -> TextForm:
    if kind in _TEXTS:
        return TextForm.LENGTH
    return TextForm.MOMENT if kind in ("datetime", "timestamp") else TextForm.BAR


def _text(column: ReadColumn) -> str:
    """Return the text of a value. What MariaDB turns into text by itself is left to it: that is faster."""
    name = quoted(column.name)
    if column.kind in _TEXTS:
        return f"IFNULL(CONCAT(CHAR_LENGTH({name}), ':', CONVERT({name} USING utf8mb4)), 'N')"
    value = f"REPLACE(TO_BASE64({selected(column)}), '\\n', '')"
    if column.kind in _NUMBERS:
        value = f"{name} + 0"  # without the zeros of ZEROFILL
    elif column.kind in ("date", "time", "datetime", "timestamp"):
        value = name
    return f"IFNULL({value}, 'N'), '|'"


@dataclass(slots=True)
class ChangesSince:
    """Changes of a table between two places. keys: of each changed row the order and time of its first change.

    statement: order of the last statement that changed the table itself; "": none.
    problem: why these are not all of them; "": they are.
    """

    keys: dict[str, tuple[str, int]] = field(default_factory=dict)
    statement: str = ""
    problem: str = ""

    def note(self, key: str, order: str, time_ms: int) -> None:
        """Note a change."""
        self.keys.setdefault(key, (order, time_ms))


def changes_since(
    config: SourceConfig, name: str, start: BinlogPlace, until: BinlogPlace, count_max: int, after: str = ""
) -> ChangesSince:
    """Return the changes of a table from one place on and before another place. SourceAway, BinlogError.

    start: begin of a transaction, or FILE_START of a file. after: changes up to this order are left out.
    """
    found = ChangesSince()
    if start.order >= until.order:
        return found
    source = BinlogSource(config)
    stream = BinlogStream(config, start, TableFilter((_escaped(name),), (), ()), source.charsets())
    count = 0
    with closing(stream):
        for item in stream.items():
            if isinstance(item, NothingNew) or item.place.order >= until.order:
                break
            if isinstance(item, SchemaChange):
                if order_text(item.place, 0) > after:
                    found.statement = order_text(item.place, 0)
            elif isinstance(item, RowChange):
                keys = [key_text(name, row, item.key) for row in (item.before, item.after) if row is not None]
                for part, key in enumerate(dict.fromkeys(keys)):
                    order = order_text(item.place, item.row, part)
                    if order <= after:
                        continue
                    count += not part
                    found.note(key, order, item.time_ms)
                if count > count_max:
                    found.problem = f"the binlog has more than {count_max} changes of {name} after {start}"
                    break
    return found
