"""Files of the lake: Spark writes them, one commit makes them count.

A batch's files of one table lie under `<table>/batch=<app>-<number>/`. What a crash left there without a commit is
overwritten when the batch runs again; what is committed is never touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from mqtrail.lake import LakeTable, ddl
from mqtrail.trail import Relation

HOUR_FOLDER = "hour"  # of files that hold one publish hour each


def read_table(spark: SparkSession, relation: Relation, paths: Sequence[str]) -> DataFrame:
    """The rows of committed files; typed and empty without any."""
    if paths:
        return spark.read.schema(ddl(relation)).parquet(*paths)
    return spark.createDataFrame([], ddl(relation))


def batch_folder(table: LakeTable, app: str, batch: int) -> Path:
    """Where the files of one batch lie."""
    return table.path / f"batch={app}-{batch}"


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files below a folder that Spark wrote; none if it is not there."""
    return sorted(folder.rglob("*.parquet"))


def commit_once(
    table: LakeTable, app: str, batch: int, write: Callable[[Path], None], replace_hours: Iterable[int] = ()
) -> list[Path]:
    """Let write fill the batch's folder and commit what is in it, unless the batch is committed already; return its files.

    replace_hours: publish hours whose earlier files these replace.
    """
    folder = batch_folder(table, app, batch)
    if not table.is_committed(app, batch):
        write(folder)
        table.commit(parquet_files(folder), app=app, batch=batch, replace_hours=replace_hours)
    return parquet_files(folder)


def write_rows(rows: DataFrame, folder: Path) -> None:
    """Write rows as they are spread."""
    rows.write.mode("overwrite").parquet(str(folder))


def write_hours(rows: DataFrame, table: LakeTable, folder: Path) -> None:
    """Write rows so that a file holds one publish hour, sorted as look-ups want it, with bloom filters and small groups."""
    writer = rows.selectExpr("*", f"publish_hour AS {HOUR_FOLDER}")
    sort_by = table.table.sort_by
    sink = (writer.sortWithinPartitions(*sort_by) if sort_by else writer).write.mode("overwrite")
    for column in table.table.bloom:
        sink = sink.option(f"parquet.bloom.filter.enabled#{column}", "true")
    if table.table.bloom:
        sink = sink.option("parquet.block.size", str(4 * 1024 * 1024))
    sink.partitionBy(HOUR_FOLDER).parquet(str(folder))
