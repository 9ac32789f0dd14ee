"""Consumers and faults: cancellation at any await, forks, several loops, lost servers, changed routes."""

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from mqtrail.client import (
    ClientClosed,
    ClientInstance,
    Consumer,
    Delivery,
    LitePullConfig,
    LitePullConsumer,
    NoNameServer,
    Producer,
    RetryLater,
    SyncConsumer,
    SyncProducer,
)
from mqtrail.wire import Message, MessageQueue, RemotingCommand, RequestCode
from tests.waiting import until

from ...loops import run
from ..fake_cluster import FakeBroker, FakeCluster, FakeNameServer, fake_cluster
from ..fake_pop import FakePop
from ..sync.test_sync import cluster_in_a_thread
from .test_consumer import QUICK, committed, consume, put
from .test_lite_pull import LITE

COUNT = 30


@pytest.mark.parametrize("mode", ["concurrent", "ordered", "batches"])
@pytest.mark.parametrize("seed", range(3))
async def test_handlers_cancelled_anywhere_lose_nothing(mode: str, seed: int) -> None:
    """Tasks that take messages are cancelled at random awaits: every message is handled, none blocks its queue."""
    chance = random.Random(f"{mode} {seed}")

    async with fake_cluster({"orders": 2, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        for queue_id in range(2):
            put(broker, "orders", *(b"%d-%d" % (queue_id, number) for number in range(COUNT)), queue_id=queue_id)
        done: Counter[bytes] = Counter()
        order: dict[int, list[bytes]] = {0: [], 1: []}
        config = replace(QUICK, ordered=mode == "ordered", batch_count_max=3 if mode == "batches" else 1)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            batches = consumer.batches()

            async def work() -> None:
                while True:
                    item = await anext(batches)
                    async with item.process():
                        for _ in range(chance.randrange(4)):
                            await asyncio.sleep(0)
                        if chance.random() < 0.2:
                            raise RetryLater
                        for m in item:
                            done[m.body] += 1
                            order[m.queue.queue_id].append(m.body)

            async with asyncio.timeout(30):
                while len(done) < 2 * COUNT:
                    tasks = [asyncio.create_task(work()) for _ in range(3)]
                    for _ in range(chance.randrange(12)):
                        await asyncio.sleep(0)
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                await until(lambda: committed(cluster) == {("broker-a", 0): COUNT, ("broker-a", 1): COUNT})
        if mode == "ordered":
            for queue_id in range(2):
                first = list(dict.fromkeys(order[queue_id]))
                assert first == [b"%d-%d" % (queue_id, number) for number in range(COUNT)]


async def test_a_settlement_outlives_its_caller() -> None:
    """Cancelling a wait for a retry still sends the message back, once."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"x")
        gate: list[RemotingCommand] = []

        def script(command: RemotingCommand) -> RemotingCommand | None:
            if command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
                gate.append(command)
            return None

        broker.script = script
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            m = await anext(consumer)
            task = asyncio.create_task(m.retry())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            again = await anext(consumer)
            assert (again.body, again.attempt) == (b"x", 2)
            await again.ack()
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})
        assert len(gate) == 1


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    """A start cancelled at any await leaves no group, task or connection; the next start works."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"x")
        (broker,) = cluster.brokers
        make: list[Callable[[], Consumer | LitePullConsumer]] = [
            lambda: Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK),
            lambda: LitePullConsumer("CG", cluster.namesrv, {"orders": "*"}, config=LITE),
        ]
        for made in make:
            for turns in range(0, 60, 3):
                consumer = made()
                task = asyncio.create_task(consumer.start())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    await consumer.close()
                    break
            await until(lambda: not broker.connections and not cluster.name_server.connections)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer:
            await until(lambda: consumer.client_id in broker.groups["CG"])
            broker.groups["CG"] = {consumer.client_id}  # a cancelled start could not always take its leave
            assert await consume(consumer, 1) == [b"x"]


async def test_a_close_that_is_cancelled_can_be_repeated() -> None:
    """The second call does nothing, and no finished message is lost."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"0", b"1")
        consumer = Consumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK)
        await consumer.start()
        m = await anext(consumer)
        m.begin()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)  # it has begun, and waits for the handler
        closing.cancel()
        await asyncio.wait([closing])
        await consumer.close()
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)


def test_loops_do_not_meet() -> None:
    """Consumers and producers in several event loops and threads of one process do not disturb each other."""
    with cluster_in_a_thread() as cluster:
        cluster.name_server.topics |= {"a": 1, "b": 1, "c": 1}
        got: dict[str, list[bytes]] = {}

        async def live(topic: str) -> None:
            config = replace(QUICK, rebalance_ms=100)
            async with (
                Producer(f"P{topic}", cluster.namesrv) as producer,
                Consumer(f"G{topic}", cluster.namesrv, {topic: "*"}, config=config) as consumer,
            ):
                for number in range(20):
                    await producer.send(Message(topic, b"%d" % number))
                got[topic] = await consume(consumer, 20)

        threads = [threading.Thread(target=lambda topic=topic: asyncio.run(live(topic))) for topic in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert got == {topic: [b"%d" % number for number in range(20)] for topic in "abc"}


def test_a_child_after_fork_is_another_member() -> None:
    """A SyncConsumer made before a fork joins the group again in the child, with its own id."""
    with (
        cluster_in_a_thread({"orders": 2, "%RETRY%CG": 1}) as cluster,
        SyncProducer("PG", cluster.namesrv) as producer,
        SyncConsumer("CG", cluster.namesrv, {"orders": "*"}, config=QUICK) as consumer,
    ):
        (broker,) = cluster.brokers
        parent_id = consumer._get().client_id
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:  # pragma: no cover
            try:
                m = consumer.receive(timeout_ms=15_000)
                assert m is not None
                m.ack()
                os.write(writing, m.body + b" " + consumer._get().client_id.encode())
                consumer.close()
                os._exit(0)
            finally:
                os._exit(1)
        os.close(writing)
        pause = threading.Event()
        while len(broker.groups["CG"]) < 2:
            pause.wait(0.005)
        for queue_id in range(2):  # one of the two queues is the child's by then
            producer.send(Message("orders", b"x"), queue=MessageQueue("orders", "broker-a", queue_id))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with os.fdopen(reading, "rb") as pipe:
            body, child_id = pipe.read().split(b" ")
        assert (body, child_id.decode() != parent_id) == (b"x", True)
        other = consumer.receive(timeout_ms=15_000)
        assert other is not None
        other.ack()


async def test_a_name_server_that_is_gone() -> None:
    """At the start it is an error; later the cached routes are used, and a name server that returns is queried
    again."""
    with pytest.raises(NoNameServer):
        await Consumer("CG", "127.0.0.1:1", {"orders": "*"}, config=QUICK).start()
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        config = replace(QUICK, instance=replace(QUICK.instance, request_timeout_ms=500))
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await until(lambda: consumer.assignment)
            port = int(cluster.namesrv.rpartition(":")[2])
            await cluster.name_server.server.stop()
            put(broker, "orders", b"while it is gone")
            assert await consume(consumer, 1) == [b"while it is gone"]
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})
            back = FakeNameServer(cluster.brokers, port)
            back.topics = {"orders": 2}
            await back.server.start()
            try:
                await until(lambda: len(consumer.assignment) == 2)
            finally:
                await back.server.stop()


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_broker_that_is_gone(ordered: bool) -> None:
    """Queues of other brokers continue; when the broker is back, its queues continue from their committed offsets."""
    async with fake_cluster({"orders": 1}, 2) as cluster:
        first, second = cluster.brokers
        put(first, "orders", b"a0")
        put(second, "orders", b"b0")
        instance = replace(QUICK.instance, request_timeout_ms=500)
        config = replace(QUICK, ordered=ordered, lock_valid_ms=500, instance=instance)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            assert sorted(await consume(consumer, 2)) == [b"a0", b"b0"]
            await until(lambda: sum(committed(cluster).values()) == 2)
            port = int(first.address.rpartition(":")[2])
            await first.server.stop()
            put(second, "orders", b"b1")
            assert await consume(consumer, 1) == [b"b1"]
            first.bind(port)
            await first.server.start()
            put(first, "orders", b"a1")
            assert await consume(consumer, 1) == [b"a1"]
            await until(lambda: committed(cluster) == {("broker-a", 0): 2, ("broker-b", 0): 2})


def test_a_route_that_changes_in_flight() -> None:
    """Queues and brokers are added and removed while messages flow: all are handled, those of one queue in order."""
    brokers_by_name: dict[str, FakeBroker] = {}

    def stored(name: str, queue_id: int) -> int:
        return len(brokers_by_name[name].queues["orders", queue_id].records)

    async def main() -> None:
        async with fake_cluster({"orders": 1}, 2) as cluster:
            first, second = cluster.brokers
            cluster.name_server.brokers = [first]
            brokers_by_name.update({broker.name: broker for broker in cluster.brokers})
            seen: dict[tuple[str, int], list[int]] = {}

            async def handler(m: Delivery) -> None:
                seen.setdefault((m.queue.broker_name, m.queue.queue_id), []).append(int(m.body))

            config = replace(QUICK, ordered=True)
            async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
                task = asyncio.create_task(consumer.run(handler))
                for round_, (count, brokers) in enumerate(
                    [
                        (1, [first]),
                        (3, [first]),
                        (3, [first, second]),
                        (2, [first, second]),
                        (2, [second]),
                        (2, [first]),
                    ]
                ):
                    cluster.name_server.brokers, cluster.name_server.topics["orders"] = brokers, count
                    for broker in brokers:
                        for queue_id in range(count):
                            put(broker, "orders", b"%d" % round_, queue_id=queue_id)
                    wanted = {
                        MessageQueue("orders", broker.name, queue_id) for broker in brokers for queue_id in range(count)
                    }
                    await handled(cluster, consumer, wanted, seen)
            await task
            for values in seen.values():
                assert values == sorted(values)
                assert len(values) == len(set(values))

    async def handled(
        cluster: FakeCluster, consumer: Consumer, wanted: set[MessageQueue], seen: dict[tuple[str, int], list[int]]
    ) -> None:
        """Handled messages, also committed: others are redelivered if their broker stops first."""
        await until(lambda: set(consumer.assignment) == wanted)
        await until(
            lambda: all(
                len(seen.get((queue.broker_name, queue.queue_id), ())) == stored(queue.broker_name, queue.queue_id)
                for queue in wanted
            )
        )
        await until(
            lambda: all(
                committed(cluster).get((queue.broker_name, queue.queue_id)) == stored(queue.broker_name, queue.queue_id)
                for queue in wanted
            )
        )

    run(main())


async def test_a_consumer_beside_others_in_one_client() -> None:
    """Two groups share connections; closing one does not affect the other; a closed client raises an error."""
    async with fake_cluster({"orders": 1}) as cluster:
        client = ClientInstance(cluster.namesrv, QUICK.instance)
        put(cluster.brokers[0], "orders", b"x")
        async with Consumer("G1", subscriptions={"orders": "*"}, config=QUICK, client=client) as first:
            async with LitePullConsumer(
                "G2", subscriptions={"orders": "*"}, config=LitePullConfig(rebalance_ms=50), client=client
            ) as second:
                await until(lambda: first.assignment and second.assignment)
                assert first.client_id == second.client_id
            assert await consume(first, 1) == [b"x"]
        await client.close()
        with pytest.raises(ClientClosed):
            await Consumer("G3", subscriptions={"orders": "*"}, config=QUICK, client=client).start()


async def test_popped_messages_and_cancellation() -> None:
    """The message of a cancelled handler is not acknowledged, and the broker redelivers it."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        pop = FakePop(broker)
        put(broker, "orders", b"x", b"y")
        config = replace(QUICK, client_rebalance=False, poll_suspend_ms=20, pull_interval_ms=5)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            entered = asyncio.Event()

            async def handler(m: Delivery) -> None:
                if m.body == b"x":
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(consumer.run(handler))
            await entered.wait()
            await until(lambda: pop.acked)
            task.cancel()
            await asyncio.wait([task])
            (waiting,) = consumer.pop_infos().values()
            assert waiting.waiting == 0
        assert pop.acked == [("orders", 0, 1)]
        assert not pop.invisible
