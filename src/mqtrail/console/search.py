"""Search: conditions in the address bar, pages of results, facets, saved searches, downloads, the same as a command."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import (
    FIELDS,
    QueryTextError,
    SearchAnswer,
    SearchConditions,
    Trajectory,
    export_line,
    parse_query,
    search_command,
)
from mqtrail.clock import now_ms
from mqtrail.wire import visible_json

from .facets import draw_facets
from .frame import Desk, PagePart, PageReader, bounds, codes, commands, frame, lacks_lake, link, table, tag
from .looks import count, csv_text
from .saved import show_saved

PAGE_SIZE: Final = 50


async def search(desk: Desk, reader: PageReader, query: str, skip: int, unsaved: str) -> None:
    """Draw the results of a search text, from the match number `skip` on. unsaved: why a search was not saved."""
    with frame(reader, reader.say("search"), query=query):
        if lacks_lake(desk, reader):
            return
        wanted = _conditions(reader, query)
        saved = PagePart(desk, reader)
        _fields(reader)
        if wanted is not None:
            with tag("div", classes="beside"):
                rows = PagePart(desk, reader)
                with tag("aside", **{"aria-label": reader.say("facets")}):
                    facets = PagePart(desk, reader)
    await ui.context.client.connected()
    own = show_saved(desk, reader, saved, query if wanted is not None else "", unsaved)
    if wanted is None:
        await own
        return
    asked = replace(wanted, limit=PAGE_SIZE, skip=skip)
    lake = desk.sources.of_lake
    ask_rows = rows.show(lambda: lake().search(asked, now_ms()), lambda answer: _results(reader, answer, query, asked))
    found, _ = await asyncio.gather(ask_rows, own)
    if found is None or not found.matched_count:
        facets.put(lambda: None)
        return
    # After the rows, so that they do not wait for the counts.
    await facets.show(lambda: lake().facets(asked, now_ms()), lambda answer: draw_facets(reader, answer, query))


def _conditions(reader: PageReader, query: str) -> SearchConditions | None:
    try:
        return parse_query(query, now_ms())
    except QueryTextError as error:
        with tag("div", classes="problem", role="alert"):
            tag("strong", reader.say("query"))
            tag("p", str(error))
        return None


def _fields(reader: PageReader) -> None:
    with tag("details"):
        tag("summary", reader.say("conditions"))
        with table([reader.say("query"), reader.say("meaning")], reader.say("conditions")) as add:
            for field in FIELDS.values():
                add([f"{field.name}{field.mark}", reader.say(f"field_{field.name}")])


def _results(reader: PageReader, answer: SearchAnswer, query: str, asked: SearchConditions) -> None:
    bounds(reader, answer.scope)
    shown = answer.trajectories
    with tag("p", role="status"):
        tag("strong", reader.say("found_count", count=count(answer.matched_count)))
        if shown:
            first, last = asked.skip + 1, asked.skip + len(shown)
            tag("span", f" · {reader.say('shown', first=count(first), last=count(last))}")
    if not shown:
        tag("p", reader.say("none_found"))
    else:
        _rows(reader, shown)
    with tag("nav", classes="tools", **{"aria-label": reader.say("older")}):
        if asked.skip:
            link(f"← {reader.say('newer')}", "/search", "button", q=query, skip=str(max(0, asked.skip - PAGE_SIZE)))
        if asked.skip + len(shown) < answer.matched_count:
            link(f"{reader.say('older')} →", "/search", "button", q=query, skip=str(asked.skip + PAGE_SIZE))
    paged = ["--limit", f"{asked.limit}", *(["--skip", f"{asked.skip}"] if asked.skip else [])]
    command = [*shlex.split(search_command(asked)), *paged]
    commands(reader, command, "/search", q=query, limit=f"{asked.limit}", skip=f"{asked.skip}")
    if shown:
        with tag("div", classes="tools"):
            tag("span", reader.say("download_text"))
            _download(reader.say("download_csv"), "messages.csv", csv_text(HEADINGS, map(_cells, shown)))
            lines = (visible_json(json.dumps(export_line(one), ensure_ascii=False)) + "\n" for one in shown)
            _download(reader.say("download_jsonl"), "messages.jsonl", "".join(lines))


def _download(label: str, name: str, content: str) -> None:
    tag("button", label, type="button").on("click", lambda: ui.download.content(content, name))


HEADINGS: Final = ("msg_id", "topic", "tag", "keys", "sent_ms", "cluster", "knowledge", "codes")


def _cells(one: Trajectory) -> list[object]:
    return [
        one.msg_id,
        one.topic,
        one.tags,
        " ".join(one.keys),
        one.send_start_ms if one.send_start_ms is not None else one.stored_ms,
        one.cluster,
        one.knowledge,
        " ".join(_codes_of(one)),
    ]


def _codes_of(one: Trajectory) -> Iterator[str]:
    """Yield the codes of a message, each once."""
    yield from dict.fromkeys((*one.send_codes, *one.message_codes, *(code for g in one.groups for code in g.codes)))


def _rows(reader: PageReader, shown: tuple[Trajectory, ...]) -> None:
    names = ("sent", "topic", "tag", "keys", "id", "verdicts", "knowledge")
    with table([reader.say(name) for name in names], reader.say("search")) as add:
        for one in shown:

            def msg_id(one: Trajectory = one) -> None:
                link(one.msg_id, "/message", id=one.msg_id)

            def said(one: Trajectory = one) -> None:
                codes(reader, list(_codes_of(one)))

            def knows(one: Any = one) -> None:
                codes(reader, [one.knowledge])

            sent = one.send_start_ms if one.send_start_ms is not None else one.stored_ms
            add([reader.at(sent), one.topic, one.tags, " ".join(one.keys), msg_id, said, knows])
