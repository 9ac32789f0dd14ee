"""Latency: percentiles of each stage of delivery, by topic and group; the slowest handlers lead to messages."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail.answers import LatencyRow, LatencySegment, Report
from mqtrail.clock import now_ms

from .frame import Desk, PagePart, PageReader, bounds, commands, frame, lacks_lake, link, section, table, tag
from .heat import draw_heat, slowest_ms
from .looks import count, duration

ROWS_MAX: Final = 1_000


async def latency(desk: Desk, reader: PageReader, part: LatencySegment) -> None:
    """Draw a part of the way over time, and the percentiles of the last day of the lake."""
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
    lake = desk.sources.of_lake
    await ui.context.client.connected()
    await asyncio.gather(
        over_time.show(lambda: lake().latency(part, now_ms()), partial(draw_heat, reader)),
        whole.show(lambda: lake().report(now_ms(), worst=0, is_last_day=True), partial(_draw, reader)),
    )


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
