"""One message: its time line as a picture, verdicts with why, every event with its evidence, properties and body."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from nicegui import ui

from mqtrail import trail
from mqtrail.answers import (
    ELECTION_REASONS,
    BrokerChange,
    GroupVerdict,
    NeighboursAnswer,
    Status,
    StoredMessage,
    TraceAnswer,
    Trajectory,
    evidence_place,
    named_broker,
)
from mqtrail.clock import now_ms
from mqtrail.wire import visible_lines

from .advice import code_advice
from .frame import MARKS, Desk, PagePart, PageReader, bounds, codes, commands, frame, link, section, table, tag
from .looks import UNKNOWN, duration
from .picture import ARROWS, Bar, Picture, picture_of
from .texts import TEXTS, code_text

EVENTS_MAX: Final = 500
HEX_WIDTH: Final = 16
HEX_SIZE_MAX: Final = 4_096  # bytes of a hex dump
TITLES: Final = {Status.NOT_FOUND: "not_found", Status.CANNOT_LOOK: "cannot_look", Status.NOT_TRACED: "not_traced"}


async def message(desk: Desk, reader: PageReader, asked: str) -> None:
    """Draw what is known of the messages with this id or key."""
    with frame(reader, f"{reader.say('message')} {asked}"):
        part = PagePart(desk, reader)
        sources = [("--lake", str(desk.sources.lake or "")), ("--namesrv", desk.sources.namesrv)]
        options = [word for option in sources if option[1] for word in option]
        commands(reader, ["mqtrail", "trace", asked, *options], "/trace", id=asked)
        with tag("div") as together, section(reader.say("neighbours")):
            near = PagePart(desk, reader)
        together.set_visibility(False)
    answers = desk.sources.answers
    await ui.context.client.connected()
    bodies: list[tuple[PagePart, str]] = []
    found = await part.show(
        lambda: answers().trace(asked, now_ms()), lambda answer: _answer(desk, reader, answer, bodies)
    )
    if found is not None and len(found.trajectories) == 1 and desk.sources.lake is not None:
        msg_id = found.trajectories[0].msg_id
        together.set_visibility(True)
        await near.show(lambda: desk.sources.of_lake().neighbours(msg_id, now_ms()), partial(_neighbours, reader))
    for body, place in bodies:
        await body.show(partial(desk.sources.of_cluster().message, place), lambda one: draw_stored(reader, one))


def _answer(desk: Desk, reader: PageReader, answer: TraceAnswer, bodies: list[tuple[PagePart, str]]) -> None:
    bounds(reader, answer.scope)
    if answer.status is not Status.FOUND:
        with tag("div", classes="problem", role="status"):
            tag("strong", reader.say(TITLES[answer.status]))
            tag("p", answer.why)
            for omission in answer.scope.omissions:
                tag("p", omission)
    found = answer.trajectories
    if len(found) > 1:
        tag("p", reader.say("several", count=len(found)))
        with table([reader.say(name) for name in ("sent", "topic", "id", "verdicts")], reader.say("message")) as add:
            for one in found:
                _row(reader, one, add)
    elif found:
        _trajectory(desk, reader, found[0], bodies)


def _row(reader: PageReader, one: Trajectory, add: Callable[[Sequence[object]], None]) -> None:
    def msg_id() -> None:
        link(one.msg_id, "/message", id=one.msg_id)

    def said() -> None:
        codes(reader, [*one.send_codes, *one.message_codes, *(code for group in one.groups for code in group.codes)])

    add([reader.at(one.send_start_ms), one.topic, msg_id, said])


def _trajectory(desk: Desk, reader: PageReader, one: Trajectory, bodies: list[tuple[PagePart, str]]) -> None:
    with tag("p"):
        tag("span", f"{one.topic} ", "topic")
        tag("span", f"{reader.say('tag')}: {one.tags or '–'} · {reader.say('keys')}: ")
        for key in one.keys:
            link(key, "/message", id=key)
            tag("span", " ")
        tag("span", f" · {one.cluster} · {one.place or UNKNOWN}")
    with section(reader.say("timeline")):
        picture = picture_of(one)
        if picture is None:
            tag("p", reader.say("unknown"))
        else:
            _picture(reader, picture)
    with section(reader.say("why_verdicts")):
        _verdicts(reader, one)
    with section(reader.say("timeline_text")):
        _events(reader, one)
    if desk.changing is not None and desk.sources.live is not None and one.place:
        with section(reader.say("changes")):
            _changes(reader, one)
    with section(reader.say("body")):
        if not one.place:
            tag("p", reader.say("body_unknown"))
        elif desk.sources.live is None:
            tag("p", reader.say("body_needs_cluster"))
        else:
            bodies.append((PagePart(desk, reader), one.place))


def _changes(reader: PageReader, one: Trajectory) -> None:
    """Draw what can be done with the stored message, for each of its groups."""
    with tag("div", classes="tools"):
        for group in dict.fromkeys(known.group_name for known in one.groups):
            asked = {"place": one.place, "group": group}
            link(reader.say("put_back", group=group), "/change", "button", action="resend-message", **asked)
            link(reader.say("edit_copy", group=group), "/edit", "button", **asked)
            link(reader.say("have_consumed", group=group), "/change", "button", action="consume-directly", **asked)
        if not one.groups:
            tag("p", reader.say("no_groups"), "quiet")


def _neighbours(reader: PageReader, answer: NeighboursAnswer) -> None:
    """Draw the messages that share something with this one; what they share leads to all that have it."""
    bounds(reader, answer.scope)
    if not answer.neighbours:
        tag("p", reader.say("no_neighbours"))
        return
    names = ("shares", "sent", "id", "topic", "verdicts")
    with table([reader.say(name) for name in names], reader.say("neighbours")) as add:
        for one in answer.neighbours:
            shared = partial(
                link, f"{reader.say(f'same_{one.relation}')} {one.token}", "/search", q=f'key:"{one.token}"'
            )
            msg_id = partial(link, one.msg_id, "/message", id=one.msg_id)
            add([shared, reader.at(one.send_start_ms), msg_id, one.topic, partial(codes, reader, one.codes)])


def _picture(reader: PageReader, picture: Picture) -> None:
    label = (
        f"{reader.say('timeline')}: {reader.moment(picture.first_ms)} + {duration(picture.end_ms - picture.first_ms)}"
    )
    with tag("div", classes="picture", role="group", **{"aria-label": label}):
        for lane in picture.lanes:
            with tag("div", classes="lane"):
                tag("span", f"{reader.say(lane.kind)} {lane.name}", "name")
                with tag("div", classes="track"):
                    for bar in lane.bars:
                        _bar(reader, picture, bar)
        with tag("div", classes="lane"):
            with tag("span", classes="name"):
                reader.at(picture.first_ms)()
            with tag("div", classes="axis", **{"aria-hidden": "true"}):
                for at_ms in picture.ticks():
                    tick = tag("span", f"+{duration(at_ms - picture.first_ms)}")
                    tick.style(f"left: {picture.place(at_ms):.2f}%")
    if picture.left_out:
        tag("p", f"+ {picture.left_out}", "quiet")


def _bar(reader: PageReader, picture: Picture, bar: Bar) -> None:
    left, right = picture.place(bar.first_ms), picture.place(bar.end_ms)
    words = [_event_name(reader, bar.label), bar.outcome, duration(bar.duration_ms) if bar.duration_ms else ""]
    after = f"+{duration(bar.first_ms - picture.first_ms)}"
    error = reader.say("clock_error", time=duration(bar.error_ms)) if bar.error_ms else ""
    label = " ".join(word for word in (after, *words, bar.detail, error) if word)
    arrow = ARROWS.get(bar.tone, "")
    classes = f"bar {'arrow ' if arrow else ''}{bar.tone}"
    made = tag("span", arrow, classes, role="img", **{"aria-label": label, "title": label})
    made.style(f"left: {min(left, 99.5):.2f}%" + ("" if arrow else f"; width: {max(right - left, 0):.2f}%"))
    if bar.error_ms:
        begin, end = (picture.place(bar.first_ms + sign * bar.error_ms) for sign in (-1, 1))
        whisker = tag("span", classes="whisker", **{"aria-hidden": "true"})
        whisker.style(f"left: {max(begin, 0):.2f}%; width: {max(min(end, 100) - max(begin, 0), 0):.2f}%")


def _event_name(reader: PageReader, kind: str) -> str:
    return reader.say(kind) if kind in TEXTS else kind.lower().replace("_", " ")


def _verdicts(reader: PageReader, one: Trajectory) -> None:
    names = ("about", "verdicts", "meaning", "why", "client")
    with table([reader.say(name) for name in names], reader.say("verdicts")) as add:

        def row(about: str, said: tuple[str, ...], why: str, client: str = "") -> None:
            def chips() -> None:
                codes(reader, said)

            def meanings() -> None:
                for code in said:
                    known = trail.CODES.get(code)
                    if known:
                        words = f"{code_text(code, reader.language)} {code_advice(code, reader.language)}"
                        tag("div", f"{MARKS[known.severity]} {words}")

            add([about, chips, meanings, why, client])

        if one.send_codes:
            row(reader.say("send"), one.send_codes, "")
        if one.message_codes:
            row(reader.say("message"), one.message_codes, "")
        for group in one.groups:
            row(f"{reader.say('group')} {group.group_name}", group.codes, _why(group), group.client)
        row(reader.say("knowledge"), (one.knowledge,), "; ".join(one.reasons))


def _why(group: GroupVerdict) -> str:
    known = [f"{name.removeprefix('to_')} {duration(ms)}" for name, ms in group.split.items() if ms is not None]
    return "; ".join(part for part in (group.detail, group.dead_cause, *group.reasons, ", ".join(known)) if part)


def _events(reader: PageReader, one: Trajectory) -> None:
    known = [event.at_ms for event in one.events if event.at_ms]
    first_ms = min(known, default=0)
    names = ("time", "after", "event", "group", "outcome", "duration", "where", "detail", "evidence")
    with table([reader.say(name) for name in names], reader.say("timeline_text")) as add:
        changes = list(one.broker_changes)
        for event in one.events[:EVENTS_MAX]:
            while changes and (changes[0].at_ms or 0) < (event.at_ms or 0):
                add(_change_row(reader, changes.pop(0), first_ms))

            def shown(evidence: str = event.evidence) -> None:
                link(evidence, "/stored", evidence=evidence)

            add(
                [
                    reader.at(event.at_ms or None),
                    f"+{duration(event.at_ms - first_ms)}" if event.at_ms else UNKNOWN,
                    _event_name(reader, event.kind),
                    event.group_name,
                    event.outcome,
                    "" if event.duration_ms is None else duration(event.duration_ms),
                    event.place,
                    event.detail,
                    shown if evidence_place(event.evidence, "") else event.evidence,
                ]
            )
        for change in changes:
            add(_change_row(reader, change, first_ms))
    if len(one.events) > EVENTS_MAX:
        tag("p", f"+ {len(one.events) - EVENTS_MAX}", "quiet")


def _change_row(reader: PageReader, one: BrokerChange, first_ms: int) -> list[object]:
    """Return the row of an event of a broker among those of the message."""
    after = UNKNOWN if one.at_ms is None else f"{'+' if one.at_ms >= first_ms else ''}{duration(one.at_ms - first_ms)}"

    def shown() -> None:
        link(one.evidence, "/stored", evidence=one.evidence)

    return [
        reader.at(one.at_ms),
        after,
        reader.say("broker"),
        "",
        reader.say(f"event_{one.event}") if f"event_{one.event}" in TEXTS else one.event,
        "",
        f"{one.broker} {named_broker(one.address, one.broker_id)}",
        change_words(reader, one),
        shown if evidence_place(one.evidence, "") else one.evidence,
    ]


def change_words(reader: PageReader, one: BrokerChange) -> str:
    """Return epoch, reason, the master before and what was removed, as far as they are known."""
    reason = reader.say(f"election_{one.reason}") if one.reason in ELECTION_REASONS else one.reason
    words = [] if one.epoch is None else [f"{reader.say('epoch')} {one.epoch}"]
    words += [reason] if reason else []
    before = named_broker(one.before_address, one.before_id)
    if before:
        until = reader.moment(one.before_until_ms)
        words.append(f"{reader.say('master_before')}: {before}, {reader.say('master_until', at=until)}")
    if one.from_offset is not None and one.to_offset is not None:
        words.append(f"[{one.from_offset}, {one.to_offset}) {one.detail}")
    return "; ".join(words)


def draw_stored(reader: PageReader, one: StoredMessage) -> None:
    """Draw body and properties of a stored message."""
    bounds(reader, one.scope)
    if one.why:
        tag("p", f"{MARKS['warning']} {one.why}")
    if not one.is_hidden:
        _body(reader, one)
    tag("h2", reader.say("properties"))
    with table([reader.say("property"), reader.say("value")], reader.say("properties")) as add:
        for name, value in sorted(one.properties.items()):
            add([name, value])


def _body(reader: PageReader, one: StoredMessage) -> None:
    is_cut = one.body_size > len(one.body)
    size = "body_cut" if is_cut else "body_size"
    tag("p", reader.say(size, shown=f"{len(one.body):,}", size=f"{one.body_size:,}"))
    try:
        words = one.body.decode("utf-8", "ignore" if is_cut else "strict")
    except UnicodeDecodeError:
        words = None
    for name, content in (
        ("body_text", reader.say("body_not_text") if words is None else visible_lines(words)),
        ("body_json", _folded(words) or reader.say("body_not_json")),
        ("body_hex", hex_dump(one.body[:HEX_SIZE_MAX])),
    ):
        with tag("details", **({"open": ""} if name == "body_text" else {})):
            tag("summary", reader.say(name))
            lines(content)


def lines(content: str) -> None:
    """Add text of several lines whose control characters are escaped already."""
    tag("pre", tabindex="0").set_text(content)


def _folded(words: str | None) -> str:
    try:
        found = json.loads(words or "")
    except (ValueError, RecursionError):
        return ""
    return visible_lines(json.dumps(found, ensure_ascii=False, indent=2))


def hex_dump(body: bytes) -> str:
    """Return offset, bytes and printable ASCII of a body."""
    rows = []
    for at in range(0, len(body), HEX_WIDTH):
        some = body[at : at + HEX_WIDTH]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        rows.append(f"{at:08x}  {some.hex(' '):<{HEX_WIDTH * 3}} {printable}")
    return "\n".join(rows)
