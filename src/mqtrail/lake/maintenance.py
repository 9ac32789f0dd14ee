"""Compaction, retention, and the deletion of files that no log names.

Compaction rewrites the files of a closed hour as one file for fast look-ups: merged, sorted by id, in small row groups
with bloom filters. Of an hour that still gets files, and of tables without hours, it joins files of like size as soon
as there are several, so that there are never many: each row is written again a few times, not at each cycle. Bronze
files, which look-ups do not read, are only concatenated; the rows of indexes of bronze become fewer. Readers of both
snapshots get the same answers.

Silver files that no judgement has seen yet are not rewritten: the next judgement finds them by their names.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import duckdb

from mqtrail import trail
from mqtrail.trail import HOUR_MS

from .duck import connect
from .judged import JUDGED_APP, Judgement, Judgements
from .lake import Lake
from .objects import ObjectPath
from .parquet import copy, source_of
from .places import LakePath, own_folder
from .samples import sample_files
from .tables import DataFile, LakeTable, cluster_of

EXPIRED_KEY = "mqtrail.expired_before_ms"
"""Property of a bronze table or an index: the time up to which retention has removed rows."""
INDEX_STEP_MS = 24 * HOUR_MS
"""How often that of an index is noted."""
COMPACT_PREFIX = "compact-"
"""Prefix of the folder names of compacted files."""
JOINED_PREFIX = "joined-"
"""The same for files joined in an open hour: rows of other files may replace theirs."""
JOINED_FILES_MIN = 8
"""Number of files of similar size that are joined in an open hour."""
_SWEPT_AT_ONCE: Final = 100  # objects between two looks at the table
_TIER_BASE = 64 * 1024  # bytes; sizes are similar if the same base * JOINED_FILES_MIN ** n is next above them


def compact(
    lake: Lake, closed_before_hour: int, *, now_ms: int, connection: duckdb.DuckDBPyConnection | None = None
) -> int:
    """Compact every table's hours before closed_before_hour; return the number of files written."""
    duck = connection or connect()
    written = 0
    with lake.writing():
        for table in lake:
            table.refresh()
            for files in _due(lake, table, closed_before_hour):
                rewrite(table, table.readable(files), duck, now_ms, settled_ms(lake, files))
                written += 1
    return written


def _due(lake: Lake, table: LakeTable, closed_before_hour: int) -> list[list[DataFile]]:
    """Return the groups of files to be written as one file each."""
    files = table.files()
    if table.table.relation == trail.ATTEMPTS:
        last = lake.batches.last(JUDGED_APP)
        judgements = Judgements.of_batch(last)
        files = [file for file in files if last is None or judgements.have_seen(file)]
    if table.table.partition_by:
        return _hours_due(files, closed_before_hour)
    return _joins_due(table)


def joins_due(lake: Lake, closed_before_hour: int) -> Iterator[tuple[LakeTable, list[DataFile]]]:
    """Yield the files that `compact` would write as one. Commit each Join before taking the next."""
    for table in lake:
        table.refresh()
        for files in _due(lake, table, closed_before_hour):
            yield table, files


@dataclass(frozen=True, slots=True)
class Join:
    """Files of a table to write as one. Only one Join of a lake at a time."""

    table: LakeTable
    files: Sequence[DataFile]
    target: LakePath
    rows: str  # SQL

    @classmethod
    def of(cls, table: LakeTable, files: Sequence[DataFile], settled_ms: int = 0) -> Self:
        """Prepare to write the rows of these files, which are committed, to one file. settled_ms: of the lake."""
        is_whole = _holds_oldest(table, files)
        prefix = COMPACT_PREFIX if is_whole or table.table.relation not in trail.APPENDED else JOINED_PREFIX
        name = f"{prefix}{table.version + 1}-{files[0].hour if files[0].hour is not None else 'all'}"
        rows = _rows_of(table, files, is_whole, settled_ms)
        return cls(table, files, own_folder(table.path / name) / "part.parquet", rows)

    def write(self, duck: duckdb.DuckDBPyConnection) -> None:
        """Write the file. Any thread may call this: it changes nothing that a reader sees."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        copy(duck, self.rows, self.target, self.table.table, sum(file.row_count for file in self.files))

    def commit(self, now_ms: int) -> bool:
        """Replace the files by the new one in one commit. False: another commit has removed some of them meanwhile."""
        if not self.table.has(self.files):
            return False
        self.table.swap([self.target], self.files, data_change=False, now_ms=now_ms)
        return True


def rewrite(
    table: LakeTable,
    files: Sequence[DataFile],
    duck: duckdb.DuckDBPyConnection,
    now_ms: int,
    settled_ms: int = 0,
) -> LakePath:
    """Write the rows of `files` to one file and replace them by it in one commit. Return its path."""
    join = Join.of(table, files, settled_ms)
    join.write(duck)
    join.commit(now_ms)
    return join.target


def _holds_oldest(table: LakeTable, files: Sequence[DataFile]) -> bool:
    """Return whether no other file can have earlier rows of these messages: then removed results can be dropped."""
    names = {file.path for file in files}
    hours = None if files[0].hour is None else {files[0].hour}
    return all(file.path in names for file in table.files(hours))


def settled_ms(lake: Lake, files: Iterable[DataFile]) -> int:
    """Return an instant that no later judgement of the files' clusters looks back to; 0: there is none."""
    judgements = Judgements.of_batch(lake.batches.last(JUDGED_APP))
    found: list[Judgement | None] = []
    for cluster in {cluster_of(file) for file in files}:
        found += judgements.every() if cluster is None else [judgements.of(cluster)]
    return min((_settled_ms(one) for one in found), default=0)


def _settled_ms(one: Judgement | None) -> int:
    if one is None:
        return 0
    return one.as_of_ms - max(trail.SETTLED_MS, 2 * int(one.settings.get("trace_delay_ms", 0)))


def _rows_of(table: LakeTable, files: Sequence[DataFile], is_whole: bool, settled_ms: int) -> str:
    relation = table.table.relation
    columns = ", ".join(relation.names)
    source = f"(SELECT {columns} FROM {source_of(table, files)})"
    if relation == trail.ATTEMPTS:
        return f"SELECT {columns} FROM ({trail.merge_sql(source)}) AS merged"
    if relation == trail.CLIENT_RECORDS:
        return trail.folded_client_records_sql(source, settled_ms, expired_before_ms(table))
    if relation == trail.QUEUE_SPANS:
        return trail.folded_queue_spans_sql(source, expired_before_ms(table))
    if relation == trail.CLOCK_BOUNDS:
        return trail.folded_clock_bounds_sql(source, expired_before_ms(table))
    if relation in trail.APPENDED:
        return f"SELECT * FROM ({trail.latest_sql(relation, source, keep_gone=not is_whole)}) AS latest"
    return f"SELECT * FROM {source} AS rows_of_files"


def _hours_due(files: Sequence[DataFile], closed_before_hour: int) -> list[list[DataFile]]:
    """Return the files of closed hours that are not compacted to one file yet, and the full tiers of open hours."""
    hours: dict[int, list[DataFile]] = {}
    for file in files:
        if file.hour is not None:
            hours.setdefault(file.hour, []).append(file)
    due = []
    for hour, own in sorted(hours.items()):
        if hour >= closed_before_hour:
            due += _tiers_due(own)
        elif len(own) > 1 or not own[0].path.startswith(COMPACT_PREFIX):
            due.append(own)
    return due


def _tiers_due(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Return the groups of JOINED_FILES_MIN or more files of similar size."""
    tiers: dict[int, list[DataFile]] = {}
    for file in files:
        tier = 0
        while file.size > _TIER_BASE * JOINED_FILES_MIN**tier:
            tier += 1
        tiers.setdefault(tier, []).append(file)
    return [tier for tier in tiers.values() if len(tier) >= JOINED_FILES_MIN]


def _joins_due(table: LakeTable) -> list[list[DataFile]]:
    """Return groups of small files of a cluster to concatenate, in time order."""
    column, size_max = table.table.time_column, table.table.joined_size_max
    clusters: dict[str | None, list[DataFile]] = {}
    for file in table.files():
        if file.size < size_max // JOINED_FILES_MIN and file.row_count:
            clusters.setdefault(cluster_of(file), []).append(file)
    joins: list[list[DataFile]] = []
    for small in clusters.values():
        joins.append([])
        for file in sorted(small, key=lambda f: (f.minimum.get(column, 0), f.path)):
            if sum(f.size for f in joins[-1]) + file.size > size_max:
                joins.append([])
            joins[-1].append(file)
    return [files for files in joins if len(files) >= JOINED_FILES_MIN]


def expire(lake: Lake, before_ms: int, *, now_ms: int) -> int:
    """Remove every file whose rows are all older than before_ms by the table's time column; return how many.

    Rows of ids without a time (publish_hour -1) stay, and so does the keyframe of samples that before_ms reads.
    """
    with lake.writing():
        lake.refresh()
        needed = {name: {file.path for file in files} for name, files in sample_files(lake, before_ms).items()}
        return sum(_expire(table, before_ms, now_ms, needed.get(table.table.name, ())) for table in lake)


def _expire(table: LakeTable, before_ms: int, now_ms: int, needed: Container[str]) -> int:
    column = table.table.time_column
    if table.table.partition_by:
        old = [f for f in table.files() if f.hour is not None and 0 <= f.hour < before_ms // HOUR_MS]
    else:
        old = [
            f for f in table.files() if column in f.maximum and f.maximum[column] < before_ms and f.path not in needed
        ]
    # Rows of an index expire when its files are joined.
    is_index = table.table.relation in trail.INDEXES and expired_before_ms(table) <= before_ms - INDEX_STEP_MS
    is_index = is_index and any(file.minimum.get(column, before_ms) < before_ms for file in table.files())
    if is_index or (old and table.table.layer == "bronze" and not table.table.is_sampled):
        table.note(EXPIRED_KEY, str(before_ms))
    if old:
        table.swap([], old, now_ms=now_ms)
    return len(old)


def expired_before_ms(table: LakeTable) -> int:
    """Return up to which time retention may have removed rows of a table of bronze, or an index; 0: none."""
    return int(table.noted(EXPIRED_KEY) or 0)


def sweep(lake: Lake, *, now_ms: int, grace_ms: int = HOUR_MS) -> int:
    """Delete files older than grace_ms that the current snapshots do not name; return how many.

    grace_ms protects readers of an older snapshot and a writer that has not committed yet.
    """
    with lake.writing():
        return sum(1 for path in sweeping(lake, now_ms=now_ms, grace_ms=grace_ms) if path is not None)


def sweeping(lake: Lake, *, now_ms: int, grace_ms: int = HOUR_MS) -> Iterator[LakePath | None]:
    """As `sweep`; yield each deleted file, and None after each folder, when the caller may commit."""
    for table in lake:
        if isinstance(table.path, ObjectPath):
            yield from _sweeping_objects(table, table.path, now_ms - grace_ms)
        else:
            yield from _sweeping(table, table.path, now_ms - grace_ms)


def _sweeping_objects(table: LakeTable, folder: ObjectPath, before_ms: int) -> Iterator[LakePath | None]:
    """As `_sweeping`, some objects at a time. Their times are of the store's clock."""
    log = folder / "_delta_log"
    old = [path for path in folder.rglob("*") if not path.is_below(log) and path.stat().st_mtime * 1000 < before_ms]
    for first in range(0, len(old), _SWEPT_AT_ONCE):
        table.refresh()
        kept = {str(table.path / file.path) for file in table.files()}
        for path in old[first : first + _SWEPT_AT_ONCE]:
            if str(path) not in kept:
                path.unlink()
                yield path
        yield None


def _sweeping(table: LakeTable, top: Path, before_ms: int) -> Iterator[LakePath | None]:
    kept: set[str] = set()
    version = -1
    for folder, _, files in os.walk(top, topdown=False):
        if "_delta_log" in Path(folder).parts:
            continue
        table.refresh()
        if table.version != version:
            version, kept = table.version, {str(table.path / f.path) for f in table.files()}
        for name in files:
            path = Path(folder, name)
            if str(path) not in kept and path.stat().st_mtime * 1000 < before_ms:
                path.unlink()
                yield path
        if folder != str(top) and not os.listdir(folder) and os.stat(folder).st_mtime * 1000 < before_ms:
            os.rmdir(folder)
        yield None
