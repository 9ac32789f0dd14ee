"""Look-ups open few files and list them; judging one message again gives the result of the whole judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mqtrail import trail
from mqtrail.lake import Lake, LookUp, connect, judge_messages, judge_rows, write_parquet
from tests.lake.test_tables import write
from tests.trail.histories import AS_OF_MS, HISTORIES, evidence, unique_id

HOUR_MS = 3_600_000


def fill(lake: Lake, rows: dict[str, list[dict[str, Any]]], as_of_ms: int) -> None:
    """Commit rows and all rows derived from them, as the pipeline does."""
    connection = judge_rows(rows, as_of_ms)
    for name in (
        "trace_events",
        "message_meta",
        "group_offsets",
        "clients",
        "subscriptions",
        "queue_ranges",
        "samples",
        "gaps",
    ):
        lake[name].commit([write(lake[name], "b0", rows.get(name, []))], app="test", batch=0)
    records = lake["client_records"].path / "part.parquet"
    write_parquet(connection.sql("SELECT * FROM client_records").to_arrow_table(), records)
    lake["client_records"].commit([records], app="test", batch=0)
    for name in ("attempts", "trajectories", "verdicts", "key_index"):
        table: pa.Table = connection.sql(f"SELECT * FROM {name}").to_arrow_table()
        files = []
        hours: set[Any] = set(table["publish_hour"].to_pylist())
        for hour in sorted(hours):
            path = lake[name].path / f"b0-{hour}" / "part.parquet"
            path.parent.mkdir()
            write_parquet(table.filter(pa.compute.equal(table["publish_hour"], hour)), path)
            files.append(path)
        lake[name].commit(files, app="test", batch=0)
    folds = lake["group_folds"].path / "part.parquet"
    write_parquet(connection.sql("SELECT * FROM fold_counts").to_arrow_table(), folds)
    lake["group_folds"].commit([folds], app="test", batch=0)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake of all histories."""
    made = Lake.create(tmp_path_factory.mktemp("lake"))
    fill(made, evidence(), AS_OF_MS)
    return made


@pytest.mark.slow
def test_an_id_is_found_in_the_files_named(lake: Lake) -> None:
    """One file of the id's hour is opened."""
    answer = LookUp(lake).trajectories(unique_id(1))
    assert {row["cluster"] for row in answer.rows} >= {"send ok", "waiting"}
    assert len(answer.opened) == 1
    assert answer.file_count == len(lake["trajectories"].files())


def test_an_absent_id_opens_nothing(lake: Lake) -> None:
    """Hours and statistics in the log exclude all files."""
    assert LookUp(lake).verdicts("7F" * 16).opened == ()
    other_hour = unique_id(1)[:20] + "00000000" + "0001"
    assert LookUp(lake).trajectories(other_hour).opened == ()
    assert LookUp(lake).trajectories("").rows == []


def test_a_key_leads_to_its_messages(lake: Lake) -> None:
    """Each blank-separated token of KEYS is found."""
    answer = LookUp(lake).ids_of_key("k2")
    assert {row["msg_id"] for row in answer.rows} == {unique_id(2)}
    assert LookUp(lake).ids_of_key("no such key").rows == []


def test_views_of_all_tables(lake: Lake) -> None:
    """Users' SQL can read every table by its name."""
    look_up = LookUp(lake)
    look_up.define_views()
    query = "SELECT count(*) FROM verdicts JOIN trajectories USING (cluster, msg_id)"
    ((count,),) = look_up.connection.sql(query).fetchall()
    assert count > len(HISTORIES) / 2
    assert look_up.connection.sql("SELECT * FROM lag").fetchall() == []


COMPARED = ("cluster", "msg_id", "group_name", "state", "codes", "reasons")


@pytest.mark.parametrize(("first", "step"), [pytest.param(1, 6, marks=pytest.mark.slow), (0, 60)])
def test_judged_from_the_lake_alone(lake: Lake, first: int, step: int, thorough: bool) -> None:
    """A message judged again from the lake's silver gets the verdict in gold, also for batches. step: of histories."""
    connection = connect()
    columns = ", ".join(COMPARED)
    query = f"SELECT {columns} FROM verdicts WHERE msg_id = '{unique_id(2)}' ORDER BY ALL"
    look_up = LookUp(lake)
    look_up.define_views()
    judged = look_up.connection.sql(query).fetchall()
    clusters = sorted({row[0] for row in judged})[first :: 1 if thorough else step]
    wanted, found = [row for row in judged if row[0] in clusters], []
    for cluster in clusters:
        judge_messages(lake, [unique_id(2)], AS_OF_MS, {}, connection, cluster=cluster)
        found += connection.sql(query).fetchall()
    assert found == wanted
    assert len(found) >= 3


@pytest.mark.slow
def test_rows_after_the_lake_change_the_answer(tmp_path: Path) -> None:
    """The broker's newer rows are judged together with the lake's, by the same SQL."""
    by_name = {history.name: history for history in HISTORIES}
    before = evidence((by_name["in flight"],))
    lake = Lake.create(tmp_path)
    fill(lake, before, AS_OF_MS)
    end = by_name["in flight"].rows["trace_events"][-1] | {
        "record_type": "SubAfter",
        "event_ms": AS_OF_MS,
        "success": True,
        "cost_ms": 20_000,
        "context_code": 0,
        "queue_offset": 99,
    }
    connection = connect()
    judge_messages(lake, [unique_id(1)], AS_OF_MS + 1000, {"trace_events": [end]}, connection, cluster="in flight")
    assert connection.sql("SELECT codes FROM verdicts").fetchall() == [("CONSUMED,CONSUMED_SLOW",)]
    judge_messages(None, [unique_id(1)], AS_OF_MS, before, connection, cluster="in flight")
    assert connection.sql("SELECT codes FROM verdicts").fetchall() == [("IN_FLIGHT",)]
    judge_messages(None, ["A" * 32], AS_OF_MS, {}, connection, cluster="in flight")
    assert connection.sql("SELECT * FROM trajectories").fetchall() == []


@pytest.mark.slow
@pytest.mark.parametrize(("count", "state"), [(98, "HUNG"), (100, "IN_FLIGHT")])
def test_a_slow_group_of_the_lake_is_hung_later(tmp_path: Path, count: int, state: str) -> None:
    """Verdicts of other messages show how slow the group's handlers are, as in a whole judgement."""
    slow = next(history for history in HISTORIES if history.name == "hung")
    rows = {name: list(some) for name, some in evidence((slow,)).items()}
    begun = next(row for row in rows["trace_events"] if row["record_type"] == "SubBefore")
    ended = {"record_type": "SubAfter", "success": True, "cost_ms": 20_000, "event_ms": begun["event_ms"] + 20_000}
    for number in range(count):
        ids = {"msg_id": f"{begun['msg_id'][:28]}{0x1000 + number:04X}", "request_id": f"Q{number}"}
        rows["trace_events"] += [begun | ids, begun | ids | ended]
    lake = Lake.create(tmp_path)
    fill(lake, rows, AS_OF_MS)
    connection = connect()
    judge_messages(lake, [begun["msg_id"]], AS_OF_MS, {}, connection, cluster="hung")
    assert connection.sql("SELECT state FROM verdicts").fetchall() == [(state,)]


def test_every_input_of_a_judgement_is_a_relation_of_trail() -> None:
    """Every relation that judge reads is bronze evidence, attempts, or counts and comparisons of earlier judgements."""
    assert set(trail.INPUTS) <= {relation.name for relation in trail.EVIDENCE} | {
        "attempts",
        "client_records",
        "group_folds",
        "sent_before",
        "overtaken",
    }
