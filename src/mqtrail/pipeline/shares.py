"""A judgement in shares: Spark reads, spreads, retries and counts; in its tasks DuckDB runs the texts of `trail`.

    Spark   attempts ── repartition by id ──▶ a task a share ─┐     one task     ┌▶ a task a share ─┐    one task
    DuckDB                                    trail.rounds: shares ──▶ whole ────┘       shares ────┴──▶ whole

Both engines run the same stages (`trail.judge`); `trail.rounds` says which of them a share can do alone. What a task
leaves for the next one is Parquet in a folder of its own attempt, whose name it returns: of a task that ran twice, the
attempt that Spark counts is the one that is read on. So results of an attempt that failed are files nobody names.

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
Files = dict[str, list[str]]
TOLD_SCHEMA = "partition int, name string, path string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a task does. Paths are of files that every executor can read, folders of such that it can write."""

    folder: str
    memory_limit: str
    stages: tuple[Stage, ...] = ()
    kept: tuple[str, ...] = ()  # stages to leave for later tasks
    results: Mapping[str, str] = field(default_factory=dict)  # stages that are tables of the lake, and their folders
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # relations to read; without files: empty ones
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # relations of which a share reads its own file


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
        spread: Mapping[str, DataFrame],
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
        left = {of.name: tuple(str(file) for file in files)}
        made = self._each(self._work([stage], results={stage.name: folder}, files=empty, left=left), len(files))
        return [Path(path) for path in made.get(stage.name, ())]

    def _drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _rounds(
        self,
        rounds: Sequence[trail.Round],
        count: int,
        spread: Mapping[str, DataFrame],
        whole: Mapping[str, Sequence[str]],
        picked: tuple[str, DataFrame],
        results: Mapping[str, Path],
    ) -> dict[str, list[Path]]:
        files = {name: tuple(paths) for name, paths in whole.items()}
        left: dict[str, tuple[str, ...]] = {}
        *earlier, feed = ((name, rows.repartition(count, "cluster", "msg_id")) for name, rows in spread.items())
        for name, rows in earlier:
            left[name] = tuple(self._each(self._work(kept=(name,)), count, name, rows)[name])
        found: Files = {name: [] for name in results}
        read_later = {name for each in rounds[1:] for stage in each.shares for name in trail.relations_read(stage.sql)}
        for number, each in enumerate(rounds):
            gathered = [stage.name for stage in each.shares if stage.gathered]
            kept = (*each.kept, feed[0]) if number == 0 and feed[0] in read_later else each.kept
            work = self._work(each.shares, (*kept, *gathered), results, files, left)
            told = self._each(work, count, *feed) if number == 0 else self._each(work, count)
            left |= {name: tuple(told[name]) for name in kept}
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
        left: Mapping[str, tuple[str, ...]] | None = None,
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

    def _each(self, work: Work, count: int, stream: str | None = None, rows: DataFrame | None = None) -> Files:
        """Let count tasks do the work; return the files of each relation, in the order of the tasks.

        rows: what the tasks get, in count partitions; they are the relation `stream`.
        """
        numbers = self._spark.range(0, count, 1, count).select("id")
        if rows is None:
            told = numbers.mapInArrow(_task(work), TOLD_SCHEMA).collect()
        else:
            schema = to_arrow_schema(rows.schema, timezone="UTC")
            told = rows.mapInArrow(_task(work, stream, schema), TOLD_SCHEMA).collect()
            # Spark leaves out partitions of which it knows beforehand that they are empty.
            if silent := set(range(count)) - {row.partition for row in told}:
                told += numbers.mapInArrow(_task(work, stream, schema, silent), TOLD_SCHEMA).collect()
        files: Files = {}
        for row in sorted(told):
            files.setdefault(row.name, []).append(row.path)
        return files


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
        rows = [{"partition": share, "name": name, "path": path} for name, path in told]
        yield pa.RecordBatch.from_pylist(rows, schema=_told_schema())

    return run


def _done(
    work: Work, share: int, own: str, stream: str | None, schema: pa.Schema | None, batches: Iterator[pa.RecordBatch]
) -> list[tuple[str, str]]:
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
    columns: dict[str, pa.DataType] = {"partition": pa.int32(), "name": pa.string(), "path": pa.string()}
    return pa.schema(columns)


def do(
    work: Work,
    duck: duckdb.DuckDBPyConnection,
    share: int,
    own: str,
    stream: str | None,
    schema: pa.Schema | None,
    batches: Iterator[pa.RecordBatch],
) -> list[tuple[str, str]]:
    """Run a task's stages; return the name and path of each file it left. own: a name no other attempt has."""
    for name, paths in ({**work.files} | {name: (paths[share],) for name, paths in work.left.items()}).items():
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
    told = []
    folder = Path(work.folder) / own
    if work.kept:
        folder.mkdir(parents=True)
    for name in work.kept:
        path = folder / f"{name}.parquet"
        duck.execute(f"COPY {name} TO '{quoted(path)}' (FORMAT parquet)")
        told.append((name, str(path)))
    for name, target in work.results.items():
        files = copy_hours(duck, f"SELECT * FROM {name}", Path(target) / own, TABLES[name])
        told += [(name, str(path)) for path in files]
    return told


def _nulls(name: str) -> str:
    return ", ".join(f"NULL::{column.type} AS {column.name}" for column in TABLES[name].relation)


def quoted(path: Path) -> str:
    """A path inside quotes of SQL."""
    return str(path).replace("'", "''")
