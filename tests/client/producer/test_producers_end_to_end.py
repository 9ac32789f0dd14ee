"""Our producers and our own broker: transactions, requests, delays by time, recalls. On tables they are slow."""

import asyncio
import time

import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.client import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Producer,
    ProducerConfig,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from mqtrail.testing import embedded_async
from mqtrail.wire import Message, MessageExt
from tests.waiting import until

QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=50, offset_persist_ms=20, close_wait_ms=500
)
EAGER = BrokerConfig(transaction_timeout_ms=1_000, transaction_check_ms=100, transaction_op_delay_ms=50)


async def receive(consumer: Consumer, count: int) -> list[Delivery]:
    """Return the next deliveries, settled."""
    found: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            delivery = await anext(consumer)
            await delivery.ack()
            found.append(delivery)
    return found


async def test_only_committed_messages_are_seen(store_url: str) -> None:
    """Transactions are committed or rolled back by the local transaction or by a check; each message is seen exactly
    once."""
    asked: list[str] = []

    async def look_up(message: MessageExt) -> TransactionState:
        asked.append(message.body.decode())
        return TransactionState.COMMIT if message.body.startswith(b"late") else TransactionState.ROLLBACK

    async with embedded_async(broker=EAGER, store_url=store_url) as broker:
        namesrv = broker.namesrv_address
        async with TransactionProducer("TG", namesrv, check=look_up) as producer:
            async with producer.transaction(Message("orders", b"at once", keys="k")):
                pass
            for state in (TransactionState.ROLLBACK, TransactionState.UNKNOWN):
                for name in (b"never", b"late"):
                    body = name + b" " + state.name.encode()

                    async def local(transaction: object, state: TransactionState = state) -> TransactionState:
                        return state

                    await producer.send_in_transaction(Message("orders", body), local)
            async with Consumer("CG", namesrv, {"orders": "*"}, config=QUICK) as consumer:
                found = await receive(consumer, 2)
                assert sorted(delivery.body for delivery in found) == [b"at once", b"late UNKNOWN"]
                await until(lambda: {"never UNKNOWN", "late UNKNOWN"} <= set(asked))
                (first,) = [delivery for delivery in found if delivery.body == b"at once"]
                assert first.keys == ("k",)
                assert first.message.prepared_transaction_offset >= 0
            assert not {"at once", "never ROLLBACK", "late ROLLBACK"} & set(asked)


async def test_a_request_is_answered_by_a_consumer(store_url: str) -> None:
    """Request and reply go through the broker over connections that both sides already have."""
    async with embedded_async(store_url=store_url) as broker:
        namesrv = broker.namesrv_address
        async with (
            Producer("ASK", namesrv) as asking,
            Producer("ANSWER", namesrv) as answering,
            Consumer("CG", namesrv, {"questions": "*"}, config=QUICK) as consumer,
        ):
            await asking.send(Message("questions", b"no request"))

            async def answer(delivery: Delivery) -> None:
                if delivery.body != b"no request":
                    result = await answering.reply(delivery, delivery.body.upper())
                    assert result.status is SendStatus.SEND_OK

            running = asyncio.create_task(consumer.run(answer))
            replies = await asyncio.gather(
                *(asking.request(Message("questions", b"what %d" % number), 15_000) for number in range(5))
            )
            assert [reply.body for reply in replies] == [b"WHAT %d" % number for number in range(5)]
            await consumer.close()
            await running


@pytest.mark.slow
async def test_delays_by_time_and_recall(store_url: str) -> None:
    """Messages are delivered when due, never early; a recalled one is not delivered."""
    async with embedded_async(store_url=store_url) as broker:
        namesrv = broker.namesrv_address
        async with (
            Producer("PG", namesrv, config=ProducerConfig(send_timeout_ms=10_000)) as producer,
            Consumer("CG", namesrv, {"later": "*"}, config=QUICK) as consumer,
        ):
            begun = time.time_ns() // 1_000_000
            recalled = await producer.send(Message("later", b"recalled", delay_ms=3_000))
            kept = await producer.send(Message("later", b"kept", deliver_at_ms=begun + 3_500))
            await producer.send(Message("later", b"now"))
            assert kept.recall_handle
            assert await producer.recall("later", recalled.recall_handle) == recalled.msg_id
            first, second = await receive(consumer, 2)
            assert (first.body, second.body) == (b"now", b"kept")
            assert second.msg_id == kept.msg_id
            assert time.time_ns() // 1_000_000 >= begun + 2_000
