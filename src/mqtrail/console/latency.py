"""Latency: percentiles of each stage of delivery, by topic and group; the slowest handlers lead to messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import (
    LatencyComparison,
    LatencyRow,
    LatencySegment,
    Report,
    TimeSpan,
    change_text,
    moment_text,
)
from mqtrail.clock import now_ms

from .frame import MARKS, Desk, PagePart, PageReader, bounds, commands, frame, lacks_lake, link, section, table, tag
from .heat import draw_heat, slowest_ms
from .looks import count, duration, local_ms

ROWS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class AskedSpans:
    """The times of the page's address, as fields of a form have them: [first, end), and the begin to compare with."""

    first: str = ""
    end: str = ""
    against: str = ""

    def spans(self, zone: tzinfo) -> tuple[TimeSpan, TimeSpan] | None:
        """Return the span to compare with, then the other; None: a time is missing, or the end is before the begin."""
        first_ms, end_ms, against_ms = (local_ms(text, zone) for text in (self.first, self.end, self.against))
        if first_ms is None or end_ms is None or against_ms is None or end_ms <= first_ms:
            return None
        return TimeSpan(against_ms, against_ms + end_ms - first_ms), TimeSpan(first_ms, end_ms)


async def latency(desk: Desk, reader: PageReader, part: LatencySegment, asked: AskedSpans) -> None:
    """Draw a part of the way over time, the percentiles of the last day of the lake, and two spans side by side."""
    with frame(reader, reader.say("latency")):
        if lacks_lake(desk, reader):
            return
        folder = str(desk.sources.lake)
        with section(reader.say("heat")):
            _choice(reader, part)
            over_time = PagePart(desk, reader)
            commands(reader, ["mqtrail", "latency", "--part", part, "--lake", folder], "/latency", part=part)
        with section(reader.say("all_parts")):
            tag("p", reader.say("latency_text"), "quiet")
            whole = PagePart(desk, reader)
            commands(reader, ["mqtrail", "report", "--lake", folder], "/report")
        with section(reader.say("compare_spans")):
            compared, spans = _compare(desk, reader, part, asked), asked.spans(reader.zone)
    lake = desk.sources.of_lake
    await ui.context.client.connected()
    await asyncio.gather(
        over_time.show(lambda: lake().latency(part, now_ms()), partial(draw_heat, reader)),
        whole.show(lambda: lake().report(now_ms(), worst=0, is_last_day=True), partial(_draw, reader)),
        *(
            [compared.show(lambda: lake().compare_latency(*spans, now_ms()), partial(_draw_changes, reader))]
            if compared is not None and spans is not None
            else []
        ),
    )


def _compare(desk: Desk, reader: PageReader, part: LatencySegment, asked: AskedSpans) -> PagePart | None:
    """Draw the form of two spans, and return the part for their comparison; None: they are not chosen."""
    tag("p", reader.say("compare_text"), "quiet")
    with tag("form", classes="tools", action="/latency", method="get"):
        tag("input", type="hidden", name="part", value=part)
        for name, value, words in (
            ("from", asked.first, "range_from"),
            ("to", asked.end, "range_to"),
            ("against", asked.against, "compare_with"),
        ):
            with tag("label"):
                tag("span", f"{reader.say(words)} ")
                tag("input", type="datetime-local", step="1", name=name, value=value, required="")
        tag("button", reader.say("compare"), type="submit")
    spans = asked.spans(reader.zone)
    if spans is None:
        if asked != AskedSpans():
            tag("p", f"{MARKS['error']} {reader.say('compare_wrong')}", "problem", role="alert")
        return None
    compared = PagePart(desk, reader)
    before, after = spans
    times = {"from": after.first_ms, "to": after.end_ms, "against": before.first_ms}
    texts = {name: moment_text(at_ms, "%Y-%m-%dT%H:%M:%S") for name, at_ms in times.items()}
    options = [word for name, text in texts.items() for word in (f"--{name}", text)]
    commands(reader, ["mqtrail", "latency", *options, "--lake", str(desk.sources.lake)], "/latency/compare", **texts)
    return compared


def _draw_changes(reader: PageReader, found: LatencyComparison) -> None:
    """Draw both spans side by side, a row for each topic, group and stage."""
    bounds(reader, found.scope)
    if not found.changes:
        tag("p", reader.say("no_latency"))
        return
    ends = ((one.first_ms, one.end_ms) for one in (found.before, found.after))
    shown = [" – ".join(reader.moment(at_ms)[:19] for at_ms in both) for both in ends]
    tag("p", " → ".join(shown))
    names = ("topic", "group", "part", "message_count", "half", "almost_all", "longest")
    with table([reader.say(name) for name in names], reader.say("compare_spans")) as add:
        for one in found.changes[:ROWS_MAX]:
            rows = (one.before, one.after)
            topic = f"{one.cluster} / {one.topic}" if found.scope.is_mixed else one.topic
            counts = " → ".join("–" if row is None else count(row.message_count) for row in rows)
            p50, p99, longest = ([getattr(row, name, None) for row in rows] for name in ("p50_ms", "p99_ms", "max_ms"))
            part = reader.say(f"part_{one.segment}")
            add([topic, one.group_name, part, counts, change_text(*p50), change_text(*p99), change_text(*longest)])
    if len(found.changes) > ROWS_MAX:
        tag("p", f"+ {len(found.changes) - ROWS_MAX}", "quiet")


def _choice(reader: PageReader, part: LatencySegment) -> None:
    with tag("nav", classes="tools", **{"aria-label": reader.say("part")}):
        for one in LatencySegment:
            is_here = one is part
            made = link(reader.say(f"part_{one}"), "/latency", "here" if is_here else "", part=one)
            made.props.update({"aria-current": "true"} if is_here else {})


def _draw(reader: PageReader, report: Report) -> None:
    bounds(reader, report.scope)
    if not report.latency:
        tag("p", reader.say("no_latency"))
        return
    names = ("topic", "group", "part", "message_count", "half", "almost_all", "longest", "slowest")
    with table([reader.say(name) for name in names], reader.say("latency")) as add:
        for one in report.latency[:ROWS_MAX]:
            times = (duration(one.p50_ms), duration(one.p99_ms), duration(one.max_ms))
            part = reader.say(f"part_{one.segment}")
            topic = f"{one.cluster} / {one.topic}" if report.scope.is_mixed else one.topic
            add([topic, one.group_name, part, count(one.message_count), *times, _slowest(reader, one)])
    if len(report.latency) > ROWS_MAX:
        tag("p", f"+ {len(report.latency) - ROWS_MAX}", "quiet")


def _slowest(reader: PageReader, one: LatencyRow) -> Any:
    """Return what draws a link to the slowest hundredth; '' for a part that no search condition names."""
    least_ms = slowest_ms(one.p99_ms)
    if one.segment != "handler" or least_ms < 1:
        return ""
    query = f'topic:"{one.topic}" group:"{one.group_name}" handler>{least_ms}ms'
    return lambda: link(reader.say("handler_from", least=duration(least_ms)), "/search", q=query)
