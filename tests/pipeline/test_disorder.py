"""A real group that consumes in order handles an earlier message after a later one, because its offset is reset."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.loops import run

from mqtrail.client import Admin, Consumer, ConsumerConfig, Producer
from mqtrail.lake import LookUp
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.testing import embedded
from mqtrail.wire import PROPERTY_SHARDING_KEY, Message, MessageQueue, SubscriptionGroupConfig, TopicConfig

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
TOPIC, GROUP = "steps", "in-order"


async def consume(namesrv: str, job: PipelineJob, count: int) -> None:
    """Handle so many messages in order; a sample is taken while the consumer is there."""
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def handler(delivery: Any) -> None:
        handled.put_nowait(delivery.message.msg_id)

    config = ConsumerConfig(ordered=True)
    async with Consumer(GROUP, namesrv, {TOPIC: "*"}, config=config, trace=True) as consumer:
        consuming = asyncio.create_task(consumer.run(handler))
        for _ in range(count):
            await asyncio.wait_for(handled.get(), 60)
        await asyncio.to_thread(job.once)
        consuming.cancel()


async def disorder(namesrv: str, job: PipelineJob, broker_name: str) -> tuple[str, str]:
    """Send two messages of one sharding key; the group finishes the second one, then both."""
    queue = MessageQueue(TOPIC, broker_name, 0)
    async with Admin(namesrv) as admin, Producer("shop", namesrv, trace=True) as producer:
        await admin.create_topic(TopicConfig(TOPIC))
        await admin.create_group(SubscriptionGroupConfig(GROUP))
        sent = [
            await producer.send(Message(TOPIC, b"step", properties={PROPERTY_SHARDING_KEY: "one"}), queue=queue)
            for _ in range(2)
        ]
        await admin.set_offset(GROUP, queue, 1)
        await consume(namesrv, job, 1)
        await admin.set_offset(GROUP, queue, 0)
        await consume(namesrv, job, 2)
    return sent[0].msg_id, sent[1].msg_id


def test_an_offset_that_is_reset_lets_a_message_be_overtaken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer says that it consumes in order, so the earlier message is OUT_OF_ORDER, and names the later one."""
    monkeypatch.setattr("mqtrail.pipeline.orders.TIMEOUT_MS", 30_000)  # also on a busy machine
    with embedded() as broker:
        job = PipelineJob(JobConfig(namesrv=broker.namesrv_address, lake=tmp_path / "lake")).use(spark)
        first, second = run(disorder(broker.namesrv_address, job, broker.broker_names[0]))
        job.once()
    look_up = LookUp(job.lake)
    look_up.define_views()
    found = dict(look_up.connection.sql("SELECT msg_id, codes || ' ' || reasons FROM verdicts").fetchall())
    assert "OUT_OF_ORDER" in found[first]
    assert f"OVERTAKEN_BY(msg_id={second}," in found[first]
    assert "OUT_OF_ORDER" not in found[second]
