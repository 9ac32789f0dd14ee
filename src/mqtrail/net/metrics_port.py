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

log = Log()


class MetricsPort:
    """`start`, then `stop`. text: makes the answer, UTF-8."""

    def __init__(self, text: Callable[[], Awaitable[bytes]]) -> None:
        self._text = text
        self._listener: asyncio.Server | None = None
        self.address = ""

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
            await self._listener.wait_closed()
            self._listener = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            writer.write(await self._answer(head))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the peer sent no request, or does not read the answer
        except Exception:  # a fault in one metric must not close the port
            log.exception("metrics.failed")
        finally:
            writer.close()

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
