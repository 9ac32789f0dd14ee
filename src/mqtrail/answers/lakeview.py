"""A lake opened for answers: its range, its last sample and its known omissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import duckdb

from mqtrail import trail
from mqtrail.lake import (
    TABLES,
    Lake,
    LakeDamaged,
    LakePath,
    LookUp,
    lake_errors,
    relation_of,
    settings_at,
    unfinished_judgement,
)
from mqtrail.trail import UNKNOWN_HOUR

from .live import Row
from .model import Scope, Trajectory, VerdictThresholds, moment_text, trajectory_of

HOUR_MS = 3_600_000
GAPS_SHOWN_MAX = 5
DAMAGE_SHOWN_MAX = 5
T = TypeVar("T")
_ANSWERING = (*(table.name for table in TABLES.values() if table.layer == "gold"), trail.GAPS.name)
"""Tables that an answer needs. The others contain evidence that has been judged already."""


class LakeView:
    """One snapshot of a lake's readable tables. LakeError: there is no lake, or one of another version."""

    def __init__(self, path: LakePath) -> None:
        self.path = path
        self.lookup = LookUp(Lake.open(path, is_whole=False))

    def read(self, ask: Callable[[LakeView], T]) -> T:
        """Call ask(self); if it finds a damaged file, call it again without the damaged files. LakeError."""
        try:
            with lake_errors(self.path):
                return ask(self)
        except LakeDamaged:
            known = len(self.damage)
            self.lookup.lake.probe()
            if len(self.damage) == known:
                raise
            with lake_errors(self.path):
                return ask(self)

    @property
    def damage(self) -> list[str]:
        """A sentence for each unreadable table and file found so far."""
        return self.lookup.lake.damage

    def is_searched_whole(self, *names: str) -> bool:
        """Return whether no damage was found in these tables."""
        return not any(self.lookup.lake[name].damage for name in names)

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The DuckDB connection. After `define_views` it has a view for each table."""
        return self.lookup.connection

    def define_views(self) -> None:
        """Define a view for every table, under the table's name."""
        self.lookup.define_views()

    @property
    def rejects(self) -> int:
        """Number of trace records that did not decode."""
        return sum(file.row_count for file in self.lookup.lake["trace_rejects"].files())

    def range_ms(self) -> tuple[int | None, int | None]:
        """Return [first, end) of the lake's publish hours, (None, None) if it is empty."""
        hours = [hour for hour in self.lookup.lake["trajectories"].hours() if hour != UNKNOWN_HOUR]
        return (hours[0] * HOUR_MS, (hours[-1] + 1) * HOUR_MS) if hours else (None, None)

    def as_of_ms(self) -> int | None:
        """Return the time of the last sample, None for an empty lake. No judgement is later."""
        columns = {trail.SAMPLES.name: "sampled_ms", "queue_ranges": "sampled_ms", "trace_events": "trace_store_ms"}
        for name, column in columns.items():
            found = [f.maximum[column] for f in self.lookup.lake[name].files() if column in f.maximum]
            if found:
                return int(max(found))
        return None

    def judged_with(self, counts: Mapping[int, int]) -> tuple[VerdictThresholds, ...]:
        """Return the thresholds of judgements, most messages first. counts: instant of judgement -> message count."""
        found: dict[str, VerdictThresholds] = {}
        for as_of_ms, values in settings_at(self.lookup.lake, counts).items():
            changed = None if values is None else trail.changed_settings(values)
            before = found.get(repr(changed), VerdictThresholds(0, changed))
            found[repr(changed)] = VerdictThresholds(before.message_count + counts[as_of_ms], changed)
        return tuple(sorted(found.values(), key=lambda one: -one.message_count))

    def gaps(self) -> list[str]:
        """Return a sentence for each queue range that expired before the pipeline read it."""
        if not self.lookup.lake["gaps"].files():
            return []
        columns = "cluster, broker_name, topic, queue_id, first_offset, end_offset, from_ms, to_ms, reason"
        rows = fetch(self.connection, f"SELECT {columns} FROM ({self._relation('gaps')}) ORDER BY detected_ms DESC")
        return [
            f"{row['topic']} {row['broker_name']}/{row['queue_id']} [{row['first_offset']}, {row['end_offset']}), "
            f"stored {_day(row['from_ms'])} to {_day(row['to_ms'])}: {row['reason']}"
            for row in rows
        ]

    def omissions(self) -> list[str]:
        """Return a sentence for each known omission of the lake."""
        is_empty = self.range_ms()[0] is None and self.is_searched_whole(trail.TRAJECTORIES.name)
        found = ["the lake contains no judged message yet"] if is_empty else []
        gaps = self.gaps()
        found += [f"gap: {gap}" for gap in gaps[:GAPS_SHOWN_MAX]]
        if len(gaps) > GAPS_SHOWN_MAX:
            found.append(f"{len(gaps) - GAPS_SHOWN_MAX} further gaps")
        if self.rejects:
            found.append(f"{self.rejects} trace records did not decode (table trace_rejects){self._latest_reject()}")
        found += self._unfinished()
        damage = self.damage
        found += [f"damaged: {one}" for one in damage[:DAMAGE_SHOWN_MAX]]
        if len(damage) > DAMAGE_SHOWN_MAX:
            found.append(f"{len(damage) - DAMAGE_SHOWN_MAX} further damaged files")
        return found

    def _latest_reject(self) -> str:
        columns = "trace_topic, broker_name, queue_id, queue_offset, reason"
        order = "trace_store_ms DESC NULLS LAST, queue_offset DESC, record_no DESC LIMIT 1"
        rows = fetch(self.connection, f"SELECT {columns} FROM ({self._relation('trace_rejects')}) ORDER BY {order}")
        return "".join(
            f"; the latest in {row['trace_topic']} {row['broker_name']}/{row['queue_id']} at offset "
            f"{row['queue_offset']}: {row['reason']}"
            for row in rows
        )

    def _unfinished(self) -> list[str]:
        found = unfinished_judgement(self.lookup.lake)
        if found is None:
            return []
        as_of_ms, tables = found
        return [
            f"the judgement as of {_day(as_of_ms)} UTC is not complete yet: {', '.join(tables)} are of an earlier one; "
            "if no `mqtrail pipeline` is running, run it again"
        ]

    def scope(self, now_ms: int, extra: Sequence[str] = ()) -> Scope:
        """Return the scope of an answer that uses only this lake."""
        first_ms, end_ms = self.range_ms()
        as_of_ms = self.as_of_ms()
        return Scope(
            now_ms if as_of_ms is None else as_of_ms,
            (f"lake {self.path}",),
            first_ms,
            end_ms,
            (*self.omissions(), *extra),
            is_damaged=not self.is_searched_whole(*_ANSWERING),
        )

    def _relation(self, name: str) -> str:
        return relation_of(self.lookup.lake[name])


def _day(at_ms: int | None) -> str:
    return moment_text(at_ms, "%Y-%m-%d %H:%M:%S")


def fetch(duck: duckdb.DuckDBPyConnection, text: str, values: Sequence[Any] = ()) -> list[Row]:
    """Run SQL and return its rows by column name."""
    cursor = duck.execute(text, list(values))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def read_trajectories(
    duck: duckdb.DuckDBPyConnection, where: str, values: Sequence[Any] = (), *, tail: str = ""
) -> list[Trajectory]:
    """Return trajectories with their verdicts, from the views or tables `trajectories` and `verdicts`."""
    rows = fetch(duck, f"SELECT * FROM trajectories AS t WHERE {where} {tail}", values)
    verdicts: dict[tuple[str, str], list[Row]] = {}
    ids = sorted({row["msg_id"] for row in rows})
    if ids:
        for verdict in fetch(duck, "SELECT * FROM verdicts WHERE msg_id IN (SELECT unnest(?))", [ids]):
            verdicts.setdefault((verdict["cluster"], verdict["msg_id"]), []).append(verdict)
    return [trajectory_of(row, verdicts.get((row["cluster"], row["msg_id"]), [])) for row in rows]
