"""Renders clocks of hosts for a terminal of 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mqtrail.answers import ClocksAnswer, HostClock, duration_text

from .draw import day_clock


def host_clocks(found: ClocksAnswer) -> RenderableType:
    """Render one row per host and broker: the difference in the last 5 min that is known, and the greatest jump."""
    table = Table(box=None, pad_edge=False)
    for heading in ("host", "broker"):
        table.add_column(heading, overflow="fold")
    for heading in ("ahead of it by", "greatest jump"):
        table.add_column(heading, overflow="fold", justify="right")
    for one in found.clocks:
        table.add_row(one.host, one.broker_name, difference(one), jump(one))
    return Group(Text("Clocks of hosts, beside those of brokers", style="italic"), table)


def difference(one: HostClock) -> Text:
    """Return the difference of a clock with its error; ? if it is not known."""
    if one.offset_ms is None:
        bounds = [
            *([f"≥ {signed(one.low_ms)}"] if one.low_ms is not None else []),
            *([f"≤ {signed(one.high_ms)}"] if one.high_ms is not None else []),
        ]
        return Text("it was set" if one.state == "CHANGED" else ", ".join(("?", *bounds)), style="yellow")
    if not one.offset_ms:
        return Text(f"0 ± {duration_text(one.error_ms or 0)}")
    return Text(f"{signed(one.offset_ms)} ± {duration_text(one.error_ms or 0)}", style="red")


def jump(one: HostClock) -> str:
    """Return the greatest jump and when it was."""
    if one.jumped_ms is None:
        return "-"
    return f"{signed(one.jump_ms)} before {day_clock(one.jumped_ms)}"


def signed(ms: int) -> str:
    """Return a difference with its sign."""
    return f"{'-' if ms < 0 else '+'}{duration_text(abs(ms))}" if ms else "0"
