"""The public stages: DataFrames of Spark in, DataFrames with the columns of the lake's tables out."""

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.test_ingest import HOUR_0_MS, T0, Reader, fill, msg_id, trace

from mqtrail import trail
from mqtrail.client import Producer
from mqtrail.pipeline import TRACE_SCHEMA, attempts, decoded, rejected, trajectories, verdicts
from mqtrail.testing import embedded
from mqtrail.wire import TRACE_TOPIC, Message

AS_OF_MS = HOUR_0_MS + 3_600_000

pytestmark = pytest.mark.timeout(400)


def test_stages_give_the_rows_of_the_job(spark: SparkSession, cluster: Any, tmp_path: Path) -> None:
    """Decoding and attempts have the rows of the ingest; the judgement has a row for each message and group."""
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


def test_the_notebook(spark: SparkSession, tmp_path: Path) -> None:
    """The example follows a trace topic of a broker and ends with a table of verdicts."""
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
