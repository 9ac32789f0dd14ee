"""A broker whose database server ends, hangs and comes back."""

import asyncio
import threading
from pathlib import Path

import pytest

from mqtrail.net import ConnectionPool, RequestTimeout
from mqtrail.store.sql import SqlStore
from mqtrail.testing import embedded_async
from mqtrail.wire import PullHeader, PullSysFlag, RemotingCommand, RequestCode, ResponseCode, decode_records
from tests.node.helpers import NodeProcess, read_all, send_command
from tests.waiting import until

from .servers import DatabaseServer

pytestmark = pytest.mark.databases

UNTIL_S = 60.0


def pull() -> RemotingCommand:
    header = PullHeader("reader", "orders", 0, 0, 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*")
    return RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())


async def test_a_broker_outlives_an_end_of_its_database(database: DatabaseServer, tmp_path: Path) -> None:
    """Meanwhile it answers what it can, and refuses the rest in words; then it goes on as if nothing had been."""
    async with embedded_async(tmp_path / "data", store_url=database.new_database()) as cluster:
        (broker,) = cluster.broker_addresses
        store = cluster.node.brokers["broker-a"].store
        assert store is not None
        pool = ConnectionPool()
        assert (await pool.request(broker, send_command("orders", b"first"), 60_000)).code == 0
        database.kill()
        try:
            sending = asyncio.create_task(pool.request(broker, send_command("orders", b"second"), 60_000))
            await until(lambda: store.away is not None and store.max_offset("orders", 0) == 2)
            reply = await pool.request(broker, pull(), 60_000)
            assert (reply.code, "does not answer" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            unknown = send_command("orders", b"x", queue_id=99)
            assert "queueId[99" in ((await pool.request(broker, unknown, 60_000)).remark or "")
            assert not sending.done() or sending.result().code == ResponseCode.FLUSH_DISK_TIMEOUT
        finally:
            database.start()
        assert (await sending).code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
        await until(lambda: store.away is None and store.flushed_offset == store.end_offset)
        assert [message.body for message in await read_all(pool, broker, "orders", [0])] == [b"first", b"second"]
        assert (await pool.request(broker, send_command("orders", b"third"), 60_000)).code == 0
        await pool.close()


async def test_a_pull_that_reads_for_long_holds_nobody(
    database: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reads its rows; the loop serves others meanwhile, also on the same connection."""
    async with embedded_async(tmp_path / "data", store_url=database.new_database()) as cluster:
        (broker,) = cluster.broker_addresses
        store = cluster.node.brokers["broker-a"].store
        assert isinstance(store, SqlStore)
        pool = ConnectionPool()
        for body in (b"first", b"second"):
            await pool.request(broker, send_command("orders", body), 60_000)
        await until(lambda: store.flushed_offset == store.end_offset)
        gate, plain = threading.Event(), store._database._rows
        monkeypatch.setattr(store._database, "_rows", lambda query: gate.wait(60) and plain(query))
        pulling = [asyncio.create_task(pool.request(broker, pull(), 60_000)) for _ in range(3)]
        unknown = send_command("orders", b"x", queue_id=99)
        assert "queueId[99" in ((await pool.request(broker, unknown, 60_000)).remark or "")
        assert not any(one.done() for one in pulling)
        gate.set()
        for reply in await asyncio.gather(*pulling):
            assert [message.body for message in decode_records(reply.body)] == [b"first", b"second"]
        await pool.close()


async def test_a_broker_stops_while_its_database_is_away(database: DatabaseServer, tmp_path: Path) -> None:
    """It does not wait for the database; what was acknowledged is there after the next start."""
    url = database.new_database()
    pool = ConnectionPool()
    with NodeProcess(tmp_path, store_url=url) as node:
        assert (await pool.request(node.brokers[0], send_command("orders", b"kept"), 60_000)).code == 0
        database.kill()
        try:
            with pytest.raises(RequestTimeout):
                await pool.request(node.brokers[0], send_command("orders", b"lost"), 1_000)
            code, complaints = node.end()
        finally:
            database.start()
    assert (code, "found that the database does not answer" in complaints) == (1, True), complaints
    with NodeProcess(tmp_path, store_url=url) as node:
        assert [message.body for message in await read_all(pool, node.brokers[0], "orders", [0])] == [b"kept"]
    await pool.close()
