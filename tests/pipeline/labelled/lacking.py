"""Scenarios in which evidence is missing or wrong: kills, clocks, trace that is off, lost or of old clients."""

from __future__ import annotations

import asyncio

from tests.pipeline.labelled.scenario import scenario
from tests.pipeline.labelled.scene import Scene
from tests.waiting import until

from mqtrail.clock import now_ms
from mqtrail.wire import Message, MessageQueue


@scenario
async def killed_alone(on: Scene) -> None:
    """The only client is killed within a handler: the message waits again."""
    await on.make_topic()
    killed = await on.process("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    msg_id = await on.send("A=hang")
    await on.started("A", msg_id)
    await on.done("B", msg_id)
    await on.play.sampled()
    killed.kill()
    await on.left("A")
    on.owes("in its handler", msg_id, complete=None, A="?NO_CONSUMER", B="CONSUMED")


@scenario
async def killed_and_replaced(on: Scene) -> None:
    """A client is killed within a handler, and another one gets the message."""
    await on.make_topic()
    killed = await on.process("A", plan="K")
    await on.consumer("B")
    await on.warmed("K", "B")
    msg_id = await on.send("K=hang")
    await on.started("K", msg_id)
    await on.play.sampled()
    killed.kill()
    await on.left("A")
    await on.consumer("A")
    await on.done("A", msg_id)
    await on.done("B", msg_id)
    on.owes("handed out again", msg_id, complete=None, A="?CONSUMED,DUPLICATE_DELIVERY", B="CONSUMED")


@scenario
async def killed_with_its_trace(on: Scene) -> None:
    """A client that keeps its records for long is killed, with the records of what it did; nobody follows."""
    await on.make_topic()
    killed = await on.process("A", linger_ms=60_000)
    await on.consumer("B")
    first = await on.send(keys="first")
    await on.done("A", first)
    await on.done("B", first)
    await on.play.sampled()
    done, failed = await on.send(), await on.send("A=fail")
    await on.done("A", done, failed)
    await on.done("B", done, failed)
    await on.offset_is("A", 3)
    await on.play.sampled()
    killed.kill()
    await on.left("A")
    on.owes("done", done, complete=False, A="?CONSUMED", B="CONSUMED")
    on.owes("failed", failed, complete=False, A="?RETRYING", B="CONSUMED")


@scenario
async def producer_killed(on: Scene) -> None:
    """A producer is killed with the records of its sends."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    producer = await on.process("P", linger_ms=60_000, sends=["A=ok", "A=fail:1"])
    await until(lambda: len(producer.sent) == 2)
    await on.done("A", producer.sent[0])
    await on.done("A", producer.sent[1], count=2)
    producer.kill()
    on.owes("done", producer.sent[0], send="", complete=False, A="CONSUMED")
    on.owes("retried", producer.sent[1], send="", complete=False, A="CONSUMED,CONSUMED_AFTER_RETRY")


@scenario
async def clock_ahead(on: Scene) -> None:
    """The clock of a consumer's host is five minutes ahead, that of a producer's as much behind."""
    await _clocks(on, 300_000, -300_000)


@scenario
async def clock_behind(on: Scene) -> None:
    """The other way round."""
    await _clocks(on, -300_000, 300_000)


async def _clocks(on: Scene, consumer_ms: int, producer_ms: int) -> None:
    await on.make_topic()
    await on.process("A", clock_ms=consumer_ms)
    await on.consumer("B")
    await on.warmed("A", "B")
    producer = await on.process("P", clock_ms=producer_ms, sends=["A=ok", "A=fail:1", "A=hang"])
    await until(lambda: len(producer.sent) == 3)
    done, failed, hung = producer.sent
    own = await on.send("A=fail:1")
    await on.done("A", done)
    await on.done("A", failed, own, count=2)
    await on.started("A", hung)
    await on.done("B", done, failed, hung, own)
    again = "CONSUMED,CONSUMED_AFTER_RETRY"
    on.owes("done", done, complete=None, A="CONSUMED", B="CONSUMED")
    on.owes("failed once", failed, complete=None, A=again, B="CONSUMED")
    on.owes("own", own, complete=None, A=again, B="CONSUMED")
    on.owes("hung", hung, complete=None, A="HUNG|IN_FLIGHT", B="CONSUMED")


@scenario
async def members_come_and_go(on: Scene) -> None:
    """Members join and leave while messages are handled; what was handed out twice is known from the handlers."""
    await on.make_topic(4)
    await on.consumer("A")
    await on.consumer("B")
    await on.warmed("A", "B")
    ids = []
    others = []
    for number in range(24):
        ids.append(await on.send("A=slow" if number % 6 == 0 else ""))
        if number % 8 == 3:
            others.append(await on.consumer("A"))
        if number % 8 == 7:
            await others.pop().close()
        await asyncio.sleep(0.05)
    await on.done("A", *ids)
    await on.done("B", *ids)
    await on.play.sampled()
    for number, msg_id in enumerate(ids):
        codes = "CONSUMED"
        codes += ",CONSUMED_SLOW" if number % 6 == 0 else ""
        codes += ",DUPLICATE_DELIVERY" if on.begun["A", msg_id] > 1 else ""
        codes += ",DUPLICATE_PROCESSING" if on.handled["A", msg_id] > 1 else ""
        on.owes(str(number), msg_id, complete=None, A=f"?{codes}" if "DUPLICATE" in codes else codes, B="CONSUMED")


@scenario
async def ordered_keys(on: Scene) -> None:
    """Messages of several sharding keys, with failures in place, while a second member comes and goes."""
    await on.make_topic(4)
    await on.consumer("A", ordered=True, lock_ms=500)
    await on.warmed("A")
    ids: dict[str, str] = {}
    for number in range(20):
        body = "A=fail:1" if number % 7 == 0 else ""
        ids[str(number)] = (await on.play.producer.send(on.message(body), order_key=f"k{number % 3}")).msg_id
        if number == 5:
            second = await on.consumer("A", ordered=True, lock_ms=500)
        if number == 12:
            await second.close()
    for label, msg_id in ids.items():
        await on.done("A", msg_id, count=2 if int(label) % 7 == 0 else 1)
    await on.play.sampled()
    for label, msg_id in ids.items():
        expected = 2 if int(label) % 7 == 0 else 1
        codes = "CONSUMED,CONSUMED_AFTER_RETRY" if expected == 2 else "CONSUMED"
        more = on.begun["A", msg_id] > expected
        on.owes(
            label,
            msg_id,
            complete=None,
            A=f"?{codes},DUPLICATE_DELIVERY,DUPLICATE_PROCESSING" if more else codes,
        )


@scenario
async def another_trace_topic(on: Scene) -> None:
    """A producer whose trace goes to a topic that nobody reads."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    await on.make_topic(1, "OtherTrace")
    producer = await on.producer(trace_topic="OtherTrace")
    msg_id = await on.send("", producer, keys="o")
    await on.done("A", msg_id)
    on.owes("sent", msg_id, send="", complete=False, A="CONSUMED")


@scenario
async def records_dropped(on: Scene) -> None:
    """A consumer and a producer that can keep no record."""
    await on.make_topic()
    await on.consumer("A", trace_keeps=False)
    await on.consumer("B")
    warm = await on.send()
    await on.done("B", warm)
    await on.play.sampled()
    producer = await on.producer(trace_keeps=False)
    msg_id, failing = await on.send("", producer, keys="d"), await on.send("A=fail:1", keys="e")
    await on.done("A", msg_id)
    await on.done("A", failing, count=2)
    await on.done("B", msg_id, failing)
    await on.offset_is("A", 3)
    on.owes("sent", msg_id, send="?SEND_OK", complete=False, A="?CONSUMED", B="CONSUMED")
    on.owes("failed", failing, complete=False, A="?CONSUMED,CONSUMED_AFTER_RETRY", B="CONSUMED")


@scenario
async def one_member_untraced(on: Scene) -> None:
    """Of two members of a group one traces."""
    await on.make_topic(2)
    await on.consumer("A")
    await on.warmed("A")
    untraced = await on.consumer("A", trace=False)
    await until(lambda: len(untraced.assignment) >= 1)
    await on.play.sampled()
    sent = [
        (await on.play.producer.send(on.message(), queue=MessageQueue(on.topic, "broker-a", number % 2))).msg_id
        for number in range(4)
    ]
    await on.done("A", *sent)
    await on.play.sampled()
    for number, msg_id in enumerate(sent):
        on.owes(str(number), msg_id, complete=None, A="?CONSUMED")


@scenario
async def java_of_old(on: Scene) -> None:
    """Records of a Java client of 4.x: a Pub of 12 fields, a SubAfter of 6, written by hand of what really happened."""
    await on.make_topic()
    await on.consumer("A", trace=False)
    await on.consumer("B")
    await on.warmed("B")
    producer = await on.producer(trace=False)
    sent = await on.sent("", producer, keys="java")
    failing = await on.sent("A=fail:1", producer, keys="java-2")
    await on.done("A", sent.msg_id)
    await on.done("A", failing.msg_id, count=2)
    await on.done("B", sent.msg_id, failing.msg_id)
    at = now_ms()
    records = []
    for one, plan in ((sent, (True,)), (failing, (False, True))):
        key = "java" if one is sent else "java-2"
        records.append(
            ["Pub", at - 2_000, "DefaultRegion", "PG", on.topic, one.msg_id, "", key, "127.0.0.1:1", 1, 3, 0]
        )
        for times, success in enumerate(plan):
            request = f"{one.msg_id}{times}"
            records.append(
                ["SubBefore", at - 1_500 + 500 * times, "null", on.group("A"), request, one.msg_id, times, key]
            )
            records.append(["SubAfter", request, one.msg_id, 4, str(success).lower(), key])
    body = "".join("\x01".join(map(str, record)) + "\x02" for record in records)
    await producer.send(Message("RMQ_SYS_TRACE_TOPIC", body.encode(), keys=[sent.msg_id]))
    on.owes("consumed", sent.msg_id, complete=None, A="CONSUMED", B="CONSUMED")
    on.owes("retried", failing.msg_id, complete=None, A="CONSUMED,CONSUMED_AFTER_RETRY", B="CONSUMED")


@scenario
async def damaged_trace(on: Scene) -> None:
    """Trace messages of noise, of a later layout, and with bad bytes, beside good ones."""
    await on.make_topic()
    await on.consumer("A")
    await on.warmed("A")
    producer = await on.producer(trace=False)
    msg_id = await on.send(keys="g")
    await on.done("A", msg_id)
    for body in (
        b"\xff\xfe\x00noise",
        f"Pub\x01{now_ms()}\x01r\x01PG\x01{on.topic}\x01{msg_id}\x01\x01k\x01h\x01NaN\x013\x010\x02".encode(),
        f"SubBefore\x01{now_ms()}\x01r\x01{on.group('A')}\x01R\x01{msg_id}\x02".encode(),
        f"SubLater\x01{now_ms()}\x01{msg_id}\x02".encode(),
        b"\x02\x02\x02\x01",
    ):
        await producer.send(Message("RMQ_SYS_TRACE_TOPIC", body))
    on.owes("beside it", msg_id, complete=None, A="CONSUMED")
