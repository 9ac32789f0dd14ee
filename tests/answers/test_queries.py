"""SQL over a lake: the documented views, what a query may not do, and damaged files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mqtrail.answers import VIEWS, Answers, QueryError
from mqtrail.wire import TIME_MS_MAX
from tests.answers.lakes import AS_OF_MS, BY_NAME, id_of, key_of, make_lake, rows_of


def ask(answers: Answers, text: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with answers.query(text, AS_OF_MS) as answer:
        return [row for batch in answer.batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


@pytest.fixture(scope="module")
def answers(lake_path: Path) -> Answers:
    return Answers(lake_path)


@pytest.mark.parametrize("name", VIEWS)
def test_columns_are_the_documented_ones(answers: Answers, name: str) -> None:
    """Names and order; each is described once."""
    columns = [column.name for column in VIEWS[name].columns]
    with answers.query(f"SELECT * FROM {name}", AS_OF_MS) as answer:
        assert answer.schema.names == columns
    assert len(set(columns)) == len(columns)


def test_verdicts_are_those_of_the_export(answers: Answers) -> None:
    """Every code of every message and group, and no other."""
    exported = set()
    for line in answers.export(AS_OF_MS):
        own = [*line["send"], *line["message"], line["knowledge"]]
        exported |= {(line["msg_id"], "", code) for code in own}
        exported |= {(line["msg_id"], group, code) for group, codes in line["groups"].items() for code in codes}
    found = ask(answers, "SELECT msg_id, group_name, code FROM verdicts")
    assert len(found) == len(set(found))
    assert set(found) == exported


def test_messages(answers: Answers) -> None:
    """One row each, with keys as a list and NULL for what is unknown."""
    assert ask(answers, "SELECT count(*) FROM messages") == [(len(BY_NAME),)]
    [(keys, reasons)] = ask(answers, f"SELECT keys, reasons FROM messages WHERE msg_id = '{id_of('hung')}'")
    assert (keys, reasons) == ([key_of("hung"), "shared"], [])
    [(acked,)] = ask(answers, f"SELECT acked_at FROM messages WHERE msg_id = '{id_of('send failed')}'")
    assert acked is None


def test_deliveries_and_results(answers: Answers) -> None:
    """As many deliveries as the group's result counts; the split adds up."""
    wanted = f"WHERE msg_id = '{id_of('consumed after retry')}'"
    [(state, deliveries, failures)] = ask(answers, f"SELECT state, deliveries, failures FROM group_results {wanted}")
    outcomes = [row[0] for row in ask(answers, f"SELECT outcome FROM deliveries {wanted} ORDER BY delivered_at")]
    assert state == "CONSUMED"
    assert len(outcomes) == deliveries
    assert (outcomes.count("FAILED"), outcomes[-1]) == (failures, "OK")
    parts = "to_stored_ms + delay_ms + to_delivered_ms + retry_ms + handler_ms"
    assert ask(answers, f"SELECT count(*) FROM group_results WHERE total_ms <> {parts}") == [(0,)]


@pytest.mark.slow
def test_the_latest_time_that_a_record_can_have(tmp_path: Path) -> None:
    """A peer can claim it, and it is still a timestamp."""
    rows = rows_of(("send ok",))
    for row in rows["trace_events"]:
        row["event_ms"] = TIME_MS_MAX
    make_lake(tmp_path / "lake", rows)
    [(published,)] = ask(Answers(tmp_path / "lake"), "SELECT published_at FROM messages")
    assert published.year == 5138


def test_the_tables_themselves(answers: Answers) -> None:
    """The lake's tables are in the schema `lake`."""
    [(count,)] = ask(answers, "SELECT count(*) FROM lake.trajectories")
    assert count == len(BY_NAME)


REFUSED = (
    ("", "no statement, expected one SELECT"),
    ("SELECT 1; SELECT 2", "SELECT and SELECT"),
    ("DROP VIEW messages", "found DROP"),
    ("CREATE TABLE t (a INT)", "found CREATE"),
    ("SET threads = 1", "found SET"),
    ("ATTACH '/tmp/other.db'", "found ATTACH"),
    ("INSTALL httpfs", "found LOAD"),
    ("COPY messages TO '{folder}/copy.parquet'", "found COPY"),
    ("EXPLAIN ANALYZE COPY messages TO '{folder}/copy.parquet'", "found EXPLAIN"),
    ("SELECT * FROM read_text('{folder}/secret')", "Permission Error"),
    ("SELECT * FROM '{folder}/other.parquet'", "Permission Error"),
    ("SELECT * FROM glob('/*')", "Permission Error"),
    ("SELECT * FROM '{lake}/../../other.parquet'", "Error"),
    ("SELECT * FROM view", "does not exist"),  # a variable of the program
    ("SELEC 1", "syntax error"),
    ("SELECT nope FROM messages", "Candidate bindings"),
    ("SELECT * FROM orders", "the views are messages, group_results"),
    ("SELECT msg_id::INT FROM messages", "Could not convert"),
    ("SELECT error(msg_id) FROM messages", "Invalid Input Error"),
)


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[text[:30] for text, _ in REFUSED])
def test_refused_queries(answers: Answers, lake_path: Path, tmp_path: Path, text: str, why: str) -> None:
    """A query only reads, and only the lake. Errors of a query are not reported as damage of the lake."""
    (tmp_path / "secret").write_text("password", "utf-8")
    shutil.copyfile(next(lake_path.glob("verdicts/part-*/0.parquet")), tmp_path / "other.parquet")
    with pytest.raises(QueryError, match=why):
        ask(answers, text.format(folder=tmp_path, lake=lake_path))
    assert not (tmp_path / "copy.parquet").exists()


@pytest.mark.parametrize("names", [("trajectories",), ("verdicts", "trajectories")])
def test_a_damaged_file(lake_path: Path, tmp_path: Path, names: Sequence[str]) -> None:
    """The query answers from the other files, and its scope names the damaged one."""
    lake = shutil.copytree(lake_path, tmp_path / "lake")
    for name in names:
        [file] = (lake / name).glob("part-*/0.parquet")
        file.write_bytes(file.read_bytes()[:-9])
    with Answers(lake).query(f"SELECT count(*) FROM lake.{names[0]}", AS_OF_MS) as answer:
        assert answer.scope.is_damaged
        assert [batch.to_pylist() for batch in answer.batches] == [[{"count_star()": 0}]]
    assert any(names[0] in one for one in answer.scope.omissions)


def test_splits_are_by_one_clock(answers: Answers) -> None:
    """`trace` and the view say the same: how the clocks were compared, and no part that is negative."""
    msg_id = id_of("consumed after retry")
    [group] = answers.trace(msg_id, AS_OF_MS).trajectories[0].groups
    wanted = f"FROM group_results WHERE msg_id = '{msg_id}' AND group_name = '{group.group_name}'"
    [(clocks, error_ms, total_ms)] = ask(answers, f"SELECT clocks, clock_error_ms, total_ms {wanted}")
    assert (group.clocks, group.clock_error_ms, group.split["total"]) == (clocks, error_ms, total_ms)
    assert clocks
    least = "least(to_stored_ms, delay_ms, to_delivered_ms, retry_ms, handler_ms)"
    assert ask(answers, f"SELECT count(*) FROM group_results WHERE {least} < 0") == [(0,)]
