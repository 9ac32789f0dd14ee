"""Undecodable messages on Apache's brokers: each becomes a dead letter with its bytes and its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from interop.apache import ApacheCluster

from mqtrail.client import Admin, ClientInstance, Consumer, ProducerConfig
from mqtrail.client.core import Composer, unique_ids
from mqtrail.client.delivery.send_back import PROPERTY_UNDECODABLE
from mqtrail.clock import now_ms
from mqtrail.wire import Message, MessageExt, dlq_topic

from .test_our_consumers import INSTANCE, QUICK, set_mode, topic_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

ZSTD, UNKNOWN = 0x201, 0x701  # sysFlag: compressed, and how
POISON = {b"no zstd": ZSTD, b"of no type": UNKNOWN}


@pytest.fixture(scope="module")
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    with ApacheCluster(request.param, tmp_path_factory.mktemp("apache")) as cluster:
        yield cluster


async def send_raw(client: ClientInstance, topic: str, body: bytes, sys_flag: int) -> None:
    """Send a body with wrong flags."""
    composer = Composer("PRaw", ProducerConfig(), unique_ids().next)
    out = composer.message(Message(topic, body, keys="bad"))
    out.sys_flag = sys_flag
    route = await client.route(topic)
    queue = route.publish_queues[0]
    reply = await client.pool.request(client.master(queue.broker_name), composer.command(out, queue, now_ms()), 10_000)
    assert reply.code == 0, reply.remark


async def letters(namesrv: str, group: str) -> list[MessageExt]:
    """The group's dead letters, when there are as many as poison messages."""
    async with Admin(namesrv, config=INSTANCE) as admin, asyncio.timeout(60):
        while True:
            if dlq_topic(group) in await admin.topics():
                found = [message async for message in admin.messages(dlq_topic(group))]
                if len(found) == len(POISON):
                    return found
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("apache", "mode"),
    [("5.3.3", "concurrent"), ("5.3.3", "ordered"), ("5.3.3", "pop"), ("4.9.7", "concurrent"), ("4.9.7", "ordered")],
    indirect=["apache"],
)
async def test_poison_becomes_a_dead_letter(apache: ApacheCluster, mode: str) -> None:
    """The queue continues behind it, and the dead letter has the reason."""
    namesrv, topic, group = apache.namesrv_address, f"Poison{mode}", f"GPoison{mode}"
    config = replace(QUICK, ordered=mode == "ordered", client_rebalance=mode != "pop")
    async with topic_of(namesrv, topic, 1) as producer:
        if mode == "pop":
            await set_mode(namesrv, topic, group, "POP")
        client = ClientInstance(namesrv, INSTANCE)
        await client.start()
        for number, (body, sys_flag) in enumerate(POISON.items()):
            await producer.send(Message(topic, b"good %d" % number))
            await send_raw(client, topic, body, sys_flag)
        await producer.send(Message(topic, b"last"))
        await client.close()
        bodies = set()
        async with Consumer(group, namesrv, {topic: "*"}, config=config) as consumer, asyncio.timeout(90):
            async for m in consumer:
                bodies.add(m.body)
                await m.ack()
                if len(bodies) == 3:
                    break
            found = await letters(namesrv, group)
        assert bodies == {b"good 0", b"good 1", b"last"}
        assert {one.body: one.sys_flag & 0x701 for one in found} == POISON
        for one in found:
            assert one.undecodable
            assert one.keys == ("bad",)
            assert one.properties["RETRY_TOPIC"] == topic
            assert one.properties[PROPERTY_UNDECODABLE] == one.undecodable
