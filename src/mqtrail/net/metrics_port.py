"""The port for Prometheus: GET /metrics returns the text that its owner supplies. Each connection serves one request.

Source: Prometheus text exposition format 0.0.4.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from .address import join_address
from .log import Log
from .server import BindError

REQUEST_SIZE_MAX: Final = 8 * 1024
REQUEST_TIMEOUT_S: Final = 5.0  # for the peer to send its request, and again to receive the answer
CONNECTIONS_MAX: Final = 100  # above it the oldest one is closed, which waits for its peer

log = Log()


class MetricsPort:
    """`start`, then `stop`. text: makes the answer, UTF-8."""

    def __init__(self, text: Callable[[], Awaitable[bytes]]) -> None:
        self._text = text
        self._listener: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self.address = ""

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._open)

    async def start(self, host: str, port: int) -> None:
        """Open the port; 0: any free one, see `address`. BindError."""
        try:
            self._listener = await asyncio.start_server(self._serve, host, port, limit=REQUEST_SIZE_MAX)
        except OSError as error:
            raise BindError(
                f"cannot listen on {join_address(host, port)} for metrics: {error.strerror or error}; choose another "
                "--metrics-port"
            ) from error
        self.address = join_address(host, self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port."""
        if self._listener is not None:
            self._listener.close()
            for writer in self._open:
                writer.transport.abort()
            await self._listener.wait_closed()
            self._listener = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._admit(writer)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await self._answer(head))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.drain()
            writer.close()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the peer sent no request, or does not read the answer
        except Exception:  # a fault in one metric must not close the port
            log.exception("metrics.failed")
        finally:
            del self._open[writer]
            if not writer.is_closing():
                writer.transport.abort()  # `close` would keep the socket and an unread answer until the peer reads

    def _admit(self, writer: asyncio.StreamWriter) -> None:
        """Count a connection; `drain` waits until all of its answer is sent."""
        writer.transport.set_write_buffer_limits(high=0)
        if len(self._open) >= CONNECTIONS_MAX:
            next(iter(self._open)).transport.abort()
        self._open[writer] = None

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _reply(b"405 Method Not Allowed", b"found another method, expected GET /metrics\n")
        if path not in (b"/metrics", b"/"):
            return _reply(b"404 Not Found", b"expected /metrics\n")
        return _reply(b"200 OK", await self._text(), with_body=method == b"GET")


def _reply(status: bytes, body: bytes, *, with_body: bool = True) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n" % (
        status,
        len(body),
    )
    return head + b"Connection: close\r\n\r\n" + (body if with_body else b"")
