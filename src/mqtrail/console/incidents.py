"""Incidents: bad messages grouped by cause, each with its share of good and bad messages and examples as proof."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import IncidentsAnswer, ShownIncident
from mqtrail.clock import now_ms

from .advice import cause_words, symptom_words
from .frame import Desk, PagePart, PageReader, bounds, codes, frame, lacks_lake, link, table, tag
from .incident import affected_words, handling_words
from .looks import count, duration

ROWS_MAX: Final = 50
EXAMPLES_MAX: Final = 3
OPEN_MAX: Final = 5  # incidents on Home


async def incidents(desk: Desk, reader: PageReader) -> None:
    """Search the last day of the lake for causes. The search keeps nothing."""
    with frame(reader, reader.say("incidents")):
        if lacks_lake(desk, reader):
            return
        tag("p", reader.say("incidents_text"), "quiet")
        part = PagePart(desk, reader)
    await ui.context.client.connected()
    await part.show(lambda: found_incidents(desk), lambda answer: _draw(reader, answer))


def found_incidents(desk: Desk, recent_s: float | None = None) -> IncidentsAnswer:
    """Search the last day of the lake, and add what people did about what is found.

    recent_s: how old an answer to others may be; None: as of other questions.
    """
    found = desk.sources.of_lake().incidents(now_ms(), is_kept=False, recent_s=recent_s)
    return found if desk.handled is None else desk.handled.shown_in(found, now_ms())


def draw_open(reader: PageReader, answer: IncidentsAnswer) -> None:
    """Draw the largest incidents that are not muted, as a list."""
    bounds(reader, answer.scope)
    some = [one for one in answer.incidents if one.handling is None or one.handling.muted is None]
    if not some:
        tag("p", reader.say("no_incidents" if not answer.incidents else "all_muted"))
        return
    names = ("incident", "handling", "began", "what", "cause", "affected")
    with table([reader.say(name) for name in names], reader.say("open_incidents")) as add:
        for one in some[:OPEN_MAX]:
            cause, _ = cause_words(one, reader.language)
            add(
                [
                    partial(link, one.incident_id, "/incident", id=one.incident_id),
                    handling_words(reader, one.handling),
                    partial(_began, reader, one),
                    symptom_words(one, reader.language),
                    f"{one.cause}: {cause}",
                    affected_words(reader, one),
                ]
            )
    if len(answer.incidents) > min(len(some), OPEN_MAX):
        link(reader.say("all_incidents", count=count(len(answer.incidents))), "/incidents")


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

    inside = f"{count(one.inside_bad_count)}/{count(one.inside_count)}"
    outside = f"{count(one.outside_bad_count)}/{count(one.outside_count)}"
    common = "; ".join((*one.conditions, *one.neighbours, *one.errors))
    share = reader.say("inside_outside", inside=inside, outside=outside)
    cause, advice = cause_words(one, reader.language)
    state, what = handling_words(reader, one.handling), symptom_words(one, reader.language)
    add(
        [
            name,
            state,
            partial(_began, reader, one),
            what,
            f"{one.cause}: {cause}",
            advice,
            common,
            share,
            said,
            examples,
        ]
    )


def _began(reader: PageReader, one: ShownIncident) -> None:
    reader.at(one.begin_ms)()
    tag("span", f" + {duration(one.end_ms - one.begin_ms)}")
