"""The client side with a server that answers, stays silent, sends requests, or disconnects."""

import asyncio

import pytest

from mqtrail.client.sync.blocking import BlockingConnection
from mqtrail.net import ConnectError, Connection, ConnectionClosed, ConnectionPool, RequestTimeout
from mqtrail.wire import RemotingCommand, SerializeType

from .conftest import ASK_BACK, BATCH, ECHO, SILENT, serving, until


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

    def on_request(connection: Connection, command: RemotingCommand) -> object:
        return later(command) if waits else RemotingCommand(0, {"served": str(command.code)})

    async with serving() as (server, application):
        pool = ConnectionPool(on_request=on_request)  # type: ignore[arg-type]
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
