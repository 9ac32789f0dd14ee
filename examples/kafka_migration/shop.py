"""The shop: its orders, what billing decides about one, and billing on Kafka, in the shadow, and on RocketMQ.

`charge` decides and has no effect; `Ledger.enter` is the effect. The old and the new billing do both. The shadow only
decides, and records what it came to.
"""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer

from mqtrail.client import ConsumeFromWhere, Consumer, ConsumerConfig, Delivery
from mqtrail.migrate import ResultLog

TOPIC, GROUP, SHADOW = "orders", "billing", "billing_shadow"
POLL_S = 0.05
STEP_S = 120.0  # how long one step may take
CONFIG = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=500)


class RunError(Exception):
    """The run cannot go on; the text has what was found, what was expected, and a remedy."""


def order(number: int) -> tuple[bytes, bytes]:
    """Return key and value of an order. The key is the customer: their orders stay in order."""
    content = {"id": f"order-{number}", "cents": 100 + 7 * number}
    return b"customer-%d" % (number % 11), json.dumps(content).encode()


def charge(content: Mapping[str, Any], *, is_wrong: bool = False) -> dict[str, Any]:
    """Decide what an order costs, with a tax of 19 %. No effect. is_wrong: the planted defect, which cuts the cents."""
    exact = content["cents"] * 119 / 100
    return {"order": content["id"], "cents": int(exact) if is_wrong else round(exact)}


class Ledger:
    """The charges, in a database. An order is charged once, however often it is handled."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as base:
            base.execute("CREATE TABLE IF NOT EXISTS charges (id TEXT PRIMARY KEY, cents INTEGER, handled INTEGER)")

    def enter(self, decided: Mapping[str, Any]) -> None:
        """Charge an order."""
        with self._open() as base:
            base.execute(
                "INSERT INTO charges VALUES (?, ?, 1) ON CONFLICT (id) DO UPDATE SET handled = handled + 1",
                (decided["order"], decided["cents"]),
            )

    def charges(self) -> dict[str, tuple[int, int]]:
        """Return the cents of each order, and how often it was handled."""
        with self._open() as base:
            return {row[0]: (row[1], row[2]) for row in base.execute("SELECT id, cents, handled FROM charges")}

    def has(self, count: int) -> bool:
        """Whether the first orders, so many, are charged."""
        charged = self.charges()
        return all(f"order-{number}" in charged for number in range(count))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path)) as base, base:
            yield base


async def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a step. RunError: it takes too long."""
    try:
        async with asyncio.timeout(STEP_S):
            while not is_so():
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise RunError(f"found no {what} within {STEP_S:.0f} s, expected it: read the output above") from None


async def old_billing(kafka: str, ledger: Ledger, results: ResultLog, is_done: Callable[[], bool]) -> None:
    """Bill orders from Kafka, commit after each one, and stop when `is_done`."""
    consumer = AIOKafkaConsumer(
        TOPIC, bootstrap_servers=kafka, group_id=GROUP, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async with asyncio.timeout(STEP_S):
            while not is_done():
                for records in (await consumer.getmany(timeout_ms=200, max_records=1)).values():
                    for record in records:
                        decided = charge(json.loads(record.value))
                        ledger.enter(decided)
                        results.add(decided["order"], decided, time_ms=record.timestamp)
                    await consumer.commit()
    finally:
        await consumer.stop()


@contextlib.asynccontextmanager
async def consuming(namesrv: str, group: str, handle: Callable[[Delivery], Awaitable[None]]) -> Any:
    """Consume orders from RocketMQ while the block runs; at its end, finish what is handled and commit."""
    async with Consumer(group, namesrv, {TOPIC: "*"}, config=CONFIG) as consumer:
        serving = asyncio.create_task(consumer.run(handle))
        try:
            yield
        finally:
            await consumer.close()
            await serving


def new_billing(ledger: Ledger) -> Callable[[Delivery], Awaitable[None]]:
    """Return the handler on RocketMQ: it decides, then it charges."""

    async def handle(delivery: Delivery) -> None:
        ledger.enter(charge(json.loads(delivery.body)))

    return handle


def shadow_billing(results: ResultLog, seen: set[str], *, is_wrong: bool) -> Callable[[Delivery], Awaitable[None]]:
    """Return the handler of the shadow: it decides and records, and has no effect."""

    async def handle(delivery: Delivery) -> None:
        decided = charge(json.loads(delivery.body), is_wrong=is_wrong)
        results.add(decided["order"], decided, time_ms=int(delivery.message.properties["KAFKA_TIMESTAMP"]))
        seen.add(decided["order"])

    return handle
