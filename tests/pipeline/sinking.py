"""Helpers of the sink's tests: rows as Arrow batches, a task without Spark, and what a topic has."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mqtrail.client import QueueReader, SyncAdmin
from mqtrail.pipeline import RocketMQDataSource
from mqtrail.pipeline.sink import TaskSent, send_task
from mqtrail.pipeline.sinkoptions import SinkOptions, parse_sink_options
from mqtrail.testing import Embedded
from mqtrail.wire import MessageExt, TopicConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST = {"retryTimeoutMs": "20000", "replaySettleMs": "20", "sendTimeoutMs": "5000"}


def sink_options(namesrv: str, **more: object) -> SinkOptions:
    return parse_sink_options({"nameServer": namesrv, "topic": "orders"} | FAST | {k: str(v) for k, v in more.items()})


def create(at: Embedded | str, *topics: str) -> None:
    """Create topics with four queues on each broker."""
    with SyncAdmin(at if isinstance(at, str) else at.namesrv_address) as admin:
        for topic in topics:
            admin.create_topic(TopicConfig(topic, read_queue_nums=4, write_queue_nums=4))


def each_once(rows: Iterable[dict[str, Any]]) -> Counter[bytes]:
    return Counter(row["body"] for row in rows)


def bodies_of(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"body": b"row %d" % number} for number in range(start, start + count)]


def batches(rows: Sequence[dict[str, Any]], size: int = 50) -> list[pa.RecordBatch]:
    return pa.Table.from_pylist(list(rows)).to_batches(max_chunksize=size) if rows else []


def breaking(whole: Iterable[pa.RecordBatch], after: int) -> Iterator[pa.RecordBatch]:
    """Yield some batches, then fail as an upstream task does."""
    for number, batch in enumerate(whole):
        if number == after:
            raise RuntimeError("the upstream task failed")
        yield batch


def send(rows: Sequence[dict[str, Any]], options: SinkOptions, write: str = "write 1") -> TaskSent:
    return send_task(batches(rows), options, write)


def stored(namesrv: str, topic: str = "orders") -> list[MessageExt]:
    """Read all messages of a topic, queue by queue."""
    found: list[MessageExt] = []
    with QueueReader(namesrv) as reader:
        for queue in reader.queues(topic):
            at, end = reader.range(queue)
            for result in reader.read_range(queue, at, end):
                found += result.open(queue, at)
                at = result.next_offset
    return found


def counts(namesrv: str, topic: str = "orders") -> Counter[bytes]:
    return Counter(message.body for message in stored(namesrv, topic))


def stored_count(namesrv: str, topic: str = "orders") -> int:
    """How many messages a topic has, by its queues' ends."""
    with QueueReader(namesrv) as reader:
        return sum(reader.range(queue)[1] for queue in reader.queues(topic))


def copy_topic(spark: "SparkSession", namesrv: str, checkpoint: Path) -> None:
    """Copy the topic `from` to the topic `to` as a stream, up to now, in small requests."""
    spark.dataSource.register(RocketMQDataSource)
    rows = spark.readStream.format("rocketmq").schema("body binary").options(nameServer=namesrv, topic="from").load()
    query = (
        rows.writeStream.format("rocketmq")
        .options(nameServer=namesrv, topic="to", inFlightMax="1", batchRowsMax="2", retryTimeoutMs="200000")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
