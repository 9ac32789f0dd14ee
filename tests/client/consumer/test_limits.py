"""Limits of handlers: rates and numbers by member, topic and key; a limited topic or key holds back no other one."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client import Batch, Consumer, ConsumerConfig, Delivery
from mqtrail.client.delivery.limited import LimitedReady
from mqtrail.client.delivery.limits import HandlerLimits, LimitsNow, RateBucket
from mqtrail.client.delivery.process_queue import ProcessQueue
from mqtrail.client.delivery.ready import Ready
from mqtrail.wire import (
    ConsumerRunningInfo,
    InvalidParameter,
    MessageQueue,
    RemotingCommand,
    RequestCode,
    encode_command,
    encode_properties,
)
from tests.waiting import until

from ..core.test_parts import message
from ..fake_cluster import fake_cluster
from .test_consumer import QUICK, committed, consume, put

QUEUE = ProcessQueue(MessageQueue("orders", "broker-a", 0))


class Settled:
    """Settles nothing. gone: offsets of messages that are not wanted any more."""

    def __init__(self) -> None:
        self.gone: set[int] = set()

    def startable(self, deliveries: Any) -> Any:
        return tuple(one for one in deliveries if one.message.queue_offset not in self.gone)

    def begun(self, deliveries: Any) -> None:
        return None

    def abandon(self, deliveries: Any) -> None:
        return None

    async def settle(self, deliveries: Any, outcomes: Any) -> None:
        return None


OTHER = ProcessQueue(MessageQueue("orders", "broker-a", 1))


def delivery(
    number: int, topic: str = "orders", key: str = "", settler: Settled | None = None, queue: ProcessQueue = QUEUE
) -> Delivery:
    properties = {"__SHARDINGKEY": key} if key else {}
    one = replace(message(number), topic=topic, properties=properties)
    return Delivery(one, queue, settler or Settled())


def ignore(topic: str, count: int) -> None:
    return None


def limits_of(**settings: Any) -> HandlerLimits:
    return HandlerLimits(ConsumerConfig(**settings), ignore)


def start(limits: HandlerLimits, now: float) -> Delivery | Batch | None:
    """Start the next item, if one may."""
    picked = limits.take(now)
    if picked is None:
        return None
    limits.started(picked, picked.item, now)
    return picked.item


@given(
    st.floats(0.01, 1e4),
    st.floats(1, 100),
    st.lists(st.tuples(st.integers(1, 100), st.floats(0, 3)), max_size=60),
)
def test_a_bucket_passes_at_most_burst_and_rate(rate: float, burst: float, asks: list[tuple[int, float]]) -> None:
    """In any interval at most burst + rate * time; whoever waits as long as told is let through."""
    bucket = RateBucket(rate, burst)
    now, passed = 100.0, []
    for wanted, pause in asks:
        now += pause
        count = min(wanted, int(burst))
        if bucket.wait_s(count, now) == 0:
            bucket.take(count, now)
            passed.append((now, count))
        else:
            later = now + bucket.wait_s(count, now) * (1 + 1e-9)
            assert bucket.wait_s(count, now) > 0, "asking costs nothing"
            assert bucket.wait_s(count, later + 1e-9) == 0
            now = later + 1e-9
    for place, (since, _) in enumerate(passed):
        total = 0
        for at, count in passed[place:]:
            total += count
            assert total <= burst + rate * (at - since) + 1e-3


TOPICS = ("orders", "stock", "mail")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(TOPICS), st.sampled_from(["", "a", "b", "c"])),
        st.tuples(st.just("end"), st.integers(0, 50), st.just("")),
        st.tuples(st.just("time"), st.sampled_from([0, 1, 5]), st.just("")),
        st.tuples(st.just("discard"), st.just(0), st.just("")),
    ),
    max_size=120,
)


class Model:
    """HandlerLimits beside a list of all waiting messages, of which the first that may start does."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config
        self.limits = HandlerLimits(config, ignore)
        self.waiting: list[tuple[int, str, str]] = []
        self.running: list[Delivery] = []
        self.starts: dict[str, list[float]] = defaultdict(list)  # topic, or "" for all
        self.now = 0.0

    def put(self, number: int, topic: str, key: str) -> None:
        self.limits.put(delivery(number, topic, key, queue=OTHER if number % 3 == 0 else QUEUE))
        self.waiting.append((number, topic, key))

    def end(self, place: int) -> None:
        if self.running:
            self.limits.ended([self.running.pop(place % len(self.running))], self.now, succeeded=True)

    def may(self, topic: str, key: str) -> bool:
        rates, bounds = self.config.topic_rate_max or {}, self.config.topic_concurrency_max or {}
        of_topic = [one.properties.get("__SHARDINGKEY", "") for one in self.running if one.topic == topic]
        key_max = self.config.key_concurrency_max
        return (
            (not key or key_max is None or of_topic.count(key) < key_max)
            and len(of_topic) < bounds.get(topic, 1_000)
            and self.has_token(topic, rates.get(topic, 0))
            and self.has_token("", self.config.rate_max)
        )

    def has_token(self, name: str, rate: float) -> bool:
        left = burst = max(1.0, rate)
        at = 0.0
        for time in self.starts[name]:
            left, at = min(burst, left + (time - at) * rate) - 1, time
        return not rate or min(burst, left + (self.now - at) * rate) >= 1 - 1e-6

    def start_all(self) -> None:
        item: Delivery | Batch | None = None
        while (expected := next((one for one in self.waiting if self.may(*one[1:])), None)) is not None:
            item = start(self.limits, self.now)
            assert isinstance(item, Delivery)
            assert item.message.queue_offset == expected[0]
            self.waiting.remove(expected)
            self.running.append(item)
            self.starts[item.topic].append(self.now)
            self.starts[""].append(self.now)
        assert start(self.limits, self.now) is None
        assert self.limits.now[1:3] == (len(self.running), len(self.waiting))


@given(
    STEPS,
    st.sampled_from([None, 1, 2]),
    st.sampled_from([{}, {"orders": 1}, {"orders": 2, "stock": 1}]),
    st.sampled_from([{}, {"orders": 0.5}]),
    st.sampled_from([0.0, 2.0]),
)
def test_what_may_start_starts(
    steps: list[tuple[str, Any, str]],
    key_max: int | None,
    bounds: dict[str, int],
    rates: dict[str, float],
    rate: float,
) -> None:
    """Against the model: the first message that may start does, no other, and at the end all have started."""
    model = Model(
        ConsumerConfig(key_concurrency_max=key_max, topic_concurrency_max=bounds, topic_rate_max=rates, rate_max=rate)
    )
    for number, (step, what, key) in enumerate(steps):
        if step == "put":
            model.put(number, what, key)
        elif step == "end":
            model.end(what)
        elif step == "time":
            model.now += what
        else:
            model.limits.discard(OTHER)
            model.waiting = [one for one in model.waiting if one[0] % 3]
        model.start_all()
    while model.waiting or model.running:
        model.now += 2.0
        model.end(0)
        model.start_all()


def test_each_wait_is_counted_once_by_its_limit() -> None:
    """Throttled messages are counted by the setting that they met first, and by topic."""
    counted: Counter[str] = Counter()
    config = ConsumerConfig(topic_concurrency_max={"stock": 1}, key_concurrency_max=1, rate_max=5.0)
    limits = HandlerLimits(config, lambda topic, count: counted.update({topic: count}))
    for number, (topic, key) in enumerate([("stock", ""), ("stock", ""), ("orders", "a"), ("orders", "a")]):
        limits.put(delivery(number, topic, key))
    for _ in range(3):
        while start(limits, 0.0) is not None:
            pass
    assert limits.now == LimitsNow(20, 2, 2, {"topic_concurrency_max": 1, "key_concurrency_max": 1})
    for number in range(4, 9):
        limits.put(delivery(number, "mail"))
    while start(limits, 0.0) is not None:
        pass
    assert limits.now.throttled["rate_max"] == 1, "the first of those that wait; the next one is counted in its turn"
    assert counted == {"stock": 1, "orders": 1, "mail": 1}


def test_a_batch_is_one_handler_with_all_its_keys() -> None:
    """It takes a place of its topic and of each key, and a token for each message; the last one settled frees them."""
    limits = limits_of(batch_count_max=3, key_concurrency_max=1, topic_rate_max={"orders": 3.0}, rate_burst_s=0)
    settler = Settled()
    batch = Batch([delivery(0, key="a"), delivery(1, key="b"), delivery(2)], settler)
    limits.put(batch)
    limits.put(Batch([delivery(3, key="b"), delivery(4, key="c")], settler))
    limits.put(Batch([delivery(5, key="d")], settler))
    assert start(limits, 0.0) is batch
    assert start(limits, 0.0) is None, "no tokens left"
    assert limits.wait_s == pytest.approx(1 / 3)
    third = start(limits, 1.0)
    assert isinstance(third, Batch)
    assert third[0].message.queue_offset == 5
    limits.ended(batch[:2], 1.0, succeeded=True)
    assert start(limits, 1.0) is None
    limits.ended(batch[2:], 1.0, succeeded=True)
    second = start(limits, 1.0)
    assert isinstance(second, Batch)
    assert [one.message.queue_offset for one in second] == [3, 4]


def test_the_key_of_a_message() -> None:
    """The order key, else the first of KEYS, else what the function returns; its failure means no limit."""
    limits = limits_of(key_concurrency_max=1)
    for number, properties in enumerate([{"__SHARDINGKEY": "7", "KEYS": "k"}, {"KEYS": "7 x"}, {"KEYS": "7"}, {}]):
        limits.put(Delivery(replace(message(number), properties=properties), QUEUE, Settled()))
    started = [start(limits, 0.0) for _ in range(3)]
    assert [one.message.queue_offset for one in started if isinstance(one, Delivery)] == [0, 3]

    def key(one: Any) -> str | None:
        return {0: "x", 1: "x", 2: None}[one.queue_offset]

    limits = limits_of(key_concurrency_max=1, limit_key=key)
    for number in range(4):
        limits.put(delivery(number))
    started = [start(limits, 0.0) for _ in range(4)]
    assert [one.message.queue_offset for one in started if isinstance(one, Delivery)] == [0, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 4, "concurrency_min": 5},
        {"concurrency_min": 0},
        {"rate_max": -1.0},
        {"rate_max": float("nan")},
        {"rate_burst_s": float("inf")},
        {"topic_rate_max": {"orders": 0.0}},
        {"topic_concurrency_max": {"orders": 0}},
        {"key_concurrency_max": 0},
    ],
)
def test_contradictory_limits_are_refused(wrong: dict[str, Any]) -> None:
    """The error names the setting."""
    with pytest.raises(InvalidParameter, match=list(wrong)[-1]):
        ConsumerConfig(**wrong)


def test_only_a_limited_consumer_pays() -> None:
    """Without limits, messages pass through the plain queue."""
    assert not ConsumerConfig(topic_rate_max={}, topic_concurrency_max={}).is_limited
    for settings in (
        {"rate_max": 0.5},
        {"concurrency_min": 1},
        {"key_concurrency_max": 1},
        {"topic_rate_max": {"a": 1}},
    ):
        assert ConsumerConfig(**settings).is_limited
    assert not Ready.is_limited


async def test_a_cancelled_caller_takes_nothing() -> None:
    """A caller that is cancelled in its turn passes the turn on; messages that became invalid take no place."""
    settler = Settled()
    limits = limits_of(topic_concurrency_max={"orders": 1})
    ready = LimitedReady(limits)
    callers = [asyncio.create_task(ready.take()) for _ in range(3)]
    await asyncio.sleep(0)
    ready.put(delivery(0, settler=settler))
    callers[0].cancel()
    await asyncio.wait(callers, return_when=asyncio.FIRST_COMPLETED)
    await until(lambda: callers[1].done())
    first = callers[1].result()
    assert isinstance(first, Delivery)
    assert limits.now.running == 1
    for number in (1, 2):
        ready.put(delivery(number, settler=settler))
    settler.gone.add(1)
    ready.ended([first], succeeded=None)
    last = await callers[2]
    assert isinstance(last, Delivery)
    assert last.message.queue_offset == 2
    ready.forget(QUEUE, 2)
    assert limits.now == LimitsNow(20, 0, 0, {})
    callers = [asyncio.create_task(ready.take()) for _ in range(3)]
    await asyncio.sleep(0)
    ready.close()
    assert await asyncio.gather(*callers) == [None] * 3


async def test_callers_are_woken_when_the_rate_allows() -> None:
    """Each token wakes a caller, and what frees several places wakes several."""
    ready = LimitedReady(limits_of(rate_max=500.0, rate_burst_s=0))
    for number in range(5):
        ready.put(delivery(number))
    async with asyncio.timeout(60):
        items = await asyncio.gather(*(ready.take() for _ in range(5)))
    assert sorted(one.message.queue_offset for one in items if isinstance(one, Delivery)) == [0, 1, 2, 3, 4]
    ready = LimitedReady(limits_of(batch_count_max=2, key_concurrency_max=1))
    batch = Batch([delivery(0, key="a"), delivery(1, key="b")], Settled())
    ready.put(batch)
    assert await ready.take() is batch
    callers = [asyncio.create_task(ready.take()) for _ in range(2)]
    ready.put(delivery(2, key="a"))
    ready.put(delivery(3, key="b"))
    await until(lambda: ready.now(0, 0).throttled == {"key_concurrency_max": 2})
    ready.ended(batch, succeeded=True)
    async with asyncio.timeout(60):
        assert len(await asyncio.gather(*callers)) == 2


class Handling:
    """A handler that holds messages until they are released, and notes the most that ran at once."""

    def __init__(self, name: Callable[[Delivery], str]) -> None:
        self.name = name
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: list[bytes] = []
        self.gate = asyncio.Event()

    async def __call__(self, m: Delivery) -> None:
        name = self.name(m)
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        await self.gate.wait()
        self.running[name] -= 1
        self.done.append(m.body)


async def test_a_limited_topic_and_key_do_not_hold_back_others() -> None:
    """With a topic and a key at their limits, the other topics and keys go on; all messages end."""
    async with fake_cluster({"orders": 1, "stock": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "stock", *(b"s%d" % number for number in range(5)))
        for number in range(9):
            key = "hot" if number < 6 else f"cold{number}"
            broker.store("orders", 0, b"%d" % number, encode_properties({"UNIQ_KEY": f"{number}", "KEYS": key}))
        config = replace(QUICK, concurrency=10, topic_concurrency_max={"stock": 2}, key_concurrency_max=1)
        subscriptions = {"orders": "*", "stock": "*"}
        async with Consumer("CG", cluster.namesrv, subscriptions, config=config) as consumer:
            handling = Handling(lambda m: m.keys[0] if m.keys else m.topic)
            task = asyncio.create_task(consumer.run(handling))
            await until(lambda: handling.running.total() == 6)
            assert handling.running == {"stock": 2, "hot": 1, "cold6": 1, "cold7": 1, "cold8": 1}
            await until(lambda: consumer.limits.waiting == 8)
            info = await running_info(consumer)
            assert info["PROP_WAITING_COUNT"] == "8"
            assert info["PROP_THROTTLED_KEY_CONCURRENCY_MAX"] == "1"
            assert info["PROP_THROTTLED_TOPIC_CONCURRENCY_MAX"] == "1"
            handling.gate.set()
            await until(lambda: len(handling.done) == 14)
            await until(lambda: committed(cluster) == {("broker-a", 0): 9})
            assert handling.most == {"stock": 2, "hot": 1, "cold6": 1, "cold7": 1, "cold8": 1}
            assert [body for body in handling.done if body in b"012345"] == [b"%d" % number for number in range(6)]
            assert consumer.stats.totals().throttled == sum(consumer.limits.throttled.values())
        await task


async def running_info(consumer: Consumer) -> dict[str, str]:
    """Return the properties of the running info, as an operator gets them."""
    serving = consumer.serve(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO))
    reply = serving if isinstance(serving, RemotingCommand) or serving is None else await serving
    assert reply is not None
    assert encode_command(reply)
    return ConsumerRunningInfo.decode(reply.body).properties


async def test_what_waits_is_bounded() -> None:
    """Messages that wait for a limit count as cached: nothing more of their queue is pulled."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", *(b"%d" % number for number in range(60)))
        config = replace(QUICK, queue_count_max=10, pull_batch_count=5, flow_control_ms=5, rate_max=1e-6)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            assert await consume(consumer, 1) == [b"0"]
            await until(lambda: consumer.limits.waiting >= 10)
            taking = asyncio.ensure_future(anext(consumer))
            await until(lambda: consumer.limits.throttled == {"rate_max": 1})
            assert consumer.limits.waiting <= 10 + 5
            queue = MessageQueue("orders", "broker-a", 0)
            assert consumer.queue_infos()[queue].cached_msg_count <= 10 + 5
            await consumer.reset_offsets({queue: 60})
            assert consumer.limits.waiting == 0
        with pytest.raises(StopAsyncIteration):
            await taking


async def test_an_ordered_queue_waits_for_its_topic() -> None:
    """Ordered: one queue of the topic at a time, each in order; a failure is retried in place."""
    async with fake_cluster({"orders": 3}) as cluster:
        for queue_id in range(3):
            put(cluster.brokers[0], "orders", *(b"%d%d" % (queue_id, n) for n in range(4)), queue_id=queue_id)
        running: list[bytes] = []
        done: list[bytes] = []
        failed: set[bytes] = set()

        async def handle(m: Delivery) -> None:
            running.append(m.body)
            assert len(running) == 1
            await asyncio.sleep(0)
            running.remove(m.body)
            if m.body.endswith(b"2") and m.body not in failed:
                failed.add(m.body)
                raise ValueError("once")
            done.append(m.body)

        config = replace(QUICK, ordered=True, topic_concurrency_max={"orders": 1}, key_concurrency_max=1)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            task = asyncio.create_task(consumer.run(handle))
            await until(lambda: len(done) == 12)
            assert consumer.limits.running == 0
        await task
        for queue_id in range(3):
            assert [body for body in done if body[:1] == b"%d" % queue_id] == [
                b"%d%d" % (queue_id, n) for n in range(4)
            ]


async def test_a_message_that_was_taken_and_forgotten_frees_its_place() -> None:
    """If no handler begins with it until it is sent back, its place is free again; a running handler keeps its own."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", b"2")
        config = replace(QUICK, topic_concurrency_max={"orders": 1}, consume_timeout_ms=100)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await anext(consumer)  # and never settled
            second = await anext(consumer)
            async with second.process():
                await until(lambda: len(broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)) >= 2)
                assert consumer.limits[1:3] == (1, 1)


async def test_adaptive_concurrency_is_shown() -> None:
    """`concurrency_min` starts at the lower bound; the running info shows the current number."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", *(b"%d" % number for number in range(8)))
        config = replace(QUICK, concurrency=8, concurrency_min=2)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            handling = Handling(lambda m: m.topic)
            task = asyncio.create_task(consumer.run(handling))
            await until(lambda: consumer.limits == LimitsNow(2, 2, 6, {"concurrency_min": 1}))
            assert (await running_info(consumer))["PROP_THREADPOOL_CORE_SIZE"] == "2"
            handling.gate.set()
            await until(lambda: len(handling.done) == 8)
            assert handling.most == {"orders": 2}
        await task


async def test_a_cancelled_handler_frees_its_place() -> None:
    """Its message is delivered again."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"0", b"1")
        config = replace(QUICK, topic_concurrency_max={"orders": 1})
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            handling = Handling(lambda m: m.topic)
            task = asyncio.create_task(consumer.run(handling))
            await until(lambda: handling.running["orders"] == 1)
            task.cancel()
            await asyncio.wait([task])
            assert sorted(await consume(consumer, 2)) == [b"0", b"1"]


async def test_messages_of_a_topic_given_up_do_not_wait() -> None:
    """After the end of a subscription its messages leave the line."""
    async with fake_cluster({"orders": 1, "stock": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"0", b"1")
        config = replace(QUICK, topic_rate_max={"orders": 1e-6})
        async with Consumer("CG", cluster.namesrv, {"orders": "*", "stock": "*"}, config=config) as consumer:
            assert await consume(consumer, 1) == [b"0"]
            assert consumer.limits.waiting == 1
            consumer.unsubscribe("orders")
            await until(lambda: consumer.limits.waiting == 0)
