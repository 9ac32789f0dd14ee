"""DuckDB runs the stages of `trail`: over committed files, and over rows that came after them."""

from __future__ import annotations

import atexit
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import duckdb

from mqtrail import trail
from mqtrail.trail import Relation, Settings, Stage

from .objects import ObjectPath
from .parquet import empty_rows
from .schemas import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]
_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {"autoinstall_known_extensions": False}
"""DuckDB downloads nothing, whatever it is asked for."""
PARSED_MAX = 512  # statements of which the parsed form is kept: a judgement has up to 200
TEXT_MAX = 32_768  # characters of such a statement
ANSWER_ROWS = 10_000  # rows that a stage with a function handles at once


class Parser(Protocol):
    """What a DuckDB connection has to parse statements."""

    def extract_statements(self, query: str) -> list[duckdb.Statement]: ...


class ParsedStatements:
    """The parsed form of the statements that ran last.

    Judgements of few messages run the same statements over and over, and DuckDB takes a fifth of their time to parse
    them. A parsed statement belongs to no connection: names are looked up when it runs.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._kept: OrderedDict[str, duckdb.Statement] = OrderedDict()

    def parsed(self, connection: Parser, sql: str) -> duckdb.Statement:
        """Parse one statement, unless its parsed form is kept."""
        statement = self._kept.pop(sql, None)
        if statement is None:
            [statement] = connection.extract_statements(sql)
        self._kept[sql] = statement  # now the last one to be dropped
        if len(self._kept) > self._count_max:
            self._kept.popitem(last=False)
        return statement

    def clear(self) -> None:
        """Drop all of them."""
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


_PARSED = ParsedStatements(PARSED_MAX)
atexit.register(_PARSED.clear)  # DuckDB's module would report them as leaked


def connect(threads: int | None = None, memory_limit: str = "") -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB for the SQL of `trail`. threads: default all cores. memory_limit: as in DuckDB.

    It reads and writes objects of an object store if this process has used a path of one before.
    """
    connection = duckdb.connect(":memory:", config=_CONFIG)
    if threads is not None:
        connection.execute(f"SET threads = {int(threads)}")
    if memory_limit:
        connection.execute("SET memory_limit = ?", [memory_limit])
    if ObjectPath.is_used:
        from .duckfiles import ObjectFiles

        connection.register_filesystem(ObjectFiles())
    return connection


def fetch(connection: duckdb.DuckDBPyConnection, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Run SQL and return its rows by column name."""
    cursor = connection.execute(query, list(values))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def define(connection: duckdb.DuckDBPyConnection, stage: Stage, *, table: bool = False, recurs: bool = False) -> int:
    """Make a stage readable by its name: as a temporary view, or as a temporary table. Replaces what has the name.

    Return the number of rows of a table, 0 for a view. A stage with a function becomes a table. recurs: the next
    judgement has the same text, so keep its parsed form; a text that names files does not recur.
    """
    if stage.answer is not None:
        return _define_answers(connection, stage, stage.answer)
    kind, other = ("TABLE", "VIEW") if table else ("VIEW", "TABLE")
    sql = f"CREATE OR REPLACE TEMP {kind} {stage.name} AS {stage.sql}"
    create = _PARSED.parsed(connection, sql) if recurs and len(sql) <= TEXT_MAX else sql
    try:
        return _made(connection, create)
    except duckdb.CatalogException:
        # DuckDB replaces a view only by a view. Its catalog is not asked before: listing the views plans all of them.
        found = f"duckdb_{other.lower()}s() WHERE {other.lower()}_name = ? AND temporary"
        if connection.execute(f"SELECT 1 FROM {found}", [stage.name]).fetchone() is None:
            raise
        connection.execute(f"DROP {other} temp.{stage.name}")
        return _made(connection, create)


def _define_answers(connection: duckdb.DuckDBPyConnection, stage: Stage, answer: Callable[[str, str], int]) -> int:
    """Make a table of a stage with a function. Functions registered with DuckDB would outlive the connection."""
    import pyarrow as pa

    source = f"{stage.name}_found"
    reader: pa.RecordBatchReader = connection.sql(stage.sql).to_arrow_reader(ANSWER_ROWS)
    schema = reader.schema.remove(len(reader.schema) - 1).append(pa.field("answer", pa.int64()))
    parts = []
    for batch in reader:
        *kept, first, second = batch.columns
        texts = zip(first.to_pylist(), second.to_pylist(), strict=True)
        found = [answer(str(one), str(other)) for one, other in texts]
        parts.append(pa.record_batch([*kept, first, pa.array(found, pa.int64())], schema=schema))
    connection.register(source, pa.Table.from_batches(parts, schema))
    try:
        return define(connection, Stage(stage.name, f"SELECT * FROM {source}", (source,)), table=True)
    finally:
        connection.unregister(source)


def _made(connection: duckdb.DuckDBPyConnection, create: str | duckdb.Statement) -> int:
    (count,) = connection.execute(create).fetchone() or (0,)
    return int(count)


def run_stages(connection: duckdb.DuckDBPyConnection, stages: Sequence[Stage], also_read: Iterable[str] = ()) -> None:
    """Define stages in order. Those that are read more than once become tables: DuckDB runs a view for every reader.
    So do those that declare it.

    also_read: names that the caller reads after that, each as often as it does.
    """
    reads = Counter([*also_read, *(name for stage in stages for name in stage.reads)])
    for stage in stages:
        define(connection, stage, table=stage.is_table or reads[stage.name] > 1, recurs=True)


def arrow_rows(relation: Relation, rows: Iterable[Row]) -> pa.Table:
    """Return rows as an Arrow table of the relation. Missing texts become '', missing numbers NULL.

    KeyError: a row has an unknown column.
    """
    import pyarrow as pa

    names = set(relation.names)
    filled = []
    for row in rows:
        if unknown := set(row) - names:
            raise KeyError(f"{relation.name} has no columns {sorted(unknown)}; it has {', '.join(relation.names)}")
        filled.append({c.name: row.get(c.name, "" if c.type == "string" else None) for c in relation})
    return pa.Table.from_pylist(filled, schema=arrow_schema(relation))


def define_compared(connection: duckdb.DuckDBPyConnection, as_of_ms: int, settings: Settings) -> None:
    """Define trail.COMPARED from all rows of `attempts` and `clients`."""
    sent_before, overtaken = empty_rows(trail.SENT_BEFORE), empty_rows(trail.OVERTAKEN)
    if define(connection, Stage("alike_copies", trail.alike_copies_sql("attempts"), ("attempts",)), table=True):
        found = f"({trail.alike_found_sql('alike_copies', settings.duplicate_send_ms)}) AS found"
        sent_before = trail.sent_before_sql(found)
    define(connection, Stage(trail.SENT_BEFORE.name, sent_before, ("alike_copies",)), table=True)
    define(connection, Stage("orders_now", trail.group_orders_sql("clients", as_of_ms), ("clients",)), table=True)
    if has_orders(connection):
        define_overtaken(connection, "attempts", settings)
        overtaken = trail.overtaken_sql("overtaken_found")
    define(connection, Stage(trail.OVERTAKEN.name, overtaken, ("overtaken_found",)), table=True)


def has_orders(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a group of `orders_now` consumes in order. Otherwise no message is overtaken."""
    return is_some(connection, f"SELECT 1 FROM orders_now WHERE consume_order = '{trail.IN_ORDER}'")


def is_some(connection: duckdb.DuckDBPyConnection, rows: str) -> bool:
    """Whether SQL has rows."""
    return connection.execute(f"{rows} LIMIT 1").fetchone() is not None


def define_overtaken(
    connection: duckdb.DuckDBPyConnection, attempts: str, settings: Settings, until_ms: int | None = None
) -> None:
    """Define `overtaken_found` from a relation of attempts, and from `orders_now`: the groups that consume in order."""
    finishes = trail.finishes_sql(attempts, "orders_now", until_ms)
    define(connection, Stage("finishes", finishes, (attempts, "orders_now")), table=True)
    found = trail.overtaken_found_sql("finishes", settings.trace_delay_ms)
    define(connection, Stage("overtaken_found", found, ("finishes",)), table=True)


def judge_rows(
    evidence: Mapping[str, Sequence[Row]],
    as_of_ms: int,
    settings: Settings | None = None,
    connection: duckdb.DuckDBPyConnection | None = None,
) -> duckdb.DuckDBPyConnection:
    """Judge rows of bronze relations (by relation name; absent ones are empty) and return the connection.

    The results are in it as `trajectories`, `verdicts`, `latency_minute`, `key_index`.
    """
    connection = connection or connect()
    for relation in trail.EVIDENCE:
        connection.register(relation.name, arrow_rows(relation, evidence.get(relation.name, ())))
    connection.register(trail.GROUP_FOLDS.name, arrow_rows(trail.GROUP_FOLDS, ()))
    types = {str(row["record_type"]) for row in evidence.get(trail.TRACE_EVENTS.name, ())}
    twins = is_some(connection, f"SELECT 1 FROM ({trail.twins_sql(trail.TRACE_EVENTS.name)}) AS twins")
    attempts = trail.attempts_sql(record_types=types, twins=twins)
    define(connection, Stage("attempts", attempts, ("trace_events", "message_meta")), table=True)
    define(connection, trail.client_records_stage())
    define_compared(connection, as_of_ms, settings or Settings())
    batches = is_some(connection, "SELECT 1 FROM attempts WHERE batch_id <> ''")
    run_stages(connection, trail.judge(as_of_ms, settings, batches=batches))
    return connection
