"""ConsumeService: for any results of handlers in any order, the noted offset never passes an unfinished message."""

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mqtrail.client import Batch, ClientInstance, ConsumerConfig, Delivery
from mqtrail.client.consumer.consume_service import ConsumeService
from mqtrail.client.consumer.offsets import RemoteOffsets
from mqtrail.client.core.naming import Names
from mqtrail.client.delivery.consumer_stats import SAMPLE_MS, ConsumerStats
from mqtrail.client.delivery.process_queue import ProcessQueue
from mqtrail.client.delivery.ready import Ready
from mqtrail.client.delivery.running import RunningHandlers
from mqtrail.wire import MessageExt, MessageQueue

from ...loops import run
from ..core.test_parts import message

QUEUE = MessageQueue("orders", "broker-a", 0)


class Bench:
    """A ConsumeService without a cluster: send-backs succeed or fail at random."""

    def __init__(self, config: ConsumerConfig, chance: random.Random) -> None:
        self.chance = chance
        client = ClientInstance("127.0.0.1:1")
        self.done: set[int] = set()  # succeeded, or the broker has it
        self.ready = Ready()
        self.offsets = RemoteOffsets(client, "CG", lambda queue, offset: None)
        running_handlers = RunningHandlers(client, (), ConsumerStats())
        self.settling = ConsumeService(
            client,
            Names("CG"),
            self.ready,
            self.offsets,
            running_handlers,
            config,
            may_work=lambda queue: True,
            on_unlocked=lambda queue: None,
        )
        send_back: Any = self.settling._send_back
        send_back.give_back = self.give_back
        self.queue = ProcessQueue(QUEUE, 0)

    async def give_back(self, message: MessageExt, delay_level: int) -> bool:
        await asyncio.sleep(0)
        taken = self.chance.random() < 0.7
        if taken:
            self.done.add(message.queue_offset)
        return taken

    def check(self) -> None:
        noted = self.offsets.noted(QUEUE) or 0
        assert set(range(noted)) <= self.done, (noted, self.done)

    async def handle(self, item: Delivery | Batch, expected: list[int]) -> None:
        deliveries = [item] if isinstance(item, Delivery) else list(item)
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
        try:
            async with item.process():
                fails = self.chance.random()
                for delivery in deliveries:
                    assert delivery.message.queue_offset not in self.done
                if fails < 0.1:
                    raise asyncio.CancelledError
                for delivery in deliveries:
                    if fails < 0.4 and self.chance.random() < 0.5:
                        delivery.retry_later()
                    elif not any(one.outcome.result != "SUCCESS" for one in deliveries) or not expected:
                        self.done.add(delivery.message.queue_offset)
        except asyncio.CancelledError:
            pass
        self.check()


@settings(max_examples=40)
@given(st.integers(0, 1 << 30), st.sampled_from(["concurrent", "ordered", "batches", "ordered batches"]))
def test_offsets_never_run_ahead(seed: int, mode: str) -> None:
    """With successes, failures, cancellations and refused returns, all messages end and the offset is after the
    last."""
    chance = random.Random(seed)
    ordered = "ordered" in mode
    config = ConsumerConfig(
        ordered=ordered, batch_count_max=3 if "batches" in mode else 1, resubmit_ms=1, suspend_ms=10
    )

    async def main() -> None:
        bench = Bench(config, chance)
        count = chance.randrange(1, 14)
        for first in range(0, count, 5):
            pulled = [message(offset) for offset in range(first, min(first + 5, count))]
            bench.settling.offer(bench.queue, bench.queue.put(pulled, pulled[-1].queue_offset + 1))
        tasks: set[asyncio.Task[None]] = set()
        async with asyncio.timeout(60):
            while bench.queue.count:
                taking = asyncio.ensure_future(bench.ready.take())
                await asyncio.wait([taking], timeout=0.05)
                if not taking.done():
                    taking.cancel()
                    continue
                item = taking.result()
                assert item is not None
                tasks.add(asyncio.create_task(bench.handle(item, [1] if ordered else [])))
                if ordered:
                    assert sum(not task.done() for task in tasks) <= 1, "one at a time"
                bench.check()
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
        assert bench.offsets.noted(QUEUE) == count
        bench.check()

    run(main())


def test_statistics_are_of_the_last_minute() -> None:
    """Rates and times since the oldest sample, failures of the last hour, a bounded number of topics."""
    stats = ConsumerStats()
    for _ in range(12):
        stats.pulled("orders", 32, 8)
        stats.consumed("orders", 10, 4, 50)
        stats.sample()
    status = stats.status()["orders"]
    assert (status.pull_rt, status.consume_rt, status.consume_failed_msgs) == (8, 5, 48)
    assert round(status.consume_ok_tps * SAMPLE_MS / 1000, 1) == round(6 * 6 / 7, 1)
    for number in range(2_000):
        stats.pulled(str(number), 1, 1)
    assert len(stats.status()) == 1_024
