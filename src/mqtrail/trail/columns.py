"""Relations as data: a name and the columns in order, each with type and meaning.

There are four types, which Spark, DuckDB and Arrow share. Texts are never NULL: '' means none, because a NULL key would
not equal itself in a merge. Numbers and booleans are NULL if the record does not have them.
Times are milliseconds since the epoch (UTC) and end in `_ms`; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

ColumnType = Literal["string", "bigint", "boolean", "events"]
Fold = Literal["key", "min", "max"]
"""How two rows of one key are merged. All folds are commutative, associative and idempotent: replays change nothing."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `fold` is used only in relations that are merged on read (silver attempts)."""

    name: str
    type: ColumnType
    doc: str
    fold: Fold = "max"


@dataclass(frozen=True, slots=True)
class Relation:
    """A named list of columns: a table, or an input of the SQL texts."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The column names, in order."""

    def __post_init__(self) -> None:
        names = tuple(column.name for column in self.columns)
        assert len(names) == len(set(names)), f"{self.name}: two columns have one name"
        object.__setattr__(self, "names", names)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns of the merge key."""
        return tuple(column.name for column in self.columns if column.fold == "key")

    def typed(self, expressions: Mapping[str, str] | None = None) -> str:
        """SQL: every column in order, cast to its type. expressions: column name → SQL; default: the column itself."""
        found = expressions or {}
        return ", ".join(
            f"{found.get(c.name, c.name)} AS {c.name}"
            if c.type == "events"
            else f"cast({found.get(c.name, c.name)} AS {c.type}) AS {c.name}"
            for c in self
        )

    def column(self, name: str) -> Column:
        """Return the column `name`. KeyError: there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name!r}")


def text(name: str, doc: str, fold: Fold = "max") -> Column:
    """A text column; never NULL, '' means none."""
    return Column(name, "string", doc, fold)


def number(name: str, doc: str, fold: Fold = "max") -> Column:
    """A 64-bit integer column; NULL means absent."""
    return Column(name, "bigint", doc, fold)


def flag(name: str, doc: str) -> Column:
    """A boolean column; NULL means absent."""
    return Column(name, "boolean", doc)
