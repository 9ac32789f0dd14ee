"""What all pages share: the frame with its navigation, and parts that load by themselves and say what failed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, urlencode

from fastapi import Request
from nicegui import app, ui
from nicegui.elements.mixins.text_element import TextElement
from nicegui.events import GenericEventArguments

from mqtrail import trail
from mqtrail.answers import FIELDS, TEXT_SIZE_MAX, Scope
from mqtrail.answers.access import Right, SavedSearches, SeenSources
from mqtrail.answers.handling import HandledIncidents
from mqtrail.answers.http import (
    API_PREFIX,
    CLUSTERS_PREFIX,
    LOGIN,
    Changing,
    ChosenCluster,
    Workers,
    chosen_of,
    path_within,
    visitor_of,
)
from mqtrail.clock import now_ms
from mqtrail.gateway import Problem
from mqtrail.wire import visible

from .looks import duration, moment, zone_of
from .one_search import OneSearch
from .texts import Language, code_text, language_of, text

T = TypeVar("T")
STYLE: Final = (Path(__file__).parent / "console.css").read_text("utf-8")
SCRIPT: Final = (Path(__file__).parent / "console.js").read_text("utf-8")
THEMES: Final = {"light": False, "dark": True}
PAGES: Final = (
    ("/", "home"),
    ("/search", "search"),
    ("/incidents", "incidents"),
    ("/dead-letters", "dead_letters"),
    ("/groups", "groups"),
    ("/latency", "latency"),
    ("/cluster", "cluster"),
    ("/pipeline", "pipeline"),
    ("/alerts", "alerts"),
)
PMQ_PAGE: Final = ("/pmq", "pmq")
FAULT: Final = "a fault of mqtrail, not of the lake or the cluster: report it with the console's log"
OF_ONE_CLUSTER: Final = ("/message", "/incident", "/client", "/stored", "/change", "/edit")
"""Pages about what no other cluster has."""
IN_FILE: Final = {
    "no_lake": ("no_lake_in_file", 'lake = "DIR"'),
    "no_cluster": ("no_cluster_in_file", 'namesrv = "HOST:PORT"'),
}
"""What to say of a cluster that lacks a source, and what its table in the file of `--clusters` needs."""
ADDRESSES: Final = ("href", "action", "data-names")
"""Attributes that are addresses."""
MARKS: Final = {"error": "✖", "warning": "▲", "open": "◌", "info": "ℹ", "good": "✔"}
"""A mark beside each color: color is never the only sign."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What every page answers from."""

    sources: SeenSources
    workers: Workers
    changing: Changing | None = None
    """Changes the cluster; None: that is not allowed."""
    alerts: Path | None = None
    """The file of `mqtrail alerts run`; None: there is no page for it."""
    searches: SavedSearches | None = None
    """The saved searches; None: none can be saved."""
    handled: HandledIncidents | None = None
    """The acknowledged and muted incidents; None: unknown."""
    rights: frozenset[Right] = frozenset(Right)
    """What the roles of the reader give, at least on some topics."""
    one_search: OneSearch = field(default_factory=OneSearch)
    """The turn of searches for incidents that Home shows."""

    def of(self, request: Request) -> Desk:
        """Return what a page of this request answers from: the sources as its reader may see them."""
        now = visitor_of(request).now
        rights = frozenset(right for right in Right for one in now().grants if one.gives(right))
        seen = SeenSources(self.sources.sources, self.sources.names, now)
        changing = self.changing if Right.OPERATE in rights else None
        return replace(self, sources=seen, changing=changing, rights=rights)

    @property
    def can_administer(self) -> bool:
        """Whether the reader may change topics, groups and settings."""
        return self.changing is not None and Right.ADMINISTER in self.rights


DeskOf = Callable[[Request], Desk]
"""Returns what the cluster of a request has, before its reader's rights are looked at."""


@dataclass(frozen=True, slots=True)
class PageReader:
    """How this reader wants the pages."""

    language: Language
    theme: str
    path: str
    server: str  # http://host:port[/c/NAME] of this console, as the reader's browser names it
    zone: tzinfo
    name: str  # of the person; '' without accounts
    csrf: str
    root: str = ""
    """`/c/NAME`, before the path of each page of a cluster; '' if the console has one cluster."""
    page: str = "/"
    """The path without root."""
    cluster: ChosenCluster | None = None
    """The cluster of the page; None: the console has one."""

    @classmethod
    def of(cls, request: Request) -> PageReader:
        """Return the choices in the request's cookies."""
        language = language_of(request.cookies.get("mqtrail-language"), request.headers.get("accept-language", ""))
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        root = str(request.scope.get("root_path", ""))
        server = f"{request.url.scheme}://{request.url.netloc}{root}"
        zone = zone_of(unquote(request.cookies.get("mqtrail-zone", "")))
        theme = request.cookies.get("mqtrail-theme", "")
        found = getattr(request.state, "visitor", None)  # the pages of log-in have none
        name = found.now().name if found is not None else ""
        csrf = found.csrf if found is not None else ""
        chosen, page = chosen_of(request.scope), path_within(request.scope)
        return cls(language, theme, path, server, zone, name, csrf, root, page, chosen)

    def say(self, name: str, **values: object) -> str:
        """Return a text in the reader's language."""
        return text(name, self.language, **values)

    def moment(self, at_ms: int | None) -> str:
        """Return a time in the reader's zone."""
        return moment(at_ms, self.zone)

    def at(self, at_ms: int | None) -> Callable[[], None]:
        """Return what draws a time: in the reader's zone; on hover in UTC, and how long ago it was."""

        def draw() -> None:
            if at_ms is None:
                tag("span", moment(None))
                return
            ago_ms = now_ms() - at_ms
            about = self.say("ago" if ago_ms >= 0 else "ahead", time=duration(abs(ago_ms)))
            tag("time", self.moment(at_ms), title=f"{moment(at_ms)} UTC, {about}")

        return draw


def tag(name: str, content: object = "", /, classes: str = "", **attributes: str) -> TextElement:
    """Add an element with this text. The text is never read as HTML; its control characters are escaped.

    An address that begins with `/` is one of the page's cluster.
    """
    made = TextElement(tag=name, text=visible(str(content)))
    if classes:
        made.classes(classes)
    if name == "input" and "value" in attributes:
        # The attribute (^) of Vue, not the property: that one is set again whenever the page is redrawn, over what the
        # reader has typed since.
        attributes["^value"] = attributes.pop("value")
    root = ui.context.client.request.scope.get("root_path", "")
    for one in ADDRESSES:
        if attributes.get(one, "").startswith("/"):
            attributes[one] = root + attributes[one]
    made.props.update(attributes)
    return made


def link(content: str, path: str, classes: str = "", **parameters: str) -> TextElement:
    """Add a link to one of our own pages. Parameters are quoted."""
    assert path.startswith("/"), "pages link to themselves alone"
    asked = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    return tag("a", content, classes, href=path + asked)


@contextmanager
def frame(reader: PageReader, title: str, *, query: str = "") -> Iterator[None]:
    """Draw a page around the block: navigation, search field, help."""
    ui.add_css(STYLE)
    place = f'document.documentElement.dataset.root = "{reader.root}"'  # its characters are safe: the file's check
    ui.add_head_html(f'<script>document.documentElement.lang = "{reader.language}";{place};{SCRIPT}</script>')
    about = f" – {visible(reader.cluster.title)}" if reader.cluster else ""
    ui.page_title(f"{visible(title)}{about} – mqtrail")
    ui.dark_mode(THEMES.get(reader.theme))
    ui.query(".nicegui-content").classes(replace="page")
    tag("a", reader.say("skip_to_content"), "skip", href="#content")
    with tag("header", classes="top"):
        if reader.cluster is not None:
            _clusters(reader, reader.cluster)
        with tag("nav", **{"aria-label": "mqtrail"}):
            for path, name in pages_served():
                here = reader.page == path or (path == "/pmq" and reader.page.startswith("/pmq/"))
                link(reader.say(name), path, "here" if here else "").props.update(
                    {"aria-current": "page"} if here else {}
                )
        if PAGES[0] in pages_served():
            with tag("form", action="/search", method="get", role="search"):
                _query_bar(reader, query)
                tag("button", reader.say("find"), type="submit")
        with tag("div", classes="choices"):
            other = Language.ZH if reader.language is Language.EN else Language.EN
            link(reader.say("language"), "/preferences", language=other, to=reader.path)
            is_dark = reader.theme == "dark"
            link("◐", "/preferences", theme="light" if is_dark else "dark", to=reader.path).props.update(
                {"aria-label": reader.say("theme"), "title": reader.say("theme")}
            )
            tag("button", "?", type="button", id="help-button", **{"aria-label": reader.say("help")})
            if reader.name:
                _account(reader)
    _help(reader)
    with tag("main", id="content"):
        tag("h1", title)
        yield


def pages_served() -> tuple[tuple[str, str], ...]:
    """Return path and name of the pages of this process. Those of pmq mode are there beside others, or alone."""
    return getattr(app.state, "pages", PAGES)


def serve_pages(*, pmq: bool, others: bool = True) -> None:
    """Set which pages this process serves."""
    app.state.pages = (*(PAGES if others else ()), *((PMQ_PAGE,) if pmq else ()))


def _clusters(reader: PageReader, chosen: ChosenCluster) -> None:
    """Draw the cluster of the page, and links to the same page of the others."""
    to = "/" if reader.page in OF_ONE_CLUSTER else reader.path.removeprefix(reader.root)
    with tag("details", classes="clusters"):
        tag("summary", f"{reader.say('cluster')}: {chosen.title}", title=reader.say("choose_cluster"))
        with tag("nav", **{"aria-label": reader.say("choose_cluster")}), tag("ul"):
            for one in chosen.seen:
                is_here = one.name == chosen.name
                with tag("li"):
                    made = tag("a", one.title, "here" if is_here else "")
                    made.props.update({"href": f"{CLUSTERS_PREFIX}{one.name}{to}"})
                    if is_here:
                        made.props.update({"aria-current": "true"})


def _query_bar(reader: PageReader, query: str) -> None:
    """Draw the field of the search. console.js completes it: names of fields, then names that the lake knows."""
    tag(
        "input",
        name="q",
        id="query",
        type="text",
        role="combobox",
        value=query,
        autocomplete="off",
        autocapitalize="off",
        spellcheck="false",
        enterkeyhint="search",
        maxlength=f"{TEXT_SIZE_MAX}",
        placeholder=reader.say("query_hint"),
        **{
            "aria-label": reader.say("query"),
            "aria-autocomplete": "list",
            "aria-controls": "query-options",
            "aria-expanded": "false",
            "data-fields": json.dumps(
                [[f"{one.name}{one.mark}", reader.say(f"field_{one.name}")] for one in FIELDS.values()]
            ),
            "data-names": f"{API_PREFIX}/search/names",
        },
    )
    tag("ul", id="query-options", role="listbox", hidden="", **{"aria-label": reader.say("conditions")})


def _account(reader: PageReader) -> None:
    """Draw who is logged in, and what ends that; a proxy's user has no session to end."""
    link(reader.name, "/account").props.update({"title": reader.say("account")})
    if reader.csrf:
        with tag("form", action="/logout", method="post"):
            tag("input", type="hidden", name="csrf", value=reader.csrf)
            tag("button", reader.say("log_out"), type="submit")


def _help(reader: PageReader) -> None:
    with tag("dialog", id="help", **{"aria-label": reader.say("help")}):
        tag("h2", reader.say("help"))
        tag("p", reader.say("keys_help"))
        tag("p", reader.say("times_help", zone=str(reader.zone)))
        with tag("form", method="dialog"):
            tag("button", reader.say("close"), type="submit")


@contextmanager
def section(title: str) -> Iterator[None]:
    """Draw a heading and what belongs to it."""
    with tag("section"):
        tag("h2", title)
        yield


LIVE_S: Final = 10.0


async def keep_live(live: ui.switch, load: Callable[[], Awaitable[object]], every_s: float = LIVE_S) -> None:
    """Load once the reader's browser is connected, and again while the switch is on and no text is selected."""
    words, reader, is_reading = live.text, PageReader.of(ui.context.client.request), False

    def note(event: GenericEventArguments) -> None:
        nonlocal is_reading
        is_reading = event.args is True
        live.text = f"{words}: {reader.say('waits_for_reader')}" if is_reading else words

    async def again() -> None:
        if live.value and not is_reading:
            await load()

    ui.on("reading", note)  # console.js tells of a selection
    await ui.context.client.connected()
    await load()
    ui.timer(every_s, again, immediate=False)


class PagePart:
    """A part of a page that is asked for by itself. If its source fails, the error is above the last answer."""

    def __init__(self, desk: Desk, reader: PageReader) -> None:
        self._desk = desk
        self._reader = reader
        self._problem = tag("div", classes="problem", role="alert")
        self._problem.set_visibility(False)
        self._answer = tag("div", **{"aria-live": "polite"})
        with self._answer:
            tag("p", reader.say("loading"), "quiet")
        self._as_of = ""
        self._drawn: object = None

    async def show(self, ask: Callable[[], T], draw: Callable[[T], None], *, is_kept: bool = False) -> T | None:
        """Ask in a worker and draw the answer; None if it failed.

        is_kept: an answer that equals the one drawn is not drawn again, so that what the reader does there goes on.
        """
        try:
            answer = await self._desk.workers.run(ask)
        except Problem as problem:
            self.fail(problem.detail)
            if problem.status is HTTPStatus.UNAUTHORIZED:
                ui.navigate.to(f"{LOGIN}?to={quote(self._reader.path)}")
            return None
        if is_kept and answer == self._drawn:
            self._problem.set_visibility(False)
            return answer
        if not self.put(lambda: draw(answer)):
            return None
        self._drawn = answer
        at_ms = _as_of(answer)
        self._as_of = "" if at_ms is None else self._reader.moment(at_ms)
        return answer

    def put(self, draw: Callable[[], None]) -> bool:
        """Draw the part again; return whether that succeeded."""
        self._drawn = None
        self._problem.set_visibility(False)
        self._answer.clear()
        try:
            with self._answer:
                draw()
        except Exception as error:  # half a part must not look like a whole answer
            app.handle_exception(error)  # logs it
            self._as_of = ""
            self.fail(f"{FAULT} ({type(error).__name__})")
            return False
        return True

    def fail(self, why: str) -> None:
        """Say why there is no answer, above the last one."""
        self._problem.clear()
        self._problem.set_visibility(True)
        with self._problem:
            tag("strong", self._reader.say("cannot_show"))
            tag("p", why)
            if self._as_of:
                tag("p", self._reader.say("older_below", at=self._as_of))
        if not self._as_of:
            self._drawn = None
            self._answer.clear()


def _as_of(answer: object) -> int | None:
    scope = getattr(answer, "scope", None)
    return scope.as_of_ms if isinstance(scope, Scope) else None


def bounds(reader: PageReader, scope: Scope, *, is_open: bool = False) -> None:
    """Draw what an answer is about: its time, its range, its sources, what it lacks; is_open: without a click."""
    with tag("div", classes="bounds"):
        with tag("span", f"{reader.say('as_of')} "):
            reader.at(scope.as_of_ms)()
        if scope.first_ms is not None:
            ends = {"first": reader.moment(scope.first_ms), "end": reader.moment(scope.end_ms)}
            utc = f"{moment(scope.first_ms)} – {moment(scope.end_ms)} UTC"
            tag("span", reader.say("range", **ends)).props.update({"title": utc})
        if scope.sources:
            tag("span", f"{reader.say('sources')}: {', '.join(scope.sources)}")
        if scope.omissions:
            with tag("details", **({"open": ""} if is_open else {})):
                tag("summary", f"{reader.say('left_out')} ({len(scope.omissions)})")
                with tag("ul"):
                    for omission in scope.omissions:
                        tag("li", omission)


def codes(reader: PageReader, names: Sequence[str]) -> None:
    """Draw verdict codes; `?` beside each leads to its definition."""
    for name in names:
        with tag("span", classes="said"):
            chip(reader, name)
            if name in trail.CODES:
                words = reader.say("what_is", code=name)
                made = tag("a", "?", "what", href=f"/verdicts#{name}")
                made.props.update({"aria-label": words, "title": words})


def chip(reader: PageReader, name: str) -> None:
    """Draw a verdict code with its mark, its severity and its meaning on hover."""
    known = trail.CODES.get(name)
    severity = known.severity if known else "info"
    made = tag("span", f"{MARKS[severity]} {name}", f"code {severity}")
    if known:
        made.props.update({"title": f"{reader.say(severity)}: {code_text(name, reader.language)}"})


@contextmanager
def table(headings: Sequence[str], label: str) -> Iterator[Callable[[Sequence[object]], None]]:
    """Draw a table. The block gets a function that adds a row: a cell is a text, or a function that draws it."""
    with tag("div", classes="scroll", tabindex="0", role="region", **{"aria-label": label}), tag("table"):
        with tag("thead"), tag("tr"):
            for heading in headings:
                tag("th", heading, scope="col")
        body = tag("tbody")

        def add(cells: Sequence[object]) -> None:
            with body, tag("tr"):
                for cell in cells:
                    _cell(cell)

        yield add


def _cell(cell: Any) -> None:
    if callable(cell):
        with tag("td"):
            cell()
    else:
        tag("td", cell, "number" if isinstance(cell, int | float) else "")


def lacks_cluster(desk: Desk, reader: PageReader) -> bool:
    """Return whether this console has no cluster; then draw how to start one with a cluster."""
    if desk.sources.live is not None:
        return False
    start_with(reader, "no_cluster", "mqtrail console --namesrv HOST:PORT")
    return True


def lacks_lake(desk: Desk, reader: PageReader) -> bool:
    """Return whether this console has no lake; then draw how to make one and start one with it."""
    if desk.sources.lake is not None:
        return False
    start_with(reader, "no_lake", "mqtrail pipeline once --namesrv HOST:PORT --lake DIR\nmqtrail console --lake DIR")
    return True


def start_with(reader: PageReader, name: str, command: str) -> None:
    """Draw what to do where there is no such source. name: `no_lake` or `no_cluster`."""
    words, lines = name, command.splitlines()
    if reader.cluster is not None:
        words, needed = IN_FILE[name]
        lines = ["[[clusters]]", f'name = "{reader.cluster.name}"', needed]
    tag("p", reader.say(words))
    with tag("pre"):
        for line in lines:
            tag("div", line)


def commands(reader: PageReader, command: Sequence[str], path: str = "", **parameters: str) -> None:
    """Draw the same question as a command and, with a path, as a request to the HTTP API; a button copies either."""
    asked = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    with tag("details"):
        tag("summary", reader.say("as_command"))
        request = [("curl", "-s", f"{reader.server}{API_PREFIX}{path}{asked}")] if path else []
        for words in (command, *request):
            with tag("div", classes="tools"):
                tag("pre", shlex.join(words), tabindex="0")
                tag("button", reader.say("copy"), type="button", **{"data-copy": "true"})
