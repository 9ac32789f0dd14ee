"""The rocketmq source, read by Spark from a cluster in a folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.queues import A0, A1, B0, POINTS, bodies, options, places

from mqtrail.pipeline.columns import COLUMNS

pytestmark = pytest.mark.spark

SHORT = "topic string, broker_name string, queue_id int, queue_offset bigint, lost_until bigint, lost_reason string"


def batch(spark: SparkSession, given: Mapping[str, str], schema: str | None = None) -> DataFrame:
    reader = spark.read.format("rocketmq-folder").options(**given)
    return (reader.schema(schema) if schema else reader).load()


class Stream:
    """A stream into a Parquet folder that runs up to now, as often as a test calls it, from one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, given: Mapping[str, str], schema: str = SHORT) -> None:
        self.spark, self.folder, self.given, self.schema = spark, folder, dict(given), schema

    def run(self) -> list[int]:
        """Run to the queues' ends and return the number of rows of each micro-batch; a single 0 if there was none."""
        source = self.spark.readStream.format("rocketmq-folder").options(**self.given).schema(self.schema).load()
        query = (
            source.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / "out"), format="parquet")
        )
        try:
            query.awaitTermination()
            return [progress.numInputRows for progress in query.recentProgress]
        finally:
            query.stop()

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.spark.read.schema(self.schema).parquet(str(self.folder / "out")).collect()
        return sorted((tuple(row) for row in found), key=repr)


def test_a_batch_reads_every_column(spark: SparkSession, cluster: Any) -> None:
    """Each column of a stored message has the record's value, compressed bodies as sent."""
    cluster.append(A0, b"hello", properties={"TAGS": "T", "a": "b"})
    cluster.append_compressed(A0, b"x" * 5_000)
    plain, packed = sorted(batch(spark, options(cluster)).collect(), key=lambda row: row.queue_offset)
    assert plain.asDict() == {
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 0,
        "queue_offset": 0,
        "lost_until": None,
        "lost_reason": None,
        "physical_offset": 0,
        "msg_id": "orders-0-0",
        "own_unique_key": "orders-0-0",
        "offset_msg_id": "0A00000100002A9F0000000000000000",
        "tags": "T",
        "keys": "k1 k2",
        "properties": {"UNIQ_KEY": "orders-0-0", "KEYS": "k1 k2", "TAGS": "T", "a": "b"},
        "body": b"hello",
        "body_text": "hello",
        "body_problem": None,
        "body_size": 5,
        "stored_body_size": 5,
        "body_crc": 0x3610A686,
        "store_size": plain.store_size,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp_ms": 1_700_000_000_000,
        "born_host": "10.0.0.9:50000",
        "store_timestamp_ms": 1_700_000_000_005,
        "store_host": "10.0.0.1:10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
    }
    assert list(plain.asDict()) == [column.name for column in COLUMNS]
    assert (packed.body, packed.body_size) == (b"x" * 5_000, 5_000)
    assert packed.stored_body_size < 100


def test_a_body_that_cannot_be_decompressed(spark: SparkSession, cluster: Any) -> None:
    """Its row has no body but the reason; the rows beside it are unchanged."""
    cluster.append(A0, b"not zlib", sys_flag=0x301)
    cluster.append(A0, b"fine")
    rows = batch(spark, options(cluster), "body binary, body_problem string, body_size int").collect()
    assert [row.body for row in rows] == [None, b"fine"]
    assert "not of type 3" in rows[0].body_problem
    assert [row.body_size for row in rows] == [None, 4]
    cluster.append_compressed(A0, bytes(50_000))
    bounded = options(cluster) | {"bodySizeMax": "49999"}
    rows = batch(spark, bounded, "body binary, body_problem string").collect()
    assert rows[2].body is None
    assert "more than 49999 bytes" in rows[2].body_problem


def test_a_batch_between_offsets(spark: SparkSession, cluster: Any) -> None:
    """JSON offsets bound each queue; an omitted queue is not read; -2 and -1 mean its ends."""
    for queue in (A0, A1, B0):
        cluster.append(queue, *bodies("m", 10))
    start = {"orders": {"broker-a": {"0": 3, "1": -2}, "broker-b": {"0": -1}}}
    end = {"orders": {"broker-a": {"0": 5, "1": 2}, "broker-b": {"0": -1}}}
    rows = batch(spark, options(cluster, startingOffsets=start, endingOffsets=end), SHORT).collect()
    assert sorted(tuple(row) for row in rows) == places(A0, range(3, 5)) + places(A1, range(2))


def test_several_topics_and_partitions(spark: SparkSession, cluster: Any) -> None:
    """Several topics can be listed; minPartitions splits a queue, maxPartitions joins several, and nothing is lost."""
    cluster.append(A0, *bodies("m", 100))
    cluster.append(POINTS, *bodies("p", 3))
    split = batch(spark, options(cluster, topic="orders, points", minPartitions=4), SHORT)
    joined = batch(spark, options(cluster, topic="orders,points", maxPartitions=1), SHORT)
    assert (split.rdd.getNumPartitions(), joined.rdd.getNumPartitions()) == (5, 1)
    assert sorted(map(tuple, split.collect())) == sorted(map(tuple, joined.collect()))
    assert joined.count() == 103


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"topic": ""}, "option topic is missing"),
        ({"topic": "missing"}, "no queue found for topic missing"),
        ({"startingOffsets": "first"}, "option startingOffsets is 'first', expected"),
        ({"endingOffsets": "earliest"}, "option endingOffsets is earliest"),
        ({"minPartitions": "0"}, "option minPartitions is '0', expected a whole number above 0"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe', expected one of true, false"),
    ],
)
def test_options_that_cannot_be(spark: SparkSession, cluster: Any, more: dict[str, str], text: str) -> None:
    """An invalid option fails the read with its name, the value found and the values expected."""
    cluster.append(A0, b"x")
    with pytest.raises(Exception, match=text):
        batch(spark, options(cluster, **more)).collect()


def test_a_column_that_is_not_there(spark: SparkSession, cluster: Any) -> None:
    """A schema with an unknown column is refused with the list of known ones."""
    with pytest.raises(Exception, match=r"the schema asks for body string.*body binary"):
        batch(spark, options(cluster), "body string").collect()


def test_a_stream_continues_where_it_stopped(spark: SparkSession, cluster: Any, tmp_path: Path) -> None:
    """Every message is read once over several runs, in micro-batches of at most the given size, with new queues."""
    stream = Stream(spark, tmp_path, options(cluster, maxOffsetsPerTrigger=8))
    cluster.append(A0, *bodies("m", 20))
    cluster.append(A1, *bodies("m", 1))
    counts = stream.run()
    assert sum(counts) == 21
    assert max(counts) <= 8
    cluster.append(A0, *bodies("m", 2, start=20))
    cluster.append(B0, *bodies("m", 3))
    assert sum(stream.run()) == 5
    assert not any(stream.run())
    assert stream.rows() == sorted(places(A0, range(22)) + places(A1, range(1)) + places(B0, range(3)), key=repr)


def test_what_stays_broken_ends_the_query(spark: SparkSession, cluster: Any, tmp_path: Path) -> None:
    """After the retry time the query fails with the request, the last error and a remedy."""
    cluster.append(A0, b"x")
    cluster.break_down("bounds", 1_000)
    stream = Stream(spark, tmp_path, options(cluster, retryTimeoutMs=300))
    with pytest.raises(
        StreamingQueryException, match=r"bounds of .* failed for 300 ms.*broken on purpose.*Check that the broker"
    ):
        stream.run()


def test_a_killed_worker(spark: SparkSession, cluster: Any, tmp_path: Path) -> None:
    """A Python worker that dies fails its task alone; the task runs again and no row comes twice."""
    cluster.append(A0, *bodies("m", 20))
    cluster.kill("pull")
    stream = Stream(spark, tmp_path, options(cluster))
    stream.run()
    assert stream.rows() == sorted(places(A0, range(20)), key=repr)


def test_a_killed_source(spark: SparkSession, cluster: Any, tmp_path: Path) -> None:
    """If the process that plans offsets dies, its query fails; the next run continues from the checkpoint."""
    cluster.append(A0, *bodies("m", 20))
    stream = Stream(spark, tmp_path, options(cluster))
    stream.run()
    cluster.append(A0, *bodies("m", 5, start=20))
    cluster.kill("bounds")
    with pytest.raises(StreamingQueryException):
        stream.run()
    stream.run()
    assert stream.rows() == sorted(places(A0, range(25)), key=repr)
