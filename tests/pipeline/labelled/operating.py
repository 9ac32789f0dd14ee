"""Scenarios of operators: offsets, topics and groups that they change."""

from __future__ import annotations

import asyncio

from tests.pipeline.labelled.scenario import scenario
from tests.pipeline.labelled.scene import Scene
from tests.waiting import until

from mqtrail.client import (
    ConsumeFromWhere,
    LitePullConfig,
    LitePullConsumer,
)
from mqtrail.wire import MessageModel, MessageQueue


@scenario
async def skipped(on: Scene) -> None:
    """An operator moves the offset of a group that is down to the end."""
    await on.make_topic()
    consumer = await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    await consumer.close()
    await on.left("A")
    first, second = await on.send(), await on.send()
    await on.done("B", first, second)
    await on.play.sampled()
    await on.play.admin.reset_offset(on.group("A"), on.topic, -1)
    await on.play.sampled()
    await on.consumer("A")
    await on.play.sampled()
    after = await on.send()
    await on.done("A", after)
    await on.done("B", after)
    on.owes("first", first, A="SKIPPED", B="CONSUMED")
    on.owes("second", second, A="SKIPPED", B="CONSUMED")
    on.owes("after", after, A="CONSUMED", B="CONSUMED")


@scenario
async def set_back(on: Scene) -> None:
    """An operator sets the offset of a running group back by time: what it read is read again."""
    await on.make_topic()
    await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    msg_id = await on.send()
    await on.done("A", msg_id)
    await on.done("B", msg_id)
    await on.offset_is("A", 2)
    await on.play.sampled()
    [queue] = await on.play.producer.queues(on.topic)
    await on.play.admin.reset_queue(on.group("A"), queue, 1)
    await on.done("A", msg_id, count=2)
    on.owes("read again", msg_id, A="CONSUMED,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING", B="CONSUMED")


@scenario
async def set_back_offline(on: Scene) -> None:
    """The same of a group that is down; it skips messages first, and then reads them."""
    await on.make_topic()
    consumer = await on.consumer("A")
    await on.warmed("A")
    await consumer.close()
    await on.left("A")
    msg_id = await on.send()
    await on.play.sampled()
    queue = MessageQueue(on.topic, "broker-a", 0)
    await on.play.admin.set_offset(on.group("A"), queue, 2)
    await on.play.sampled()
    await on.play.admin.set_offset(on.group("A"), queue, 1)
    await on.play.sampled()
    await on.consumer("A")
    await on.done("A", msg_id)
    on.owes("skipped, set back, read", msg_id, A="CONSUMED")


@scenario
async def deleted_topic(on: Scene) -> None:
    """A topic is deleted with an unread message, and made anew."""
    await on.make_topic()
    consumer = await on.consumer("A")
    warm = await on.warmed("A")
    await consumer.close()
    await on.left("A")
    gone = await on.send()
    await on.play.read()
    await on.play.sampled()
    assert (await on.play.admin.delete_topic(on.topic)).complete
    await on.play.sampled()
    await on.play.sampled()
    on.owes("read before", warm, complete=None, A="CONSUMED")
    on.owes("gone", gone, complete=None, A="EXPIRED")


@scenario
async def topic_made_anew(on: Scene) -> None:
    """A topic is deleted after it was read, and made anew: new messages begin at offset 0 again."""
    await on.make_topic()
    consumer = await on.consumer("A")
    await on.warmed("A")
    old = await on.send()
    await on.done("A", old)
    await on.offset_is("A", 2)
    await consumer.close()
    await on.left("A")
    assert (await on.play.admin.delete_topic(on.topic)).complete
    await on.play.sampled()
    await on.play.sampled()
    await on.make_topic()
    await on.play.sampled()
    await on.consumer("A")
    new = await on.send()
    await on.play.sampled()
    on.owes("old", old, complete=None, A="CONSUMED")
    state = "CONSUMED" if on.handled["A", new] else "WAITING"
    on.owes("new", new, complete=None, A=f"{state}|CONSUMED")


@scenario
async def group_deleted(on: Scene) -> None:
    """A group that is down is deleted with its offsets while a message waits for it."""
    await on.make_topic()
    consumer = await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    await consumer.close()
    await on.left("A")
    msg_id = await on.send()
    await on.done("B", msg_id)
    await on.play.sampled()
    await on.play.admin.delete_group(on.group("A"))
    await on.play.sampled()
    on.owes("waits", msg_id, complete=None, A="NO_CONSUMER|UNKNOWN", B="CONSUMED")


@scenario
async def group_disabled(on: Scene) -> None:
    """The broker no longer lets a group consume; its client is there."""
    await on.make_topic()
    await on.make_group("A")
    await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    await on.make_group("A", consume_enable=False)
    await on.play.sampled()
    held, waiting = await on.send(), await on.send()
    await on.done("B", held, waiting)
    await on.play.sampled()
    for label, msg_id in (("held", held), ("waiting", waiting)):
        codes = "CONSUMED" if on.handled["A", msg_id] else "WAITING"
        on.owes(label, msg_id, A=codes, B="CONSUMED")


@scenario
async def unsubscribed(on: Scene) -> None:
    """A client reads another topic of its group only, from now on."""
    await on.make_topic()
    other = f"{on.topic}-other"
    await on.make_topic(1, other)
    consumer = await on.consumer("A", topics={on.topic: "*", other: "*"})
    await on.consumer("B")
    await on.warmed("A", "B")
    consumer.unsubscribe(on.topic)
    await until(lambda: all(queue.topic != on.topic for queue in consumer.assignment))
    await on.play.sampled()
    msg_id = await on.send()
    await on.done("B", msg_id)
    await on.play.sampled()
    on.owes("not read", msg_id, complete=None, A="?WAITING|NO_CONSUMER", B="CONSUMED")


@scenario
async def sent_again_by_hand(on: Scene) -> None:
    """An operator sends a message that was consumed to one of its groups once more."""
    await on.make_topic()
    await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    msg_id = await on.send(keys="hand")
    await on.done("A", msg_id)
    await on.done("B", msg_id)
    [message] = [one for one in await on.messages() if one.msg_id == msg_id]
    outcome = await on.play.admin.resend_message(message, on.group("A"))
    assert outcome.error is None
    await on.done("A", msg_id, count=2)
    on.owes("resent", msg_id, A="CONSUMED,RESENT", B="CONSUMED")


@scenario
async def skipped_untraced(on: Scene) -> None:
    """An operator skips messages of a group that never traced, and of one that is there and hangs."""
    await on.make_topic()
    consumer = await on.consumer("U", trace=False)
    await on.consumer("H", concurrency=1)
    await on.warmed("U", "H")
    await consumer.close()
    await on.left("U")
    hanging = await on.send("H=hang")
    await on.started("H", hanging)
    msg_id = await on.send()
    await on.play.sampled()
    queue = MessageQueue(on.topic, "broker-a", 0)
    await on.play.admin.set_offset(on.group("U"), queue, 3)
    await on.play.sampled()
    on.owes("hanging", hanging, complete=False, U="?SKIPPED", H="HUNG|IN_FLIGHT")
    on.owes("skipped", msg_id, complete=False, U="?SKIPPED", H="WAITING")


@scenario
async def waits_for_retry_offline(on: Scene) -> None:
    """A message failed, its next attempt is due in hours, and the group is down since."""
    await on.make_topic()
    consumer = await on.consumer("A")
    await on.warmed("A")
    later, soon = await on.send("A=later"), await on.send("A=fail")
    await on.done("A", later, soon)
    await consumer.close()
    await on.left("A")
    on.owes("in hours", later, A="RETRYING")
    on.owes("in its retry topic", soon, A="RETRYING")


@scenario
async def listener_batches(on: Scene) -> None:
    """A batch of 20, of which listeners get many at once, and fail in the middle."""
    await on.make_topic()
    await on.consumer("A", batch=True, batch_count_max=16)
    await on.consumer("B", batch=True, batch_count_max=4, ordered=True, lock_ms=500)
    await on.warmed("A", "B")
    result = await on.play.producer.send([on.message("A=fail:1" if n == 7 else "", keys=f"n{n}") for n in range(20)])
    ids = result.msg_id.split(",")
    await on.done("A", *ids)
    await on.done("B", *ids)
    await on.done("A", ids[7], count=2)
    await on.play.sampled()
    again = "CONSUMED,CONSUMED_AFTER_RETRY"
    for number, msg_id in enumerate(ids):
        on.owes(str(number), msg_id, A=again if number == 7 else f"CONSUMED|{again}", B="CONSUMED")


@scenario
async def pops_of_all_kinds(on: Scene) -> None:
    """By POP: dead at once, failing, and a handler that takes longer than the pop."""
    await on.make_topic()
    await on.make_group("A", retry_max_times=1)
    assert (await on.play.admin.set_consume_mode(on.group("A"), on.topic, "POP")).complete
    consumer = await on.consumer("A", client_rebalance=False, pop_invisible_ms=5_000)
    await on.warmed("A")
    dead, out = await on.send("A=dead"), await on.send("A=fail")
    hung = await on.send("A=hang")
    await on.done("A", dead)
    await on.done("A", out, count=2)
    await on.started("A", hung)
    assert consumer
    await on.play.sampled()
    on.owes("at once", dead, complete=None, A="?DEAD_LETTERED")
    on.owes("tried again, up to 16 times", out, complete=None, A="?RETRYING")
    on.owes("hung, handed out again and again", hung, complete=None, A="?HUNG,DUPLICATE_DELIVERY|IN_FLIGHT|RETRYING")


@scenario
async def broadcasting_lite_pull(on: Scene) -> None:
    """A broadcasting consumer that polls: nobody can tell whether the work was done."""
    await on.make_topic()
    config = LitePullConfig(
        model=MessageModel.BROADCASTING,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        rebalance_ms=200,
        trace=on.play.trace,
        offset_dir=on.play.folder / "offsets",
    )
    polling = LitePullConsumer(on.group("A"), on.play.namesrv, {on.topic: "*"}, config=config, trace=True)
    await on.play.stack.enter_async_context(polling)
    await until(lambda: bool(polling.assignment))
    await on.play.sampled()
    msg_id = await on.send()
    polled: list[str] = []
    async with asyncio.timeout(30):
        while msg_id not in polled:
            polled += [one.msg_id for one in await polling.poll(500)]
    on.owes("polled", msg_id, complete=None, A="?CONSUMED")


@scenario
async def topic_deleted_under_two(on: Scene) -> None:
    """A topic is deleted that one group had read and the other one, which is down, had not."""
    await on.make_topic()
    consumer = await on.consumer("A")
    reader = await on.consumer("B")
    await on.warmed("A", "B")
    await consumer.close()
    await on.left("A")
    msg_id = await on.send()
    await on.done("B", msg_id)
    await on.offset_is("B", 2)
    await reader.close()
    await on.play.read()
    await on.play.sampled()
    assert (await on.play.admin.delete_topic(on.topic)).complete
    await on.play.sampled()
    on.owes("read by one", msg_id, complete=None, A="EXPIRED", B="CONSUMED")
