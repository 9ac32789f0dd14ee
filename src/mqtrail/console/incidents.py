"""Incidents: bad messages grouped by cause, each with its share of good and bad messages and examples as proof."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui

from mqtrail.answers import IncidentsAnswer, ShownIncident
from mqtrail.clock import now_ms

from .advice import cause_words, symptom_words
from .frame import Desk, PagePart, PageReader, bounds, codes, frame, lacks_lake, link, table, tag
from .incident import handling_words
from .looks import count, duration

ROWS_MAX: Final = 50
EXAMPLES_MAX: Final = 3


async def incidents(desk: Desk, reader: PageReader) -> None:
    """Search the last day of the lake for causes. The search keeps nothing."""
    with frame(reader, reader.say("incidents")):
        if lacks_lake(desk, reader):
            return
        tag("p", reader.say("incidents_text"), "quiet")
        part = PagePart(desk, reader)
    lake, handled = desk.sources.of_lake, desk.handled

    def ask() -> IncidentsAnswer:
        found = lake().incidents(now_ms(), is_kept=False)
        return found if handled is None else handled.shown_in(found, now_ms())

    await ui.context.client.connected()
    await part.show(ask, lambda answer: _draw(reader, answer))


def _draw(reader: PageReader, answer: IncidentsAnswer) -> None:
    bounds(reader, answer.scope)
    if not answer.incidents:
        tag("p", reader.say("no_incidents"))
        return
    names = ("incident", "handling", "began", "what", "cause", "advice", "common", "bad_share", "code", "example")
    with table([reader.say(name) for name in names], reader.say("incidents")) as add:
        for one in answer.incidents[:ROWS_MAX]:
            _row(reader, one, add)
    if len(answer.incidents) > ROWS_MAX:
        tag("p", f"+ {len(answer.incidents) - ROWS_MAX}", "quiet")


def _row(reader: PageReader, one: ShownIncident, add: Any) -> None:
    def name() -> None:
        link(one.incident_id, "/incident", id=one.incident_id)

    def said() -> None:
        codes(reader, one.codes)

    def examples() -> None:
        for example in one.examples[:EXAMPLES_MAX]:
            with tag("div"):
                link(example, "/message", id=example)

    def began() -> None:
        reader.at(one.begin_ms)()
        tag("span", f" + {duration(one.end_ms - one.begin_ms)}")

    inside = f"{count(one.inside_bad_count)}/{count(one.inside_count)}"
    outside = f"{count(one.outside_bad_count)}/{count(one.outside_count)}"
    common = "; ".join((*one.conditions, *one.neighbours, *one.errors))
    share = reader.say("inside_outside", inside=inside, outside=outside)
    cause, advice = cause_words(one, reader.language)
    state, what = handling_words(reader, one.handling), symptom_words(one, reader.language)
    add([name, state, began, what, f"{one.cause}: {cause}", advice, common, share, said, examples])
