"""Relations as data: a name, its columns in order, each with type and meaning.

Four types are enough, so that Spark, DuckDB and Arrow agree without casts. Texts are never NULL ('' says none: a
NULL key never equals itself in a merge); numbers and booleans are NULL when the record does not carry them.
Times are milliseconds since the epoch (UTC) and end in `_ms`; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

ColumnType = Literal["string", "bigint", "boolean", "events"]
Fold = Literal["key", "min", "max"]
"""How two rows of one key merge. Every fold is commutative, associative and idempotent: replays are harmless."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `fold` matters only in relations that are merged on read (silver attempts)."""

    name: str
    type: ColumnType
    doc: str
    fold: Fold = "max"


@dataclass(frozen=True, slots=True)
class Relation:
    """A named list of columns: what a table or a named input of the SQL texts looks like."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        assert len(names) == len(set(names)), f"{self.name}: a column stands twice"

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns that make the merge key."""
        return tuple(column.name for column in self.columns if column.fold == "key")

    def typed(self, expressions: Mapping[str, str] | None = None) -> str:
        """SQL: every column in order, cast to its type; from `expressions` by name, else from a column of its name."""
        found = expressions or {}
        return ", ".join(
            f"{found.get(c.name, c.name)} AS {c.name}"
            if c.type == "events"
            else f"cast({found.get(c.name, c.name)} AS {c.type}) AS {c.name}"
            for c in self
        )

    def column(self, name: str) -> Column:
        """The column called `name`; KeyError names the relation."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name!r}")


def text(name: str, doc: str, fold: Fold = "max") -> Column:
    """A text column: never NULL, '' is none."""
    return Column(name, "string", doc, fold)


def number(name: str, doc: str, fold: Fold = "max") -> Column:
    """A 64-bit integer column: NULL is absent."""
    return Column(name, "bigint", doc, fold)


def flag(name: str, doc: str) -> Column:
    """A boolean column: NULL is absent."""
    return Column(name, "boolean", doc)
