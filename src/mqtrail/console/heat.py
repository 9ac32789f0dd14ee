"""A heat map of latency: a row for each topic and group, a column for each span of time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final
from urllib.parse import quote

from nicegui import ui

from mqtrail import trail
from mqtrail.answers import LatencyHistory, LatencySegment, LatencySpan
from mqtrail.wire import visible

from .frame import PageReader, bounds, link, table, tag
from .looks import count, duration

ROWS_MAX: Final = 30  # of the map
TABLE_MAX: Final = 500
STEPS_MS: Final = (10, 100, 1_000, 10_000)
COLORS: Final = ("#2c7bb6", "#7fb8d6", "#e6c35c", "#e07b39", "#b2182b")  # between STEPS_MS, the slowest last
LABELS: Final = {"color": "#808890"}  # on light and on dark ground
GAP: Final = {"borderColor": "#808890", "borderWidth": 1}  # between cells


def draw_heat(reader: PageReader, history: LatencyHistory) -> None:
    """Draw the map and, for those who do not see it, its table. An empty cell: no duration is known."""
    bounds(reader, history.scope)
    spans = history.spans
    if not spans:
        tag("p", reader.say("no_latency"))
        return
    worst: dict[str, float] = {}
    for one in spans:
        name = _row_name(history, one)
        worst[name] = max(worst.get(name, 0), one.p99_ms)
    rows = sorted(worst, key=lambda name: (-worst[name], name))[:ROWS_MAX][::-1]
    tag("p", reader.say("heat_text"), "quiet")
    _map(reader, history, rows)
    if len(worst) > ROWS_MAX:
        tag("p", f"+ {len(worst) - ROWS_MAX}", "quiet")
    _table(reader, history)


def _row_name(history: LatencyHistory, one: LatencySpan) -> str:
    names = (one.cluster if history.scope.is_mixed else "", one.topic, one.group_name)
    return visible(" / ".join(name for name in names if name))


def _map(reader: PageReader, history: LatencyHistory, rows: list[str]) -> None:
    first_ms, last_ms, step_ms = history.spans[0].at_ms, history.spans[-1].at_ms, history.step_ms
    times = list(range(first_ms, last_ms + 1, step_ms))
    row_of = {name: number for number, name in enumerate(rows)}
    shown = [one for one in history.spans if _row_name(history, one) in row_of]
    cells = [
        [(one.at_ms - first_ms) // step_ms, row_of[_row_name(history, one)], round(one.p99_ms, 1)] for one in shown
    ]
    options = {
        "animation": False,
        "aria": {"enabled": True, "label": {"description": reader.say("heat_text")}},
        "tooltip": {"renderMode": "richText"},
        "grid": {"left": 130, "right": 12, "top": 8, "bottom": 66},
        "xAxis": {"type": "category", "data": [reader.moment(at)[5:16] for at in times], "axisLabel": LABELS},
        "yAxis": {"type": "category", "data": rows, "axisLabel": {"width": 116, "overflow": "truncate", **LABELS}},
        "visualMap": {
            "type": "piecewise",
            "orient": "horizontal",
            "bottom": 0,
            "left": "center",
            "textStyle": LABELS,
            "pieces": _pieces(),
        },
        "series": [{"type": "heatmap", "name": reader.say("almost_all"), "data": cells, "itemStyle": GAP}],
    }

    def open_cell(event: Any) -> None:
        if query := slowest_query(history, shown[event.data_index]):
            ui.navigate.to(f"/search?q={quote(query)}")

    made = ui.echart(options, on_point_click=open_cell).classes("chart")
    made.style(f"height: {100 + 26 * max(len(rows), 3)}px; width: 100%")


def _pieces() -> list[dict[str, Any]]:
    ends = [None, *STEPS_MS, None]
    return [
        {
            **({} if least is None else {"gte": least}),
            **({} if end is None else {"lt": end}),
            "color": color,
            "label": f"≥ {duration(least)}" if end is None else f"< {duration(end)}",
        }
        for (least, end), color in zip(pairwise(ends), COLORS, strict=True)
    ]


def slowest_query(history: LatencyHistory, one: LatencySpan) -> str:
    """Return the search for the slowest handlers of a cell; '' for a part that no search condition names.

    A handler begins after its message was published, so the search has no earliest time: it shows the latest first.
    """
    least_ms = slowest_ms(one.p99_ms)
    if history.segment is not LatencySegment.HANDLER or least_ms < 1:
        return ""
    end_ms = one.at_ms + history.step_ms
    return f'topic:"{one.topic}" group:"{one.group_name}" handler>{least_ms}ms to:{end_ms}'


def slowest_ms(p99_ms: float) -> int:
    """Return where the bucket that contains the percentile begins."""
    return int((p99_ms + 1) / 2 ** (1 / trail.BUCKETS_A_DOUBLING)) - 1


def _table(reader: PageReader, history: LatencyHistory) -> None:
    names = ("time", "topic", "group", "message_count", "half", "almost_all", "longest", "slowest")
    slowest_first = sorted(history.spans, key=lambda one: -one.p99_ms)
    with tag("details"):
        tag("summary", reader.say("heat_table"))
        with table([reader.say(name) for name in names], reader.say("heat_table")) as add:
            for one in slowest_first[:TABLE_MAX]:
                query = slowest_query(history, one)

                def slowest(query: str = query, one: LatencySpan = one) -> None:
                    least = duration(slowest_ms(one.p99_ms))
                    link(reader.say("handler_from", least=least), "/search", q=query)

                about = (f"{one.cluster} / {one.topic}" if history.scope.is_mixed else one.topic, one.group_name)
                times = (duration(one.p50_ms), duration(one.p99_ms), duration(one.max_ms))
                add([reader.at(one.at_ms), *about, count(one.message_count), *times, slowest if query else ""])
        if len(history.spans) > TABLE_MAX:
            tag("p", f"+ {len(history.spans) - TABLE_MAX}", "quiet")
