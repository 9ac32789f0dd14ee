"""The first page: what is wrong, verdicts over time, groups that wait, brokers, how fresh the lake is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from nicegui import background_tasks, ui

from mqtrail import trail
from mqtrail.answers import FreshnessAnswer, LagAnswer, NameServersAnswer, Report, VerdictHistory
from mqtrail.clock import now_ms
from mqtrail.trail import Settings

from .advice import code_advice
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
    lacks_cluster,
    lacks_lake,
    link,
    section,
    table,
    tag,
)
from .groups import draw_waits
from .incidents import draw_open, found_incidents
from .looks import count, duration, local_ms
from .texts import code_text

LIVE_S: Final = 15.0
CAUSES_S: Final = 300.0  # a search for incidents takes seconds, so viewers share it for longer than the rest
SOURCES_MAX: Final = 100
BRUSH: Final = """() => {{
  const chart = getElement({id})?.chart;
  if (!chart || chart.isBrushed) return;
  chart.isBrushed = true;
  chart.dispatchAction({{
    type: "takeGlobalCursor", key: "brush", brushOption: {{ brushType: "lineX", brushMode: "single" }} }});
}}"""
"""Lets a pointer draw a range over a chart as soon as it is there."""
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
        with section(reader.say("open_incidents")):
            causes = _lake_part(desk, reader)
        with section(reader.say("verdicts_over_time")):
            history = _lake_part(desk, reader)
            chart = _Chart(reader)
            if history:
                chart.form()
        with section(reader.say("groups")):
            lag = _cluster_part(desk, reader)
        with section(reader.say("freshness")):
            fresh = _lake_part(desk, reader)
        with section(reader.say("brokers")):
            brokers = _cluster_part(desk, reader)
        with section(reader.say("name_servers")):
            servers = _cluster_part(desk, reader)

    searches: list[asyncio.Task[None]] = []

    async def search(part: PagePart) -> None:
        async with desk.one_search.turn:
            with live:  # a task of its own begins outside of the page
                ask = partial(desk.one_search.alone, lambda: found_incidents(desk, CAUSES_S))
                await part.show(ask, partial(draw_open, reader), is_kept=True)

    async def load() -> None:
        asked: list[Any] = []
        if causes and all(one.done() for one in searches):  # the other parts do not wait for it
            searches[:] = [background_tasks.create(search(causes))]
        if wrong and history and fresh:
            lake = desk.sources.of_lake
            asked.append(
                wrong.show(lambda: lake().report(now_ms(), worst=0, is_last_day=True), lambda one: _wrong(reader, one))
            )
            asked.append(history.show(lambda: lake().history(now_ms(), is_last_day=True), chart.draw, is_kept=True))
            asked.append(
                fresh.show(lambda: lake().freshness(now_ms()), partial(_freshness, desk.sources.settings, reader))
            )
        if lag and brokers and servers:
            live_cluster = desk.sources.of_cluster()
            asked.append(lag.show(lambda: live_cluster.overview().lag(), lambda one: _lag(reader, one)))
            asked.append(
                brokers.show(
                    lambda: live_cluster.overview().brokers(), lambda one: draw_brokers(reader, one, has_counters=False)
                )
            )
            asked.append(servers.show(lambda: live_cluster.overview().name_servers(), partial(_name_servers, reader)))
        await asyncio.gather(*asked)

    await keep_live(live, load, LIVE_S)


def _lake_part(desk: Desk, reader: PageReader) -> PagePart | None:
    return None if lacks_lake(desk, reader) else PagePart(desk, reader)


def _cluster_part(desk: Desk, reader: PageReader) -> PagePart | None:
    return None if lacks_cluster(desk, reader) else PagePart(desk, reader)


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

            advice = code_advice(one.code, reader.language)
            add([code, one.about, number, code_text(one.code, reader.language), advice, example])


class _Chart:
    """Verdicts over time, stacked. A click on a bar leads to its messages, as does a range drawn over several."""

    def __init__(self, reader: PageReader) -> None:
        self._reader = reader
        self._drawn: VerdictHistory | None = None
        self._ends = {"from": "", "to": ""}

    def form(self) -> None:
        """Draw fields for a range: what a pointer draws over the chart, by keyboard. A new chart leaves them alone."""
        reader = self._reader
        with tag("div", classes="tools"):
            for name, words in (("from", reader.say("range_from")), ("to", reader.say("range_to"))):
                with tag("label"):
                    tag("span", f"{words} ")
                    field = tag("input", type="datetime-local", step="1")
                    field.on("input", partial(self._set_end, name), js_handler="(event) => emit(event.target.value)")
            tag("button", reader.say("show_range"), type="button").on("click", self._open_typed)

    def _set_end(self, name: str, event: Any) -> None:
        self._ends[name] = str(event.args)[:32]

    def _open_typed(self) -> None:
        first_ms, end_ms = (local_ms(self._ends[name], self._reader.zone) for name in ("from", "to"))
        if first_ms is not None or end_ms is not None:
            self._open(first_ms, end_ms)

    def _open(self, first_ms: int | None, end_ms: int | None) -> None:
        """Go to the messages of a range that have one of the verdicts drawn there."""
        codes: list[str] = []
        if (drawn := self._drawn) is not None:
            begin = -1 if first_ms is None else first_ms - drawn.step_ms  # a span may begin before the range
            found = [one for one in drawn.counts if one.severity in SHOWN and one.at_ms > begin]
            codes = list(dict.fromkeys(one.code for one in found if end_ms is None or one.at_ms < end_ms))
        words = [f"verdict:{code}" for code in codes]
        words += [f"{name}:{at}" for name, at in (("from", first_ms), ("to", end_ms)) if at is not None]
        ui.navigate.to(f"/search?q={quote(' '.join(words))}")

    def draw(self, history: VerdictHistory) -> None:
        """Draw the chart and, for those who do not see it, its table."""
        reader = self._reader
        self._drawn = history
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
            "brush": {"xAxisIndex": 0, "toolbox": []},
        }
        tag("p", reader.say("chart_text"), "quiet")

        def open_span(event: Any) -> None:
            at = times[event.data_index]
            code = event.series_name.split(" ")[-1]
            query = f"verdict:{code} from:{at} to:{at + history.step_ms}"
            ui.navigate.to(f"/search?q={quote(query)}")

        def open_range(event: Any) -> None:
            if span := brushed(event.args.get("areas"), times, history.step_ms):
                self._open(*span)

        chart = ui.echart(options, on_point_click=open_span).classes("chart").style("height: 260px; width: 100%")
        chart.on("chart:finished", js_handler=BRUSH.format(id=chart.id))
        chart.on("chart:brushEnd", open_range, ["areas"])
        if history.undated_count:
            tag("p", reader.say("undated", count=count(history.undated_count)), "quiet")
        with (
            tag("details"),
            tag_summary(reader),
            table([reader.say("time"), reader.say("code"), reader.say("message_count")], reader.say("code")) as add,
        ):
            for one in bad[:500]:
                add([reader.at(one.at_ms), one.code, one.message_count])


def brushed(areas: Any, times: Sequence[int], step_ms: int) -> tuple[int, int] | None:
    """Return [first, end) in ms of what the reader drew over the chart; None: nothing, as after a click."""
    try:
        first, last = (int(one) for one in areas[0]["coordRange"])
    except (TypeError, ValueError, LookupError, OverflowError):
        return None
    if not (0 <= first <= last < len(times)):
        return None
    return times[first], times[last] + step_ms


def tag_summary(reader: PageReader) -> Any:
    """Add the summary of a table that can be opened, and return its content."""
    tag("summary", reader.say("verdicts_over_time"))
    return tag("div")


def _freshness(settings: Settings, reader: PageReader, answer: FreshnessAnswer) -> None:
    """Draw until when the lake knows each source; a source that is old, or unknown, is marked."""
    bounds(reader, answer.scope)
    if not answer.sources:
        tag("p", f"{MARKS['warning']} {reader.say('not_sampled')}")
        return
    names = ("source", "known_until", "behind", "why")
    with table([reader.say(name) for name in names], reader.say("freshness")) as add:
        for one in answer.sources[:SOURCES_MAX]:
            words = " ".join(part for part in (reader.say(f"fresh_{one.source}"), one.broker_name) if part)
            source = f"{one.cluster} / {words}" if answer.scope.is_mixed else words
            behind_ms = None if one.known_ms is None else max(0, now_ms() - one.known_ms)
            is_late = behind_ms is None or behind_ms > settings.state_age_ms_max
            mark = MARKS["warning" if is_late or one.why else "good"]
            add([f"{mark} {source}", reader.at(one.known_ms), duration(behind_ms), one.why])
    if len(answer.sources) > SOURCES_MAX:
        tag("p", f"+ {len(answer.sources) - SOURCES_MAX}", "quiet")


def _name_servers(reader: PageReader, answer: NameServersAnswer) -> None:
    """Draw which name servers answer; those that do not are among the omissions."""
    bounds(reader, answer.scope, is_open=True)
    with tag("ul"):
        for address in sorted(answer.settings):
            tag("li", f"{MARKS['good']} {address}")
    if answer.differing:
        tag("p", f"{MARKS['warning']} {reader.say('settings_differ', names=', '.join(answer.differing))}")
    with tag("p"):
        link(reader.say("name_servers"), "/name-servers")


def _lag(reader: PageReader, answer: LagAnswer) -> None:
    bounds(reader, answer.scope, is_open=True)
    draw_waits(reader, answer, rows_max=10)
