"""Draws trace records that did not decode."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from mqtrail.answers import RejectsAnswer

from .draw import day_clock, scope_line


def rejected_records(found: RejectsAnswer) -> RenderableType:
    """Render each record: where it is stored, why it was rejected, its text."""
    lines: list[RenderableType] = []
    for one in found.rejects:
        place = f"{one.broker_name}/{one.trace_topic}/{one.queue_id}@{one.queue_offset}"
        number = "" if one.record_no < 0 else f" record {one.record_no}"
        cluster = f"{one.cluster} / " if found.scope.is_mixed else ""
        head = f"{day_clock(one.stored_ms)}  {cluster}{place}{number}  from {one.host or '?'}"
        lines += [Text(head, style="bold"), Text(f"  {one.reason}", style="yellow"), Text(f"  {one.text}"), Text()]
    count = Text(f"{len(found.rejects)} of {found.reject_count} trace records that did not decode")
    return Group(*lines, count, scope_line(found.scope))
