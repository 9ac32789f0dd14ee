"""Brokers of controller mode as masters and in-sync replicas, under a controller of ours, on real sockets and files."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.controller import ControllerConfig
from mqtrail.net import ConnectionPool
from mqtrail.node import ControllerNode, Node, NodeConfig, ha_server
from mqtrail.node.broker_node import BrokerNode
from mqtrail.store import CommitLogConfig
from mqtrail.wire import RemotingCommand, RequestCode, ResponseCode
from tests.ports import free_ports
from tests.waiting import until

from .helpers import read_all, send_command

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0
NAME = "broker-a"
TOPIC = "orders"


class Group:
    """A controller, and brokers by the number of their folder; a stopped one may be started again."""

    def __init__(self, folder: Path, controller: str, **broker: Any) -> None:
        self.folder, self.controller, self.broker = folder, controller, broker
        self.nodes: dict[int, Node] = {}
        self.pool = ConnectionPool()

    async def start(self, number: int) -> Node:
        settings = BrokerConfig(
            controller_mode=True,
            controller_addresses=self.controller,
            controller_poll_ms=100,
            controller_heartbeat_ms=100,
            **{"all_in_sync": True, "slave_timeout_ms": 60_000} | self.broker,
        )
        store = CommitLogConfig(segment_size=1 << 20, message_size_max=100_000)
        ports: dict[str, Any] = {"namesrv_port": None, "broker_port": 0, "ha_port": 0}
        node = Node(NodeConfig(data=self.folder / str(number), broker=settings, store=store, **ports))
        await node.start()
        self.nodes[number] = node
        return node

    async def stop(self, number: int) -> None:
        await self.nodes.pop(number).stop()

    def core(self, number: int) -> Broker | None:
        return self.nodes[number].brokers[NAME].core

    def is_master(self, number: int) -> bool:
        core = self.core(number)
        return core is not None and core.replicas.in_sync is not None

    def in_sync(self, number: int) -> list[int]:
        core = self.core(number)
        return [] if core is None or core.replicas.in_sync is None else sorted(core.replicas.in_sync.ids)

    def has_both(self, number: int) -> bool:
        return self.in_sync(number) == [1, 2]

    def log_of(self, number: int) -> bytes:
        store = self.nodes[number].brokers[NAME].store
        return b"" if store is None else store.log_bytes(0, 1 << 20)

    async def elect(self, broker_id: int) -> int:
        """Ask for this master, as an operator does; return the code of the answer."""
        ext = {
            "clusterName": "DefaultCluster",
            "brokerName": NAME,
            "brokerId": str(broker_id),
            "designateElect": "true",
        }
        return (await self.pool.request(self.controller, RemotingCommand(1002, ext), 5_000)).code

    def sending(self, number: int, body: bytes) -> "asyncio.Task[RemotingCommand]":
        """Send a message; the task ends with the answer."""
        address = self.nodes[number].broker_addresses[0]
        return asyncio.create_task(self.pool.request(address, send_command(TOPIC, body), 120_000))

    async def send(self, number: int, bodies: Sequence[bytes]) -> list[int]:
        return [(await self.sending(number, body)).code for body in bodies]

    async def bodies(self, number: int) -> list[bytes]:
        found = await read_all(self.pool, self.nodes[number].broker_addresses[0], TOPIC, [0])
        return [one.body for one in found]


@asynccontextmanager
async def group(folder: Path, count: int, **broker: Any) -> AsyncIterator[Group]:
    """Run a controller and brokers without `broker_events`; the first one is master, all are in sync."""
    async with AsyncExitStack() as stack:
        peers = f"n0-127.0.0.1:{free_ports(1)[0]}"
        config = ControllerConfig(peers=peers, heartbeat_ms=50, election_ms=200, scan_ms=100)
        controller = ControllerNode(config, folder / "controller")
        await controller.start()
        stack.push_async_callback(controller.stop)
        found = Group(folder, controller.address, **{"broker_events": False, **broker})
        stack.push_async_callback(found.pool.close)
        try:
            for number in range(1, count + 1):
                await found.start(number)
            ids = list(range(1, count + 1))
            await until(lambda: found.in_sync(1) == ids)
            yield found
        finally:
            for number in list(found.nodes):
                await found.stop(number)


async def test_a_send_is_acknowledged_when_all_in_sync_replicas_have_it(tmp_path: Path) -> None:
    """The first broker of a group becomes its master; the next one joins the in-sync replicas."""
    async with group(tmp_path, 2) as found:
        assert await found.send(1, [b"a", b"b"]) == [0, 0]
        assert found.log_of(1) == found.log_of(2) != b""
        assert await found.send(2, [b"c"]) == [ResponseCode.SYSTEM_BUSY]
        epochs = await found.pool.request(
            found.nodes[2].broker_addresses[0], RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE), 5_000
        )
        assert [one["epoch"] for one in json.loads(epochs.body)["epochList"]] == [1]


async def test_a_replica_leaves_and_returns(tmp_path: Path) -> None:
    """Sends go on without it, and it is in sync again with what it missed."""
    async with group(tmp_path, 2) as found:
        await found.stop(2)
        assert await found.send(1, [b"a"]) == [0]
        assert found.in_sync(1) == [1]
        await found.start(2)
        await until(lambda: found.in_sync(1) == [1, 2])
        assert await found.send(1, [b"b"]) == [0]
        assert found.log_of(1) == found.log_of(2)


async def test_another_broker_takes_over(tmp_path: Path) -> None:
    """It has all that was acknowledged, and takes sends; the old master follows it when it returns."""
    async with group(tmp_path, 3) as found:
        assert await found.send(1, [b"a", b"b"]) == [0, 0]
        await found.stop(1)
        await until(lambda: found.is_master(2) or found.is_master(3))
        master = 2 if found.is_master(2) else 3
        await until(lambda: found.in_sync(master) == [2, 3])
        assert await found.send(master, [b"c"]) == [0]
        await found.start(1)
        await until(lambda: found.in_sync(master) == [1, 2, 3])
        assert await found.send(master, [b"d"]) == [0]
        assert await found.bodies(master) == [b"a", b"b", b"c", b"d"]
        assert found.log_of(1) == found.log_of(2) == found.log_of(3)


async def test_roles_change_while_both_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator chooses the master, and then the first one again: each time the other one becomes its slave. Files
    are opened and synced in other threads, so that a slow disk delays no heartbeat."""
    threads: list[int] = []
    for name in ("_open", "_close"):
        act = getattr(BrokerNode, name)

        def noted(*args: Any, act: Callable[..., None] = act, **named: Any) -> None:
            threads.append(threading.get_ident())
            act(*args, **named)

        monkeypatch.setattr(BrokerNode, name, noted)
    async with group(tmp_path, 2) as found:
        bodies = []
        for master, slave in ((2, 1), (1, 2)):
            assert await found.elect(master) == 0
            await until(partial(found.has_both, master))
            assert not found.is_master(slave)
            bodies.append(b"of %d" % master)
            assert await found.send(master, bodies[-1:]) == [0]
        assert await found.bodies(1) == bodies
        assert found.log_of(1) == found.log_of(2)
        cores = [found.core(number) for number in (1, 2)]
        assert [core.replicas.role_changes for core in cores if core is not None] == [2, 2]
        assert len(threads) >= 2 + 2 * 2 * 2
        assert threading.get_ident() not in threads


async def test_a_deposed_master_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only it has is not read there, and is cut off, kept in a file, when it follows the next master."""
    async with group(tmp_path, 2) as found:
        assert await found.send(1, [b"kept"]) == [0]
        end = len(found.log_of(1))
        with monkeypatch.context() as link:
            link.setattr(ha_server._Link, "send", lambda self: None)
            sending = found.sending(1, b"cut off")
            await until(lambda: len(found.log_of(1)) > end)
            longer = found.log_of(1)
            assert await found.elect(2) == 0
            with pytest.raises(Exception, match="clos"):
                await sending
        await until(lambda: found.in_sync(2) == [1, 2])
        assert await found.send(2, [b"new"]) == [0]
        assert found.log_of(1) == found.log_of(2)
        assert await found.bodies(2) == [b"kept", b"new"]
        path = tmp_path / "1" / NAME / "truncated" / f"{end:020}-{len(longer):020}"
        assert path.read_bytes() == longer[end:]
        assert path.name in capsys.readouterr().err


async def test_reads_show_what_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of what not all in-sync replicas have is answered when they have it."""
    async with group(tmp_path, 2, slave_timeout_ms=50) as found:
        assert await found.send(1, [b"a"]) == [0]
        with monkeypatch.context() as link:
            link.setattr(ha_server._Link, "send", lambda self: None)
            assert (await found.sending(1, b"b")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            reading = asyncio.create_task(found.bodies(1))
            await asyncio.wait([reading], timeout=0.3)
            assert not reading.done()
        await found.sending(1, b"c")
        assert (await reading)[:2] == [b"a", b"b"]


async def test_too_few_in_sync_replicas(tmp_path: Path) -> None:
    """minInSyncReplicas: sends are refused, and nothing is stored, until there are enough."""
    async with group(tmp_path, 2, min_in_sync_replicas=2) as found:
        assert await found.send(1, [b"a"]) == [0]
        await found.stop(2)
        await until(lambda: found.in_sync(1) == [1])
        end = len(found.log_of(1))
        reply = await found.sending(1, b"b")
        assert (reply.code, "minInSyncReplicas" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert len(found.log_of(1)) == end
        await found.start(2)
        await until(lambda: found.in_sync(1) == [1, 2])
        assert await found.send(1, [b"c"]) == [0]
