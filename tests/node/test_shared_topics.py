"""Data that brokers get from name servers: queues of other brokers (400), topics with a static order."""

import asyncio

from mqtrail.namesrv import NameServerConfig
from mqtrail.net import ConnectionPool
from mqtrail.wire import (
    ConsumerData,
    CreateTopicHeader,
    HeartbeatData,
    QueryAssignmentBody,
    QueueAssignments,
    RemotingCommand,
    RequestCode,
    RequestMode,
    TopicConfig,
    TopicRouteData,
)

from .helpers import running


async def ask(
    pool: ConnectionPool, address: str, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    reply = await pool.request(address, RemotingCommand(code, ext or {}, body), 30_000)
    assert reply.code == 0, reply
    return reply.body


async def make_topic(pool: ConnectionPool, address: str, topic: str) -> None:
    header = CreateTopicHeader(topic, 2, 2, 6)
    await ask(pool, address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())


async def test_all_brokers_queues_are_shared_out() -> None:
    """Each broker returns the queues of the other too."""
    async with running(broker_names=("broker-a", "broker-b")) as (node, pool):
        first, second = node.broker_addresses
        for address in (first, second):
            await make_topic(pool, address, "orders")
            await ask(
                pool,
                address,
                RequestCode.HEART_BEAT,
                body=HeartbeatData("c1", (), (ConsumerData("g"),)).encode(),
            )
        await ask(pool, second, RequestCode.SET_MESSAGE_REQUEST_MODE, body=RequestMode("orders", "g", "POP").encode())
        question = QueryAssignmentBody("orders", "g", "c1", "AVG").encode()
        found = [
            QueueAssignments.decode(await ask(pool, address, RequestCode.QUERY_ASSIGNMENT, body=question))
            for address in (first, second)
        ]
        pulled, popped = (assignments.assignments or () for assignments in found)
        assert sorted((one.queue.broker_name, one.queue.queue_id, one.mode) for one in pulled) == [
            (name, queue_id, "PULL") for name in ("broker-a", "broker-b") for queue_id in (0, 1)
        ]
        assert sorted((one.queue.broker_name, one.queue.queue_id, one.mode) for one in popped) == [
            ("broker-a", -1, "POP"),
            ("broker-b", -1, "POP"),
        ]


async def test_static_order_from_end_to_end() -> None:
    """An entry under ORDER_TOPIC_CONFIG marks the topic at its brokers and is in its route."""
    settings = {"namesrv": NameServerConfig(order_conf_in_route=True)}
    async with running(**settings) as (node, pool):
        [broker] = node.broker_addresses
        namesrv = node.namesrv_address
        await make_topic(pool, broker, "orders")
        kv = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:2"}
        await ask(pool, namesrv, RequestCode.PUT_KV_CONFIG, kv)
        await make_topic(pool, broker, "other")  # a change: the broker registers, and the reply contains the order
        async with asyncio.timeout(25):
            while not (await topic_config(pool, broker, "orders")).order:
                await asyncio.sleep(0.01)
        assert not (await topic_config(pool, broker, "other")).order
        body = await ask(pool, namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert TopicRouteData.decode(body).order_topic_conf == "broker-a:2"


async def topic_config(pool: ConnectionPool, broker: str, topic: str) -> TopicConfig:
    return TopicConfig.decode(await ask(pool, broker, RequestCode.GET_TOPIC_CONFIG, {"topic": topic}))
