"""One incident: what is known of it, what people did about it, and buttons to acknowledge or mute it."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import IncidentAct, IncidentActKind, IncidentHandling, ShownIncident
from mqtrail.answers.access import NotAllowed
from mqtrail.answers.changes import Actor
from mqtrail.answers.handling import WHY_SIZE_MAX, HandledIncidents, incident_with_id
from mqtrail.clock import now_ms
from mqtrail.gateway import Problem

from .advice import cause_words, symptom_words
from .frame import MARKS, Desk, PagePart, PageReader, codes, commands, frame, lacks_lake, link, section, table, tag
from .looks import UNKNOWN, count, duration

HOUR_MS: Final = 3_600_000
MUTES_MS: Final = tuple(hours * HOUR_MS for hours in (1, 4, 24, 7 * 24, 30 * 24, 90 * 24))
VALUE: Final = "(event) => emit(event.target.value)"


async def incident(desk: Desk, reader: PageReader, incident_id: str, actor: Actor) -> None:
    """Draw the incident with this id: of the last day of the lake, or one that the lake keeps."""
    with frame(reader, f"{reader.say('incident')} {incident_id}"):
        if lacks_lake(desk, reader):
            return
        part = PagePart(desk, reader)
        with section(reader.say("handling")):
            handling = PagePart(desk, reader)
        commands(reader, ["mqtrail", "incidents", "show", incident_id, "--lake", str(desk.sources.lake)])
    sources = desk.sources

    def ask() -> ShownIncident:
        return incident_with_id(sources.of_lake(), incident_id, now_ms())

    await ui.context.client.connected()
    one = await part.show(ask, partial(_incident, reader))
    if one is None or desk.handled is None:
        handling.put(_unknown)
        return
    await _IncidentForm(desk, desk.handled, reader, actor, one, handling).show()


def handling_words(reader: PageReader, handling: IncidentHandling | None) -> str:
    """Return what holds now of what people did, in words."""
    if handling is None:
        return UNKNOWN
    parts = []
    if (act := handling.acknowledged) is not None:
        parts.append(f"{MARKS['good']} {reader.say('acknowledged_by', who=act.who, at=reader.moment(act.at_ms)[:16])}")
    if (act := handling.muted) is not None:
        parts.append(
            f"{MARKS['info']} {reader.say('muted_until', who=act.who, until=reader.moment(act.until_ms)[:16])}"
        )
    return "; ".join(parts) or f"{MARKS['open']} {reader.say('not_acknowledged')}"


def affected_words(reader: PageReader, one: ShownIncident) -> str:
    """Return how many messages, topics and groups an incident affects."""
    groups = count(one.group_count) if one.group_count else "–"
    counts = {"messages": count(one.message_count), "topics": count(one.topic_count)}
    return reader.say("affected_counts", **counts, groups=groups)


class _IncidentForm:
    """What people did about an incident, and the form for what they do."""

    def __init__(
        self,
        desk: Desk,
        handled: HandledIncidents,
        reader: PageReader,
        actor: Actor,
        one: ShownIncident,
        part: PagePart,
    ) -> None:
        self._desk = desk
        self._handled = handled
        self._reader = reader
        self._actor = actor
        self._one = one
        self._part = part
        self._why = ""
        self._mute_ms = 24 * HOUR_MS
        self._problem: ui.element | None = None
        self._status: ui.element | None = None

    async def show(self) -> None:
        """Load and draw it."""
        await self._part.show(self._load, self._draw)

    def _load(self) -> tuple[IncidentHandling, bool]:
        (one,) = self._handled.of([self._one], now_ms())
        assert one.handling is not None, "it is known"
        may = True
        try:
            self._desk.sources.check_incident(one)
        except NotAllowed:
            may = False
        return one.handling, may

    def _draw(self, found: tuple[IncidentHandling, bool]) -> None:
        handling, may = found
        reader = self._reader
        self._status = tag("p", handling_words(reader, handling), role="status", tabindex="-1")
        if may:
            self._form(handling)
        if handling.history:
            names = ("time", "who", "action", "mute_end", "why", "incident")
            with table([reader.say(name) for name in names], reader.say("handling_history")) as add:
                for act in handling.history:
                    add(_act_cells(reader, act))

    def _form(self, handling: IncidentHandling) -> None:
        reader, kinds = self._reader, IncidentActKind
        with tag("div", classes="tools"):
            words = reader.say("why")
            field = tag("input", maxlength=str(WHY_SIZE_MAX), placeholder=words, **{"aria-label": words})
            field.on("input", lambda event: self._set_why(event.args), js_handler=VALUE)
            kind = kinds.ACKNOWLEDGE if handling.acknowledged is None else kinds.REOPEN
            self._button(kind)
        with tag("div", classes="tools"):
            words = reader.say("mute_for")
            with tag("label"):
                tag("span", f"{words} ")
                with tag("select") as choice:
                    for ms in MUTES_MS:
                        chosen = {"selected": ""} if ms == self._mute_ms else {}
                        tag("option", duration(ms), value=str(ms), **chosen)
                choice.on("change", lambda event: self._set_mute(event.args), js_handler=VALUE)
            self._button(kinds.MUTE)
            if handling.muted is not None:
                self._button(kinds.UNMUTE)
        self._problem = tag("div", classes="problem", role="alert")
        self._problem.set_visibility(False)
        tag("p", reader.say("handling_text"), "quiet")

    def _button(self, kind: IncidentActKind) -> None:
        tag("button", self._reader.say(f"act_{kind}"), type="button").on("click", partial(self._act, kind))

    def _set_why(self, value: Any) -> None:
        self._why = str(value)[: WHY_SIZE_MAX + 1]

    def _set_mute(self, value: Any) -> None:
        self._mute_ms = next((ms for ms in MUTES_MS if str(ms) == value), self._mute_ms)

    async def _act(self, kind: IncidentActKind) -> None:
        why, mute_ms = self._why, self._mute_ms

        def act() -> tuple[IncidentHandling, bool]:
            at_ms = now_ms()
            self._desk.sources.check_incident(self._one)
            found = self._handled.act(self._one, kind, self._actor, at_ms, why=why, until_ms=at_ms + mute_ms)
            return found, True

        try:
            found = await self._desk.workers.run(act)
        except Problem as problem:
            if self._problem is not None:  # the form stays, with what was typed
                self._problem.clear()
                self._problem.set_visibility(True)
                with self._problem:
                    tag("p", problem.detail)
            return
        self._why = ""
        if self._part.put(lambda: self._draw(found)) and self._status is not None:
            # The pressed button is gone; who uses the keyboard goes on at what holds now.
            self._status.client.run_javascript(
                f"setTimeout(() => document.getElementById({self._status.html_id!r})?.focus())"
            )


def _unknown() -> None:
    tag("p", UNKNOWN)


def _act_cells(reader: PageReader, act: IncidentAct) -> list[Any]:
    until = reader.at(act.until_ms) if act.until_ms is not None else "–"
    return [reader.at(act.at_ms), act.who, reader.say(f"act_{act.kind}"), until, act.why, act.incident_id]


def _incident(reader: PageReader, one: ShownIncident) -> None:
    with table([reader.say("property"), reader.say("value")], reader.say("incident")) as add:
        cause, advice = cause_words(one, reader.language)
        add([reader.say("cause"), f"{one.cause}: {cause}"])
        add([reader.say("what"), symptom_words(one, reader.language)])
        add([reader.say("advice"), advice])
        add([reader.say("incident_begin"), reader.at(one.begin_ms)])
        add([reader.say("incident_end"), reader.at(one.end_ms)])
        add([reader.say("affected"), affected_words(reader, one)])
        add([reader.say("common"), "; ".join(one.conditions) or "–"])
        for name, values in (
            ("same_share", one.same_conditions),
            ("wider_share", one.wider_conditions),
            ("beside", one.neighbours),
            ("errors", one.errors),
            ("cannot_be_found", one.unknown),
        ):
            if values:
                add([reader.say(name), "; ".join(values)])
        inside = f"{count(one.inside_bad_count)}/{count(one.inside_count)}"
        outside = f"{count(one.outside_bad_count)}/{count(one.outside_count)}"
        add([reader.say("bad_share"), reader.say("inside_outside", inside=inside, outside=outside)])
        add([reader.say("code"), partial(codes, reader, one.codes)])
        add([reader.say("bad_messages"), partial(_messages, one.examples)])
        add([reader.say("good_messages"), partial(_messages, one.good_examples)])


def _messages(ids: tuple[str, ...]) -> None:
    with tag("div", classes="tools"):
        for msg_id in ids:
            link(msg_id, "/message", id=msg_id)
