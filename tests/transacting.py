"""Transactions and a recall on a real cluster, one message for each way in which they can end; and their verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from mqtrail.client import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    MessageExt,
    TransactionProducer,
    TransactionState,
)
from mqtrail.wire import TRANS_CHECK_MAX_TIME_TOPIC, Message, MQError, TopicConfig

TOPIC, GROUP = "Payments", "Ledger"
CHECK_MAX = 5
"""transactionCheckMax: Apache's brokers also count rounds in which a half message is too young for a check."""
PENDING_MS = 300_000
"""transactionTimeOut: half messages without an immunity time are not asked about before."""
RECALLED_AFTER_MS = 5_000
SOON = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}  # asked about after a second
DEADLINE_S = 90.0
_QUICK = ConsumerConfig(
    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=500, offset_persist_ms=500
)
_ANSWERS = {b"checked": TransactionState.COMMIT, b"refused": TransactionState.ROLLBACK}


class Ending(NamedTuple):
    """What is expected of a message: its code, and that of the group; '': the group is not judged for it."""

    code: str
    group: str = ""


EXPECTED = {
    "committed": Ending("TX_COMMITTED", "CONSUMED"),
    "checked": Ending("TX_COMMITTED", "CONSUMED"),
    "rolled back": Ending("TX_ROLLED_BACK"),
    "refused": Ending("TX_ROLLED_BACK"),
    "given up": Ending("TX_CHECKS_EXHAUSTED"),
    "pending": Ending("TX_PENDING"),
    "recalled": Ending("RECALLED"),
}


async def transact(namesrv: str, *, recalls: bool = True) -> dict[str, str]:
    """Send the messages; return label -> id when all but the pending one have ended. recalls: the broker has timers."""
    ids: dict[str, str] = {}
    consumed: set[bytes] = set()

    async def handler(delivery: Delivery) -> None:
        consumed.add(delivery.body)

    def check(message: MessageExt) -> TransactionState:
        return _ANSWERS.get(message.body, TransactionState.UNKNOWN)

    async with Admin(namesrv) as admin:
        assert (await admin.create_topic(TopicConfig(TOPIC, 2, 2))).complete
        await _until(lambda: _has_topic(admin), "the topic")
        async with (
            TransactionProducer("Payers", namesrv, check=check, trace=True) as producer,
            Consumer(GROUP, namesrv, {TOPIC: "*"}, config=_QUICK, trace=True) as consumer,
        ):
            consuming = asyncio.create_task(consumer.run(handler))

            async def begin(label: str, state: TransactionState, **properties: str) -> None:
                message = Message(TOPIC, label.encode(), tags="Tx", keys=label.replace(" ", "-"), properties=properties)
                transaction = await producer.begin(message)
                await transaction.end(state)
                ids[label] = transaction.sent.msg_id

            await begin("committed", TransactionState.COMMIT)
            await begin("rolled back", TransactionState.ROLLBACK)
            for label in ("checked", "refused", "given up"):
                await begin(label, TransactionState.UNKNOWN, **SOON)
            if recalls:
                sent = await producer.send(Message(TOPIC, b"recalled", tags="Tx", delay_ms=RECALLED_AFTER_MS))
                await producer.recall(TOPIC, sent.recall_handle)
                ids["recalled"] = sent.msg_id
            await _until(lambda: _has_given_up(admin), "the half message that is given up")
            await _until(lambda: _is({b"committed", b"checked"} <= consumed), "the committed messages")
            await begin("pending", TransactionState.UNKNOWN)
            consuming.cancel()
    return ids


async def _is(condition: bool) -> bool:
    return condition


async def _has_topic(admin: Admin) -> bool:
    return TOPIC in await admin.topics()


async def _has_given_up(admin: Admin) -> bool:
    with suppress(MQError):  # the topic is made with its first message
        stats = await admin.topic_stats(TRANS_CHECK_MAX_TIME_TOPIC)
        return any(reach.max_offset for table in stats.values() for reach in table.offset_table.values())
    return False


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not await condition():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {DEADLINE_S:g} s") from None
