"""Scenarios of retries, dead letters, filters, and all ways to consume."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from tests.pipeline.labelled.scenario import scenario
from tests.pipeline.labelled.scene import Scene
from tests.waiting import until

from mqtrail.client import (
    ConsumeFromWhere,
    InstanceConfig,
    LitePullConfig,
    LitePullConsumer,
    Sql,
)
from mqtrail.wire import MessageModel, MessageQueue, MQError


@scenario
async def retries(on: Scene) -> None:
    """Failures by exception, by request, to the end, at once, and far in the future."""
    await on.make_topic(2)
    await on.make_group("A", retry_max_times=2)
    await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    once, twice, out = await on.send("A=fail:1"), await on.send("A=raise:2"), await on.send("A=fail")
    at_once, later = await on.send("A=dead"), await on.send("A=later")
    await on.done("A", once, count=2)
    await on.done("A", twice, out, count=3)
    await on.done("A", at_once, later)
    await on.done("B", once, twice, out, at_once, later)
    again = "CONSUMED,CONSUMED_AFTER_RETRY"
    on.owes("once", once, A=again, B="CONSUMED")
    on.owes("twice", twice, A=again, B="CONSUMED")
    on.owes("out of attempts", out, A="DEAD_LETTERED", B="CONSUMED")
    on.owes("at once", at_once, A="DEAD_LETTERED", B="CONSUMED")
    on.owes("later", later, A="RETRYING", B="CONSUMED")


@scenario
async def dead_and_resent(on: Scene) -> None:
    """Dead letters that an operator sends again: to the group, and to the topic with two groups."""
    await on.make_topic()
    await on.make_group("A", retry_max_times=0)
    await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    to_group, to_topic, again_dead = await on.send("A=fail:1"), await on.send("A=fail:1"), await on.send("A=fail")
    await on.done("A", to_group, to_topic, again_dead)
    await on.done("B", to_group, to_topic, again_dead)
    await _dead(on, "A", 3)
    await on.play.sampled()
    for msg_id, topic in ((to_group, False), (to_topic, True), (again_dead, False)):
        outcomes = [
            one
            async for one in on.play.admin.resend_dead_letters(
                on.group("A"), msg_ids=frozenset({msg_id}), to_topic=topic
            )
        ]
        assert [one.error for one in outcomes] == [None]
    await on.done("A", to_group, to_topic, again_dead, count=2)
    await on.done("B", to_topic, count=2)
    await _dead(on, "A", 4)
    on.owes("to the group", to_group, A="CONSUMED,RESENT", B="CONSUMED")
    on.owes("to the topic", to_topic, A="CONSUMED,RESENT", B="CONSUMED,RESENT|CONSUMED,DUPLICATE_PROCESSING")
    on.owes("dead again", again_dead, A="DEAD_LETTERED,RESENT", B="CONSUMED")


async def _dead(on: Scene, short: str, count: int) -> None:
    """Wait until the dead-letter topic of a group has so many messages."""
    queue = MessageQueue(f"%DLQ%{on.group(short)}", "broker-a", 0)
    async with asyncio.timeout(60):
        while True:
            with suppress(MQError):
                if await on.play.admin.max_offset(queue) >= count:
                    return
            await asyncio.sleep(0.1)


@scenario
async def dead_letters_read(on: Scene) -> None:
    """Another group reads the dead-letter topic."""
    await on.make_topic()
    await on.make_group("A", retry_max_times=0)
    await on.consumer("A")
    await on.warmed("A")
    first = await on.send("A=fail")
    await on.done("A", first)
    await _dead(on, "A", 1)
    dlq = f"%DLQ%{on.group('A')}"
    await on.play.admin.set_topic_perm(dlq, 6)
    await on.consumer("R", topics={dlq: "*"})
    await on.done("R", first)
    await on.play.sampled()
    later = await on.send("A=fail")
    await on.done("A", later)
    await on.done("R", later)
    for label, msg_id in (("first", first), ("later", later)):
        on.owes(label, msg_id, complete=None, A="DEAD_LETTERED", others={"R": "CONSUMED"})


@scenario
async def slow_and_hung(on: Scene) -> None:
    await on.make_topic(4)
    await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    slow, hung = await on.send("A=slow"), await on.send("A=hang")
    await on.done("A", slow)
    await on.started("A", hung)
    await on.done("B", slow, hung)
    on.owes("slow", slow, A="CONSUMED,CONSUMED_SLOW", B="CONSUMED")
    on.owes("hung", hung, A="HUNG|IN_FLIGHT", B="CONSUMED")


@scenario
async def hung_at_retry(on: Scene) -> None:
    """The second attempt hangs."""
    await on.make_topic()
    on_second = await on.consumer("A")
    assert on_second
    await on.warmed("A")
    msg_id = await on.send("A=fail:1")
    await on.done("A", msg_id, count=2)
    on.owes("retried", msg_id, A="CONSUMED,CONSUMED_AFTER_RETRY")


@scenario
async def timed_out(on: Scene) -> None:
    """The handler takes longer than consume_timeout: the message is sent back, and both attempts succeed."""
    await on.make_topic()
    await on.consumer("A", consume_timeout_ms=500)
    await on.warmed("A")
    msg_id = await on.send("A=slow:1")
    await on.done("A", msg_id, count=2)
    on.owes("done twice", msg_id, complete=None, A="CONSUMED,CONSUMED_SLOW,DUPLICATE_PROCESSING")


@scenario
async def ordered(on: Scene) -> None:
    """Retries in place: one that succeeds, one that is given up, one that suspends the queue."""
    await on.make_topic()
    await on.make_group("G", retry_max_times=16)
    await on.consumer("A", ordered=True, lock_ms=500)
    await on.consumer("G", ordered=True, lock_ms=500, attempts_max=1)
    await on.warmed("A", "G")
    retried, given_up = await on.send("A=fail:2"), await on.send("G=fail")
    await on.done("A", retried, count=3)
    await on.done("A", given_up)
    await on.done("G", retried)
    await on.done("G", given_up, count=2)
    stuck = await on.send("A=suspend")
    behind = await on.send()
    await on.done("A", stuck)
    await on.done("G", stuck, behind)
    again = "CONSUMED,CONSUMED_AFTER_RETRY"
    on.owes("retried in place", retried, A=again, G="CONSUMED")
    on.owes("given up", given_up, A="CONSUMED", G="DEAD_LETTERED")
    on.owes("suspended", stuck, A="RETRYING", G="CONSUMED")
    on.owes("behind it", behind, A="WAITING", G="CONSUMED")


@scenario
async def broadcasting(on: Scene) -> None:
    """Two clients; one message fails, which ends it."""
    await on.make_topic()
    model = MessageModel.BROADCASTING
    await on.consumer("A", model=model, instance_name="one")
    await on.consumer("A", model=model, instance_name="two")
    await on.consumer("B")
    warm = await on.send(keys="warm")
    await on.done("B", warm)
    await on.play.sampled()
    ok, failing = await on.send(), await on.send("A=fail")
    await on.done("A", ok, failing, count=2)
    await on.done("B", ok, failing)
    on.owes("handled", ok, A="CONSUMED", B="CONSUMED")
    on.owes("failed", failing, complete=False, A="UNKNOWN", B="CONSUMED")


@scenario
async def offline(on: Scene) -> None:
    """One group is down, one never traced and is down; one was renamed: its messages wait for the old name."""
    await on.make_topic()
    down = await on.consumer("A")
    blind = await on.consumer("U", trace=False)
    await on.warmed("A", "U")
    await down.close()
    await blind.close()
    await on.left("A")
    await on.left("U")
    waiting = await on.send()
    await on.consumer("N")
    await on.done("N", waiting)
    await on.play.sampled()
    later = await on.send()
    await on.done("N", later)
    on.owes("before the new name", waiting, complete=False, A="NO_CONSUMER", U="NO_CONSUMER", N="CONSUMED")
    on.owes("after", later, complete=False, A="NO_CONSUMER", U="NO_CONSUMER", N="CONSUMED")


@scenario
async def down_and_back(on: Scene) -> None:
    """A group is down for a while in good order, and handles what waited."""
    await on.make_topic()
    first = await on.consumer("A")
    await on.warmed("A")
    await first.close()
    await on.left("A")
    waited = await on.send()
    failing = await on.send("A=fail:1")
    await on.play.sampled()
    await on.consumer("A")
    await on.done("A", waited)
    await on.done("A", failing, count=2)
    on.owes("waited", waited, A="CONSUMED")
    on.owes("waited and failed", failing, A="CONSUMED,CONSUMED_AFTER_RETRY")


@scenario
async def suspended(on: Scene) -> None:
    """The only client is there and pulls no more."""
    await on.make_topic()
    consumer = await on.consumer("A")
    await on.warmed("A")
    consumer.suspend()
    await on.play.sampled()
    held = await on.send()  # the pull that the broker holds may take this one
    waiting = await on.send()
    await on.play.sampled()
    on.owes("first", held, A="WAITING|CONSUMED")
    on.owes("waiting", waiting, A="WAITING|CONSUMED")


@scenario
async def late_group(on: Scene) -> None:
    """A group comes after a message, from the last offset on; another one comes and reads all."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    before = await on.send()
    await on.done("A", before)
    await on.play.sampled()
    last = await on.consumer("L", consume_from=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    await until(lambda: bool(last.assignment), 30)
    await on.consumer("F")
    await on.done("F", before)
    await on.play.sampled()
    after = await on.send()
    for short in "AF":
        await on.done(short, after)
    await until(lambda: on.handled["L", after] >= 1, 30)
    on.owes("before", before, complete=None, A="CONSUMED", F="CONSUMED", others={"L": "CONSUMED|UNKNOWN"})
    on.owes("after", after, A="CONSUMED", F="CONSUMED", L="CONSUMED")


@scenario
async def tags(on: Scene) -> None:
    await on.make_topic()
    await on.consumer("A", "TagA || TagB")
    await on.consumer("B")
    await on.warmed("A", "B", tags="TagA")
    taken, other, none = await on.send(tags="TagB"), await on.send(tags="TagC"), await on.send()
    await on.done("A", taken)
    await on.done("B", taken, other, none)
    on.owes("taken", taken, A="CONSUMED", B="CONSUMED")
    on.owes("another tag", other, A="FILTERED", B="CONSUMED")
    on.owes("no tag", none, A="FILTERED", B="CONSUMED")


@scenario
async def sql92(on: Scene) -> None:
    """A subscription by SQL92, which changes while its client runs."""
    await on.make_topic()
    consumer = await on.consumer("A", Sql("amount > 3 AND region = 'eu'"))
    await on.consumer("B")
    await on.warmed("A", "B", properties={"amount": "9", "region": "eu"})

    async def send(amount: str, region: str) -> str:
        msg_id = await on.send(properties={"amount": amount, "region": region})
        await on.done("B", msg_id)
        return msg_id

    taken, small, text = await send("4", "eu"), await send("3", "eu"), await send("many", "eu")
    missing = await on.send(properties={"amount": "9"})
    await on.done("A", taken)
    await on.done("B", missing)
    await on.play.sampled()
    consumer.subscribe(on.topic, Sql("amount < 3"))
    await on.play.sampled()
    await on.play.sampled()
    excluded, now = await send("9", "eu"), await send("1", "eu")
    await on.done("A", now)
    await on.play.sampled()
    on.owes("taken", taken, A="CONSUMED", B="CONSUMED")
    for label, msg_id in (("small", small), ("no number", text), ("no property", missing), ("changed", excluded)):
        on.owes(label, msg_id, A="FILTERED", B="CONSUMED")
    on.owes("taken since the change", now, A="CONSUMED", B="CONSUMED")


@scenario
async def lite_pull(on: Scene) -> None:
    """Polled and committed; polled by a group that commits nothing."""
    await on.make_topic()
    await on.consumer("B")

    def config(**settings: Any) -> LitePullConfig:
        return LitePullConfig(
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            rebalance_ms=200,
            trace=on.play.trace,
            instance=InstanceConfig(heartbeat_ms=1_000),
            **settings,
        )

    polling = LitePullConsumer(on.group("A"), on.play.namesrv, {on.topic: "*"}, config=config(), trace=True)
    await on.play.stack.enter_async_context(polling)

    async def poll(count: int) -> None:
        async with asyncio.timeout(30):
            while count > 0:
                count -= len(await polling.poll(500))

    await on.send(keys="warm")
    await poll(1)
    await polling.commit()
    await on.play.sampled()
    first, second = await on.send(), await on.send()
    await poll(2)
    await polling.poll(100)
    await polling.commit()
    await on.done("B", first, second)
    on.owes("first", first, A="CONSUMED", B="CONSUMED")
    on.owes("second", second, A="CONSUMED", B="CONSUMED")


@scenario
async def pops(on: Scene) -> None:
    """Consumption by POP: handled, failed once, and hanging."""
    await on.make_topic()
    await on.make_group("A")
    assert (await on.play.admin.set_consume_mode(on.group("A"), on.topic, "POP")).complete
    await on.consumer("A", client_rebalance=False, pop_invisible_ms=5_000)
    await on.consumer("B")
    await on.warmed("A", "B")
    ok, failing = await on.send(), await on.send("A=fail:1")
    await on.done("A", ok)
    await on.done("A", failing, count=2)
    await on.done("B", ok, failing)
    on.owes("handled", ok, A="CONSUMED", B="CONSUMED")
    on.owes("failed once", failing, A="CONSUMED,CONSUMED_AFTER_RETRY", B="CONSUMED")


@scenario
async def forwarded(on: Scene) -> None:
    """A message is sent on to another topic under its id."""
    await on.make_topic()
    other = f"{on.topic}-other"
    await on.make_topic(1, other)
    await on.consumer("A")
    await on.consumer("B", topics={other: "*"})
    warm = await on.send(keys="warm", topic=other)
    await on.done("B", warm)
    await on.warmed("A")
    msg_id = await on.send(keys="f")
    await on.done("A", msg_id)
    await on.send(keys="f", topic=other, properties={"UNIQ_KEY": msg_id})
    await on.done("B", msg_id)
    on.owes("forwarded", msg_id, complete=None, A="CONSUMED", B="CONSUMED")


@scenario
async def requests(on: Scene) -> None:
    """A request and its reply."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    producer = await on.producer()
    with suppress(MQError):
        await producer.request(on.message(keys="rpc"), timeout_ms=500)
    found = await on.messages()
    msg_id = next(one.msg_id for one in found if "rpc" in one.keys)
    await on.done("A", msg_id)
    on.owes("request", msg_id, A="CONSUMED")


@scenario
async def two_subscriptions(on: Scene) -> None:
    """Members of one group with different filters: each gets what the other excludes, and neither the rest."""
    await on.make_topic(2)
    await on.consumer("A", "TagA")
    await on.consumer("B")
    await on.warmed("B", tags="TagA")
    await on.play.sampled()
    await on.consumer("A", "TagB")
    await on.play.sampled()
    neither = await on.send(tags="TagC")
    await on.done("B", neither)
    await on.play.sampled()
    on.owes("neither", neither, complete=None, A="FILTERED", B="CONSUMED")
