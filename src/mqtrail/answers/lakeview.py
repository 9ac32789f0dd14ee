"""A lake opened for answers: its range, its last sample and its known omissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import duckdb

from mqtrail import trail
from mqtrail.lake import (
    TABLES,
    DataFile,
    Lake,
    LakeDamaged,
    LakeError,
    LakePath,
    LookUp,
    cluster_of,
    fetch,
    lake_errors,
    of_cluster,
    relation_of,
    settings_at,
    unfinished_judgement,
)
from mqtrail.trail import HOUR_MS, UNKNOWN_HOUR

from .live import Row
from .model import Scope, Trajectory, VerdictThresholds, moment_text, trajectory_of

GAPS_SHOWN_MAX = 5
DAMAGE_SHOWN_MAX = 5
LAST_DAY_MS = 24 * HOUR_MS
LATER_HOURS = 15  # the hour in an id is that of the producer's time zone
T = TypeVar("T")
_ANSWERING = (*(table.name for table in TABLES.values() if table.layer == "gold"), trail.GAPS.name)
"""Tables that an answer needs. The others contain evidence that has been judged already."""


class UnknownCluster(LakeError):
    """The lake does not have a cluster of this name."""


class LakeView:
    """One snapshot of a lake's readable tables, of all clusters or of one.

    LakeError: there is no lake, or one of another version. UnknownCluster: the lake does not have the cluster.
    """

    def __init__(self, path: LakePath, cluster: str = "", lookup: LookUp | None = None) -> None:
        """cluster: the only one to answer for; '': all. lookup: of the lake, if it is open already."""
        self.path = path
        self.cluster = cluster
        self.lookup = lookup or LookUp(Lake.open(path, is_whole=False))
        if cluster and cluster not in self.clusters:
            raise UnknownCluster(
                f"{path}: found no cluster {cluster!r}, expected one of {', '.join(self.clusters) or 'none'}"
                + "".join(f"; {one}" for one in self.damage_shown())
            )

    @cached_property
    def clusters(self) -> tuple[str, ...]:
        """The names of the lake's clusters."""
        return self.lookup.clusters()

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

    def define_views(self, first_ms: int | None = None, end_ms: int | None = None) -> None:
        """Define a view for every table, under the table's name: all messages published in [first_ms, end_ms), and
        others."""
        hours = self.lookup.published_hours(first_ms, end_ms)
        self.lookup.define_views(cluster=self.cluster, hours=None if hours is None else hours.all)

    def trajectories(self, keys: Sequence[tuple[str, str, int]]) -> list[Trajectory]:
        """Return messages by cluster, id and publish hour, in this order; those that are not there are left out."""
        places = {(msg_id, hour) for _, msg_id, hour in keys}
        if not places:
            return []
        rows = {(row["cluster"], row["msg_id"]): row for row in self.lookup.messages(trail.TRAJECTORIES.name, places)}
        chosen = [rows[cluster, msg_id] for cluster, msg_id, _ in keys if (cluster, msg_id) in rows]
        return _with_verdicts(chosen, self.lookup.messages(trail.VERDICTS.name, places))

    @property
    def rejects(self) -> int:
        """Number of trace records that did not decode."""
        return sum(file.row_count for file in self._files("trace_rejects"))

    def range_ms(self) -> tuple[int | None, int | None]:
        """Return [first, end) of the lake's publish hours, (None, None) if it is empty."""
        hours = [hour for hour in self.lookup.lake["trajectories"].hours() if hour != UNKNOWN_HOUR]
        return (hours[0] * HOUR_MS, (hours[-1] + 1) * HOUR_MS) if hours else (None, None)

    def searched_range(self, first_ms: int | None, end_ms: int | None) -> tuple[int, int] | None:
        """Return [first_ms, end_ms), by default the last day of the lake; None: the lake has no message."""
        lake_first_ms, lake_end_ms = self.range_ms()
        as_of_ms = self.as_of_ms()
        if lake_first_ms is None or lake_end_ms is None:
            return None
        to_ms = end_ms if end_ms is not None else max(lake_end_ms, (as_of_ms or 0) + 1)
        from_ms = first_ms if first_ms is not None else (as_of_ms or lake_end_ms) - LAST_DAY_MS
        return max(from_ms, lake_first_ms - LATER_HOURS * HOUR_MS), max(from_ms, to_ms)

    def as_of_ms(self) -> int | None:
        """Return the time of the last sample, None for an empty lake. No judgement is later."""
        columns = {trail.SAMPLES.name: "sampled_ms", "queue_ranges": "sampled_ms", "trace_events": "trace_store_ms"}
        for name, column in columns.items():
            found = [f.maximum[column] for f in self._files(name) if column in f.maximum]
            if found:
                return int(max(found))
        return None

    def judged_with(self, counts: Mapping[tuple[str, int], int]) -> tuple[VerdictThresholds, ...]:
        """Return the thresholds of judgements, most messages first.

        counts: cluster and instant of judgement -> message count.
        """
        found: dict[str, VerdictThresholds] = {}
        for judgement, values in settings_at(self.lookup.lake, counts).items():
            changed = None if values is None else trail.changed_settings(values)
            before = found.get(repr(changed), VerdictThresholds(0, changed))
            found[repr(changed)] = VerdictThresholds(before.message_count + counts[judgement], changed)
        return tuple(sorted(found.values(), key=lambda one: -one.message_count))

    def gaps(self) -> list[str]:
        """Return a sentence for each queue range that expired before the pipeline read it."""
        if not self._files("gaps"):
            return []
        columns = "cluster, broker_name, topic, queue_id, first_offset, end_offset, from_ms, to_ms, reason"
        rows = fetch(self.connection, f"SELECT {columns} FROM ({self._relation('gaps')}) ORDER BY detected_ms DESC")
        return [
            f"{self._of(row)}{row['topic']} {row['broker_name']}/{row['queue_id']} "
            f"[{row['first_offset']}, {row['end_offset']}), stored {_day(row['from_ms'])} to {_day(row['to_ms'])}: "
            f"{row['reason']}"
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
        found += self._not_sampled_lately()
        found += self._unfinished()
        return found + self.damage_shown()

    def damage_shown(self) -> list[str]:
        """Return what an answer says about `damage`."""
        damage = self.damage
        found = [f"damaged: {one}" for one in damage[:DAMAGE_SHOWN_MAX]]
        if len(damage) > DAMAGE_SHOWN_MAX:
            found.append(f"{len(damage) - DAMAGE_SHOWN_MAX} further damaged files")
        return found

    def _not_sampled_lately(self) -> list[str]:
        """Return a sentence for each cluster whose samples end long before those of another one."""
        last: dict[str, int] = {}
        for file in self._files(trail.SAMPLES.name):
            if (cluster := cluster_of(file)) is not None and "sampled_ms" in file.maximum:
                last[cluster] = max(last.get(cluster, 0), int(file.maximum["sampled_ms"]))
        newest_ms = max(last.values(), default=0)
        return [
            f"cluster {cluster} was sampled last at {_day(at_ms)} UTC: nothing is known of it since"
            for cluster, at_ms in sorted(last.items())
            if newest_ms - at_ms > trail.Settings().state_age_ms_max
        ]

    def _of(self, row: Row) -> str:
        """The cluster of a row, if the answer is about several."""
        return f"cluster {row['cluster']}: " if len(self.scope_clusters) > 1 else ""

    @property
    def is_sampled(self) -> bool:
        """Whether the lake has any sample."""
        return bool(self._files(trail.SAMPLES.name))

    def sampled(self) -> str:
        """Return SQL of the rows of `samples`."""
        return self._relation(trail.SAMPLES.name)

    def rejected(self) -> str:
        """Return SQL of the rows of `trace_rejects`."""
        return self._relation(trail.TRACE_REJECTS.name)

    @property
    def scope_clusters(self) -> tuple[str, ...]:
        """The clusters that answers are about."""
        return (self.cluster,) if self.cluster else self.clusters

    def _latest_reject(self) -> str:
        columns = "cluster, trace_topic, broker_name, queue_id, queue_offset, reason"
        order = "trace_store_ms DESC NULLS LAST, queue_offset DESC, record_no DESC LIMIT 1"
        rows = fetch(self.connection, f"SELECT {columns} FROM ({self._relation('trace_rejects')}) ORDER BY {order}")
        return "".join(
            f"; the latest in {self._of(row)}{row['trace_topic']} {row['broker_name']}/{row['queue_id']} at offset "
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

    def scope(
        self, now_ms: int, extra: Sequence[str] = (), *, first_ms: int | None = None, end_ms: int | None = None
    ) -> Scope:
        """Return the scope of an answer that uses only this lake. first_ms, end_ms: of the messages asked for."""
        lake_first_ms, lake_end_ms = self.range_ms()
        as_of_ms = self.as_of_ms()
        return Scope(
            now_ms if as_of_ms is None else as_of_ms,
            (f"lake {self.path}",),
            lake_first_ms if first_ms is None or lake_first_ms is None else first_ms,
            lake_end_ms if end_ms is None or lake_end_ms is None else end_ms,
            (*self.omissions(), *extra),
            is_damaged=not self.is_searched_whole(*_ANSWERING),
            clusters=self.scope_clusters,
        )

    def _files(self, name: str) -> list[DataFile]:
        files = self.lookup.lake[name].files()
        return of_cluster(files, self.cluster) if self.cluster else files

    def _relation(self, name: str) -> str:
        return relation_of(self.lookup.lake[name], cluster=self.cluster)


def _day(at_ms: int | None) -> str:
    return moment_text(at_ms, "%Y-%m-%d %H:%M:%S")


def read_trajectories(
    duck: duckdb.DuckDBPyConnection, where: str, values: Sequence[Any] = (), *, tail: str = ""
) -> list[Trajectory]:
    """Return trajectories with their verdicts, from the views or tables `trajectories` and `verdicts`."""
    rows = fetch(duck, f"SELECT * FROM trajectories AS t WHERE {where} {tail}", values)
    ids = sorted({row["msg_id"] for row in rows})
    verdicts = fetch(duck, "SELECT * FROM verdicts WHERE msg_id IN (SELECT unnest(?))", [ids]) if ids else []
    return _with_verdicts(rows, verdicts)


def _with_verdicts(rows: Sequence[Row], verdicts: Sequence[Row]) -> list[Trajectory]:
    """Return trajectories from rows of TRAJECTORIES and of VERDICTS."""
    by_message: dict[tuple[str, str], list[Row]] = {}
    for verdict in verdicts:
        by_message.setdefault((verdict["cluster"], verdict["msg_id"]), []).append(verdict)
    return [trajectory_of(row, by_message.get((row["cluster"], row["msg_id"]), [])) for row in rows]
