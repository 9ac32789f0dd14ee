"""Our consumer while a master is down: it reads from the slave, and returns to the master when that is back."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.client import Consumer, Delivery, Producer
from mqtrail.node import Node, NodeConfig
from mqtrail.store import CommitLogConfig
from mqtrail.wire import Message
from tests.waiting import until

from ..trace.test_end_to_end import quick

STORE = CommitLogConfig(segment_size=1 << 20, message_size_max=100_000)
COUNT = 40


def core_of(node: Node) -> Broker:
    core = node.brokers["broker-a"].core
    assert core is not None
    return core


def end_of(node: Node) -> int:
    return core_of(node).store.end_offset


async def send(namesrv: str, kind: str) -> None:
    async with Producer("PG", namesrv) as producer:
        for number in range(COUNT):
            await producer.send(Message("orders", f"{kind} {number}".encode()))


def all_of(seen: list[bytes], *kinds: str) -> Callable[[], bool]:
    wanted = {f"{kind} {number}".encode() for kind in kinds for number in range(COUNT)}
    return lambda: set(seen) == wanted


async def test_a_group_goes_on_at_the_slave(tmp_path: Path) -> None:
    """No message is missed, and messages consumed from the slave are not consumed again from the master."""
    routes = Node(NodeConfig(namesrv_port=0, broker_names=()))
    await routes.start()
    namesrv = routes.namesrv_address
    base = NodeConfig(namesrv_port=None, namesrv_addresses=(namesrv,), broker_port=0, ha_port=0, store=STORE)
    master_config = replace(base, data=tmp_path / "m", broker=BrokerConfig(broker_role="ASYNC_MASTER"))
    slave_config = BrokerConfig(broker_role="SLAVE", broker_id=1, slave_read=True, offsets_save_ms=100, register_ms=500)
    master, slave = Node(master_config), Node(replace(base, broker=slave_config))
    await master.start()
    seen: list[bytes] = []

    async def handler(message: Delivery) -> None:
        seen.append(message.body)

    try:
        await send(namesrv, "first")  # creates the topic: a slave copies tables when it starts, and then every 10 s
        await slave.start()
        await until(lambda: end_of(slave) == end_of(master) and "orders" in core_of(slave).topics)
        await master.stop()
        config = quick(tmp_path)
        async with Consumer("CG", namesrv, {"orders": "*"}, config=config) as consumer:
            running = asyncio.create_task(consumer.run(handler))
            await until(all_of(seen, "first"))
        await running
        await until(lambda: _committed(core_of(slave)) == COUNT)
        master = Node(master_config)
        await master.start()
        assert _committed(core_of(master)) == COUNT
        async with Consumer("CG", namesrv, {"orders": "*"}, config=config) as consumer:
            running = asyncio.create_task(consumer.run(handler))
            await send(namesrv, "second")
            await until(all_of(seen, "first", "second"))
        await running
        assert len(seen) == 2 * COUNT
    finally:
        await slave.stop()
        await master.stop()
        await routes.stop()


def _committed(core: Broker) -> int:
    return sum(core.offsets.queues("CG", "orders").values())
