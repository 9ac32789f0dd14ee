"""The first page: what is wrong, verdicts over time, groups that wait, brokers, how fresh the lake is."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from nicegui import ui

from mqtrail import trail
from mqtrail.answers import LagAnswer, Report, VerdictHistory
from mqtrail.clock import now_ms

from .cluster import draw_brokers
from .frame import (
    MARKS,
    Desk,
    PagePart,
    PageReader,
    bounds,
    codes,
    frame,
    keep_live,
    link,
    section,
    start_with,
    table,
    tag,
)
from .groups import draw_waits
from .looks import count, duration
from .texts import code_text

LIVE_S: Final = 15.0
SHOWN: Final = ("error", "warning", "open")
COLORS: Final = ("#b42318", "#b54708", "#175cd3", "#6941c6", "#c11574", "#4e5ba6", "#0e7090", "#3b7c0f", "#854a0e")


async def home(desk: Desk, reader: PageReader) -> None:
    """Draw the page, then load its parts side by side."""
    with frame(reader, reader.say("home")):
        with tag("form", classes="tools", action="/message", method="get"):
            tag("label", reader.say("trace_one"), **{"for": "asked"})
            tag("input", name="id", id="asked", required="", maxlength="1000", placeholder=reader.say("id_or_key"))
            tag("button", reader.say("look_up"), type="submit")
        live = ui.switch(reader.say("live"), value=True)
        with section(reader.say("what_is_wrong")):
            wrong = _lake_part(desk, reader)
        with section(reader.say("verdicts_over_time")):
            history = _lake_part(desk, reader)
        with section(reader.say("groups")):
            lag = _cluster_part(desk, reader)
        with section(reader.say("brokers")):
            brokers = _cluster_part(desk, reader)
    chart = _Chart(reader)

    async def load() -> None:
        asked: list[Any] = []
        if wrong and history:
            lake = desk.sources.of_lake
            asked.append(
                wrong.show(lambda: lake().report(now_ms(), worst=0, is_last_day=True), lambda one: _wrong(reader, one))
            )
            asked.append(history.show(lambda: lake().history(now_ms(), is_last_day=True), chart.draw))
        if lag and brokers:
            live_cluster = desk.sources.of_cluster()
            asked.append(lag.show(live_cluster.lag, lambda one: _lag(reader, one)))
            asked.append(brokers.show(live_cluster.brokers, lambda one: draw_brokers(reader, one, has_counters=False)))
        await asyncio.gather(*asked)

    await keep_live(live, load, LIVE_S)


def _lake_part(desk: Desk, reader: PageReader) -> PagePart | None:
    if desk.sources.lake is not None:
        return PagePart(desk, reader)
    start_with(reader, "no_lake", "mqtrail pipeline once --namesrv HOST:PORT --lake DIR\nmqtrail console --lake DIR")
    return None


def _cluster_part(desk: Desk, reader: PageReader) -> PagePart | None:
    if desk.sources.live is not None:
        return PagePart(desk, reader)
    start_with(reader, "no_cluster", "mqtrail console --namesrv HOST:PORT")
    return None


def _wrong(reader: PageReader, report: Report) -> None:
    bounds(reader, report.scope)
    age = duration(now_ms() - report.scope.as_of_ms)
    with tag("p", classes="quiet"):
        tag("span", f"{reader.say('judged')}: {count(report.message_count)} · {reader.say('age', age=age)}")
        tag("span", f" · {reader.say('rejects')}: {count(report.rejects)} · {reader.say('gaps')}: {len(report.gaps)}")
    bad = [one for one in report.codes if one.severity in SHOWN]
    if not bad:
        tag("p", reader.say("nothing_wrong"))
        return
    since = f" from:{report.scope.first_ms}"
    names = ("code", "about", "message_count", "meaning", "advice", "example")
    with table([reader.say(name) for name in names], reader.say("what_is_wrong")) as add:
        for one in bad:
            about = one.about if one.about in ("send", "message", "knowledge") else f"group:{one.about}"
            query = f"verdict:{one.code}" + (f' group:"{one.about}"' if about.startswith("group:") else "") + since

            def code(one: Any = one) -> None:
                codes(reader, [one.code])

            def number(one: Any = one, query: str = query) -> None:
                link(count(one.message_count), "/search", q=query)

            def example(one: Any = one) -> None:
                link(one.example, "/message", id=one.example)

            advice = trail.CODES[one.code].advice
            add([code, one.about, number, code_text(one.code, reader.language), advice, example])


class _Chart:
    """Verdicts over time, stacked. A click on a bar leads to its messages."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader

    def draw(self, history: VerdictHistory) -> None:
        """Draw the chart and, for those who do not see it, its table."""
        reader = self._reader
        bad = [one for one in history.counts if one.severity in SHOWN]
        if not bad:
            tag("p", reader.say("nothing_wrong"))
            return
        totals = Counter[str]()
        for one in bad:
            totals[one.code] += one.message_count
        spans = sorted({one.at_ms for one in history.counts})
        times = list(range(spans[0], spans[-1] + 1, history.step_ms))
        found = {(one.at_ms, one.code): one.message_count for one in bad}
        series = [
            {
                "type": "bar",
                "stack": "verdicts",
                "name": f"{MARKS[trail.CODES[code].severity]} {code}",
                "data": [found.get((at, code), 0) for at in times],
            }
            for code, _ in totals.most_common(len(COLORS))
        ]
        options = {
            "color": list(COLORS),
            "animation": False,
            "aria": {"enabled": True, "decal": {"show": True}},
            "tooltip": {"trigger": "axis", "renderMode": "richText"},
            "legend": {"type": "scroll", "top": 0, "textStyle": {"color": "#808890"}},
            "grid": {"left": 50, "right": 16, "bottom": 30, "top": 44},
            "xAxis": {"type": "category", "data": [reader.moment(at)[5:19] for at in times]},
            "yAxis": {"type": "value", "minInterval": 1},
            "series": series,
        }
        tag("p", reader.say("chart_text"), "quiet")

        def open_span(event: Any) -> None:
            at = times[event.data_index]
            code = event.series_name.split(" ")[-1]
            query = f"verdict:{code} from:{at} to:{at + history.step_ms}"
            ui.navigate.to(f"/search?q={query.replace(' ', '%20')}")

        ui.echart(options, on_point_click=open_span).classes("chart").style("height: 260px; width: 100%")
        if history.undated_count:
            tag("p", reader.say("undated", count=count(history.undated_count)), "quiet")
        with (
            tag("details"),
            tag_summary(reader),
            table([reader.say("time"), reader.say("code"), reader.say("message_count")], reader.say("code")) as add,
        ):
            for one in bad[:500]:
                add([reader.at(one.at_ms), one.code, one.message_count])


def tag_summary(reader: PageReader) -> Any:
    """Add the summary of a table that can be opened, and return its content."""
    tag("summary", reader.say("verdicts_over_time"))
    return tag("div")


def _lag(reader: PageReader, answer: LagAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    draw_waits(reader, answer, rows_max=10)
