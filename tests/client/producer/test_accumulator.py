"""Batches of single sends: which messages share a batch, when it is sent, and each caller's result."""

import asyncio
from dataclasses import replace

import pytest

from mqtrail.client import InvalidMessage, Producer, ProducerConfig, SendResult
from mqtrail.client.producer.accumulator import shares
from mqtrail.wire import Message, MessageIllegal, MessageQueue, RequestCode, ResponseCode, SendStatus
from tests.waiting import until

from ..fake_cluster import fake_cluster, on_code, refuse

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
AUTO = ProducerConfig(auto_batch=True, auto_batch_ms=20)


async def test_sends_at_once_travel_together() -> None:
    """Messages of one topic and tag share a request; each caller gets its own ids and offset."""
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=AUTO) as producer:
        (broker,) = cluster.brokers
        messages = [Message("orders", b"%d" % number, tags="A", keys=f"k{number}") for number in range(10)]
        results = await asyncio.gather(*(producer.send(message) for message in messages))
        assert (len(broker.of(BATCH)), len(broker.of(SEND))) == (1, 0)
        stored = {message.body: message for message in broker.messages("orders")}
        for message, result in zip(messages, results, strict=True):
            there = stored[message.body]
            assert (result.msg_id, result.offset_msg_id) == (there.msg_id, there.offset_msg_id)
            assert result.queue_offset == there.queue_offset


async def test_what_does_not_belong_together_does_not_travel_together() -> None:
    """Different topics, tags and queues use different batches; a single message is sent as an ordinary one."""
    topics = {"orders": 2, "bills": 1}
    async with fake_cluster(topics) as cluster, Producer("PG", cluster.namesrv, config=AUTO) as producer:
        (broker,) = cluster.brokers
        one = Message("orders", b"x", tags="A")
        queue = MessageQueue("orders", "broker-a", 1)
        await asyncio.gather(
            producer.send(one),
            producer.send(one),
            producer.send(replace(one, tags="B")),
            producer.send(replace(one, topic="bills")),
            producer.send(one, queue=queue),
            producer.send(one, queue=queue),
        )
        assert (len(broker.of(BATCH)), len(broker.of(SEND))) == (2, 2)
        assert sorted(command.ext["e"] for command in broker.of(BATCH))[-1] == "1"


async def test_what_goes_alone() -> None:
    """Delayed messages, retry topics, and sends with a timeout or a key are sent alone."""
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=AUTO) as producer:
        (broker,) = cluster.brokers
        one = Message("orders", b"x")
        await asyncio.gather(
            producer.send(replace(one, delay_level=1)),
            producer.send(replace(one, delay_ms=1)),
            producer.send(one, timeout_ms=3_000),
            producer.send(one, order_key="k"),
            producer.send(Message("%RETRY%g", b"x")),
        )
        assert (len(broker.of(BATCH)), len(broker.of(SEND))) == (0, 5)


async def test_a_full_batch_leaves_at_once() -> None:
    """A batch that reaches its size is sent at once; above the total limit no message waits."""
    patient = replace(AUTO, auto_batch_ms=60_000, auto_batch_size=100)
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=patient) as producer:
        one = Message("orders", b"x" * 50)
        await asyncio.gather(*(producer.send(one) for _ in range(6)))
        assert len(cluster.brokers[0].of(BATCH)) == 3
    full = replace(AUTO, auto_batch_ms=60_000, auto_batch_total_size=60)
    async with fake_cluster({"orders": 1}) as cluster:
        async with Producer("PG", cluster.namesrv, config=full) as producer:
            waiting = asyncio.create_task(producer.send(one))
            await asyncio.sleep(0)
            await producer.send(one)
            assert len(cluster.brokers[0].of(SEND)) == 1
        assert (await waiting).status is SendStatus.SEND_OK  # it left as the producer closed


async def test_a_batch_fails_whole_and_a_caller_may_give_up() -> None:
    """All callers of a batch get the same error; a caller that cancelled before the send is not in it."""
    async with fake_cluster({"orders": 1}) as cluster, Producer("PG", cluster.namesrv, config=AUTO) as producer:
        (broker,) = cluster.brokers
        broker.script = on_code(BATCH, refuse(ResponseCode.MESSAGE_ILLEGAL))
        one = Message("orders", b"x")
        results = await asyncio.gather(producer.send(one), producer.send(one), return_exceptions=True)
        assert all(isinstance(result, MessageIllegal) for result in results)
        broker.script = lambda command: None
        left = asyncio.create_task(producer.send(replace(one, body=b"left")))
        stays = asyncio.create_task(producer.send(replace(one, body=b"stays")))
        await asyncio.sleep(0)
        left.cancel()
        await stays
        assert cluster.bodies("orders") == [b"stays"]
        good = asyncio.create_task(producer.send(one))
        with pytest.raises(InvalidMessage):
            await producer.send(replace(one, body=b""))
        await good
        accumulator = producer._accumulator
        assert accumulator is not None
        await until(lambda: not accumulator._leaving)


def test_shares_of_a_result() -> None:
    """Ids are split at commas; if a broker returned one id for all, all callers get it."""
    queue = MessageQueue("T", "b", 0)
    result = SendResult(SendStatus.SEND_OK, "a,b", "x,y", queue, 7)
    assert [(one.msg_id, one.offset_msg_id, one.queue_offset) for one in shares(result, 2)] == [
        ("a", "x", 7),
        ("b", "y", 8),
    ]
    assert shares(result._replace(msg_id="batch"), 2)[1].msg_id == "batch"
