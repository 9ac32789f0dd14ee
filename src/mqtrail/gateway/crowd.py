"""Bounds how many requests are under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from .problems import problem_response

PLACE: Final = "mqtrail.crowd"  # key of a scope


class Crowd:
    """An ASGI middleware: above count_max requests, further ones are refused with 503 and Retry-After."""

    def __init__(self, app: ASGIApp, count_max: int) -> None:
        self._app = app
        self._count_max = count_max
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._count >= self._count_max:
            detail = f"found {self._count} requests under way, expected at most {self._count_max}: try again"
            await problem_response(HTTPStatus.SERVICE_UNAVAILABLE, detail)(scope, receive, send)
            return
        self._count += 1
        try:
            await self._app({**scope, PLACE: self}, receive, send)
        finally:
            self._count -= 1

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Give a request's place to others while it waits."""
        self._count -= 1
        try:
            yield
        finally:
            self._count += 1


def resting(scope: Scope) -> AbstractContextManager[None]:
    """Return a block in which a request only waits for messages: it is not among those under way."""
    crowd: Crowd | None = scope.get(PLACE)
    return nullcontext() if crowd is None else crowd.resting()
