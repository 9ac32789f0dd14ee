"""Fast failure by queue wait, rate limits per topic and group, and groups that lag too far behind."""

import pytest

from mqtrail.broker.lane import Lane
from mqtrail.broker.messages.protection import PROTECT_EVERY_MS, Wait
from mqtrail.broker.requests import WAITS
from mqtrail.broker.tables.limits import BUCKETS_MAX, PULL_ATTRIBUTE, SEND_ATTRIBUTE, RateLimits
from mqtrail.wire import (
    BatchItem,
    FlowControl,
    RemotingCommand,
    RequestCode,
    SendMessageHeader,
    SubscriptionGroupConfig,
    SystemBusy,
    TopicConfig,
    encode_batch,
    encode_command,
)

from ..helpers import NOW_MS, PEER, Bench


@pytest.mark.parametrize(
    ("code", "limit_ms"),
    [(310, 200), (36, 200), (11, 5_000), (361, 5_000), (34, 31_000), (37, 3_000), (200051, 3_000), (202, 5_000)],
)
def test_what_waited_too_long_is_refused(code: int, limit_ms: int) -> None:
    """The refusal has code 2 and Java's text, exactly at the limit for the request's kind."""
    guard = Bench().broker.fast_failure
    request = RemotingCommand(code, opaque=7)
    assert guard.refuse(PEER, request, limit_ms - 1, 10) is None
    sends = guard.refuse(PEER, request, limit_ms, 10)
    assert sends is not None
    (send,) = sends
    assert (send.peer, send.command.code, send.command.opaque) == (PEER.id, 2, 7)
    assert send.command.remark == (
        f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {limit_ms}ms, "
        "size of queue: 10"
    )
    assert guard.refused_count == 1


def test_who_may_wait() -> None:
    """The limit ignores responses, requests of queues that Java does not check, and all requests when switched off."""
    bench = Bench()
    guard = bench.broker.fast_failure
    for code in (12, 33, 38, 14, 15, 35):
        assert WAITS[code] is Wait.UNLIMITED
        assert guard.refuse(PEER, RemotingCommand(code), 10**6, 0) is None
    assert guard.refuse(PEER, RemotingCommand(0, flag=1), 10**6, 0) is None
    assert guard.refuse(PEER, RemotingCommand(310, flag=2), 10**6, 0) == []
    assert guard.shortest_ms == 200
    bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"waitTimeMillsInSendQueue=500\n")
    assert guard.shortest_ms == 500
    bench.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerFastFailureEnable=false\n")
    assert guard.shortest_ms is None
    assert guard.refuse(PEER, RemotingCommand(310), 10**6, 0) is None


def test_a_topic_takes_so_many_a_second() -> None:
    """A burst of two seconds' worth, then the rate; other topics and the broker's own topics are not limited."""
    bench = Bench(topic_send_rate_max=5)
    assert [bench.send().code for _ in range(11)] == [0] * 10 + [2]
    remark = bench.send().remark or ""
    assert remark.startswith("[FLOW_CONTROL]broker busy")
    assert "orders accepts 5 messages a second" in remark
    assert bench.send("other").code == 0
    assert [bench.send("RMQ_SYS_x").code for _ in range(11)].count(2) == 1
    assert [bench.send("TBW102").code for _ in range(20)] == [0] * 20
    bench.now_ms += 400
    assert [bench.send().code for _ in range(3)] == [0, 0, 2]
    assert bench.broker.limits.refused_sends == {"orders": 3, "RMQ_SYS_x": 1}


def test_a_batch_counts_whole() -> None:
    """A batch is accepted while one message is allowed; its other messages reduce the later allowance."""
    bench = Bench(topic_send_rate_max=1)
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=1, batch=True).to_ext_v2()
    body = encode_batch([BatchItem(b"x")] * 5)
    assert bench.ask(RequestCode.SEND_BATCH_MESSAGE, header, body).code == 0
    bench.now_ms += 3_000
    assert bench.send().code == 2
    bench.now_ms += 1_000
    assert bench.send().code == 0


def test_a_group_gets_so_many_a_second() -> None:
    """Pulls return fewer messages, then none: code 215, or 2 for clients before 5.0."""
    bench = Bench(group_pull_rate_max=3)
    for _ in range(20):
        bench.send()
    assert bench.pull(count=4).ext["nextBeginOffset"] == "4"
    assert bench.pull(queue_offset=4).ext["nextBeginOffset"] == "6"
    assert bench.pull(queue_offset=6).code == 215
    assert bench.ask(RequestCode.PULL_MESSAGE, bench.pull_ext(queue_offset=6), version=409).code == 2
    assert bench.pull(queue_offset=6, group="h").code == 0
    bench.now_ms += 1_000
    assert bench.pull(queue_offset=6).ext["nextBeginOffset"] == "9"
    assert bench.broker.limits.refused_pulls == {"g": 2}


def test_rates_of_attributes() -> None:
    """The attribute of a topic or group overrides the setting; 0 means no limit; an invalid one is ignored."""
    limits = RateLimits(Bench(topic_send_rate_max=5, group_pull_rate_max=6).config)
    for text, expected in (("7", 7), ("0", 0), ("x", 5), ("", 5), ("99999999999", 5)):
        assert limits.send_rate(TopicConfig("t", attributes={SEND_ATTRIBUTE: text})) == expected
    assert limits.pull_rate(SubscriptionGroupConfig("g", attributes={PULL_ATTRIBUTE: "9"})) == 9
    assert limits.pull_rate(SubscriptionGroupConfig("g")) == 6


def test_the_lane_keeps_to_rates() -> None:
    """The lane leaves requests that may be limited to the general path."""
    bench = Bench(topic_send_rate_max=1, group_pull_rate_max=1)
    lane = Lane(bench.broker)
    bench.send()
    bench.now_ms += 60_000
    header = SendMessageHeader("pg", "orders", queue_id=0, born_timestamp=NOW_MS, properties="UNIQ_KEY\x01A1\x02")
    frames = encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), b"x", opaque=1)) * 2
    frames += encode_command(RemotingCommand(RequestCode.PULL_MESSAGE, bench.pull_ext(), opaque=2)) * 2
    served = lane.process(PEER, frames, 0, len(frames), bench.now_ms)
    assert [send.command.code for send in served.sends] == [0, 0, 0, 215]


def test_buckets_are_bounded() -> None:
    """The table of names is bounded."""
    limits = RateLimits(Bench(topic_send_rate_max=1).config)
    for number in range(BUCKETS_MAX + 10):
        limits.take_send(TopicConfig(f"t{number}"), NOW_MS)
    assert len(limits._sends._known) <= BUCKETS_MAX
    limits.take_send(TopicConfig("late"), NOW_MS + 60_000)
    limits.take_send(TopicConfig("late"), NOW_MS + 60_000)
    with pytest.raises(SystemBusy):
        limits.take_send(TopicConfig("late"), NOW_MS + 60_000)
    limits.refused_sends.update(str(number) for number in range(BUCKETS_MAX))
    with pytest.raises(SystemBusy):
        limits.take_send(TopicConfig("late"), NOW_MS + 60_000)
    for _ in range(2):
        limits.take_send(TopicConfig("one more"), NOW_MS + 60_000)
    with pytest.raises(SystemBusy):
        limits.take_send(TopicConfig("one more"), NOW_MS + 60_000)
    assert (limits.refused_sends["late"], limits.refused_sends["one more"]) == (2, 0)
    group = SubscriptionGroupConfig("g", attributes={PULL_ATTRIBUTE: "1"})
    limits.take_pulls(group, 5, NOW_MS)
    with pytest.raises(FlowControl):
        limits.pulls_left(group, NOW_MS)


def test_a_group_that_reads_too_far_back_is_stopped() -> None:
    """disableConsumeIfConsumerReadSlowly: turns off consumeEnable, so pulls are refused; off by default."""
    for protects in (False, True):
        bench = Bench(protect_broker=protects, consumer_fall_behind_size=1_000)
        for _ in range(20):
            bench.send(body=b"x" * 100)
        for group, offset in (("slow", 0), ("quick", 18)):
            bench.pull(queue_offset=offset, group=group, count=1)
        bench.advance(PROTECT_EVERY_MS)
        enabled = {name: bench.broker.groups.all()[name].consume_enable for name in ("slow", "quick")}
        assert enabled == {"slow": not protects, "quick": True}
        assert bench.pull(queue_offset=1, group="slow").code == (16 if protects else 0)
