"""Our client and our broker: the whole life of a message, and its trace as read from the trace topic."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mqtrail.broker import BrokerConfig
from mqtrail.client import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    InstanceConfig,
    Producer,
    ProducerConfig,
    QueueReader,
    RetryLater,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TraceConfig,
)
from mqtrail.testing import Embedded, embedded_async
from mqtrail.wire import Message, SubscriptionGroupConfig, TopicConfig, decode_trace, dlq_topic
from tests.waiting import until


def quick(folder: Path, **changes: Any) -> ConsumerConfig:
    return replace(
        ConsumerConfig(
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            rebalance_ms=100,
            offset_persist_ms=50,
            pull_error_ms=20,
            close_wait_ms=500,
            instance=InstanceConfig(route_refresh_ms=100, heartbeat_ms=1_000),
            trace=TraceConfig(spool_dir=folder, linger_ms=20),
        ),
        **changes,
    )


def producer_config(folder: Path) -> ProducerConfig:
    return ProducerConfig(trace=TraceConfig(spool_dir=folder, linger_ms=20, retry_ms=20))


def levels(text: str, **changes: Any) -> BrokerConfig:
    return BrokerConfig(trace_topic_enable=True, message_delay_level=text, **changes)


def trace_of(namesrv: str) -> list[Any]:
    """Return every trace record of the cluster, read as the Spark source reads them."""
    found: list[Any] = []
    with QueueReader(namesrv) as reader:
        for queue in reader.queues("RMQ_SYS_TRACE_TOPIC"):
            for result in reader.read_range(queue, *reader.range(queue)):
                for message in result.messages(queue.broker_name):
                    records, rejects = decode_trace(message.body)
                    assert not rejects
                    found += records
    return found


def of(records: Iterable[Any], name: str) -> list[Any]:
    return [record for record in records if type(record).__name__ == name]


async def test_a_message_fails_twice_and_its_trace_tells_all(tmp_path: Path) -> None:
    """The records of send, store, failure, send back, redelivery and consumption join by id."""
    async with embedded_async(broker=levels("1s 1s 1s 1s 1s")) as cluster:
        namesrv = cluster.namesrv_address
        attempts: list[int] = []

        async def handler(m: Delivery) -> RetryLater | None:
            attempts.append(m.attempt)
            if m.attempt == 1:
                raise ValueError("once")
            return RetryLater(1) if m.attempt == 2 else None

        consumer = Consumer("CG", namesrv, {"orders": "paid"}, config=quick(tmp_path), trace=True)
        async with Producer("PG", namesrv, config=producer_config(tmp_path), trace=True) as producer:
            result = await producer.send(Message("orders", b"x", tags="paid", keys="order-1"))
            await producer.send(Message("orders", b"other", tags="open"))
            async with consumer:
                task = asyncio.create_task(consumer.run(handler))
                await until(lambda: len(attempts) == 3, 20)
                await until(
                    lambda: (
                        consumer.queue_infos()
                        and not any(info.cached_msg_count for info in consumer.queue_infos().values())
                    )
                )
            await task
        assert attempts == [1, 2, 3]
        records = await asyncio.to_thread(trace_of, namesrv)
        assert {pub.msg_id for pub in of(records, "Pub")} >= {result.msg_id}
        before = [one for one in of(records, "SubBefore") if one.msg_id == result.msg_id]
        assert sorted(one.retry_times for one in before) == [0, 1, 2]
        outcomes = {one.retry_times: one.result for one in of(records, "SubResult")}
        assert outcomes == {0: "EXCEPTION", 1: "FAILED", 2: "SUCCESS"}
        assert {one.msg_id for one in of(records, "SubResult")} == {result.msg_id}
        (end,) = of(records, "TraceEnd")
        assert end.group_name == "CG"
        assert max(one.time_stamp for one in of(records, "SubAfter")) <= end.time_stamp
        numbered = [one for one in of(records, "TraceBatch") if one.start_id == end.start_id]
        assert max(one.sequence for one in numbered) == len(numbered)
        sequences = Counter((batch.start_id, batch.sequence) for batch in of(records, "TraceBatch"))
        assert set(sequences.values()) == {1}
        async with Admin(namesrv) as admin:
            found = await admin.query("RMQ_SYS_TRACE_TOPIC", result.msg_id)
            assert found.messages
            copies = await admin.message_by_id("orders", result.msg_id)
            assert [copy.body for copy in copies.messages] == [b"x"]


async def test_a_poison_message_ends_as_a_dead_letter(tmp_path: Path) -> None:
    """Messages without attempts left, and those that the handler gives up, are in %DLQ% with their own ids."""
    async with embedded_async(broker=levels("1s 1s 1s")) as cluster:
        namesrv = cluster.namesrv_address
        async with Producer("PG", namesrv) as producer:
            poison = await producer.send(Message("orders", b"poison"))
            given_up = await producer.send(Message("orders", b"given up"))
        seen: Counter[bytes] = Counter()

        async def handler(m: Delivery) -> RetryLater | None:
            seen[m.body] += 1
            return RetryLater(-1) if m.body == b"given up" else RetryLater()

        consumer = Consumer("CG", namesrv, {"orders": "*"}, config=quick(tmp_path, attempts_max=1))
        async with consumer, Admin(namesrv) as admin:
            task = asyncio.create_task(consumer.run(handler))

            async def dead_letters() -> set[str]:
                topic = dlq_topic("CG")
                if topic not in await admin.topics():
                    return set()
                found: set[str] = set()
                for queue in await admin.queues(topic):
                    if await admin.max_offset(queue):
                        found |= {one.msg_id for one in (await admin.pull(queue, 0)).messages()}
                return found

            async with asyncio.timeout(60):
                while await dead_letters() != {poison.msg_id, given_up.msg_id}:
                    await asyncio.sleep(0.05)
        await task
        assert seen == {b"poison": 2, b"given up": 1}


async def test_sends_outlive_a_broker_and_so_does_their_trace(tmp_path: Path) -> None:
    """One of two brokers stops during sends: the other answers every send, and no trace record is missing."""
    async with embedded_async(tmp_path / "data", brokers=2, broker=BROKER_DEFAULT) as cluster:
        namesrv = cluster.namesrv_address
        async with Admin(namesrv) as admin:
            await admin.create_topic(TopicConfig("orders", 2, 2))
        ids: list[str] = []
        async with Producer("PG", namesrv, config=producer_config(tmp_path), trace=True) as producer:
            for number in range(60):
                if number == 20:
                    await cluster.node.stop_broker("broker-b")
                if number == 40:
                    await cluster.node.start_broker("broker-b")
                ids.append((await producer.send(Message("orders", b"%d" % number))).msg_id)
            assert producer.tracer is not None
            await until(lambda: producer.tracer and producer.tracer.counts.in_memory == 0, 10)
            assert producer.tracer.counts.lost == 0
        async with asyncio.timeout(60):
            while {pub.msg_id for pub in of(await asyncio.to_thread(trace_of, namesrv), "Pub")} != set(ids):
                await asyncio.sleep(0.05)


BROKER_DEFAULT = BrokerConfig(trace_topic_enable=True)


async def test_two_members_share_and_hand_over_in_order(tmp_path: Path) -> None:
    """Two members join and leave an ordered group: the messages of each key are handled in order, none is lost."""
    async with embedded_async() as cluster:
        namesrv = cluster.namesrv_address
        config = quick(tmp_path, ordered=True, lock_ms=200)
        seen: dict[str, list[int]] = {}

        async def handler(m: Delivery) -> None:
            key, number = m.body.decode().split()
            if int(number) not in seen.setdefault(key, []):
                seen[key].append(int(number))

        async with Producer("PG", namesrv) as producer:

            async def send(first: int) -> None:
                for number in range(first, first + 20):
                    for key in "abcd":
                        await producer.send(Message("orders", f"{key} {number}".encode()), order_key=key)

            await send(0)
            one = Consumer("CG", namesrv, {"orders": "*"}, config=config)
            two = Consumer("CG", namesrv, {"orders": "*"}, config=config)
            async with one:
                tasks = [asyncio.create_task(one.run(handler))]
                await until(lambda: one.assignment)
                async with two:
                    tasks.append(asyncio.create_task(two.run(handler)))
                    await until(lambda: any(queue.topic == "orders" for queue in two.assignment), 10)
                    await send(20)
                    await until(lambda: sum(map(len, seen.values())) == 160, 20)
            await asyncio.gather(*tasks)
        assert seen == {key: list(range(40)) for key in "abcd"}


async def test_admin_arranges_and_shows(tmp_path: Path) -> None:
    """Topics and groups are created and shown; online members, offsets and lag can be queried."""
    async with embedded_async() as cluster, Admin(cluster.namesrv_address) as admin:
        namesrv = cluster.namesrv_address
        (address,) = (await admin.masters()).values()
        assert (await admin.create_topic(TopicConfig("orders", 3, 3))).complete
        assert (await admin.create_group(SubscriptionGroupConfig("CG", retry_max_times=2))).complete
        assert len(await admin.queues("orders")) == 3
        assert (await admin.topic_configs(address)).topic_config_table["orders"].read_queue_nums == 3
        assert (await admin.groups(address)).subscription_group_table["CG"].retry_max_times == 2
        async with Producer("PG", namesrv) as producer:
            for number in range(6):
                await producer.send(Message("orders", b"%d" % number))
            async with Consumer("CG", namesrv, {"orders": "*"}, config=quick(tmp_path)) as consumer:
                for _ in range(4):
                    await (await anext(consumer)).ack()
                connections = await admin.consumer_connections("CG", address)
                assert [one.client_id for one in connections.connection_set] == [consumer.client_id]
                assert connections.subscription_table["orders"].sub_string == "*"
            await producer._client.heartbeat()
            producers = await admin.producer_connections("PG", address)
            assert [one.client_id for one in producers.connection_set] == [producer.client_id]
        stats = (await admin.consume_stats("CG", "orders")).found["broker-a"]
        assert sum(one.broker_offset for one in stats.offset_table.values()) == 6
        table = (await admin.committed_offsets(address)).offset_table
        assert sum(table["orders@CG"].values()) == 4
        assert "CG" in (await admin.groups_of_topic("orders")).found["broker-a"].group_list
        assert "orders" in await admin.topics_of_group("CG", address)
        for queue in await admin.queues("orders"):
            assert await admin.min_offset(queue) == 0
            assert await admin.offset_by_time(queue, 0) == 0
        assert (await admin.runtime_info(address))["brokerVersionDesc"]
        assert (await admin.broker_config(address))["brokerName"] == "broker-a"
        assert (await admin.delete_topic("orders")).complete
        assert "orders" not in await admin.topics()


def test_plain_code_sends_and_receives(mqtrail_broker: Embedded) -> None:
    """The synchronous producer and consumer with a real broker in another thread."""
    namesrv = mqtrail_broker.namesrv_address
    config = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with SyncProducer("PG", namesrv) as producer:
        ids = {producer.send(Message("orders", b"%d" % number)).msg_id for number in range(5)}
    with SyncConsumer("CG", namesrv, {"orders": "*"}, config=config) as consumer:
        seen = set()
        for m in consumer:
            with m.process():
                seen.add(m.msg_id)
            if len(seen) == 5:
                break
    assert seen == ids
    with SyncAdmin(namesrv) as admin:
        assert "orders" in admin.topics()


def test_reading_leaves_no_mark(mqtrail_broker: Embedded) -> None:
    """A reader changes no topics, groups or offsets of a broker."""
    namesrv = mqtrail_broker.namesrv_address
    with SyncProducer("PG", namesrv) as producer:
        for number in range(10):
            producer.send(Message("orders", b"%d" % number))
    with SyncAdmin(namesrv) as admin:
        (address,) = admin.masters().values()

        def marks() -> tuple[object, ...]:
            offsets = admin.committed_offsets(address).offset_table
            return admin.topics(), admin.groups(address), admin.topic_configs(address), offsets

        before = marks()
        with QueueReader(namesrv) as reader:
            for queue in reader.queues("orders"):
                first, end = reader.range(queue)
                assert sum(len(result.records) for result in reader.read_range(queue, first, end)) == end - first
                reader.read(queue, end + 7)
                reader.offset_by_time(queue, 0)
        assert marks() == before
