"""Connections to an HTTP server of mqtrail: bounds on their sizes and on their time."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from mqtrail.gateway import http_server, http_settings
from mqtrail.gateway.http_server import HEAD_SIZE_MAX
from mqtrail.gateway.shares import AddressShares
from tests.waiting import until

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = HEAD + b"Content-Length: 2\r\n\r\nhi"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
LARGE_ANSWER = 16 << 20
PIECE_SIZE = 4_000
SENT_MAX = 256 * HEAD_SIZE_MAX  # the rest is in buffers of sockets
real_deadline = http_server._ConnectionTimer


class Deadline:
    """Takes the place of the server's timers: the test lets them end."""

    made: list[Deadline]

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.act: Callable[[], None] | None = None
        self.made.append(self)

    def start(self, act: Callable[[], None]) -> None:
        self.act = self.act or act

    def stop(self) -> None:
        self.act = None

    def end(self) -> None:
        assert self.act is not None
        act, self.act = self.act, None
        act()


@pytest.fixture(autouse=True)
def deadlines(monkeypatch: pytest.MonkeyPatch) -> list[Deadline]:
    Deadline.made = []
    monkeypatch.setattr(http_server, "_ConnectionTimer", Deadline)
    return Deadline.made


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the size of the body, or very much to /large; accept WebSockets."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        return
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = bytes(LARGE_ANSWER) if scope["path"] == "/large" else str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connected(
    shares: AddressShares | None = None,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of the application."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = http_settings(application, 10, websockets=True, shares=shares)
        settings.lifespan = "off"
        server = uvicorn.Server(settings)
        settings.load()
        server.lifespan = settings.lifespan_class(settings)
        await server.startup([listening])
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()
            server.force_exit = True
            await server.shutdown([listening])


@pytest.mark.parametrize(
    "endless",
    [
        (b"GET /", b"a"),
        (HEAD + b"X: ", b"a"),
        (HEAD, b"A: a\r\n"),
        (CHUNKED + b"1;", b"a"),
        (CHUNKED + b"0\r\n", b"A: a\r\n"),
    ],
    ids=["path", "header", "headers", "chunk", "trailers"],
)
async def test_what_comes_before_a_body_is_bounded(endless: tuple[bytes, bytes]) -> None:
    """The connection ends a little after the bound, whatever parser is installed."""
    async with connected() as (_reader, writer):
        writer.write(endless[0])
        with suppress(ConnectionError):
            for _ in range(SENT_MAX // PIECE_SIZE):
                writer.write(endless[1] * (PIECE_SIZE // len(endless[1])))
                await writer.drain()
        assert writer.transport.is_closing()


async def test_a_connection_without_a_request_ends(deadlines: list[Deadline]) -> None:
    """Its time begins when it is made."""
    async with connected() as (reader, _writer):
        await until(lambda: len(deadlines) == 2 and deadlines[0].act is not None)
        deadlines[0].end()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


async def test_one_address_cannot_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """One beyond its share is answered at once and closed; when another one ends, the next is served."""
    monkeypatch.setattr("mqtrail.gateway.shares.is_loopback", lambda ip: False)
    shares = AddressShares(4, 25)
    async with connected(shares) as (reader, writer):
        writer.write(WHOLE)
        assert (await reader.readline()).split()[1] == b"200"
        server = writer.get_extra_info("peername")
        refused, writing = await asyncio.open_connection(*server)
        answer = await refused.read()
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"Retry-After: 1\r\n" in answer
        head, _, body = answer.partition(b"\r\n\r\n")
        assert json.loads(body)["status"] == 429
        assert f"Content-Length: {len(body)}".encode() in head
        writing.close()
        writer.close()
        await until(lambda: not shares._counts)
        reader, writing = await asyncio.open_connection(*server)
        writing.write(WHOLE)
        assert (await reader.readline()).split()[1] == b"200"
        writing.close()


@pytest.mark.parametrize("piece", [b"P", HEAD, CHUNKED, CHUNKED + b"1\r\nh", HEAD + b"Content-Length: 2\r\n\r\nh"])
async def test_a_request_that_stays_incomplete_ends(piece: bytes, deadlines: list[Deadline]) -> None:
    """Before it, the connection had time: no deadline runs between requests."""
    async with connected() as (reader, writer):
        writer.write(WHOLE)
        await reader.readuntil(b"\r\n2")
        await until(lambda: deadlines[0].act is None)
        writer.write(piece)
        await until(lambda: deadlines[0].act is not None)
        deadlines[0].end()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1_000)


@pytest.mark.parametrize("sent", [WHOLE, WHOLE + WHOLE, CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", UPGRADE])
async def test_what_is_whole_has_time(sent: bytes, deadlines: list[Deadline]) -> None:
    """Between requests and on a WebSocket no deadline runs."""
    async with connected() as (reader, writer):
        writer.write(sent)
        await reader.readuntil(b"101 " if sent is UPGRADE else b"\r\n2")
        await until(lambda: all(one.act is None for one in deadlines))


async def test_an_answer_that_is_not_read_ends(deadlines: list[Deadline]) -> None:
    """The server would keep it for as long as the peer likes; one that is read slowly continues."""
    async with connected() as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: len(deadlines) == 2 and deadlines[1].act is not None)
        await reader.readexactly(LARGE_ANSWER // 2)
        deadlines[1].end()
        assert deadlines[1].act is not None
        await until(lambda: deadlines[1].act is None or deadlines[1].end())
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(LARGE_ANSWER)


async def test_a_deadline_ends_once() -> None:
    """A second start does not move it; it can start again afterwards."""
    ended: list[int] = []
    deadline = real_deadline(0.001)
    for number in (1, 2):
        deadline.start(partial(ended.append, number))
        deadline.start(partial(ended.append, 9))
        await until(partial(ended.__contains__, number))
    deadline.start(partial(ended.append, 3))
    deadline.stop()
    other = real_deadline(0.002)
    other.start(partial(ended.append, 4))
    await until(partial(ended.__contains__, 4))
    assert ended == [1, 2, 4]


async def test_answers_that_nobody_reads_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection with the most ends; one alone may have an answer of any size, and one that is read ends well."""
    monkeypatch.setattr(http_server, "UNREAD_SIZE_MAX", LARGE_ANSWER)
    ask = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with connected() as (first, writer):
        writer.write(ask)
        await first.readuntil(b"\r\n\r\n")
        second, other = await asyncio.open_connection(*writer.get_extra_info("peername"))
        other.write(ask)
        await second.readuntil(b"\r\n\r\n")
        found = await asyncio.gather(ended(first), ended(second))
        assert sorted(one < LARGE_ANSWER for one in found) == [False, True]
        other.close()


async def ended(reader: asyncio.StreamReader) -> int:
    """Return how many bytes of an answer came."""
    size = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(60):
            while size < LARGE_ANSWER and (part := await reader.read(1 << 20)):
                size += len(part)
    return size
