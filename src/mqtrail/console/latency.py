"""Latency: percentiles of each part of a message's way, by topic and group; the slowest handlers lead to messages."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from nicegui import ui

from mqtrail import trail
from mqtrail.answers import LatencyRow, Report
from mqtrail.client.core import now_ms

from .frame import Desk, PagePart, PageReader, bounds, commands, frame, link, start_with, table, tag
from .looks import count, duration

ROWS_MAX: Final = 1_000


async def latency(desk: Desk, reader: PageReader) -> None:
    """Draw the percentiles of all messages of the lake."""
    with frame(reader, reader.say("latency")):
        if desk.sources.lake is None:
            start_with(reader, "no_lake", "mqtrail console --lake DIR")
            return
        tag("p", reader.say("latency_text"), "quiet")
        part = PagePart(desk, reader)
        commands(reader, ["mqtrail", "report", "--lake", str(desk.sources.lake)], "/report")
    lake = desk.sources.of_lake
    await ui.context.client.connected()
    await part.show(lambda: lake().report(now_ms(), worst=0), partial(_draw, reader))


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
    least_ms = int((one.p99_ms + 1) / 2 ** (1 / trail.BUCKETS_A_DOUBLING)) - 1  # where the bucket of p99 begins
    if one.segment != "handler" or least_ms < 1:
        return ""
    query = f'topic:"{one.topic}" group:"{one.group_name}" handler>{least_ms}ms'
    return lambda: link(reader.say("handler_from", least=duration(least_ms)), "/search", q=query)
