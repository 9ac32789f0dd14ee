"""Our producers on Apache's servers: transactions, requests, delays by time, recall, selectors, namespaces, load."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from interop.apache import ApacheCluster

from mqtrail.cli import run
from mqtrail.client import (
    Admin,
    CompressionType,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    InstanceConfig,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    SendFailed,
    SendStatus,
    TransactionProducer,
    TransactionState,
    by_hash,
    by_random,
)
from mqtrail.wire import RequestCodeNotSupported, TopicConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

PATIENT = ProducerConfig(send_timeout_ms=10_000)
QUICK = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=500, offset_persist_ms=500)
EAGER = {
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "100",  # 5.x: a committed message is asked about until its op record is written
    "recallMessageEnable": "true",
}


@pytest.fixture(scope="module", params=["5.3.3", "4.9.7"])
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """A cluster that checks transactions every second."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp(f"apache-{request.param}")
        yield stack.enter_context(ApacheCluster(request.param, folder, properties=EAGER))


async def make(namesrv: str, topic: str, queues: int = 2) -> None:
    """Create a topic and wait for its route."""
    async with Admin(namesrv) as admin:
        assert (await admin.create_topic(TopicConfig(topic, queues, queues))).complete
        async with asyncio.timeout(120):
            while topic not in await admin.topics():
                await asyncio.sleep(0.1)


async def receive(consumer: Consumer, count: int) -> list[Delivery]:
    """The next deliveries, settled."""
    found: list[Delivery] = []
    async with asyncio.timeout(120):
        while len(found) < count:
            delivery = await anext(consumer)
            await delivery.ack()
            found.append(delivery)
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.05)


async def test_transactions(apache: ApacheCluster) -> None:
    """Committed, rolled back, and left to the check, which commits one and rolls back the other."""
    asked: set[bytes] = set()

    def look_up(message: MessageExt) -> TransactionState:
        asked.add(message.body)
        return TransactionState.COMMIT if message.body == b"checked" else TransactionState.ROLLBACK

    namesrv = apache.namesrv_address
    await make(namesrv, "TxTopic")
    async with (
        TransactionProducer("TxGroup", namesrv, check=look_up, config=PATIENT) as producer,
        Consumer("TxReaders", namesrv, {"TxTopic": "*"}, config=QUICK) as consumer,
    ):
        async with producer.transaction(Message("TxTopic", b"committed", keys="tx-1")) as transaction:
            pass
        async with producer.transaction(Message("TxTopic", b"rolled back")) as other:
            await other.rollback()
        for body in (b"checked", b"refused"):
            async with producer.transaction(Message("TxTopic", body)) as left:
                await left.unknown()
        found = await receive(consumer, 2)
        assert sorted(delivery.body for delivery in found) == [b"checked", b"committed"]
        await until(lambda: {b"checked", b"refused"} <= asked)
        assert not {b"committed", b"rolled back"} & asked
        (first,) = [delivery for delivery in found if delivery.body == b"committed"]
        assert first.msg_id == transaction.transaction_id
        assert first.keys == ("tx-1",)


async def test_requests_and_replies(apache: ApacheCluster) -> None:
    """Our consumer replies through the broker to the waiting producer."""
    namesrv = apache.namesrv_address
    await make(namesrv, "Questions")
    async with (
        Producer("Askers", namesrv, config=PATIENT) as asking,
        Producer("Repliers", namesrv, config=PATIENT) as replying,
        Consumer("Answering", namesrv, {"Questions": "*"}, config=QUICK) as consumer,
    ):

        async def answer(delivery: Delivery) -> None:
            assert (await replying.reply(delivery, delivery.body.upper() * 3_000)).status is SendStatus.SEND_OK

        running = asyncio.create_task(consumer.run(answer))
        reply = await asking.request(Message("Questions", b"what?"), 30_000)
        assert reply.body == b"WHAT?" * 3_000
        await consumer.close()
        await running


async def test_delays_and_recall(apache: ApacheCluster) -> None:
    """5.3.3 delivers at any time and supports recall; 4.9.7 has levels only."""
    namesrv = apache.namesrv_address
    await make(namesrv, "Later")
    async with (
        Producer("Delayers", namesrv, config=PATIENT) as producer,
        Consumer("LaterReaders", namesrv, {"Later": "*"}, config=QUICK) as consumer,
    ):
        if apache.version == "4.9.7":
            sent = await producer.send(Message("Later", b"level", delay_level=1))
            assert sent.recall_handle == ""
            (delivery,) = await receive(consumer, 1)
            assert delivery.body == b"level"
            with pytest.raises(RequestCodeNotSupported):
                await producer.recall("Later", "djEgTGF0ZXIgYnJva2VyLWEgNSB4")
            return
        begun_ms = time.time_ns() // 1_000_000
        recalled = await producer.send(Message("Later", b"recalled", delay_ms=8_000))
        await producer.send(Message("Later", b"kept", deliver_at_ms=begun_ms + 9_000))
        assert await producer.recall("Later", recalled.recall_handle) == recalled.msg_id
        (delivery,) = await receive(consumer, 1)
        assert delivery.body == b"kept"
        assert time.time_ns() // 1_000_000 >= begun_ms + 8_000


async def test_where_and_how_messages_travel(apache: ApacheCluster) -> None:
    """Chosen queues, every compression, batches of any number, one way."""
    namesrv = apache.namesrv_address
    await make(namesrv, "Ways", 4)
    bodies: set[bytes] = set()
    async with Producer("Senders", namesrv, config=PATIENT) as producer:
        queues = await producer.queues("Ways")
        for queue in queues:
            assert (await producer.send(Message("Ways", b"to a queue"), queue=queue)).queue == queue
        keyed = {(await producer.send(Message("Ways", b"by key"), select=by_hash(7))).queue for _ in range(3)}
        assert keyed == {queues[3]}
        await producer.send(Message("Ways", b"anywhere"), select=by_random())
        await producer.send_oneway(Message("Ways", b"one way"), order_key="k")
        outcomes = await producer.send_all(
            [Message("Ways", b"many %03d" % number, keys=f"m{number}") for number in range(300)], size_max=8_000
        )
        assert all(outcome.stored for outcome in outcomes)
        assert len(outcomes) > 3
    for kind in CompressionType:
        config = ProducerConfig(send_timeout_ms=10_000, compress_type=kind)
        async with Producer(f"Senders{kind.name}", namesrv, config=config) as producer:
            await producer.send(Message("Ways", kind.name.encode() * 2_000))
    async with Consumer("WaysReaders", namesrv, {"Ways": "*"}, config=QUICK) as consumer:
        for delivery in await receive(consumer, 4 + 3 + 1 + 1 + 300 + 3):
            bodies.add(delivery.body)
    assert {kind.name.encode() * 2_000 for kind in CompressionType} <= bodies
    assert {b"many %03d" % number for number in range(300)} <= bodies
    assert b"one way" in bodies


async def test_namespaces(apache: ApacheCluster) -> None:
    """Producer and consumer share a namespace; the broker has the prefixed names."""
    namesrv = apache.namesrv_address
    await make(namesrv, "shop%Orders")
    instance = InstanceConfig(namespace="shop")
    producing = ProducerConfig(send_timeout_ms=10_000, instance=instance)
    consuming = ConsumerConfig(
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=500, instance=instance
    )
    async with Producer("Shop", namesrv, config=producing) as producer:
        sent = await producer.send(Message("Orders", b"in the shop"))
        assert sent.queue.topic == "Orders"
    async with Consumer("ShopReaders", namesrv, {"Orders": "*"}, config=consuming) as consumer:
        (delivery,) = await receive(consumer, 1)
        assert (delivery.topic, delivery.body) == ("Orders", b"in the shop")
    async with Admin(namesrv) as admin:
        assert "shop%Orders" in await admin.topics()
        assert "Orders" not in await admin.topics()
        known = [found.group_list for found in (await admin.groups_of_topic("shop%Orders")).values()]
        assert any("shop%ShopReaders" in groups for groups in known)


async def test_what_a_broker_refuses(apache: ApacheCluster) -> None:
    """A body above the broker's limit is refused at once, with the reason."""
    namesrv = apache.namesrv_address
    config = ProducerConfig(send_timeout_ms=10_000, body_size_max=16 << 20, compress_over=1 << 30)
    async with Producer("Heavy", namesrv, config=config) as producer:
        await producer.send(Message("HeavyTopic", b"x"))
        with pytest.raises(Exception, match=r"(?i)size|illegal|exceed") as refused:
            await producer.send(Message("HeavyTopic", b"x" * (5 << 20)))
        assert not isinstance(refused.value, SendFailed) or not refused.value.maybe_stored


@pytest.mark.parametrize("options", [("--keys", "9", "--ordered", "--consumers", "2"), ("--batch", "10")])
def test_a_load(apache: ApacheCluster, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """`mqtrail load` creates its topic, counts each message once on each side, and reads the broker's own counters."""
    topic = f"Load{len(options)}"
    load = ("load", topic, "--rate", "200", "--duration", "1s", "--create", "--queues", "2", "--json", *options)
    code = run([*load, "--namesrv", apache.namesrv_address])
    found = json.loads(capsys.readouterr().out)
    counts = found["counts"]
    assert {one["code"] for one in found["reasons"]} <= {"RATE_MISSED"}, "a busy test machine"
    assert code == (1 if found["reasons"] else 0)
    assert counts["sent"] == counts["acknowledged"] == counts["consumed"] == found["topic_growth"] > 0
    assert (counts["repeated"], counts["damaged"]) == (0, 0)
    [broker] = found["brokers"]
    assert broker["stored"] >= counts["sent"]
