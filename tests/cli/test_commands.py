"""Commands as users run them: output and exit codes."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from mqtrail.cli.exits import UsageError
from mqtrail.cli.ingest import clusters_of, job_config
from mqtrail.cli.options import queue_of
from mqtrail.lake import SCHEMA_VERSION, Lake
from mqtrail.pipeline import Backfill, BackfillFiles, ClusterStatus, PipelineStatus, StatusFile
from tests.answers.conftest import Shop
from tests.answers.lakes import BY_NAME, id_of
from tests.cli.conftest import Command

DOWN = "127.0.0.1:1"


def test_trace_has_four_ends(mqtrail: Command, shop: Shop, lake_path: Path) -> None:
    """The codes are 0 found, 1 not found, 3 could not look, 4 not traced, 2 invalid use."""
    lake = ("--lake", str(lake_path))
    found = mqtrail("trace", id_of("dead, attempts exhausted"), *lake)
    assert found.code == 0
    assert "DEAD_LETTERED" in found.out
    assert "searched lake" in found.out
    both = (*lake, "--namesrv", shop.namesrv)
    assert mqtrail("trace", "7F" * 16, *both, "--cluster", "send ok").code == 1
    unnamed = mqtrail("trace", "7F" * 16, *both)  # the lake has several clusters, and none of the name
    assert (unnamed.code, "pass --cluster" in unnamed.out.replace("\n", " ")) == (3, True)
    assert mqtrail("trace", "7F" * 16, *lake, "--namesrv", DOWN).code == 3
    assert mqtrail("trace", "x", "--lake", "nowhere").code == 3
    untraced = mqtrail("trace", "stock-1", "--namesrv", shop.namesrv)
    assert untraced.code == 4
    assert "trace is off" in untraced.out
    for wrong in (("trace", "x"), ("trace", " ", *lake), ("trace",), ("trace", "x", "--namesrv", "nowhere")):
        assert mqtrail(*wrong).code == 2, wrong


def test_trace_as_json(mqtrail: Command, lake_path: Path) -> None:
    """The whole answer with its scope, as one JSON value."""
    result = mqtrail("trace", id_of("send ok"), "--lake", str(lake_path), "--json").json
    assert result["status"] == "FOUND"
    assert result["trajectories"][0]["send_codes"] == ["SEND_OK"]
    assert result["scope"]["omissions"]


def test_search_prints_what_it_found_and_its_bound(mqtrail: Command, lake_path: Path) -> None:
    """Found is 0, not found 1; an unknown code is invalid use."""
    lake = ("--lake", str(lake_path))
    result = mqtrail("search", "--status", "dead_lettered", *lake)
    assert result.code == 0
    assert id_of("dead, attempts exhausted") in result.out
    assert "1 of 1 messages" in result.out
    assert mqtrail("search", "--key", "nothing", *lake).code == 1
    assert len(mqtrail("search", "--limit", "2", "--json", *lake).json["trajectories"]) == 2
    assert mqtrail("search", "--status", "BROKEN", *lake).code == 2
    assert mqtrail("search", "--from", "soon", *lake).code == 2
    assert mqtrail("search").code == 2
    assert mqtrail("search", "--facets", "--skip", "1", *lake).code == 2
    missing = mqtrail("search", "--lake", "nowhere")
    assert (missing.code, "pipeline once" in missing.err) == (3, True)


def test_search_counts_its_matches(mqtrail: Command, lake_path: Path) -> None:
    """A row for each value, with the condition that asks for it; the bound on values is said; exit code 1 without a
    match."""
    lake = ("--lake", str(lake_path))
    result = mqtrail("search", "--facets", "--group", "CG2", "--reason", "GROUP_NOT_TRACED", "--limit", "2", *lake)
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert ["topic", "orders", "1", "topic:orders"] in rows
    assert "1 of 1 matching messages counted" in result.out
    assert "verdict: 1 of 3 values are left out, the rarest" in result.out
    found = mqtrail("search", "--facets", "--json", "--broker", "none", *lake)
    assert (found.code, found.json["matched_count"]) == (1, 0)


def test_backfill_beside_a_pipeline(mqtrail: Command, tmp_path: Path) -> None:
    """The writer of the lake runs it: it is requested once, listed, shown until its end, and cancelled by its id."""
    path = tmp_path / "lake"
    lake = Lake.create(path)
    named = ("--lake", str(path))
    StatusFile(path).write(PipelineStatus(written_ms=1))
    with lake.writing():
        window = ("--from", "2026-11-20", "--to", "2026-11-21T10:00")
        result = mqtrail("pipeline", "backfill", *window, *named, "--json")
        assert (result.code, result.json["state"], result.json["to_ms"] - result.json["from_ms"]) == (
            0,
            "waiting",
            34 * 3_600_000,
        )
        assert mqtrail("pipeline", "backfill", *window, *named, "--json").json["id"] == result.json["id"]
        assert (
            f"backfill {result.json['id']} waiting: 0 messages read, 0 gaps"
            in mqtrail("pipeline", "status", *named).out
        )
        [listed] = mqtrail("pipeline", "status", *named, "--json").json["backfills"]
        assert listed == result.json
        cancelled = mqtrail("pipeline", "backfill", "--cancel", listed["id"], *named)
        assert (cancelled.code, "ends after the current piece" in cancelled.out) == (0, True)
        files = BackfillFiles(path)
        files.note(dataclasses.replace(files.all()[0], state="done", read=7, left=0))
        ended = mqtrail("pipeline", "backfill", "--cancel", listed["id"], *named)
        assert (ended.code, "has ended before: done" in ended.out) == (0, True)

        asked = files.add(1, 2)
        files.note(dataclasses.replace(asked, state="done", read=9, left=0))
    unknown = mqtrail("pipeline", "backfill", "--cancel", "nothing", *named)
    assert (unknown.code, "pipeline status" in unknown.err) == (1, True)
    for wrong in ((), ("--from", "soon"), ("--from", "2026-11-21", "--to", "2026-11-20")):
        assert mqtrail("pipeline", "backfill", *wrong, *named).code == 2, wrong


def test_a_backfill_that_is_waited_for(mqtrail: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command shows the progress until the backfill has ended."""
    path = tmp_path / "lake"
    lake, files = Lake.create(path), BackfillFiles(path)
    steps = iter([("running", 4, 3), ("done", 7, 0)])

    def one(self: BackfillFiles, backfill_id: str) -> Backfill:
        [asked] = files.all()
        assert asked.id == backfill_id
        state, read, left = next(steps)
        return dataclasses.replace(asked, state=state, read=read, left=left)

    monkeypatch.setattr(BackfillFiles, "one", one)
    monkeypatch.setattr("mqtrail.cli.backfill.POLL_S", 0.01)
    with lake.writing():
        result = mqtrail("pipeline", "backfill", "--from", "2d", "--wait", "--lake", str(path))
    assert result.code == 0
    assert [line.split(": ", 1)[1] for line in result.out.splitlines()] == [
        "4 messages read, 0 gaps, 3 left",
        "7 messages read, 0 gaps, 0 left",
    ]


def test_report(mqtrail: Command, lake_path: Path) -> None:
    """Codes are listed with gaps and latencies; every code is judged."""
    result = mqtrail("report", "--lake", str(lake_path))
    assert result.code == 0
    for text in ("DEAD_LETTERED", "HUNG", "gap:", "behind", "p99", f"{len(BY_NAME)} messages"):
        assert text in result.out
    assert "not judged" not in result.out
    assert "thresholds: not known" in result.out
    found = mqtrail("report", "--lake", str(lake_path), "--json").json
    assert found["message_count"] == len(BY_NAME)
    assert found["judged_with"] == [{"message_count": len(BY_NAME), "changed": None}]


def test_export(mqtrail: Command, lake_path: Path) -> None:
    """One JSON line per message."""
    lines = mqtrail("export", "--lake", str(lake_path)).out.splitlines()
    assert {json.loads(line)["msg_id"] for line in lines} == {id_of(name) for name in BY_NAME}


def test_sql(mqtrail: Command, lake_path: Path, tmp_path: Path) -> None:
    """Rows as text, as JSON and as files; cut rows and errors of the query are reported."""
    lake = ("--lake", str(lake_path))
    text = "SELECT msg_id, send_codes, acked_at FROM messages ORDER BY msg_id"
    result = mqtrail("sql", text, *lake, "--limit", "2")
    assert (result.code, "2 rows" in result.out, "gap:" in result.out) == (0, True, True)
    assert "more than 2 rows" in result.err
    printed = [json.loads(line) for line in mqtrail("sql", text, *lake, "--json").out.splitlines()]
    assert len(printed) == len(BY_NAME)
    for name in ("rows.csv", "rows.parquet", "rows.jsonl"):
        saved = mqtrail("sql", text, *lake, "--output", str(tmp_path / name))
        assert (saved.code, f"{len(BY_NAME)} rows written" in saved.err) == (0, True)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text("utf-8").splitlines()]
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    assert lines == printed
    assert [row["msg_id"] for row in rows] == [row["msg_id"] for row in cells] == [row["msg_id"] for row in printed]
    assert json.loads(cells[0]["send_codes"]) == rows[0]["send_codes"] == printed[0]["send_codes"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.jsonl", "rows.parquet"]
    listed = mqtrail("sql")
    assert (listed.code, "group_results: One row per" in listed.out) == (0, True)
    for words, why in (
        (("SELEC 1",), "syntax error"),
        (("SELECT 1; SELECT 2",), "expected one SELECT"),
        ((text, "--output", "rows.xls"), ".parquet, .csv, .jsonl"),
    ):
        refused = mqtrail("sql", *words, *lake)
        assert (refused.code, why in refused.err) == (2, True)
    assert mqtrail("sql", text, "--lake", "nowhere").code == 3


def test_export_to_a_file(mqtrail: Command, lake_path: Path, tmp_path: Path) -> None:
    """The same messages as printed, in each format. A damaged lake: what can be read is written, exit code 3."""
    lake = ("--lake", str(lake_path))
    printed = mqtrail("export", *lake).rows
    for name in ("all.parquet", "all.csv", "all.jsonl"):
        result = mqtrail("export", *lake, "--output", name)
        assert (result.code, result.out) == (0, "")
        assert f"{len(printed)} messages written to {name}" in result.err
    assert [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()] == printed
    table = pq.read_table("all.parquet")
    assert [{**row, "groups": dict(row["groups"])} for row in table.to_pylist()] == printed
    with Path("all.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [json.loads(row["groups"]) for row in cells] == [row["groups"] for row in printed]
    assert mqtrail("export", *lake, "--to", "1970-01-02", "--output", "none.parquet").code == 0
    assert pq.read_table("none.parquet").schema.equals(table.schema)
    wrong = mqtrail("export", *lake, "--output", "all.xls")
    assert (wrong.code, ".parquet, .csv, .jsonl" in wrong.err) == (2, True)
    copied = tmp_path / "damaged"
    shutil.copytree(lake_path, copied)
    some = next((copied / "trajectories").rglob("*.parquet"))
    some.write_bytes(some.read_bytes()[:-100])
    result = mqtrail("export", "--lake", str(copied), "--output", "rest.jsonl")
    assert (result.code, "could not be read" in result.err) == (3, True)
    assert Path("rest.jsonl").exists()


def test_doctor(mqtrail: Command, shop: Shop) -> None:
    """The trace topic by name, record types, codes; an unreachable cluster is 3."""
    result = mqtrail("doctor", "--namesrv", shop.namesrv)
    assert result.code == 0
    for text in ("RMQ_SYS_TRACE_TOPIC", "SubBefore", "billing", "broker-a"):
        assert text in result.out
    assert mqtrail("doctor", "--namesrv", shop.namesrv, "--json").json["brokers"][0]["version"] == "V5_3_3"
    down = mqtrail("doctor", "--namesrv", DOWN)
    assert (down.code, "could not be queried" in down.err) == (3, True)


def test_topics(mqtrail: Command, shop: Shop) -> None:
    """Create, list, show; an invalid name is reported."""
    server = ("--namesrv", shop.namesrv)
    assert mqtrail("topic", "create", "made-here", "--queues", "2", *server).code == 0
    assert "made-here" in mqtrail("topic", "list", *server).out.split()
    assert "RMQ_SYS_TRACE_TOPIC" in mqtrail("topic", "list", "--all", "--json", *server).json["topics"]
    shown = mqtrail("topic", "show", "made-here", "--json", *server).json
    assert [row["queue"] for row in shown["queues"]] == [0, 1]
    assert "billing" in mqtrail("topic", "show", "orders", *server).out
    bad = mqtrail("topic", "create", "no spaces", *server)
    assert (bad.code, "no spaces" in bad.err) == (1, True)
    assert mqtrail("topic", "create", "x", "--perm", "q", *server).code == 2
    assert mqtrail("topic", "show", "no-such-topic", *server).code == 1
    assert mqtrail("topic", "list", "--namesrv", DOWN).code == 1


def test_send_and_consume(mqtrail: Command, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of standard input become messages; a group reads them once."""
    server = ("--namesrv", shop.namesrv)
    assert mqtrail("send", "letters", "hello", "--tags", "A", "--key", "k1", "--property", "a=b", *server).code == 0
    lines = io.TextIOWrapper(io.BytesIO(b"one\ntwo\n"))
    monkeypatch.setattr(sys, "stdin", lines)
    sent = mqtrail("send", "letters", "--json", *server).out.splitlines()
    assert [json.loads(line)["status"] for line in sent] == ["SEND_OK"] * 2
    read = mqtrail("consume", "letters", "--from-first", "--count", "3", "--wait", "20", "--json", *server)
    assert read.code == 0
    found = {one["body"]: one for one in map(json.loads, read.out.splitlines())}
    assert set(found) == {"hello", "one", "two"}
    assert found["hello"]["keys"] == ["k1"]
    assert found["hello"]["properties"]["a"] == "b"
    assert mqtrail("consume", "letters", "--count", "1", "--wait", "0.2", *server).code == 1
    assert mqtrail("send", "letters", "x", "--property", "nonsense", *server).code == 2
    assert mqtrail("send", "letters", "x", "--namesrv", DOWN).code == 1


def test_wrong_use(mqtrail: Command) -> None:
    """Unknown commands and options are 2; help and version are 0."""
    assert mqtrail("--version").code == 0
    assert mqtrail("--help").code == 0
    for wrong in (("nothing",), ("up", "--nothing"), ("up", "--brokers", "0"), ("pipeline", "once")):
        assert mqtrail(*wrong).code == 2, wrong


def test_an_interrupt_is_130(mqtrail: Command, monkeypatch: pytest.MonkeyPatch, lake_path: Path) -> None:
    """Ctrl-C ends a command with the shell's exit code and without a traceback."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mqtrail.answers.Answers.trace", interrupted)
    assert mqtrail("trace", "x", "--lake", str(lake_path)).code == 130


@pytest.mark.parametrize(("words", "code"), [(["topic", "list"], 1), (["trace", "x"], 3)])
def test_files_that_cannot_be_used_are_an_error_in_words(
    mqtrail: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    """There is no traceback, and a look-up does not exit with the code for "not found"."""

    def refuse(*_: object, **__: object) -> None:
        raise IsADirectoryError(21, "Is a directory", "/data/topics.json")

    monkeypatch.setattr("mqtrail.cli.app.build", refuse)
    found = mqtrail(*words)
    assert found.code == code
    assert found.err.splitlines() == [
        "mqtrail: [Errno 21] Is a directory: '/data/topics.json': check that file or folder, its permissions and the "
        "space on its disk"
    ]


def test_a_missing_extra_is_named(mqtrail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without DuckDB, the error of a look-up names the package to install."""

    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")

    monkeypatch.setattr("mqtrail.answers.Answers.trace", missing)
    result = mqtrail("trace", "x", "--lake", "l")
    assert (result.code, "mqtrail[lake]" in result.err) == (2, True)


def _damaged(lake: Path, folder: Path) -> Path:
    """A copy of a lake without one of its verdicts files."""
    copy = shutil.copytree(lake, folder / "damaged")
    next((copy / "verdicts").glob("part-*/*.parquet")).unlink()
    return copy


def test_a_damaged_lake_is_not_found_nothing(mqtrail: Command, lake_path: Path, tmp_path: Path) -> None:
    """Every command prints what is readable, reports the damage in one line, and ends with 3."""
    lake = ("--lake", str(_damaged(lake_path, tmp_path)))
    for words, what in (
        ("search", "send ok"),
        ("report", "Verdicts, the most severe first"),
        ("export", id_of("send ok")),
    ):
        result = mqtrail(words, *lake)
        assert result.code == 3
        assert result.err.count("\n") == 1
        assert "could not be read" in result.err
        if words != "search":
            assert what in result.out
    assert mqtrail("trace", id_of("send ok"), *lake).code == 0
    assert mqtrail("search", "--json", *lake).json["scope"]["is_damaged"]


@pytest.mark.parametrize("words", [("once",), ("run",)])
def test_a_pipeline_on_a_lake_it_cannot_use(
    mqtrail: Command, lake_path: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """For a damaged lake, one in use, and a path without a lake, it ends before Spark starts, with 3 and one line."""
    lake = shutil.copytree(lake_path, tmp_path / "busy")
    with Lake.open(lake).writing():
        result = mqtrail("pipeline", *words, "--lake", str(lake), "--namesrv", DOWN)
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert f"process {os.getpid()} on host" in result.err
    shutil.rmtree(lake / "attempts" / "_delta_log")
    (tmp_path / "file").touch()
    for path, what in ((lake, "attempts: found no Delta log"), (tmp_path / "file", "found a file")):
        result = mqtrail("pipeline", *words, "--lake", str(path), "--namesrv", DOWN)
        assert (result.code, result.err.count("\n")) == (3, 1)
        assert what in result.err


def test_the_status_of_a_pipeline(mqtrail: Command, tmp_path: Path) -> None:
    """0 while it runs well, 1 when it has ended or failed, 3 without a status; the same as JSON."""
    lake = tmp_path / "lake"
    lake.mkdir()
    none = mqtrail("pipeline", "status", "--lake", str(lake))
    assert (none.code, none.err.count("\n"), "no readable status" in none.err) == (3, 1, True)
    east = ClusterStatus("east", cycle_ended_ms=1_000, cycle_seconds=1.5, problems={"broker-b does not answer": 1_000})
    status = PipelineStatus(clusters=[east, ClusterStatus("west")])
    StatusFile(lake).write(status)
    well = mqtrail("pipeline", "status", "--lake", str(lake))
    assert (well.code, well.err) == (0, "")
    assert "running: process" in well.out
    assert "broker-b does not answer" in well.out
    assert [line for line in well.out.splitlines() if "cluster:" in line] == ["cluster: east", "cluster: west"]
    east.note_failure("no name server answers")
    status.is_running = False
    StatusFile(lake).write(status)
    ended = mqtrail("pipeline", "status", "--lake", str(lake), "--json")
    found = json.loads(ended.out)
    assert (ended.code, len(found["wrong"]), found["clusters"][0]["failures"]) == (1, 2, 1)
    assert "east: the last 1 cycles failed" in found["wrong"][1]


def test_clusters_of_a_pipeline(mqtrail: Command, tmp_path: Path) -> None:
    """Several come from repeated flags or from the file; a command that works on one needs its name."""

    def chosen(*texts: str, several: bool, config: str = "", namesrv: str | None = None) -> list[tuple[str, str]]:
        file = tmp_path / "several.toml"
        file.write_text(f"[pipeline]\n{config}")
        own: dict[str, object] = {"cluster": texts[0] if texts else None}
        own = clusters_of(list(texts), namesrv) if several else own
        found = job_config(file, namesrv, str(tmp_path / "lake"), own, None, {}, None, several=several)
        return [(one.cluster, one.namesrv) for one in found.each()]

    flags, both = ("east=h:1", "west=h:2;i:2"), [("east", "h:1"), ("west", "h:2;i:2")]
    listed = 'clusters = ["east=h:1", "west=h:2;i:2"]'
    assert chosen(*flags, several=True) == both
    assert chosen(several=True, config=listed) == both
    assert chosen("other=h:3", several=True, config=listed) == [("other", "h:3")]
    assert chosen("west", several=True, config=listed) == chosen("west", several=False, config=listed) == both[1:]
    assert chosen("west", several=True, namesrv="h:1") == [("west", "h:1")]
    for texts, more, what in (
        (("east", "west"), {"several": True}, "found --cluster west"),
        (flags, {"several": True, "namesrv": "h:1"}, "found --namesrv and --cluster"),
        (("east=nothing",), {"several": True}, "nothing"),
        ((), {"several": False, "config": listed}, "found 2 clusters"),
        (("north",), {"several": False, "config": listed}, "one of east, west"),
    ):
        with pytest.raises(UsageError, match=what):
            chosen(*texts, **cast(Any, more))
    lake = tmp_path / "lake"
    Lake.create(lake)
    StatusFile(lake).write(PipelineStatus(clusters=[ClusterStatus("east"), ClusterStatus("west")]))
    result = mqtrail("pipeline", "backfill", "--from", "1d", "--lake", str(lake), "--namesrv", DOWN)
    assert (result.code, "reads: east, west" in result.err) == (2, True)


def test_a_lake_of_a_newer_version(mqtrail: Command, lake_path: Path, tmp_path: Path) -> None:
    """The error names the remedy; the lake is not reported as empty."""
    lake = shutil.copytree(lake_path, tmp_path / "newer")
    shutil.rmtree(lake / "_marks")  # the commits below are rewritten
    key = '"mqtrail.schema"'
    for table in lake.iterdir():
        commit = table / "_delta_log" / f"{0:020}.json"
        if commit.exists():
            commit.write_text(commit.read_text().replace(f'{key}:"{SCHEMA_VERSION}"', f'{key}:"{SCHEMA_VERSION + 1}"'))
    for words in (("trace", "x"), ("search",), ("report",), ("export",), ("pipeline", "once", "--namesrv", DOWN)):
        result = mqtrail(*words, "--lake", str(lake))
        assert result.code == 3
        assert "Upgrade mqtrail" in " ".join((result.err + result.out).split())  # lines break where the path lets them


@pytest.mark.slow
def test_upkeep(mqtrail: Command, tmp_path: Path) -> None:
    """A lake of 0.1 is refused until it is migrated; a rebuild says what comes next; without a lake both end with 3."""
    kept = Path(__file__).parents[1] / "lake" / "data" / "version1.tar.gz"
    with tarfile.open(kept) as tar:
        tar.extractall(tmp_path, filter="data")
    old = str(tmp_path / "lake")
    refused = mqtrail("report", "--lake", old)
    assert (refused.code, "mqtrail pipeline migrate" in refused.err) == (3, True)
    for command in ("migrate", "rebuild"):
        done = mqtrail("pipeline", command, "--lake", old)
        assert (done.code, done.out.rstrip().endswith("the next cycle judges every message again")) == (0, True), done
        missing = mqtrail("pipeline", command, "--lake", str(tmp_path / "none"))
        assert (missing.code, missing.out, "no lake at" in missing.err) == (3, "", True)
    assert mqtrail("report", "--lake", old).code == 0


def test_digits_that_are_no_numbers(mqtrail: Command) -> None:
    """str.isdigit() accepts digits that int() does not, and int() refuses thousands of digits."""
    with pytest.raises(UsageError, match="BROKER/QUEUE"):
        queue_of("orders", "broker-a/²")
    for place in ("broker-a/²=4", "broker-a/0=²", f"broker-a/0={'9' * 5_000}"):
        result = mqtrail("offset", "set", "billing", "orders", place, "--namesrv", DOWN)
        assert (result.code, "BROKER/QUEUE=OFFSET" in result.err) == (2, True), result.err
    result = mqtrail("topic", "order", "orders", "broker-a:²", "--namesrv", DOWN)
    assert (result.code, "BROKER:QUEUES" in result.err) == (2, True), result.err
