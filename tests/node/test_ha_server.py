"""The HA port of a master on real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig, Epoch, Epochs, Replicas
from mqtrail.node import ha_server
from mqtrail.node.ha_server import HaServer
from mqtrail.store import CommitLogConfig, CommitLogStore, MemoryDisk
from tests.waiting import until

NOW_MS = 1_700_000_000_000
CONTROLLED = {"controller_mode": True, "controller_addresses": "127.0.0.1:1", "broker_role": "SYNC_MASTER"}


class Master:
    """A HA port on all loopback addresses."""

    def __init__(self, **settings: Any) -> None:
        self.now_ms = NOW_MS
        self.store = CommitLogStore(MemoryDisk(), CommitLogConfig())
        self.replicas = Replicas(BrokerConfig(**settings), self.store)
        self.replicas.epochs = Epochs([Epoch(1, 0)])
        self.server = HaServer("broker-a", lambda: self.now_ms)
        self.peers: list[socket.socket] = []

    async def connect(self, ip: str, data: bytes = b"") -> socket.socket:
        """Connect from this address."""
        peer = socket.create_connection(("127.0.0.1", self.server.port), source_address=(ip, 0))
        self.peers.append(peer)
        peer.setblocking(False)
        peer.sendall(data)
        return peer

    @property
    def ips(self) -> list[str]:
        """The addresses of the connections that have a place."""
        return sorted(one.address.rpartition(":")[0] for one in self.replicas.all(self.now_ms))


@asynccontextmanager
async def master(**settings: Any) -> AsyncIterator[Master]:
    made = Master(**settings)
    made.server.bind("0.0.0.0", 0)
    await made.server.start(made.store, made.replicas)
    try:
        yield made
    finally:
        for peer in made.peers:
            peer.close()
        await made.server.stop()
        made.store.close()


async def is_closed(peer: socket.socket) -> bool:
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(peer, 1_000):
                pass
    return True


async def test_only_named_addresses_are_served() -> None:
    """slave_addresses: the protocol has no other way to tell a slave from a stranger, who would get the log."""
    async with master(slave_addresses="127.0.0.{1,2}") as one:
        stranger = await one.connect("127.0.0.3", bytes(8))
        assert await is_closed(stranger)
        await one.connect("127.0.0.2", bytes(8))
        await until(lambda: one.ips == ["127.0.0.2"])


@pytest.mark.parametrize(
    ("settings", "drips", "hello", "report"),
    [
        ({}, (b"\0", b"\0"), b"", bytes(8)),
        (CONTROLLED, (b"\0\0\0", b"\1"), b"\0\0\0\1" + bytes(12), b"\0\0\0\2" + bytes(8)),
    ],
)
async def test_bytes_that_are_no_whole_report_keep_no_place(
    settings: dict[str, Any], drips: tuple[bytes, bytes], hello: bytes, report: bytes
) -> None:
    """A peer that sends a byte now and then is as silent as one that sends none."""
    async with master(**settings) as one:
        silent = await one.connect("127.0.0.1", drips[0])
        slave = await one.connect("127.0.0.2", hello + report)
        await until(lambda: [found.acked_offset for found in one.replicas.all(NOW_MS)].count(0) == 1)
        one.now_ms += 19_000
        silent.sendall(drips[1])
        slave.sendall(report)
        await one.connect("127.0.0.4", hello + report)  # once it has a place, what came before it has been read
        await until(lambda: "127.0.0.4" in one.ips)
        one.now_ms += 2_000
        one.server._check()
        assert await is_closed(silent)
        assert one.ips == ["127.0.0.2", "127.0.0.4"]


async def test_one_address_cannot_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the maximum, the address with the most gives one up, first one that never reported; none for itself."""
    monkeypatch.setattr(ha_server, "SLAVES_MAX", 4)
    async with master() as one:
        reports = await one.connect("127.0.0.3", bytes(8))
        await until(lambda: [found.acked_offset for found in one.replicas.all(NOW_MS)] == [0])
        silent = [await one.connect("127.0.0.3") for _ in range(3)]
        await until(lambda: len(one.ips) == 4)
        assert await is_closed(await one.connect("127.0.0.3"))
        for _ in range(2):
            await one.connect("127.0.0.2", bytes(8))
        await until(lambda: one.ips == ["127.0.0.2"] * 2 + ["127.0.0.3"] * 2)
        assert await is_closed(silent[2])
        assert await is_closed(silent[1])
        assert await is_closed(await one.connect("127.0.0.2"))
        reports.sendall(bytes(8))
        assert len(one.ips) == 4


@pytest.mark.parametrize("turns", range(6))
async def test_a_slave_that_comes_while_the_master_stops_is_refused(turns: int) -> None:
    """asyncio accepts it, although the port is closed. It would wait for a master that is no more."""
    store = CommitLogStore(MemoryDisk(), CommitLogConfig())
    server = HaServer("broker-a", lambda: 1)
    server.bind("127.0.0.1", 0)
    await server.start(store, Replicas(BrokerConfig(), store))
    with socket.create_connection(("127.0.0.1", server.port)) as peer:  # in the backlog: not accepted yet
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        peer.setblocking(False)
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""
    store.close()
