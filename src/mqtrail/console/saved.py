"""Searches that a person saved: their list on the page Search, and the forms that save and remove one."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response

from mqtrail.answers import TEXT_SIZE_MAX
from mqtrail.answers.access import SEARCH_NAME_SIZE_MAX, InvalidSearch, NotSaved, SavedSearch
from mqtrail.answers.http import visitor_of
from mqtrail.clock import now_ms
from mqtrail.gateway import Problem

from .frame import Desk, DeskOf, PagePart, PageReader, link, tag

PATH: Final = "/saved-searches"
FIELDS_MAX: Final = 5  # of a form


def add_saved(app: FastAPI, desk_of: DeskOf) -> None:
    """Add where the forms of the page go. It is outside the API's description."""

    async def change(request: Request) -> Response:
        """Save or remove a search of who asks, and lead back to the search."""
        visitor, desk = visitor_of(request), desk_of(request)
        saved = desk.searches
        assert saved is not None, "a console has a file for them"
        form = await request.form(max_files=0, max_fields=FIELDS_MAX)
        fields = {name: one for name in ("action", "name", "q", "csrf") if isinstance(one := form.get(name, ""), str)}
        csrf, name, query = (fields.get(one, "") for one in ("csrf", "name", "q"))
        if not secrets.compare_digest(csrf.encode(), visitor.csrf.encode()):
            raise Problem(HTTPStatus.FORBIDDEN, "found a form of another session: load the page again")

        def ask() -> None:
            person = visitor.now().name
            if fields.get("action") == "remove":
                saved.remove(person, name)
            else:
                saved.save(person, name, query, now_ms())

        back = {"q": query[:TEXT_SIZE_MAX]}
        try:
            await desk.workers.run(ask)
        except Problem as problem:
            if not isinstance(problem.__cause__, InvalidSearch):
                raise
            back["unsaved"] = problem.__cause__.why.value
        return RedirectResponse(
            f"{PageReader.of(request).root}/search?{urlencode(back, quote_via=quote)}", HTTPStatus.SEE_OTHER
        )

    app.add_api_route(PATH, change, methods=["POST"], include_in_schema=False, response_model=None)


async def show_saved(desk: Desk, reader: PageReader, part: PagePart, query: str, unsaved: str) -> None:
    """Load and draw the list, and a form that saves the query. unsaved: why the last one was not; '': it was."""
    saved = desk.searches
    assert saved is not None, "the page has no such part"
    await part.show(lambda: saved.of(desk.sources.now().name), lambda own: _draw(reader, own, query, unsaved))


def _draw(reader: PageReader, own: tuple[SavedSearch, ...], query: str, unsaved: str) -> None:
    if unsaved in [one.value for one in NotSaved]:
        with tag("div", classes="problem", role="alert"):
            tag("p", reader.say(f"unsaved_{unsaved}"))
    with tag("details", **({"open": ""} if unsaved else {})):
        tag("summary", f"{reader.say('saved_searches')} ({len(own)})")
        if not own:
            tag("p", reader.say("no_saved_searches"), "quiet")
        for one in own:
            with _form(reader, "remove", query):
                link(one.name, "/search", q=one.query)
                tag("code", one.query)
                tag("input", type="hidden", name="name", value=one.name)
                label = f"{reader.say('delete_search')}: {one.name}"
                tag("button", reader.say("delete_search"), type="submit", **{"aria-label": label})
        if query.strip():
            with _form(reader, "save", query):
                words = reader.say("search_name")
                tag(
                    "input",
                    name="name",
                    required="",
                    maxlength=f"{SEARCH_NAME_SIZE_MAX}",
                    autocomplete="off",
                    placeholder=words,
                    **{"aria-label": words},
                )
                tag("button", reader.say("save_search"), type="submit")


def _form(reader: PageReader, action: str, query: str) -> Any:
    """Draw a form with what both have, and return it to be filled."""
    form = tag("form", classes="tools", action=PATH, method="post")
    with form:
        for name, value in (("action", action), ("q", query), ("csrf", reader.csrf)):
            tag("input", type="hidden", name=name, value=value)
    return form
