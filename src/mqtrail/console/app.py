"""The application: the HTTP API, and the pages in front of it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

os.environ.setdefault("NICEGUI_STORAGE_PATH", os.devnull)  # the console stores nothing

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse
from nicegui import ui

from mqtrail.answers import DeadLetterConditions, LatencySegment, Sources
from mqtrail.answers.access import SEARCHES_FILE, AccessDesk, KnownClusters, SavedSearches, SeenSources
from mqtrail.answers.alerts import ALERTS_FILE
from mqtrail.answers.changes import ClusterChanges
from mqtrail.answers.handling import HandledIncidents
from mqtrail.answers.http import (
    Changing,
    ClusterPaths,
    ServedClusters,
    Workers,
    actor_of,
    chosen_of,
    make_api,
    make_clusters_api,
)

from .alerts import alerts
from .audit import audit
from .broker import broker
from .broker_access import broker_access
from .change import change
from .client import client
from .cluster import cluster
from .dead_letters import dead_letters
from .delayed import delayed
from .edit import edit
from .frame import THEMES, Desk, DeskOf, PageReader, serve_pages
from .groups import group, groups
from .home import home
from .incident import incident
from .incidents import incidents
from .latency import AskedSpans, latency
from .login import add_login
from .message import message
from .name_servers import name_servers
from .nonces import CompressedFiles, NoncedScripts
from .pipeline import pipeline
from .pmq import PmqPortal, add_pmq
from .pops import pops
from .replication import replication
from .saved import add_saved
from .search import search
from .stored import stored
from .texts import Language
from .topic import topic
from .transactions import transactions
from .verdicts import verdicts

CHOICE_S: Final = 365 * 24 * 3600
SKIP_MAX: Final = 1_000_000_000
PAGE_S: Final = 30.0  # to build a page, without its parts


def make_console(
    sources: Sources,
    changes: ClusterChanges | None = None,
    access: AccessDesk | None = None,
    alerts: Path = Path(ALERTS_FILE),
    searches: Path = Path(SEARCHES_FILE),
    handled: HandledIncidents | None = None,
    pmq: PmqPortal | None = None,
) -> FastAPI:
    """Return the application. NiceGUI keeps its pages in the process, so there is one console in a process.

    changes: readers may change the cluster. access: the accounts; None: anyone who can connect may do everything.
    alerts: the file of `mqtrail alerts run`. searches: the file of saved searches. handled: the acknowledged and muted
    incidents; None: unknown. pmq: a door whose pages are served too, alone if there is neither lake nor cluster.
    """
    workers = Workers()
    changing = None if changes is None else Changing(changes)
    app = make_api(sources, workers, changing, access, alerts, handled)
    desk = Desk(app.state.seen, workers, changing, alerts, SavedSearches(searches), handled)
    is_alone = pmq is not None and sources.lake is None and not sources.namesrv
    serve_pages(pmq=pmq is not None, others=not is_alone)
    if pmq is not None:
        add_pmq(lambda _: desk, pmq)
    if is_alone:
        app.add_api_route("/", _to_pmq, include_in_schema=False)
    _add_console(app, lambda _: desk, access, can_change=changing is not None, has_pages=not is_alone)
    return app


def make_clusters_console(clusters: ServedClusters) -> FastAPI:
    """Return the application of several clusters: each has its pages and its API below `/c/NAME`."""
    serve_pages(pmq=False)
    app = make_clusters_api(clusters)
    desks = {
        one.label.name: Desk(
            SeenSources(one.sources, KnownClusters(one.sources)),
            one.workers,
            one.changing,
            one.alerts,
            SavedSearches(one.searches),
            one.handled,
        )
        for one in clusters.all
    }

    def desk_of(request: Request) -> Desk:
        chosen = chosen_of(request.scope)
        assert chosen is not None, "FirstCluster leads such a request to a cluster"
        return desks[chosen.name]

    _add_console(app, desk_of, clusters.access, can_change=any(one.changing is not None for one in clusters.all))
    app.add_middleware(ClusterPaths, clusters=clusters)
    return app


def _add_console(
    app: FastAPI, desk_of: DeskOf, access: AccessDesk | None, *, can_change: bool, has_pages: bool = True
) -> None:
    """Add pages, forms and log-in to an application with an API. has_pages: those of lakes and clusters."""
    if has_pages:
        _add_pages(desk_of)
        add_saved(app, desk_of)
    if can_change:
        _add_changes(desk_of)
    app.add_api_route("/preferences", preferences, include_in_schema=False)
    if access is not None:
        add_login(app, access)
    ui.run_with(
        app, title="mqtrail", dark=None, tailwind=False, show_welcome_message=False, gzip_middleware_factory=None
    )
    app.add_middleware(NoncedScripts)
    app.add_middleware(CompressedFiles)


def _add_pages(desk_of: DeskOf) -> None:
    """Add all pages: those without parameters, those of one object, and the rest."""
    for path, draw in (
        ("/", home),
        ("/incidents", incidents),
        ("/groups", groups),
        ("/cluster", cluster),
        ("/replication", replication),
        ("/name-servers", name_servers),
        ("/broker-access", broker_access),
        ("/delayed", delayed),
        ("/transactions", transactions),
        ("/pops", pops),
        ("/alerts", alerts),
        ("/pipeline", pipeline),
        ("/verdicts", verdicts),
    ):
        _add_page(desk_of, path, draw)
    for path, draw_named in (("/group", group), ("/topic", topic), ("/broker", broker)):
        _add_named_page(desk_of, path, draw_named)

    @ui.page("/search", response_timeout=PAGE_S)
    async def search_page(request: Request, q: str = "", skip: int = 0, unsaved: str = "") -> None:
        await search(desk_of(request).of(request), PageReader.of(request), q, max(0, min(skip, SKIP_MAX)), unsaved)

    @ui.page("/message", response_timeout=PAGE_S)
    async def message_page(request: Request, id: str = "") -> None:
        await message(desk_of(request).of(request), PageReader.of(request), id.strip()[:1_000])

    @ui.page("/dead-letters", response_timeout=PAGE_S)
    async def dead_letters_page(
        request: Request, group: str = "", topic: str = "", error: str | None = None, skip: int = 0
    ) -> None:
        cut = None if error is None else error[:255]
        first = max(0, min(skip, SKIP_MAX))
        wanted = DeadLetterConditions(group_name=group[:255], topic=topic[:255], error=cut, skip=first)
        await dead_letters(desk_of(request).of(request), PageReader.of(request), wanted)

    @ui.page("/client", response_timeout=PAGE_S)
    async def client_page(request: Request, group: str = "", id: str = "") -> None:
        await client(desk_of(request).of(request), PageReader.of(request), group[:255], id[:1_000])

    @ui.page("/incident", response_timeout=PAGE_S)
    async def incident_page(request: Request, id: str = "") -> None:
        await incident(desk_of(request).of(request), PageReader.of(request), id.strip()[:64], actor_of(request, "page"))

    @ui.page("/stored", response_timeout=PAGE_S)
    async def stored_page(request: Request, evidence: str = "") -> None:
        await stored(desk_of(request).of(request), PageReader.of(request), evidence.strip()[:1_000])

    @ui.page("/latency", response_timeout=PAGE_S)
    async def latency_page(request: Request, part: LatencySegment = LatencySegment.HANDLER) -> None:
        asked = AskedSpans(*(request.query_params.get(name, "")[:32] for name in ("from", "to", "against")))
        await latency(desk_of(request).of(request), PageReader.of(request), part, asked)


def _add_page(desk_of: DeskOf, path: str, draw: Callable[[Desk, PageReader], Awaitable[None]]) -> None:
    @ui.page(path, response_timeout=PAGE_S)
    async def page(request: Request) -> None:
        await draw(desk_of(request).of(request), PageReader.of(request))


def _add_named_page(desk_of: DeskOf, path: str, draw: Callable[[Desk, PageReader, str], Awaitable[None]]) -> None:
    @ui.page(path, response_timeout=PAGE_S)
    async def page(request: Request, name: str = "") -> None:
        await draw(desk_of(request).of(request), PageReader.of(request), name[:255])


def _add_changes(desk_of: DeskOf) -> None:
    def changing_of(request: Request) -> Changing:
        """Return what changes the cluster, also if the reader may not: then it refuses."""
        found = desk_of(request).changing
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "found a lake alone, expected a cluster that can be changed")
        return found

    @ui.page("/change", response_timeout=PAGE_S)
    async def change_page(request: Request) -> None:
        changing, reader = changing_of(request), PageReader.of(request)
        await change(desk_of(request).of(request), changing, reader, request.query_params, actor_of(request, "page"))

    @ui.page("/edit", response_timeout=PAGE_S)
    async def edit_page(request: Request, group: str = "", place: str = "", id: str = "") -> None:
        changing, reader = changing_of(request), PageReader.of(request)
        asked = (group[:255], place.strip()[:1_000], id.strip()[:1_000])
        await edit(desk_of(request).of(request), changing, reader, asked, actor_of(request, "page"))

    @ui.page("/audit", response_timeout=PAGE_S)
    async def audit_page(request: Request) -> None:
        await audit(desk_of(request).of(request), changing_of(request), PageReader.of(request))


async def _to_pmq() -> RedirectResponse:
    """Lead from the first page to that of pmq mode."""
    return RedirectResponse("/pmq", 303)


async def preferences(to: str = "/", language: str = "", theme: str = "") -> RedirectResponse:
    """Keep the reader's language or theme in a cookie, and go back to a page of this server."""
    is_ours = to.startswith("/") and not to.startswith(("//", "/\\"))
    answer = RedirectResponse(to if is_ours else "/", 303)
    if language in [one.value for one in Language]:
        answer.set_cookie("mqtrail-language", language, CHOICE_S, samesite="strict", httponly=True)
    if theme in THEMES:
        answer.set_cookie("mqtrail-theme", theme, CHOICE_S, samesite="strict", httponly=True)
    return answer
