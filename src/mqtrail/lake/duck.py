"""DuckDB as an engine of `trail`: the same texts, over committed files and over rows that came after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from mqtrail import trail
from mqtrail.trail import Relation, Settings, Stage

from .schemas import arrow_schema

Row = Mapping[str, Any]

_SPARKS = (
    # Functions of Spark SQL that the shared texts use and DuckDB calls by other names.
    "CREATE OR REPLACE TEMP MACRO conv(digits, f, t) AS cast(try_cast('0x' || digits AS bigint) AS varchar)",
    "CREATE OR REPLACE TEMP MACRO timestamp_millis(ms) AS make_timestamp(ms * 1000)",
    "CREATE OR REPLACE TEMP MACRO explode(list) AS unnest(list)",
)


def connect(threads: int | None = None, memory_limit: str = "") -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB for the SQL of `trail`. threads: default all cores. memory_limit: as in DuckDB."""

    connection = duckdb.connect(":memory:")
    for macro in _SPARKS:
        connection.execute(macro)
    if threads is not None:
        connection.execute(f"SET threads = {int(threads)}")
    if memory_limit:
        connection.execute("SET memory_limit = ?", [memory_limit])
    return connection


class DuckEngine:
    """Defines stages as temporary views, or as temporary tables if more than one later stage reads them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def define(self, stage: Stage) -> None:
        """See trail.Engine."""
        kind = "TABLE" if stage.reads > 1 else "VIEW"
        for other in ("TABLE", "VIEW"):
            if self.connection.execute(
                "SELECT 1 FROM duckdb_tables() WHERE table_name = ? AND temporary"
                if other == "TABLE"
                else "SELECT 1 FROM duckdb_views() WHERE view_name = ? AND temporary",
                [stage.name],
            ).fetchone():
                self.connection.execute(f"DROP {other} temp.{stage.name}")
        self.connection.execute(f"CREATE TEMP {kind} {stage.name} AS {stage.sql}")


def arrow_rows(relation: Relation, rows: Iterable[Row]) -> pa.Table:
    """Return rows as an Arrow table of the relation. Missing texts become '', missing numbers NULL.

    KeyError: a row has an unknown column.
    """
    names = set(relation.names)
    filled = []
    for row in rows:
        if unknown := set(row) - names:
            raise KeyError(f"{relation.name} has no columns {sorted(unknown)}; it has {', '.join(relation.names)}")
        filled.append({c.name: row.get(c.name, "" if c.type == "string" else None) for c in relation})
    return pa.Table.from_pylist(filled, schema=arrow_schema(relation))


def judge_rows(
    evidence: Mapping[str, Sequence[Row]],
    as_of_ms: int,
    settings: Settings | None = None,
    connection: duckdb.DuckDBPyConnection | None = None,
) -> duckdb.DuckDBPyConnection:
    """Judge rows of bronze relations (by relation name; absent ones are empty) and return the connection.

    The results stand in it as `trajectories`, `verdicts`, `latency_minute`, `key_index`.
    """
    connection = connection or connect()
    for relation in trail.EVIDENCE:
        connection.register(relation.name, arrow_rows(relation, evidence.get(relation.name, ())))
    engine = DuckEngine(connection)
    engine.define(Stage("attempts", trail.attempts_sql()))
    trail.run(engine, trail.judge(as_of_ms, trail.DUCKDB, settings))
    return connection
