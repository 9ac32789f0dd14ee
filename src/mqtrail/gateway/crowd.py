"""Limits the number of requests in progress, of all clients and of one address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mqtrail.wire import OWN_HOST

from .problems import problem_response
from .shares import AddressShares

PLACE: Final = "mqtrail.crowd"  # key of a scope


class Crowd:
    """An ASGI middleware: above count_max requests, further ones are refused with 503 and Retry-After, and above the
    share of their address with 429."""

    def __init__(self, app: ASGIApp, count_max: int, shares: AddressShares | None = None) -> None:
        self._app = app
        self._count_max = count_max
        self._shares = shares or AddressShares(count_max)
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._count >= self._count_max:
            detail = f"found {self._count} requests in progress, expected at most {self._count_max}: try again"
            await problem_response(HTTPStatus.SERVICE_UNAVAILABLE, detail)(scope, receive, send)
            return
        ip = ip_of(scope)
        if not self._shares.take(ip):
            detail = (
                f"found {self._shares.count_max} requests of {ip} in progress, expected at most the limit of one "
                "address: try again; if it is a proxy, name it in http_proxies"
            )
            await problem_response(HTTPStatus.TOO_MANY_REQUESTS, detail)(scope, receive, send)
            return
        self._count += 1
        try:
            await self._app({**scope, PLACE: self}, receive, send)
        finally:
            self._count -= 1
            self._shares.give_back(ip)

    @contextmanager
    def resting(self, ip: str) -> Iterator[None]:
        """Give the place of a request of an address to others while it waits."""
        self._count -= 1
        self._shares.give_back(ip)
        try:
            yield
        finally:
            self._count += 1
            self._shares.add(ip)


def ip_of(scope: Scope) -> str:
    """Return the address of a request's client."""
    client: tuple[str, int] | None = scope.get("client")
    return OWN_HOST.ip if client is None else client[0]


def resting(scope: Scope) -> AbstractContextManager[None]:
    """Return a block in which a request only waits for messages: it is not among those under way."""
    crowd: Crowd | None = scope.get(PLACE)
    return nullcontext() if crowd is None else crowd.resting(ip_of(scope))
