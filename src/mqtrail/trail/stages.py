"""Stages: a judgement as named SQL texts in order, each with the relations that it reads.

The SQL is for DuckDB. `lake` runs it in one connection; `pipeline` runs it in shares, which `rounds` plans from these
declarations. A test compares the declared relations with those that DuckDB finds in the SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """One named relation. Later stages read it by its name."""

    name: str
    sql: str
    reads: tuple[str, ...]
    """Relations that the SQL reads: inputs of the judgement, and earlier stages."""
    gathered: bool = False
    """The rows are aggregates of messages that readers aggregate again, so each share can compute its own rows."""
    partition_by: tuple[str, ...] = ()
    """Columns by which its rows are redistributed: rows with equal values are in the same share of a reader."""
    is_table: bool = False
    """Make a table of it also for a single reader, whose many joins would need much memory at once with its own."""
    answer: Callable[[str, str], int] | None = None
    """A function of the last two columns, both texts. The engine puts a column `answer` in the place of the last."""
