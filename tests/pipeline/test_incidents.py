"""Faults of real clients on the embedded broker: the pipeline finds the cause of each."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.loops import run

from mqtrail.answers import Answers, ShownIncident
from mqtrail.client import Consumer, ConsumerConfig, Producer
from mqtrail.clock import now_ms
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.testing import embedded
from mqtrail.wire import Message

TOPIC, POISONED, HALF_BROKEN = "orders", "billing", "stock"
QUEUES = 4
MESSAGES, CUSTOMERS, BAD_CUSTOMER = 242, 11, 7  # no multiple of the queues: no queue has all of a customer
DEADLINE_S = 90.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class Member:
    """One consumer, the messages that it got, and those that its handler refuses."""

    def __init__(self, namesrv: str, group: str, *, is_broken: bool = False) -> None:
        self.group = group
        self.is_broken = is_broken
        self.keys: set[str] = set()
        config = ConsumerConfig(rebalance_ms=500)
        self.consumer = Consumer(group, namesrv, {TOPIC: "*"}, trace=True, config=config)

    @property
    def queues(self) -> set[int]:
        """Return the queues of the topic that are assigned to it."""
        return {queue.queue_id for queue in self.consumer.assignment if queue.topic == TOPIC}

    async def handle(self, delivery: Any) -> None:
        keys = delivery.message.keys
        self.keys.add(keys[0])
        if keys[0].startswith("warm"):
            return
        if self.group == POISONED and f"customer-{BAD_CUSTOMER}" in keys:
            raise ValueError(f"negative amount of {keys[0]}")
        if self.is_broken:
            raise OSError("no space left on device")


async def trade(namesrv: str) -> str:
    """Three consumers of two groups get all messages; return the id of the broken client."""
    poisoned = Member(namesrv, POISONED)
    half = [Member(namesrv, HALF_BROKEN, is_broken=is_broken) for is_broken in (False, True)]
    async with (
        Producer("shop", namesrv, trace=True) as producer,
        poisoned.consumer,
        half[0].consumer,
        half[1].consumer,
        asyncio.timeout(DEADLINE_S),
    ):
        running = [asyncio.create_task(one.consumer.run(one.handle)) for one in (poisoned, *half)]
        warm = 0
        while not (poisoned.keys and all(one.keys and len(one.queues) == QUEUES // 2 for one in half)):
            await producer.send(Message(TOPIC, b"warm", keys=[f"warm-{warm}"]))
            warm += 1
            await asyncio.sleep(0.05)
        for number in range(MESSAGES):
            await producer.send(Message(TOPIC, b"body", keys=[f"order-{number}", f"customer-{number % CUSTOMERS}"]))
        wanted = {f"order-{number}" for number in range(MESSAGES)}
        while not (wanted <= poisoned.keys and wanted <= half[0].keys | half[1].keys):
            await asyncio.sleep(0.05)
        for task in running:
            task.cancel()
        return str(half[1].consumer.client_id)


def test_poison_key_and_broken_client(spark: SparkSession, tmp_path: Path) -> None:
    """Two faults occur at the same time, in two groups that read one topic."""
    with embedded() as broker:
        broken = run(trade(broker.namesrv_address))
        PipelineJob(JobConfig(namesrv=broker.namesrv_address, lake=tmp_path / "lake")).use(spark).once()
    found = Answers(tmp_path / "lake").incidents(now_ms()).incidents
    # On a busy machine messages may also wait, on that host or without a cause: no other cause is named.
    assert {one.cause for one in found} - {"NO_SINGLE_CAUSE"} == {"POISON_KEY", "BAD_HOST"}, found
    assert_explained(found, "POISON_KEY", f"key = customer-{BAD_CUSTOMER}", "negative amount")
    assert_explained(found, "BAD_HOST", f"client = {broken}", "no space left on device")


def assert_explained(found: Sequence[ShownIncident], cause: str, condition: str, error: str) -> None:
    """One incident has the cause, the condition and the error, and covers all bad messages."""
    [one] = [one for one in found if one.cause == cause and "HANDLERS_FAIL" in one.symptoms]
    assert condition in (*one.conditions, *one.same_conditions)
    assert error in one.errors[0]
    assert one.inside_bad_count >= MESSAGES // CUSTOMERS // 2
    assert one.outside_bad_count == 0
