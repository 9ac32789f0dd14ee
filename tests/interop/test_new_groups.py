"""A new group that starts at the end of its queues gets every message of a queue that was empty at its start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from interop.apache import ApacheCluster
from interop.driver import JavaClient, Json
from tests.loops import run

from mqtrail.client import Admin, ConsumeFromWhere, Consumer, ConsumerConfig, Delivery, InstanceConfig, Producer
from mqtrail.wire import Message, MessageQueue, TopicConfig

from .conftest import Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

ROUNDS = 12
QUEUES = 16
LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
INSTANCE = InstanceConfig(request_timeout_ms=8_000)


async def queues_of(admin: Admin, topic: str) -> list[MessageQueue]:
    """Make a topic; return its queues."""
    await admin.create_topic(TopicConfig(topic, QUEUES, QUEUES))
    async with asyncio.timeout(120):
        while topic not in await admin.topics():
            await asyncio.sleep(0.05)
    return list(await admin.queues(topic))


async def fill(producer: Producer, queues: list[MessageQueue], body: bytes, chance: random.Random) -> None:
    """Send each queue its first message, in any order, while the group starts."""
    chance.shuffle(queues)
    for queue in queues:
        await producer.send(Message(queue.topic, body), queue=queue)
        await asyncio.sleep(chance.uniform(0, 0.004))


def _all_ended(group: str, events: list[Json]) -> bool:
    return sum(bool(one["event"] == "ended" and one["group"] == group) for one in events) == QUEUES


@pytest.mark.parametrize("version", ["5.3.3", "4.9.8"])
def test_java_client(server: Callable[[str], Server], tmp_path: Path, version: str) -> None:
    """The official client, on our broker: topics and groups are new, first messages arrive while it starts."""
    ours = server("mqtrail")
    chance = random.Random(22)

    async def main(java: JavaClient) -> None:
        async with (
            Admin(ours.namesrv_address, config=INSTANCE) as admin,
            Producer("PNew", ours.namesrv_address) as producer,
        ):
            for number in range(ROUNDS):
                topic = group = f"New{version.replace('.', '')}x{number}"
                queues = await queues_of(admin, topic)
                starts = asyncio.create_task(
                    asyncio.to_thread(java.consumer, group, group=group, topics={topic: "*"}, fromLast=True)
                )
                await asyncio.sleep(chance.uniform(0, 0.2))
                await fill(producer, queues, topic.encode(), chance)
                await starts
                await asyncio.to_thread(
                    java.wait,
                    partial(_all_ended, group),
                    f"{QUEUES} messages in round {number}",
                )
                java.call("closeConsumer", name=group)

    with JavaClient(version, tmp_path, ours.namesrv_address) as java:
        run(main(java))


@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
def test_our_client(tmp_path: Path, version: str) -> None:
    """Our client, on Apache's broker, which answers NOT_FOUND (5.x) for a queue that never held a message."""
    chance = random.Random(22)

    async def main(namesrv: str) -> None:
        async with Admin(namesrv, config=INSTANCE) as admin, Producer("PNew", namesrv) as producer:
            for number in range(ROUNDS):
                topic = group = f"New{number}"
                queues = await queues_of(admin, topic)
                got: set[int] = set()

                async def handler(m: Delivery, got: set[int] = got) -> None:
                    got.add(m.queue.queue_id)

                config = replace(ConsumerConfig(instance=INSTANCE), consume_from=LAST)
                filling = asyncio.create_task(fill(producer, queues, topic.encode(), chance))
                async with Consumer(group, namesrv, {topic: "*"}, config=config) as consumer:
                    running = asyncio.create_task(consumer.run(handler))
                    await filling
                    async with asyncio.timeout(120):
                        while len(got) < QUEUES:
                            await asyncio.sleep(0.05)
                await running

    with ApacheCluster(version, tmp_path) as cluster:
        run(main(cluster.namesrv_address))
