"""Renders the answer of `doctor` for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mqtrail.answers import BrokerHealth, CodeHealth, Diagnosis, GroupTrace, TraceTopicHealth

from .draw import day_clock, scope_line

_STYLES = {"yes": "green", "no": "bold red"}


def diagnosis(found: Diagnosis) -> RenderableType:
    """Render brokers, the trace topic, groups, codes, advice, and the scope."""
    parts: list[RenderableType] = []
    if found.brokers:
        parts += [_brokers(found.brokers), Text(), _trace(found.trace), Text(), _groups(found.groups), Text()]
        parts += [_codes(found.codes), *(Text(f"• {one}") for one in found.advice)]
    parts.append(scope_line(found.scope))
    return Group(*parts)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _brokers(brokers: Iterable[BrokerHealth]) -> Table:
    table = _table("Brokers", "cluster", "name", "address", "version", "index", "flush", "delay levels")
    for one in brokers:
        index = {True: "on", False: "off", None: "unknown"}[one.index]
        table.add_row(
            one.cluster,
            one.name,
            one.address,
            one.version or "unknown",
            index,
            one.flush or "unknown",
            one.delay_levels or "unknown",
        )
    return table


def _trace(trace: TraceTopicHealth) -> RenderableType:
    if trace.exists is None:
        return Text(f"Trace topic {trace.name}: unknown", style="bold red")
    if not trace.exists:
        return Text(f"Trace topic {trace.name}: does not exist", style="bold red")
    head = Text(f"Trace topic {trace.name}: {trace.message_count} messages in {trace.queue_count} queues")
    if trace.first_ms is not None:
        sampled = f"\n{trace.sampled_count} read, stored {day_clock(trace.first_ms)} to {day_clock(trace.last_ms)} UTC"
        head.append(f"{sampled}; {trace.numbered_clients} clients number their trace messages")
    table = _table("", "record", "fields", "count")
    for name, count in trace.records.items():
        table.add_row(*name.split("/"), f"{count}")
    if trace.rejects:
        table.add_row("not decoded", "", f"{trace.rejects}", style="yellow")
    return Group(head, table) if trace.records or trace.rejects else head


def _groups(groups: Iterable[GroupTrace]) -> Table:
    table = _table("Consumer groups", "group", "live clients", "traced in the sample")
    for one in groups:
        clients = "unknown" if one.client_count is None else f"{one.client_count}"
        table.add_row(one.name, clients, Text("yes", style="green") if one.is_traced else Text("none"))
    return table


def _codes(codes: Iterable[CodeHealth]) -> Table:
    table = _table("Verdicts available on this cluster", "code", "about", "available", "why not")
    for one in codes:
        table.add_row(one.code, one.about, Text(one.judged, style=_STYLES[one.judged]), one.why)
    return table
