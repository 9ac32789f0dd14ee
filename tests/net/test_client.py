"""The client side with a server that answers, stays silent, sends requests, or disconnects."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable

import pytest
from structlog.testing import capture_logs

from mqtrail.client.sync.blocking import BlockingConnection
from mqtrail.net import ConnectError, Connection, ConnectionClosed, ConnectionPool, RequestTimeout, client
from mqtrail.net.client import PEER_REQUESTS_A_TURN, PEER_REQUESTS_MAX
from mqtrail.wire import RemotingCommand, SerializeType, encode_command
from tests.waiting import until

from .conftest import ASK_BACK, BATCH, ECHO, SILENT, serving


async def test_replies_find_their_requests() -> None:
    """Concurrent requests on one connection each get their own reply."""
    async with serving() as (server, application):
        pool = ConnectionPool()
        bodies = [b"%d" % number for number in range(200)]
        replies = await asyncio.gather(
            *(pool.request(server.address, RemotingCommand(ECHO, body=body), 30_000) for body in bodies)
        )
        assert [reply.body for reply in replies] == bodies
        assert len(application.connections) == 1
        await pool.close()


@pytest.mark.parametrize("serialize", SerializeType)
async def test_long_replies_are_read(serialize: SerializeType) -> None:
    """Apache's broker answers a batch of 100 000 messages with an id for each of them."""
    async with serving() as (server, _):
        connection = await Connection.open(server.address)
        command = RemotingCommand(BATCH, {"count": "100000"}, serialize=serialize)
        reply = await connection.request(command, 60_000)
        assert reply.ext["msgId"].count(",") == 99_999
        assert (await connection.request(RemotingCommand(ECHO, body=b"x"), 60_000)).body == b"x"
        connection.close()
        blocking = BlockingConnection(server.address)
        reply = await asyncio.to_thread(blocking.request, command, 60_000)
        assert reply.ext["msgId"].count(",") == 99_999
        blocking.close()


async def test_oneway_is_flagged_and_not_answered() -> None:
    """A one-way request arrives with its flag and leaves nothing pending."""
    async with serving() as (server, application):
        connection = await Connection.open(server.address)
        await connection.oneway(RemotingCommand(15, {"a": "b"}))
        await until(lambda: len(application.seen) == 1)
        assert application.seen[0].is_oneway
        assert connection.pending_count == 0
        connection.close()


async def test_timeout_says_the_request_was_sent() -> None:
    """No reply in time is RequestTimeout with sent=True; short ones leave the connection open."""
    async with serving() as (server, _):
        connection = await Connection.open(server.address)
        with pytest.raises(RequestTimeout, match="within 20 ms") as caught:
            await connection.request(RemotingCommand(SILENT), 20)
        assert caught.value.sent
        assert connection.pending_count == 0
        assert (await connection.request(RemotingCommand(ECHO, body=b"x"), 30_000)).body == b"x"
        connection.close()


async def test_a_silent_peer_is_left() -> None:
    """A timeout of half a second without any received byte closes the connection; the next request reconnects."""
    async with serving() as (server, application):
        pool = ConnectionPool()
        with pytest.raises(RequestTimeout):
            await pool.request(server.address, RemotingCommand(SILENT), 1_000)
        assert not pool.connected(server.address)
        assert (await pool.request(server.address, RemotingCommand(ECHO, body=b"x"), 30_000)).body == b"x"
        assert len(application.connections) == 2
        await pool.close()


async def test_cancelled_requests_leave_nothing() -> None:
    """Cancelling a caller drops the request; its late reply and other requests are not affected."""
    async with serving() as (server, application):
        connection = await Connection.open(server.address)
        task = asyncio.create_task(connection.request(RemotingCommand(SILENT), 60_000))
        await until(lambda: len(application.seen) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connection.pending_count == 0
        assert (await connection.request(RemotingCommand(ECHO, body=b"x"), 30_000)).body == b"x"
        connection.close()


async def test_the_peer_going_fails_what_waits() -> None:
    """Requests without a reply fail with ConnectionClosed when the server closes; the pool drops the connection."""
    lost: list[str] = []
    async with serving() as (server, application):
        pool = ConnectionPool(on_disconnect=lost.append)
        task = asyncio.create_task(pool.request(server.address, RemotingCommand(SILENT), 60_000))
        await until(lambda: len(application.seen) == 1)
        application.connections[0].close()
        with pytest.raises(ConnectionClosed) as caught:
            await task
        assert caught.value.sent
        assert lost == [server.address]
        assert not pool.connected(server.address)
        await pool.close()


@pytest.mark.parametrize(("address", "words"), [("nonsense", "is not host:port"), ("127.0.0.1:1", "cannot connect")])
async def test_connecting_fails_clearly(address: str, words: str) -> None:
    """A malformed or refusing address is a ConnectError with sent=False."""
    pool = ConnectionPool()
    with pytest.raises(ConnectError, match=words) as caught:
        await pool.request(address, RemotingCommand(ECHO), 1000)
    assert not caught.value.sent
    await pool.close()


async def test_callers_share_one_attempt_to_connect() -> None:
    """Ten callers of an address without a connection open one; cancelling the first does not affect the others."""
    async with serving() as (server, application):
        pool = ConnectionPool()
        tasks = [
            asyncio.create_task(pool.request(server.address, RemotingCommand(ECHO, body=b"x"), 30_000))
            for _ in range(10)
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(replies[0], asyncio.CancelledError)
        assert all(isinstance(reply, RemotingCommand) for reply in replies[1:])
        assert len(application.connections) == 1
        await pool.close()


async def test_a_closed_pool_sends_nothing() -> None:
    """After close every request fails with ConnectionClosed and sent=False."""
    async with serving() as (server, application):
        pool = ConnectionPool()
        await pool.close()
        with pytest.raises(ConnectionClosed, match="pool is closed"):
            await pool.request(server.address, RemotingCommand(ECHO), 1000)
        assert application.connections == []


@pytest.mark.parametrize("waits", [False, True])
async def test_the_peer_may_ask(waits: bool) -> None:
    """on_request serves a broker's request on the same socket, directly or by a coroutine; a failure is not fatal."""

    async def later(command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        return RemotingCommand(0, {"served": str(command.code)})

    def on_request(connection: Connection, command: RemotingCommand) -> Awaitable[RemotingCommand] | RemotingCommand:
        return later(command) if waits else RemotingCommand(0, {"served": str(command.code)})

    async with serving() as (server, application):
        pool = ConnectionPool(on_request=on_request)
        await pool.request(server.address, RemotingCommand(ASK_BACK), 30_000)
        await until(lambda: len(application.seen) == 2)
        answer = application.seen[1]
        assert answer.is_response
        assert answer.ext == {"served": "40"}
        await pool.close()


async def test_bytes_that_make_no_sense_end_the_connection() -> None:
    """If the server answers HTTP, the request fails with that reason."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(16)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()
        gone.set()

    gone = asyncio.Event()
    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    connection = await Connection.open(address)
    with pytest.raises(ConnectionClosed, match="invalid bytes"):
        await connection.request(RemotingCommand(ECHO), 30_000)
    await gone.wait()
    listener.close()
    await listener.wait_closed()


async def test_a_flood_of_requests_is_bounded() -> None:
    """A peer's requests beyond those served or waiting are dropped, counted in the log; the connection stays open."""
    running = most = 0
    gate = asyncio.Event()

    async def serve(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return RemotingCommand.reply_to(command, 0, "late")

    async with serving() as (server, application):
        connection = await Connection.open(server.address, on_request=serve)
        assert (await connection.request(RemotingCommand(ECHO), 60_000)).code == 0
        with capture_logs() as logs:
            flood = encode_command(RemotingCommand(40, {"consumerGroup": "g"})) * (3 * PEER_REQUESTS_MAX)
            application.connections[0].write(flood)
            await connection.request(RemotingCommand(ECHO), 60_000)
            await until(lambda: most == PEER_REQUESTS_MAX)
            await connection.request(RemotingCommand(ECHO), 60_000)
        assert most == PEER_REQUESTS_MAX
        counts = [entry["count"] for entry in logs if entry["event"] == "connection.requests_dropped"]
        assert counts == [1 << place for place in range(len(counts))]
        assert counts[-1] > PEER_REQUESTS_MAX // 2
        gate.set()
        await until(lambda: len([one for one in application.seen if one.remark == "late"]) == PEER_REQUESTS_MAX)
        connection.close()


async def test_requests_of_a_peer_do_not_take_one_turn_of_the_loop() -> None:
    """A piece with many requests is served over several turns, with other work between them."""
    served: list[int] = []
    turn = 0

    def serve(connection: Connection, command: RemotingCommand) -> None:
        served.append(turn)

    async with serving() as (server, application):
        connection = await Connection.open(server.address, on_request=serve)
        await connection.request(RemotingCommand(ECHO), 60_000)
        count = 8 * PEER_REQUESTS_A_TURN
        application.connections[0].write(encode_command(RemotingCommand(40, {}, flag=2)) * count)
        async with asyncio.timeout(60):
            while len(served) < count:
                await asyncio.sleep(0)
                turn += 1
        assert max(served.count(one) for one in set(served)) <= PEER_REQUESTS_A_TURN
        connection.close()


async def test_replies_of_a_peer_do_not_take_one_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lying server sends many replies to requests that were never sent: others are served in between, and the reply
    to a request of this client is read after them."""
    monkeypatch.setattr(client, "TURN_S", -1.0)  # each frame takes a turn
    turns: list[int] = []
    turn = 0
    read = Connection._on_command

    def reading(connection: Connection, command: RemotingCommand) -> None:
        turns.append(turn)
        read(connection, command)

    async with serving() as (server, application):
        connection = await Connection.open(server.address)
        await connection.request(RemotingCommand(ECHO), 60_000)
        monkeypatch.setattr(Connection, "_on_command", reading)
        application.connections[0].write(encode_command(RemotingCommand(0, flag=1, opaque=77)) * 50)
        reply = asyncio.ensure_future(connection.request(RemotingCommand(ECHO, body=b"own"), 60_000))
        async with asyncio.timeout(60):
            while not reply.done():
                await asyncio.sleep(0)
                turn += 1
        assert reply.result().body == b"own"
        assert len(turns) == len(set(turns)) == 51
        connection.close()


@pytest.mark.parametrize("drip", [b"\x00\xff\xff\x00\x00\x00\x00\x10", b""])
async def test_a_blocking_request_ends_in_time_whatever_trickles_in(drip: bytes) -> None:
    """A peer that sends bytes or foreign replies without end keeps no caller beyond the timeout."""
    stop = threading.Event()
    other = drip or encode_command(RemotingCommand(0, {}, flag=1, opaque=77))

    def trickle() -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            peer.recv(1 << 16)
            peer.sendall(drip)
            while not stop.is_set():
                peer.sendall(other if not drip else b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        connection = BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(RequestTimeout):
            await asyncio.wait_for(asyncio.to_thread(connection.request, RemotingCommand(ECHO), 300), 60)
        stop.set()
        thread.join(60)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:" + "9" * 5_000, "x", ":1", "\x00:1"]
)
def test_blocking_connections_to_impossible_addresses_fail_clearly(address: str) -> None:
    """A route can name anything as an address."""
    with pytest.raises(ConnectError):
        BlockingConnection(address).request(RemotingCommand(ECHO), 1_000)
