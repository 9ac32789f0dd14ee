"""Bounds how many requests are under way."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from .problems import problem_response


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
            await self._app(scope, receive, send)
        finally:
            self._count -= 1
