"""Reads by time, by pattern and with a minimum: the source's options and its planning, without Spark."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType
from tests.pipeline.conftest import FolderCluster, FolderDataSource
from tests.pipeline.queues import A0, A1, B0, POINTS, bodies, options

from mqtrail.pipeline import BehindListener, SourceBehind, SourceOptionError
from mqtrail.pipeline.offsets import OffsetsJson
from mqtrail.pipeline.options import parse_options
from mqtrail.pipeline.source import RocketMQReader, RocketMQStreamReader
from mqtrail.pipeline.times import NothingLater, QueueTimes, times_from_json
from mqtrail.wire import MessageQueue

T0 = 1_700_000_000_005  # the store time of the first message of each queue; one ms between two
WHERE = {"nameServer": "h:1", "topic": "t"}
SCHEMA = StructType().add("queue_offset", LongType())


def batch(given: dict[str, str]) -> list[tuple[MessageQueue, int, int]]:
    """What a batch read would read."""
    reader = FolderDataSource(given).reader(SCHEMA)
    assert isinstance(reader, RocketMQReader)
    partitions: Any = reader.partitions()
    return [(each.queue, each.start, each.end) for partition in partitions for each in partition.ranges]


def stream(given: dict[str, str]) -> RocketMQStreamReader:
    reader = FolderDataSource(given).streamReader(SCHEMA)
    assert isinstance(reader, RocketMQStreamReader)
    return reader


def after(reader: RocketMQStreamReader, start: OffsetsJson) -> OffsetsJson:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def test_times_of_all_topics_and_queues() -> None:
    """A queue's own time has priority over its topic's."""
    assert QueueTimes(5).of(A0) == 5
    times = times_from_json({"orders": {"broker-a": {"0": 7}}, "points": 9})
    assert [times.of(queue) for queue in (A0, A1, POINTS)] == [7, None, 9]


def test_a_batch_between_two_times(cluster: Any) -> None:
    """The start is the first message at or after its time; the end is exclusive, and later than all is the end."""
    for queue in (A0, A1):
        cluster.append(queue, *bodies("m", 10))
    given = options(cluster, startingTimestamp=str(T0 + 3), endingTimestamp=str(T0 + 6))
    assert batch(given) == [(A0, 3, 6), (A1, 3, 6)]
    by_queue = {"orders": {"broker-a": {"0": T0 + 9}}}
    given = options(cluster, startingOffsetsByTimestamp=by_queue, endingOffsetsByTimestamp={"orders": T0 + 99})
    assert batch(given) == [(A0, 9, 10)]


def test_no_message_after_the_time(cluster: Any) -> None:
    """By default the read fails with the queue and the remedy; `latest` starts at the queue's end."""
    cluster.append(A0, *bodies("m", 3))
    cluster.append(A1, *bodies("m", 9))
    given = options(cluster, startingTimestamp=str(T0 + 5))
    with pytest.raises(NothingLater, match=r"broker-a.*no message stored at or after.*Strategy to latest"):
        batch(given)
    given["startingOffsetsByTimestampStrategy"] = "latest"
    assert batch(given) == [(A1, 5, 9)]
    assert stream(given).initialOffset() == {"orders": {"broker-a": {"0": 3, "1": 5}}}


def test_a_broker_that_returns_the_message_before(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of brokers differ by one message; the read starts at the same one."""
    exact = FolderCluster.offset_by_time
    monkeypatch.setattr(FolderCluster, "offset_by_time", lambda self, queue, at: max(exact(self, queue, at) - 1, 0))
    cluster.append(A0, *bodies("m", 10))
    assert batch(options(cluster, startingTimestamp=str(T0 + 3), endingTimestamp=str(T0 + 6))) == [(A0, 3, 6)]
    with pytest.raises(NothingLater):
        batch(options(cluster, startingTimestamp=str(T0 + 10)))


def test_a_pattern_finds_topics_that_come_later(cluster: Any) -> None:
    """A stream reads a topic that appears later from its start; a batch reads the topics that are there."""
    cluster.append(A0, *bodies("m", 3))
    cluster.append(POINTS, *bodies("p", 1))
    cluster.append(MessageQueue("%RETRY%orders", "broker-a", 0), b"x")
    given = options(cluster, subscribePattern=".*orders.*", topic="", startingOffsets="latest")
    reader = stream(given)
    at = reader.initialOffset()
    assert at == {"orders": {"broker-a": {"0": 3}}}
    cluster.append(MessageQueue("orders-eu", "broker-b", 1), *bodies("e", 2))
    found = after(reader, at)
    assert found == at | {"orders-eu": {"broker-b": {"1": 0}}}
    assert after(reader, found)["orders-eu"] == {"broker-b": {"1": 2}}
    given |= {"startingOffsets": "earliest"}
    assert [queue.topic for queue, _, _ in batch(given)] == ["orders", "orders-eu"]


def test_a_pattern_that_matches_nothing(cluster: Any) -> None:
    """A batch fails; a stream waits for the first topic."""
    given = options(cluster, subscribePattern="orders", topic="")
    with pytest.raises(SourceOptionError, match=r"no topic at .* matches subscribePattern 'orders'"):
        batch(given)
    reader = stream(given)
    assert reader.initialOffset() == {}
    cluster.append(A0, b"x")
    assert after(reader, {}) == {"orders": {"broker-a": {"0": 0}}}


def test_few_messages_wait(cluster: Any) -> None:
    """Below minOffsetsPerTrigger nothing is read until maxTriggerDelay has passed since the last micro-batch."""
    now = 100.0
    cluster.append(A0, *bodies("m", 4))
    reader = stream(options(cluster, minOffsetsPerTrigger="5", maxTriggerDelay="10s"))
    reader._clock = lambda: now
    at = reader.initialOffset()
    assert after(reader, at) == at
    cluster.append(A0, b"m4")
    at = after(reader, at)
    assert at == {"orders": {"broker-a": {"0": 5}}}
    cluster.append(A0, b"m5")
    cluster.append(B0, b"n0")
    now += 9.9
    assert after(reader, at) == at | {"orders": {"broker-a": {"0": 5}, "broker-b": {"0": 0}}}
    now += 0.2
    assert after(reader, at)["orders"]["broker-a"] == {"0": 6}


def test_few_messages_do_not_wait_when_available_now(cluster: Any) -> None:
    """AvailableNow must end, so it reads fewer messages at once."""
    cluster.append(A0, b"m")
    reader = stream(options(cluster, minOffsetsPerTrigger="5"))
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    assert after(reader, at) == {"orders": {"broker-a": {"0": 1}}}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"subscribePattern": "a.*"}, "options topic and subscribePattern are set, expected one of them"),
        ({"topic": "", "subscribePattern": "(a"}, "option subscribePattern is '\\(a', expected a regular expression"),
        ({"startingTimestamp": "-1"}, "option startingTimestamp is '-1', expected"),
        ({"startingTimestamp": "now"}, "option startingTimestamp is 'now', expected"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "startingTimestamp and startingOffsets are set"),
        ({"startingOffsetsByTimestamp": '{"t": -5}'}, "the time -5 is below 0"),
        ({"startingOffsetsByTimestamp": '{"t": "x"}'}, "option startingOffsetsByTimestamp is"),
        ({"endingOffsetsByTimestamp": "[1]"}, "option endingOffsetsByTimestamp is"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "expected one of error, latest"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay is 'soon', expected maximum time"),
        ({"minOffsetsPerTrigger": "0"}, "option minOffsetsPerTrigger is '0'"),
    ],
)
def test_options_that_contradict(more: dict[str, str], text: str) -> None:
    """The error names the option, what was found and what is expected."""
    with pytest.raises(SourceOptionError, match=text):
        parse_options(WHERE | more)


def test_a_stream_has_no_end() -> None:
    """Ending times are for batches."""
    with pytest.raises(SourceOptionError, match=r"endingTimestamp .* applies to batch reads only"):
        stream(WHERE | {"endingTimestamp": "5"})


def test_how_far_a_stream_is_behind(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages and age of the oldest one, by the offsets that Spark reports; other sources are ignored."""
    cluster.append(A0, *bodies("m", 10))
    cluster.append(A1, *bodies("m", 2))
    monkeypatch.setattr("mqtrail.pipeline.behind.now_ms", lambda: T0 + 4_004)
    reports: list[SourceBehind] = []
    listener = BehindListener(options(cluster), reports.append, connected=lambda: cluster)
    texts = ['{"orders": {"broker-a": {"0": 4, "1": 2}}}', '{"shard": 3}', None]
    sources = [SimpleNamespace(endOffset=text) for text in texts]
    event: Any = SimpleNamespace(progress=SimpleNamespace(id="q", batchId=7, sources=sources))
    listener.onQueryProgress(event)
    (report,) = reports
    assert [(one.queue, one.messages, one.seconds) for one in report.queues] == [(A0, 6, 4.0), (A1, 0, 0.0)]
    assert (report.messages, report.messages_max, report.seconds, report.batch_id) == (6, 6, 4.0, 7)
