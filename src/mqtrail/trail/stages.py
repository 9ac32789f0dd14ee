"""Stages: a judgement as named SQL texts in order, each with the relations that it reads.

The SQL is DuckDB's. `lake` runs it in one connection; `pipeline` runs it in shares, which `rounds` plans from what is
declared here. A test compares what each stage declares with what DuckDB finds in its text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """One named relation. Later stages read it by its name."""

    name: str
    sql: str
    reads: tuple[str, ...]
    """Relations that the SQL reads: inputs of the judgement, and earlier stages."""
    gathered: bool = False
    """An aggregate over messages that its readers aggregate again: the rows of every share count, in any split."""
    partition_by: tuple[str, ...] = ()
    """Columns that redistribute its rows: a reader has all rows that agree in these columns in one share."""
