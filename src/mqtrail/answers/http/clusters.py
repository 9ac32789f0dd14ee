"""Several clusters in one HTTP API: each has the whole API below `/c/NAME`, with sources, workers and files of its own.

A cluster that does not answer holds up its own workers alone. An API is made by the first request to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mqtrail import __version__
from mqtrail.gateway import (
    HOSTS,
    RESPONSES,
    DescribedApi,
    LocalGuard,
    Problem,
    VisibleJson,
    add_problems,
    described,
    problem_response,
)
from mqtrail.wire import MQError

from ..access import AccessDesk
from ..changes import ClusterChanges
from ..handling import HandledIncidents
from ..sources import Sources
from .api import make_api
from .changes import Changing
from .chosen import CLUSTERS_PREFIX, ChosenCluster, ClusterList, NamedCluster, chosen_of, chosen_scope
from .door import API_PREFIX, AccessDoor, add_me, visitor_of
from .problems import problem_of
from .workers import Workers

OF_ALL: Final = (
    *("/api/", "/openapi.json", "/_nicegui"),
    *("/login", "/logout", "/account", "/preferences", "/favicon.ico"),
)
"""Paths that belong to no single cluster: they need no `/c/NAME`."""


@dataclass(frozen=True, slots=True)
class ClustersAnswer:
    """The clusters in which who asks has a role. Each has its API below `/c/NAME/api/v1`."""

    clusters: tuple[NamedCluster, ...]


class ServedCluster:
    """One cluster of a console: what its pages and its API answer from. Call `ask` from one event loop."""

    def __init__(
        self,
        label: NamedCluster,
        sources: Sources,
        *,
        alerts: Path,
        searches: Path,
        changes: ClusterChanges | None = None,
        handled: HandledIncidents | None = None,
    ) -> None:
        """alerts: the file of `mqtrail alerts run`. searches: the file of saved searches."""
        self.label = label
        self.sources = sources
        self.alerts = alerts
        self.searches = searches
        self.handled = handled
        self.workers = Workers()
        self.changing = None if changes is None else Changing(changes)
        self._api: FastAPI | None = None

    def api(self, access: AccessDesk | None) -> FastAPI:
        """Return its API."""
        if self._api is None:
            self._api = make_api(self.sources, self.workers, self.changing, access, self.alerts, self.handled)
        return self._api

    def close(self) -> None:
        """Close its connections, its lake and its threads."""
        self.workers.close()
        self.sources.close()
        if self.changing is not None:
            self.changing.close()


class ServedClusters:
    """The clusters of a console. access: the accounts of all of them."""

    def __init__(self, clusters: Sequence[ServedCluster], access: AccessDesk | None = None) -> None:
        self.all = tuple(clusters)
        self.access = access
        self.list = ClusterList(tuple(one.label for one in clusters))
        self._by_name = {one.label.name: one for one in clusters}

    def named(self, name: str) -> ServedCluster | None:
        """Return a cluster; None: there is none of this name."""
        return self._by_name.get(name)

    def close(self) -> None:
        """Close all."""
        for one in self.all:
            one.close()
        if self.access is not None:
            self.access.close()


def make_clusters_api(clusters: ServedClusters) -> FastAPI:
    """Return the application of what is not of one cluster. Wrap it in `ClusterPaths` last."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        clusters.close()

    access = clusters.access
    about = (
        f"The clusters of this console. Each has an API of its own, described by {CLUSTERS_PREFIX}NAME/openapi.json."
    )
    app = DescribedApi(title="mqtrail", version=__version__, description=about, lifespan=life)
    responses = RESPONSES if access is None else RESPONSES | described(HTTPStatus.UNAUTHORIZED)
    router = APIRouter(prefix=API_PREFIX, responses=responses, default_response_class=VisibleJson)
    add_me(router)

    @router.get("/clusters", summary="The clusters of this console in which the user has a role")
    async def known(request: Request) -> ClustersAnswer:
        try:
            return ClustersAnswer(clusters.list.seen_by(visitor_of(request).now()))
        except MQError as error:
            raise problem_of(error) from error

    app.include_router(router)
    add_problems(app)
    app.add_middleware(FirstCluster, clusters=clusters)
    app.add_middleware(AccessDoor, access=access)
    app.add_middleware(LocalGuard, hosts=HOSTS if access is None else HOSTS | access.config.hosts)
    return app


class ClusterPaths:
    """An ASGI middleware in front of all others: it reads `/c/NAME`, and hands requests to the cluster's API."""

    def __init__(self, app: ASGIApp, clusters: ServedClusters) -> None:
        self._app = app
        self._clusters = clusters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on."""
        name, slash, rest = _split(scope)
        cluster = self._clusters.named(name) if slash else None
        if cluster is None:
            await self._app(scope, receive, send)
            return
        inner = chosen_scope(scope, ChosenCluster(name, self._clusters.list))
        is_api = rest.startswith("api/") or rest == "openapi.json"
        app = cluster.api(self._clusters.access) if is_api else self._app
        await app(inner, receive, send)


class FirstCluster:
    """An ASGI middleware behind the door: a page without `/c/NAME` leads to that of the visitor's first cluster."""

    def __init__(self, app: ASGIApp, clusters: ServedClusters) -> None:
        self._app = app
        self._clusters = clusters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, lead it elsewhere, or refuse it."""
        path = scope.get("path", "")
        is_answered = scope["type"] != "http" or chosen_of(scope) is not None
        if is_answered or (path.startswith(OF_ALL) and not self._is_api_of_one(path)):
            await self._app(scope, receive, send)
            return
        answer: Response
        try:
            if scope["method"] not in ("GET", "HEAD"):
                raise Problem(
                    HTTPStatus.NOT_FOUND, f"found no cluster in the path, expected {CLUSTERS_PREFIX}NAME before it"
                )
            answer = self._lead(HTTPConnection(scope), path)
        except Problem as problem:
            answer = problem_response(problem.status, problem.detail)
        await answer(scope, receive, send)

    def _is_api_of_one(self, path: str) -> bool:
        return path.startswith("/api/") and path not in (f"{API_PREFIX}/clusters", f"{API_PREFIX}/me")

    def _lead(self, request: HTTPConnection, path: str) -> RedirectResponse:
        if path.startswith("/api/"):
            expected = f"{CLUSTERS_PREFIX}NAME{API_PREFIX}/… with a NAME of {API_PREFIX}/clusters"
            raise Problem(HTTPStatus.NOT_FOUND, f"found no cluster in the path, expected {expected}")
        try:
            seen = self._clusters.list.seen_by(visitor_of(request).now())
        except MQError as error:
            raise problem_of(error) from error
        name, slash, _ = _split(request.scope)
        if path.startswith(CLUSTERS_PREFIX) and (slash or name not in [one.name for one in seen]):
            raise Problem(HTTPStatus.NOT_FOUND, f"found no cluster {name[:80]!r}: {API_PREFIX}/clusters names them")
        if not seen:
            raise Problem(HTTPStatus.FORBIDDEN, "found no role in any cluster, expected one: ask an administrator")
        to = f"{CLUSTERS_PREFIX}{seen[0].name}{path}" if not path.startswith(CLUSTERS_PREFIX) else f"{path}/"
        return RedirectResponse(quote(to) + (f"?{request.url.query}" if request.url.query else ""))


def _split(scope: Scope) -> tuple[str, str, str]:
    """Return NAME, `/` and the rest of a path that begins with `/c/NAME/`; '' for what is not there."""
    path = str(scope.get("path", ""))
    return path.removeprefix(CLUSTERS_PREFIX).partition("/") if path.startswith(CLUSTERS_PREFIX) else ("", "", "")
