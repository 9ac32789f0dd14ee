"""The port two below the broker's, for old Java clients that send there."""

import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from mqtrail.net import ConnectionPool
from mqtrail.node import Node, NodeConfig
from mqtrail.wire import HeartbeatData, ProducerData, RemotingCommand, RequestCode, ResponseCode

from .helpers import read_all, send_command


@asynccontextmanager
async def running(port: int) -> AsyncIterator[ConnectionPool]:
    node = Node(NodeConfig(namesrv_port=0, broker_port=port))
    await node.start()
    pool = ConnectionPool()
    try:
        yield pool
    finally:
        await pool.close()
        await node.stop()


@pytest.fixture
def port() -> int:
    """Return a free port whose second lower neighbour is free too."""
    for _ in range(100):
        with socket.socket() as high, socket.socket() as low:
            high.bind(("127.0.0.1", 0))
            found: int = high.getsockname()[1]
            with contextlib.suppress(OSError):
                low.bind(("127.0.0.1", found - 2))
                break
    return found


async def test_sends_are_served_and_pulls_are_not(port: int) -> None:
    """Both ports serve the same broker. The fast port refuses the same reads as Apache's, with code 3 and a text."""
    async with running(port) as pool:
        fast, broker = f"127.0.0.1:{port - 2}", f"127.0.0.1:{port}"
        assert (await pool.request(fast, send_command("orders", b"x"), 30_000)).code == ResponseCode.SUCCESS
        data = HeartbeatData("c1", (ProducerData("pg"),)).encode()
        beat = RemotingCommand(RequestCode.HEART_BEAT, {}, data)
        assert (await pool.request(fast, beat, 30_000)).code == ResponseCode.SUCCESS
        assert [message.body for message in await read_all(pool, broker, "orders", [0])] == [b"x"]
        for code in (11, 361, 200050, 200052, 200054, 200055):
            reply = await pool.request(fast, RemotingCommand(code), 30_000)
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "two above" in (reply.remark or "")


async def test_a_taken_fast_port_is_reported(port: int) -> None:
    """The broker serves without it."""
    with socket.socket() as other, capture_logs() as logs:
        other.bind(("127.0.0.1", port - 2))
        other.listen()
        async with running(port) as pool:
            reply = await pool.request(f"127.0.0.1:{port}", send_command("orders", b"x"), 30_000)
            assert reply.code == ResponseCode.SUCCESS
    [reported] = [entry for entry in logs if entry["event"] == "broker.no_fast_port"]
    assert str(port - 2) in reported["found"]
