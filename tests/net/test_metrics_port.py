"""The port for Prometheus, with peers that do not read replies or send no request."""

import asyncio

import pytest

from mqtrail.net import MetricsPort, metrics_port, split_address
from tests.waiting import until

SIZE = 16 << 20  # bytes of an answer, more than any socket's buffers hold


async def text() -> bytes:
    return b"x" * SIZE


async def received(reader: asyncio.StreamReader) -> int:
    """Return the number of bytes before the end or a reset."""
    size = 0
    try:
        while data := await reader.read(1 << 20):
            size += len(data)
    except ConnectionError:
        pass
    return size


async def test_an_unread_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed too. Otherwise each would keep a socket and the reply for as long as the peer likes."""
    monkeypatch.setattr(metrics_port, "REQUEST_TIMEOUT_S", 0.2)
    port = MetricsPort(text)
    await port.start("127.0.0.1", 0)
    host, number = split_address(port.address)
    reader, writer = await asyncio.open_connection(host, number)
    assert isinstance(writer.transport, asyncio.Transport)
    writer.transport.pause_reading()
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await until(lambda: port.connection_count == 1)
    await until(lambda: port.connection_count == 0)
    writer.transport.resume_reading()
    assert await received(reader) < SIZE
    writer.close()
    await port.stop()


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest connection is closed: a scraper is served while others hold as many connections as they can."""
    monkeypatch.setattr(metrics_port, "REQUEST_TIMEOUT_S", 60.0)
    monkeypatch.setattr(metrics_port, "CONNECTIONS_MAX", 3)
    port = MetricsPort(text)
    await port.start("127.0.0.1", 0)
    host, number = split_address(port.address)
    idle = [await asyncio.open_connection(host, number) for _ in range(6)]
    reader, writer = await asyncio.open_connection(host, number)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert await received(reader) > SIZE
    assert [await received(one) for one, _ in idle[:4]] == [0] * 4
    assert port.connection_count <= 3
    for _, other in [*idle, (reader, writer)]:
        other.transport.abort()
    await until(lambda: port.connection_count == 0)
    await port.stop()


async def test_a_stopped_port_has_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes connections that wait for a request."""
    monkeypatch.setattr(metrics_port, "REQUEST_TIMEOUT_S", 60.0)
    port = MetricsPort(text)
    await port.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*split_address(port.address))
    await until(lambda: port.connection_count == 1)
    await port.stop()
    assert await received(reader) == 0
    writer.close()
