"""The figures of `mqtrail mirror run`: messages/s and lag, beside a plain loop that pulls and sends.

Both copy the same messages from one broker of ours to another, each as a process of its own; `bench.plain_copy` is the
loop: what one writes without resuming, loop guard, checks and state. `mirror/messages`: the source has all messages
before, and the time counts from the first copy that is seen until the last one. `mirror/lag`: messages come at a steady
rate, with the time of their send; a copy's lag is the time from there until the target stored it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.apache import cpu_seconds
from bench.commands import Command, rate_of, running
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import CannotMeasure, Row
from bench.session import Session
from mqtrail.client import Admin, Message, Producer
from mqtrail.clock import now_ms
from mqtrail.wire import MessageQueue, TopicConfig

MESSAGES, MESSAGES_QUICK = 200_000, 40_000
QUEUES = 8
BODY_SIZE = 500
BATCH_COUNT = 100
RATE = 1_000  # messages/s of mirror/lag
LAG_S, LAG_QUICK_S = 12, 4
SETTLE_S = 1.0  # the start of mirror/lag, which does not count
END_S_MAX = 30.0
SIDES = ("mirror", "loop")


@figure("mirror", "RocketMQ → RocketMQ by mqtrail mirror run beside a plain loop of pulls and sends", seconds=150)
def mirror(session: Session) -> Iterator[Row]:
    """Each round and side has a topic of its own in the target; the source's is the same for both."""
    session.alone()
    folder = session.fresh_folder("mirror")
    count = MESSAGES_QUICK if session.quick else MESSAGES
    seconds = LAG_QUICK_S if session.quick else LAG_S
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    costs: dict[str, list[float]] = {side: [] for side in SIDES}
    lags: dict[str, list[float]] = {side: [] for side in SIDES}
    with ExitStack() as stack:
        source = stack.enter_context(OurPeer(folder / "source"))
        for number in range(session.rounds):
            for side in session.order(number, SIDES):
                # A mirror copies into a topic of the same name, so each side has a target of its own.
                with OurPeer(folder / f"target-{number}-{side}") as target:
                    topic = f"bench-{number}"
                    asyncio.run(fill(source, topic, count))
                    rate, cpu_us = asyncio.run(copied_rate(side, folder, source, target, topic, count))
                    rates[side].append(rate)
                    costs[side].append(cpu_us)
                    lags[side].append(
                        asyncio.run(lag_p95(side, folder, source, target, f"lag-{number}-{side}", seconds))
                    )
    what = f"messages of {BODY_SIZE} bytes with key, tag and 2 properties, {QUEUES} queues: RocketMQ → RocketMQ"
    loop = "a plain loop of pulls and sends"
    yield Row("mirror/messages", what, "messages/s", rates["mirror"], rates["loop"], loop, more={"messages": count})
    yield Row("mirror/cpu", "CPU time of the copying process for a message", "us", costs["mirror"], costs["loop"], loop)
    yield Row(
        "mirror/lag",
        f"send in the source until the copy is stored, p95 at {RATE} messages/s",
        "ms",
        lags["mirror"],
        lags["loop"],
        loop,
        more={"seconds": seconds},
    )


def message(topic: str, number: int) -> Message:
    """Return a message. Its body begins with the time."""
    body = b"%013d" % now_ms() + b"x" * (BODY_SIZE - 13)
    properties = {"source": "web", "trace": "0af7651916cd43dd8448eb211c80319c"}
    return Message(topic, body, tags="created", keys=f"order-{number}", properties=properties)


async def create(peer: OurPeer, topic: str) -> list[MessageQueue]:
    """Create a topic; return its queues once clients see it."""
    async with Admin(peer.namesrv_address) as admin:
        await admin.create_topic(TopicConfig(topic, QUEUES, QUEUES))
        end_s = time.monotonic() + END_S_MAX
        while topic not in await admin.topics():
            if time.monotonic() > end_s:
                raise CannotMeasure(f"topic {topic} has no route after {END_S_MAX:.0f} s")
            await asyncio.sleep(0.02)
        return sorted(await admin.queues(topic))


async def fill(peer: OurPeer, topic: str, count: int) -> None:
    """Create the topic with so many messages, once."""
    queues = await create(peer, topic)
    async with Admin(peer.namesrv_address) as admin:
        if sum([await admin.max_offset(queue) for queue in queues]) >= count:
            return
    async with Producer("bench", peer.namesrv_address) as producer:
        for at, first in enumerate(range(0, count, BATCH_COUNT)):
            batch = [message(topic, one) for one in range(first, min(first + BATCH_COUNT, count))]
            await producer.send(batch, queue=queues[at % QUEUES])


@contextmanager
def copying(side: str, folder: Path, source: OurPeer, target: OurPeer, topic: str) -> Iterator[Command]:
    """Let a side copy a topic."""
    name = f"{topic}-{side}"
    if side == "loop":
        where = (topic, source.namesrv_address, target.namesrv_address)
        with running(folder / f"{name}.log", *where, module="bench.plain_copy") as command:
            yield command
        return
    own = ("--source", source.namesrv_address, "--namesrv", target.namesrv_address, "--folder", str(folder / name))
    names = ("--source-name", "east", "--target-name", "west")
    with running(folder / f"{name}.log", "mirror", "run", topic, *own, *names) as command:
        yield command


async def copied_rate(
    side: str, folder: Path, source: OurPeer, target: OurPeer, topic: str, count: int
) -> tuple[float, float]:
    """Return the messages/s of a side, and its CPU time of a message in us, both from the first copy that is seen."""
    queues = await create(target, topic)
    begun: list[tuple[int, float]] = []
    async with Admin(target.namesrv_address) as admin:
        with copying(side, folder, source, target, topic) as process:

            async def copied() -> int:
                process.check()
                found = await ends(admin, queues)
                if found and not begun:
                    begun.append((found, cpu_seconds(process.pid)))
                return found

            rate = await rate_of(copied, count)
            ((first, cpu_s),) = begun
            return rate, 1e6 * (cpu_seconds(process.pid) - cpu_s) / (count - first)


async def lag_p95(side: str, folder: Path, source: OurPeer, target: OurPeer, topic: str, seconds: float) -> float:
    """Return the 95th percentile of the lag, in ms."""
    queues, copies = await create(source, topic), await create(target, topic)
    async with Admin(target.namesrv_address) as admin, Producer("bench", source.namesrv_address) as producer:
        with copying(side, folder, source, target, topic) as process:
            await producer.send(message(topic, 0), queue=queues[0])
            await until(lambda: ends(admin, copies), 1, process.check)  # now it copies: its start does not count
            counted, sent = await send_at_rate(producer, topic, queues, seconds)
            await until(lambda: ends(admin, copies), 1 + sent, process.check)
        lags = []
        for queue in copies:
            async for one in admin.messages_of_queue(queue, 0, await admin.max_offset(queue)):
                born_ms = int(one.body[:13])
                if born_ms >= counted:
                    lags.append(one.store_timestamp_ms - born_ms)
    lags.sort()
    return float(lags[len(lags) * 95 // 100])


async def send_at_rate(
    producer: Producer, topic: str, queues: Sequence[MessageQueue], seconds: float
) -> tuple[int, int]:
    """Send at RATE; return from when on messages count, epoch ms, and how many were sent."""
    began_s, number, counted = time.monotonic(), 0, now_ms() + int(1000 * SETTLE_S)
    while (passed_s := time.monotonic() - began_s) < SETTLE_S + seconds:
        due = int(passed_s * RATE) - number
        if due <= 0:
            await asyncio.sleep(0.001)
            continue
        await producer.send([message(topic, number + one) for one in range(due)], queue=queues[number % QUEUES])
        number += due
    return counted, number


async def ends(admin: Admin, queues: Sequence[MessageQueue]) -> int:
    return sum([await admin.max_offset(queue) for queue in queues])


async def until(copied: Callable[[], Awaitable[int]], count: int, check: Callable[[], None]) -> None:
    """Wait until so many are copied. CannotMeasure: it takes too long."""
    end_s = time.monotonic() + END_S_MAX
    while (found := await copied()) < count:
        check()
        if time.monotonic() > end_s:
            raise CannotMeasure(f"found {found} of {count} copies after {END_S_MAX:.0f} s")
        await asyncio.sleep(0.05)
