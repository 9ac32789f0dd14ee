"""The rows in which a table and its source differ: checksums, then the rows of the parts that differ.

Parts are ranges of the first column of the key if that is a whole number, else buckets by the MD5 of the key. Both
sides compute the same checksum, each in its own engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby, pairwise
from typing import Any, Final

import duckdb

from mqtrail.binlog import SourceTable, TextForm

from .differences import FoundRow
from .kinds import ColumnKind, plain, quoted
from .model import DELETED, GTID, KEY, MSG_ID, OP, ORDER, POSITION, TIME_MS, TableError
from .target import DeltaTarget, in_words

PART_ROWS: Final = 10_000  # rows of a part, about
PARTS_MAX: Final = 4_096
BUCKETS_MAX: Final = 65_536  # parts of a table whose rows are not in ranges
ROWS_READ: Final = 640_000  # rows of buckets that are in memory at once, about
GROUP_MAX: Final = 10_000  # rows with one value of the key's first column, for ranges of it: they are in memory at once
DIFFERENCES_MAX: Final = 100_000  # rows that differ before the comparison ends
_ABOUT: Final = (KEY, ORDER, OP, DELETED, POSITION, GTID, TIME_MS, MSG_ID)

Row = Mapping[str, Any]


class RowComparison:
    """Finds the rows that differ. `found` has them, at most DIFFERENCES_MAX."""

    def __init__(self, source: SourceTable, connection: duckdb.DuckDBPyConnection, target: DeltaTarget) -> None:
        self._source = source
        self._connection = connection
        self._target = target
        self._key = source.table.key
        self.found: list[FoundRow] = []
        self.notes: list[str] = []
        self.source_rows = self.table_rows = self.parts = self.parts_different = 0
        self.is_cut = False
        self._columns = [column.name for column in source.table.columns]
        if target.key_columns and set(target.key_columns) != set(self._key):
            raise TableError(
                f"found the primary key ({', '.join(self._key)}) in the source, expected "
                f"({', '.join(target.key_columns)}), by which the table was merged: build a new table from a new "
                "snapshot: `mqtrail binlog run` with a new --state and a new topic"
            )

    def run(self, say: Callable[[str], None]) -> None:
        """Compare."""
        [(self.table_rows,)] = self._ask(f"SELECT count(*) FROM t WHERE NOT {DELETED}")
        kinds = self._target.kinds
        if absent := [name for name in self._columns if name not in kinds]:
            self.notes.append(
                f"the table has no column {', '.join(absent)}: all its values are NULL; pass --exclude-column for "
                "columns that `binlog run` leaves out"
            )
        inexact = [
            name for name in self._columns if kinds.get(name) is ColumnKind.DOUBLE or name in self._source.inexact
        ]
        if inexact:
            self.notes.append(f"no checksum has {', '.join(inexact)}, numbers with fractions: all rows were compared")
        is_range = self._source.has_ranges and kinds.get(self._key[0]) is ColumnKind.LONG and self._has_small_groups()
        (self._by_range if is_range else self._by_bucket)(say, has_checksums=not inexact)

    def _has_small_groups(self) -> bool:
        """Return whether few enough rows of the table have one value of the key's first column."""
        if len(self._key) == 1:
            return True
        groups = f"SELECT count(*) AS rows FROM t WHERE NOT {DELETED} GROUP BY {quoted(self._key[0])}"
        [(largest,)] = self._ask(f"SELECT max(rows) FROM ({groups})")
        return (largest or 0) <= GROUP_MAX

    def _by_range(self, say: Callable[[str], None], *, has_checksums: bool) -> None:
        self.source_rows, low, high = self._source.bounds()
        name = quoted(self._key[0])
        [(first, last)] = self._ask(f"SELECT min({name}), max({name}) FROM t WHERE NOT {DELETED}")
        if first is not None:
            low, high = (min(low, first), max(high, last)) if self.source_rows else (first, last)
        size = max(-(-(high - low + 1) // self._parts(PARTS_MAX)), 1)
        edges = [*range(low, high + 1, size), high + 1]
        self.parts = len(edges) - 1
        bucket = f"(({name}::HUGEINT - ({low})) // {size})::BIGINT"
        own = self._checksums(bucket) if has_checksums else {}
        for part, (start, end) in enumerate(pairwise(edges)):
            if has_checksums and own.get(part, (0, 0)) == self._source.range_checksum(start, end):
                continue
            self.parts_different += has_checksums
            where = f"{name} >= {start} AND {name} < {end}"
            self._rows(self._source.range_rows(start, end), where)
            say(f"compared {part + 1} of {self.parts} parts")
            if self.is_cut:
                return

    def _by_bucket(self, say: Callable[[str], None], *, has_checksums: bool) -> None:
        self.source_rows = self._source.count()
        buckets = self.parts = self._parts(BUCKETS_MAX)
        at_once = max(ROWS_READ * buckets // max(self.source_rows, self.table_rows, 1), 1)
        text = _number(self._row_text(self._key), 8)
        bucket = f"({text} % {buckets})::BIGINT"
        different = list(range(buckets))
        if has_checksums:
            own, theirs = self._checksums(bucket), self._source.bucket_checksums(buckets)
            different = [one for one in different if own.get(one, (0, 0)) != theirs.get(one, (0, 0))]
            self.parts_different = len(different)
        for at in range(0, len(different), at_once):
            chosen = different[at : at + at_once]
            where = f"{bucket} IN ({', '.join(map(str, chosen))})"
            has = {row[KEY]: row for row in self._table_rows(where, "")}
            self._match(self._source.bucket_rows(chosen, buckets), has)
            say(f"compared {min(at + at_once, len(different))} of {len(different)} parts")
            if self.is_cut:
                return

    def _parts(self, parts_max: int) -> int:
        return min(max(max(self.source_rows, self.table_rows) // PART_ROWS, 1), parts_max)

    def _checksums(self, bucket: str) -> dict[int, tuple[int, int]]:
        """Return the checksum of each part of the table that has rows."""
        text = _number(self._row_text(self._columns), 16)
        found = self._ask(f"SELECT {bucket} AS part, count(*), bit_xor({text}) FROM t WHERE NOT {DELETED} GROUP BY 1")
        return {part: (count, number) for part, count, number in found}

    def _row_text(self, names: Sequence[str]) -> str:
        return " || ".join(_text(name, self._target.kinds.get(name), self._source.form(name)) for name in names)

    def _rows(self, theirs: Generator[Row], where: str) -> None:
        """Compare the rows of a range, which both sides give by the first column of the key."""
        first = self._key[0]
        own = _Grouped(self._table_rows(where, f"ORDER BY {quoted(first)}"), first)
        with closing(theirs):
            for value, group in groupby(theirs, lambda row: row[first]):
                for before in own.below(value):
                    self._match((), before)
                self._match(group, own.of(value))
                if self.is_cut:
                    return
        for rest in own.below(None):
            self._match((), rest)

    def _match(self, theirs: Iterable[Row], own: dict[str, Row]) -> None:
        """Compare rows of the source with those of the table, by key: values, or their texts, as checksums do."""
        inexact = self._source.inexact
        for row in theirs:
            key = self._source.key_text(row)
            has = own.pop(key, None)
            if has is None:
                self._note(FoundRow(key, {}, True, False))
                continue
            columns = {}
            for name in self._columns:
                expected, found = plain(self._target.kinds.get(name), row[name]), has.get(name)
                if found != expected and (name in inexact or not _is_same(self._source.form(name), expected, found)):
                    columns[name] = (expected, found)
            if columns:
                self._note(FoundRow(key, columns, True, True))
        for key in own:
            self._note(FoundRow(key, {}, False, True))

    def _note(self, found: FoundRow) -> None:
        if len(self.found) >= DIFFERENCES_MAX:
            self.is_cut = True
            return
        self.found.append(found)

    def _table_rows(self, where: str, order: str) -> Iterator[Row]:
        names = [KEY, *(name for name in self._columns if name in self._target.kinds)]
        listed = ", ".join(map(quoted, names))
        with in_words(self._target.path), closing(self._connection.cursor()) as cursor:
            cursor.execute(f"SELECT {listed} FROM t WHERE NOT {DELETED} AND {where} {order}")
            while chunk := cursor.fetchmany(PART_ROWS):
                for row in chunk:
                    yield dict(zip(names, row, strict=True))

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        with in_words(self._target.path):
            return self._connection.execute(statement).fetchall()

    def about(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what the table has of keys beside the source's columns; of deleted rows too."""
        listed = ", ".join(_ABOUT)
        asked = f"SELECT {listed} FROM t WHERE {KEY} IN (SELECT unnest(?))"
        with in_words(self._target.path):
            found = self._connection.execute(asked, [list(keys)]).fetchall()
        return {row[0]: dict(zip(_ABOUT, row, strict=True)) for row in found}


class _Grouped:
    """Rows by the first column of the key, in its order."""

    def __init__(self, rows: Iterator[Row], first: str) -> None:
        self._groups = groupby(rows, lambda row: row[first])
        self._next: tuple[Any, dict[str, Row]] | None = None
        self._step()

    def _step(self) -> None:
        found = next(self._groups, None)
        self._next = None if found is None else (found[0], {row[KEY]: row for row in found[1]})

    def below(self, value: Any) -> Iterator[dict[str, Row]]:
        """Yield the groups below a value; None: all."""
        while self._next is not None and (value is None or self._next[0] < value):
            yield self._next[1]
            self._step()

    def of(self, value: Any) -> dict[str, Row]:
        """Return the group of a value."""
        if self._next is None or self._next[0] != value:
            return {}
        rows = self._next[1]
        self._step()
        return rows


# -- the table's side of checksums; binlog/compared.py has the source's -------------------------------------------


def _text(name: str, kind: ColumnKind | None, form: TextForm) -> str:
    if kind is None:
        return "'N'" if form is TextForm.LENGTH else "'N|'"
    value = f"array_to_string({quoted(name)}, ',')" if kind is ColumnKind.LIST else f"{quoted(name)}::VARCHAR"
    if form is TextForm.LENGTH:
        return f"coalesce(length({value}) || ':' || {value}, 'N')"
    if form is TextForm.MOMENT:
        value = f"replace(rtrim({value}, 'Z'), 'T', ' ')"
    return f"coalesce({value}, 'N') || '|'"


def _is_same(form: TextForm, expected: Any, found: Any) -> bool:
    """Return whether two values have the same text in checksums. The column's type in the source may have changed."""
    if expected is None or found is None:
        return expected is found
    texts = [",".join(one) if isinstance(one, list) else str(one) for one in (expected, found)]
    if form is TextForm.MOMENT:
        texts = [text.rstrip("Z").replace("T", " ") for text in texts]
    return texts[0] == texts[1]


def _number(text: str, digits: int) -> str:
    return f"('0x' || left(md5({text}), {digits}))::UBIGINT"
