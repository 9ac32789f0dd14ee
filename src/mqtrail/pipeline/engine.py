"""Spark as an engine of `trail`: each stage a temporary view, kept in memory where more than one later stage reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession

from mqtrail.lake import ddl
from mqtrail.trail import Relation, Stage


class SparkEngine:
    """Defines stages; `close` drops what it kept."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._kept: list[DataFrame] = []

    def define(self, stage: Stage) -> None:
        """See trail.Engine."""
        rows = self._spark.sql(stage.sql)
        if stage.reads > 1:
            rows = rows.localCheckpoint(eager=False)
            self._kept.append(rows)
        rows.createOrReplaceTempView(stage.name)

    def close(self) -> None:
        """Give back the memory of what was kept."""
        for rows in self._kept:
            rows.unpersist()
        self._kept.clear()


def read_files(spark: SparkSession, relation: Relation, paths: Sequence[str]) -> DataFrame:
    """The rows of committed files as the relation; typed and empty without any."""
    names: Iterable[str] = relation.names
    if paths:
        return spark.read.parquet(*paths).select(*names)
    return spark.createDataFrame([], ddl(relation))
