"""The demo's course: consumers on, special orders first, the rest with faults in between, then quiet."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mqtrail.client import Admin, Consumer, Producer
from mqtrail.wire import TopicConfig

from .cluster import Cluster
from .faults import Injector
from .measure import Holdings
from .plan import AUDIT, GROUPS, HUNG_MS, LEDGER, POINTS, QUEUE_NUMS, SMS, STOCK, TOPICS, GroupPlan, orders
from .score import Scene, Thresholds
from .shop import AttemptCounter, Desk, Seller, consumer_of, in_parallel
from .truth import TruthLog

LANES = 32  # orders sold at once
ASSIGN_DEADLINE_S = 60.0
SETTLE_S = 2.0  # the new ledger process is through with what the killed one left
PROVE_S = 15.0  # the shorter reminders come after 5 s, and their trace may be 10 s late
QUIET_S = 4.0  # no handler began anything for so long: what is left waits for somebody else
QUIET_DEADLINE_S = 60.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Told:
    """What the story leaves behind for the scorer."""

    injector: Injector
    desks: list[Desk] = field(default_factory=list)
    live_groups: set[str] = field(default_factory=set)


async def assigned(consumer: Consumer, queue_count: int) -> None:
    """Wait until a group's only consumer has all of its queues. TimeoutError after the deadline."""
    async with asyncio.timeout(ASSIGN_DEADLINE_S):
        while len(consumer.assignment) < queue_count:
            await asyncio.sleep(0.05)


async def tell(
    cluster: Cluster,
    truth: TruthLog,
    folder: Path,
    order_count: int,
    sample: Callable[[], Awaitable[None]],
    judge: Callable[[Told], Awaitable[None]],
    say: Say,
) -> None:
    """Run the shop. sample is called when every group is there and nothing was sent; judge when all is quiet, while the
    consumers still live."""
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(cluster.namesrv))
        for topic in TOPICS:
            await admin.create_topic(TopicConfig(topic, QUEUE_NUMS, QUEUE_NUMS))
        told = Told(Injector(cluster, truth, folder))
        audit = consumer_of(AUDIT, cluster.namesrv)
        await audit.start()
        ledger = consumer_of(LEDGER, cluster.namesrv)
        await ledger.start()
        for plan in (STOCK, POINTS, SMS):
            await _open(stack, told, truth, plan, cluster.namesrv)
        queue_count = QUEUE_NUMS * 2
        await asyncio.gather(assigned(audit, queue_count), assigned(ledger, queue_count))
        say("all five groups are online; sampling groups and offsets")
        await sample()
        await audit.close()
        await ledger.close()
        say(f"selling {order_count} orders; those in for trouble first")
        await _sell(cluster, truth, told, order_count, say)
        say("a new ledger process takes over from the killed one")
        await _open(stack, told, truth, LEDGER, cluster.namesrv)
        await asyncio.gather(_quiet(told, say), _sample_once_more(sample))
        await judge(told)


async def _open(stack: AsyncExitStack, told: Told, truth: TruthLog, plan: GroupPlan, namesrv: str) -> None:
    """Start a group's consumer and its handlers, until the stack closes."""
    desk = Desk(plan, truth)
    consumer = await stack.enter_async_context(consumer_of(plan, namesrv))
    running = asyncio.create_task(consumer.run(desk.handle))

    async def stop() -> None:
        running.cancel()
        await asyncio.wait([running])

    stack.push_async_callback(stop)
    told.desks.append(desk)
    told.live_groups.add(plan.name)
    await assigned(consumer, QUEUE_NUMS * 2)


async def _sell(cluster: Cluster, truth: TruthLog, told: Told, order_count: int, say: Say) -> None:
    injector = told.injector
    gate = asyncio.Event()
    gate.set()
    sold = 0
    counter = AttemptCounter()
    async with Producer("shop", cluster.namesrv, trace=True, hooks=[counter]) as producer:
        seller = Seller(producer, counter, truth, traced=True)

        async def sell(number: int) -> None:
            nonlocal sold
            await gate.wait()
            await seller.sell(everyone[number])
            sold += 1

        everyone = list(orders(order_count))
        selling = asyncio.create_task(in_parallel((partial(sell, n) for n in range(len(everyone))), LANES))

        async def at(share: float) -> None:
            while sold < share * order_count and not selling.done():
                await asyncio.sleep(0.02)

        worker = asyncio.create_task(injector.kill_worker())
        await at(0.2)
        say("broker-b stops answering for a moment")
        await injector.pause_broker()
        await worker
        say("a producer without trace, one whose trace is dropped, one-way sends, bodies that are too large")
        await asyncio.gather(injector.untraced(), injector.dropped(), injector.oneway(), injector.too_large())
        await at(0.6)
        say("kill -9 of broker-b; it comes back on its files")
        gate.clear()
        await injector.kill_broker()
        gate.set()
        await selling


async def _sample_once_more(sample: Callable[[], Awaitable[None]]) -> None:
    """What a group had passed this long ago and left no trace of since, it will leave none of: samples say so."""
    await asyncio.sleep(SETTLE_S)
    await sample()
    await asyncio.sleep(PROVE_S)


async def _quiet(told: Told, say: Say) -> None:
    """Wait until no handler began or ended anything for QUIET_S, and what hangs has hung long enough."""
    say("waiting until retries are through and hung handlers have hung long enough")
    loop = asyncio.get_running_loop()
    end = loop.time() + QUIET_DEADLINE_S
    last, since = -1, loop.time()
    while loop.time() < end:
        done = sum(desk.handled for desk in told.desks)
        if done != last:
            last, since = done, loop.time()
        if loop.time() - since >= QUIET_S and all(desk.is_hung_for(HUNG_MS + 1_000) for desk in told.desks):
            return
        await asyncio.sleep(0.1)


def scene_of(told: Told, holdings: Holdings, as_of_ms: int, thresholds: Thresholds, worker_keys: set[str]) -> Scene:
    """Put together what the scorer knows."""
    return Scene(
        as_of_ms=as_of_ms,
        thresholds=thresholds,
        tags={topic: {g.name: g.tags(topic) for g in GROUPS if topic in g.subscriptions} for topic in TOPICS},
        live_groups=frozenset(told.live_groups),
        live_processes=frozenset({os.getpid()}),
        dead_letters=holdings.dead_letters,
        stored=holdings.stored,
        visible_ms=holdings.visible_ms,
        due_ms=holdings.due_ms,
        unscored=frozenset(worker_keys),
        incomplete=frozenset(told.injector.incomplete),
        unjudged_sends=frozenset(told.injector.unjudged_sends),
    )
