"""The Spark data source `rocketmq`: queues of any RocketMQ cluster as rows, in batch and as a stream.

    spark.dataSource.register(RocketMQDataSource)
    spark.readStream.format("rocketmq").option("nameServer", "host:9876").option("topic", "orders").load()

Spark runs the reader in several processes: one Python process beside the driver plans offsets, and the executors'
Python workers read ranges. Each of them gets this object pickled, so the pickled state holds no connection. An error
that the reader raises ends the query, so temporary errors are retried inside (cluster.Retrying).

The offset that Spark logs is {topic: {broker: {queueId: next offset}}}. Spark does not check that it increases;
`advance` never decreases it. Nothing is written to the cluster: no group, no offset, no topic. `commit` does nothing:
Spark calls it one batch late, and not for the last batch. Spark's checkpoint holds the position.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mqtrail.wire import INNER_TOPIC_PREFIXES, INNER_TOPICS, MessageQueue, decode_head

from .bounds import Bounds, bounds_of, check_bounds
from .cluster import Cluster, Retrying, connect
from .columns import SCHEMA, columns_for
from .offsets import (
    OffsetsJson,
    QueueOffsets,
    QueueRange,
    advance,
    backlog_of,
    offsets_from_json,
    offsets_to_json,
    pack_ranges,
    ranges_between,
    split_ranges,
)
from .options import EARLIEST, LATEST, SourceOptionError, SourceOptions, parse_options
from .reading import read_ranges
from .sink import BatchSink, StreamSink
from .sinkoptions import parse_sink_options
from .times import QueueTimes, Strategy, offsets_at


class RocketMQDataSource(DataSource):
    """The class that Spark instantiates for `format("rocketmq")`. Options: OPTIONS to read, SINK_OPTIONS to write."""

    @classmethod
    def name(cls) -> str:
        """The name to register under."""
        return "rocketmq"

    def schema(self) -> str:
        """All columns. A schema given by the user selects some of them."""
        return SCHEMA

    def connect(self, options: SourceOptions, read_rate_max: float | None = None) -> Cluster:
        """Open the cluster, to read at most read_rate_max messages per second. Tests replace this method."""
        return connect(options.name_server, read_rate_max, options.credentials, options.tls)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once, from startingOffsets to endingOffsets."""
        return RocketMQReader(self, parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read continuously: from startingOffsets at the first start, from Spark's checkpoint at later ones."""
        return RocketMQStreamReader(self, parse_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Write once: every row becomes a message."""
        return BatchSink(schema, parse_sink_options(self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Write the rows of each micro-batch. Spark calls this for each of them, and again to commit it."""
        return StreamSink(schema, parse_sink_options(self.options), overwrite=overwrite)


@dataclass
class QueuePartition(InputPartition):
    """The ranges that one Spark task reads, one after the other, and its rate limit."""

    ranges: tuple[QueueRange, ...]
    read_rate_max: float | None  # messages per second


class RocketMQReader(DataSourceReader):
    """A batch read. All ranges are planned before the first one is read."""

    def __init__(self, source: RocketMQDataSource, options: SourceOptions, schema: StructType) -> None:
        columns_for(schema)
        self._source = source
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Find both ends of every queue and divide the messages between them into partitions."""
        options = self._options
        cluster = self._source.connect(options)
        try:
            bounds = _require(_bounds(cluster, options), options)
            start = _starts(cluster, bounds, options)
            if options.ending_times is None:
                end = _resolve(options.ending_offsets, bounds)
            else:
                end = _resolve_times(cluster, options.ending_times, bounds, options)
        finally:
            cluster.close()
        return _partitions(ranges_between(start, {queue: end[queue] for queue in start if queue in end}), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition's ranges as Arrow batches."""
        return _read(self._source, self._options, self._schema, partition)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Micro-batches read towards the ends of the queues; AvailableNow stops at the ends of its start."""

    def __init__(self, source: RocketMQDataSource, options: SourceOptions, schema: StructType) -> None:
        columns_for(schema)
        if options.ending_offsets != LATEST or options.ending_times is not None:
            name = "endingOffsets" if options.ending_times is None else "endingTimestamp (or endingOffsetsByTimestamp)"
            raise SourceOptionError(f"option {name} applies to batch reads only, and this is a stream: remove it")
        self._source = source
        self._options = options
        self._schema = schema
        self._cluster: Cluster | None = None
        self._target: Bounds | None = None
        self._clock: Callable[[], float] = time.monotonic
        self._triggered_at: float | None = None  # when a micro-batch with messages was last planned

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the connection: each executor opens its own."""
        return self.__dict__ | {"_cluster": None}

    def initialOffset(self) -> OffsetsJson:
        """Where a stream without a checkpoint starts. Spark may call it twice."""
        bounds = self._bounds() if self._options.topic_pattern else _require(self._bounds(), self._options)
        return offsets_to_json(_starts(self._opened(), bounds, self._options))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return maxOffsetsPerTrigger. Spark passes it to latestOffset as its limit."""
        count_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if count_max is None else ReadMaxRows(count_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the target: messages that are stored later belong to the next run."""
        self._target = self._bounds()

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        """Return where the micro-batch after `start` ends: in each queue at or after `start`.

        A queue that `start` lacks is added at its first offset, and is read from the next micro-batch on. So the logged
        offsets alone define what a batch reads, and a repeated batch reads the same messages.
        """
        at = offsets_from_json(start)
        bounds = self._target if self._target is not None else self._bounds()
        self._check(at, bounds)
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = {queue: end for queue, (_, end) in bounds.items()}
        ends = dict(at) if self._must_wait(backlog_of(at, ends)) else advance(at, ends, count_max)
        return offsets_to_json({queue: first for queue, (first, _) in bounds.items()} | ends)

    def reportLatestOffset(self) -> OffsetsJson:
        """Where the queues end now. Spark's progress shows the backlog from it."""
        bounds = self._target if self._target is not None else self._bounds()
        return offsets_to_json({queue: end for queue, (_, end) in bounds.items()})

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        """Divide one micro-batch into partitions. The same offsets give the same partitions."""
        return _partitions(ranges_between(offsets_from_json(start), offsets_from_json(end)), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition's ranges as Arrow batches."""
        return _read(self._source, self._options, self._schema, partition)

    def commit(self, end: OffsetsJson) -> None:
        """Do nothing: the source does not write to the cluster."""

    def stop(self) -> None:
        """Close the connection. Spark may kill the process instead."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _must_wait(self, backlog: int) -> bool:
        """Whether too few messages are there for a micro-batch, and maxTriggerDelay has not passed."""
        now = self._clock()
        if self._triggered_at is None:
            self._triggered_at = now
        count_min = self._options.offsets_per_trigger_min
        waited_ms = (now - self._triggered_at) * 1000
        is_early = count_min is not None and backlog < count_min and waited_ms < self._options.trigger_delay_max_ms
        if is_early and self._target is None:
            return True
        if backlog:
            self._triggered_at = now
        return False

    def _opened(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._source.connect(self._options)
        return self._cluster

    def _bounds(self) -> Bounds:
        return _bounds(self._opened(), self._options)

    def _check(self, at: QueueOffsets, bounds: Bounds) -> None:
        check_bounds(
            at,
            bounds,
            hold_unreachable=self._options.hold_unreachable,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )


def _bounds(cluster: Cluster, options: SourceOptions) -> Bounds:
    topics = options.topics if options.topic_pattern is None else _matching(cluster, options)
    return bounds_of(cluster, topics, options.retry_timeout_ms, hold_unreachable=options.hold_unreachable)


def _matching(cluster: Cluster, options: SourceOptions) -> list[str]:
    """Return the topics that subscribePattern names, sorted; no topic of RocketMQ itself."""
    assert options.topic_pattern is not None
    pattern = re.compile(options.topic_pattern)
    topics = Retrying(options.retry_timeout_ms)("list of topics", cluster.topics)
    return sorted(
        topic
        for topic in topics
        if pattern.fullmatch(topic) and topic not in INNER_TOPICS and not topic.startswith(INNER_TOPIC_PREFIXES)
    )


def _require(bounds: Bounds, options: SourceOptions) -> Bounds:
    """Return bounds, and raise if they are empty: a mistyped topic must not look like a topic without messages.

    Under onUnreachable=hold they may be empty.
    """
    if not bounds and options.topic_pattern is not None:
        raise SourceOptionError(
            f"no topic at {options.name_server} matches subscribePattern {options.topic_pattern!r}: the pattern must "
            "match the whole name, and system, retry and dead-letter topics are left out"
        )
    if not bounds and not options.hold_unreachable:
        raise SourceOptionError(
            f"no queue found for topic {', '.join(options.topics)} at {options.name_server}: "
            "check that the topic exists and that a broker of it is up"
        )
    return bounds


def _starts(cluster: Cluster, bounds: Bounds, options: SourceOptions) -> QueueOffsets:
    if options.starting_times is None:
        return _resolve(options.starting_offsets, bounds)
    return _resolve_times(cluster, options.starting_times, bounds, options, options.starting_strategy)


def _resolve_times(
    cluster: Cluster, times: QueueTimes, bounds: Bounds, options: SourceOptions, strategy: Strategy = "latest"
) -> QueueOffsets:
    retrying = Retrying(options.retry_timeout_ms)

    def by_time(queue: MessageQueue, at_ms: int) -> int:
        found = retrying(f"offset of {queue} at {at_ms}", lambda: cluster.offset_by_time(queue, at_ms))
        # Some versions of brokers return the message before: the last one, if all are older.
        pulled = retrying(f"pull of {queue} at {found}", lambda: cluster.pull(queue, found, 1))
        is_before = any(decode_head(record).store_timestamp_ms < at_ms for record in pulled.records[:1])
        return found + is_before

    return offsets_at(times, bounds, by_time, strategy)


def _resolve(wanted: QueueOffsets | int, bounds: Bounds) -> QueueOffsets:
    """Turn earliest, latest and the numbers that mean them into queue offsets.

    A queue that is missing in the JSON is left out here too: a batch does not read it; a stream starts at its first
    message, as with a queue that is created later.
    """
    offsets: QueueOffsets = {}
    for queue, (first, end) in bounds.items():
        at = wanted if isinstance(wanted, int) else wanted.get(queue)
        if at is not None:
            offsets[queue] = first if at == EARLIEST else end if at == LATEST else at
    return offsets


def _partitions(ranges: list[QueueRange], options: SourceOptions) -> list[QueuePartition]:
    packed = pack_ranges(split_ranges(ranges, options.partitions_min), options.partitions_max)
    rate = None if options.read_rate_max is None or not packed else options.read_rate_max / len(packed)
    return [QueuePartition(some, rate) for some in packed]


def _read(
    source: RocketMQDataSource, options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, QueuePartition)
    cluster = source.connect(options, partition.read_rate_max)
    try:
        yield from read_ranges(cluster, partition.ranges, schema, options)
    finally:
        cluster.close()
