"""A node in the test's event loop: its life cycle, settings and limits, as clients see them."""

import asyncio
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mqtrail.broker import BrokerConfig
from mqtrail.net import BindError, ConnectionPool
from mqtrail.node import DataFolderError, Node, NodeConfig
from mqtrail.node.addresses import advertised_ip
from mqtrail.store import CommitLogConfig, CommitLogStore, RealDisk
from mqtrail.store.commitlog.indexer import Indexer
from mqtrail.wire import InvalidParameter, PullHeader, PullSysFlag, RemotingCommand, RequestCode, encode_command
from tests.loops import run

from .helpers import broker_of, read_all, running, send_command


async def route(pool: ConnectionPool, namesrv: str, topic: str) -> RemotingCommand:
    return await pool.request(namesrv, RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}), 30_000)


async def test_topics_reach_the_name_server_at_once() -> None:
    """A topic created by a first send has a route before the next registration after 30 s."""
    async with running() as (node, pool):
        assert (await route(pool, node.namesrv_address, "orders")).code == 17
        await pool.request(node.broker_addresses[0], send_command("orders", b"x"), 30_000)
        async with asyncio.timeout(25):
            while (found := await route(pool, node.namesrv_address, "orders")).code != 0:
                await asyncio.sleep(0.01)
        assert node.broker_addresses[0].encode() in found.body


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_change_of_the_role_does_not_wait_for_the_index(leaves: bool, tmp_path: Path) -> None:
    """A broker that is started again at once leaves it to that start; another one finishes it before it stops."""
    store = CommitLogConfig(segment_size=1 << 24)
    async with running(data=tmp_path, store=store, index_interval_ms=3_600_000) as (node, pool):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Indexer, "hand_over", lambda *_: None)  # so that the log is read for the index
            for body in (b"1", b"2", b"3"):
                await pool.request(node.broker_addresses[0], send_command("orders", body * 400), 30_000)
        broker = broker_of(node)
        del node.brokers[broker.name]
        await broker.stop(leaves=leaves)
        found = CommitLogStore(RealDisk(tmp_path / broker.name), store)
        assert (found.behind_size == found.end_offset) is not leaves  # the last record is read again in any case
        found.close()


def test_a_stopped_broker_leaves_the_route(tmp_path: Path) -> None:
    """A stopped broker unregisters and returns on its port with its messages; the other broker is not affected."""

    async def main(data: Path) -> None:
        async with running(data=data, broker_names=("broker-a", "broker-b")) as (node, pool):
            first, second = node.broker_addresses
            await pool.request(first, send_command("orders", b"x"), 30_000)
            await node.stop_broker("broker-a")
            assert node.broker_addresses == (second,)
            found = await route(pool, node.namesrv_address, "TBW102")
            assert first.encode() not in found.body
            assert second.encode() in found.body
            await node.start_broker("broker-a")
            assert set(node.broker_addresses) == {first, second}
            assert [message.body for message in await read_all(pool, first, "orders", [0])] == [b"x"]

    run(main(tmp_path / "data"))


@pytest.mark.parametrize("taken", ["namesrv_port", "broker_port"])
async def test_a_port_in_use_is_a_clear_error(tmp_path: Path, taken: str) -> None:
    """After stop nothing runs, and the data folder is free."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = NodeConfig(**{"data": tmp_path / "data", "namesrv_port": 0, "broker_port": 0, taken: port})
        with pytest.raises(BindError, match=rf"127.0.0.1:{port}: the port is in use"):
            await Node(config).start()
    async with running(data=tmp_path / "data"):
        pass


async def test_a_folder_in_use_is_a_clear_error(tmp_path: Path) -> None:
    """The second node on a folder does not start; the first one continues."""
    async with running(data=tmp_path / "data") as (node, pool):
        with pytest.raises(DataFolderError, match="in use by process"):
            await Node(replace(node.config)).start()
        assert (await pool.request(node.broker_addresses[0], send_command("orders", b"x"), 30_000)).code == 0


@pytest.mark.slow
async def test_a_name_server_that_is_down_is_reported_once() -> None:
    """Without a name server the broker serves, registers once there is one, and logs both."""
    async with running() as (namesrv_node, pool):
        own = namesrv_node.namesrv_address
    with capture_logs() as logs:
        async with running(namesrv_port=None, namesrv_addresses=(own,)) as (node, pool):
            assert node.namesrv_address == own
            assert (await pool.request(node.broker_addresses[0], send_command("orders", b"x"), 30_000)).code == 0
            port = own.rpartition(":")[2]
            async with running(namesrv_port=int(port), broker_names=()) as (_, other):
                async with asyncio.timeout(60):
                    while (await route(other, own, "TBW102")).code != 0:
                        await asyncio.sleep(0.05)
    events = [line["event"] for line in logs]
    assert events.count("broker.not_registered") == 1
    assert "broker.registered_again" in events


async def test_sync_flush_over_sockets(tmp_path: Path) -> None:
    """Every acknowledged send is below the flushed offset when its reply arrives."""
    async with running(data=tmp_path / "data", broker=BrokerConfig(sync_flush=True)) as (node, pool):
        store = node.brokers["broker-a"].store
        assert store is not None

        async def send(number: int) -> None:
            reply = await pool.request(node.broker_addresses[0], send_command("orders", b"m%d" % number), 30_000)
            assert reply.code == 0
            assert int(reply.ext["msgId"][16:], 16) < store.flushed_offset

        await asyncio.gather(*(send(number) for number in range(50)))


async def test_a_held_pull_is_answered_by_a_send() -> None:
    """Long polling over sockets: the reply comes with the message, not at the timeout."""
    async with running() as (node, pool):
        address = node.broker_addresses[0]
        await pool.request(address, send_command("orders", b"first"), 30_000)
        flags = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
        header = PullHeader("g", "orders", 0, 1, 32, flags, 0, 90_000, "*")
        pull = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
        waiting = asyncio.create_task(pool.request(address, pull, 90_000))
        core = node.brokers["broker-a"].core
        assert core is not None
        async with asyncio.timeout(60):
            while not len(core.held):
                await asyncio.sleep(0.005)
        await pool.request(address, send_command("orders", b"second"), 30_000)
        reply = await asyncio.wait_for(waiting, 60)
        assert b"second" in reply.body


async def test_a_held_pull_times_out_by_the_timer() -> None:
    """The core's deadline sets the event loop's timer."""
    async with running() as (node, pool):
        address = node.broker_addresses[0]
        await pool.request(address, send_command("orders", b"first"), 30_000)
        flags = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
        header = PullHeader("g", "orders", 0, 1, 32, flags, 0, 100, "*")
        reply = await pool.request(address, RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext()), 30_000)
        assert reply.code == 19


async def test_a_slow_reader_of_pulls_is_bounded(tmp_path: Path) -> None:
    """The server stops serving a peer that pulls megabytes and reads nothing, so its pending replies stay small."""
    async with running(data=tmp_path / "data") as (node, pool):
        address = node.broker_addresses[0]
        await asyncio.gather(
            *(pool.request(address, send_command("orders", b"%05d" % number * 1000), 30_000) for number in range(40))
        )
        header = PullHeader("g", "orders", 0, 0, 32, PullSysFlag.SUBSCRIPTION, 0, 0, "*")
        pull = encode_command(RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext()))
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(pull * 3000)  # 480 MB of replies
        server = broker_of(node)._server
        assert server is not None

        def owed() -> int:
            return max(
                connection._transport.get_write_buffer_size()
                for connection in server.connections.values()
                if connection._transport is not None
            )

        async with asyncio.timeout(60):
            while owed() < 1024 * 1024:
                await asyncio.sleep(0.01)
        for _ in range(20):
            assert (await pool.request(address, send_command("orders", b"still served"), 30_000)).code == 0
            assert owed() < 8 * 1024 * 1024
        writer.transport.abort()


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """Without disk space, sends get code 14 with the remedy, and nothing is stored partially; later sends succeed
    again."""
    async with running(data=tmp_path / "data") as (node, pool):
        address = node.broker_addresses[0]
        assert (await pool.request(address, send_command("orders", b"a"), 30_000)).code == 0
        store = node.brokers["broker-a"].store
        assert isinstance(store, CommitLogStore)
        store._full = True
        reply = await pool.request(address, send_command("orders", b"b"), 30_000)
        assert reply.code == 14
        assert "free space" in str(reply.remark)
        store._full = False
        assert (await pool.request(address, send_command("orders", b"c"), 30_000)).code == 0
        assert [message.body for message in await read_all(pool, address, "orders", [0])] == [b"a", b"c"]


async def test_a_bug_in_the_core_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception is code 1 for that request and a log line; the connection stays open."""
    async with running() as (node, pool):
        core = node.brokers["broker-a"].core
        assert core is not None

        def broken(*arguments: object) -> object:
            raise ZeroDivisionError("boom")

        monkeypatch.setitem(core._handlers, 30, broken)
        with capture_logs() as logs:
            reply = await pool.request(node.broker_addresses[0], RemotingCommand(30), 30_000)
        assert reply.code == 1
        assert "ZeroDivisionError: boom" in str(reply.remark)
        assert logs[0]["event"] == "core.failed"
        assert (await pool.request(node.broker_addresses[0], send_command("orders", b"x"), 30_000)).code == 0


async def test_opening_to_others_is_warned_of() -> None:
    """Only --host opens the node to others, and the log names both remedies."""
    with capture_logs() as logs:
        async with running() as (node, _):
            assert not node.is_open_to_others
    assert [line for line in logs if line["event"] == "node.open_to_others"] == []
    with capture_logs() as logs:
        async with running(host="0.0.0.0", advertise="127.0.0.1") as (node, pool):
            assert node.is_open_to_others
            assert node.broker_addresses[0].startswith("127.0.0.1:")
            assert (await pool.request(node.broker_addresses[0], send_command("orders", b"x"), 30_000)).code == 0
    (warning,) = [line for line in logs if line["event"] == "node.open_to_others"]
    assert warning["log_level"] == "warning"
    assert "--host 127.0.0.1" in warning["remedy"]
    assert "access control" in warning["remedy"]


def test_the_advertised_address() -> None:
    """Precedence: --advertise, the bound address, the address of the default route. Invalid values are refused."""
    assert advertised_ip("127.0.0.1", None) == "127.0.0.1"
    assert advertised_ip("0.0.0.0", "192.0.2.7") == "192.0.2.7"
    assert advertised_ip("0.0.0.0", None).count(".") == 3
    with pytest.raises(InvalidParameter, match="--advertise"):
        advertised_ip("127.0.0.1", "no such host.invalid")
    with pytest.raises(InvalidParameter, match="expected an IP address at which clients reach"):
        advertised_ip("127.0.0.1", "0.0.0.0")


async def test_broker_names_are_distinct() -> None:
    """Two brokers of one name would share a folder."""
    with pytest.raises(InvalidParameter, match="each once"):
        await Node(NodeConfig(namesrv_port=0, broker_port=0, broker_names=("a", "a"))).start()


async def test_the_index_follows_appends(tmp_path: Path) -> None:
    """Indexing runs in the background soon after the send, without a query."""
    async with running(data=tmp_path / "data", store=CommitLogConfig(segment_size=1 << 24)) as (node, pool):
        await pool.request(node.broker_addresses[0], send_command("orders", b"x"), 30_000)
        store = node.brokers["broker-a"].store
        assert store is not None
        async with asyncio.timeout(60):
            while store.behind_size:
                await asyncio.sleep(0.005)


async def test_large_removed_files_are_freed_outside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of a gigabyte that is in the page cache takes half a second."""
    monkeypatch.setattr("mqtrail.store.disk.FREED_APART_SIZE", 1)
    async with running(data=tmp_path / "data", store=CommitLogConfig(segment_size=1 << 24)) as (node, _):
        store = node.brokers["broker-a"].store
        assert isinstance(store, CommitLogStore)
        disk = store._disk
        disk.open("large", 4_096, reserve=True).write_at(0, b"x")
        closing: list[int] = []
        close = os.close

        def spy(fd: int) -> None:
            closing.append(threading.get_ident())
            close(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "close", spy)
            disk.remove("large")
            async with asyncio.timeout(60):
                while not set(closing) - {threading.get_ident()}:
                    await asyncio.sleep(0.005)


async def test_a_failing_disk_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed flush the node reports failure and acknowledges nothing more."""
    node = Node(NodeConfig(data=tmp_path / "data", namesrv_port=0, broker_port=0, broker=BrokerConfig(sync_flush=True)))
    await node.start()
    pool = ConnectionPool()
    broker = node.brokers["broker-a"]
    assert broker.store is not None

    def begin_flush() -> object:
        def sync() -> int:
            raise OSError(5, "Input/output error")

        return sync

    monkeypatch.setattr(broker.store, "begin_flush", begin_flush)
    with capture_logs() as logs:
        task = asyncio.create_task(pool.request(broker.address, send_command("orders", b"x"), 60_000))
        async with asyncio.timeout(60):
            await node.failed.wait()
        assert not task.done()
        events = [line["event"] for line in logs if line["event"] != "loop.stalled"]  # a busy machine may add these
        assert events[0] == "store.flush_failed"
    task.cancel()
    monkeypatch.undo()
    await pool.close()
    await node.stop()
    assert isinstance(node.failure, OSError)
