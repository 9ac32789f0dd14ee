"""The short way to the operations that applications call for each message.

FastAPI's routing and validation take longer than most of these operations. A request that needs neither is served here:
its path has one name, and there is no query. Any other goes on to FastAPI, which describes all of them and refuses what
is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .problems import Problem, problem_response

NamedOperation = Callable[[str, Request], Awaitable[Response]]
"""Serves a request. The name is that of its topic or group."""
Operation = Callable[[Request], Awaitable[Response]]

_NAMED: Final = re.compile(r"(/v1/(?:topics|groups)/)([^/\n]{1,255})(/[a-z]+)")


class ShortWay:
    """An ASGI middleware. named: operations of POST by path, with `*` for the name. exact: by the whole path."""

    def __init__(self, app: ASGIApp, named: Mapping[str, NamedOperation], exact: Mapping[str, Operation]) -> None:
        self._app = app
        self._named = named
        self._exact = exact

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or hand it on."""
        work = self._work_of(scope)
        if work is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await work(Request(scope, receive, send))
        except Problem as problem:
            response = problem_response(problem.status, problem.detail, retry_after_s=problem.retry_after_s)
        await response(scope, receive, send)

    def _work_of(self, scope: Scope) -> Operation | None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return None
        path: str = scope["path"]
        if (exact := self._exact.get(path)) is not None:
            return exact
        found = _NAMED.fullmatch(path)
        named = None if found is None else self._named.get(f"{found[1]}*{found[3]}")
        if found is None or named is None:
            return None
        name: str = found[2]
        return lambda request: named(name, request)
