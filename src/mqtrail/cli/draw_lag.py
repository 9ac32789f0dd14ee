"""Renders lag for a terminal of 80 columns. An unknown value is a question mark, a lower bound has ≥ before it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mqtrail.answers import duration_text, number_text
from mqtrail.client import ClusterLag, GroupLag, LagSum, QueueLag, Trend, TrendState, WaitingMessage

from .draw import day_clock

UNKNOWN = "?"


def cluster_lag(found: ClusterLag, rows_max: int) -> RenderableType:
    """Render all groups: those that wait or are unknown, and how many were left out."""
    shown = [group for group in found.groups if group.waits or group.is_unknown]
    title = Text(f"Lag at {day_clock(found.as_of_ms)} UTC, the longest wait first", style="italic")
    table = _table("group", "waiting", "for", "retry")
    table.add_column("delayed", justify="right", no_wrap=True)
    if found.over_ms is not None:
        table.add_column("trend", overflow="fold")
    for group in shown[:rows_max]:
        table.add_row(
            Text(group.group_name, style="" if group.waits else "yellow"),
            _count(group.topics),
            _longest(group),
            _count(group.retry),
            UNKNOWN if group.delayed_count is None else str(group.delayed_count),
            *([trend_text(group.trend)] if found.over_ms is not None else []),
        )
    return Group(title, table, *_below(found, len(shown), rows_max))


def _below(found: ClusterLag, shown_count: int, rows_max: int) -> Iterator[Text]:
    if shown_count > rows_max:
        yield Text(f"{_groups(shown_count - rows_max)} more: raise --rows, or use --json", style="yellow")
    unknown = [group for group in found.groups if group.is_unknown]
    if unknown:
        yield Text(
            f"{_groups(len(unknown))} with queues of unknown lag: `mqtrail lag show GROUP` says why", style="yellow"
        )
    if found.over_ms is None and shown_count:
        yield Text("trend and time to drain: read twice with --over 10s", style="dim")
    without = len(found.groups) - shown_count
    if without:
        yield Text(f"{_groups(without)} without lag", style="dim")
    if found.idle_groups:
        yield Text(
            f"{_groups(len(found.idle_groups))} with neither offsets nor members: which topics they read is unknown",
            style="dim",
        )


def group_lag(found: ClusterLag, rows_max: int) -> RenderableType:
    """Render one group: its sums, topics, queues, reasons, and the oldest messages that wait."""
    [group] = found.groups
    delayed = UNKNOWN if group.delayed_count is None else group.delayed_count
    members = "members unknown" if group.member_count is None else f"{group.member_count} members online"
    parts: list[RenderableType] = [
        Text(f"{group.group_name} at {day_clock(found.as_of_ms)} UTC: {members}", style="bold"),
        Text(f"waiting: {_count(group.topics)} messages, for {_age(group.topics)}"),
        Text(f"trend: {'unknown, read twice with --over 10s' if found.over_ms is None else trend_text(group.trend)}"),
        Text(f"in retry topics: {_count(group.retry)} messages, for {_age(group.retry)}"),
        Text(f"delayed until the next attempt: {delayed} messages"),
        *(Text(why, style="yellow") for why in group.why),
        Text(),
    ]
    queues = sorted(group.queues, key=_rank)
    parts.append(Text("Queues, the longest wait first", style="italic"))
    table = _table("topic", "offset", "waiting", "for")
    if found.over_ms is not None:
        table.add_column("trend", overflow="fold")
    for queue in queues[:rows_max]:
        table.add_row(
            _place(queue.topic, queue.broker_name, queue.queue_id),
            "none" if queue.consumer_offset is None else str(queue.consumer_offset),
            UNKNOWN if queue.lag_count is None else str(queue.lag_count),
            UNKNOWN if queue.lag_ms is None else duration_text(queue.lag_ms) if queue.waits else "-",
            *([trend_text(queue.trend)] if found.over_ms is not None else []),
        )
    parts.append(table)
    if len(queues) > rows_max:
        parts.append(Text(f"{len(queues) - rows_max} more queues: raise --rows, or use --json", style="yellow"))
    if found.oldest:
        parts += [Text(), *_messages(found)]
    return Group(*parts)


def _messages(found: ClusterLag) -> Iterator[RenderableType]:
    yield Text("Messages that have waited longest", style="italic")
    table = _table("message, keys", "stored (UTC)", "for")
    for message in found.oldest:
        table.add_row(_message(message), day_clock(message.store_ms), duration_text(message.lag_ms))
    yield table
    [group] = found.groups
    waiting = sum(queue.lag_count or 0 for queue in group.queues)
    yield Text(f"found by looking at the first {found.looked_at_count} of {waiting} waiting messages", style="dim")


def _message(message: WaitingMessage) -> Text:
    text = Text(message.msg_id)
    if message.keys:
        text.append(f" {message.keys}", style="cyan")
    if message.is_accepted is False:
        text.append(" (its tag is not subscribed)", style="yellow")
    place = _place(message.topic, message.broker_name, message.queue_id)
    return text.append(f"\n  {place} at {message.queue_offset}", style="dim")


def _place(topic: str, broker_name: str, queue_id: int) -> str:
    return f"{topic} {broker_name}/{queue_id}"


def _rank(queue: QueueLag) -> tuple[int, int, str, str, int]:
    place = 0 if queue.waits else 1 if queue.is_unknown else 2
    return place, -(queue.lag_ms or 0), queue.topic, queue.broker_name, queue.queue_id


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count} groups"


def _bound(found: LagSum) -> str:
    return "≥ " if found.unknown_count else ""


def _count(found: LagSum) -> str:
    return UNKNOWN if found.lag_count is None else f"{_bound(found)}{found.lag_count}"


def _longest(group: GroupLag) -> str:
    """Return how long messages have waited in the group's topics and retry topics."""
    if group.lag_ms is None:
        return UNKNOWN
    if not (group.topics.lag_count or group.retry.lag_count):
        return "-"
    return f"{'≥ ' if group.is_unknown else ''}{duration_text(group.lag_ms)}"


def _age(found: LagSum) -> str:
    if found.lag_ms is None:
        return UNKNOWN
    return f"{_bound(found)}{duration_text(found.lag_ms)}" if found.lag_count or found.unknown_count else "-"


_WORDS = {TrendState.EMPTY: "-", TrendState.GROWS: "grows", TrendState.STEADY: "steady"}


def trend_text(trend: Trend) -> str:
    """Return the trend of waiting messages, and the rates."""
    if trend.state == TrendState.UNKNOWN or trend.consumed_per_s is None or trend.produced_per_s is None:
        return "trend unknown"
    if trend.state == TrendState.DRAINS and trend.drain_s is not None:
        word = f"empty in {duration_text(trend.drain_s * 1000)}"
    else:
        word = _WORDS[trend.state]
    return f"{word} ({_rate(trend.consumed_per_s)} out, {_rate(trend.produced_per_s)} in)" if word != "-" else word


def _rate(per_s: float) -> str:
    return f"{number_text(per_s)}/s"
