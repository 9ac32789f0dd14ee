"""Controllers on sockets: they elect a leader, serve a broker, and go on without one of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mqtrail.controller import ControllerConfig
from mqtrail.net import BindError, ConnectionPool, NetError
from mqtrail.node import ControllerNode
from mqtrail.wire import RemotingCommand, RequestCode
from tests.ports import free_ports

WAIT_S = 60.0
NAMES = {"clusterName": "c", "brokerName": "b"}


@asynccontextmanager
async def group(folder: Path, count: int = 3) -> AsyncIterator[list[ControllerNode]]:
    """Run controllers, each with a folder of its own."""
    peers = ";".join(f"n{place}-127.0.0.1:{port}" for place, port in enumerate(free_ports(count)))
    config = ControllerConfig(peers=peers, heartbeat_ms=50, election_ms=300)
    nodes = [ControllerNode(replace(config, self_id=f"n{place}"), folder / f"n{place}") for place in range(count)]
    try:
        for node in nodes:
            await node.start()
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


async def ask(pool: ConnectionPool, nodes: list[ControllerNode], code: int, ext: dict[str, str]) -> RemotingCommand:
    """Ask the controllers in turn until one of them answers as their leader."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for node in nodes:
                try:
                    reply = await pool.request(node.address, RemotingCommand(code, dict(ext)), 2_000)
                except NetError:
                    continue
                if reply.code != 2007:
                    return reply
            await asyncio.sleep(0.05)


async def test_controllers_agree_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    """What the first leader acknowledged, the next one knows."""
    pool = ConnectionPool()
    async with group(tmp_path) as nodes:
        applied = NAMES | {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}
        assert (await ask(pool, nodes, RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)).code == 0
        leader = next(node for node in nodes if node.core is not None and node.core.is_leader)
        await leader.stop()
        others = [node for node in nodes if node is not leader]
        reply = await ask(pool, others, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NAMES)
        assert reply.ext["nextBrokerId"] == "2"
    await pool.close()


async def test_a_restart_keeps_the_state(tmp_path: Path) -> None:
    """One controller, stopped and started again on its folder; a second one on its port is refused."""
    pool = ConnectionPool()
    async with group(tmp_path, 1) as (node,):
        applied = NAMES | {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}
        assert (await ask(pool, [node], RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)).code == 0
        with pytest.raises(BindError):
            await ControllerNode(node.config, tmp_path / "other").start()
        await node.stop()
        await node.start()
        reply = await ask(pool, [node], RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NAMES)
        assert reply.ext["nextBrokerId"] == "2"
    await pool.close()


async def test_a_stop_with_open_connections_raises_nothing(tmp_path: Path) -> None:
    """The master's connection closes in the stop, which would begin an election at a controller that serves."""
    pool, errors = ConnectionPool(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with group(tmp_path, 1) as (node,):
        for code, more in (
            (RequestCode.CONTROLLER_APPLY_BROKER_ID, {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}),
            (RequestCode.CONTROLLER_REGISTER_BROKER, {"brokerId": "1", "brokerAddress": "127.0.0.1:1"}),
            (RequestCode.BROKER_HEARTBEAT, {"brokerId": "1", "brokerAddr": "127.0.0.1:1", "brokerName": "b"}),
            (RequestCode.CONTROLLER_ELECT_MASTER, {"brokerId": "1"}),
        ):
            assert (await ask(pool, [node], code, NAMES | more)).code == 0, code
        await node.stop()
    await pool.close()
    assert not errors
