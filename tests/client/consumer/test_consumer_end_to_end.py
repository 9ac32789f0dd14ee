"""Our consumers on our broker: ordered, popped, filtered, batched, polled, and their trace. On tables they are slow."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.client import (
    Admin,
    Batch,
    ClientInstance,
    Consumer,
    ConsumerConfig,
    Delivery,
    LitePullConsumer,
    MessageModel,
    Producer,
    Sql,
)
from mqtrail.testing import embedded_async
from mqtrail.wire import Message, RequestCode, RequestMode, dlq_topic
from tests.waiting import until

from ..trace.test_end_to_end import of, quick, trace_of
from .test_lite_pull import LITE


async def set_mode(namesrv: str, topic: str, group: str, mode: str) -> None:
    """Set the mode like `mqadmin setConsumeMode`."""
    client = ClientInstance(namesrv)
    await client.route(topic)
    ((address,),) = [addresses.values() for addresses in client.brokers().values()]
    await client.call(address, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, RequestMode(topic, group, mode).encode())
    await client.close()


async def test_ordered_members_come_and_go(tmp_path: Path, store_url: str) -> None:
    """Each key's messages are handled in order and once, while members join and leave; a poison message goes to the
    DLQ."""
    async with embedded_async(broker=BrokerConfig(message_delay_level="1s 1s 1s 1s"), store_url=store_url) as cluster:
        namesrv = cluster.namesrv_address
        seen: dict[str, list[int]] = defaultdict(list)
        poison = 0

        async def handler(m: Delivery) -> None:
            nonlocal poison
            if m.body == b"poison":
                poison += 1
                raise ValueError("never")
            key, _, number = m.body.decode().partition(" ")
            await asyncio.sleep(0)
            seen[key].append(int(number))

        config = quick(tmp_path, ordered=True, attempts_max=1, suspend_ms=10)
        first = Consumer("CG", namesrv, {"orders": "*"}, config=config)
        second = Consumer("CG", namesrv, {"orders": "*"}, config=config)
        async with Producer("PG", namesrv) as producer, first:
            await producer.send(Message("orders", b"poison"), order_key="k0")
            tasks = [asyncio.create_task(first.run(handler))]

            async def send(numbers: range) -> None:
                for number in numbers:
                    for key in ("k0", "k1", "k2"):
                        await producer.send(Message("orders", f"{key} {number}".encode()), order_key=key)

            await send(range(20))
            await until(lambda: seen["k0"])  # so its queue changes hands after the poison message is in the DLQ
            async with second:
                tasks.append(asyncio.create_task(second.run(handler)))
                await until(lambda: second.assignment)
                await send(range(20, 40))
                await until(lambda: all(len(seen[key]) >= 25 for key in ("k0", "k1", "k2")))
            await until(lambda: all(len(seen[key]) >= 40 for key in ("k0", "k1", "k2")), 30)
        await asyncio.gather(*tasks)
        assert seen == {key: list(range(40)) for key in ("k0", "k1", "k2")}
        assert poison == 2
        async with Admin(namesrv) as admin:
            queue = (await admin.queues(dlq_topic("CG")))[0]
            (dead,) = (await admin.pull(queue, 0)).messages()
            assert dead.body == b"poison"


async def test_a_group_that_pops(tmp_path: Path, store_url: str) -> None:
    """An operator switches the group to POP: two members share every queue and each message goes to one; then back to
    PULL."""
    async with embedded_async(store_url=store_url) as cluster:
        namesrv = cluster.namesrv_address
        seen: Counter[bytes] = Counter()

        async def handler(m: Delivery) -> None:
            seen[m.body] += 1

        config = quick(tmp_path, client_rebalance=False, poll_suspend_ms=1_000)
        async with Producer("PG", namesrv) as producer:
            await producer.send(Message("orders", b"first"))
            first = Consumer("CG", namesrv, {"orders": "*"}, config=config, trace=True)
            second = Consumer("CG", namesrv, {"orders": "*"}, config=config)
            async with first, second:
                tasks = [asyncio.create_task(one.run(handler)) for one in (first, second)]
                await until(lambda: seen == {b"first": 1})
                await set_mode(namesrv, "orders", "CG", "POP")
                await until(lambda: [one.queue_id for one in (*first.assignment, *second.assignment)].count(-1) == 2)
                for number in range(30):
                    await producer.send(Message("orders", b"%d" % number))
                await until(lambda: len(seen) == 31, 20)
                assert {seen[b"%d" % number] for number in range(30)} == {1}
                await set_mode(namesrv, "orders", "CG", "PULL")
                await until(lambda: -1 not in [one.queue_id for one in (*first.assignment, *second.assignment)], 20)
                await producer.send(Message("orders", b"last"))
                await until(lambda: seen[b"last"], 20)
            await asyncio.gather(*tasks)


async def test_an_sql_filter(tmp_path: Path, store_url: str) -> None:
    """The broker evaluates the filter if filters are enabled; otherwise the start fails with the reason."""
    async with embedded_async(broker=BrokerConfig(property_filter=True), store_url=store_url) as cluster:
        namesrv = cluster.namesrv_address
        async with Producer("PG", namesrv) as producer:
            for amount in (1, 7, 9):
                await producer.send(Message("orders", b"%d" % amount, properties={"amount": str(amount)}))
        subscriptions = {"orders": Sql("amount > 5")}
        async with Consumer("CG", namesrv, subscriptions, config=quick(tmp_path)) as consumer:
            bodies = []
            async for m in consumer:
                await m.ack()
                bodies.append(m.body)
                if len(bodies) == 2:
                    break
        assert sorted(bodies) == [b"7", b"9"]
        async with LitePullConsumer("LG", namesrv, subscriptions, config=LITE) as lite:
            polled: list[bytes] = []
            while len(polled) < 2:
                polled += [one.body for one in await lite.poll()]
        assert sorted(polled) == [b"7", b"9"]


async def test_lite_pull_members_share(tmp_path: Path, store_url: str) -> None:
    """Two members read everything once; after a restart no committed message is redelivered."""
    async with embedded_async(store_url=store_url) as cluster:
        namesrv = cluster.namesrv_address
        async with Producer("PG", namesrv) as producer:
            for number in range(40):
                await producer.send(Message("orders", b"%d" % number))
            config = replace(LITE, auto_commit=False)
            members = [LitePullConsumer("CG", namesrv, {"orders": "*"}, config=config) for _ in range(2)]
            async with members[0], members[1]:
                await until(
                    lambda: sorted(queue.queue_id for member in members for queue in member.assignment) == [0, 1, 2, 3]
                )
                seen: Counter[bytes] = Counter()
                while len(seen) < 40:
                    for member in members:
                        seen.update(one.body for one in await member.poll(timeout_ms=50))
                for member in members:
                    await member.commit()
            assert set(seen.values()) == {1}
            await producer.send(Message("orders", b"new"))
            async with LitePullConsumer("CG", namesrv, {"orders": "*"}, config=config) as member:
                assert [one.body for one in await member.poll(timeout_ms=10_000)] == [b"new"]


@pytest.mark.parametrize("mode", ["ordered", "broadcasting", "batches", "pop"])
async def test_the_trace_of_each_mode(mode: str, tmp_path: Path, store_url: str) -> None:
    """A pair of Sub records for each attempt and message; a batch shares its request id; a failure is recorded."""
    async with embedded_async(
        broker=BrokerConfig(trace_topic_enable=True, message_delay_level="1s 1s 1s"), store_url=store_url
    ) as cluster:
        namesrv = cluster.namesrv_address
        modes: dict[str, dict[str, Any]] = {
            "ordered": {"ordered": True, "suspend_ms": 10},
            "broadcasting": {"model": MessageModel.BROADCASTING, "offset_dir": tmp_path / "offsets"},
            "batches": {"batch_count_max": 4},
            "pop": {"client_rebalance": False, "poll_suspend_ms": 500},
        }
        config: ConsumerConfig = quick(tmp_path, **modes[mode])
        async with Producer("PG", namesrv) as producer:
            results = await producer.send([Message("orders", b"%d" % number, keys=f"k{number}") for number in range(4)])
            ids = results.msg_id.split(",")
            if mode == "pop":
                async with Consumer("CG", namesrv, {"orders": "*"}, config=config):
                    pass
                await set_mode(namesrv, "orders", "CG", "POP")
            count = {"ordered": 5, "batches": 4}.get(mode, 4)
            handled: list[str] = []

            async def one(m: Delivery) -> None:
                handled.append(m.msg_id)
                if m.body == b"2" and m.attempt == 1 and mode in ("ordered", "broadcasting"):
                    raise ValueError("once")

            async def many(batch: Batch) -> None:
                handled.extend(m.msg_id for m in batch)

            async with Consumer("CG", namesrv, {"orders": "*"}, config=config, trace=True) as consumer:
                task = asyncio.create_task(consumer.run(many if mode == "batches" else one))
                await until(lambda: len(handled) >= count, 20)
            await task
        records = await asyncio.to_thread(trace_of, namesrv)
        before, after = of(records, "SubBefore"), of(records, "SubAfter")
        results_ = of(records, "SubResult")
        assert sorted(one.msg_id for one in before) == sorted(handled)
        assert sorted((one.request_id, one.msg_id) for one in before) == sorted(
            (one.request_id, one.msg_id) for one in after
        )
        assert set(handled) == set(ids)
        failed = [one for one in results_ if one.result != "SUCCESS"]
        expected = ["EXCEPTION"] if mode in ("ordered", "broadcasting") else []
        assert [one.result for one in failed] == expected
        assert len([one for one in after if not one.is_success]) == len(expected)
        if mode == "ordered":
            assert sorted(one.retry_times for one in before if one.msg_id == ids[2]) == [0, 1]
        if mode == "batches":
            assert len({one.request_id for one in before}) < len(before)
        commits = of(records, "OffsetCommit")
        assert bool(commits) is (mode not in ("pop", "broadcasting"))
