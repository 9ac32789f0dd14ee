"""Types of columns: those of the values in JSON, and how a column gets a wider one.

    whole number       long      BIGINT
    above 2^63 - 1     decimal   DECIMAL(20, 0)
    number             double    DOUBLE
    text               string    STRING
    list               list      ARRAY<STRING>

A column appears with its first value. It is widened, never narrowed, and only where each value stays exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from .model import EXACT_DOUBLE, META, OWN_PREFIX, TableError

DECIMAL_END: Final = 10**20  # a DECIMAL(20, 0) is below
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=.`\"'\\")


def quoted(name: str) -> str:
    """Return a column's name for SQL. No column of a table has a quote in its name."""
    return f'"{name}"'


class ColumnKind(StrEnum):
    """The type of a column."""

    LONG = "long"
    DECIMAL = "decimal"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"

    @property
    def arrow(self) -> pa.DataType:
        """Its type in Arrow."""
        return _ARROW[self]


_ARROW: Final[Mapping[ColumnKind, pa.DataType]] = {
    ColumnKind.LONG: pa.int64(),
    ColumnKind.DECIMAL: pa.decimal128(20, 0),
    ColumnKind.DOUBLE: pa.float64(),
    ColumnKind.STRING: pa.string(),
    ColumnKind.LIST: pa.list_(pa.string()),
}
_WIDER: Final = {
    frozenset({ColumnKind.LONG, ColumnKind.DECIMAL}): ColumnKind.DECIMAL,
    frozenset({ColumnKind.LONG, ColumnKind.DOUBLE}): ColumnKind.DOUBLE,
    frozenset({ColumnKind.LONG, ColumnKind.STRING}): ColumnKind.STRING,
    frozenset({ColumnKind.DECIMAL, ColumnKind.STRING}): ColumnKind.STRING,
}


def kind_of(value: Any) -> ColumnKind | None:
    """Return the type of a value of a message; None: of null. TableError."""
    if value is None:
        return None
    if isinstance(value, str):
        return ColumnKind.STRING
    if isinstance(value, bool):
        raise TableError("found a boolean, expected a value of `mqtrail binlog run`")
    if isinstance(value, int):
        if not -DECIMAL_END < value < DECIMAL_END:
            raise TableError("found a whole number of more than 20 digits, expected a value of `mqtrail binlog run`")
        return ColumnKind.LONG if -(2**63) <= value < 2**63 else ColumnKind.DECIMAL
    if isinstance(value, float):
        return ColumnKind.DOUBLE
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ColumnKind.LIST
    raise TableError(f"found {type(value).__name__}, expected a value of `mqtrail binlog run`")


def wider(first: ColumnKind, second: ColumnKind) -> ColumnKind | None:
    """Return the type that has the values of both, or None."""
    return first if first is second else _WIDER.get(frozenset({first, second}))


def kinds_of(schema: pa.Schema) -> dict[str, ColumnKind]:
    """Return the types of a table's own columns. TableError: another program made one."""
    by_arrow = {kind.arrow: kind for kind in ColumnKind}
    found = {}
    for one in schema:
        if one.name in META:
            continue
        kind = next((kind for arrow, kind in by_arrow.items() if arrow == one.type or _is_list(arrow, one.type)), None)
        if kind is None:
            raise TableError(
                f"found the column {one.name} of type {one.type}, expected {', '.join(map(str, by_arrow))}: this table "
                "was made or altered by another program; pass another --table"
            )
        found[one.name] = kind
    return found


def _is_list(expected: pa.DataType, found: pa.DataType) -> bool:
    return pa.types.is_list(expected) and pa.types.is_list(found) and found.value_type == pa.string()


def fitting(kinds: Mapping[str, ColumnKind], rows: Iterable[Mapping[str, Any]], source: str) -> dict[str, ColumnKind]:
    """Return the types that a table with these columns needs for further rows. TableError: there is none."""
    needed = dict(kinds)
    for row in rows:
        for name, value in row.items():
            try:
                found = kind_of(value)
            except TableError as error:
                raise TableError(f"column {name} of {source}: {error}") from None
            if found is None or needed.get(name) is found:
                continue
            before = needed.get(name)
            if before is None:
                _check_name(name, source)
                needed[name] = found
                continue
            if found is ColumnKind.LONG and before is ColumnKind.DOUBLE and abs(value) > EXACT_DOUBLE:
                raise _no_wider(name, source, before, f"{value}, which no double has exactly")
            both = wider(before, found)
            if both is None:
                raise _no_wider(name, source, before, f"{found} ({str(value)[:60]!r})")
            needed[name] = both
    return needed


def _no_wider(name: str, source: str, before: ColumnKind, found: str) -> TableError:
    return TableError(
        f"found {found} in the column {name} of {source}, expected {before}: its type changed to one that cannot be "
        "merged with the values before. Earlier batches are merged, and nothing is lost. Build a new table from a new "
        "snapshot: `mqtrail binlog run` with a new --state and a new topic, then this command with another --table"
    )


def _check_name(name: str, source: str) -> None:
    if name.startswith(OWN_PREFIX) or not _FORBIDDEN.isdisjoint(name) or not name:
        raise TableError(
            f"found the column {name!r} of {source}, expected a name without blanks and without any of , ; {{ }} ( ) = "
            f". ` \" ' \\, that does not begin with {OWN_PREFIX}: leave it out: `mqtrail binlog run --exclude-column "
            f"{source}.{name}`, or rename it"
        )


def plain(kind: ColumnKind | None, value: Any) -> Any:
    """Return a value of a message as a column of that type gives it back; None: there is no such column."""
    return value if kind is None else _as(kind, value)


def array_of(kind: ColumnKind, values: Iterable[Any]) -> pa.Array[Any]:
    """Return values of messages as a column."""
    return pa.array([_as(kind, value) for value in values], type=kind.arrow)


def _as(kind: ColumnKind, value: Any) -> Any:
    if value is None or isinstance(value, str | list):
        return value
    if kind is ColumnKind.STRING:
        return str(value)
    if kind is ColumnKind.DECIMAL:
        return Decimal(value)
    return float(value) if kind is ColumnKind.DOUBLE else value
