"""Scenarios of sends, delays and transactions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tests.pipeline.labelled.scenario import scenario
from tests.pipeline.labelled.scene import LONG_LEVEL, Scene

from mqtrail.client import (
    ProducerConfig,
    SendFailed,
    TransactionProducer,
    TransactionState,
)
from mqtrail.wire import TRANS_CHECK_MAX_TIME_TOPIC, Message, MQError


@scenario
async def plain(on: Scene) -> None:
    """Two groups; several messages, some without keys and tags, some with odd ones."""
    await on.make_topic(2)
    await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    ids = {
        "bare": await on.send(),
        "tag": await on.send(tags="TagA", keys="one"),
        "many keys": await on.send(keys=[f"k{n}" for n in range(50)]),
        "odd characters": await on.send(keys="schlüssel-钥匙", tags="tag-标签"),
        "large": await on.send("A=ok;" + "x" * 100_000, keys="large"),
    }
    await on.done("A", *ids.values())
    await on.done("B", *ids.values())
    for label, msg_id in ids.items():
        on.owes(label, msg_id, A="CONSUMED", B="CONSUMED")


@scenario
async def producer_untraced(on: Scene) -> None:
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    producer = await on.producer(trace=False)
    one = await on.send("", producer, keys="u1")
    failing = await on.send("A=fail:1", producer, keys="u2")
    await on.done("A", one)
    await on.done("A", failing, count=2)
    on.owes("consumed", one, send="", complete=False, A="CONSUMED")
    on.owes("retried", failing, send="", complete=False, A="CONSUMED,CONSUMED_AFTER_RETRY")


@scenario
async def second_group_untraced(on: Scene) -> None:
    """A retry and a dead letter in one group; the other group traces nothing, and fails too."""
    await on.make_topic()
    await on.make_group("A", retry_max_times=1)
    await on.make_group("B", retry_max_times=1)
    await on.consumer("A")
    await on.consumer("B", trace=False)
    await on.warmed("A", "B")
    ok, retried, dead = await on.send(), await on.send("A=fail:1;B=fail:1"), await on.send("A=fail;B=ok")
    await on.done("A", ok)
    await on.done("B", ok, dead)
    for short in "AB":
        await on.done(short, retried, count=2)
    await on.done("A", dead, count=2)
    on.owes("consumed", ok, complete=False, A="CONSUMED", B="UNKNOWN")
    on.owes("retried", retried, complete=False, A="CONSUMED,CONSUMED_AFTER_RETRY", B="UNKNOWN")
    on.owes("dead", dead, complete=False, A="DEAD_LETTERED", B="UNKNOWN")


@scenario
async def oneway(on: Scene) -> None:
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    msg_id = await on.play.producer.send_oneway(on.message(keys="w"))
    await on.done("A", msg_id)
    on.owes("one-way", msg_id, send="SEND_UNCERTAIN", A="CONSUMED")


@scenario
async def equal_messages(on: Scene) -> None:
    """The application sends an order again under another id; one key with another body is another event."""
    await on.make_topic(2)
    await on.consumer("A")
    await on.warmed("A")
    first = await on.send(keys="order-1", tags="T")
    again = await on.send(keys="order-1", tags="T")
    other = await on.send("A=ok", keys="order-1", tags="T")
    tagged = await on.send(keys="order-1", tags="U")
    await on.done("A", first, again, other, tagged)
    on.owes("first", first, A="CONSUMED")
    on.owes("again", again, message="DUPLICATE_SEND", A="CONSUMED")
    on.owes("another body", other, A="CONSUMED")
    on.owes("another tag", tagged, A="CONSUMED")


@scenario
async def same_id_twice(on: Scene) -> None:
    """The application sends one message object twice: its id is a property already."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    own = await on.send(keys="twice")
    await on.send(keys="twice", properties={"UNIQ_KEY": own})
    await on.done("A", own, count=2)
    on.owes("twice", own, message="DUPLICATE_SEND", A="CONSUMED,DUPLICATE_PROCESSING", others={})


@scenario
async def refused(on: Scene) -> None:
    """The broker refuses a body that is too large."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    producer = await on.producer(body_size_max=16 << 20, compress_over=16 << 20)
    try:
        await producer.send(Message(on.topic, bytes(5 << 20), keys="huge"), timeout_ms=20_000)
    except SendFailed as error:
        on.owes("refused", error.msg_id, send="SEND_FAILED", others={"A": ""})
    except MQError:
        pass  # without an id


@scenario
async def batches(on: Scene) -> None:
    """Batches of sends: read by a listener of one, by a listener of many whose tail fails, and by one that gives up."""
    await on.make_topic()
    await on.make_group("D", retry_max_times=0)
    await on.consumer("A")
    await on.consumer("B", batch=True, batch_count_max=8)
    await on.consumer("D")
    await on.warmed("A", "B", "D")
    messages = [
        on.message("A=ok", keys="b1"),
        on.message("B=fail:1;A=fail:1", keys="b2"),
        on.message("D=fail", keys="b3"),
    ]
    result = await on.play.producer.send(messages)
    ids = result.msg_id.split(",")
    await on.done("A", ids[0], ids[2])
    await on.done("A", ids[1], count=2)
    await on.done("B", *ids)
    await on.done("B", ids[1], count=2)
    await on.done("D", *ids)
    retried = "CONSUMED,CONSUMED_AFTER_RETRY"
    on.owes("1", ids[0], A="CONSUMED", B="CONSUMED", D="CONSUMED")
    on.owes("2", ids[1], A=retried, B=retried, D="CONSUMED")
    on.owes("3", ids[2], A="CONSUMED", B=f"CONSUMED|{retried}", D="DEAD_LETTERED")


@scenario
async def collected(on: Scene) -> None:
    """A producer that collects single sends in batches."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    producer = await on.producer(auto_batch=True, auto_batch_ms=50)
    sent = await asyncio.gather(*(on.send("A=fail:1" if n == 1 else "", producer, keys=f"c{n}") for n in range(4)))
    await on.done("A", *sent)
    await on.done("A", sent[1], count=2)
    for number, msg_id in enumerate(sent):
        on.owes(str(number), msg_id, A="CONSUMED,CONSUMED_AFTER_RETRY" if number == 1 else "CONSUMED")


@scenario
async def delays(on: Scene) -> None:
    """Levels and timers: not due, delivered, failed after that, and due while the group is down."""
    await on.make_topic()
    consumer = await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    level, timer = await on.send(delay_level=1), await on.send(delay_ms=1_500)
    failing = await on.send("A=fail:1", delay_level=1)
    far, far_timer = await on.send(delay_level=LONG_LEVEL), await on.send(delay_ms=3_600_000)
    await on.done("A", level, timer)
    await on.done("A", failing, count=2)
    await on.done("B", level, timer, failing)
    await consumer.close()
    await on.left("A")
    down = await on.send(delay_level=1)
    await on.done("B", down)
    on.owes("level", level, A="CONSUMED", B="CONSUMED")
    on.owes("timer", timer, A="CONSUMED", B="CONSUMED")
    on.owes("failed", failing, A="CONSUMED,CONSUMED_AFTER_RETRY", B="CONSUMED")
    on.owes("down when due", down, A="NO_CONSUMER", B="CONSUMED")
    for label, msg_id in (("far", far), ("far timer", far_timer)):
        on.owes(label, msg_id, message="SCHEDULED", A="NO_CONSUMER", B="WAITING")


@scenario
async def recalls(on: Scene) -> None:
    """A timer is recalled in time, and one too late."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    sent = await on.sent(delay_ms=6_000)
    await on.play.producer.recall(on.topic, sent.recall_handle)
    late = await on.sent(delay_ms=1_000)
    await on.done("A", late.msg_id)
    with suppress(MQError):
        await on.play.producer.recall(on.topic, late.recall_handle)
    last = await on.send(delay_ms=8_000)
    await on.done("A", last)
    assert not on.begun["A", sent.msg_id]
    on.owes("in time", sent.msg_id, message="RECALLED")
    on.owes("too late", late.msg_id, A="CONSUMED")
    on.owes("beside it", last, A="CONSUMED")


@scenario
async def transactions(on: Scene) -> None:
    """Committed and failed in a handler, rolled back, open, and committed by a check."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")

    def check(message: Any) -> TransactionState:
        return TransactionState.COMMIT if b"checked" in message.body else TransactionState.UNKNOWN

    producer = TransactionProducer(
        on.group("P"), on.play.namesrv, check=check, trace=True, config=ProducerConfig(trace=on.play.trace)
    )
    await on.play.stack.enter_async_context(producer)

    async def begin(body: str, state: TransactionState, **properties: str) -> str:
        transaction = await producer.begin(on.message(body, keys=f"k-{body}", properties=properties))
        await transaction.end(state)
        return transaction.sent.msg_id

    soon = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
    committed = await begin("A=fail:1", TransactionState.COMMIT)
    rolled_back = await begin("x", TransactionState.ROLLBACK)
    checked = await begin("checked", TransactionState.UNKNOWN, **soon)
    await on.done("A", committed, count=2)
    await on.done("A", checked)
    exhausted = await begin("never", TransactionState.UNKNOWN, **soon)
    async with asyncio.timeout(60):
        while not await _given_up(on, exhausted):
            await asyncio.sleep(0.2)
    pending = await begin("open", TransactionState.UNKNOWN)
    on.owes("committed", committed, message="TX_COMMITTED", A="CONSUMED,CONSUMED_AFTER_RETRY")
    on.owes("rolled back", rolled_back, message="TX_ROLLED_BACK")
    on.owes("by a check", checked, message="TX_COMMITTED", A="CONSUMED")
    on.owes("checks exhausted", exhausted, message="TX_CHECKS_EXHAUSTED")
    on.owes("open", pending, message="TX_PENDING")


async def _given_up(on: Scene, msg_id: str) -> bool:
    try:
        stats = await on.play.admin.topic_stats(TRANS_CHECK_MAX_TIME_TOPIC)
    except MQError:
        return False
    return any(reach.max_offset for table in stats.values() for reach in table.offset_table.values())
