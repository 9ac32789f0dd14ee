"""The HTTP door of a node: which settings are refused, and that it stops with its node."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from mqtrail.broker import BrokerConfig
from mqtrail.gateway import new_token
from mqtrail.net import BindError, ServerConfig, TlsMode, TlsServerConfig
from mqtrail.node import Node, NodeConfig
from mqtrail.node.door import HttpDoor
from mqtrail.pmq import Message, PmqConfig, Publisher
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
        (NodeConfig(http_rules=Path("/nowhere/rules.toml")), "found no readable rules"),
    ],
)
def test_settings_that_do_not_go_with_it(config: NodeConfig, expected: str) -> None:
    """They are refused before anything starts."""
    with pytest.raises(InvalidParameter, match=expected):
        HttpDoor(Node(replace(config, http_port=0)).config, 0).bind()


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


async def test_with_a_certificate_it_speaks_https(tmp_path: Path) -> None:
    """Only that: a plain request gets no answer. The library verifies the certificate."""
    server = ServerConfig(tls=TlsServerConfig(mode=TlsMode.ENFORCING, self_signed=True))
    node = Node(replace(embedded_config(tmp_path / "data"), http_port=0, server=server))
    await node.start()
    try:
        tls = ssl.create_default_context(cafile=node.certificate)
        async with Publisher(node.http_url, config=PmqConfig(tls=tls)) as publisher:
            await publisher.publish(Message("t", b"x"))
        async with httpx.AsyncClient(timeout=60) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"http://{node.http_address}/healthz")
    finally:
        await node.stop()


async def test_rules_are_read_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be used leaves the earlier rules in force."""
    monkeypatch.setattr("mqtrail.node.door.WATCH_S", 0.01)
    token, token_hash = new_token()
    rules = tmp_path / "rules.toml"
    rules.write_text(f'[topics.t]\ntokens = ["{token_hash}"]\n')
    config = replace(embedded_config(), http_port=0, http_rules=rules)
    node = Node(config)
    await node.start()
    try:
        async with httpx.AsyncClient(base_url=node.http_url, timeout=60) as client:

            async def put(**headers: str) -> int:
                return (await client.put("/v1/topics/t", json={"queues": 1}, headers=headers)).status_code

            assert await put(Authorization=f"Bearer {token}") == 200
            assert await put(Authorization="Bearer other") == 401
            rules.write_text("[topics.t]\ntokens = 5\n")
            lines: list[str] = []
            monkeypatch.setattr("mqtrail.node.door.log", _Lines(lines))
            async with asyncio.timeout(60):
                while not lines:
                    await asyncio.sleep(0.01)
            assert await put() == 401
            rules.write_text("")
            async with asyncio.timeout(60):
                while await put() == 401:
                    await asyncio.sleep(0.01)
    finally:
        await node.stop()


class _Lines:
    """A log that keeps its errors."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def error(self, event: str, **keys: str) -> None:
        self._lines.append(event)

    def info(self, event: str, **keys: str) -> None:
        """Keep nothing."""
