"""Look-up of one message by id or by key in the committed files.

A message id contains its time within a month, but not the month, so the look-up reads one hour of each month.
Statistics in the Delta log select files; footers and bloom filters select row groups. A key is looked up in key_index,
which has one file per hour. Every answer lists the files that it opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from mqtrail import trail
from mqtrail.trail import literal, publish_hours

from .duck import connect, fetch
from .edge import lake_errors
from .lake import Lake
from .maintenance import COMPACT_PREFIX
from .parquet import rows_of, source_of
from .tables import DataFile, LakeTable, cluster_of


@dataclass(frozen=True, slots=True)
class PublishedHours:
    """Publish hours: all messages of `whole` were published in a range, some messages of `partial` may have been."""

    whole: frozenset[int]
    partial: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        return self.whole | self.partial


_OF_MESSAGES = frozenset({trail.TRAJECTORIES.name, trail.VERDICTS.name, trail.KEY_INDEX.name})
_FOREVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of one table, the files opened for them (paths below the lake's folder), and the table's file count."""

    rows: list[dict[str, Any]]
    opened: tuple[str, ...]
    file_count: int


class LookUp:
    """Look-ups over one lake. Not thread-safe. Call `lake.refresh()` to see newer commits."""

    def __init__(self, lake: Lake, connection: duckdb.DuckDBPyConnection | None = None) -> None:
        self.lake = lake
        self.connection = connection or connect()

    def trajectories(self, msg_id: str) -> Answer:
        """Return the trajectory of an id: rows of TRAJECTORIES, one for each cluster that has it."""
        return self._by_id("trajectories", msg_id)

    def verdicts(self, msg_id: str) -> Answer:
        """Return the verdicts of an id, one per group."""
        return self._by_id("verdicts", msg_id)

    def attempts(self, msg_id: str) -> Answer:
        """Return the silver rows of an id, as merged by the files' compaction."""
        return self._by_id("attempts", msg_id)

    def ids_of_key(self, key: str, limit: int = 1000) -> Answer:
        """Return at most `limit` rows of KEY_INDEX with this token of KEYS, latest hours first."""
        table = self.lake["key_index"]
        files = [f for f in table.files() if f.may_hold("key_token", key)]
        tail = f"ORDER BY publish_hour DESC, msg_id LIMIT {int(limit)}"
        return self._select(table, files, "key_token = ?", [key], tail)

    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters that were sampled; of a lake without samples, of those that have trajectories."""
        sampled = {cluster_of(file) for file in self.lake[trail.SAMPLES.name].files()}
        names = sampled or {cluster_of(file) for file in self.lake[trail.TRAJECTORIES.name].files()}
        if None in names:
            with lake_errors(self.lake.path):
                query = f"SELECT DISTINCT cluster FROM ({relation_of(self.lake[trail.TRAJECTORIES.name])}) AS judged"
                names = {name for (name,) in self.connection.execute(query).fetchall()}
        return tuple(sorted(str(name) for name in names))

    def define_views(self, schema: str = "", cluster: str = "", *, hours: Collection[int] | None = None) -> None:
        """Define a view in `connection` for every table's committed files. An empty table becomes an empty view.

        schema: an existing schema of DuckDB; '': temporary views. cluster: only its rows; '': all. hours: only messages
        of these publish hours; None: of all.
        """
        where = f"VIEW {schema}." if schema else "TEMP VIEW "
        for table in self.lake:
            files = None if hours is None or table.table.name not in _OF_MESSAGES else table.files(hours)
            with lake_errors(table.path):
                self.connection.execute(
                    f"CREATE OR REPLACE {where}{table.table.name} AS {relation_of(table, files, cluster)}"
                )

    def published_hours(self, first_ms: int | None, end_ms: int | None) -> PublishedHours | None:
        """Return the publish hours that may have a message published in [first_ms, end_ms); None: all of them.

        Publish hours are of the clock, and the time zone, in ids; so the files' statistics decide.
        """
        if first_ms is None and end_ms is None:
            return None
        first, end = first_ms or 0, _FOREVER_MS if end_ms is None else end_ms
        some, outside = set[int](), set[int]()
        for file in self.lake[trail.TRAJECTORIES.name].files():
            if file.hour is not None:
                if file.may_be_in(trail.PUBLISHED_FROM, first, end):
                    some.add(file.hour)
                if not file.is_in(trail.PUBLISHED_FROM, first, end):
                    outside.add(file.hour)
        return PublishedHours(frozenset(some - outside), frozenset(some & outside))

    def relation(self, name: str, cluster: str = "", *, hours: Collection[int] | None = None) -> str:
        """Return SQL for what holds in a table. hours: only messages of these publish hours."""
        table = self.lake[name]
        with lake_errors(table.path):
            return relation_of(table, None if hours is None else table.files(hours), cluster)

    def messages(self, name: str, keys: Collection[tuple[str, int]]) -> list[dict[str, Any]]:
        """Return the rows of messages, by id and publish hour, in TRAJECTORIES or VERDICTS."""
        table = self.lake[name]
        files = table.files({hour for _, hour in keys})
        ids = sorted({msg_id for msg_id, _ in keys})
        return self._fetch(
            table, f"SELECT * FROM ({relation_of(table, files)}) WHERE msg_id IN (SELECT unnest(?))", [ids]
        )

    def _by_id(self, name: str, msg_id: str) -> Answer:
        table = self.lake[name]
        hours = table.hours()
        wanted = publish_hours(msg_id, hours[0], hours[-1] + 1) if hours else []
        files = [f for f in table.files(wanted) if f.may_hold("msg_id", msg_id)]
        return self._select(table, files, "msg_id = ?", [msg_id])

    def _select(
        self, table: LakeTable, files: Sequence[DataFile], where: str, values: list[Any], tail: str = ""
    ) -> Answer:
        rows: list[dict[str, Any]] = []
        files = table.readable(files)
        if files:
            query = f"SELECT * FROM {source_of(table, files)} WHERE {where}"
            relation = table.table.relation
            if relation in trail.APPENDED and len(_folded(files)) < len(files):
                # Materialized: DuckDB makes a join of the two readings of these rows, and would read the files twice.
                query = f"WITH found AS MATERIALIZED ({query}) {trail.latest_sql(relation, 'found')}"
            rows = self._fetch(table, f"{query} {tail}", values)
        opened = tuple(f"{table.table.name}/{f.path}" for f in files)
        return Answer(rows, opened, len(table.files()))

    def _fetch(self, table: LakeTable, query: str, values: list[Any]) -> list[dict[str, Any]]:
        with lake_errors(table.path):
            return fetch(self.connection, query, values)


def relation_of(table: LakeTable, files: Sequence[DataFile] | None = None, cluster: str = "") -> str:
    """Return SQL for what holds of `files` (default: all committed): of results, the latest judgement of each message.

    Without files, for an empty typed relation. The files of an hour belong together: pass all of them or none.
    cluster: only its rows; '': of all clusters.
    """
    if cluster:
        return f"SELECT * FROM ({relation_of(table, files)}) AS every WHERE cluster = {literal(cluster)}"
    chosen = table.readable(table.files() if files is None else files)
    relation = table.table.relation
    if relation not in trail.APPENDED:
        return rows_of(table, chosen)
    folded = _folded(chosen) if table.table.partition_by else []
    others = [file for file in chosen if file not in folded]
    parts = [rows_of(table, folded)] if folded else []
    if others or not folded:
        parts.append(trail.latest_sql(relation, f"({rows_of(table, others)})"))
    return " UNION ALL ".join(parts)


def _folded(files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files of hours of which compaction made one: they have no outdated rows."""
    counts = Counter(file.hour for file in files)
    return [file for file in files if counts[file.hour] == 1 and file.path.startswith(COMPACT_PREFIX)]
