"""Injected faults outside the handlers: brokers paused and killed, clients killed, traces disabled or dropped."""

import asyncio
import subprocess
import sys
from pathlib import Path

from mqtrail.client import Producer, ProducerConfig, TraceConfig
from mqtrail.clock import now_ms
from mqtrail.wire import Message, MessageQueue

from .cluster import DemoCluster
from .plan import PAYMENTS, REMINDERS, ShopOrder
from .shop import AttemptCounter, Seller
from .truth import Fault, HandlingStarted, TruthLog, read_truth

PAUSE_S = 1.4
DOWN_S = 6.0
UNCERTAIN_TIMEOUT_MS = 400
BODY_TOO_LARGE = 5 << 20
SPECIAL_COUNT = 20
LATE_COUNT = 8
WORKER_HANDLES = 150
WORKER_DEADLINE_S = 60.0
FIRST_EXTRA_ORDER = 900_000  # first number of the injector's own payments


class Injector:
    """Causes the faults and notes each."""

    def __init__(self, cluster: DemoCluster, truth: TruthLog, folder: Path) -> None:
        self._cluster = cluster
        self._truth = truth
        self._folder = folder
        self._next = FIRST_EXTRA_ORDER
        self.incomplete: set[str] = set()  # keys whose trace was dropped
        self.unjudged_sends: set[str] = set()
        self.killed: set[int] = set()

    def _note(self, name: str, detail: str, keys: tuple[str, ...] = ()) -> None:
        self._truth.add(Fault(name=name, at_ms=now_ms(), detail=detail, keys=keys))

    def _payments(self, count: int) -> list[ShopOrder]:
        numbers = range(self._next, self._next + count)
        self._next += count
        return [ShopOrder(number) for number in numbers]

    async def _sell(
        self,
        group: str,
        orders: list[ShopOrder],
        *,
        config: ProducerConfig | None = None,
        trace: bool = True,
        oneway: bool = False,
        body: bytes = b"{}",
        timeout_ms: int | None = None,
    ) -> None:
        counter = AttemptCounter()
        async with Producer(group, self._cluster.namesrv, trace=trace, config=config, hooks=[counter]) as producer:
            seller = Seller(producer, counter, self._truth, traced=trace)
            for order in orders:
                message = Message(PAYMENTS, body, tags="CARD", keys=[order.charge, order.name])
                await seller.send(message, timeout_ms=timeout_ms, oneway=oneway)

    async def first_payment(self) -> None:
        """Send one payment before all others, so that every group has traced a delivery."""
        await self._sell("shop-first", self._payments(1))

    async def oneway(self) -> None:
        """Send payments one-way: brokers do not acknowledge them."""
        await self._sell("shop-oneway", self._payments(SPECIAL_COUNT), oneway=True)

    async def untraced(self) -> None:
        """Send payments by a producer without trace."""
        orders = self._payments(SPECIAL_COUNT)
        await self._sell("shop-untraced", orders, trace=False)
        self._note("TRACE_OFF", "a producer without trace", tuple(order.charge for order in orders))

    async def dropped(self) -> None:
        """Send payments by a producer without room for trace records: all are dropped and counted."""
        orders = self._payments(SPECIAL_COUNT)
        config = ProducerConfig(trace=TraceConfig(memory_size_max=1, spool_size_max=0))
        await self._sell("shop-forgetful", orders, config=config)
        keys = {order.charge for order in orders}
        self.incomplete |= keys
        self.unjudged_sends |= keys
        self._note("TRACE_DROPPED", "a producer that can keep no trace record", tuple(sorted(keys)))

    async def too_large(self) -> None:
        """Send bodies above the brokers' limit, which are refused."""
        config = ProducerConfig(body_size_max=2 * BODY_TOO_LARGE, compress_over=4 * BODY_TOO_LARGE)
        await self._sell("shop-bulky", self._payments(3), config=config, body=bytes(BODY_TOO_LARGE), timeout_ms=10_000)

    async def pause_broker(self) -> None:
        """Pause broker-b: sends in flight become slow, those with a short timeout end without a reply."""
        self._cluster.broker_b.pause()
        self._note("BROKER_PAUSED", f"broker-b does not answer for {PAUSE_S} s")
        try:
            await asyncio.gather(asyncio.sleep(PAUSE_S), self._impatient())
        finally:
            self._cluster.broker_b.resume()

    async def _impatient(self) -> None:
        """Send payments with a timeout of 0.4 s to the paused broker."""
        counter = AttemptCounter()
        async with Producer("shop-impatient", self._cluster.namesrv, trace=True, hooks=[counter]) as producer:
            seller = Seller(producer, counter, self._truth, traced=True)

            async def one(number: int, order: ShopOrder) -> None:
                message = Message(PAYMENTS, b"{}", tags="CARD", keys=[order.charge, order.name])
                queue = MessageQueue(PAYMENTS, "broker-b", number % 4)
                await seller.send(message, timeout_ms=UNCERTAIN_TIMEOUT_MS, queue=queue)

            await asyncio.gather(*(one(number, order) for number, order in enumerate(self._payments(6))))

    async def kill_broker(self) -> None:
        """Kill broker-b while payments are sent and reminders fall due, then restart it on the same files."""
        await self._reminders()
        await asyncio.to_thread(self._cluster.broker_b.kill)
        self._note("BROKER_KILLED", f"broker-b is gone for {DOWN_S} s, then starts on its files")
        await asyncio.gather(asyncio.sleep(DOWN_S), self._sell("shop-stubborn", self._payments(SPECIAL_COUNT)))
        await asyncio.to_thread(self._cluster.broker_b.start)

    async def _reminders(self) -> None:
        """Send reminders to broker-b that fall due in a second, when it is down."""
        counter = AttemptCounter()
        async with Producer("shop-reminders", self._cluster.namesrv, trace=True, hooks=[counter]) as producer:
            seller = Seller(producer, counter, self._truth, traced=True)
            for number, order in enumerate(self._payments(LATE_COUNT)):
                message = Message(REMINDERS, b"{}", tags="SMS", keys=[order.reminder, order.name], delay_level=1)
                await seller.send(message, queue=MessageQueue(REMINDERS, "broker-b", number % 4))

    async def kill_worker(self) -> None:
        """Start a consumer process and kill it after it has handled payments, before it commits its offsets."""
        command = [sys.executable, "-m", "mqtrail.demo.worker", self._cluster.namesrv, str(self._folder)]
        with (self._folder / "worker.log").open("a") as log:
            worker = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert worker.stdout is not None
        try:
            async with asyncio.timeout(WORKER_DEADLINE_S):
                while (line := await asyncio.to_thread(worker.stdout.readline)) and int(line) < WORKER_HANDLES:
                    pass
            await asyncio.sleep(0.6)  # by then it has sent its trace, but not committed its offsets
        finally:
            worker.kill()
            await asyncio.to_thread(worker.wait)
            worker.stdout.close()
        self.killed.add(worker.pid)
        keys = {
            note.key
            for note in read_truth(self._folder)
            if isinstance(note, HandlingStarted) and note.process == worker.pid
        }
        self._note("CONSUMER_KILLED", f"a ledger process was killed after {len(keys)} payments", tuple(sorted(keys)))
