"""QueueReader: reads ranges, reports gaps, retries failures, and changes nothing at a broker."""

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from mqtrail.client import NoNameServer, PullStatus, QueueReader, RateLimit, ReaderConfig, ReadFailed, RouteNotFound
from mqtrail.wire import (
    MessageQueue,
    NoPermission,
    RecordError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicOffset,
    TopicStatsTable,
    decode_head,
)

from ...loops import run
from ..fake_cluster import HANG_UP, FakeCluster, fake_cluster, on_code, refuse

QUEUE = MessageQueue("orders", "broker-a", 0)


def reading(
    read: Callable[[QueueReader], Any], arrange: Callable[[FakeCluster], None] = lambda cluster: None
) -> FakeCluster:
    """Run a blocking reader in a thread beside a fake cluster with 100 messages in one queue."""
    made: list[FakeCluster] = []

    async def main() -> None:
        async with fake_cluster({"orders": 1}) as cluster:
            made.append(cluster)
            for number in range(100):
                cluster.brokers[0].store("orders", 0, b"%d" % number, "")
            arrange(cluster)
            config = ReaderConfig(namesrv=cluster.namesrv, retry_ms=1, timeout_ms=2_000)

            def work() -> None:
                with QueueReader(config) as reader:
                    read(reader)

            await asyncio.to_thread(work)

    run(main())
    return made[0]


def test_a_range_is_read_whole_and_in_order() -> None:
    """Every record is read once up to the queue's end, in results no larger than requested."""

    def read(reader: QueueReader) -> None:
        assert reader.queues("orders") == [QUEUE]
        assert reader.range(QUEUE) == (0, 100)
        results = list(reader.read_range(QUEUE, 5, 1_000, count_max=40))
        assert [len(result.records) for result in results] == [40, 40, 15]
        bodies = [message.body for result in results for message in result.messages("broker-a")]
        assert bodies == [b"%d" % number for number in range(5, 100)]
        assert [message.broker_name for message in results[0].messages("broker-a")][:1] == ["broker-a"]
        assert (results[-1].next_offset, results[-1].max_offset) == (100, 100)
        end = reader.read(QUEUE, 100)
        assert (end.status, end.next_offset, end.records) == (PullStatus.NO_NEW_MESSAGE, 100, ())

    cluster = reading(read)
    allowed = {RequestCode.PULL_MESSAGE, RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET}
    assert set(cluster.brokers[0].codes()) <= allowed
    for pull in cluster.brokers[0].of(RequestCode.PULL_MESSAGE):
        assert (pull.ext["consumerGroup"], pull.ext["sysFlag"], pull.ext["commitOffset"]) == (
            "TOOLS_CONSUMER",
            "4",
            "0",
        )


def test_no_pull_ever_leaves_the_range() -> None:
    """Outside the kept range the reader reports a gap without a pull, because a 4.x broker would store the pull's
    offset."""

    def expire(cluster: FakeCluster) -> None:
        queue = cluster.brokers[0].queues["orders", 0]
        queue.first, queue.records = 60, queue.records[60:]

    def read(reader: QueueReader) -> None:
        below = reader.read(QUEUE, 3)
        assert (below.status, below.next_offset, below.min_offset) == (PullStatus.OFFSET_MOVED, 60, 60)
        above = reader.read(QUEUE, 101)
        assert (above.status, above.next_offset) == (PullStatus.OFFSET_MOVED, 100)
        results = list(reader.read_range(QUEUE, 3, 100))
        assert [(result.status, result.next_offset) for result in results] == [
            (PullStatus.OFFSET_MOVED, 60),
            (PullStatus.FOUND, 100),
        ]

    cluster = reading(read, expire)
    asked = [int(pull.ext["queueOffset"]) for pull in cluster.brokers[0].of(RequestCode.PULL_MESSAGE)]
    assert min(asked) >= 60
    assert max(asked) < 100


def test_the_ranges_of_a_topic_take_one_request() -> None:
    """The reply has the ranges of all queues of the topic: reading them sends no further request."""
    stats = TopicStatsTable({QUEUE: TopicOffset(min_offset=-1, max_offset=100)})

    def with_stats(cluster: FakeCluster) -> None:
        answer = on_code(
            RequestCode.GET_TOPIC_STATS_INFO,
            lambda command: RemotingCommand.reply_to(command, ResponseCode.SUCCESS, body=stats.encode()),
        )
        cluster.brokers[0].script = answer

    def read(reader: QueueReader) -> None:
        assert reader.ranges("orders", "broker-a") == {QUEUE: (0, 100)}
        assert len(reader.read(QUEUE, 0, 10).records) == 10

    codes = reading(read, with_stats).brokers[0].codes()
    assert set(codes) == {RequestCode.GET_TOPIC_STATS_INFO, RequestCode.PULL_MESSAGE}
    assert codes.count(RequestCode.GET_TOPIC_STATS_INFO) == 1


def test_the_topics_of_a_name_server() -> None:
    """All names, sorted, by one request to a name server."""
    found: list[str] = []
    reading(lambda reader: found.extend(reader.topics()))
    assert found == ["TBW102", "orders"]


def test_bytes_bound_a_result_but_never_to_nothing() -> None:
    """A result ends once bytes_max is reached, but has at least one record."""

    def read(reader: QueueReader) -> None:
        assert 1 <= len(reader.read(QUEUE, 0, 100, 1).records) <= 32
        assert len(reader.read(QUEUE, 0, 100).records) == 100

    reading(read)


def test_failures_that_pass_are_tried_again() -> None:
    """A broken connection and a busy broker cost a retry, not the read."""

    def arrange(cluster: FakeCluster) -> None:
        troubles = iter([HANG_UP, None, "busy", None])

        def script(command: Any) -> Any:
            trouble = next(troubles, None)
            return refuse(2)(command) if trouble == "busy" else trouble

        cluster.brokers[0].script = on_code(RequestCode.PULL_MESSAGE, script)

    def read(reader: QueueReader) -> None:
        assert len(reader.read(QUEUE, 0, 100).records) == 100

    reading(read, arrange)


def test_failures_that_stay_say_what_was_tried() -> None:
    """A broker that stays down raises ReadFailed after the retries; a final refusal is raised at once."""

    def gone(cluster: FakeCluster) -> None:
        cluster.brokers[0].script = lambda command: HANG_UP

    def read(reader: QueueReader) -> None:
        with pytest.raises(ReadFailed, match="failed 6 times"):
            reader.read(QUEUE, 0)

    reading(read, gone)

    def forbidden(cluster: FakeCluster) -> None:
        cluster.brokers[0].script = on_code(RequestCode.PULL_MESSAGE, refuse(16, "not readable"))

    def refused(reader: QueueReader) -> None:
        with pytest.raises(NoPermission, match="not readable"):
            reader.read(QUEUE, 0)

    cluster = reading(refused, forbidden)
    assert len(cluster.brokers[0].of(RequestCode.PULL_MESSAGE)) == 1


def test_damaged_answers_are_not_taken_for_records() -> None:
    """Bytes with inconsistent sizes are returned as one piece that is no record; the records before them are
    unchanged."""

    def arrange(cluster: FakeCluster) -> None:
        def damaged(command: Any) -> Any:
            reply = cluster.brokers[0].pull(cluster.brokers[0].connections[0], command)
            assert reply is not None
            reply.body = reply.body[:-3]
            return reply

        cluster.brokers[0].script = on_code(RequestCode.PULL_MESSAGE, damaged)

    def read(reader: QueueReader) -> None:
        *whole, cut = reader.read(QUEUE, 0).records
        assert [decode_head(record).queue_offset for record in whole] == list(range(len(whole)))
        with pytest.raises(RecordError):
            decode_head(cut)

    reading(read, arrange)


def test_unknown_topics_and_dead_name_servers_are_distinguished() -> None:
    """A missing topic raises RouteNotFound; without a reply it is NoNameServer."""

    def read(reader: QueueReader) -> None:
        with pytest.raises(RouteNotFound, match="nothing"):
            reader.queues("nothing")
        dead = QueueReader(ReaderConfig(namesrv="127.0.0.1:1", retry_count=0))
        with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1"):
            dead.queues("orders")

    reading(read)


def test_configuration_pickles() -> None:
    """A Spark driver can pickle it for its workers."""
    config = ReaderConfig(namesrv="a:1;b:2", rate_max=5.0)
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_rate_limit_spreads_records_over_time() -> None:
    """The rate is the number of records per second over the reader's life, whatever the size of each result; 0 is no
    limit."""
    now = 100.0
    limit = RateLimit(50, clock=lambda: now)
    assert limit.wait_s(100) == 2.0
    now += 2.0
    assert limit.wait_s(25) == 0.5
    now += 10
    assert limit.wait_s(50) == 1.0
    assert RateLimit(0).wait_s(1_000_000) == 0.0
