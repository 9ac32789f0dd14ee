"""uvicorn with bounds on what a connection may send and how long it may take. It has none by itself.

    HEAD_SIZE_MAX    bytes of a request's line and headers, of a chunk's head, of trailers
    REQUEST_S        for a whole request, from its first byte; for the first one from the connection's start
    UNREAD_S         for the peer to read something of an answer
    UNREAD_SIZE_MAX  bytes of answers that wait to be read, of all connections
    MESSAGE_SIZE_MAX bytes of a message on a WebSocket

h11 parses, also if httptools is installed: that one takes headers of any size, and makes an object for each of the
thousands of requests that one read may bring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .shares import AddressShares

HEAD_SIZE_MAX: Final = 64 * 1024
REQUEST_S: Final = 60.0
UNREAD_S: Final = 60.0
UNREAD_SIZE_MAX: Final = 256 << 20
MESSAGE_SIZE_MAX: Final = 1 << 20
MESSAGES_MAX: Final = 4  # of a WebSocket, that wait to be read
KEEP_ALIVE_S: Final = 60
CLOSE_S: Final = 5  # for requests under way when the server stops
BACKLOG: Final = 1_024


class _ConnectionTimer:
    """Calls act some seconds after its start, unless it is stopped before."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self, act: Callable[[], None]) -> None:
        """Start, unless it runs."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end, act)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, act: Callable[[], None]) -> None:
        self._timer = None
        act()


class _UnreadAnswers:
    """The answers of this process that wait to be read. Above UNREAD_SIZE_MAX the connection with the most ends."""

    def __init__(self) -> None:
        self._sizes: dict[asyncio.Transport, int] = {}

    def add(self, transport: asyncio.Transport) -> None:
        """Note what waits for a peer. A single answer may be of any size."""
        self._sizes[transport] = transport.get_write_buffer_size()
        while len(self._sizes) > 1 and sum(self._sizes.values()) > UNREAD_SIZE_MAX:
            largest = max(self._sizes, key=lambda one: self._sizes[one])
            del self._sizes[largest]
            largest.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Note that nothing waits for a peer any more."""
        self._sizes.pop(transport, None)


_unread = _UnreadAnswers()
_DETAIL: Final = b"found too many connections of this address, expected fewer: close some; a proxy: http_proxies"
_BODY: Final = b'{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"%b"}' % _DETAIL
NO_PLACE: Final = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
"""What a connection beyond the share of its address gets at once, before it is closed."""


class BoundedHttp(H11Protocol):
    """One connection. uvicorn closes it between requests, after KEEP_ALIVE_S. shares: of connections."""

    def __init__(self, *args: Any, shares: AddressShares | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._shares = shares
        self._ip: str | None = None  # that has taken a place
        self._is_refused = False
        self._request_end = _ConnectionTimer(REQUEST_S)
        self._unread_end = _ConnectionTimer(UNREAD_S)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._shares is not None:
            ip = str((transport.get_extra_info("peername") or ("",))[0])
            if not self._shares.take(ip):
                self._is_refused = True
                cast(asyncio.Transport, transport).write(NO_PLACE)
                cast(asyncio.Transport, transport).close()
                return
            self._ip = ip
        super().connection_made(cast(asyncio.Transport, transport))
        self._request_end.start(self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_refused:
            return
        if self._shares is not None and self._ip is not None:
            self._shares.give_back(self._ip)
        self._request_end.stop()
        self._unread_end.stop()
        _unread.remove(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_request()  # the next one may have begun

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self._request_end.stop()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._request_end.stop()
        super().handle_websocket_upgrade(event)

    def _watch_request(self) -> None:
        """Start the time of a request that is not whole; stop it if there is none."""
        if self.transport.get_protocol() is not self or self.transport.is_closing():
            return
        state = self.conn.their_state
        if state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0]):
            self._request_end.start(self.transport.abort)
        else:
            self._request_end.stop()

    def pause_writing(self) -> None:
        super().pause_writing()
        _unread.add(self.transport)
        self._watch_unread(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._unread_end.stop()
        _unread.remove(self.transport)
        super().resume_writing()

    def _watch_unread(self, size: int) -> None:
        """Close the connection if the peer reads nothing of size bytes."""

        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left < size:
                self._watch_unread(left)
            else:
                self.transport.abort()

        self._unread_end.start(look)


def http_settings(
    app: ASGIApp | Callable[..., Any], connections_max: int, *, websockets: bool, shares: AddressShares | None = None
) -> uvicorn.Config:
    """Return the settings of a server for an application: no log of its own, these bounds. shares: of connections."""
    return uvicorn.Config(
        app,
        http=cast(Any, BoundedHttp if shares is None else partial(BoundedHttp, shares=shares)),
        ws="auto" if websockets else "none",
        ws_max_size=MESSAGE_SIZE_MAX,
        ws_max_queue=MESSAGES_MAX,
        h11_max_incomplete_event_size=HEAD_SIZE_MAX,
        limit_concurrency=connections_max,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # any client can set them; the console reads those of the proxies that it trusts
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_S,
    )
