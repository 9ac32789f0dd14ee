"""Spark and DuckDB run the same texts and give the same judgement, column by column."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.trail.histories import AS_OF_MS, HISTORIES, evidence

from mqtrail import trail
from mqtrail.lake import arrow_rows, judge_rows
from mqtrail.pipeline import SparkEngine
from mqtrail.trail import Stage

RESULTS = (trail.ATTEMPTS, trail.TRAJECTORIES, trail.VERDICTS, trail.LATENCY_MINUTE, trail.KEY_INDEX)
Rows = dict[str, list[dict[str, Any]]]


def on_spark(spark: SparkSession, rows: Mapping[str, Sequence[Mapping[str, Any]]], *, batches: bool) -> Rows:
    for relation in trail.EVIDENCE:
        spark.createDataFrame(arrow_rows(relation, rows.get(relation.name, ()))).createOrReplaceTempView(relation.name)
    engine = SparkEngine(spark)
    try:
        engine.define(Stage(trail.ATTEMPTS.name, trail.attempts_sql(), reads=2))
        trail.run(engine, trail.judge(AS_OF_MS, trail.SPARK, batches=batches))
        return {
            relation.name: [
                row.asDict(recursive=True) for row in spark.table(relation.name).select(*relation.names).collect()
            ]
            for relation in RESULTS
        }
    finally:
        engine.close()


def on_duckdb(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Rows:
    connection = judge_rows(rows, AS_OF_MS)
    return {
        relation.name: connection.sql(f"SELECT {', '.join(relation.names)} FROM {relation.name}")
        .arrow()
        .read_all()
        .to_pylist()
        for relation in RESULTS
    }


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: sorted(row.items(), key=lambda item: item[0]).__repr__())


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> tuple[Rows, Rows]:
    rows = evidence(HISTORIES)
    return on_spark(spark, rows, batches=True), on_duckdb(rows)


@pytest.mark.parametrize("name", [relation.name for relation in RESULTS])
def test_spark_and_duckdb_agree(judged: tuple[Rows, Rows], name: str) -> None:
    """Every labelled history gives the same rows in both engines, every column compared."""
    spark_rows, duck_rows = (in_order(rows[name]) for rows in judged)
    assert spark_rows
    for found, wanted in zip(spark_rows, duck_rows, strict=False):
        assert found == wanted
    assert len(spark_rows) == len(duck_rows)
