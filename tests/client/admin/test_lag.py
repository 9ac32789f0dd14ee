"""Lag read from scripted brokers: what they do not report is unknown, and few requests are sent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from mqtrail.client import Admin, ClusterLag, InstanceConfig, QueueLag
from mqtrail.client.admin.asking import Asking
from mqtrail.client.admin.base import REQUESTS_AT_ONCE_MAX
from mqtrail.client.admin.delayed_copies import WAITING_READ_MAX
from mqtrail.client.admin.places import OFFSETS_AT_MEMBERS
from mqtrail.wire import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    ClientConnection,
    ConsumeFromWhere,
    ConsumerConnections,
    ConsumerOffsetTable,
    ConsumeTimeSpan,
    ConsumeTimeSpans,
    ConsumeType,
    DelayOffsetTable,
    MessageModel,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TimerMetric,
    TimerMetrics,
    TopicOffset,
    TopicStatsTable,
)
from tests.client.fake_cluster import SILENT, FakeBroker, FakeCluster, fake_cluster

OLD_MS = 2_000  # the store time of every record of a fake broker


@dataclass
class State:
    """The replies of one broker. spans: (group, topic) -> queue id -> age in ms. refused: codes that it refuses."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    ranges: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    spans: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    members: dict[str, ConsumerConnections] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    refused: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()

    def script(self, command: RemotingCommand) -> RemotingCommand | None:
        if command.code in self.silent:
            return SILENT
        if command.code in self.refused:
            return RemotingCommand.reply_to(command, ResponseCode.NO_PERMISSION, "not allowed")
        body = self.body(command)
        if body is None:
            return None
        return body if isinstance(body, RemotingCommand) else RemotingCommand.reply_to(command, 0, body=body)

    def body(self, command: RemotingCommand) -> bytes | RemotingCommand | None:
        ext = command.ext
        match command.code:
            case RequestCode.GET_ALL_CONSUMER_OFFSET:
                return ConsumerOffsetTable(self.offsets).encode()
            case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                return SubscriptionGroupTable({name: SubscriptionGroupConfig(name) for name in self.groups}).encode()
            case RequestCode.GET_CONSUMER_CONNECTION_LIST:
                found = self.members.get(ext["consumerGroup"])
                if found is None:
                    return RemotingCommand.reply_to(command, ResponseCode.CONSUMER_NOT_ONLINE, "not online")
                return found.encode()
            case RequestCode.GET_TOPIC_STATS_INFO:
                ranges = self.ranges.get(ext["topic"])
                if ranges is None:
                    return RemotingCommand.reply_to(command, ResponseCode.TOPIC_NOT_EXIST, "no topic")
                queues = {MessageQueue(ext["topic"], "b", one): TopicOffset(*ends) for one, ends in ranges.items()}
                return TopicStatsTable(queues).encode()
            case RequestCode.QUERY_CONSUME_TIME_SPAN:
                ages = self.spans.get((ext["group"], ext["topic"]), {})
                spans = (ConsumeTimeSpan(delay_time=age, message_queue={"queueId": one}) for one, age in ages.items())
                return ConsumeTimeSpans(tuple(spans)).encode()
            case RequestCode.GET_ALL_DELAY_OFFSET:
                return DelayOffsetTable(self.levels).encode()
            case RequestCode.GET_TIMER_METRICS:
                return TimerMetrics({name: TimerMetric(count) for name, count in self.timers.items()}).encode()
        return None


@dataclass
class Scripted:
    """A cluster of two brokers and an admin."""

    cluster: FakeCluster
    admin: Admin
    states: list[State]

    @property
    def broker(self) -> FakeBroker:
        return self.cluster.brokers[0]

    def topic(self, name: str, *ranges: tuple[int, int], state: int = 0) -> None:
        self.cluster.name_server.topics[name] = len(ranges)
        self.states[state].ranges[name] = dict(enumerate(ranges))

    async def queues(self, group: str, **more: int) -> list[QueueLag]:
        [found] = (await self.admin.lag(group, **more)).groups
        return list(found.queues)

    def asked(self) -> Counter[RequestCode]:
        return Counter(RequestCode(code) for one in self.cluster.brokers for code in one.codes())


def online(
    *topics: str, model: str = MessageModel.CLUSTERING, kind: str = ConsumeType.CONSUME_PASSIVELY, first: bool = False
) -> ConsumerConnections:
    where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET if first else ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions = {topic: SubscriptionData.build(topic, "A") for topic in topics}
    return ConsumerConnections((ClientConnection("c1", "127.0.0.1:1", "JAVA", 1),), subscriptions, kind, model, where)


@asynccontextmanager
async def scripted_cluster() -> AsyncIterator[Scripted]:
    async with fake_cluster({}, 2) as cluster:
        states = [State(), State()]
        for broker, state in zip(cluster.brokers, states, strict=True):
            broker.script = state.script
        async with Admin(cluster.namesrv, config=InstanceConfig(request_timeout_ms=500)) as admin:
            yield Scripted(cluster, admin, states)


async def test_ages_are_of_the_broker() -> None:
    """303 returns the ages of waiting queues, with one request for all queues of a topic; nothing is pulled."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 9), (0, 9), (0, 9))
        scripted.states[0].offsets = {"orders@CG": {0: 5, 1: 9, 2: 8}}
        scripted.states[0].spans["CG", "orders"] = {0: 70_000, 1: 0, 2: 30}
        found = await scripted.admin.lag()
        [group] = found.groups
        assert [(lag.lag_count, lag.lag_ms) for lag in group.queues] == [(4, 70_000), (0, 0), (1, 30)]
        assert (group.topics.lag_count, group.lag_ms, group.is_unknown, found.problems) == (5, 70_000, False, ())
        asked = scripted.asked()
        assert (asked[RequestCode.QUERY_CONSUME_TIME_SPAN], asked[RequestCode.PULL_MESSAGE]) == (1, 0)


async def test_what_303_cannot_tell_is_pulled() -> None:
    """If the offset expired, has no store time, or the group read on, the message itself is pulled once for its
    time."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (3, 9), (0, 9), (0, 9))
        for queue_id in range(3):
            for _ in range(9):
                scripted.broker.store("orders", queue_id, b"", "")
        scripted.broker.queues["orders", 0].first = 3
        del scripted.broker.queues["orders", 0].records[:3]
        scripted.states[0].offsets = {"orders@CG": {0: 1, 1: 4, 2: 4}, "orders@Other": {0: 2, 1: 9, 2: 9}}
        now_ms = int(time.time() * 1000)
        scripted.states[0].spans["CG", "orders"] = {0: now_ms + 1, 1: now_ms + 1, 2: 0}
        found = {one.group_name: one for one in (await scripted.admin.lag()).groups}
        assert all(lag.lag_ms is not None and lag.lag_ms >= now_ms - OLD_MS for lag in found["CG"].queues)
        assert [lag.lag_count for lag in found["CG"].queues] == [6, 5, 5]
        assert found["CG"].topics.expired_count == 2
        assert "2 messages expired before the group read them" in found["CG"].why[0]
        assert found["Other"].queues[0].lag_ms is not None
        assert scripted.asked()[RequestCode.PULL_MESSAGE] == 3, (
            "the first message of queue 0 is read once for both groups"
        )


async def test_an_unreadable_message_has_no_age() -> None:
    """The message is inside the range but the pull finds nothing: its age is unknown, not 0."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (3, 9))
        scripted.states[0].offsets = {"orders@CG": {0: 1}}
        scripted.broker.queue({"topic": "orders", "queueId": "0"}).first = 3
        [lag] = await scripted.queues("CG")
        assert (lag.lag_count, lag.lag_ms) == (6, None)
        assert "could not be read" in lag.why


async def test_a_clock_that_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of a message stored in the future of this host's clock is unknown."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 1))
        scripted.broker.store("orders", 0, b"", "")
        scripted.states[0].offsets = {"orders@CG": {0: 0}}
        monkeypatch.setattr("mqtrail.client.admin.ages.now_ms", lambda: OLD_MS - 5_000)
        [lag] = await scripted.queues("CG")
        assert lag.lag_ms is None
        assert "5000 ms ahead" in lag.why


async def test_a_silent_broker_makes_its_queues_unknown() -> None:
    """The broker gets no further requests; its queues, known from the route, are listed with the reason."""
    async with scripted_cluster() as scripted:
        for state in (0, 1):
            scripted.topic("orders", (0, 9), state=state)
            scripted.states[state].offsets = {"orders@CG": {0: 9}}
        scripted.states[1].silent = (int(RequestCode.GET_ALL_CONSUMER_OFFSET),)
        found = await scripted.admin.lag()
        [group] = found.groups
        known, unknown = group.queues
        assert (known.broker_name, known.lag_count) == ("broker-a", 0)
        assert (unknown.broker_name, unknown.lag_count, unknown.lag_ms) == ("broker-b", None, None)
        assert "127.0.0.1" in unknown.why
        assert (group.topics.lag_count, group.topics.lag_ms, group.topics.unknown_count) == (0, None, 1)
        assert (group.lag_ms, group.delayed_count) == (None, None)
        assert len(found.problems) == 1
        assert "broker broker-b did not answer" in found.problems[0]
        assert scripted.cluster.brokers[1].codes() == [RequestCode.GET_ALL_CONSUMER_OFFSET]


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, (None, None)),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, (None, None)),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, (4, None)),
    ],
)
async def test_a_refusal_makes_what_it_is_about_unknown(
    code: RequestCode, unknown: tuple[int | None, int | None]
) -> None:
    """The broker's reason is in the queue's entry and among the problems."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 9))
        scripted.states[0].offsets = {"orders@CG": {0: 5}}
        scripted.states[0].groups = scripted.states[1].groups = ("CG",)
        scripted.states[1].members["CG"] = online("orders")
        scripted.states[0].refused = (int(code),)
        found = await scripted.admin.lag()
        [lag] = [lag for one in found.groups for lag in one.queues if lag.broker_name == "broker-a"]
        assert (lag.lag_count, lag.lag_ms) == unknown
        assert "not allowed" in lag.why
        assert any("not allowed" in problem for problem in found.problems)


async def test_groups_without_offsets() -> None:
    """Lag is unknown unless the group starts at the first message or the queue is empty. An unknown group is not
    found."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 9), (4, 4))
        scripted.broker.store("orders", 0, b"", "")
        state = scripted.states[0]
        state.groups = ("Last", "First", "Idle")
        state.members = {"Last": online("orders"), "First": online("orders", first=True)}
        found = await scripted.admin.lag()
        lags = {one.group_name: [lag.lag_count for lag in one.queues] for one in found.groups}
        assert lags == {"Last": [None, 0], "First": [9, 0]}
        assert found.idle_groups == ("Idle",)
        assert (await scripted.admin.lag("Idle")).groups[0].queues == ()
        assert (await scripted.admin.lag("Nobody")).groups == ()


async def test_broadcasting_groups() -> None:
    """Members keep the offsets, so lag is unknown, even if the broker has an older offset."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 9))
        scripted.states[0].offsets = {"orders@All": {0: 5}, "orders@Proxied@broadcast": {0: 5}}
        scripted.states[0].members = {
            "All": online("orders", model=MessageModel.BROADCASTING),
            "Proxied": online("orders"),
        }
        for group in (await scripted.admin.lag()).groups:
            assert [(lag.lag_count, lag.why) for lag in group.queues] == [(None, OFFSETS_AT_MEMBERS)]


async def test_retry_topics_are_apart() -> None:
    """The retry topics of the group, and those of popping groups in both forms, are read from the start without an
    offset."""
    async with scripted_cluster() as scripted:
        for topic in ("orders", "%RETRY%CG", "%RETRY%CG_orders", "%RETRY%CG+orders", "%RETRY%CG_other"):
            scripted.topic(topic, (0, 2))
            scripted.broker.store(topic, 0, b"", "")
        state = scripted.states[0]
        state.offsets = {"orders@CG": {0: 2}, "%RETRY%CG@CG": {0: 1}}
        state.members["CG"] = online("orders", "%RETRY%CG", kind=ConsumeType.CONSUME_POP)
        state.spans["CG", "%RETRY%CG"] = {0: 900}
        [group] = (await scripted.admin.lag()).groups
        lags = {lag.topic: lag.lag_count for lag in group.queues}
        assert lags == {"orders": 0, "%RETRY%CG": 1, "%RETRY%CG+orders": 2, "%RETRY%CG_orders": 2}
        assert (group.topics.lag_count, group.retry.lag_count) == (0, 5)
        assert any("it pops" in why for why in group.why)


async def test_left_and_deleted_topics_do_not_wait() -> None:
    """Offsets of earlier subscriptions are listed but not counted; a deleted topic has no queues."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 9))
        scripted.topic("old", (0, 9))
        scripted.states[0].offsets = {"orders@CG": {0: 9}, "old@CG": {0: 1}, "gone@Off": {0: 1}, "orders@Off": {0: 9}}
        scripted.states[0].members["CG"] = online("orders")
        groups = {one.group_name: one for one in (await scripted.admin.lag()).groups}
        assert [lag.topic for lag in groups["CG"].queues] == ["orders"]
        assert groups["CG"].why == ("not counted, because its members do not subscribe to them any more: old",)
        assert [(lag.topic, lag.lag_count) for lag in groups["Off"].queues] == [("orders", 0)]


async def test_copies_that_wait_for_the_next_attempt() -> None:
    """Copies in delay levels are read; the broker counts those in the timer."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 9))
        scripted.topic(SCHEDULE_TOPIC, (0, 0), (0, 0), (0, 3))
        scripted.topic(TIMER_TOPIC, (0, 5))
        state = scripted.states[0]
        state.offsets = {"orders@CG": {0: 9}, "orders@Other": {0: 9}}
        for name in ("%RETRY%CG", "%RETRY%CG", "orders"):
            scripted.broker.store(SCHEDULE_TOPIC, 2, b"", f"REAL_TOPIC\1{name}\2REAL_QID\0010\2")
        state.levels = {3: 1}  # the first was delivered
        state.timers = {"%RETRY%CG": 4, "orders": 8}
        counts = {one.group_name: one.delayed_count for one in (await scripted.admin.lag()).groups}
        assert counts == {"CG": 5, "Other": 0}


async def test_too_many_delayed_messages_are_not_read() -> None:
    """Above the limit, the number of delayed copies is unknown for every group."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 9))
        scripted.topic(SCHEDULE_TOPIC, (0, WAITING_READ_MAX + 1))
        scripted.states[0].offsets = {"orders@CG": {0: 9}}
        [group] = (await scripted.admin.lag()).groups
        assert group.delayed_count is None
        assert f"at most {WAITING_READ_MAX} are read" in group.why[0]
        assert scripted.asked()[RequestCode.PULL_MESSAGE] == 0


async def test_requests_do_not_grow_with_queues() -> None:
    """For many groups of eight queues, the number of requests depends on brokers, topics and groups only."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", *[(0, 9)] * 8)
        state = scripted.states[0]
        state.offsets = {f"orders@G{number}": dict.fromkeys(range(8), 5) for number in range(50)}
        for number in range(50):
            state.spans[f"G{number}", "orders"] = dict.fromkeys(range(8), 10)
        found = await scripted.admin.lag()
        assert len(found.groups) == 50
        asked = Counter(RequestCode(code) for code in scripted.broker.codes())
        assert asked == {
            RequestCode.GET_ALL_CONSUMER_OFFSET: 1,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: 1,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: 50,
            RequestCode.GET_TOPIC_STATS_INFO: 3,  # the topic, and those of delays
            RequestCode.QUERY_CONSUME_TIME_SPAN: 50,
        }


async def test_the_oldest_messages() -> None:
    """The list has the first waiting message of every queue, with the group's filter; ages use the broker's clock."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 3), (0, 3))
        for number in range(6):
            tag = "AB"[number % 2]
            scripted.broker.store("orders", number % 2, b"", f"KEYS\1k{number}\2TAGS\1{tag}\2UNIQ_KEY\1ID{number}\2")
        scripted.states[0].offsets = {"orders@CG": {0: 1, 1: 0}}
        scripted.states[0].members["CG"] = online("orders")
        scripted.states[0].spans["CG", "orders"] = {0: 50, 1: 80}
        found: ClusterLag = await scripted.admin.lag("CG", oldest_count=2)
        assert found.looked_at_count == 4
        first, second = found.oldest
        assert (first.msg_id, first.keys, first.queue_id, first.queue_offset, first.store_ms) == (
            "ID1",
            "k1",
            1,
            0,
            OLD_MS,
        )
        assert (first.lag_ms, first.is_accepted, second.msg_id) == (80, False, "ID3")
        assert (await scripted.admin.lag(oldest_count=2)).oldest == (), "messages are of one group"


async def test_a_trend_needs_two_readings() -> None:
    """The second reading is shown; without it the trend is unknown."""
    async with scripted_cluster() as scripted:
        scripted.topic("orders", (0, 100))
        scripted.states[0].offsets = {"orders@CG": {0: 10}}
        scripted.states[0].spans["CG", "orders"] = {0: 10}
        usual, readings = scripted.broker.script, 0

        def read_on(command: RemotingCommand) -> RemotingCommand | None:
            nonlocal readings
            if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
                readings += 1
                scripted.states[0].offsets = {"orders@CG": {0: 10 * readings}}
            return usual(command)

        [group] = (await scripted.admin.lag()).groups
        assert group.trend.state == "UNKNOWN"
        scripted.broker.script = read_on
        found = await scripted.admin.lag("CG", over_ms=20)
        [group] = found.groups
        [lag] = group.queues
        assert (found.over_ms, lag.consumer_offset, lag.trend.state, group.trend.state) == (20, 20, "DRAINS", "DRAINS")
        assert (lag.trend.produced_per_s, lag.trend.drain_s is not None) == (0, True)


async def test_questions_wait_in_a_bounded_number() -> None:
    """An unexpected error ends the other requests and is raised unchanged."""
    running = most = 0

    async def ask(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    async def fail(number: int) -> None:
        raise ZeroDivisionError

    async with Admin("127.0.0.1:1") as admin:
        asking = Asking(admin)
        await asking.each(range(500), ask)
        assert most == REQUESTS_AT_ONCE_MAX
        with pytest.raises(ZeroDivisionError):
            await asking.each(range(500), fail)
