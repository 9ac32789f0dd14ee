"""A judgement in shares equals one over everything, for any number of shares and any division of rows into files."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count as count_from
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from tests.trail.histories import AS_OF_MS, HISTORIES, evidence

from mqtrail import trail
from mqtrail.lake import LakePath, arrow_rows, arrow_schema, connect, define_compared, judge_rows, run_stages
from mqtrail.pipeline.shares import Shares
from mqtrail.pipeline.tasks import TaskFile, Tasks, TaskWork, run_task
from mqtrail.trail import Relation

TASK_MEMORY = "160MB"
"""Enough for DuckDB in a task with few rows. More joins at once in one stage need more."""
PIECES = (trail.ATTEMPTS.name,)
RESULTS = tuple(relation for relation in trail.APPENDED if relation != trail.GROUP_FOLDS)  # which counts of shares make
Evidence = Mapping[str, Sequence[Mapping[str, Any]]]
Rows = dict[str, list[dict[str, Any]]]
NO_BATCHES = tuple(history for history in HISTORIES if not history.name.startswith("batch"))


class TasksHere:
    """Run tasks in this process, one after the other."""

    parallelism = 3

    def __init__(self, scratch: Path) -> None:
        self._scratch = str(scratch)
        self._attempts = count_from(1)

    def run(self, work: TaskWork, count: int) -> list[TaskFile]:
        made = [run_task(work, number, f"{number}-{next(self._attempts)}", self._scratch) for number in range(count)]
        return sorted(file for files in made for file in files)


def rows_of(relation: Relation, paths: Sequence[LakePath]) -> list[dict[str, Any]]:
    schema = arrow_schema(relation)
    return [row for path in paths for row in pq.read_table(str(path), schema=schema, partitioning=None).to_pylist()]


def silver_of(rows: Evidence) -> Rows:
    """The silver attempts derived from the evidence."""
    connection = connect()
    for relation in trail.EVIDENCE:
        connection.register(relation.name, arrow_rows(relation, rows.get(relation.name, ())))
    run_stages(connection, [trail.attempts_stage(), trail.client_records_stage()])
    define_compared(connection, AS_OF_MS, trail.Settings())
    relations = (trail.ATTEMPTS, trail.CLIENT_RECORDS, *trail.COMPARED)
    return {relation.name: read(connection, relation) for relation in relations}


def on_one(rows: Evidence) -> Rows:
    """Judge in one connection."""
    connection = judge_rows(rows, AS_OF_MS)
    return {relation.name: read(connection, relation) for relation in RESULTS}


def read(connection: duckdb.DuckDBPyConnection, relation: Relation) -> list[dict[str, Any]]:
    rows = connection.sql(f"SELECT {', '.join(relation.names)} FROM {relation.name}").to_arrow_table()
    return list(rows.to_pylist())


@cache
def labelled(*, batches: bool) -> tuple[Evidence, Rows]:
    """Every labelled history, or those without batches, with their judgement in one connection, which takes seconds."""
    rows = evidence(HISTORIES if batches else NO_BATCHES)
    return rows, on_one(rows)


def in_shares(
    tasks: Tasks, rows: Evidence, folder: Path, count: int, *, batches: bool, only_until: bool = False
) -> Rows:
    """Judge in count shares, as the job does; each table of the lake has up to three files."""
    tables = {**rows, **silver_of(rows)}
    files: dict[str, list[str]] = {}
    for relation in (trail.ATTEMPTS, trail.CLIENT_RECORDS, *trail.COMPARED, *trail.EVIDENCE):
        files[relation.name] = []
        for number in range(3):
            if part := tables.get(relation.name, [])[number::3]:
                path = folder / f"{relation.name}-{number}.parquet"
                pq.write_table(arrow_rows(relation, part), path)
                files[relation.name].append(str(path))
    found = Shares(tasks, folder / "work", TASK_MEMORY).run(
        trail.judge(AS_OF_MS, batches=batches, only_until=only_until),
        count,
        pieces={name: files[name] for name in PIECES},
        whole={name: files.get(name, []) for name in trail.INPUTS if name not in PIECES},
        results={relation.name: folder / relation.name for relation in RESULTS},
    )
    assert not (folder / "work").exists()
    return {relation.name: rows_of(relation, found[relation.name]) for relation in RESULTS}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


def assert_same(found: Rows, wanted: Rows) -> None:
    for relation in RESULTS:
        assert in_order(found[relation.name]) == in_order(wanted[relation.name]), relation.name


@pytest.mark.cycles
@pytest.mark.parametrize("count", [1, 3])
def test_shares_agree_with_the_whole(tmp_path: Path, count: int) -> None:
    """Every labelled history, with batches: all columns of all results are equal."""
    rows, wanted = labelled(batches=True)
    assert_same(in_shares(TasksHere(tmp_path), rows, tmp_path, count, batches=True), wanted)


@pytest.mark.cycles
def test_without_batches(tmp_path: Path) -> None:
    """Without batches the shares take a shorter path with equal results."""
    rows, wanted = labelled(batches=False)
    assert_same(in_shares(TasksHere(tmp_path), rows, tmp_path, 3, batches=False), wanted)


@pytest.mark.cycles
def test_attempts_after_the_instant_are_left_out(tmp_path: Path) -> None:
    """A judgement of an earlier instant ignores later attempts, and marks their ids for judgement at once."""
    rows, wanted = labelled(batches=False)
    sends = [row for row in rows["trace_events"] if row["record_type"] == "Pub"]
    late = [{**row, "cluster": "late", "event_ms": AS_OF_MS + 1} for row in sends]
    more = {**rows, "trace_events": [*rows["trace_events"], *late]}
    found = in_shares(TasksHere(tmp_path), more, tmp_path, 2, batches=False, only_until=True)
    later = [row for row in found[trail.OPEN_IDS.name] if row["cluster"] == "late"]
    assert {row["look_ms"] for row in later} == {AS_OF_MS + 1}
    found[trail.OPEN_IDS.name] = [row for row in found[trail.OPEN_IDS.name] if row not in later]
    assert_same(found, wanted)


@pytest.mark.slow
def test_nothing_to_judge(tmp_path: Path) -> None:
    """Without any file the results are empty, with and without batches."""
    for batches in (False, True):
        folder = tmp_path / str(batches)
        folder.mkdir()
        found = in_shares(TasksHere(tmp_path), {}, folder, 2, batches=batches)
        assert found == {relation.name: [] for relation in RESULTS}
