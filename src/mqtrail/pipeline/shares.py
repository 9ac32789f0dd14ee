"""A judgement in shares: Spark reads, spreads, retries and counts; in its tasks DuckDB runs the texts of `trail`.

    Spark   a task a core ─────────▶ a task a share ─┐     one task     ┌▶ a task a share ─┐    one task
    DuckDB  attempts divided by id   trail.rounds: shares ──▶ whole ────┘       shares ────┴──▶ whole

What Spark itself made (the rows of batches, brought to their messages) it also spreads itself. Both engines run the
same stages (`trail.judge`); `trail.rounds` says which of them a share can do alone. What a task leaves for the next one
is Parquet in a folder of its own attempt, whose name it returns: of a task that ran twice, the attempt that Spark
counts is the one that is read on. So results of an attempt that failed are files nobody names.

A task has one core and `memory_limit` of memory; what needs more goes to files in its scratch folder. It needs the
installed package and the lake's folder, no more: functions and values are sent to it, no state stays behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from mqtrail import trail
from mqtrail.lake import TABLES, DuckEngine, connect, copy_hours, parquet_of
from mqtrail.trail import Relation, Stage

if TYPE_CHECKING:
    import duckdb

WORK = "_work"  # the lake's folder for what tasks leave one another
STORED = "stored"  # the relation of which FileRows are some rows
DIVIDE_ROWS_MAX = 100_000  # rows that a dividing task holds, of all shares together, before it writes some
Files = dict[str, list[str]]
Told = tuple[int, str, str]  # of which share, what, in which file
TOLD_SCHEMA = "share int, name string, path string"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """Rows of files, to be divided by cluster and msg_id: those for which a condition holds."""

    files: Sequence[str]
    where: str = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a task does. Paths are of files that every executor can read, folders of such that it can write."""

    folder: str
    memory_limit: str
    stages: tuple[Stage, ...] = ()
    kept: tuple[str, ...] = ()  # stages to leave for later tasks
    divide: int = 0  # what is kept is divided by id into so many shares; 0: it is of the task's own share
    results: Mapping[str, str] = field(default_factory=dict)  # stages that are tables of the lake, and their folders
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # relations to read; without files: empty ones
    # Relations of which a share reads its own files.
    left: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)


class Shares:
    """Runs a judgement's stages over relations that are spread by id; `folder` is for what tasks leave one another."""

    def __init__(self, spark: SparkSession, folder: Path, memory_limit: str) -> None:
        self._spark = spark
        self._folder = folder
        self._memory_limit = memory_limit

    def run(
        self,
        stages: Sequence[Stage],
        count: int,
        *,
        spread: Mapping[str, DataFrame | FileRows],
        whole: Mapping[str, Sequence[str]],
        picked: tuple[str, DataFrame],
        results: Mapping[str, Path],
    ) -> dict[str, list[Path]]:
        """Run stages in count shares; return the files of each of results, a stage's name to the folder it gets.

        spread: inputs that are divided by cluster and msg_id. whole: inputs that are read whole, by their files.
        picked: one more of these, as the rows that Spark picks for it.
        """
        self._drop()
        try:
            return self._rounds(trail.rounds(stages, spread), count, spread, whole, picked, results)
        finally:
            self._drop()

    def each_file(self, stage: Stage, of: Relation, files: Sequence[Path], folder: Path) -> list[Path]:
        """Run one stage, that looks at one row at a time, over each file by itself; return the files it made.

        of: what the files are. What else the stage reads has no rows. folder: where the stage's table gets them.
        """
        if not files:
            return []
        empty: Mapping[str, tuple[str, ...]] = dict.fromkeys(trail.relations_read(stage.sql), ())
        left = {of.name: tuple((str(file),) for file in files)}
        made = self._each(self._work([stage], results={stage.name: folder}, files=empty, left=left), len(files))
        return [Path(path) for path in made.get(stage.name, ())]

    def _drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _rounds(
        self,
        rounds: Sequence[trail.Round],
        count: int,
        spread: Mapping[str, DataFrame | FileRows],
        whole: Mapping[str, Sequence[str]],
        picked: tuple[str, DataFrame],
        results: Mapping[str, Path],
    ) -> dict[str, list[Path]]:
        files = {name: tuple(paths) for name, paths in whole.items()}
        left: dict[str, tuple[tuple[str, ...], ...]] = {}
        feeds: list[tuple[str, DataFrame]] = []
        for name, rows in spread.items():
            if isinstance(rows, FileRows):
                left[name] = self._divided(name, rows, count)
            else:
                feeds.append((name, rows.repartition(count, "cluster", "msg_id")))
        for name, arriving in feeds[:-1]:
            left |= _of_shares(self._each(self._work(kept=(name,)), count, name, arriving), (name,))
        found: Files = {name: [] for name in results}
        read_later = {name for each in rounds[1:] for stage in each.shares for name in trail.relations_read(stage.sql)}
        for number, each in enumerate(rounds):
            gathered = [stage.name for stage in each.shares if stage.gathered]
            feed = feeds[-1:] if number == 0 else []
            kept = (*each.kept, *(name for name, _ in feed if name in read_later))
            work = self._work(each.shares, (*kept, *gathered), results, files, left)
            told = self._each(work, count, *(feed[0] if feed else ()))
            left |= _of_shares(told, kept)
            files |= {name: tuple(told[name]) for name in gathered}
            fold = self._work(each.whole, each.told, results, files)
            folded = self._each(fold, 1, picked[0], picked[1].repartition(1)) if number == 0 else self._each(fold, 1)
            files |= {name: tuple(folded[name]) for name in each.told}
            for name in results:
                found[name] += (*told.get(name, ()), *folded.get(name, ()))
        return {name: [Path(path) for path in paths] for name, paths in found.items()}

    def _work(
        self,
        stages: Sequence[Stage] = (),
        kept: Sequence[str] = (),
        results: Mapping[str, Path] | None = None,
        files: Mapping[str, tuple[str, ...]] | None = None,
        left: Mapping[str, tuple[tuple[str, ...], ...]] | None = None,
    ) -> Work:
        """The work of running stages: of results those that are among them, of files those that they read."""
        names = [stage.name for stage in stages]
        read = {name for stage in stages for name in trail.relations_read(stage.sql)} - set(names)
        written = {name: str(folder) for name, folder in (results or {}).items() if name in names}
        return Work(
            folder=str(self._folder),
            memory_limit=self._memory_limit,
            stages=tuple(replace(stage, reads=2) if stage.name in kept else stage for stage in stages),
            kept=tuple(kept),
            results=written,
            files={name: paths for name, paths in (files or {}).items() if name in read},
            left={name: paths for name, paths in (left or {}).items() if name in read},
        )

    def _divided(self, name: str, rows: FileRows, count: int) -> tuple[tuple[str, ...], ...]:
        """Divide rows of files by id into count shares; return the files of each. As many tasks as shares, if there are
        as many files."""
        shares: list[list[str]] = [[] for _ in range(count)]
        if rows.files:
            hands = min(len(rows.files), count)
            stage = Stage(name, f"SELECT * FROM {STORED} WHERE {rows.where}")
            left = {STORED: tuple(tuple(rows.files[hand::hands]) for hand in range(hands))}
            work = replace(self._work(), stages=(stage,), kept=(name,), divide=count, left=left)
            for share, _, path in self._told(work, hands):
                shares[share].append(path)
        return tuple(map(tuple, shares))

    def _each(self, work: Work, count: int, stream: str | None = None, rows: DataFrame | None = None) -> Files:
        """Let count tasks do the work; return the files of each relation, in the order of the tasks.

        rows: what the tasks get, in count partitions; they are the relation `stream`.
        """
        files: Files = {}
        for _, name, path in self._told(work, count, stream, rows):
            files.setdefault(name, []).append(path)
        return files

    def _told(self, work: Work, count: int, stream: str | None = None, rows: DataFrame | None = None) -> list[Told]:
        numbers = self._spark.range(0, count, 1, count).select("id")
        if rows is None:
            told = numbers.mapInArrow(_task(work), TOLD_SCHEMA).collect()
        else:
            schema = to_arrow_schema(rows.schema, timezone="UTC")
            told = rows.mapInArrow(_task(work, stream, schema), TOLD_SCHEMA).collect()
            # Spark leaves out partitions of which it knows beforehand that they are empty.
            if silent := set(range(count)) - {row.share for row in told}:
                told += numbers.mapInArrow(_task(work, stream, schema, silent), TOLD_SCHEMA).collect()
        return sorted((row.share, row.name, row.path) for row in told)


def _of_shares(told: Files, names: Sequence[str]) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {name: tuple((path,) for path in told[name]) for name in names}


def _task(
    work: Work, stream: str | None = None, schema: pa.Schema | None = None, silent: Collection[int] | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task for mapInArrow. What arrives is the relation `stream`, of schema; without one, or with the shares that
    are silent, it only says how many tasks there are."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        share = context.partitionId()
        own = f"{share}-{context.taskAttemptId()}"
        arriving = batches
        if schema is None or silent is not None:
            for _ in batches:
                pass
            arriving = iter(())
        told = [] if silent is not None and share not in silent else _done(work, share, own, stream, schema, arriving)
        rows = [{"share": of, "name": name, "path": path} for of, name, path in told]
        yield pa.RecordBatch.from_pylist(rows, schema=_told_schema())

    return run


def _done(
    work: Work, share: int, own: str, stream: str | None, schema: pa.Schema | None, batches: Iterator[pa.RecordBatch]
) -> list[Told]:
    scratch = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
    with tempfile.TemporaryDirectory(prefix="mqtrail-share-", dir=scratch) as spill:
        duck = connect(threads=1, memory_limit=work.memory_limit)
        try:
            duck.execute("SET temp_directory = ?", [spill])
            duck.execute("SET preserve_insertion_order = false")
            return do(work, duck, share, own, stream, schema, batches)
        finally:
            duck.close()


def _told_schema() -> pa.Schema:
    columns: dict[str, pa.DataType] = {"share": pa.int32(), "name": pa.string(), "path": pa.string()}
    return pa.schema(columns)


def do(
    work: Work,
    duck: duckdb.DuckDBPyConnection,
    share: int,
    own: str,
    stream: str | None,
    schema: pa.Schema | None,
    batches: Iterator[pa.RecordBatch],
) -> list[Told]:
    """Run a task's stages; return what each file it left is. own: a name no other attempt has."""
    for name, paths in ({**work.files} | {name: paths[share] for name, paths in work.left.items()}).items():
        rows = f"SELECT * FROM {parquet_of(paths)}" if paths else f"SELECT {_nulls(name)} WHERE false"
        duck.execute(f"CREATE TEMP VIEW {name} AS {rows}")
    stages = work.stages
    if stream is not None and schema is not None:
        arriving = pa.RecordBatchReader.from_batches(schema, batches)
        reads = Counter(name for stage in stages for name in trail.relations_read(stage.sql))[stream]
        if (
            reads == 1 and stream not in work.kept
        ):  # rows arrive once: straight into the table of the stage that reads them
            duck.register(stream, arriving)
            stages = tuple(replace(s, reads=2) if stream in trail.relations_read(s.sql) else s for s in stages)
        else:
            duck.register("arriving", arriving)
            duck.execute(f"CREATE TEMP TABLE {stream} AS SELECT * FROM arriving")
    trail.run(DuckEngine(duck), stages)
    told: list[Told] = []
    folder = Path(work.folder) / own
    if work.kept:
        folder.mkdir(parents=True)
    for name in work.kept:
        told += _divide(duck, name, folder, work.divide) if work.divide else [(share, name, _keep(duck, name, folder))]
    for name, target in work.results.items():
        files = copy_hours(duck, f"SELECT * FROM {name}", Path(target) / own, TABLES[name])
        told += [(share, name, str(path)) for path in files]
    return told


def _keep(duck: duckdb.DuckDBPyConnection, name: str, folder: Path) -> str:
    path = folder / f"{name}.parquet"
    duck.execute(f"COPY {name} TO '{quoted(path)}' (FORMAT parquet)")
    return str(path)


def _divide(duck: duckdb.DuckDBPyConnection, name: str, folder: Path, count: int) -> list[Told]:
    """Write a file for each share that rows fall into, by their cluster and msg_id."""
    target = folder / name
    duck.execute(f"SET partitioned_write_flush_threshold = {max(1, DIVIDE_ROWS_MAX // count)}")
    duck.execute(
        f"COPY (SELECT *, hash(cluster, msg_id) % {count} AS share FROM {name}) TO '{quoted(target)}' "
        "(FORMAT parquet, COMPRESSION lz4, PARTITION_BY (share))"
    )
    return [(int(path.parent.name.partition("=")[2]), name, str(path)) for path in target.rglob("*.parquet")]


def _nulls(name: str) -> str:
    return ", ".join(f"NULL::{column.type} AS {column.name}" for column in TABLES[name].relation)


def quoted(path: Path) -> str:
    """A path inside quotes of SQL."""
    return str(path).replace("'", "''")
