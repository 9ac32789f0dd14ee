"""The sink in Spark: batch and stream, a killed worker, a killed driver; everything is read back."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.pipeline.sinking import (
    FAST,
    bodies_of,
    copy_topic,
    counts,
    create,
    each_once,
    send,
    sink_options,
    stored_count,
)

from mqtrail.pipeline import BehindListener, RocketMQDataSource, SourceBehind
from mqtrail.pipeline.sink import BatchSink, TaskSent
from mqtrail.pipeline.sinkoptions import parse_sink_options
from mqtrail.testing import embedded

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
KILL_COUNT = 5_000
WAIT_S_MAX = 240
PROGRAM = """
import sys
from pathlib import Path
from tests.pipeline.sinking import copy_topic
from mqtrail.pipeline import SessionConfig, spark_session

namesrv, folder = sys.argv[1], Path(sys.argv[2])
java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
with spark_session(SessionConfig(master="local[2]", driver_memory="512m", java_options=java, scratch=folder)) as spark:
    copy_topic(spark, namesrv, folder / "checkpoint")
"""


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    """A node with two brokers, in memory."""
    with embedded(brokers=2) as running:
        create(running, "orders", "copies", "from", "to")
        yield running.namesrv_address


def test_a_killed_worker_and_its_next_attempt_write_each_row_once(spark: SparkSession, namesrv: str) -> None:
    """What is read back equals what was written, although the first attempt of each task was killed midway."""

    class DyingSink(BatchSink):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskSent:  # type: ignore[override]
            return super().write(self._dying(iterator))

        def _dying(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            for batch in batches:
                for start in range(0, batch.num_rows, 20):
                    if start == 100 and context is not None and context.attemptNumber() == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield batch.slice(start, 20)

    class DyingDataSource(RocketMQDataSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq-dying"

        def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
            return DyingSink(schema, parse_sink_options(self.options), overwrite=overwrite)

    spark.dataSource.register(RocketMQDataSource)
    spark.dataSource.register(DyingDataSource)
    rows = spark.range(0, 400, 1, 2).selectExpr(
        "concat('body ', id) AS body",
        "concat('T', id % 3) AS tags",
        "array(concat('key-', id), 'all') AS keys",
        "map('id', cast(id AS string)) AS properties",
        "id % 7 AS orderKey",
    )
    options = FAST | {"nameServer": namesrv, "topic": "orders", "batchRowsMax": "5"}
    rows.write.format("rocketmq-dying").mode("append").options(**options).save()
    found = spark.read.format("rocketmq").option("nameServer", namesrv).option("topic", "orders").load()
    read = found.selectExpr("body_text", "tags", "keys", "properties['id']").collect()
    expected = [(f"body {n}", f"T{n % 3}", f"key-{n} all", str(n)) for n in range(400)]
    assert sorted(map(tuple, read)) == sorted(expected)


def test_a_stream_from_topic_to_topic(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    """Every message is written once over two runs; rows that cannot be sent are in the reject table.

    A listener reports that the stream has read all.
    """
    spark.dataSource.register(RocketMQDataSource)
    checkpoint, rejects = tmp_path / "checkpoint", tmp_path / "rejects"

    def run() -> None:
        rows = spark.readStream.format("rocketmq").option("nameServer", namesrv).option("topic", "orders").load()
        query = (
            rows.selectExpr("if(tags = 'T0', NULL, body) AS body", "properties")
            .writeStream.format("rocketmq")
            .options(**FAST, nameServer=namesrv, topic="copies", rejectPath=str(rejects))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    send([{"body": b"first %d" % n, "tags": f"T{n % 2}"} for n in range(40)], sink_options(namesrv), "write 1")
    before = Counter({body: count for body, count in counts(namesrv).items() if body.startswith(b"first")})
    assert sum(before.values()) == 40
    reports: list[SourceBehind] = []
    listener = BehindListener({"nameServer": namesrv, "topic": "orders"}, reports.append)
    spark.streams.addListener(listener)
    run()
    until = time.monotonic() + WAIT_S_MAX
    while not reports:  # events come later than the query ends
        assert time.monotonic() < until
        time.sleep(0.05)
    spark.streams.removeListener(listener)
    assert (reports[0].messages, reports[0].seconds) == (0, 0.0)
    assert {one.queue.topic for one in reports[0].queues} == {"orders"}
    send([{"body": b"second", "tags": "T1"}], sink_options(namesrv), "write 2")
    run()
    copied = counts(namesrv, "copies")
    assert copied[b"second"] == 1
    assert {body for body in copied if body.startswith(b"first")} == {b"first %d" % n for n in range(1, 40, 2)}
    assert set(copied.values()) == {1}
    table = spark.read.parquet(str(rejects))
    in_all = sum(counts(namesrv).values())
    assert table.count() == in_all - sum(copied.values())
    assert table.filter("reject_reason LIKE 'body is null%'").count() == table.count()


@pytest.mark.parametrize(
    ("columns", "mode", "text"),
    [
        (("id AS body",), "append", "a column body bigint, expected columns out of: body binary or string"),
        (("'x' AS body",), "overwrite", "found mode overwrite .*expected append"),
    ],
)
def test_a_write_that_cannot_be(
    spark: SparkSession, namesrv: str, columns: tuple[str, ...], mode: str, text: str
) -> None:
    """The write fails before a row is sent."""
    spark.dataSource.register(RocketMQDataSource)
    before = stored_count(namesrv, "copies")
    writer = spark.range(3).selectExpr(*columns).write.format("rocketmq").mode(mode)
    with pytest.raises(Exception, match=text):
        writer.options(nameServer=namesrv, topic="copies").save()
    assert stored_count(namesrv, "copies") == before


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    """A stream that is killed in the middle of a micro-batch and started again loses no row and writes none twice."""
    rows = bodies_of(KILL_COUNT)
    send(rows, sink_options(namesrv, topic="from"), "write 1")
    command = [sys.executable, "-c", PROGRAM, namesrv, str(tmp_path)]
    log = tmp_path / "driver.log"
    with log.open("ab") as output:
        driver = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        until = time.monotonic() + WAIT_S_MAX
        while (count := stored_count(namesrv, "to")) < 200:
            assert time.monotonic() < until, log.read_text()[-3_000:]
            assert driver.poll() is None, log.read_text()[-3_000:]
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert count < KILL_COUNT
    copy_topic(spark, namesrv, tmp_path / "checkpoint")
    assert counts(namesrv, "to") == each_once(rows)
