"""A stream of the rocketmq source, by the calls that Spark makes: losses, recreated queues, silent brokers."""

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType
from tests.pipeline.conftest import FolderDataSource
from tests.pipeline.queues import A0, bodies, options, places

from mqtrail.pipeline import DataLoss
from mqtrail.pipeline.source import RocketMQStreamReader

SHORT: Mapping[str, DataType] = {
    "topic": StringType(),
    "broker_name": StringType(),
    "queue_id": IntegerType(),
    "queue_offset": LongType(),
    "lost_until": LongType(),
    "lost_reason": StringType(),
}


class Stream:
    """A stream of rows that runs up to now, as often as a test calls it, each run from the end of the last.

    As in Spark, each run has a reader of its own, offsets are kept as JSON, the reader that reads is a pickled copy,
    and a failed micro-batch leaves no rows.
    """

    def __init__(self, given: Mapping[str, str], columns: Mapping[str, DataType] = SHORT) -> None:
        self._given, self._schema = dict(given), StructType()
        for name, kind in columns.items():
            self._schema.add(name, kind)
        self._offset: str | None = None
        self._rows: list[tuple[Any, ...]] = []

    def run(self) -> list[int]:
        """Run to the queues' ends and return the rows of each micro-batch."""
        reader = FolderDataSource(self._given).streamReader(self._schema)
        assert isinstance(reader, RocketMQStreamReader)
        self._offset = self._offset or json.dumps(reader.initialOffset())
        reader.prepareForTriggerAvailableNow()
        counts: list[int] = []
        while (end := json.dumps(reader.latestOffset(json.loads(self._offset), reader.getDefaultReadLimit()))) != (
            self._offset
        ):
            found: list[tuple[Any, ...]] = []
            for partition in reader.partitions(json.loads(self._offset), json.loads(end)):
                copy = pickle.loads(pickle.dumps(reader))
                for rows in copy.read(pickle.loads(pickle.dumps(partition))):
                    found += (tuple(row.values()) for row in rows.to_pylist())
            reader.commit(json.loads(end))
            self._offset = end
            self._rows += found
            counts.append(len(found))
        reader.stop()
        return counts

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self._rows, key=repr)


def test_hiccups_are_retried(cluster: Any) -> None:
    """The source asks a name server or broker that fails for a moment again, and the query continues."""
    cluster.append(A0, *bodies("m", 10))
    for request in ("queues", "bounds", "pull"):
        cluster.break_down(request, 2)
    stream = Stream(options(cluster, retryTimeoutMs=20_000))
    assert sum(stream.run()) == 10


def test_a_silent_broker_is_held(cluster: Any) -> None:
    """Under onUnreachable=hold the stream waits in that broker's queues, and reads them when it is back."""
    cluster.append(A0, *bodies("m", 5))
    stream = Stream(options(cluster, onUnreachable="hold", retryTimeoutMs=100))
    assert sum(stream.run()) == 5
    cluster.append(A0, *bodies("m", 4))
    cluster.break_down("bounds", 1)
    assert not any(stream.run())
    assert sum(stream.run()) == 4
    assert stream.rows() == places(A0, range(9))


def test_expired_messages_fail_the_query(cluster: Any) -> None:
    """By default the loss of due messages fails the read, with their range and the remedy."""
    cluster.append(A0, *bodies("m", 5))
    stream = Stream(options(cluster))
    stream.run()
    cluster.append(A0, *bodies("m", 10))
    cluster.expire(A0, 8)
    with pytest.raises(DataLoss, match=r"messages \[5, 8\) are missing.*retention.*failOnDataLoss"):
        stream.run()


def test_expired_messages_as_a_row(cluster: Any) -> None:
    """Without failOnDataLoss the loss is a row of its own, and reading continues after it."""
    stream = Stream(options(cluster, failOnDataLoss="false"), {**SHORT, "store_timestamp_ms": LongType()})
    cluster.append(A0, *bodies("m", 5))
    stream.run()
    cluster.append(A0, *bodies("m", 10))
    cluster.expire(A0, 8)
    cluster.damage(A0, 10)
    stream.run()
    lost = [row for row in stream.rows() if row[4] is not None]
    assert sorted(lost) == [
        ("orders", "broker-a", 0, 5, 8, "EXPIRED", 1_700_000_000_013),
        ("orders", "broker-a", 0, 10, 11, "UNREADABLE", 1_700_000_000_016),
    ]
    assert sorted(row[3] for row in stream.rows() if row[4] is None) == [0, 1, 2, 3, 4, 8, 9, 11, 12, 13, 14]


def test_a_topic_made_again_fails_the_query(cluster: Any) -> None:
    """A queue that ends before the stream's offset is data loss, not a reason to go back."""
    cluster.append(A0, *bodies("m", 5))
    stream = Stream(options(cluster))
    stream.run()
    cluster.recreate(A0)
    with pytest.raises(DataLoss, match="ends at 0 and was read up to 5"):
        stream.run()


def test_offsets_never_go_back(cluster: Any) -> None:
    """Without failOnDataLoss the stream waits at its offset until the new queue grows past it."""
    cluster.append(A0, *bodies("m", 5))
    stream = Stream(options(cluster, failOnDataLoss="false"))
    stream.run()
    cluster.recreate(A0)
    cluster.append(A0, *bodies("n", 3))
    assert not any(stream.run())
    cluster.append(A0, *bodies("n", 3))
    assert sum(stream.run()) == 1
    assert stream.rows() == places(A0, range(6))
