"""The HA port of a master on real sockets."""

import asyncio
import socket
from contextlib import suppress

import pytest

from mqtrail.broker import BrokerConfig, Replicas
from mqtrail.node.ha_server import HaServer
from mqtrail.store import CommitLogConfig, CommitLogStore, MemoryDisk


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
