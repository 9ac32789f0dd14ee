"""One task of a judgement: DuckDB runs stages of `trail` over Parquet files and writes Parquet files.

Spark starts the requested number of tasks, retries them, and decides which attempt of a task counts. A task writes to
a folder named after its attempt and returns the names of its files, so files of other attempts are never read.

A task has one core and `memory_limit` of memory; larger data goes to files in its scratch folder. It needs the
installed package and the lake's folder. Functions and values are sent to it; it keeps no state in its process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from mqtrail import trail
from mqtrail.lake import TABLES, LakePath, connect, copy, copy_hours, parquet_of, place_of, run_stages
from mqtrail.trail import Stage, literal

from .attempt import new_run_id, this_attempt
from .late_workers import started
from .on_spark import OnSpark

if TYPE_CHECKING:
    import duckdb

PARTITION_ROWS_MAX = 100_000  # rows of all shares that a task keeps in memory before it writes some of them
EVERY_SHARE = -1
_FILE_SCHEMA = "relation string, share int, path string"


class TaskFile(NamedTuple):
    """A file written by a task: rows of a relation, for one share or for EVERY_SHARE."""

    relation: str
    share: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """The work of a set of tasks. Every executor can read the files, and write to the folders."""

    folder: str
    memory_limit: str
    stages: tuple[Stage, ...]
    kept: tuple[str, ...] = ()
    """Stages to write for later tasks. Those with `partition_by` are written too, divided into shares."""
    share_count: int = 1
    results: Mapping[str, str] = field(default_factory=dict)
    """Stages to write as tables of the lake, and the folder of each; a stage that is not a table becomes one file."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Relations that every task reads, by their files. A table of the lake without files is empty."""
    own_files: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """Relations of which each task reads other files, in the order of the tasks."""


class Tasks(Protocol):
    """Runs tasks side by side."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    def run(self, work: TaskWork, count: int) -> list[TaskFile]:
        """Run `count` tasks of the work; return the files that they wrote, ordered."""


class SparkTasks(OnSpark):
    """Tasks of Spark."""

    def run(self, work: TaskWork, count: int) -> list[TaskFile]:
        """See Tasks."""
        rows = started(lambda: self._spark.range(0, count, 1, count).mapInArrow(_task(work), _FILE_SCHEMA).collect())
        return sorted(TaskFile(*row) for row in rows)


def _task(work: TaskWork) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow. Its input rows are not used: each partition is a task."""
    run_id = new_run_id()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        attempt = this_attempt(run_id)
        files = run_task(work, *attempt)
        yield pa.RecordBatch.from_pylist([file._asdict() for file in files], schema=_arrow_schema())

    return run


def _arrow_schema() -> pa.Schema:
    columns: dict[str, pa.DataType] = {"relation": pa.string(), "share": pa.int32(), "path": pa.string()}
    return pa.schema(columns)


def run_task(work: TaskWork, number: int, attempt: str, scratch: str) -> list[TaskFile]:
    """Do the work of task `number`, from 0; return its files. attempt: a unique name of this attempt."""
    folder = place_of(work.folder)  # before DuckDB starts, which then reads objects if this is one
    with tempfile.TemporaryDirectory(prefix="mqtrail-share-", dir=scratch) as spill:
        duck = connect(threads=1, memory_limit=work.memory_limit)
        try:
            duck.execute("SET temp_directory = ?", [spill])
            duck.execute("SET preserve_insertion_order = false")
            return _run(work, duck, number, folder / attempt, attempt)
        finally:
            duck.close()


def _run(
    work: TaskWork, duck: duckdb.DuckDBPyConnection, number: int, folder: LakePath, attempt: str
) -> list[TaskFile]:
    for name, paths in ({**work.files} | {name: paths[number] for name, paths in work.own_files.items()}).items():
        rows = f"SELECT * FROM {parquet_of(paths)}" if paths else f"SELECT {_nulls(name)} WHERE false"
        duck.execute(f"CREATE TEMP VIEW {name} AS {rows}")
    divided = [stage for stage in work.stages if stage.partition_by]
    run_stages(duck, work.stages, also_read=(*work.kept, *work.results, *(stage.name for stage in divided)))
    if work.kept or divided:
        folder.mkdir(parents=True)
    files: list[TaskFile] = []
    for name in work.kept:
        path = folder / f"{name}.parquet"
        duck.execute(f"COPY {name} TO {literal(str(path))} (FORMAT parquet)")
        files.append(TaskFile(name, number, str(path)))
    for stage in divided:
        files += _divide(duck, stage, folder, work.share_count)
        if number == 0:
            files.append(_empty(duck, stage.name, folder))
    for name, target in work.results.items():
        files += (TaskFile(name, EVERY_SHARE, str(path)) for path in _write(duck, name, place_of(target) / attempt))
    return files


def _divide(duck: duckdb.DuckDBPyConnection, stage: Stage, folder: LakePath, share_count: int) -> list[TaskFile]:
    """Write a file for each share that rows fall into, by the columns that partition them."""
    target = folder / stage.name
    duck.execute(f"SET partitioned_write_flush_threshold = {max(1, PARTITION_ROWS_MAX // share_count)}")
    duck.execute(
        f"COPY (SELECT *, hash({', '.join(stage.partition_by)}) % {share_count} AS share FROM {stage.name}) "
        f"TO {literal(str(target))} (FORMAT parquet, COMPRESSION lz4, PARTITION_BY (share))"
    )
    found: list[LakePath] = sorted(target.rglob("*.parquet"), key=str)
    return [TaskFile(stage.name, int(path.parent.name.partition("=")[2]), str(path)) for path in found]


def _empty(duck: duckdb.DuckDBPyConnection, name: str, folder: LakePath) -> TaskFile:
    """Write a file without rows, from which a share without rows gets the columns."""
    path = folder / f"{name}-empty.parquet"
    duck.execute(f"COPY (SELECT * FROM {name} WHERE false) TO {literal(str(path))} (FORMAT parquet)")
    return TaskFile(name, EVERY_SHARE, str(path))


def _write(duck: duckdb.DuckDBPyConnection, name: str, folder: LakePath) -> list[LakePath]:
    """Write the rows of a result; return the files."""
    table = TABLES.get(name)
    if table is None:
        folder.mkdir(parents=True, exist_ok=True)
        duck.execute(f"COPY {name} TO {literal(str(folder / 'part-0.parquet'))} (FORMAT parquet)")
        return [folder / "part-0.parquet"]
    if table.partition_by:
        return copy_hours(duck, f"SELECT * FROM {name}", folder, table)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "part-0.parquet"
    copy(duck, f"SELECT {', '.join(table.relation.names)} FROM {name}", path, table)
    return [path]


def _nulls(name: str) -> str:
    compared = {relation.name: relation for relation in trail.COMPARED}
    relation = TABLES[name].relation if name in TABLES else compared[name]
    return ", ".join(f"NULL::{column.type} AS {column.name}" for column in relation)
