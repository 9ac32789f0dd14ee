"""The HTTP door of a node: which settings are refused, and that it stops with its node."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace

import httpx
import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.net import BindError, ServerConfig, TlsMode, TlsServerConfig
from mqtrail.node import Node, NodeConfig
from mqtrail.testing import embedded_async
from mqtrail.testing.embed import embedded_config
from mqtrail.wire import InvalidParameter, PollingInfoResponseHeader, RemotingCommand, RequestCode

from .test_inside import HERE, broker_of


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (NodeConfig(broker_names=("a", "b")), "found http_port with 2 brokers"),
        (
            NodeConfig(broker=BrokerConfig(controller_mode=True, controller_addresses="127.0.0.1:1")),
            "with controllers",
        ),
        (NodeConfig(host="0.0.0.0", broker=BrokerConfig(acl=True)), "found http_port on 0.0.0.0"),
        (
            NodeConfig(
                host="0.0.0.0", server=ServerConfig(tls=TlsServerConfig(mode=TlsMode.ENFORCING, self_signed=True))
            ),
            "found http_port on 0.0.0.0",
        ),
    ],
)
def test_settings_that_do_not_go_with_it(config: NodeConfig, expected: str) -> None:
    """They are refused before anything starts."""
    with pytest.raises(InvalidParameter, match=expected):
        Node(replace(config, http_port=0))


async def test_a_taken_port_stops_the_start() -> None:
    """The error names the address; nothing keeps running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = Node(replace(embedded_config(), http_port=port))
        with pytest.raises(BindError, match=f"cannot listen on 127.0.0.1:{port} for HTTP"):
            await node.start()
    assert node.broker_addresses == ()


async def test_it_stops_with_its_node() -> None:
    """A receive that waits does not keep a node from stopping."""
    async with embedded_async(http=True) as running, httpx.AsyncClient(base_url=running.http_url, timeout=60) as client:
        assert (await client.get("/healthz")).text == "ok\n"
        address = running.node.http_address
        assert (await client.put("/v1/topics/t", json={"queues": 1})).status_code == 200
        waiting = asyncio.create_task(client.post("/v1/groups/g/receive", json={"topic": "t", "wait_s": 30}))
        deadline = time.monotonic() + 30
        caller = broker_of(running).caller()
        asked = {"consumerGroup": "g", "topic": "t", "queueId": "-1"}
        held = 0
        while not held and time.monotonic() < deadline:
            reply = await caller.ask(RemotingCommand(RequestCode.POLLING_INFO, dict(asked)), HERE, 30_000)
            held = PollingInfoResponseHeader.from_ext(reply.ext).polling_num
        assert held == 1
        await running.node.stop()
        answer = await waiting
        assert (answer.status_code, "stops" in answer.json()["detail"]) == (503, True)
    assert running.node.http_address == ""
    host, port = address.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)
