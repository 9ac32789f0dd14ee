"""The stages of the pipeline for any DataFrames: DataFrame in, DataFrame out.

    messages = spark.readStream.format("rocketmq").schema(TRACE_SCHEMA)….load()
    rows = attempts(decoded(messages, "my-cluster"))        # streams and batches; no state
    verdicts(spark.read.parquet(…rows…), as_of_ms)          # batches only

Each stage runs the SQL that the job runs, with DuckDB in Spark's tasks. The columns are those of the lake's tables:
docs/design/lake.md describes them. These stages use only the trace: without stored messages and samples of the cluster
(`mqtrail pipeline`), a verdict that needs them is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from mqtrail import trail
from mqtrail.lake import TABLES, DecodedTrace, arrow_rows, arrow_schema, connect, run_stages
from mqtrail.trail import Relation, Settings

from .columns import COLUMNS, TRACE_COLUMNS
from .pulling import chunks

if TYPE_CHECKING:
    import duckdb

Batches = Iterator[pa.RecordBatch]

TRACE_SCHEMA = ", ".join(f"{column.name} {column.type}" for column in COLUMNS if column.name in TRACE_COLUMNS)
"""Columns of the source that `decoded` and `rejected` need; a DataFrame can have others too."""
REST_ROWS_MAX = 2_000  # rows that are made one by one and returned at once
_OF_MESSAGE = ("cluster", "broker_name", "trace_topic", "queue_id", "queue_offset")
TASK_MEMORY = "1GB"  # of DuckDB in one task; what needs more goes to files


def decoded(messages: DataFrame, cluster: str) -> DataFrame:
    """Return the records of trace messages: the columns of `trace_events`. messages: from a trace topic.

    cluster: its name in the rows. Rows of the source about lost ranges have no records.
    """
    return _mapped(messages, trail.TRACE_EVENTS, partial(_decoded, cluster=cluster, wanted=trail.TRACE_EVENTS.name))


def rejected(messages: DataFrame, cluster: str) -> DataFrame:
    """Return the records that `decoded` leaves out because they cannot be read: the columns of `trace_rejects`."""
    return _mapped(messages, trail.TRACE_REJECTS, partial(_decoded, cluster=cluster, wanted=trail.TRACE_REJECTS.name))


def attempts(events: DataFrame) -> DataFrame:
    """Return the attempts that records show: the columns of `attempts`. events: rows of `decoded`.

    The rows are partial: rows of one key merge, by the fold of each column, whenever they are judged. The records of
    one trace message must follow each other in one partition, as `decoded` returns them.
    """
    return _mapped(events, trail.ATTEMPTS, _attempts)


def trajectories(rows: DataFrame, as_of_ms: int, settings: Settings | None = None) -> DataFrame:
    """Return the path of each message as of an instant: the columns of `trajectories`. rows: of `attempts`, no stream.

    as_of_ms: epoch ms. One task judges all rows together, because facts about a group apply to all of its messages.
    """
    judge = partial(_judged, wanted=trail.TRAJECTORIES.name, as_of_ms=as_of_ms, settings=settings)
    return _mapped(rows.coalesce(1), trail.TRAJECTORIES, judge)


def verdicts(rows: DataFrame, as_of_ms: int, settings: Settings | None = None) -> DataFrame:
    """Return the verdict of each message in each group as of an instant: the columns of `verdicts`.

    rows and the task: as for `trajectories`.
    """
    judge = partial(_judged, wanted=trail.VERDICTS.name, as_of_ms=as_of_ms, settings=settings)
    return _mapped(rows.coalesce(1), trail.VERDICTS, judge)


def _mapped(rows: DataFrame, relation: Relation, make: Callable[[Batches], Batches]) -> DataFrame:
    return rows.mapInArrow(make, _schema(relation))


def _schema(relation: Relation) -> str:
    """The columns of a relation as Spark's DDL."""
    event = ", ".join(f"{field.name}: {field.type}" for field in trail.EVENT_FIELDS)
    types = {"events": f"array<struct<{event}>>"}
    return ", ".join(f"{column.name} {types.get(column.type, column.type)}" for column in relation)


# -- in the tasks ------------------------------------------------------------------------------------------------------


def _decoded(batches: Batches, cluster: str, wanted: str) -> Batches:
    duck = connect(threads=1, memory_limit=TASK_MEMORY)
    for chunk in chunks(batch.select(list(TRACE_COLUMNS)) for batch in batches):
        messages = chunk.filter(pc.is_null(chunk["lost_until"]))
        found = DecodedTrace(duck, messages, cluster)
        if wanted == trail.TRACE_EVENTS.name:
            yield from _rows(duck, found.events_sql, trail.TRACE_EVENTS)
        rest = (row for relation, row in found.rest() if relation.name == wanted)
        while some := list(islice(rest, REST_ROWS_MAX)):
            yield from arrow_rows(TABLES[wanted].relation, some).to_batches()
        found.close()


def _attempts(batches: Batches) -> Batches:
    duck = connect(threads=1, memory_limit=TASK_MEMORY)
    duck.register("message_meta", arrow_schema(trail.MESSAGE_META).empty_table())
    for chunk in whole_messages(chunks(batches)):
        duck.register("trace_events", chunk)
        types = [str(each) for each in chunk["record_type"].unique().to_pylist()]
        sql = trail.folded_attempts_sql("trace_events", "message_meta", types, messages=False)
        yield from _rows(duck, sql, trail.ATTEMPTS)


def whole_messages(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of trace_events divided again, so that all rows of a trace message are in one table."""
    held: pa.Table | None = None
    for table in tables:
        rows = table if held is None else pa.concat_tables([held, table])
        if not len(rows):
            continue
        of_last = reduce(pc.and_, (pc.equal(rows[name], rows[name][-1]) for name in _OF_MESSAGE))
        before_last = pc.index(pc.invert(of_last)[::-1], True).as_py()  # from the end; -1: all rows are of one message
        begin = len(rows) - before_last if before_last >= 0 else 0
        if begin:
            yield rows[:begin]
        held = rows[begin:]
    if held is not None:
        yield held


def _judged(batches: Batches, wanted: str, as_of_ms: int, settings: Settings | None) -> Batches:
    duck = connect(threads=1, memory_limit=TASK_MEMORY)
    for relation in (*trail.EVIDENCE, trail.CLIENT_RECORDS, trail.GROUP_FOLDS, *trail.COMPARED):
        duck.register(relation.name, arrow_schema(relation).empty_table())
    duck.execute(f"CREATE TEMP TABLE attempts AS {trail.attempts_sql()}")
    for batch in batches:
        duck.register("more_attempts", pa.Table.from_batches([batch]))
        duck.execute("INSERT INTO attempts BY NAME SELECT * FROM more_attempts")
    run_stages(duck, trail.judge(as_of_ms, settings), also_read=(wanted,))
    yield from _rows(duck, f"SELECT * FROM {wanted}", TABLES[wanted].relation)


def _rows(duck: duckdb.DuckDBPyConnection, sql: str, relation: Relation) -> Batches:
    """The rows of a query with exactly the columns of a relation."""
    for batch in duck.sql(f"SELECT {', '.join(relation.names)} FROM ({sql}) AS made").to_arrow_reader():
        yield pa.RecordBatch.from_arrays(batch.columns, list(relation.names))
