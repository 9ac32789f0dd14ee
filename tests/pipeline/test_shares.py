"""A judgement in shares says what one over everything says, however many shares there are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.test_engine import Rows, in_order, on_duckdb
from tests.trail.histories import AS_OF_MS, HISTORIES, evidence

from mqtrail import trail
from mqtrail.lake import arrow_rows, arrow_schema
from mqtrail.pipeline import SparkEngine
from mqtrail.pipeline.judging import RESULTS
from mqtrail.pipeline.shares import FileRows, Shares
from mqtrail.trail import Stage

EVENTS = trail.TRACE_EVENTS.name


def in_shares(
    spark: SparkSession,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    folder: Path,
    count: int,
    *,
    batches: bool,
    where: str = "true",
) -> Rows:
    """Judge rows of bronze in so many shares, as the job does."""
    for relation in trail.EVIDENCE:
        spark.createDataFrame(arrow_rows(relation, rows.get(relation.name, ()))).createOrReplaceTempView(relation.name)
    whole = {}
    for relation in trail.EVIDENCE:
        if relation.name in trail.INPUTS and relation.name != EVENTS:
            path = folder / f"{relation.name}.parquet"
            pq.write_table(arrow_rows(relation, rows.get(relation.name, ())), path)
            whole[relation.name] = [str(path)] if rows.get(relation.name) else []
    stages = trail.judge(AS_OF_MS, trail.DUCKDB, batches=batches)
    events = spark.table(EVENTS).filter(f"record_type IN {trail.CONTEXT_RECORDS}")
    picked = EVENTS, events.select(*trail.columns_read(trail.TRACE_EVENTS, stages))
    engine = SparkEngine(spark)
    try:
        engine.define(Stage(trail.ATTEMPTS.name, trail.attempts_sql(), reads=2))
        attempts = spark.table(trail.ATTEMPTS.name)
        attempts.write.parquet(str(folder / "attempts"))
        files = [str(path) for path in (folder / "attempts").glob("*.parquet")]
        spread: dict[str, DataFrame | FileRows] = {trail.ATTEMPTS.name: FileRows(files=files, where=where)}
        if batches:
            trail.run(engine, [stage for stage in stages if stage.name in trail.ACROSS_IDS])
            spread = {name: spark.table(name) for name in trail.MEETING_POINTS}
            stages = [stage for stage in stages if stage.name not in trail.ACROSS_IDS]
        shares = Shares(spark, folder / "work", "200MB")
        results = {relation.name: folder / relation.name for relation in RESULTS}
        found = shares.run(stages, count, spread=spread, whole=whole, picked=picked, results=results)
    finally:
        engine.close()
    assert not (folder / "work").exists()
    return {
        relation.name: [
            row
            for path in found[relation.name]
            for row in pq.read_table(path, schema=arrow_schema(relation), partitioning=None).to_pylist()
        ]
        for relation in RESULTS
    }


def assert_same(found: Rows, wanted: Rows) -> None:
    for relation in RESULTS:
        rows = in_order(found[relation.name])
        assert rows == in_order(wanted[relation.name]), relation.name


@pytest.mark.parametrize("count", [1, 7])
def test_shares_agree_with_the_whole(spark: SparkSession, tmp_path: Path, count: int) -> None:
    """Every labelled history, batches among them: all columns of all results."""
    rows = evidence(HISTORIES)
    assert_same(in_shares(spark, rows, tmp_path, count, batches=True), on_duckdb(rows))


@pytest.mark.parametrize("count", [1, 7])
def test_files_are_divided_by_id(spark: SparkSession, tmp_path: Path, count: int) -> None:
    """Without batches tasks divide the files of attempts themselves, and leave out what happened later."""
    histories = tuple(history for history in HISTORIES if not history.name.startswith("batch"))
    rows = evidence(histories)
    late = [row | {"cluster": "late"} for row in rows[EVENTS]]
    found = in_shares(
        spark, {**rows, EVENTS: rows[EVENTS] + late}, tmp_path, count, batches=False, where="cluster <> 'late'"
    )
    assert_same(found, on_duckdb(rows))


def test_nothing_to_judge(spark: SparkSession, tmp_path: Path) -> None:
    """Spark makes no task of what it knows to be empty; the results are empty all the same."""
    found = in_shares(spark, {}, tmp_path, 3, batches=False)
    assert found == {relation.name: [] for relation in RESULTS}


def test_each_file_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    """Silver out of bronze: as many tasks as files, together the attempts of all of them; of no file none."""
    rows = evidence(HISTORIES)
    shares = Shares(spark, tmp_path / "work", "200MB")
    made = []
    for relation in (trail.TRACE_EVENTS, trail.MESSAGE_META):
        paths = []
        for number in range(3):
            paths.append(tmp_path / f"{relation.name}-{number}.parquet")
            pq.write_table(arrow_rows(relation, rows[relation.name][number::3]), paths[-1])
        stage = Stage(trail.ATTEMPTS.name, trail.attempts_sql())
        assert shares.each_file(stage, relation, [], tmp_path / "none") == []
        made += shares.each_file(stage, relation, paths, tmp_path / relation.name)
    schema = arrow_schema(trail.ATTEMPTS)
    found = [row for path in made for row in pq.read_table(path, schema=schema, partitioning=None).to_pylist()]
    assert in_order(found) == in_order(on_duckdb(rows)[trail.ATTEMPTS.name])
    hours = [pq.read_table(path, partitioning=None)["publish_hour"].unique().to_pylist() for path in made]
    assert [[int(path.parent.name.removeprefix("hour="))] for path in made] == hours
