"""Renders a report for a terminal of 80 columns: what is wrong comes first, and every table has a limited length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mqtrail.answers import (
    CodeCount,
    LagRow,
    LatencyComparison,
    LatencyHistory,
    LatencyRow,
    Report,
    change_line,
    change_text,
    duration_text,
)

from .draw import day_clock, scope_line, style_of, thresholds, timeline

T = TypeVar("T")
GAPS_SHOWN_MAX = 5
TOTAL, SEND = "total", "send"


def report(found: Report, rows_max: int) -> RenderableType:
    """Render a report: codes with counts, latency, lag, the worst messages, and the scope; rows_max rows a table."""
    is_mixed = found.scope.is_mixed
    parts: list[RenderableType] = [
        *_codes(found.codes, rows_max, is_mixed=is_mixed),
        Text(),
        *_latency(found.latency, rows_max, is_mixed=is_mixed),
        Text(),
        *_lag(found.lag, rows_max, is_mixed=is_mixed),
    ]
    if found.broker_changes:
        parts += [Text(), Text("Changes of brokers, the latest first", style="italic")]
        parts += [Text(f"{day_clock(one.at_ms)}  {change_line(one)}") for one in found.broker_changes[:rows_max]]
    if found.worst:
        parts += [Text(), Text("Worst trajectories", style="italic")]
        parts += [timeline(one, is_mixed=is_mixed) for one in found.worst]
    if found.rejects:
        parts.append(Text(f"{found.rejects} trace records did not decode: see trace_rejects", style="yellow"))
    parts.extend(Text(f"gap: {gap}", style="yellow") for gap in found.gaps[:GAPS_SHOWN_MAX])
    if len(found.gaps) > GAPS_SHOWN_MAX:
        parts.append(Text(f"{len(found.gaps) - GAPS_SHOWN_MAX} further gaps: see --json", style="yellow"))
    parts.extend(thresholds(found.judged_with))
    parts.append(Text(f"{found.message_count} messages"))
    parts.append(scope_line(found.scope))
    return Group(*parts)


def _table(title: str, left: Sequence[str], right: Sequence[str], last: str, *, is_mixed: bool) -> Table:
    """is_mixed: the first column is the cluster of each row."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in _named("cluster", is_mixed) + tuple(left):
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold")
    return table


def _named(cluster: str, is_mixed: bool) -> tuple[str, ...]:
    """The cell for a cluster, if rows of several are shown."""
    return (cluster,) if is_mixed else ()


def _cut(rows: Sequence[T], rows_max: int, what: str) -> tuple[Sequence[T], list[Text]]:
    """Return the first rows, and a line with the number of rows left out."""
    left_out = len(rows) - rows_max
    note = [Text(f"{left_out} more {what}: raise --rows, or use --json", style="yellow")] if left_out > 0 else []
    return rows[:rows_max], note


def _codes(codes: Sequence[CodeCount], rows_max: int, *, is_mixed: bool) -> Iterator[RenderableType]:
    shown, note = _cut(codes, rows_max, "codes, of the same severity or less")
    table = _table("Verdicts, the most severe first", ("code", "about"), ("messages",), "example", is_mixed=is_mixed)
    table.columns[-1].no_wrap = True  # an id is copied from here; long names of groups are broken instead
    for row in shown:
        table.add_row(
            *_named(row.cluster, is_mixed),
            Text(row.code, style=style_of(row.code), no_wrap=True),
            row.about,
            str(row.message_count),
            row.example,
        )
    yield table
    yield from note
    meanings = {row.code: row.explanation for row in shown if row.severity == "error"}
    for code, meaning in meanings.items():
        yield Text(f"{code}: {meaning}", style="dim")


def latency_history(found: LatencyHistory) -> RenderableType:
    """Render percentiles of one part of the way, a row for each time, topic and group."""
    is_mixed = found.scope.is_mixed
    names = ("messages", "p50 ≤", "p99 ≤")
    table = _table(f"Latency of {found.segment}", ("time", "topic", "group"), names, "max ≤", is_mixed=is_mixed)
    for one in found.spans:
        about = (*_named(one.cluster, is_mixed), day_clock(one.at_ms), one.topic, one.group_name or "(send)")
        table.add_row(*about, str(one.message_count), *map(duration_text, (one.p50_ms, one.p99_ms, one.max_ms)))
    nothing = [] if found.spans else [Text("no duration of this part is known in this time")]
    return Group(table, *nothing, Text(), scope_line(found.scope))


def latency_comparison(found: LatencyComparison) -> RenderableType:
    """Render the percentiles of two spans side by side, a row for each topic, group and part of the way."""
    is_mixed = found.scope.is_mixed
    first, second = (f"{day_clock(one.first_ms)} to {day_clock(one.end_ms)}" for one in (found.before, found.after))
    names = ("messages", "p50 ≤", "p99 ≤")
    table = _table(f"Latency of {first} → {second}", ("topic", "group", "part"), names, "max ≤", is_mixed=is_mixed)
    for one in found.changes:
        rows = (one.before, one.after)
        about = (*_named(one.cluster, is_mixed), one.topic, one.group_name or "(send)", one.segment)
        counts = " → ".join("–" if row is None else str(row.message_count) for row in rows)
        p50, p99, longest = ([getattr(row, name, None) for row in rows] for name in ("p50_ms", "p99_ms", "max_ms"))
        table.add_row(*about, counts, change_text(*p50), change_text(*p99), change_text(*longest))
    nothing = [] if found.changes else [Text("no duration is known in these times")]
    return Group(table, *nothing, Text(), scope_line(found.scope))


def _latency(rows: Iterable[LatencyRow], rows_max: int, *, is_mixed: bool) -> Iterator[RenderableType]:
    """One row for the sends of a topic, and one for each topic and group with the part that takes longest."""
    parts: dict[tuple[str, str, str], dict[str, LatencyRow]] = defaultdict(dict)
    for row in rows:
        parts[row.cluster, row.topic, row.group_name][row.segment] = row
    lines = []
    for (cluster, topic, group), by_segment in parts.items():
        whole = by_segment.get(TOTAL) or by_segment.get(SEND)
        if whole is None:
            continue
        others = [row for row in by_segment.values() if row is not whole]
        longest = max(others, key=lambda row: row.p99_ms, default=None)
        part = "" if longest is None or not longest.p99_ms else f"{longest.segment} {duration_text(longest.p99_ms)}"
        lines.append((whole, (*_named(cluster, is_mixed), topic, group or "(send)"), part))
    lines.sort(key=lambda line: -line[0].p99_ms)
    shown, note = _cut(lines, rows_max, "topics and groups")
    table = _table(
        "Latency, the slowest first",
        ("topic", "group"),
        ("messages", "p50 ≤", "p99 ≤", "max ≤"),
        "longest part, p99 ≤",
        is_mixed=is_mixed,
    )
    for whole, names, part in shown:
        table.add_row(
            *names, str(whole.message_count), *map(duration_text, (whole.p50_ms, whole.p99_ms, whole.max_ms)), part
        )
    yield table
    yield from note


def _lag(rows: Sequence[LagRow], rows_max: int, *, is_mixed: bool) -> Iterator[RenderableType]:
    """Groups that are behind, or whose lag is not known; the others are counted."""
    behind = [row for row in rows if row.lag_count or row.lag_ms is None]
    shown, note = _cut(behind, rows_max, "groups and topics with as many messages behind or fewer")
    columns = ("group", "topic"), ("queues", "behind"), "age of oldest unread"
    table = _table("Lag at the last sample", *columns, is_mixed=is_mixed)
    for row in shown:
        age = "unknown" if row.lag_ms is None else duration_text(row.lag_ms)
        count = "unknown" if row.lag_count is None else f"{'≥ ' if row.unknown_count else ''}{row.lag_count}"
        table.add_row(*_named(row.cluster, is_mixed), row.group_name, row.topic, str(row.queue_count), count, age)
    yield table
    yield from note
    if len(behind) < len(rows):
        yield Text(f"{len(rows) - len(behind)} groups and topics without lag", style="dim")
