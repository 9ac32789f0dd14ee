"""Migrates a lake of schema version 1, which mqtrail 0.1 wrote, to this version, in place.

    for line in migrate(path): print(line)         # what was done, step by step

Version 1 stored every sample as a full copy, and gold by whole hours. So samples are converted to changes
(`trail.samples`), gold begins empty, and the next cycle of a pipeline judges every message again. Bronze and silver are
not changed.

    <lake>/_migration/<table>/     new tables, until all of them are complete
    <lake>/_migration/complete     created when they are: from then on they replace the old ones

After a crash before `complete`, the lake is unchanged, and the next call starts again; after `complete`, the next call
continues. The version of `trace_events` changes last. Until then, every other command refuses the lake as version 1.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb

from mqtrail import trail
from mqtrail.trail import Relation, literal

from .duck import connect
from .edge import lake_errors
from .errors import LakeMissing, LakeUnsupported, SchemaVersionError
from .indexes import ADDED, MEMORY_LIMIT, SOURCES, add_indexes, missing_indexes, sync, write_index
from .lock import WriteLock
from .maintenance import EXPIRED_KEY
from .marks import MARKS
from .parquet import copy, parquet_of
from .places import LakePath, place_of
from .schemas import MIGRATED_VERSION, SCHEMA_VERSION, TABLES, Table
from .tables import VERSION_KEY, LakeTable, create_table, has_log

FOLDER: Final = "_migration"

_LAST: Final = trail.TRACE_EVENTS.name
_HOURS: Final = Path("_checkpoints", "hours.json")  # hours to judge, which version 1 noted
_KEPT: Final = [
    table.name
    for table in TABLES.values()
    if table.layer != "gold" and not table.is_sampled and table.name not in (*SOURCES, *ADDED)
]
_MADE: Final = [table.name for table in TABLES.values() if table.name not in _KEPT]

_QUEUE: Final = ("topic", "broker_name", "queue_id")
_COLUMNS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    trail.GROUP_OFFSETS.name: (("group_name", *_QUEUE), ("consumer_offset",)),
    trail.CLIENTS.name: (("group_name", "status", "client_id", "client_host", "language", "version"), ()),
    trail.SUBSCRIPTIONS.name: (
        ("group_name", "topic", "expression_type", "expression", "consume_type", "message_model"),
        (),
    ),
    trail.QUEUE_RANGES.name: (_QUEUE, ("min_offset", "max_offset")),
}
"""Of each sampled relation of version 1: the key within a sample, and the columns that change below a key."""
_LATER: Final = {
    trail.QUEUE_RANGES.name: ("read_offset",),
    trail.SAMPLES.name: ("reason",),
    trail.CLIENTS.name: ("ordered",),
}
"""Columns that version 1 did not have, and that its samples cannot fill."""


def migrate(path: str | LakePath) -> Iterator[str]:
    """Migrate the lake at a path; yield a line for each step. A lake of this version is not changed.

    LakeMissing, LakeBusy, LakeDamaged. SchemaVersionError: its version cannot be migrated. Call it again to continue
    an interrupted migration.
    """
    folder = place_of(path)
    if not isinstance(folder, Path):
        raise LakeUnsupported(
            f"{folder}: found an object store, expected a folder: mqtrail 0.1 wrote to folders only. Migrate "
            "the folder, and then copy it"
        )
    with lake_errors(folder):
        if not has_log(folder / _LAST):
            raise LakeMissing(f"no lake at {folder}: found no table {_LAST!r}, expected the folder of a lake")
        lock = WriteLock(folder)
        with lock.held():
            yield from _Migration(folder, lock).run()


class _Migration:
    def __init__(self, folder: Path, lock: WriteLock) -> None:
        self._folder = folder
        self._lock = lock
        self._new = folder / FOLDER
        self._complete = self._new / "complete"

    def run(self) -> Iterator[str]:
        last = self._open(_LAST)
        version = last.noted(VERSION_KEY) or "none"
        if version == str(SCHEMA_VERSION):
            shutil.rmtree(self._new, ignore_errors=True)
            if missing := missing_indexes(self._folder):
                add_indexes(self._folder, self._lock)
                yield f"made {' and '.join(missing)}"
            yield f"{self._folder} has schema version {SCHEMA_VERSION}: nothing to do"
            return
        if version != str(MIGRATED_VERSION):
            raise SchemaVersionError(
                f"{self._folder}: found schema version {version}, expected {MIGRATED_VERSION} or {SCHEMA_VERSION}: "
                "use the mqtrail that wrote it, or a newer one"
            )
        if not self._complete.exists():
            yield from self._make()
        for name in _MADE:
            self._replace(name)
        yield f"replaced {len(_MADE)} tables"
        (self._folder / _HOURS).unlink(missing_ok=True)
        for name in sorted(_KEPT, key=lambda name: name == _LAST):
            table = self._open(name)
            if name in (trail.TRACE_EVENTS.name, trail.MESSAGE_META.name):
                table.note(EXPIRED_KEY, str(_oldest_ms(table)))  # version 1 did not note what retention removed
            table.note(VERSION_KEY, str(SCHEMA_VERSION))
        shutil.rmtree(self._new)
        yield f"{self._folder} has schema version {SCHEMA_VERSION} now; the next cycle judges every message again"

    def _open(self, name: str) -> LakeTable:
        return LakeTable(TABLES[name], self._folder / name, self._lock)

    # -- new tables ------------------------------------------------------------------------------------------------

    def _make(self) -> Iterator[str]:
        """Make each table that version 1 had in another form or not at all."""
        shutil.rmtree(self._new, ignore_errors=True)
        self._new.mkdir()
        for name in _KEPT:
            kept = self._open(name)
            kept.readable(kept.files())  # damage is found before anything is replaced
        duck = connect(memory_limit=MEMORY_LIMIT)
        duck.execute(f"SET temp_directory = {literal(str(self._new / 'spilled'))}")
        for name in _COLUMNS:
            duck.execute(f"CREATE VIEW old_{name} AS {_old_rows(self._open(name))}")
        clusters = define_changes(duck)
        for name in _MADE:
            table = TABLES[name]
            create_table(table, self._new / name)
            if table.is_sampled:
                count = self._convert(duck, table, clusters)
                yield f"{name}: {count} rows of changes"
            elif name in SOURCES:
                bronze = self._open(SOURCES[name][0].name)
                if files := bronze.files():
                    made = LakeTable(table, self._new / name, WriteLock(self._new))
                    made.swap(
                        [write_index(duck, name, bronze, files, made.path / "batch=index-0" / "part.parquet")], []
                    )
        duck.close()
        for path in self._new.rglob("*"):
            sync(path)  # everything new is durable before anything old is deleted
        self._complete.touch()
        sync(self._new)

    def _convert(self, duck: duckdb.DuckDBPyConnection, table: Table, clusters: list[str]) -> int:
        """Write the samples of each cluster to a separate file."""
        made = LakeTable(table, self._new / table.name, WriteLock(self._new))
        files = []
        for number, cluster in enumerate(clusters):
            file = made.path / f"batch=migration-{number}" / "part.parquet"
            file.parent.mkdir(parents=True)
            copy(duck, f"SELECT * FROM {table.name} WHERE cluster = {literal(cluster)}", file, table)
            files.append(file)
        made.swap(files, [])
        return sum(file.row_count for file in made.files())

    # -- replacing the old tables ----------------------------------------------------------------------------------

    def _replace(self, name: str) -> None:
        """Move a new table to its place, unless the table exists."""
        new, place = self._new / name, self._folder / name
        mark, new_mark = (parent / MARKS / f"{name}.json" for parent in (self._folder, self._new))
        if new.exists():
            shutil.rmtree(place, ignore_errors=True)
            mark.unlink(missing_ok=True)
            os.rename(new, place)
            sync(self._folder)
        if new_mark.exists():
            mark.parent.mkdir(exist_ok=True)
            os.replace(new_mark, mark)


def _oldest_ms(table: LakeTable) -> int:
    return min((file.minimum.get(table.table.time_column, 0) for file in table.files() if file.row_count), default=0)


def _old_rows(table: LakeTable) -> str:
    """SQL: the rows of a sampled table of version 1, which lacks the columns of changes."""
    relation = table.table.relation
    key, values = _COLUMNS[relation.name]
    names = ["cluster", "sampled_ms", *key, *values]
    if relation.name == trail.QUEUE_RANGES.name:
        names.append("read_offset")
    files = table.readable([file for file in table.files() if file.row_count])
    if files:
        return f"SELECT {', '.join(names)} FROM {parquet_of(table.paths(files))}"
    typed = [f"cast(NULL AS {column.type}) AS {column.name}" for column in relation if column.name in names]
    return f"SELECT {', '.join(typed)} WHERE false"


def define_changes(duck: duckdb.DuckDBPyConnection) -> list[str]:
    """Define each sampled relation as changes, from old_<relation>, its full copies; return the clusters."""
    every = " UNION ".join(f"SELECT cluster, sampled_ms FROM old_{name}" for name in _COLUMNS)
    duck.execute(
        f"""CREATE TABLE taken AS SELECT *, count(*) OVER (PARTITION BY cluster) AS last_number,
        row_number() OVER (PARTITION BY cluster ORDER BY sampled_ms) AS number FROM ({every}) AS every_sample"""
    )
    for name, (key, values) in _COLUMNS.items():
        duck.execute(f"CREATE VIEW {name} AS {_filled(TABLES[name].relation, _changes(name, key, values))}")
    duck.execute(f"CREATE VIEW {trail.SAMPLES.name} AS {_filled(trail.SAMPLES, _samples())}")
    found = duck.execute("SELECT DISTINCT cluster FROM taken ORDER BY cluster").fetchall()
    return [cluster for (cluster,) in found]


def _changes(name: str, key: tuple[str, ...], values: tuple[str, ...]) -> str:
    """SQL: the changes from sample to sample, and everything again in the last sample, as in a keyframe."""
    own = ", ".join(("cluster", *key))
    state = ", ".join(f"{each} := {each}" for each in ("number", "sampled_ms", *values))
    largest = "".join(f", max({each}) AS {each}" for each in values)
    differs = " OR ".join(f"{each} IS DISTINCT FROM before.{each}" for each in values) or "false"
    kept = ", ".join((*key, *values))
    first, no_first, now_first = "", "", ""
    if name == trail.GROUP_OFFSETS.name:
        first = ", min_by(consumer_offset, number) AS first_offset"
        no_first = ", NULL"
        now_first = ", CASE WHEN before IS NULL THEN consumer_offset END AS first_offset"
    return f"""
WITH single AS (SELECT {own}, sampled_ms{largest} FROM old_{name} GROUP BY {own}, sampled_ms),
numbered AS (SELECT single.*, number, last_number FROM single JOIN taken USING (cluster, sampled_ms)),
compared AS (SELECT *, lag(struct_pack({state})) OVER own AS before, lead(number) OVER own AS next_number
  FROM numbered WINDOW own AS (PARTITION BY {own} ORDER BY number)),
states AS (SELECT {own}, max_by(struct_pack({state}), number) AS latest, min(sampled_ms) AS first_ms{first}
  FROM numbered GROUP BY {own})
SELECT cluster, sampled_ms, {kept}, 'SEEN' AS change, cast(NULL AS bigint) AS seen_ms,
  CASE WHEN before IS NULL THEN sampled_ms END AS first_ms{now_first}
FROM compared WHERE number < last_number AND (before IS NULL OR before.number < number - 1 OR {differs})
UNION ALL
SELECT c.cluster, t.sampled_ms, {kept}, 'GONE', c.sampled_ms, NULL{no_first}
FROM compared c JOIN taken t ON t.cluster = c.cluster AND t.number = c.number + 1
WHERE t.number < t.last_number AND (next_number IS NULL OR next_number > t.number)
UNION ALL
SELECT s.cluster, t.sampled_ms, {", ".join((*key, *(f"latest.{each}" for each in values)))},
  CASE WHEN latest.number = t.number THEN 'SEEN' ELSE 'GONE' END,
  CASE WHEN latest.number < t.number THEN latest.sampled_ms END, first_ms{first and ", first_offset"}
FROM states s JOIN taken t ON t.cluster = s.cluster AND t.number = t.last_number"""


def _samples() -> str:
    """SQL: a row for each sample, the questions that they answer, and how far the messages of each topic were read.

    In version 1 a question without an answer has no rows, as one that is answered with nothing. So a question counts as
    answered in the samples that have rows of it: what a broker did not report is not current.
    """
    offsets, ranges = f"old_{trail.GROUP_OFFSETS.name}", f"old_{trail.QUEUE_RANGES.name}"
    return f"""
WITH answers AS (
  SELECT DISTINCT cluster, sampled_ms, 'OFFSETS' AS what, broker_name, '' AS topic FROM {offsets}
  UNION ALL SELECT DISTINCT cluster, sampled_ms, 'RANGES', broker_name, topic FROM {ranges}),
asked AS (SELECT *, lag(number) OVER own AS before_number, lead(number) OVER own AS next_number
  FROM answers JOIN taken USING (cluster, sampled_ms)
  WINDOW own AS (PARTITION BY cluster, what, broker_name, topic ORDER BY number)),
topics AS (SELECT cluster, topic, max(sampled_ms) AS read_ms FROM {ranges} WHERE read_offset IS NOT NULL GROUP BY ALL),
ends AS (SELECT t.cluster, min(sampled_ms) AS first_ms, max(sampled_ms) AS last_ms, max(read_ms) AS read_ms
  FROM taken t LEFT JOIN topics ON t.cluster = topics.cluster GROUP BY t.cluster)
SELECT t.cluster, sampled_ms, 'SAMPLE' AS what, '' AS broker_name, '' AS topic, 'OK' AS status,
  cast(NULL AS bigint) AS seen_ms, CASE WHEN sampled_ms = last_ms THEN last_ms ELSE first_ms END AS keyframe_ms
FROM taken t JOIN ends e ON t.cluster = e.cluster
UNION ALL SELECT cluster, sampled_ms, what, broker_name, topic, 'OK', NULL, NULL
  FROM asked WHERE number = last_number OR before_number IS NULL OR before_number < number - 1
UNION ALL SELECT a.cluster, t.sampled_ms, what, broker_name, topic, 'FAILED', a.sampled_ms, NULL
  FROM asked a JOIN taken t ON a.cluster = t.cluster AND (t.number = a.number + 1 OR t.number = t.last_number)
  WHERE t.number > a.number AND (next_number IS NULL OR t.number < next_number)
UNION ALL SELECT t.cluster, last_ms - 1, 'READ', '', topic, CASE WHEN t.read_ms = e.read_ms THEN 'OK' ELSE 'FAILED' END,
  CASE WHEN t.read_ms < e.read_ms THEN t.read_ms END, NULL
  FROM topics t JOIN ends e ON t.cluster = e.cluster
UNION ALL SELECT cluster, last_ms - 1, 'READ', '', '', 'OK', read_ms, NULL FROM ends WHERE read_ms IS NOT NULL"""


def _filled(relation: Relation, rows: str) -> str:
    """SQL: all columns of a sampled relation from rows that lack some of them."""
    missing = _LATER.get(relation.name, ())
    empty = {"string": "''", "bigint": "cast(NULL AS bigint)"}
    columns = [
        f"{empty[column.type]} AS {column.name}" if column.name in missing else column.name for column in relation
    ]
    return f"SELECT {', '.join(columns)} FROM ({rows}) AS made"
