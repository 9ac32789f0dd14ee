"""A store on databases of several servers, one of which ends, hangs, or loses the connection in a commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from mqtrail.net import ConnectionPool
from mqtrail.node import Node
from mqtrail.node.in_time import InTime
from mqtrail.store import MemoryDisk, StoreAway
from mqtrail.store.sql import NodeDatabase, SqlStore, look_at
from mqtrail.store.sql.nodes import SICK_MS
from mqtrail.testing import embedded_config
from mqtrail.wire import PullHeader, PullSysFlag, RemotingCommand, RequestCode, ResponseCode, decode_records
from tests.node.helpers import send_command
from tests.store.kinds import CONFIG
from tests.store.test_contract import NOW_MS, bodies, record
from tests.waiting import until

from .relay import Cut, Relay
from .servers import DatabaseServer
from .test_door import DoorProcess

pytestmark = pytest.mark.databases

EVERYTHING = 1 << 20
UNTIL_S = 60.0
QUEUES = range(4)


class Split:
    """A store whose home is a file, with a node on a server. sick: a queue on the node; well: one at home."""

    def __init__(self, folder: Path, url: str) -> None:
        self.home = f"sqlite:///{folder}/home.db"
        self.store = SqlStore(
            MemoryDisk(), self.home, CONFIG, InTime(), [NodeDatabase("n1", url, InTime(), InTime().begin)]
        )
        self.send(b"first", *QUEUES)
        self.store.flush()
        self.wait_until_back()  # it makes tables, which may take long on a busy machine
        on_node = [queue for queue in QUEUES if self.store._queues["orders", queue].node]
        self.sick, self.well = on_node[0], next(queue for queue in QUEUES if queue not in on_node)
        assert len(on_node) == 2

    def send(self, body: bytes, *queue_ids: int) -> None:
        self.store.append([record(body, queue_id=queue_id, KEYS="k") for queue_id in queue_ids], NOW_MS)

    def read(self, queue_id: int) -> list[bytes]:
        return bodies(self.store.read("orders", queue_id, 0, 99, EVERYTHING).records)

    def wait_until_back(self) -> None:
        """Do the upkeep of a broker until the node is back and nothing is parked."""
        deadline_s = time.monotonic() + UNTIL_S
        while True:
            self.store.write_queues()
            (_, node) = look_at(self.home).nodes
            if node.away is None and not node.parked and not self.store.away_nodes:
                return
            assert time.monotonic() < deadline_s, node
            time.sleep(0.05)


@pytest.fixture
def url(database: DatabaseServer) -> str:
    return database.new_database()


@pytest.fixture
def split(tmp_path: Path, url: str) -> Iterator[Split]:
    made = Split(tmp_path, url)
    yield made
    made.store.abandon()


def ids(database: DatabaseServer, url: str) -> list[int]:
    """Return the ids of the first queue of the node, as another program sees them."""
    query = text("SELECT id FROM message_0001 ORDER BY id")
    return [number for (number,) in database.sql(lambda connection: connection.execute(query).all(), url)]


@pytest.mark.parametrize("ends", ["kill", "stop", "pause"])
def test_a_server_of_a_node_that_is_away(database: DatabaseServer, url: str, split: Split, ends: str) -> None:
    """The others go on meanwhile, with everything acknowledged; afterwards it has each message once, in order."""
    store = split.store
    getattr(database, ends)()
    try:
        split.send(b"second", split.sick, split.well)
        assert store.flush() == store.end_offset
        assert "n1 does not answer" in (store.why_closed("orders", split.sick, NOW_MS) or "")
        assert store.why_closed("orders", split.well, NOW_MS) is None
        for number in range(20):
            split.send(b"%d" % number, split.well)
            assert store.flush() == store.end_offset
        assert split.read(split.well) == [b"first", b"second", *(b"%d" % number for number in range(20))]
        with pytest.raises(StoreAway):
            split.read(split.sick)
        store.write_queues()
        assert look_at(split.home).nodes[1].parked == 1
    finally:
        (database.resume if ends == "pause" else database.start)()
    split.wait_until_back()
    assert split.read(split.sick) == [b"first", b"second"]
    assert ids(database, url) == [0, 1]
    assert store.why_closed("orders", split.sick, NOW_MS + 2 * SICK_MS) is None
    split.send(b"third", split.sick)
    assert store.flush() == store.end_offset
    assert ids(database, url) == [0, 1, 2]
    assert len(store.query("orders", "k", 64, 0, 1 << 62).records) == 27


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("crashes", [True, False])
def test_a_connection_lost_in_a_commit_of_a_node(
    database: DatabaseServer, url: str, tmp_path: Path, cut: Cut, crashes: bool
) -> None:
    """The end of the log of the node tells whether the COMMIT arrived, also to the next start."""
    with Relay(database.port) as relay:
        split = Split(tmp_path, url.replace(f":{database.port}/", f":{relay.port}/"))
        relay.cut = cut
        split.send(b"second", split.sick)
        assert split.store.flush() == split.store.end_offset, "the home keeps it"
        assert relay.cut is Cut.NEVER
        if crashes:
            split.store.abandon()
            split = Split(tmp_path, url)
        split.wait_until_back()
        expected = [b"first", b"second", *([b"first"] if crashes else [])]
        assert split.read(split.sick) == expected
        assert ids(database, url) == list(range(len(expected)))
        split.store.abandon()


def test_a_start_without_the_server_of_a_node(database: DatabaseServer, url: str, tmp_path: Path) -> None:
    """The other queues serve at once; its own can be read and written when it answers, each message once."""
    split = Split(tmp_path, url)
    sick = split.sick
    split.send(b"second", sick)
    split.store.close()
    database.stop()
    try:
        store = SqlStore(
            MemoryDisk(), split.home, CONFIG, InTime(), [NodeDatabase("n1", url, InTime(), InTime().begin)]
        )
        split.store = store
        assert (list(store.away_nodes), store.max_offset("orders", sick)) == (["n1"], 2)
        assert split.read(split.well) == [b"first"]
        split.send(b"third", split.well)
        assert store.flush() == store.end_offset
        with pytest.raises(StoreAway):
            split.read(sick)
    finally:
        database.start()
    split.wait_until_back()
    split.send(b"third", sick)
    assert store.flush() == store.end_offset
    assert split.read(sick) == [b"first", b"second", b"third"]
    assert ids(database, url) == [0, 1, 2]
    store.close()


async def test_a_pull_that_reads_a_node_for_long_holds_nobody(
    database: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of that node reads its rows; meanwhile the broker serves pulls of other databases."""
    config = embedded_config(tmp_path / "data", store_url=database.new_database())
    node = Node(replace(config, store_nodes=f"n1={database.new_database()}"))
    await node.start()
    pool = ConnectionPool()
    try:
        (broker,) = node.brokers.values()
        store = broker.store
        assert isinstance(store, SqlStore)
        for queue_id in range(2):
            reply = await pool.request(broker.address, send_command("orders", b"x", queue_id=queue_id), 60_000)
            assert reply.code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
        await until(lambda: store.flushed_offset == store.end_offset and not store.away_nodes)
        (slow,) = (queue_id for queue_id in range(2) if store._queues["orders", queue_id].node)
        reads = store._nodes.nodes[1].database
        gate, plain = threading.Event(), reads._rows
        monkeypatch.setattr(reads, "_rows", lambda query: gate.wait(60) and plain(query))
        pulling = asyncio.create_task(pool.request(broker.address, pull(slow), 60_000))
        other = await pool.request(broker.address, pull(1 - slow), 60_000)
        assert [message.body for message in decode_records(other.body)] == [b"x"]
        assert not pulling.done()
        gate.set()
        assert [message.body for message in decode_records((await pulling).body)] == [b"x"]
    finally:
        await pool.close()
        await node.stop()


def pull(queue_id: int) -> RemotingCommand:
    header = PullHeader("reader", "orders", queue_id, 0, 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*")
    return RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())


def test_a_door_over_two_databases_outlives_one(database: DatabaseServer, tmp_path: Path) -> None:
    """Publishers and receivers notice nothing but the messages that wait on the node; they come when it is back."""
    url = database.new_database()
    with DoorProcess(tmp_path / "data", f"sqlite:///{tmp_path}/home.db", f"n1={url}") as door:
        for number in range(8):
            door.publish(f"before {number}")
        database.kill()
        try:
            for number in range(8):
                door.publish(f"meanwhile {number}")
            answer = door.http.get("/healthz")
            assert answer.status_code == 200, answer.text
        finally:
            database.start()
        found = {message["body"] for message in door.receive("stock", 16)}
        assert found == {f"{when} {number}" for when in ("before", "meanwhile") for number in range(8)}
        assert door.end()[0] == 0
