"""From silver to gold: trail's stages run by Spark over the hours that are due, which gold then has anew."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from mqtrail import trail
from mqtrail.lake import TABLES, Lake
from mqtrail.pipeline.engine import SparkEngine
from mqtrail.pipeline.files import Committer, parquet_files, read_table, row_count, write_hours, write_rows
from mqtrail.pipeline.hours import JudgedHours
from mqtrail.pipeline.ingest import hours_of

ROWS_A_PARTITION = 500_000  # attempts that one shuffle partition holds
RESULTS = (trail.TRAJECTORIES, trail.VERDICTS, trail.LATENCY_MINUTE, trail.KEY_INDEX)
APP = "gold"  # its batches are numbered by the instant of judgement


class Judge:
    """Judges what a lake holds."""

    def __init__(
        self, spark: SparkSession, lake: Lake, committer: Committer, judged: JudgedHours, settings: trail.Settings
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._committer = committer
        self._judged = judged
        self._settings = settings

    def run(self, as_of_ms: int, *, only_until: bool = False) -> int:
        """Judge the hours that are due as of as_of_ms; return how many trajectories they have.

        only_until: leave out what happened later. An earlier judgement of the same instant stands.
        """
        hours = self._judged.due
        if not hours or self._committer.is_committed(trail.KEY_INDEX, APP, as_of_ms):
            return 0
        engine = SparkEngine(self._spark)
        try:
            batches = self._define_inputs(hours, as_of_ms if only_until else None)
            trail.run(engine, trail.judge(as_of_ms, trail.SPARK, self._settings, batches=batches))
            written = [self._write(relation, as_of_ms, hours) for relation in RESULTS]
        finally:
            engine.close()
        self._judged.judged(hours, _open_hours(written[0]) | _open_hours(written[1]))
        return row_count(written[0])

    def lag(self, sampled_ms: int) -> None:
        """Add the lag of one sample."""
        for relation, name in ((trail.GROUP_OFFSETS, "sampled_offsets"), (trail.QUEUE_RANGES, "sampled_ranges")):
            rows = read_table(self._spark, relation, self._lake[relation.name].paths())
            rows.filter(f"sampled_ms = {sampled_ms}").createOrReplaceTempView(name)
        meta = read_table(self._spark, trail.MESSAGE_META, self._lake[trail.MESSAGE_META.name].paths())
        meta.createOrReplaceTempView(trail.MESSAGE_META.name)
        rows = self._spark.sql(trail.lag_sql("sampled_offsets", "sampled_ranges")).select(*trail.LAG.names)
        self._committer.write_once(trail.LAG, "lag", sampled_ms, lambda folder: write_rows(rows.coalesce(1), folder))

    def _define_inputs(self, hours: set[int], until_ms: int | None) -> bool:
        """Make views of what a judgement reads; return whether any message was sent in a batch."""
        self._lake.refresh()
        attempts = self._lake[trail.ATTEMPTS.name]
        files = attempts.files(hours)
        partitions = max(2, sum(file.row_count for file in files) // ROWS_A_PARTITION)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        rows = read_table(self._spark, trail.ATTEMPTS, attempts.paths(files))
        if until_ms is not None:
            rows = rows.filter(f"coalesce(start_ms, end_ms, 0) <= {until_ms}")
        # One hash partitioning by id serves every aggregation and join that follows.
        rows.repartition(partitions, "msg_id").createOrReplaceTempView(trail.ATTEMPTS.name)
        for name in trail.INPUTS:
            if name != trail.ATTEMPTS.name:
                relation = TABLES[name].relation
                read_table(self._spark, relation, self._lake[name].paths()).createOrReplaceTempView(name)
        return any(has_batches(Path(path)) for path in attempts.paths(files))

    def _write(self, relation: trail.Relation, as_of_ms: int, hours: set[int]) -> list[Path]:
        folder = self._committer.folder(relation, APP, as_of_ms)
        write_hours(self._spark.table(relation.name), TABLES[relation.name], folder)
        files = parquet_files(folder)
        self._committer.commit(relation, files, APP, as_of_ms, replace_hours=hours | hours_of(files))
        return files


def has_batches(file: Path) -> bool:
    """Whether a file of attempts has a row with a batch_id, by its statistics; true when they do not tell."""
    metadata = pq.read_metadata(file)
    place = metadata.schema.names.index("batch_id")
    statistics = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
    return any(each is None or not each.has_min_max or each.max != "" for each in statistics)


def _open_hours(files: Iterable[Path]) -> set[int]:
    """The hours in whose files anything is open."""
    hours: set[int] = set()
    for file in files:
        if 1 in pq.read_table(file, columns=["is_open"])["is_open"].unique().to_pylist():
            hours |= hours_of([file])
    return hours
