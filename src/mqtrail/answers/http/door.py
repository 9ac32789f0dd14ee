"""The door in front of pages and API: it rejects unknown users, and attaches its visitor to each request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mqtrail.gateway import Problem, problem_response
from mqtrail.wire import MQError

from ..access import LOCAL, AccessDesk, SeenSources, Visitor
from ..changes import Actor
from .chosen import chosen_of, path_within
from .problems import problem_of

API_PREFIX: Final = "/api/v1"
CSRF_HEADER: Final = "x-csrf-token"
LOGIN: Final = "/login"
PROVIDER: Final = "/login/provider"
PUBLIC: Final = (LOGIN, "/login/first", f"{PROVIDER}/begin", f"{PROVIDER}/back", "/login.css")
SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")


def cookie_name(access: AccessDesk) -> str:
    """Return the name of the session's cookie. __Host-: browsers take it by HTTPS from this very host alone."""
    return "__Host-mqtrail" if access.config.is_secure else "mqtrail-session"


def visitor_of(request: HTTPConnection) -> Visitor:
    """Return who sent a request that passed the door."""
    found = request.state.visitor
    assert isinstance(found, Visitor), "no request without a visitor"
    return found


def actor_of(request: HTTPConnection, door: str) -> Actor:
    """Return who asks, for the audit log. SignedOut."""
    visitor = visitor_of(request)
    return Actor(visitor.now().name, visitor.address, door)


def seen_by(request: Request) -> SeenSources:
    """Return the sources as the sender of a request sees them."""
    sources = request.app.state.seen
    assert isinstance(sources, SeenSources), "make_api sets it"
    return SeenSources(sources.sources, sources.names, visitor_of(request).now)


Seen = Annotated[SeenSources, Depends(seen_by)]


@dataclass(frozen=True, slots=True)
class Me:
    """Who asks. name: '' without accounts. csrf: what a program that uses a session's cookie sends in X-CSRF-Token."""

    name: str
    roles: tuple[str, ...]
    csrf: str


def add_me(router: APIRouter) -> None:
    """Add the operation that says who asks."""

    @router.get("/me", summary="The user who sends the request, and its roles")
    async def me(request: Request) -> Me:
        visitor = visitor_of(request)
        try:
            person = visitor.now()
        except MQError as error:
            raise problem_of(error) from error
        return Me(person.name, tuple(map(str, person.grants)), visitor.csrf)


class AccessDoor:
    """An ASGI middleware. access: None: there are no accounts, anyone who reaches the door may do everything."""

    def __init__(self, app: ASGIApp, access: AccessDesk | None) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on with its visitor, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        try:
            visitor = self._visitor(request)
            if visitor is None and path_within(scope) not in PUBLIC:
                raise Problem(HTTPStatus.UNAUTHORIZED, "found no log-in, expected a session or `Authorization: Bearer`")
            _check_origin(request, visitor)
            if visitor is not None and (chosen := chosen_of(scope)) is not None:
                visitor = chosen.enter(visitor)
        except Problem as problem:
            await _refuse(problem, request, receive, send)
            return
        if visitor is not None:
            scope["state"] = {**scope.get("state", {}), "visitor": visitor}
        await self._app(scope, receive, send)

    def _visitor(self, request: HTTPConnection) -> Visitor | None:
        peer = request.client.host if request.client else ""
        access = self._access
        if access is None:
            return Visitor(lambda: LOCAL, peer)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        try:
            return access.visitor(
                peer,
                access.address_of(peer, forwarded_for(request)),
                cookie=request.cookies.get(cookie_name(access), ""),
                bearer=bearer.strip() if scheme.lower() == "bearer" else "",
                proxied=_named_by_proxy(request, access.config.proxy_header),
            )
        except MQError as error:
            raise problem_of(error) from error


def forwarded_for(request: HTTPConnection) -> str:
    """Return all headers X-Forwarded-For as one: HAProxy adds a line of its own to those of the client."""
    return ",".join(request.headers.getlist("x-forwarded-for"))


def _named_by_proxy(request: HTTPConnection, header: str) -> str:
    """Return the user in a proxy's header. '': there is no such header, or several: the proxy kept the client's."""
    found = request.headers.getlist(header) if header else []
    return found[0] if len(found) == 1 else ""


def _check_origin(request: HTTPConnection, visitor: Visitor | None) -> None:
    """Refuse changes that another site may have a browser send. The guard compared an Origin with this server."""
    if request.scope.get("method", "GET") in SAFE_METHODS or (visitor is not None and not visitor.is_ambient):
        return
    if "origin" not in request.headers:
        raise Problem(HTTPStatus.FORBIDDEN, "found no Origin, expected the one of this server: use an API token")
    if visitor is None or not visitor.csrf or not path_within(request.scope).startswith(API_PREFIX):
        return
    if not secrets.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), visitor.csrf.encode()):
        raise Problem(HTTPStatus.FORBIDDEN, f"found another {CSRF_HEADER}, expected `csrf` of {API_PREFIX}/me")


async def _refuse(problem: Problem, request: HTTPConnection, receive: Receive, send: Send) -> None:
    scope = request.scope
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": problem.detail})
        return
    is_page = not path_within(scope).startswith(("/api/", "/openapi.json", "/_nicegui"))
    answer: Response
    if problem.status is HTTPStatus.UNAUTHORIZED and is_page and scope["method"] == "GET":
        to = scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        answer = RedirectResponse(LOGIN + ("" if to == "/" else f"?to={quote(to)}"), HTTPStatus.SEE_OTHER)
    else:
        answer = problem_response(problem.status, problem.detail)
        if problem.status is HTTPStatus.UNAUTHORIZED:
            answer.headers["WWW-Authenticate"] = "Bearer"
    await answer(scope, receive, send)
