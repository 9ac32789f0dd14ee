"""Adds the pages of pmq mode to a console."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import Request
from nicegui import app, ui

from mqtrail.answers.http import visitor_of

from ..frame import DeskOf, PageReader
from .backlog import backlog
from .change import change
from .failures import failures
from .groups import group, groups, members, subscriptions
from .messages import AskedMessages, count, message, messages, send
from .nodes import lock, nodes
from .reports import audit, reports, rules
from .topics import queues, topic, topics
from .view import PmqPortal, PmqView

PAGE_S: Final = 30.0  # to build a page, without its parts
Draw = Callable[[PmqView, Request], Awaitable[None]]


def add_pmq(desk_of: DeskOf, portal: PmqPortal) -> None:
    """Add all pages."""

    def word(request: Request, name: str) -> str:
        return request.query_params.get(name, "").strip()[:255]

    draws: dict[str, Draw] = {
        "": lambda view, request: backlog(view, word(request, "show")),
        "/topics": lambda view, _: topics(view),
        "/topic": lambda view, request: topic(view, word(request, "name")),
        "/queues": lambda view, request: queues(view, word(request, "topic")),
        "/nodes": lambda view, _: nodes(view),
        "/groups": lambda view, _: groups(view),
        "/group": lambda view, request: group(view, word(request, "name")),
        "/subscriptions": lambda view, request: subscriptions(view, word(request, "group"), word(request, "topic")),
        "/members": lambda view, request: members(view, word(request, "group")),
        "/messages": lambda view, request: messages(view, AskedMessages.of(request.query_params)),
        "/message": lambda view, request: message(
            view, word(request, "topic"), word(request, "queue"), word(request, "offset")
        ),
        "/count": lambda view, request: count(view, request.query_params),
        "/failures": lambda view, request: failures(
            view, word(request, "group"), word(request, "of"), word(request, "topic")
        ),
        "/reports": lambda view, _: reports(view),
        "/audit": lambda view, _: audit(view),
        "/lock": lambda view, _: lock(view),
        "/rules": lambda view, _: rules(view),
    }
    if portal.can_change:
        draws["/send"] = lambda view, request: send(view, word(request, "topic"))
        draws["/change"] = lambda view, request: change(view, request.query_params)
    for path, draw in draws.items():
        _add_page(f"/pmq{path}", draw, desk_of, portal)
    app.on_shutdown(portal.changes.close)


def _add_page(path: str, draw: Draw, desk_of: DeskOf, portal: PmqPortal) -> None:
    @ui.page(path, response_timeout=PAGE_S)
    async def page(request: Request) -> None:
        view = PmqView(desk_of(request).of(request), PageReader.of(request), portal, visitor_of(request))
        await draw(view, request)
