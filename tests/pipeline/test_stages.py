"""The public stages: Spark DataFrames in, DataFrames with the columns of the lake's tables out."""

import asyncio
import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.answers import lakes
from tests.pipeline.test_ingest import HOUR_0_MS, T0, Reader, fill, msg_id, trace

from mqtrail import trail
from mqtrail.client import Producer
from mqtrail.lake import arrow_schema
from mqtrail.pipeline import TRACE_SCHEMA, attempts, decoded, rejected, trajectories, verdicts
from mqtrail.pipeline.columns import TRACE_COLUMNS
from mqtrail.pipeline.offsets import QueueRange
from mqtrail.pipeline.options import parse_options
from mqtrail.pipeline.reading import read_ranges
from mqtrail.pipeline.stages import whole_messages
from mqtrail.testing import embedded
from mqtrail.wire import TRACE_TOPIC, Message

AS_OF_MS = HOUR_0_MS + 3_600_000


class RowsHere:
    """The DataFrame methods that the stages call, in this process: batches, and functions over them."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.batches = list(batches)

    def mapInArrow(
        self, make: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> "RowsHere":
        return RowsHere(make(iter(self.batches)))

    def coalesce(self, count: int) -> "RowsHere":
        return self

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


def here(batches: Iterable[pa.RecordBatch]) -> DataFrame:
    return cast(DataFrame, RowsHere(batches))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return cast(RowsHere, frame).rows()


@pytest.mark.slow
def test_functions_of_the_stages(cluster: Any, tmp_path: Path) -> None:
    """Without Spark: the functions of its tasks give the rows of the ingest, and a row for each message and group."""
    fill(cluster)
    cluster.append(T0, b"Unknown\x01x\x02" + trace([50]))
    reader = Reader(tmp_path, cluster)
    reader.run()
    options = parse_options({"nameServer": str(cluster.folder), "topic": "TRACE"})
    ranges = [QueueRange(queue, *cluster.bounds(queue)) for queue in cluster.queues("TRACE")]
    messages = here(read_ranges(cluster, ranges, TRACE_COLUMNS, options))
    events = decoded(messages, "c")
    assert sorted((tuple(row.values()) for row in rows_of(events)), key=repr) == reader.rows(trail.TRACE_EVENTS)
    rejects = rows_of(rejected(messages, "c"))
    assert sorted((tuple(row.values()) for row in rejects), key=repr) == reader.rows(trail.TRACE_REJECTS)
    rows = attempts(events)
    assert cast(RowsHere, rows).batches[0].schema.names == arrow_schema(trail.ATTEMPTS).names
    stored = [row for row in reader.rows(trail.ATTEMPTS, "msg_id, kind, attempt_key") if row[1] != "STORED"]
    found = {(row["msg_id"], row["kind"], row["attempt_key"]) for row in rows_of(rows)}
    assert sorted(found) == sorted(stored)
    ids = sorted(row["msg_id"] for row in rows_of(trajectories(rows, AS_OF_MS)))
    assert ids == [msg_id(number) for number in (*range(6), 50)]
    assert {(row["group_name"], row["state"]) for row in rows_of(verdicts(rows, AS_OF_MS))} == {("CG", "CONSUMED")}


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_stages_give_the_rows_of_the_job(spark: SparkSession, cluster: Any, tmp_path: Path) -> None:
    """Decoding and attempts give the rows of the ingest; the judgement gives a row for each message and group."""
    fill(cluster)
    cluster.append(T0, b"Unknown\x01x\x02" + trace([50]))
    reader = Reader(tmp_path, cluster)
    reader.run()
    source = spark.read.format("rocketmq-folder").option("nameServer", str(cluster.folder)).option("topic", "TRACE")
    messages = source.schema(TRACE_SCHEMA).load().cache()
    events = decoded(messages, "c").cache()
    assert events.columns == list(trail.TRACE_EVENTS.names)
    assert sorted(map(tuple, events.collect()), key=repr) == reader.rows(trail.TRACE_EVENTS)
    assert sorted(map(tuple, rejected(messages, "c").collect()), key=repr) == reader.rows(trail.TRACE_REJECTS)
    rows = attempts(events).cache()
    stored = [row for row in reader.rows(trail.ATTEMPTS, "msg_id, kind, attempt_key") if row[1] != "STORED"]
    assert sorted({(row.msg_id, row.kind, row.attempt_key) for row in rows.collect()}) == sorted(stored)
    assert [row.msg_id for row in trajectories(rows, AS_OF_MS).orderBy("msg_id").collect()] == [
        msg_id(number) for number in (*range(6), 50)
    ]
    assert {(row.group_name, row.state) for row in verdicts(rows, AS_OF_MS).collect()} == {("CG", "CONSUMED")}


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_notebook(spark: SparkSession, tmp_path: Path) -> None:
    """The example reads a broker's trace topic and ends with a table of verdicts."""
    notebook = importlib.import_module("examples.trace_notebook")

    async def send(namesrv: str, *bodies: bytes) -> None:
        async with Producer("shop", namesrv) as producer:
            for body in bodies:
                await producer.send(Message(TRACE_TOPIC, body))

    with embedded() as broker:
        namesrv = broker.namesrv_address
        asyncio.run(send(namesrv, trace([1, 2]), b"Unknown\x01x\x02"))
        notebook.collect(spark, namesrv, str(tmp_path))
        asyncio.run(send(namesrv, trace([3])))
        notebook.collect(spark, namesrv, str(tmp_path))
        [unreadable] = notebook.unreadable(spark, namesrv).collect()
    assert [tuple(row) for row in notebook.judge(spark, str(tmp_path)).collect()] == [("CG", "CONSUMED", 3, 2)]
    assert {row.kind for row in notebook.path_of(spark, str(tmp_path), msg_id(3)).collect()} >= {"SEND", "HANDLED"}
    assert "Unknown" in unreadable.reason


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_notebook_of_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads the rows of a documented view, with their types."""
    notebook = importlib.import_module("examples.lake_notebook")
    lake = tmp_path / "lake"
    lakes.make_lake(lake, lakes.rows_of(("send ok", "consumed after retry")))
    rows = notebook.spark_view(spark, str(lake), "group_results", str(tmp_path))
    assert rows.count() == len(notebook.query(str(lake), "SELECT msg_id FROM group_results")) > 0
    assert dict(rows.dtypes)["codes"] == "array<string>"
    assert [(row.group_name, row.messages) for row in notebook.failures(spark).collect()] == [("CG", 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_records_of_a_trace_message_stay_together(size: int) -> None:
    """Tables of any size are divided between trace messages, never inside one: its records are numbered together."""
    offsets = [0, 1, 1, 1, 2, 2, 3, 4, 4]
    names = ("cluster", "broker_name", "trace_topic")
    rows = pa.table({name: ["a"] * 9 for name in names} | {"queue_id": [0] * 9, "queue_offset": offsets})
    found = [
        table["queue_offset"].to_pylist()
        for table in whole_messages(rows.slice(first, size) for first in range(0, 9, size))
    ]
    assert [offset for some in found for offset in some] == offsets
    assert sum(len(set(some)) for some in found) == 5, "no offset is in two tables"
    assert list(whole_messages([])) == []
