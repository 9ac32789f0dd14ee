"""Spark as an engine of `trail`: each stage a temporary view, kept where more than one later stage reads it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mqtrail.trail import Stage


class SparkEngine:
    """Defines stages; `close` drops what it kept."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._kept: list[DataFrame] = []
        self._names: list[str] = []

    def define(self, stage: Stage) -> None:
        """See trail.Engine."""
        rows = self._spark.sql(stage.sql)
        if stage.reads > 1:
            # Unlike a cache this cuts the plan off, which else doubles with every stage that reads another twice.
            rows = rows.localCheckpoint(eager=False)
            self._kept.append(rows)
        if stage.small:
            rows = F.broadcast(rows)
        rows.createOrReplaceTempView(stage.name)
        self._names.append(stage.name)

    def close(self) -> None:
        """Drop the views and give back the memory of what was kept."""
        for name in self._names:
            self._spark.catalog.dropTempView(name)
        for rows in self._kept:
            rows.unpersist()
        self._kept.clear()
        self._names.clear()
