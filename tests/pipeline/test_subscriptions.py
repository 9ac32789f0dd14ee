"""Subscriptions and POP with the embedded broker: actions of clients, and the pipeline's verdicts. Without Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from tests.client.consumer.test_consumer_end_to_end import set_mode
from tests.client.trace.test_end_to_end import quick
from tests.waiting import until

from mqtrail import trail
from mqtrail.client import Consumer, Producer, Sql
from mqtrail.lake import connect, relation_of
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.testing import Embedded, embedded_async
from mqtrail.wire import Message

pytestmark = pytest.mark.slow
TOPIC, GROUP = "orders", "points"
NO_SPARK = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))
"""The driver itself reads and judges few messages."""


@dataclass
class World:
    """A broker, a producer and a lake."""

    broker: Embedded
    producer: Producer
    job: PipelineJob
    folder: Path

    async def send(self, body: bytes, amount: int) -> None:
        """Send a message with a property."""
        await self.producer.send(Message(TOPIC, body, keys=body.decode(), properties={"amount": str(amount)}))

    @asynccontextmanager
    async def consuming(
        self, subscription: Any, *, group: str = GROUP, trace: bool = True, **settings: Any
    ) -> AsyncIterator[tuple[Consumer, Counter[bytes]]]:
        """A consumer in the background, and the number of deliveries of each body. The first "fail" fails, "hang" never
        ends.
        """
        seen: Counter[bytes] = Counter()

        async def handler(delivery: Any) -> None:
            seen[delivery.body] += 1
            if delivery.body == b"fail" and seen[b"fail"] == 1:
                raise ValueError("once")
            if delivery.body == b"hang":
                await asyncio.Event().wait()

        config = quick(self.folder, poll_suspend_ms=500, **settings)
        namesrv = self.broker.namesrv_address
        async with Consumer(group, namesrv, {TOPIC: subscription}, config=config, trace=trace) as consumer:
            consuming = asyncio.create_task(consumer.run(handler))
            yield consumer, seen
            consuming.cancel()

    async def cycle(self) -> None:
        """Let the pipeline sample, read and judge."""
        report = await asyncio.to_thread(self.job.once)
        assert report.problems == ()

    def rows(self, relation: trail.Relation, columns: str) -> list[tuple[Any, ...]]:
        """Columns of the current rows of a table."""
        self.job.lake.refresh()
        return connect().sql(f"SELECT {columns} FROM ({relation_of(self.job.lake[relation.name])})").fetchall()

    def states(self) -> dict[str, dict[str, tuple[str, str]]]:
        """The state and the reasons of each group for each message, by KEYS."""
        keys = dict(self.rows(trail.TRAJECTORIES, "msg_id, keys"))
        found: dict[str, dict[str, tuple[str, str]]] = {key: {} for key in keys.values()}
        for msg_id, group, state, reasons in self.rows(trail.VERDICTS, "msg_id, group_name, state, reasons"):
            found[keys[msg_id]][group] = (state, reasons)
        return found


@asynccontextmanager
async def world(folder: Path, hung_ms: int = trail.Settings().hung_ms) -> AsyncIterator[World]:
    """A broker, a producer and a lake without a consumer. Trace records count as missing after half a second."""
    async with embedded_async() as broker, Producer("shop", broker.namesrv_address, trace=True) as producer:
        settings = trail.Settings(trace_delay_ms=500, hung_ms=hung_ms)
        config = JobConfig(namesrv=broker.namesrv_address, lake=folder / "lake", settings=settings)
        yield World(broker, producer, PipelineJob(config).use(NO_SPARK), folder)


async def test_messages_are_judged_by_sql92(tmp_path: Path) -> None:
    """Excluded messages are FILTERED; messages stored between two subscriptions only if both exclude them."""
    async with world(tmp_path) as shop:
        await shop.send(b"first", 5)
        async with shop.consuming(Sql("amount > 3")) as (_, seen):
            await until(lambda: seen[b"first"], 20)
            await shop.cycle()  # a sample with the subscription
            for name, amount in (("passed", 5), ("filtered", 2)):
                await shop.send(name.encode(), amount)
            await until(lambda: seen[b"passed"], 20)
            await shop.cycle()
        found = shop.states()
        assert found["filtered"] == {GROUP: ("FILTERED", "SUBSCRIPTION(SQL92=amount > 3)")}

        for name, amount in (("excluded by both", 0), ("accepted before", 9)):
            await shop.send(name.encode(), amount)
        async with shop.consuming(Sql("amount BETWEEN 1 AND 3")) as (_, seen):
            await shop.send(b"passed later", 2)
            await until(lambda: seen[b"passed later"], 20)
            await shop.cycle()
            await shop.send(b"filtered later", 8)

            async def is_judged() -> bool:
                await shop.cycle()
                states = shop.states()
                return (
                    states["accepted before"][GROUP][0] == "UNKNOWN"
                    and states["filtered later"][GROUP][0] == "FILTERED"
                    and states["passed"][GROUP][0] == states["passed later"][GROUP][0] == "CONSUMED"
                )

            end = asyncio.get_running_loop().time() + 60
            while not await is_judged():
                assert asyncio.get_running_loop().time() < end, shop.states()
        found = shop.states()
        assert found["filtered"][GROUP][0] == found["excluded by both"][GROUP][0] == "FILTERED"
        assert "FILTER_CHANGED(" in found["accepted before"][GROUP][1]
        assert seen[b"accepted before"] == 0


async def test_a_group_that_pops_is_the_only_one(tmp_path: Path) -> None:
    """A failed message is consumed again from POP's retry topic; the name of that topic creates no group."""
    async with world(tmp_path) as shop:
        await shop.send(b"first", 0)
        await set_mode(shop.broker.namesrv_address, TOPIC, GROUP, "POP")
        async with shop.consuming("*", client_rebalance=False) as (consumer, seen):
            await until(lambda: -1 in [queue.queue_id for queue in consumer.assignment], 20)
            await shop.send(b"fail", 0)
            await until(lambda: seen[b"fail"] == 2, 60)
            end = asyncio.get_running_loop().time() + 60
            while shop.states().get("fail", {}).get(GROUP, ("", ""))[0] != "CONSUMED":
                assert asyncio.get_running_loop().time() < end, shop.states()
                await shop.cycle()
        assert {group for groups in shop.states().values() for group in groups} == {GROUP}
        timer, retries = "rmq_sys_wheel_timer", f"%RETRY%{GROUP}_{TOPIC}"
        kinds = set(shop.rows(trail.MESSAGE_META, "topic, stored_kind"))
        assert kinds == {(TOPIC, "NORMAL"), (retries, "RETRY_POP"), (timer, "POP_CK"), (timer, "POP_ACK")}


async def test_a_group_that_pops_untraced_is_judged_by_the_records_of_the_broker(tmp_path: Path) -> None:
    """Acknowledged messages are consumed, also after a failure; one that is not acknowledged is in flight."""
    group = "untraced"
    async with world(tmp_path, hung_ms=600_000) as shop:
        await shop.send(b"first", 0)
        await set_mode(shop.broker.namesrv_address, TOPIC, group, "POP")
        async with shop.consuming("*", group=group, trace=False, client_rebalance=False) as (consumer, seen):
            await until(lambda: -1 in [queue.queue_id for queue in consumer.assignment], 20)
            await shop.send(b"fine", 0)
            await shop.send(b"fail", 0)
            await until(lambda: seen[b"fail"] == 2 and seen[b"fine"] == 1, 60)
            await shop.send(b"hang", 0)
            await until(lambda: seen[b"hang"] == 1, 20)
            expected = {
                "fine": ("CONSUMED", "POP_ACKED"),
                "fail": ("CONSUMED", "POP_ACKED"),
                "hang": ("IN_FLIGHT", "POP_NOT_ACKED"),
            }
            end = asyncio.get_running_loop().time() + 60
            found: dict[str, tuple[str, str]] = {}
            while found != expected:
                assert asyncio.get_running_loop().time() < end, shop.states()
                await shop.cycle()
                states = shop.states()
                found = {key: _named(states.get(key, {}).get(group, ("", ""))) for key in expected}
        codes = dict(shop.rows(trail.TRAJECTORIES, "keys, group_codes"))
        assert codes["fail"] == "CONSUMED,CONSUMED_AFTER_RETRY"
        assert {row[0] for row in shop.rows(trail.TRAJECTORIES, "knowledge")} == {"INCOMPLETE"}


def _named(state: tuple[str, str]) -> tuple[str, str]:
    """The state, and the name of its first reason."""
    return state[0], state[1].partition("(")[0]
