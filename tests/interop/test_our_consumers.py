"""Our consumers on Apache's brokers: ordered, broadcasting, batches, SQL92, lite pull, POP, server-side assignment."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from interop.apache import ApacheCluster
from interop.driver import JavaClient
from interop.story import SERVER_PROPERTIES
from tests.loops import run

from mqtrail.client import (
    Admin,
    Batch,
    ClientInstance,
    ConsistentHash,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    InstanceConfig,
    LitePullConfig,
    LitePullConsumer,
    MessageModel,
    Producer,
    ProducerConfig,
    RetryLater,
    Sql,
)
from mqtrail.wire import (
    Message,
    MessageQueue,
    RequestCode,
    RequestMode,
    SubscriptionParseFailed,
    TopicConfig,
    dlq_topic,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
INSTANCE = InstanceConfig(request_timeout_ms=8_000, route_refresh_ms=2_000, heartbeat_ms=5_000)
QUICK = ConsumerConfig(consume_from=FIRST, rebalance_ms=1_000, offset_persist_ms=300, instance=INSTANCE)
LITE = LitePullConfig(consume_from=FIRST, rebalance_ms=1_000, offset_persist_ms=300, instance=INSTANCE)
SENDING = ProducerConfig(send_timeout_ms=10_000, instance=INSTANCE)


@pytest.fixture(scope="module", params=["5.3.3", "4.9.7"])
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """An Apache cluster with property filters on."""
    properties = {**SERVER_PROPERTIES, "enablePropertyFilter": "true"}
    with ApacheCluster(request.param, tmp_path_factory.mktemp("apache"), properties=properties) as cluster:
        yield cluster


async def until(condition: Callable[[], object], within_s: float = 120.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


async def shared_out(namesrv: str, group: str, topic: str, counts: list[int]) -> None:
    """Return once every queue of the topic belongs to one member: while queues move, two may read one."""
    async with Admin(namesrv, config=INSTANCE) as admin, asyncio.timeout(120):
        while True:
            gathered = await admin.members(group)
            running = [one.running for members in gathered.found.values() for one in members if one.running is not None]
            tables = [{queue for queue in one.mq_table if queue.topic == topic} for one in running]
            if sorted(map(len, tables)) == counts and len(set().union(*tables)) == sum(counts):
                return
            await asyncio.sleep(0.1)


@asynccontextmanager
async def topic_of(namesrv: str, topic: str, queues: int = 4) -> AsyncIterator[Producer]:
    """A producer, after the topic exists."""
    async with Admin(namesrv, config=INSTANCE) as admin:
        await admin.create_topic(TopicConfig(topic, queues, queues))
        async with asyncio.timeout(120):
            while topic not in await admin.topics():
                await asyncio.sleep(0.1)
    async with Producer(f"P{topic}", namesrv, config=SENDING) as producer:
        yield producer


def of_topic(consumer: Consumer, topic: str) -> list[int]:
    """The ids of the queues that a member has of a topic."""
    return [queue.queue_id for queue in consumer.assignment if queue.topic == topic]


async def set_mode(namesrv: str, topic: str, group: str, mode: str) -> None:
    client = ClientInstance(namesrv, INSTANCE)
    await client.route(topic)
    ((address,),) = [addresses.values() for addresses in client.brokers().values()]
    await client.call(address, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, RequestMode(topic, group, mode).encode())
    await client.close()


async def dead_letters(namesrv: str, group: str) -> list[bytes]:
    async with Admin(namesrv, config=INSTANCE) as admin:
        queues = await admin.queues(dlq_topic(group))
        return [message.body for queue in queues for message in (await admin.pull(queue, 0)).messages()]


async def test_ordered(apache: ApacheCluster) -> None:
    """Two members: each key in order and once; a poison message becomes a dead letter, and the queue continues."""
    namesrv = apache.namesrv_address
    seen: dict[str, list[int]] = defaultdict(list)
    attempts: list[int] = []

    async def handler(m: Delivery) -> None:
        if m.body == b"poison":
            attempts.append(m.attempt)
            raise ValueError("never")
        key, _, number = m.body.decode().partition(" ")
        seen[key].append(int(number))

    config = replace(QUICK, ordered=True, attempts_max=1, suspend_ms=50)
    async with topic_of(namesrv, "Ordered") as producer:
        await producer.send(Message("Ordered", b"poison"), order_key="k0")
        first = Consumer("GOrdered", namesrv, {"Ordered": "*"}, config=config)
        second = Consumer("GOrdered", namesrv, {"Ordered": "*"}, config=config)
        keys = ("k0", "k1", "k2", "k3")
        async with first:
            tasks = [asyncio.create_task(first.run(handler))]
            for number in range(20):
                for key in keys:
                    await producer.send(Message("Ordered", f"{key} {number}".encode()), order_key=key)
            async with second:
                tasks.append(asyncio.create_task(second.run(handler)))
                await until(lambda: [len(of_topic(one, "Ordered")) for one in (first, second)] == [2, 2])
                for number in range(20, 40):
                    for key in keys:
                        await producer.send(Message("Ordered", f"{key} {number}".encode()), order_key=key)
                await until(lambda: all(len(seen[key]) == 40 for key in keys))
        await asyncio.gather(*tasks)
    assert seen == {key: list(range(40)) for key in keys}
    assert attempts[-2:] == [1, 2]
    assert await dead_letters(namesrv, "GOrdered") == [b"poison"]


async def test_broadcasting(apache: ApacheCluster, tmp_path: Path) -> None:
    """Each member gets all messages, and after a restart only new ones."""
    namesrv = apache.namesrv_address
    async with topic_of(namesrv, "Broad") as producer:
        for number in range(10):
            await producer.send(Message("Broad", b"%d" % number))
        for name in ("one", "two", "one"):
            config = replace(
                QUICK, model=MessageModel.BROADCASTING, offset_dir=tmp_path, instance_name=name, consume_from=FIRST
            )
            again = (tmp_path / "seen" / name).exists()
            async with Consumer("GBroad", namesrv, {"Broad": "*"}, config=config) as consumer:
                if again:
                    await producer.send(Message("Broad", b"new"))
                    m = await asyncio.wait_for(anext(consumer), 120)
                    await m.ack()
                    assert m.body == b"new"
                    continue
                bodies: set[bytes] = set()
                while len(bodies) < 10:
                    m = await asyncio.wait_for(anext(consumer), 120)
                    await m.ack()
                    bodies.add(m.body)
            (tmp_path / "seen" / name).mkdir(parents=True)


async def test_batches_and_consistent_hash(apache: ApacheCluster) -> None:
    """Batches of one queue each; only the failed part is redelivered; members by hash share every queue."""
    namesrv = apache.namesrv_address
    async with topic_of(namesrv, "Batches") as producer:
        queue = MessageQueue("Batches", "broker-a", 0)
        for number in range(12):
            await producer.send(Message("Batches", b"%d" % number), queue=queue)
        config = replace(QUICK, batch_count_max=4)
        consumer = Consumer("GBatches", namesrv, config=config, allocation=ConsistentHash())
        done: Counter[bytes] = Counter()
        sizes: list[int] = []

        @consumer.batch_handler("Batches")
        async def handle(batch: Batch) -> None:
            sizes.append(len(batch))
            for m in batch:
                if m.body == b"5" and m.attempt == 1:
                    m.retry_later(1)
                else:
                    done[m.body] += 1

        other = Consumer("GBatches", namesrv, {"Batches": "*"}, config=config, allocation=ConsistentHash())
        async with consumer:
            task = asyncio.create_task(consumer.run())
            await until(lambda: len(done) == 12)
            async with other:
                await until(
                    lambda: (
                        sorted(one for one in (*consumer.assignment, *other.assignment) if one.topic == "Batches")
                        == [MessageQueue("Batches", "broker-a", number) for number in range(4)]
                    )
                )
        await task
    assert set(done.values()) == {1}
    assert max(sizes) == 4


async def test_sql(apache: ApacheCluster) -> None:
    """The broker filters; an invalid expression is refused at the start."""
    namesrv = apache.namesrv_address
    async with topic_of(namesrv, "Sql") as producer:
        for amount in (1, 7, 9):
            await producer.send(Message("Sql", b"%d" % amount, properties={"amount": str(amount)}))
        bodies: set[bytes] = set()
        async with Consumer(
            "GSql", namesrv, {"Sql": Sql("amount > 5 AND amount < 8 OR amount = 9")}, config=QUICK
        ) as c:
            while len(bodies) < 2:
                m = await asyncio.wait_for(anext(c), 120)
                await m.ack()
                bodies.add(m.body)
        assert bodies == {b"7", b"9"}
        with pytest.raises(SubscriptionParseFailed):
            await Consumer("GSqlBad", namesrv, {"Sql": Sql("amount >")}, config=QUICK).start()


async def test_lite_pull(apache: ApacheCluster) -> None:
    """Members share queues and commit; seeks work by offset and time; assigned queues are not shared."""
    namesrv = apache.namesrv_address
    async with topic_of(namesrv, "Lite") as producer:
        for number in range(40):
            await producer.send(Message("Lite", b"%d" % number))
        members = [
            LitePullConsumer("GLite", namesrv, {"Lite": "*"}, config=replace(LITE, auto_commit=False)) for _ in range(2)
        ]
        seen: Counter[bytes] = Counter()
        async with members[0], members[1]:
            await until(
                lambda: sorted(queue.queue_id for member in members for queue in member.assignment) == [0, 1, 2, 3]
            )
            async with asyncio.timeout(120):
                while len(seen) < 40:
                    for member in members:
                        seen.update(one.body for one in await member.poll(timeout_ms=100))
            for member in members:
                await member.commit()
        assert set(seen.values()) == {1}
        async with LitePullConsumer("GLite", namesrv, config=LITE) as reader:
            queue = (await reader.queues("Lite"))[0]
            await reader.assign([queue])
            end = await reader.end_offset(queue)
            assert await reader.committed(queue) == end
            assert await reader.poll(timeout_ms=500) == []
            await reader.seek_to_begin(queue)
            (first, *_) = await reader.poll(timeout_ms=20_000, count_max=1)
            assert first.queue_offset == await reader.begin_offset(queue) == 0
            await reader.seek(queue, end - 1)
            (last,) = await reader.poll(timeout_ms=20_000)
            assert last.queue_offset == end - 1
            assert await reader.offset_for_timestamp(queue, last.store_timestamp_ms) <= end - 1
            beyond = await reader.offset_for_timestamp(queue, last.store_timestamp_ms + 3_600_000)
            assert beyond == (end - 1 if apache.version.startswith("4.") else end)
            reader.pause(queue)
            reader.resume(queue)


async def test_pop_and_assignment(apache: ApacheCluster) -> None:
    """A broker of 5.x assigns queues, pulled and popped; failures are redelivered; with 4.9 the client assigns."""
    namesrv = apache.namesrv_address
    config = replace(QUICK, client_rebalance=False, poll_suspend_ms=3_000)
    seen: Counter[bytes] = Counter()
    attempts: list[tuple[int, str]] = []

    async def handler(m: Delivery) -> RetryLater | None:
        seen[m.body] += 1
        if m.body == b"fails":
            attempts.append((m.attempt, m.topic))
            return RetryLater() if m.attempt == 1 else None
        return None

    async with topic_of(namesrv, "Popped") as producer:
        first, second = (Consumer("GPopped", namesrv, {"Popped": "*"}, config=config) for _ in range(2))
        async with first, second:
            tasks = [asyncio.create_task(one.run(handler)) for one in (first, second)]
            members = (first, second)

            def queue_ids() -> list[list[int]]:
                return [of_topic(member, "Popped") for member in members]

            await until(lambda: sorted(id_ for ids in queue_ids() for id_ in ids) == [0, 1, 2, 3])
            await producer.send(Message("Popped", b"pulled"))
            await until(lambda: seen[b"pulled"])
            if apache.version.startswith("4."):
                await asyncio.gather(*(one.close() for one in members), *tasks)
                return
            await set_mode(namesrv, "Popped", "GPopped", "POP")
            await until(lambda: queue_ids() == [[-1], [-1]])
            for number in range(30):
                await producer.send(Message("Popped", b"%d" % number))
            await producer.send(Message("Popped", b"fails"))
            await until(lambda: len(seen) == 32 and len(attempts) == 2)
            assert attempts == [(1, "Popped"), (2, "Popped")]
            assert {seen[b"%d" % number] for number in range(30)} == {1}
            # Waiting for the invisible time of unacknowledged messages would take too long: ask the broker.
            infos: dict[str, Any] = {one.client_id: one.pop_infos() for one in members}
            assert all(popped.waiting == 0 for table in infos.values() for popped in table.values())
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("mode", ["concurrent", "ordered"])
def test_one_group_with_the_official_client(apache: ApacheCluster, mode: str, tmp_path: Path) -> None:
    """Our and their consumers share queues as one group: each message once; a member that leaves releases its
    queues."""
    namesrv, topic, group = apache.namesrv_address, f"Mixed-{mode}", f"GMixed-{mode}"

    async def main(java: JavaClient) -> None:
        seen: list[bytes] = []

        async def handler(m: Delivery) -> None:
            seen.append(m.body)

        def theirs() -> list[bytes]:
            return [event["body"].encode() for event in java.events("ended")]

        async with topic_of(namesrv, topic) as producer:
            await asyncio.to_thread(
                java.consumer, "theirs", group=group, topics={topic: "*"}, orderly=mode == "ordered" or None
            )
            config = replace(QUICK, ordered=mode == "ordered")
            async with Consumer(group, namesrv, {topic: "*"}, config=config) as consumer:
                task = asyncio.create_task(consumer.run(handler))
                await shared_out(namesrv, group, topic, [2, 2])
                for number in range(40):
                    queue = MessageQueue(topic, "broker-a", number % 4)
                    await producer.send(Message(topic, b"%d" % number), queue=queue)
                await until(lambda: len(seen) + len(theirs()) >= 40)
            await task
            assert sorted(seen + theirs()) == sorted(b"%d" % number for number in range(40))
            assert len(seen) == len(theirs()) == 20
            # The official client now has the queues that we released.
            for number in range(40, 44):
                queue = MessageQueue(topic, "broker-a", number % 4)
                await producer.send(Message(topic, b"%d" % number), queue=queue)
            await until(lambda: {b"40", b"41", b"42", b"43"} <= set(theirs()))

    with JavaClient("5.3.3" if apache.version.startswith("5") else "4.9.8", tmp_path, namesrv) as java:
        run(main(java))
