"""Messages that are stored again, with the embedded broker: resent by producers, or put back by an operator."""

import asyncio
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession
from tests.loops import run

from mqtrail import trail
from mqtrail.client import Admin, Consumer, ConsumerConfig, Producer, RetryLater
from mqtrail.lake import relation_of
from mqtrail.pipeline import JobConfig, PipelineJob
from mqtrail.testing import embedded
from mqtrail.wire import Message

TOPIC, GROUP = "orders", "points"
FAILS = b"fails at first"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class Handler:
    """Fails on one body until the message has been put back."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.is_mended = False

    async def __call__(self, delivery: Any) -> None:
        self.handled.append(delivery.message.body)
        if delivery.message.body == FAILS and not self.is_mended:
            raise RetryLater

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.handled) < count:
                await asyncio.sleep(0.01)


async def story(namesrv: str) -> dict[str, str]:
    """Return the id of each message by what was done to it."""
    handler = Handler()
    config = ConsumerConfig(attempts_max=0)
    async with (
        Producer("shop", namesrv, trace=True) as producer,
        Consumer(GROUP, namesrv, {TOPIC: "*"}, trace=True, config=config) as consumer,
        Admin(namesrv) as admin,
    ):
        consuming = asyncio.create_task(consumer.run(handler))

        async def send(body: bytes, **fields: Any) -> str:
            return (await producer.send(Message(TOPIC, body, **fields))).msg_id

        ids = {"once": await send(b"once", keys="one")}
        ids["sent twice"] = await send(b"twice", keys="two")
        assert ids["sent twice"] == await send(b"twice", keys="two", properties={"UNIQ_KEY": ids["sent twice"]})
        ids["the first of two"] = await send(b"equal", keys="three", tags="T")
        ids["the second of two"] = await send(b"equal", keys="three", tags="T")
        ids["another body"] = await send(b"other", keys="three", tags="T")
        ids["put back"] = await send(FAILS, keys="four")
        await handler.until(7)
        handler.is_mended = True
        async with asyncio.timeout(60):
            while not [one async for one in admin.resend_dead_letters(GROUP)]:
                await asyncio.sleep(0.01)
        await handler.until(8)
        consuming.cancel()
    return ids


def test_repeats(spark: SparkSession, tmp_path: Path) -> None:
    """Each has its codes after one cycle; the delivery of a second copy is no duplicate delivery."""
    with embedded() as broker:
        ids = run(story(broker.namesrv_address))
        job = PipelineJob(JobConfig(namesrv=broker.namesrv_address, lake=tmp_path / "lake")).use(spark)
        job.once()
    of_messages, of_groups = (relation_of(job.lake[one.name]) for one in (trail.TRAJECTORIES, trail.VERDICTS))
    codes = {
        msg_id: (message, group)
        for msg_id, message, group in duckdb.execute(
            f"SELECT msg_id, t.message_codes, v.codes FROM ({of_messages}) t JOIN ({of_groups}) v USING (msg_id)"
        ).fetchall()
    }
    assert {done: codes[msg_id] for done, msg_id in ids.items()} == {
        "once": ("", "CONSUMED"),
        "sent twice": ("DUPLICATE_SEND", "CONSUMED,DUPLICATE_PROCESSING"),
        "the first of two": ("", "CONSUMED"),
        "the second of two": ("DUPLICATE_SEND", "CONSUMED"),
        "another body": ("", "CONSUMED"),
        "put back": ("", "CONSUMED,RESENT"),
    }
