"""The embedded broker: plain, asynchronous, and as a fixture."""

import asyncio
from pathlib import Path

import pytest

from mqtrail.net import ConnectionPool
from mqtrail.testing import Embedded, embedded, embedded_async
from mqtrail.wire import RemotingCommand, RequestCode


def ask(address: str, command: RemotingCommand) -> RemotingCommand:
    async def main() -> RemotingCommand:
        pool = ConnectionPool()
        try:
            return await pool.request(address, command, 5000)
        finally:
            await pool.close()

    return asyncio.run(main())


def cluster(address: str) -> bytes:
    return ask(address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)).body


def test_in_a_thread(tmp_path: Path) -> None:
    """A plain test can stop and start the broker, and nothing is left after it."""
    with embedded(tmp_path / "data", brokers=2) as broker:
        assert list(broker.broker_names) == ["broker-a", "broker-b"]
        assert b"broker-b" in cluster(broker.namesrv_address)
        first = broker.broker_addresses[0]
        broker.stop_broker("broker-a")
        assert list(broker.broker_names) == ["broker-b"]
        broker.start_broker("broker-a")
        assert first in broker.broker_addresses


async def test_in_the_callers_loop() -> None:
    """An asynchronous test runs it in its own loop."""
    async with embedded_async() as broker:
        pool = ConnectionPool()
        reply = await pool.request(broker.broker_addresses[0], RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG), 5000)
        assert reply.code == 0
        await pool.close()


def test_as_a_fixture(mqtrail_broker: Embedded) -> None:
    """The fixture creates a new broker for each test."""
    assert b"broker-a" in cluster(mqtrail_broker.namesrv_address)


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """An error at start reaches the test."""
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(Exception, match="is a file"), embedded(tmp_path / "data"):
        pass
