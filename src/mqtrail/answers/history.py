"""Verdicts and latency over time."""

from __future__ import annotations

from typing import Final

from mqtrail import trail
from mqtrail.lake import fetch

from .lakeview import LakeView
from .model import LatencyRow, LatencySegment
from .search import between, latency_rows, percentiles_sql
from .summaries import (
    LatencyChange,
    LatencyComparison,
    LatencyHistory,
    LatencySpan,
    SpanCount,
    TimeSpan,
    VerdictHistory,
)
from .views import PUBLISHED_MS

STEPS_MS: Final = tuple(
    seconds * 1_000 for seconds in (1, 5, 15, 60, 300, 900, 3_600, 4 * 3_600, 24 * 3_600, 7 * 24 * 3_600)
)
MINUTE_MS: Final = 60_000  # of latency_minute
LATENCY_SPANS_MAX: Final = 48  # columns of a heat map
SPANS_MAX: Final = 120  # most spans of one answer: the shortest step that needs no more is chosen


def verdict_history(view: LakeView, now_ms: int, first_ms: int | None, end_ms: int | None) -> VerdictHistory:
    """Return how many messages published in [first_ms, end_ms) have each code, by time. None: the lake's own end."""
    view.define_views(first_ms, end_ms)
    duck = view.connection
    where, values = between(first_ms, end_ms)
    bounds = f"min({PUBLISHED_MS}), max({PUBLISHED_MS}), count(*), count({PUBLISHED_MS})"
    earliest_ms, latest_ms, count, dated_count = duck.execute(
        f"SELECT {bounds} FROM trajectories AS t WHERE {where}", values
    ).fetchall()[0]
    step_ms = step_of((latest_ms or 0) - (earliest_ms or 0))
    texts = ("t.send_codes", "t.message_codes", "t.group_codes", "t.knowledge")
    codes = f"list_distinct(string_split(concat_ws(',', {', '.join(texts)}), ','))"
    rows = fetch(
        duck,
        f"""SELECT at_ms, code, sum(n)::bigint AS n FROM (SELECT at_ms, n, unnest({codes}) AS code
          FROM (SELECT {PUBLISHED_MS} // {step_ms} * {step_ms} AS at_ms, {", ".join(texts)}, count(*) AS n
            FROM trajectories AS t WHERE {where} AND {PUBLISHED_MS} IS NOT NULL GROUP BY ALL) AS t)
        WHERE code <> '' GROUP BY at_ms, code ORDER BY at_ms, code""",
        values,
    )
    counts = tuple(SpanCount(row["at_ms"], row["code"], trail.CODES[row["code"]].severity, row["n"]) for row in rows)
    return VerdictHistory(
        view.scope(now_ms, first_ms=first_ms, end_ms=end_ms), step_ms, count, count - dated_count, counts
    )


def latency_history(
    view: LakeView, segment: LatencySegment, now_ms: int, first_ms: int | None, end_ms: int | None
) -> LatencyHistory:
    """Return the latency of a segment that began in [first_ms, end_ms), by time, topic and group."""
    view.define_views()
    duck = view.connection
    where = "segment = ? AND minute_ms >= ? AND minute_ms < ?"
    values = [segment.value, (first_ms or 0) // MINUTE_MS * MINUTE_MS, end_ms or 1 << 62]
    bounds = f"SELECT min(minute_ms), max(minute_ms) FROM latency_minute WHERE {where}"
    earliest_ms, latest_ms = duck.execute(bounds, values).fetchall()[0]
    step_ms = max(MINUTE_MS, step_of((latest_ms or 0) - (earliest_ms or 0), LATENCY_SPANS_MAX))
    text = percentiles_sql("cluster, topic, group_name", where, f"minute_ms // {step_ms} * {step_ms}")
    rows = fetch(duck, f"{text} ORDER BY at_ms, cluster, topic, group_name", values)
    spans = tuple(
        LatencySpan(
            at_ms=row["at_ms"],
            cluster=row["cluster"],
            topic=row["topic"],
            group_name=row["group_name"],
            message_count=int(row["n"]),
            p50_ms=float(row["p50"]),
            p99_ms=float(row["p99"]),
            max_ms=float(row["highest"]),
        )
        for row in rows
    )
    return LatencyHistory(view.scope(now_ms), segment, step_ms, spans)


def latency_comparison(
    view: LakeView, now_ms: int, before: TimeSpan, after: TimeSpan, segment: LatencySegment | None
) -> LatencyComparison:
    """Return the latency of two spans side by side. segment: only this one; None: all, so that the split is seen."""
    view.define_views()
    found = [
        {
            (one.cluster, one.topic, one.group_name, one.segment): one
            for one in latency_rows(view.connection, span.first_ms, span.end_ms)
            if segment in (None, one.segment)
        }
        for span in (before, after)
    ]
    places = {str(name): number for number, name in enumerate(LatencySegment)}
    keys = sorted({*found[0], *found[1]}, key=lambda key: (*key[:3], places.get(key[3], len(places))))
    changes = tuple(_change(key, found[0].get(key), found[1].get(key)) for key in keys)
    scope = view.scope(now_ms, first_ms=after.first_ms, end_ms=after.end_ms)
    return LatencyComparison(scope, before, after, changes)


def _change(key: tuple[str, str, str, str], before: LatencyRow | None, after: LatencyRow | None) -> LatencyChange:
    cluster, topic, group, segment = key
    changed: tuple[float | None, float | None, float | None] = (None, None, None)
    if before is not None and after is not None:
        changed = (after.p50_ms - before.p50_ms, after.p99_ms - before.p99_ms, after.max_ms - before.max_ms)
    p50_ms, p99_ms, max_ms = changed
    return LatencyChange(
        cluster=cluster,
        topic=topic,
        group_name=group,
        segment=segment,
        before=before,
        after=after,
        p50_change_ms=p50_ms,
        p99_change_ms=p99_ms,
        max_change_ms=max_ms,
    )


def step_of(range_ms: int, spans_max: int = SPANS_MAX) -> int:
    """Return the shortest of STEPS_MS that divides a range into spans_max spans or fewer, otherwise the longest."""
    return next((step for step in STEPS_MS if range_ms // step + 2 <= spans_max), STEPS_MS[-1])
