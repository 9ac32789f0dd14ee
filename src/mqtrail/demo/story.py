"""The course of the demo: start consumers, sell special orders, sell the rest with faults, wait for all handlers."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mqtrail.client import Admin, Consumer, Producer
from mqtrail.wire import TopicConfig

from .cluster import DemoCluster
from .faults import Injector
from .measure import Holdings
from .plan import AUDIT, GROUPS, HUNG_MS, LEDGER, POINTS, QUEUE_NUMS, SMS, STOCK, TOPICS, GroupPlan, orders
from .score import ClusterFacts, Thresholds
from .shop import AttemptCounter, GroupHandler, Seller, consumer_of, in_parallel
from .truth import TruthLog

LANES = 32  # orders sold at once
ASSIGN_DEADLINE_S = 60.0
SETTLE_S = 2.0  # for the new ledger process to handle the backlog of the killed one
PROVE_S = 15.0  # the shorter reminders are due after 5 s, and their trace may be 10 s late
QUIET_S = 4.0  # time without a new handling after which the shop counts as quiet
QUIET_DEADLINE_S = 60.0

Progress = Callable[[str], None]


@dataclass(slots=True)
class ShopRun:
    """Facts about the run that the scorer needs."""

    injector: Injector
    handlers: list[GroupHandler] = field(default_factory=list)
    live_groups: set[str] = field(default_factory=set)


async def assigned(consumer: Consumer, queue_count: int) -> None:
    """Wait until a group's only consumer has all of its queues. TimeoutError after the deadline."""
    async with asyncio.timeout(ASSIGN_DEADLINE_S):
        while len(consumer.assignment) < queue_count:
            await asyncio.sleep(0.05)


async def run_shop(
    cluster: DemoCluster,
    truth: TruthLog,
    folder: Path,
    order_count: int,
    sample: Callable[[], Awaitable[None]],
    judge: Callable[[ShopRun], Awaitable[None]],
    say: Progress,
) -> None:
    """Run the shop. sample: called when all groups are online and nothing has been sent, around the kill of a broker,
    and at the end. judge: called when all is quiet and the consumers still run."""
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(cluster.namesrv))
        for topic in TOPICS:
            await admin.create_topic(TopicConfig(topic, QUEUE_NUMS, QUEUE_NUMS))
        shop_run = ShopRun(Injector(cluster, truth, folder))
        for plan in (STOCK, POINTS, SMS):
            await _open(stack, shop_run, truth, plan, cluster.namesrv)
        async with AsyncExitStack() as opening:
            for plan in (AUDIT, LEDGER):
                await _open(opening, shop_run, truth, plan, cluster.namesrv)
            say("all five groups are online; sampling groups and offsets from now on")
            await sample()
            await shop_run.injector.first_payment()
            await _handled(shop_run.handlers[-2:])
        shop_run.live_groups -= {AUDIT.name, LEDGER.name}
        say(f"selling {order_count} orders, those with planned faults first")
        await _sell(cluster, truth, shop_run, order_count, sample, say)
        say("a new ledger process takes over from the killed one")
        await _open(stack, shop_run, truth, LEDGER, cluster.namesrv)
        await asyncio.gather(_quiet(shop_run, say), _sample_once_more(sample))
        await judge(shop_run)


async def _open(stack: AsyncExitStack, shop_run: ShopRun, truth: TruthLog, plan: GroupPlan, namesrv: str) -> None:
    """Start a group's consumer and its handlers, until the stack closes."""
    handler = GroupHandler(plan, truth)
    consumer = await stack.enter_async_context(consumer_of(plan, namesrv))
    running = asyncio.create_task(consumer.run(handler.handle))

    async def stop() -> None:
        running.cancel()
        await asyncio.wait([running])

    stack.push_async_callback(stop)
    shop_run.handlers.append(handler)
    shop_run.live_groups.add(plan.name)
    await assigned(consumer, QUEUE_NUMS * 2)


async def _handled(handlers: Sequence[GroupHandler]) -> None:
    """Wait until each group has handled a message. TimeoutError after the deadline."""
    async with asyncio.timeout(ASSIGN_DEADLINE_S):
        while not all(handler.handled for handler in handlers):
            await asyncio.sleep(0.05)


async def _sell(
    cluster: DemoCluster,
    truth: TruthLog,
    shop_run: ShopRun,
    order_count: int,
    sample: Callable[[], Awaitable[None]],
    say: Progress,
) -> None:
    injector = shop_run.injector
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
        say("injecting: broker-b pauses for a moment")
        await injector.pause_broker()
        await worker
        say("injecting: a producer without trace, one with dropped trace, one-way sends, bodies above the limit")
        await asyncio.gather(injector.untraced(), injector.dropped(), injector.oneway(), injector.too_large())
        await at(0.6)
        say("injecting: kill -9 of broker-b, then a restart on its files")
        gate.clear()
        await sample()
        await injector.kill_broker()
        await sample()
        gate.set()
        await selling


async def _sample_once_more(sample: Callable[[], Awaitable[None]]) -> None:
    """Sample again, and wait for late trace records: what a group has not traced by then, it never traces."""
    await asyncio.sleep(SETTLE_S)
    await sample()
    await asyncio.sleep(PROVE_S)


async def _quiet(shop_run: ShopRun, say: Progress) -> None:
    """Wait until no handling has begun or ended for QUIET_S, and hung handlers have exceeded the threshold."""
    say("waiting for retries to finish and for hung handlers to exceed the threshold")
    loop = asyncio.get_running_loop()
    end = loop.time() + QUIET_DEADLINE_S
    last, since = -1, loop.time()
    while loop.time() < end:
        done = sum(handler.handled for handler in shop_run.handlers)
        if done != last:
            last, since = done, loop.time()
        if loop.time() - since >= QUIET_S and all(
            handler.is_hung_for(HUNG_MS + 1_000) for handler in shop_run.handlers
        ):
            return
        await asyncio.sleep(0.1)


def facts_of(
    shop_run: ShopRun,
    holdings: Holdings,
    as_of_ms: int,
    thresholds: Thresholds,
    worker_keys: set[str],
    gaps: Sequence[tuple[str, int, int]],
) -> ClusterFacts:
    """Return the facts for the scorer. gaps: broker and times of samples between which it did not report its groups."""
    unsampled = {
        key
        for key, (broker, at_ms) in holdings.stored_at.items()
        if any(broker == name and first_ms < at_ms < end_ms for name, first_ms, end_ms in gaps)
    }
    return ClusterFacts(
        as_of_ms=as_of_ms,
        thresholds=thresholds,
        tags={topic: {g.name: g.tags(topic) for g in GROUPS if topic in g.subscriptions} for topic in TOPICS},
        live_groups=frozenset(shop_run.live_groups),
        live_processes=frozenset({os.getpid()}),
        dead_letters=holdings.dead_letters,
        stored=holdings.stored,
        visible_ms=holdings.visible_ms,
        due_ms=holdings.due_ms,
        send_counts=holdings.send_counts,
        unscored=frozenset(worker_keys | unsampled | holdings.repeated),
        incomplete=frozenset(shop_run.injector.incomplete),
        unjudged_sends=frozenset(shop_run.injector.unjudged_sends),
    )
