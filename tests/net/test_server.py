"""The server side: pieces of any size, malformed bytes, slow readers, limits."""

import asyncio
import socket
import tracemalloc
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from mqtrail.net import BindError, Connection, Server, ServerConfig, ServerConnection, bound_socket, next_command
from mqtrail.wire import RemotingCommand, encode_command
from tests.waiting import until

from .conftest import BIG, ECHO, SILENT, Answering, serving


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def talk(server: Server, data: bytes) -> bytes:
    """Send data; return everything that the server sends until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:  # it closed without reading all our bytes
        return b""
    finally:
        await hang_up(writer)


@pytest.mark.parametrize("size", [1, 3, 7, 64])
async def test_pieces_of_any_size(size: int) -> None:
    """Frames cut at any position are served in order."""
    async with serving() as (server, application):
        requests = [RemotingCommand(ECHO, body=b"%d" % number * number, opaque=number) for number in range(12)]
        stream = b"".join(encode_command(request) for request in requests)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for start in range(0, len(stream), size):
            writer.write(stream[start : start + size])
            await asyncio.sleep(0)
        await until(lambda: len(application.seen) == len(requests))
        assert application.seen == requests
        replies = b"".join(
            encode_command(RemotingCommand.reply_to(request, 0, body=request.body)) for request in requests
        )
        assert await reader.readexactly(len(replies)) == replies
        await hang_up(writer)
        assert server.partial_size == 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2 preface"),
        (b"PRI ", "HTTP/2 preface"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS hello"),
        (b"GET / HTTP/1.1\r\n", "HTTP request"),
        (b"PROXY TCP4 1.2.3.4", "PROXY protocol"),
        (b"\x7f\xff\xff\xff", "frame length of 2147483647"),
        (b"\x00\x00\x00\x02abcdef", "frame length of 2 bytes"),
        (b"\x00\x00\x00\x08\x07\x00\x00\x04abcd", "serialize type 7"),
        (b"\x00\x00\x00\x08\x00\xff\xff\xffabcd", "header of 16777215 bytes"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x04}}}}", "JSON header that cannot be read"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x04\x00\x01\x02\x03", "binary header cut short"),
    ],
)
async def test_foreign_bytes_are_refused_by_name(data: bytes, words: str) -> None:
    """Other protocols, oversized and malformed frames: one log event with found and expected, and the socket closes."""
    async with serving() as (server, application):
        with capture_logs() as logs:
            assert await talk(server, data) == b""
        (line,) = [line for line in logs if line["event"] == "connection.refused"]
        assert words in line["found"]
        assert line["expected"] == "RocketMQ remoting frames"
        await until(lambda: application.gone == [1])


async def test_good_frames_before_bad_ones_are_answered() -> None:
    """Frames before the malformed bytes in the same piece get their replies."""
    async with serving() as (server, _):
        request = RemotingCommand(ECHO, body=b"x", opaque=5)
        reply = encode_command(RemotingCommand.reply_to(request, 0, body=b"x"))
        with capture_logs():
            assert await talk(server, encode_command(request) + b"\xff" * 12) == reply


@pytest.mark.parametrize("yields", [True, False])
async def test_connections_take_turns(yields: bool) -> None:
    """A peer with many requests does not delay another, and is still served in order.

    yields: the application stops when its turn is over; one that does not is stopped between its pieces.
    """

    class Slow(Answering):
        def process(self, connection: ServerConnection, buffer: bytes, start: int, end: int) -> int:
            while start < end:
                command, start = next_command(buffer, start, end)
                if command is None:
                    break
                time_s[0] += 0.001
                self._answer(connection, command)
                if yields and connection.turn_is_over():
                    break
            return start

    time_s = [0.0]
    count, size = (4_000, 2_000) if not yields else (400, 0)

    async with serving(Slow()) as (server, application):
        server.clock = lambda: time_s[0]
        greedy, modest = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        requests = [RemotingCommand(SILENT, body=bytes(size), opaque=number) for number in range(count)]
        greedy[1].write(b"".join(map(encode_command, requests)))
        modest[1].write(encode_command(RemotingCommand(SILENT, opaque=count)))
        await until(lambda: len(application.seen) == count + 1)
        served = [command.opaque for command in application.seen]
        place = served.index(count)
        assert place < count / 2, f"the other connection was served after {place} of {count} requests"
        assert served[:place] + served[place + 1 :] == list(range(count))
        await hang_up(greedy[1])
        await hang_up(modest[1])


async def test_a_truncated_frame_is_dropped_with_its_connection() -> None:
    """Half a frame and the end of the stream: no request is served and no bytes are kept."""
    async with serving() as (server, application):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(encode_command(RemotingCommand(ECHO, body=bytes(100)))[:60])
        await until(lambda: server.partial_size == 60)
        await hang_up(writer)
        await until(lambda: application.gone == [1])
        assert server.partial_size == 0
        assert application.seen == []


async def test_unfinished_frames_have_a_limit() -> None:
    """Connections that announce frames and never finish them cannot fill the memory."""
    async with serving(config=ServerConfig(partial_size_max=100_000)) as (server, _):
        with capture_logs() as logs:
            announced = (10_000_000).to_bytes(4) + (20).to_bytes(4)
            assert await talk(server, announced + bytes(400_000)) == b""
        assert "unfinished frames" in logs[0]["found"]
        assert server.partial_size == 0


async def test_the_largest_unfinished_frame_makes_room() -> None:
    """A connection that uses most of the limit does not get others closed."""
    async with serving(config=ServerConfig(partial_size_max=100_000)) as (server, application):
        announced = (10_000_000).to_bytes(4) + (20).to_bytes(4)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(announced + bytes(90_000))
        await until(lambda: server.partial_size > 90_000)
        frame = encode_command(RemotingCommand(ECHO, body=bytes(50_000)))
        _, other = await asyncio.open_connection("127.0.0.1", server.port)
        other.write(frame[:10])
        await until(lambda: server.partial_size > 90_010)
        other.write(frame[10:40_000])
        assert await reader.read() == b""
        assert application.gone == [1]
        other.write(frame[40_000:])
        await until(lambda: len(application.seen) == 1)
        await hang_up(writer)
        await hang_up(other)


async def test_a_slow_reader_is_not_read_from() -> None:
    """The server stops serving a peer that requests much and reads nothing; memory stays near write_pause_size."""
    config = ServerConfig(write_pause_size=64 * 1024)
    async with serving(Answering(piece_size_max=64 * 1024), config) as (server, application):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        count = 2_000
        request = encode_command(RemotingCommand(BIG, {"size": "20000"}))
        writer.write(request * count)
        await until(lambda: bool(application.connections) and application.connections[0].write_paused)
        served, rounds = len(application.seen), 0
        while rounds < 100:  # of the loop, which would read on: the requests are in the socket
            await asyncio.sleep(0)
            rounds = rounds + 1 if served == len(application.seen) else 0
            served = len(application.seen)
        assert served < count
        (connection,) = application.connections
        assert 0 < connection.kept_s <= asyncio.get_running_loop().time()
        reply_size = len(encode_command(RemotingCommand(0, body=bytes(20000), flag=1)))
        received = 0
        while received < count * reply_size:
            received += len(await reader.read(1 << 20))
        assert len(application.seen) == count
        assert connection.kept_s == 0, "nothing is left lying"
        await hang_up(writer)


async def test_a_reader_that_never_reads_is_cut_off() -> None:
    """Writes to a connection that did not request them (held pulls) are bounded too."""
    config = ServerConfig(write_pause_size=64 * 1024, write_size_max=1024 * 1024)
    async with serving(config=config) as (server, application):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: len(application.connections) == 1)
        (connection,) = application.connections
        with capture_logs() as logs:
            for _ in range(400):
                connection.write(bytes(64 * 1024))
                await asyncio.sleep(0)
            await until(lambda: connection.closed)
        assert logs[0]["event"] == "connection.too_slow"
        await hang_up(writer)


async def test_who_comes_while_the_server_stops_is_refused() -> None:
    """At stop every connection closes in any state; the application sees both events of it or neither."""
    for rounds in range(8):
        async with serving() as (server, application):
            peer = socket.create_connection(("127.0.0.1", server.port))  # in the backlog: not accepted yet
            for _ in range(rounds):
                await asyncio.sleep(0)
        peer.settimeout(60)
        with peer, suppress(ConnectionResetError):
            assert peer.recv(1) == b""
        assert server.connections == {}
        assert len(application.gone) == len(application.connections)


async def test_a_stop_ends_after_the_last_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after those of peers that read nothing: what the application uses may be closed then."""
    monkeypatch.setattr("mqtrail.net.server.CLOSE_WAIT_S", 0.05)
    async with serving() as (server, application):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(encode_command(RemotingCommand(BIG, {"size": str(15 << 20)})))
        await until(lambda: bool(application.seen))
        await server.stop()
        assert application.gone == [1]
        await hang_up(writer)


async def test_connections_have_a_limit() -> None:
    """A connection above the limit closes at once, and is logged once."""
    async with serving(config=ServerConfig(connection_count_max=1)) as (server, application):
        first = await Connection.open(server.address)
        await first.request(RemotingCommand(ECHO), 30_000)
        with capture_logs() as logs:
            assert await talk(server, b"") == b""
            assert await talk(server, b"") == b""
        assert [line["event"] for line in logs] == ["server.full"]
        assert application.gone == []
        first.close()


async def test_silent_connections_are_closed() -> None:
    """A connection without received bytes for the idle time closes."""
    async with serving(config=ServerConfig(idle_timeout_ms=80)) as (server, application):
        with capture_logs() as logs:
            assert await talk(server, encode_command(RemotingCommand(SILENT))) == b""
        assert logs[-1]["event"] == "connection.idle"
        await until(lambda: application.gone == [1])


async def test_a_port_in_use_is_reported() -> None:
    """The error for a port in use has the address and the remedy."""
    async with serving() as (server, application):
        with pytest.raises(BindError, match=rf"127.0.0.1:{server.port}: the port is in use"):
            Server(application).bind("127.0.0.1", server.port)


async def test_a_bug_in_the_application_closes_one_connection() -> None:
    """An unexpected exception is logged with its traceback and does not stop the server."""

    class Broken(Answering):
        def process(self, connection: object, buffer: bytes, start: int, end: int) -> int:
            raise KeyError("boom")

    async with serving(Broken()) as (server, application):
        with capture_logs() as logs:
            assert await talk(server, encode_command(RemotingCommand(ECHO))) == b""
        assert logs[0]["event"] == "connection.failed"
        await until(lambda: application.gone == [1])


async def test_a_frame_that_comes_in_tiny_pieces_takes_no_more_memory() -> None:
    """An object per piece would take some thirty times the bytes that `partial_size_max` counts."""
    async with serving() as (server, application):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: len(application.connections) == 1)
        (connection,) = application.connections
        stream = encode_command(RemotingCommand(ECHO, body=bytes(40_000)))[:40_000]
        tracemalloc.start()
        try:
            for start in range(0, len(stream), 2):
                connection.received(bytes(bytearray(stream[start : start + 2])))
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert server.partial_size == connection.unfinished_size == 40_000
        assert size < 3 * 40_000
        await hang_up(writer)


@pytest.mark.parametrize("host", ["x" * 70, "\u202e", "a..b"])
def test_a_host_that_no_name_can_have(host: str) -> None:
    """The resolver's encoding refuses it before the resolver does."""
    with pytest.raises(BindError, match="cannot listen on"):
        bound_socket(host, 0)
