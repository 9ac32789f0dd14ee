"""Renders incidents for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mqtrail.answers import IncidentAct, IncidentHandling, IncidentsAnswer, ShownIncident, duration_text, number_text
from mqtrail.trail.incidents import NO_SINGLE_CAUSE

from .draw import day_clock, scope_line


def incident_list(found: IncidentsAnswer, rows_max: int) -> RenderableType:
    """Render incidents as blocks of a few lines; rows_max of them."""
    parts: list[RenderableType] = []
    if found.first_ms is not None:
        parts.append(Text(f"From {day_clock(found.first_ms)} to {day_clock(found.end_ms)} (UTC)", style="bold"))
    for one in found.incidents[:rows_max]:
        parts += [Text(), _heading(one, is_mixed=found.scope.is_mixed), _block(_summary(one))]
    left_out = len(found.incidents) - rows_max
    if left_out > 0:
        parts.append(Text(f"{left_out} smaller incidents: raise --rows, or use --json", style="yellow"))
    if not found.incidents:
        parts.append(Text("no incident: no bad messages with a common cause were found", style="green"))
    return Group(*parts, Text(), scope_line(found.scope))


def incident(one: ShownIncident) -> RenderableType:
    """Render one incident completely."""
    lines = [
        *_summary(one),
        ("begin", day_clock(one.begin_ms)),
        ("end", day_clock(one.end_ms)),
        ("extent", _extent(one)),
        ("codes", ", ".join(one.codes)),
        ("wider", "; ".join(one.wider_conditions)),
        ("beside", "\n".join(one.neighbours)),
        ("errors", "\n".join(one.errors)),
        ("unknown", f"{', '.join(one.unknown)}: a cause in them cannot be found" if one.unknown else ""),
        ("bad", "\n".join(one.examples)),
        ("good", "\n".join(one.good_examples)),
        ("to do", one.advice),
        ("found", day_clock(one.found_ms)),
        ("history", "\n".join(_acts(one))),
    ]
    return Group(_heading(one, is_mixed=True), _block(lines))


def handling_text(handling: IncidentHandling | None) -> str:
    """Return what people did about an incident as far as it holds now; '' for nothing."""
    if handling is None:
        return "unknown"
    parts = []
    if (act := handling.acknowledged) is not None:
        parts.append(f"acknowledged by {act.who} at {day_clock(act.at_ms)}{_because(act)}")
    if (act := handling.muted) is not None:
        parts.append(f"muted by {act.who} until {day_clock(act.until_ms)}{_because(act)}")
    return "; ".join(parts)


def _because(act: IncidentAct) -> str:
    return f" ({act.why})" if act.why else ""


def _acts(one: ShownIncident) -> Iterator[str]:
    for act in one.handling.history if one.handling is not None else ():
        until = "" if act.until_ms is None else f" until {day_clock(act.until_ms)}"
        yield f"{day_clock(act.at_ms)} {act.who}: {act.kind}{until}{_because(act)}"


def _heading(one: ShownIncident, *, is_mixed: bool) -> Text:
    line = Text(one.incident_id, style="bold")
    if is_mixed:
        line.append(f"  {one.cluster}", style="cyan")
    line.append(f"  {one.cause}", style="yellow" if one.cause == NO_SINGLE_CAUSE.name else "bold red")
    line.append(f"  {day_clock(one.begin_ms)}, {duration_text(one.end_ms - one.begin_ms)}")
    return line


def _block(lines: Iterable[tuple[str, str]]) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines:
        if text:
            table.add_row(name, text)
    return Padding(table, (0, 0, 0, 2))


def _summary(one: ShownIncident) -> list[tuple[str, str]]:
    where = "; ".join(one.conditions)
    if where and one.same_conditions:
        where += f" (the same: {'; '.join(one.same_conditions)})"
    return [
        ("why", one.explanation),
        ("what", f"{one.message_count} messages: {', '.join(one.what)}"),
        ("where", where or "nothing that the bad messages share"),
        ("sure", _certainty(one)),
        ("state", handling_text(one.handling)),
    ]


def _certainty(one: ShownIncident) -> str:
    inside = f"{one.inside_bad_count} of {one.inside_count} are bad"
    if not one.conditions:
        return f"{inside}, more than usual"
    outside = f"{inside} there, {one.outside_bad_count} of {one.outside_count} elsewhere"
    lift = "" if one.lift is None else f" ({number_text(one.lift)} times as many)"
    return f"{outside}{lift}; by accident: less than 1 in 10^{one.certainty}"


def _extent(one: ShownIncident) -> str:
    groups = f" in {one.group_count} groups" if one.group_count else ""
    return f"{one.message_count} messages of {one.topic_count} topics{groups}"
