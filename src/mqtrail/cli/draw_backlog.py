"""Renders the backlog of a group for a terminal of 80 columns. An unknown value is a question mark."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mqtrail.answers import duration_text, number_text
from mqtrail.answers.backlog import Advice, BacklogAnswer, BacklogMember, ScaleEstimate, TopicBacklog

from .draw import day_clock
from .draw_lag import UNKNOWN, trend_text

QUEUES_MAX = 16
MEMBERS_MAX = 16


def draw_backlog(found: BacklogAnswer) -> RenderableType:
    """Render all topics, the verdict of each first."""
    seconds = f"{found.over_ms / 1000:g} s"
    parts: list[RenderableType] = [
        Text(f"{found.group_name} at {day_clock(found.as_of_ms)} UTC, rates over {seconds}", style="bold")
    ]
    for topic, advice in zip(found.topics, found.advice, strict=True):
        parts += [Text(), *_topic(topic, advice)]
    if not found.topics:
        parts.append(Text("the group has neither an offset nor a subscription in a topic"))
    if found.retry is not None and (found.retry.lag_count or found.retry.unknown_count or found.delayed_count):
        delayed = UNKNOWN if found.delayed_count is None else found.delayed_count
        parts += [Text(), Text(f"in retry topics: {_known(found.retry.lag_count)}, delayed until a retry: {delayed}")]
    parts += [Text(why, style="yellow") for why in found.why]
    return Group(*parts)


def _topic(topic: TopicBacklog, advice: Advice) -> Iterator[RenderableType]:
    yield Text(f"{topic.topic}: {advice.verdict} ({advice.cause.value})", style="bold")
    since = "" if not topic.total.lag_count else f", the oldest since {day_clock(topic.since_ms)} UTC"
    yield Text(f"waiting: {_known(topic.total.lag_count)}{since}; {trend_text(topic.trend)}")
    yield _queues(topic)
    if topic.members is None:
        yield Text("members: unknown", style="yellow")
    elif topic.members:
        yield _members(topic.members, topic.slowest)
        if topic.idle:
            yield Text(f"{len(topic.idle)} members have no queue of this topic", style="yellow")
    else:
        yield Text("no member is online", style="yellow")
    if advice.estimates:
        yield _estimates(advice.estimates)
        for assumption in advice.assumptions:
            yield Text(f"assumed: {assumption}", style="dim")
    for number, way in enumerate(advice.ways, 1):
        yield Text(f"{number}. {way.kind.value}: {way.text}")
        if way.command:
            yield Text(f"   {shlex.join(way.command)}", style="dim")


def _queues(topic: TopicBacklog) -> RenderableType:
    table = _table("queue", "waiting", "for", "out/s", "in/s", "member")
    for queue in topic.queues[:QUEUES_MAX]:
        owners = UNKNOWN if queue.owners is None else ", ".join(queue.owners) or "none"
        table.add_row(
            f"{queue.place}{' (hot)' if queue.place == topic.hot_queue else ''}",
            _known(queue.lag_count),
            UNKNOWN if queue.lag_ms is None else duration_text(queue.lag_ms) if queue.lag_count else "-",
            _number(queue.trend.consumed_per_s),
            _number(queue.trend.produced_per_s),
            owners,
        )
    return _with_rest(table, len(topic.queues) - QUEUES_MAX, "queues")


def _members(members: Sequence[BacklogMember], slowest: str) -> RenderableType:
    table = _table("member", "queues", "handler", "threads", "done/s", "failed/s", "could/s")
    for one in sorted(members, key=lambda member: (-(member.handler_ms or 0), member.client_id))[:MEMBERS_MAX]:
        is_marked = one.client_id == slowest and len(members) > 1
        table.add_row(
            f"{one.client_id}{' (slowest)' if is_marked else ''}",
            UNKNOWN if one.queues is None else str(len(one.queues)),
            UNKNOWN if one.handler_ms is None else duration_text(one.handler_ms),
            _known(one.threads),
            _number(one.consumed_per_s),
            _number(one.failed_per_s),
            _number(one.capacity_per_s),
        )
    return _with_rest(table, len(members) - MEMBERS_MAX, "members")


def _estimates(estimates: Sequence[ScaleEstimate]) -> RenderableType:
    table = _table("members", "queues", "would consume", "would drain in")
    for one in estimates:
        drain = (
            UNKNOWN if one.drains is None else "never" if one.drain_s is None else duration_text(one.drain_s * 1_000)
        )
        capacity = UNKNOWN if one.capacity_per_s is None else f"{number_text(one.capacity_per_s)}/s"
        table.add_row(str(one.member_count), str(one.queue_count), capacity, drain)
    return table


def _with_rest(table: Table, left_count: int, what: str) -> RenderableType:
    if left_count <= 0:
        return table
    return Group(table, Text(f"{left_count} more {what}: use --json", style="yellow"))


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="left" if heading == "member" else "right", overflow="fold")
    return table


def _known(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _number(per_s: float | None) -> str:
    return UNKNOWN if per_s is None else number_text(per_s)
