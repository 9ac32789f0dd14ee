"""Clocks of hosts in a lake: how far they differ from those of brokers, and latency splits by one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mqtrail import trail
from mqtrail.lake import connect, fetch, rows_of

from .lakeview import LakeView
from .model import SPLIT_SEGMENTS, Trajectory
from .summaries import ClocksAnswer, HostClock

JUMP_MS_MIN: Final = 10  # a clock that is adjusted slowly moves less in a window
_TYPES: Final = {
    **dict.fromkeys(("cluster", "broker_name", "producer_host", "client"), "VARCHAR"),
    **dict.fromkeys(("number", "stored_ms", "visible_ms", *(f"{segment}_ms" for segment in SPLIT_SEGMENTS)), "BIGINT"),
}
_SPLITS: Final = f"SELECT unnest(?::STRUCT({', '.join(map(' '.join, _TYPES.items()))})[], max_depth := 2)"


def host_clocks(view: LakeView, now_ms: int, first_ms: int | None, end_ms: int | None) -> ClocksAnswer:
    """Return the clock of each host and broker as of the last time in [first_ms, end_ms), the worst first."""
    view.define_views()
    rows = fetch(
        view.connection,
        f"""SELECT * FROM (
          SELECT cluster, host, broker_name, max(window_ms) AS at_ms, max_by(state, window_ms) AS state,
          arg_max_null(low_ms, window_ms) AS low_ms, arg_max_null(high_ms, window_ms) AS high_ms,
          arg_max_null(offset_ms, window_ms) AS offset_ms, arg_max_null(error_ms, window_ms) AS error_ms,
          max_by(jump_ms, abs(jump_ms)) AS jump_ms, max_by(window_ms, abs(jump_ms)) AS jumped_ms
        FROM ({trail.clocks_sql(trail.CLOCK_BOUNDS.name)}) AS clocks WHERE window_ms >= ? AND window_ms < ?
        GROUP BY cluster, host, broker_name) AS latest
        ORDER BY abs(jump_ms) < ?, abs(coalesce(offset_ms, 0)) DESC, cluster, host, broker_name""",
        [first_ms or 0, 1 << 62 if end_ms is None else end_ms, JUMP_MS_MIN],
    )
    return ClocksAnswer(view.scope(now_ms), tuple(_host_clock(row) for row in rows))


def _host_clock(row: Mapping[str, Any]) -> HostClock:
    has_jump = abs(row["jump_ms"]) >= JUMP_MS_MIN
    jump = {"jump_ms": row["jump_ms"] if has_jump else 0, "jumped_ms": row["jumped_ms"] if has_jump else None}
    return HostClock(**{**row, **jump})


def with_clocks(view: LakeView | None, found: Sequence[Trajectory]) -> list[Trajectory]:
    """Return trajectories with the latency splits of their groups by one clock. Without a lake no clock is known."""
    rows = [
        {
            "number": number,
            "cluster": one.cluster,
            "broker_name": one.place.partition("/")[0],
            "producer_host": one.producer_host,
            "client": group.client,
            "stored_ms": one.stored_ms,
            "visible_ms": one.visible_ms,
            **{f"{segment}_ms": group.split[segment] for segment in SPLIT_SEGMENTS},
        }
        for number, (one, group) in enumerate((one, group) for one in found for group in one.groups)
    ]
    if not rows:
        return list(found)
    duck = connect(threads=1) if view is None else view.connection.cursor()
    try:
        clocks = trail.clocks_sql(f"({_bounds(view, rows)})")
        corrected = fetch(
            duck,
            f"WITH clocks AS MATERIALIZED ({clocks}), splits AS ({_SPLITS}) "
            f"{trail.corrected_splits_sql('splits', 'clocks')} ORDER BY number",
            [rows],
        )
    finally:
        duck.close()
    splits = iter(corrected)
    return [
        replace(
            one,
            groups=tuple(
                replace(
                    group,
                    split={segment: row[f"{segment}_ms"] for segment in SPLIT_SEGMENTS},
                    clocks=row["clocks"],
                    clock_error_ms=row["clock_error_ms"],
                )
                for group, row in zip(one.groups, splits, strict=False)
            ),
        )
        for one in found
    ]


def _bounds(view: LakeView | None, rows: Sequence[Mapping[str, Any]]) -> str:
    """SQL: the bounds of the times of some messages, and those beside them."""
    relation = trail.CLOCK_BOUNDS
    times = [at_ms for row in rows for at_ms in (row["stored_ms"], row["visible_ms"]) if at_ms is not None]
    if view is None or not times:
        nothing = ", ".join(f"NULL::{column.type} AS {column.name}" for column in relation)
        return f"SELECT {nothing} WHERE false"
    first_ms, last_ms = min(times) - 2 * trail.CLOCK_WINDOW_MS, max(times) + trail.CLOCK_WINDOW_MS
    table = view.lookup.lake[relation.name]
    files = [
        file
        for file in table.files()
        if file.maximum.get("window_ms", first_ms) >= first_ms and file.minimum.get("window_ms", last_ms) <= last_ms
    ]
    return (
        f"SELECT * FROM ({rows_of(table, table.readable(files))}) AS bounds "
        f"WHERE window_ms BETWEEN {first_ms} AND {last_ms}"
    )
