"""Lets only this machine's own pages and tools in: checks of Host and Origin, a bound on what a request may send.

A browser runs pages of other sites on this machine, and such a page can send requests to 127.0.0.1. Its name may even
resolve to 127.0.0.1 (DNS rebinding): then the request's Host is that name, which is refused. A page of another origin
that opens a WebSocket or posts a form names itself in Origin, which must be this server.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import problem_response

HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
BODY_SIZE_MAX: Final = 1 << 20  # bytes of a request; the API of answers reads none, pages send small events
BODY_FREE: Final = 64 * 1024  # bytes of each body that take no room


HEADERS: Final = {
    # Vue compiles the templates of the pages in the browser, which needs 'unsafe-eval'; NiceGUI's scripts are inline.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # addresses hold ids and keys; with no-referrer, forms would have no Origin
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer that does not set them itself: pages load nothing from other hosts, and no other site shows them in a
frame."""
_RAW_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class BodyRoom:
    """The memory for bodies of requests in progress, in bytes: many requests that are small enough may be too much."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._taken = 0

    def take(self, size: int) -> bool:
        """Return whether there was room; then it is taken."""
        has_room = self._taken + size <= self.size_max
        self._taken += size if has_room else 0
        return has_room

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        self._taken -= size


class LocalGuard:
    """An ASGI middleware in front of pages and APIs.

    hosts: the names that a request may address; None: any, for a server that others may reach. body_size_max: bytes
    of a request. room: for all bodies together.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str] | None = HOSTS,
        body_size_max: int = BODY_SIZE_MAX,
        room: BodyRoom | None = None,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._body_size_max = body_size_max
        self._room = room or BodyRoom(64 * body_size_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or hand it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._refusal(Headers(scope=scope))
        if refused is None:
            await self._pass(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refused[1]})
        else:
            await problem_response(*refused)(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on. A client that leaves while its body is read is no error."""
        body = _BoundedBody(receive, self._body_size_max, self._room)
        try:
            await self._app(scope, body.receive, send)
        except ClientDisconnect:
            if body.is_too_large:
                detail = f"found a body of more than {self._body_size_max} bytes, expected at most that"
                await problem_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)(scope, receive, send)
            elif body.is_without_room:
                detail = f"found bodies of {self._room.size_max} bytes in progress, expected less: try again"
                await problem_response(HTTPStatus.SERVICE_UNAVAILABLE, detail)(scope, receive, send)
        finally:
            body.close()

    def _refusal(self, headers: Headers) -> tuple[HTTPStatus, str] | None:
        host = headers.get("host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            detail = f"found the host {host[:100]!r}, expected localhost, 127.0.0.1 or [::1]: use such an address"
            return HTTPStatus.FORBIDDEN, detail
        origin = headers.get("origin")
        if origin is not None and origin_host(origin) != host.lower():
            detail = f"found a request of {origin[:100]!r}, expected this server: pages of other sites are refused"
            return HTTPStatus.FORBIDDEN, detail
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > self._body_size_max:
            detail = f"found a body of {size[:20]} bytes, expected at most {self._body_size_max}"
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail
        return None


def host_name(host: str) -> str | None:
    """Return the name or address of a Host header without its port; None if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def origin_host(origin: str) -> str | None:
    """Return `host:port` of an Origin; None if it is malformed or `null`."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            message["headers"] = headers + [pair for pair in _RAW_HEADERS if pair[0] not in names]
        await send(message)

    return with_headers


class _BoundedBody:
    """Ends a body at size_max bytes, or where there is no room: for the application, the peer has left."""

    def __init__(self, receive: Receive, size_max: int, room: BodyRoom) -> None:
        self._receive = receive
        self._size_max = size_max
        self._size = 0
        self._room = room
        self._taken = 0
        self.is_too_large = False
        self.is_without_room = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._size += len(message.get("body", b""))
        more = max(0, self._size - BODY_FREE) - self._taken
        if self._size > self._size_max:
            self.is_too_large = True
        elif not self._room.take(more):
            self.is_without_room = True
        else:
            self._taken += more
            return message
        return {"type": "http.disconnect"}

    def close(self) -> None:
        """Give the room back. The request has ended."""
        self._room.give_back(self._taken)
        self._taken = 0
