"""A broker over several databases: what clients see while one of them is away, read-only or closed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from mqtrail.net import ConnectionPool
from mqtrail.node import Node, NodeConfig
from mqtrail.store import StoreError
from mqtrail.store.sql import SqlStore, set_node
from mqtrail.testing import embedded_config
from mqtrail.wire import InvalidParameter, PullHeader, PullSysFlag, RemotingCommand, RequestCode, ResponseCode
from tests.store.test_nodes import Hidden, Outage
from tests.waiting import until

from .helpers import broker_of, read_all, send_command

QUEUES = range(4)


class Running:
    """A broker with a node n1 and its door. sick: a queue on n1; well: one at home."""

    def __init__(self, node: Node, home: str, http: httpx.AsyncClient) -> None:
        self.node = node
        self.home = home
        self.http = http
        self.pool = ConnectionPool()
        self.address = broker_of(node).address
        store = broker_of(node).store
        assert isinstance(store, SqlStore)
        self.store = store
        self.sick, self.well = 0, 0

    async def prepare(self) -> None:
        (await self.http.put("/v1/topics/orders", json={"queues": len(QUEUES)})).raise_for_status()
        for queue_id in QUEUES:
            assert await self.send(b"first", queue_id) == ResponseCode.SUCCESS
        on_node = [queue for queue in QUEUES if self.store._queues["orders", queue].node]
        self.sick, self.well = on_node[0], next(queue for queue in QUEUES if queue not in on_node)

    async def send(self, body: bytes, queue_id: int) -> int:
        reply = await self.pool.request(self.address, send_command("orders", body, queue_id=queue_id), 60_000)
        return reply.code

    async def publish(self, body: str) -> int:
        """Publish without naming a queue; return the queue."""
        answer = await self.http.post("/v1/topics/orders/messages", json={"body": body})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["messages"][0]["queue"])

    async def pull(self, queue_id: int) -> RemotingCommand:
        header = PullHeader("reader", "orders", queue_id, 0, 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*")
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
        return await self.pool.request(self.address, command, 60_000)

    async def read(self, queue_id: int) -> list[bytes]:
        return [message.body for message in await read_all(self.pool, self.address, "orders", [queue_id])]

    async def receive(self, count: int) -> list[str]:
        """Receive so many messages as the group stock."""
        found: list[str] = []
        while len(found) < count:
            asked = {"topic": "orders", "max": 32, "wait_s": 2}
            answer = await self.http.post("/v1/groups/stock/receive", json=asked)
            assert answer.status_code == 200, answer.text
            messages = answer.json()["messages"]
            found += [message["body"] for message in messages]
            receipts = [message["receipt"] for message in messages]
            await self.http.post("/v1/groups/stock/ack", json={"receipts": receipts})
        return found


def home_of(folder: Path) -> str:
    return f"sqlite:///{folder}/home.db"


def config_of(folder: Path) -> NodeConfig:
    config = embedded_config(folder / "data", store_url=home_of(folder), http=True)
    return replace(config, store_nodes=f"n1=sqlite:///{folder}/n1.db")


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Running]:
    node = Node(config_of(folder))
    await node.start()
    try:
        async with httpx.AsyncClient(base_url=node.http_url, timeout=60) as http:
            running = Running(node, home_of(folder), http)
            await running.prepare()
            yield running
            await running.pool.close()
    finally:
        await node.stop()


async def test_clients_go_on_while_a_node_is_away(tmp_path: Path) -> None:
    """Sends to its queues are refused so that clients try another one; sends that name none go elsewhere; receivers get
    the messages of the others, and its own when it is back."""
    async with started(tmp_path) as running:
        outage = Outage(running.store, "n1")
        assert await running.send(b"parked", running.sick) == ResponseCode.SUCCESS, "the home keeps it"
        assert await running.send(b"refused", running.sick) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert await running.send(b"taken", running.well) == ResponseCode.SUCCESS
        queues = {await running.publish(f"any {number}") for number in range(6)}
        assert queues == {one for one in QUEUES if running.store._queues["orders", one].node == 0}
        assert (await running.http.get("/healthz")).status_code == 200
        pulled = await running.pull(running.sick)
        assert (pulled.code, "does not answer" in (pulled.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert await running.read(running.well) == [b"first", b"taken", *(await expected(running, running.well))]
        found = await running.receive(9)
        assert sorted(found) == sorted(["first"] * 2 + ["taken"] + [f"any {number}" for number in range(6)])
        topics = await running.http.get("/v1/topics/orders")
        assert topics.status_code == 200, topics.text
        outage.end()
        await until(lambda: running.store._nodes.nodes[1].away is None)
        assert await running.read(running.sick) == [b"first", b"parked"]
        assert sorted(await running.receive(3)) == ["first", "first", "parked"]


async def expected(running: Running, queue_id: int) -> list[bytes]:
    """Return the bodies of `publish` in a queue at home, in order."""
    at_home = [one for one in QUEUES if running.store._queues["orders", one].node == 0]
    assert len(at_home) == 2
    found = await running.read(queue_id)
    bodies = [body for body in found if body.startswith(b"any")]
    assert len(bodies) == 3, "they take turns"
    return bodies


async def test_clients_of_a_read_only_node_and_a_closed_one(tmp_path: Path) -> None:
    """They can read a read-only node, and not a closed one; new messages go elsewhere. A batch of requests on one
    connection is answered one by one."""
    async with started(tmp_path) as running:
        set_node(running.home, "n1", state="read-only")
        await until(lambda: running.store.why_closed("orders", running.sick, 0) is not None)
        assert await running.send(b"refused", running.sick) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert await running.read(running.sick) == [b"first"]
        assert running.sick not in {await running.publish("any") for _ in QUEUES}
        set_node(running.home, "n1", state="closed")
        await until(lambda: "closed" in (running.store.why_closed("orders", running.sick, 0) or ""))
        pulled = await running.pull(running.sick)
        assert "found the node n1 closed" in (pulled.remark or "")
        set_node(running.home, "n1", state="read-write")
        await until(lambda: running.store.why_closed("orders", running.sick, 0) is None)
        assert await running.send(b"again", running.sick) == ResponseCode.SUCCESS
        assert await running.read(running.sick) == [b"first", b"again"]


async def test_no_queue_takes_messages(tmp_path: Path) -> None:
    """The refusal says why, and that another queue does not help."""
    async with started(tmp_path) as running:
        for name in ("n1", "home"):
            set_node(running.home, name, state="read-only", force=True)
        await until(lambda: running.store.why_closed("orders", running.well, 0) is not None)
        answer = await running.http.post("/v1/topics/orders/messages", json={"body": "x"})
        assert (answer.status_code, "the same with all queues of orders" in answer.text) == (503, True), answer.text


async def test_a_start_without_a_node_keeps_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a queue of the node is unknown then: what groups have consumed is not cut to the end noted last."""
    async with started(tmp_path) as running:
        assert len(await running.receive(len(QUEUES))) == len(QUEUES)
        sick, before = running.sick, broker_of(running.node).core
        assert before is not None
        await until(lambda: before.offsets.get("stock", "orders", sick) == 1)
    with closing(sqlite3.connect(tmp_path / "home.db")) as home:
        home.execute("UPDATE mqtrail_assignment SET next_offset = 0")
        home.commit()
    hidden = Hidden(tmp_path, "n1", monkeypatch)
    node = Node(config_of(tmp_path))
    await node.start()
    try:
        store, core = broker_of(node).store, broker_of(node).core
        assert store is not None
        assert core is not None
        assert (list(store.away_nodes), store.max_offset("orders", sick)) == (["n1"], 0)
        assert core.offsets.get("stock", "orders", sick) == 1
        hidden.show()
        await until(lambda: not store.away_nodes)
        assert (store.max_offset("orders", sick), core.offsets.get("stock", "orders", sick)) == (1, 1)
    finally:
        await node.stop()


async def test_nodes_need_a_home(tmp_path: Path) -> None:
    """Settings that do not go together, and names that cannot be used, are refused before anything serves."""
    config = embedded_config(tmp_path / "data")
    with pytest.raises(InvalidParameter, match="found store_nodes without store_url"):
        await Node(replace(config, store_nodes="n1=sqlite:///x.db")).start()
    with pytest.raises(InvalidParameter, match="found store_replicas without store_url"):
        await Node(replace(config, store_replicas="home=postgresql://host/orders")).start()
    with_url = replace(config, store_url=f"sqlite:///{tmp_path}/home.db")
    for given, found in (("n1", "expected NAME=URL"), ("n1=oracle://x/y", "expected sqlite:///")):
        with pytest.raises(InvalidParameter, match=found):
            await Node(replace(with_url, store_nodes=given)).start()
    with pytest.raises(StoreError, match="node n1: found that the database cannot be opened"):
        await Node(replace(with_url, store_nodes=f"n1=sqlite:///{tmp_path}/none/n1.db")).start()
    for given, found in (
        ("n1=postgresql://host/orders", "found a replica of the node n1, expected one of home"),
        (f"home=sqlite:///{tmp_path}/copy.db", "found a file as replica of home"),
        ("home", "expected NAME=URL"),
    ):
        with pytest.raises(InvalidParameter, match=found):
            await Node(replace(with_url, store_replicas=given)).start()
