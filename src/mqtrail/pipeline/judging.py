"""From silver to gold: trail's stages over the hours that are due, which gold then has anew.

Spark reads, spreads and counts; DuckDB in its tasks runs the stages (`shares`). Where messages were sent in batches,
the few stages that bring rows of different ids together are run by Spark itself before (`engine`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from mqtrail import trail
from mqtrail.lake import JUDGED, JUDGED_APP, Lake, LakeTable
from mqtrail.pipeline.engine import SparkEngine
from mqtrail.pipeline.files import Committer, read_table, write_rows
from mqtrail.pipeline.hours import JudgedHours
from mqtrail.pipeline.ingest import hours_of
from mqtrail.pipeline.shares import WORK, FileRows, Shares

# Attempts of one share: so many at most, or a task outgrows its memory; so few at least, or its start costs the most.
SHARE_ROWS_MAX = 500_000
SHARE_ROWS_MIN = 20_000
EVENTS = trail.TRACE_EVENTS.name
RESULTS = JUDGED
APP = JUDGED_APP  # its batches are numbered by the instant of judgement


class Judge:
    """Judges what a lake holds."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        committer: Committer,
        judged: JudgedHours,
        settings: trail.Settings,
        task_memory: str = "1GB",
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._committer = committer
        self._judged = judged
        self._settings = settings
        self._shares = Shares(spark, lake.path / WORK, task_memory)

    def run(self, as_of_ms: int, *, only_until: bool = False) -> int:
        """Judge the hours that are due as of as_of_ms; return how many trajectories they have.

        only_until: leave out what happened later. An earlier judgement of the same instant stands.
        """
        hours = self._judged.due
        if not hours or self._committer.is_committed(trail.KEY_INDEX, APP, as_of_ms):
            return 0
        self._lake.refresh()
        table = self._lake[trail.ATTEMPTS.name]
        files = table.files(hours)
        paths = table.paths(files)
        attempts = FileRows(files=paths, where=f"coalesce(start_ms, end_ms, 0) <= {as_of_ms}" if only_until else "true")
        batches = any(has_batches(Path(path)) for path in paths)
        count = self._share_count(sum(file.row_count for file in files))
        due = [relation for relation in RESULTS if not self._committer.is_committed(relation, APP, as_of_ms)]
        stages = trail.judge(as_of_ms, trail.DUCKDB, self._settings, batches=batches)
        engine = SparkEngine(self._spark)
        try:
            spread: Mapping[str, DataFrame | FileRows] = {trail.ATTEMPTS.name: attempts}
            if batches:
                spread = self._joined(engine, attempts, stages, count)
                stages = [stage for stage in stages if stage.name not in trail.ACROSS_IDS]
            folders = {relation.name: self._committer.folder(relation, APP, as_of_ms) for relation in due}
            for folder in folders.values():  # what a crash left without a commit
                shutil.rmtree(folder, ignore_errors=True)
            whole = {
                name: self._lake[name].paths() for name in trail.INPUTS if name not in (trail.ATTEMPTS.name, EVENTS)
            }
            made = self._shares.run(
                stages, count, spread=spread, whole=whole, picked=(EVENTS, self._events(stages)), results=folders
            )
        finally:
            engine.close()
        if trail.VERDICTS in due:
            self._committer.note_settings(self._settings, as_of_ms)
        for relation in due:
            found = made[relation.name]
            self._committer.commit(relation, found, APP, as_of_ms, replace_hours=hours | hours_of(found))
        trajectories, verdicts = (self._lake[relation.name] for relation in (trail.TRAJECTORIES, trail.VERDICTS))
        self._judged.judged(hours, _open_hours(trajectories, hours) | _open_hours(verdicts, hours))
        return sum(file.row_count for file in trajectories.files(hours))

    def lag(self, sampled_ms: int) -> None:
        """Add the lag of one sample."""
        for relation, name in ((trail.GROUP_OFFSETS, "sampled_offsets"), (trail.QUEUE_RANGES, "sampled_ranges")):
            rows = read_table(self._spark, relation, self._lake[relation.name].paths())
            rows.filter(f"sampled_ms = {sampled_ms}").createOrReplaceTempView(name)
        meta = read_table(self._spark, trail.MESSAGE_META, self._lake[trail.MESSAGE_META.name].paths())
        meta.createOrReplaceTempView(trail.MESSAGE_META.name)
        rows = self._spark.sql(trail.lag_sql("sampled_offsets", "sampled_ranges")).select(*trail.LAG.names)
        self._committer.write_once(trail.LAG, "lag", sampled_ms, lambda folder: write_rows(rows.coalesce(1), folder))

    def _share_count(self, rows: int) -> int:
        """How many shares to make of so many attempts: each core the same number of them where they are many."""
        cores = self._spark.sparkContext.defaultParallelism
        turns = ceil(rows / (SHARE_ROWS_MAX * cores))
        return max(1, min(turns * cores, rows // SHARE_ROWS_MIN))

    def _joined(
        self, engine: SparkEngine, attempts: FileRows, stages: Sequence[trail.Stage], count: int
    ) -> dict[str, DataFrame]:
        """The rows of batches' ids brought to their messages, by Spark: other ids are of other shares."""
        self._spark.conf.set("spark.sql.shuffle.partitions", str(max(2, count)))
        rows = read_table(self._spark, trail.ATTEMPTS, attempts.files).filter(attempts.where)
        rows.createOrReplaceTempView(trail.ATTEMPTS.name)
        trail.run(engine, [stage for stage in stages if stage.name in trail.ACROSS_IDS])
        return {name: self._spark.table(name) for name in trail.MEETING_POINTS}

    def _events(self, stages: Sequence[trail.Stage]) -> DataFrame:
        """The few trace_events that a judgement reads: those that tell of clients."""
        kinds = ", ".join(f"'{kind}'" for kind in trail.CONTEXT_RECORDS)
        rows = read_table(self._spark, trail.TRACE_EVENTS, self._lake[EVENTS].paths())
        return rows.filter(f"record_type IN ({kinds})").select(*trail.columns_read(trail.TRACE_EVENTS, stages))


def has_batches(file: Path) -> bool:
    """Whether a file of attempts has a row with a batch_id, by its statistics; true when they do not tell."""
    metadata = pq.read_metadata(file)
    place = metadata.schema.names.index("batch_id")
    statistics = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
    return any(each is None or not each.has_min_max or each.max != "" for each in statistics)


def _open_hours(table: LakeTable, hours: set[int]) -> set[int]:
    """Those of hours in which the table has anything open."""
    return {
        file.hour
        for file in table.files(hours)
        if file.hour is not None
        and 1 in pq.read_table(table.path / file.path, columns=["is_open"])["is_open"].unique().to_pylist()
    }
