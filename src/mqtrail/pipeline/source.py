"""The Spark data source `rocketmq`: queues of any RocketMQ cluster as rows, in batch and as a stream.

    spark.dataSource.register(RocketMQDataSource)
    spark.readStream.format("rocketmq").option("nameServer", "host:9876").option("topic", "orders").load()

Spark runs the reader in three places: offsets are settled in one Python process beside the driver, ranges are read in
the executors' Python workers, and all of them get this object pickled. So a reader keeps no connection across calls
that pickle it, and an error that leaves it ends the query: what may pass by itself is tried again inside
(cluster.Retrying).

The offset that Spark logs is {topic: {broker: {queueId: next offset}}}. Spark does not check that it grows, so
`advance` never lets it shrink. Nothing is written to the cluster: no group, no offset, no topic. `commit` does nothing,
since it comes a batch late and not at all for the last one: Spark's checkpoint is the truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mqtrail.pipeline.cluster import BrokerUnreachable, Cluster, Retrying, all_queues, connect
from mqtrail.pipeline.columns import SCHEMA, columns_for
from mqtrail.pipeline.offsets import (
    OffsetsJson,
    QueueOffsets,
    QueueRange,
    advance,
    offsets_from_json,
    offsets_to_json,
    pack_ranges,
    ranges_between,
    split_ranges,
)
from mqtrail.pipeline.options import EARLIEST, LATEST, SourceOptionError, SourceOptions, parse_options
from mqtrail.pipeline.reading import DataLoss, read_ranges
from mqtrail.wire import MessageQueue

Bounds = dict[MessageQueue, tuple[int, int]]  # [first, end) of each queue


class RocketMQDataSource(DataSource):
    """What Spark instantiates for `format("rocketmq")`. Options: mqtrail.pipeline.options.OPTIONS."""

    @classmethod
    def name(cls) -> str:
        """The name to register under."""
        return "rocketmq"

    def schema(self) -> str:
        """All columns; a schema given by the user picks some of them."""
        return SCHEMA

    def connect(self, options: SourceOptions, read_rate_max: float | None = None) -> Cluster:
        """Open the cluster, to read at most so many messages a second; the seam that tests replace."""
        return connect(options.name_server, read_rate_max, options.credentials, options.tls)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read what lies between startingOffsets and endingOffsets, once."""
        return RocketMQReader(self, parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read on and on, from startingOffsets at first and from Spark's checkpoint later."""
        return RocketMQStreamReader(self, parse_options(self.options), schema)


@dataclass
class QueuePartition(InputPartition):
    """The ranges one Spark task reads, one after the other, and how fast it may."""

    ranges: tuple[QueueRange, ...]
    read_rate_max: float | None  # messages a second


class RocketMQReader(DataSourceReader):
    """A batch read: all ranges are settled before the first is read."""

    def __init__(self, source: RocketMQDataSource, options: SourceOptions, schema: StructType) -> None:
        columns_for(schema)
        self._source = source
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Settle both ends of every queue and cut what lies between into partitions."""
        cluster = self._source.connect(self._options)
        try:
            bounds = _require(_bounds(cluster, self._options), self._options)
        finally:
            cluster.close()
        start = _resolve(self._options.starting_offsets, bounds)
        end = _resolve(self._options.ending_offsets, bounds)
        return _partitions(ranges_between(start, {queue: end[queue] for queue in start if queue in end}), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition's ranges as Arrow batches."""
        return _read(self._source, self._options, self._schema, partition)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: every micro-batch goes some way towards the queues' ends, under AvailableNow to their ends at its
    start.
    """

    def __init__(self, source: RocketMQDataSource, options: SourceOptions, schema: StructType) -> None:
        columns_for(schema)
        if options.ending_offsets != LATEST:
            raise SourceOptionError("option endingOffsets applies to batch reads only, and this is a stream: remove it")
        self._source = source
        self._options = options
        self._schema = schema
        self._cluster: Cluster | None = None
        self._target: Bounds | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind: the executors open their own."""
        return self.__dict__ | {"_cluster": None}

    def initialOffset(self) -> OffsetsJson:
        """Where a stream without a checkpoint starts. Spark may call it twice."""
        return offsets_to_json(_resolve(self._options.starting_offsets, _require(self._bounds(), self._options)))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tell Spark of maxOffsetsPerTrigger; it comes back as the limit of latestOffset."""
        count_max = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if count_max is None else ReadMaxRows(count_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the target: what is stored later belongs to the next run."""
        self._target = self._bounds()

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        """Return where the micro-batch after start ends: never before start, in no queue.

        A queue that start does not know enters at its first offset, and is read from the next micro-batch on: so the
        logged offsets alone say what a batch reads, and a replay reads the same.
        """
        at = offsets_from_json(start)
        bounds = self._target if self._target is not None else self._bounds()
        self._check(at, bounds)
        count_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = advance(at, {queue: end for queue, (_, end) in bounds.items()}, count_max)
        return offsets_to_json({queue: first for queue, (first, _) in bounds.items()} | ends)

    def reportLatestOffset(self) -> OffsetsJson:
        """Where the queues end now, for Spark's progress: the backlog shows there."""
        bounds = self._target if self._target is not None else self._bounds()
        return offsets_to_json({queue: end for queue, (_, end) in bounds.items()})

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        """Cut one micro-batch into partitions; the same offsets give the same ones."""
        return _partitions(ranges_between(offsets_from_json(start), offsets_from_json(end)), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition's ranges as Arrow batches."""
        return _read(self._source, self._options, self._schema, partition)

    def commit(self, end: OffsetsJson) -> None:
        """Nothing: the cluster that is read is not written to."""

    def stop(self) -> None:
        """Give back the connection. Spark may kill the process instead."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _bounds(self) -> Bounds:
        if self._cluster is None:
            self._cluster = self._source.connect(self._options)
        return _bounds(self._cluster, self._options)

    def _check(self, at: QueueOffsets, bounds: Bounds) -> None:
        """Raise for a queue that is gone or ends before its place, unless the options say to stay there until it is
        back: forward only."""
        gone = sorted(set(at) - set(bounds))
        if gone and not self._options.hold_unreachable:
            raise BrokerUnreachable(
                f"{len(gone)} queues that were read before have no route any more, the first is {gone[0]}: "
                "check its broker, or set onUnreachable to hold to continue with the others"
            )
        for queue in sorted(set(at) & set(bounds)):
            if bounds[queue][1] < at[queue] and self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{queue} ends at {bounds[queue][1]} and was read up to {at[queue]}: the topic was deleted "
                    "and created again, or the broker lost messages. Use a new checkpoint, or set failOnDataLoss "
                    "to false"
                )


def _bounds(cluster: Cluster, options: SourceOptions) -> Bounds:
    """Return [first, end) of every queue of the topics.

    A broker that does not answer in time is left out under onUnreachable=hold, so that a stream stays where it is in
    its queues, and raised otherwise.
    """
    retrying = Retrying(options.retry_timeout_ms)
    bounds: Bounds = {}
    silent: set[str] = set()
    for queue in all_queues(cluster, options.topics, retrying):
        if queue.broker_name in silent:
            continue
        try:
            bounds[queue] = retrying(f"bounds of {queue}", partial(cluster.bounds, queue))
        except BrokerUnreachable:
            if not options.hold_unreachable:
                raise
            silent.add(queue.broker_name)
    return bounds


def _require(bounds: Bounds, options: SourceOptions) -> Bounds:
    """Return bounds, which hold at least one queue: to read nothing for a mistyped topic would look like an empty one.
    Under onUnreachable=hold there may be none yet.
    """
    if not bounds and not options.hold_unreachable:
        raise SourceOptionError(
            f"no queue found for topic {', '.join(options.topics)} at {options.name_server}: "
            "check that the topic exists and that a broker of it is up"
        )
    return bounds


def _resolve(wanted: QueueOffsets | int, bounds: Bounds) -> QueueOffsets:
    """Turn earliest, latest and the two numbers that mean them into queue offsets.

    A queue that a JSON of offsets leaves out is not read by a batch and starts at its first message in a stream, like
    one that is made later: it is left out here as well.
    """
    offsets: QueueOffsets = {}
    for queue, (first, end) in bounds.items():
        at = wanted if isinstance(wanted, int) else wanted.get(queue)
        if at is not None:
            offsets[queue] = first if at == EARLIEST else end if at == LATEST else at
    return offsets


def _partitions(ranges: list[QueueRange], options: SourceOptions) -> list[QueuePartition]:
    hands = pack_ranges(split_ranges(ranges, options.partitions_min), options.partitions_max)
    rate = None if options.read_rate_max is None or not hands else options.read_rate_max / len(hands)
    return [QueuePartition(hand, rate) for hand in hands]


def _read(
    source: RocketMQDataSource, options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, QueuePartition)
    cluster = source.connect(options, partition.read_rate_max)
    try:
        yield from read_ranges(cluster, partition.ranges, schema, options)
    finally:
        cluster.close()
