"""Ordered consumption: a queue keeps its order despite faults of handlers, locks, members and the broker."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mqtrail.client import Consumer, Delivery, MessageModel, RetryLater
from mqtrail.wire import LockBatchBody, LockedQueues, MessageQueue, RemotingCommand, RequestCode
from tests.waiting import until

from ..fake_cluster import SILENT, fake_cluster, on_code, refuse
from .test_consumer import QUICK, committed, put

ORDERED = replace(QUICK, ordered=True)
QUEUE = MessageQueue("orders", "broker-a", 0)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


async def test_an_operator_sees_the_lock() -> None:
    """The lock request has the body that Java sends, and the running info shows the lock."""
    async with (
        fake_cluster({"orders": 1}) as cluster,
        Consumer("CG", cluster.namesrv, {"orders": "*"}, config=ORDERED) as consumer,
    ):
        await until(lambda: consumer.assignment == [QUEUE])
        body = LockBatchBody.decode(cluster.brokers[0].of(RequestCode.LOCK_BATCH_MQ)[0].body)
        assert (body.consumer_group, body.client_id, body.mq_set) == ("CG", consumer.client_id, (QUEUE,))
        info = consumer.queue_infos()[QUEUE]
        assert info.locked
        assert info.last_lock_timestamp > 0
        renewed = len(cluster.brokers[0].of(RequestCode.LOCK_BATCH_MQ))
        await until(lambda: len(cluster.brokers[0].of(RequestCode.LOCK_BATCH_MQ)) > renewed)


async def test_many_queues_are_locked_by_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker refuses a request that names too many."""
    monkeypatch.setattr("mqtrail.client.consumer.locks.LOCKED_AT_ONCE", 2)
    async with fake_cluster({"orders": 5}) as cluster:
        (broker,) = cluster.brokers
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=ORDERED) as consumer:
            await until(lambda: len(consumer.assignment) == 5)
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            asked = [LockBatchBody.decode(request.body).mq_set for request in broker.of(code)]
            assert max(map(len, asked)) <= 2
            assert {queue.queue_id for queues in asked for queue in queues} == set(range(5))


async def test_a_lock_that_ran_out_stops_the_queue_until_it_is_ours_again() -> None:
    """While the broker does not reply, nothing is delivered; with the lock back, the queue continues at the next
    message."""
    loop = asyncio.get_running_loop()
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", *numbers(0, 3))
        config = replace(ORDERED, lock_valid_ms=60)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            first = await anext(consumer)
            broker.script = on_code(RequestCode.LOCK_BATCH_MQ, SILENT)
            # Every lock that was granted was asked for before now, and is valid from then.
            runs_out_at = loop.time() + config.lock_valid_ms / 1000
            await until(lambda: loop.time() > runs_out_at)
            await first.ack()
            following = asyncio.ensure_future(anext(consumer))
            rounds = len(broker.of(RequestCode.HEART_BEAT)) + 3
            await until(lambda: len(broker.of(RequestCode.HEART_BEAT)) >= rounds)
            assert not following.done(), "its lock ran out, so another member may have the queue"
            broker.script = lambda command: None
            assert (await following).body == b"1"
            await following.result().ack()


async def test_a_lock_that_another_member_has_gives_the_queue_up() -> None:
    """The pulled messages are dropped and not committed; with the lock the queue starts from its committed offset."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", *numbers(0, 3))
        config = replace(ORDERED, lock_valid_ms=60)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            await (await anext(consumer)).ack()
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})
            broker.locks["orders", 0] = "somebody else"
            await until(lambda: consumer.assignment == [])
            broker.offsets["CG", "orders", 0] = 2  # the other one went on meanwhile
            del broker.locks["orders", 0]
            assert (await anext(consumer)).body == b"2"
            assert committed(cluster) == {("broker-a", 0): 2}


async def test_a_queue_moves_to_another_member_in_order() -> None:
    """A member finishes its running handler before it releases a queue; nothing is handled twice or out of order."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        for queue_id in range(2):
            put(broker, "orders", *numbers(0, 30), queue_id=queue_id)
        seen: dict[int, list[bytes]] = {0: [], 1: []}
        inside: set[int] = set()

        async def handler(m: Delivery) -> None:
            assert m.queue.queue_id not in inside, "two members at one queue"
            inside.add(m.queue.queue_id)
            await asyncio.sleep(0.003)
            inside.discard(m.queue.queue_id)
            seen[m.queue.queue_id].append(m.body)

        config = replace(ORDERED, lock_ms=1_000)
        first = Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config)
        second = Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config)
        async with first:
            work = [asyncio.create_task(first.run(handler))]
            await until(lambda: seen[1])
            async with second:
                work.append(asyncio.create_task(second.run(handler)))
                await until(lambda: len(second.assignment) == 1)
                await until(lambda: all(len(bodies) >= 15 for bodies in seen.values()))
            await until(lambda: all(len(bodies) == 30 for bodies in seen.values()))
            await until(lambda: sum(committed(cluster).values()) == 60)
        await asyncio.gather(*work)
        assert seen == {0: numbers(0, 30), 1: numbers(0, 30)}


async def test_a_hanging_handler_loses_its_queue() -> None:
    """After lock_ms another member takes over; later results of the first one are ignored."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"x")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=ORDERED) as consumer:
            stuck = await anext(consumer)
            stuck.begin()
            cluster.name_server.topics["orders"] = 0  # nothing is assigned any more
            await until(lambda: consumer.assignment == [] and not broker.locks)
            await stuck.ack()
            cluster.name_server.topics["orders"] = 1
            again = await anext(consumer)  # it begins at what is committed
            assert (again.body, committed(cluster).get(("broker-a", 0), 0)) == (b"x", 0)
            await again.ack()
            await until(lambda: committed(cluster) == {("broker-a", 0): 1})


async def test_a_queue_that_is_assigned_again_continues() -> None:
    """A queue that waits for release and is assigned again before that loses nothing."""
    async with fake_cluster({"orders": 2}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"0", b"1", queue_id=1)
        config = replace(ORDERED, lock_ms=60_000, lock_valid_ms=90_000)

        async def rebalanced() -> None:
            done = len(broker.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) + 4
            await until(lambda: len(broker.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) >= done)

        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            first = await anext(consumer)
            first.begin()
            cluster.name_server.topics["orders"] = 1
            await rebalanced()
            assert len(consumer.assignment) == 2, "its handler runs"
            cluster.name_server.topics["orders"] = 2
            await rebalanced()
            await first.ack()
            put(broker, "orders", b"2", queue_id=1)
            bodies = []
            for _ in range(2):
                m = await anext(consumer)
                await m.ack()
                bodies.append(m.body)
            assert bodies == [b"1", b"2"]
            await until(lambda: committed(cluster).get(("broker-a", 1)) == 3)


async def test_a_failure_suspends_for_as_long_as_it_says() -> None:
    """The pause of RetryLater overrides the setting, with a minimum of 10 ms; attempts are counted."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"x", b"y")
        config = replace(ORDERED, suspend_ms=20_000)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            attempts = []
            for _ in range(3):
                m = await anext(consumer)
                attempts.append((m.body, m.attempt))
                if m.attempt < 3:
                    async with m.process():
                        raise RetryLater(suspend_ms=1)
                else:
                    await m.ack()
            assert attempts == [(b"x", 1), (b"x", 2), (b"x", 3)]
            assert (await anext(consumer)).body == b"y"


async def test_giving_up_waits_for_a_broker_that_takes_it() -> None:
    """While the copy cannot be sent, the queue waits; it continues once the broker has the copy."""
    async with fake_cluster({"orders": 1, "%RETRY%CG": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", b"poison", b"next")
        broker.script = on_code(RequestCode.SEND_MESSAGE_V2, refuse(14))
        config = replace(ORDERED, attempts_max=0)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            for attempt in range(1, 4):
                m = await anext(consumer)
                assert (m.body, m.attempt) == (b"poison", attempt)
                if attempt == 3:
                    broker.script = lambda command: None
                await m.retry()
            while (m := await anext(consumer)).queue.topic != "orders":
                await m.ack()
            assert m.body == b"next"
        (command,) = [one for one in broker.of(RequestCode.SEND_MESSAGE_V2) if one.ext["j"] == "3"]
        assert (command.ext["b"], command.ext["l"]) == ("%RETRY%CG", "0")


async def test_a_cancelled_handler_leaves_the_order() -> None:
    """The message of a cancelled handler is delivered again before the next one."""
    async with fake_cluster({"orders": 1}) as cluster:
        put(cluster.brokers[0], "orders", b"0", b"1")
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=ORDERED) as consumer:
            entered = asyncio.Event()

            async def handle() -> None:
                m = await anext(consumer)
                async with m.process():
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(handle())
            await entered.wait()
            task.cancel()
            await asyncio.wait([task])
            bodies = []
            for _ in range(2):
                m = await anext(consumer)
                await m.ack()
                bodies.append((m.body, m.attempt))
            assert bodies == [(b"0", 1), (b"1", 1)]


async def test_broadcasting_in_order_needs_no_lock(tmp_path: Path) -> None:
    """Each member handles every queue in order, retries in place, and takes no locks."""
    async with fake_cluster({"orders": 1}) as cluster:
        (broker,) = cluster.brokers
        put(broker, "orders", *numbers(0, 4))
        config = replace(ORDERED, model=MessageModel.BROADCASTING, offset_dir=tmp_path)
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=config) as consumer:
            seen: list[tuple[bytes, int]] = []
            while len(seen) < 5:
                m = await anext(consumer)
                seen.append((m.body, m.attempt))
                if seen[-1] == (b"2", 1):
                    await m.retry()
                else:
                    await m.ack()
        assert seen == [(b"0", 1), (b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1)]
        assert not broker.of(RequestCode.LOCK_BATCH_MQ)


async def test_a_broker_that_locks_only_some() -> None:
    """Queues that are missing in the broker's reply are not consumed, and are requested again."""
    async with fake_cluster({"orders": 3}) as cluster:
        (broker,) = cluster.brokers
        asked = 0

        def script(command: RemotingCommand) -> RemotingCommand | None:
            nonlocal asked
            if command.code != RequestCode.LOCK_BATCH_MQ:
                return None
            asked += 1
            wanted = LockBatchBody.decode(command.body).mq_set
            body = LockedQueues(wanted if asked > 3 else wanted[:1]).encode()
            return RemotingCommand.reply_to(command, 0, body=body)

        broker.script = script
        async with Consumer("CG", cluster.namesrv, {"orders": "*"}, config=ORDERED) as consumer:
            await until(lambda: len(consumer.assignment) == 1)
            await until(lambda: len(consumer.assignment) == 3)
