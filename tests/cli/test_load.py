"""`mqtrail load` on our own broker: options, what it asks before, the report, and exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.cli import load_verdicts
from mqtrail.cli.draw_load import load_report
from mqtrail.cli.exits import UsageError
from mqtrail.cli.load import check
from mqtrail.cli.load_verdicts import ComparedCount, TraceJudge
from mqtrail.cli.output import show_answer
from mqtrail.client import SyncAdmin, SyncConsumer, SyncProducer
from mqtrail.load import (
    LatencyHistogram,
    LatencySummary,
    LoadCounts,
    LoadPlan,
    LoadReport,
    LoadTarget,
    LoadVerdict,
    decided,
)
from mqtrail.load.ledger import Unread
from mqtrail.load.report import LoadErrors, LoadPace, LoadSecond, ProcessUse
from mqtrail.pipeline import JobFailed
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, Perm, TopicConfig
from tests.cli.conftest import Command, commands

SHORT = ("--rate", "200", "--duration", "100ms")


@pytest.fixture(scope="module")
def server() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
def mqtrail(
    server: Embedded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Runs one command line with the cluster, without any settings of this machine and without a terminal."""
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv_address)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    return commands(capsys)


def test_a_run(mqtrail: Command) -> None:
    """The topic is created on request only; the JSON report has the counts of the broker beside its own."""
    missing = mqtrail("load", "fresh", *SHORT)
    assert (missing.code, "pass --create" in missing.err) == (1, True)
    result = mqtrail(
        *("load", "fresh", *SHORT, "--create", "--queues", "2", "--warm-up", "50ms", "--size", "64-5KiB", "--json"),
        *("--keys", "5", "--ordered", "--producers", "2", "--seed", "3", "--arrivals", "poisson"),
    )
    found = result.json
    counts = found["counts"]
    assert {one["code"] for one in found["reasons"]} <= {"RATE_MISSED"}, "a busy test machine"
    assert result.code == (1 if found["reasons"] else 0)
    assert counts["sent"] == counts["acknowledged"] == counts["consumed"] == found["topic_growth"] > 0
    assert (counts["unread"], counts["repeated"], counts["out_of_order"], counts["foreign"]) == (0, 0, 0, 0)
    assert found["latency"]["end_to_end"]["count"] == found["pace"]["acknowledged"]
    assert found["wanted"]["seed"] == 3
    assert found["wanted"]["sizes"] == "64-5120"
    [broker] = found["brokers"]
    assert broker["stored"] == counts["sent"]
    again = mqtrail("load", "fresh", *SHORT, "--batch", "5", "--consumers", "0")
    assert again.code in (0, 1), "the messages of a load are not foreign"
    assert "without consumers" in again.out or "RATE_MISSED" in again.out


def test_messages_of_others(mqtrail: Command, server: Embedded) -> None:
    """A topic that others use needs a confirmation, and a group that is online another name."""
    with SyncAdmin(server.namesrv_address) as admin, SyncProducer("PG", server.namesrv_address) as producer:
        assert admin.create_topic(TopicConfig("orders", 2, 2)).complete
        for _ in range(3):
            producer.send(Message("orders", b"order"))
    asked = mqtrail("load", "orders", *SHORT)
    assert asked.code == 2
    assert "topic 'orders', which holds 3 messages that are not from a load test" in asked.err
    assert "--yes" in asked.err
    with SyncConsumer("mqtrail-load", server.namesrv_address, {"orders": "*"}):
        online = mqtrail("load", "orders", *SHORT, "--yes")
    assert (online.code, "pass another --group" in online.err) == (2, True)
    told = mqtrail("load", "orders", *SHORT, "--yes", "--group", "other", "--json")
    assert told.json["counts"]["consumed"] == told.json["counts"]["sent"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate", "0"), "more than 0"),
        (("--rate", "-5"), "more than 0"),
        (("--rate", "5", "--duration", "0s"), "duration"),
        (("--rate", "5", "--duration", "soon"), "--duration"),
        (("--rate", "5", "--size", "-1"), "--size"),
        (("--rate", "5", "--size", "10"), "at least 40"),
        (("--rate", "5", "--size", "5MiB"), "body_size_max"),
        (("--rate", "5", "--size", "1KiB", "--batch", "1000", "--size", "5KiB"), "body_size_max"),
        (("--rate", "5", "--ordered"), "--keys"),
        (("--rate", "5", "--arrivals", "daily"), "constant or poisson"),
        (("--rate", "5", "--lake", "x"), "--verdicts"),
        ((), "--rate"),
    ],
)
def test_invalid_options(mqtrail: Command, options: tuple[str, ...], words: str) -> None:
    """Exit code 2 before anything is created or sent."""
    result = mqtrail("load", "never", *options, "--create")
    assert result.code == 2
    assert words in result.err
    assert "never" not in mqtrail("topic", "list").out


def test_what_is_not_known_is_asked_about() -> None:
    """A broker that refuses operators' requests does not make the topic empty."""
    target = LoadTarget("T", is_new=False, unknown=("its messages on broker-a (refused)",))
    plan = LoadPlan(topic="T", group="G", rate=1, duration_s=1)
    with pytest.raises(UsageError, match=r"not known: its messages on broker-a \(refused\)"):
        check(target, plan, False)
    check(target, plan, True)


def test_what_the_cluster_refuses(mqtrail: Command, server: Embedded) -> None:
    """A body over the broker's limit, a topic without write permission, and no cluster: exit code 1, at once."""
    Path("mqtrail.toml").write_text("[producer]\nbody_size_max = 8388608\ncompress_over = 8388608")
    large = mqtrail("load", "large", *SHORT, "--create", "--size", "5MiB")
    assert large.code == 1
    assert "MESSAGE_ILLEGAL" in large.err
    with SyncAdmin(server.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig("closed", 1, 1, Perm.READ)).complete
    closed = mqtrail("load", "closed", *SHORT)
    assert closed.code == 1
    assert "mqtrail topic perm closed rw" in closed.err
    nobody = mqtrail("load", "T", *SHORT, "--namesrv", "127.0.0.1:1")
    assert (nobody.code, "127.0.0.1:1" in nobody.err) == (1, True)


def test_ctrl_c(mqtrail: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal ends the load, and the report is that of what was done."""
    monkeypatch.setattr(
        "mqtrail.load.LoadRun._settle",
        _interrupting(monkeypatch, "_begin", lambda: os.kill(os.getpid(), signal.SIGINT)),
    )
    result = mqtrail("load", "stopped", "--rate", "100", "--duration", "1h", "--create", "--json")
    assert result.json["is_ended_early"] is True
    assert result.json["counts"]["sent"] == result.json["counts"]["consumed"] > 0
    assert result.json["seconds_run"] < 1_800


def _interrupting(monkeypatch: pytest.MonkeyPatch, name: str, act: Any) -> Any:
    """Make the fifth call of a method of LoadRun act; return the method _settle as it is."""
    from mqtrail.load import LoadRun

    usual, calls = getattr(LoadRun, name), []

    def method(self: Any, *arguments: Any) -> None:
        calls.append(1)
        usual(self, *arguments)
        if len(calls) == 5:
            act()

    monkeypatch.setattr(LoadRun, name, method)
    return LoadRun._settle


# -- the report, drawn and judged --------------------------------------------------------------------------------------


def summary(*values_ms: int) -> LatencySummary:
    found = LatencyHistogram()
    for value in values_ms:
        found.add(value * 1_000)
    return LatencySummary.of(found)


REPORT = LoadReport(
    run_id="ab" * 8,
    topic="T",
    group="G",
    begin_ms=1,
    wanted={
        "rate": 100.0,
        "arrivals": "constant",
        "sizes": "1024",
        "keys": 4,
        "ordered": True,
        "batch": 2,
        "delay_level": 3,
        "producers": 1,
        "consumers": 1,
        "warm_up_s": 1.0,
        "seed": 7,
        "in_flight": 1_000,
    },
    seconds_run=31.0,
    is_ended_early=True,
    pace=LoadPace(
        due=100,
        late_by_bound=30,
        late_by_generator=2,
        not_sent=3,
        acknowledged=60,
        acknowledged_a_second=2.0,
        in_flight_most=9,
    ),
    counts=LoadCounts(sent=97, acknowledged=95, not_stored=1, uncertain=1, consumed=94, unread=2, unsettled_read=1),
    latency={"start": summary(1), "store": summary(2, 3), "acknowledged": summary(2_000), "end_to_end": summary()},
    statuses={"SEND_OK": 94, "FLUSH_DISK_TIMEOUT": 1},
    errors=(LoadErrors(kind="TIMEOUT", count=1, first_s=1.0, last_s=2.0, example="no\x1banswer"),),
    unread=(Unread(4, "7F" * 16), Unread(5, "")),
    repeated=(),
    topic_growth=None,
    is_read_to_end=True,
    processes=(
        ProcessUse(name="generator", process_id=1, cores=0.2, memory_size_most=5 << 20),
        ProcessUse(name="broker-a", process_id=None, cores=None, memory_size_most=None),
    ),
    brokers=(),
    by_second=tuple(
        LoadSecond(
            at_s=float(at),
            seconds=1.0,
            sent=at,
            acknowledged=at,
            failed=0,
            consumed=at,
            in_flight=0,
            acknowledged_p50_ms=1.0,
            acknowledged_p99_ms=float(at),
            consumed_p50_ms=None,
            consumed_p99_ms=None,
            cores={},
        )
        for at in range(30)
    ),
    is_consumed=True,
    is_ordered=True,
)
WELL = replace(
    REPORT,
    pace=replace(REPORT.pace, late_by_bound=0, late_by_generator=0, not_sent=0),
    counts=LoadCounts(sent=97, acknowledged=97, not_stored=0, uncertain=0, consumed=97),
)


def test_the_report_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with the reasons and the verdict; texts from peers are escaped; the worst seconds are shown."""
    show_answer(load_report, decided(REPORT))
    text = capsys.readouterr().out
    for part in (
        "ended early",
        "32 (30 waited for answers, 2 for this process); not sent: 3",
        "FLUSH_DISK_TIMEOUT: 1",
        "the 20 seconds with the highest latency",
        "not on this machine",
        "the first: no\\x1banswer",
        "RATE_MISSED: of 100 messages 32 were late and 3 not sent: 1000 sends had no answer",
        "LOST: 2 acknowledged messages were not delivered",
        "not consumed: message 5, id not kept",
        "consumed though not acknowledged: 1",
    ):
        assert part in text
    assert "\n9.0 " not in text
    assert "\n29.0 " in text
    assert text.rstrip().endswith("FAILED")
    show_answer(load_report, decided(WELL))
    assert "OK: all 97 acknowledged messages were consumed exactly once, in order by key" in capsys.readouterr().out


def test_who_is_to_blame_for_a_missed_rate() -> None:
    """The cluster, this process, or the machine."""
    busy = replace(REPORT, processes=(replace(REPORT.processes[0], cores=0.97),))
    starved = replace(REPORT, pace=replace(REPORT.pace, late_by_bound=1, late_by_generator=60))
    texts = [
        next(reason.text for reason in decided(one).reasons if reason.code == "RATE_MISSED")
        for one in (REPORT, busy, starved)
    ]
    assert [words in text for words, text in zip(("--in-flight", "0.97", "too busy"), texts, strict=True)] == [True] * 3
    few = replace(WELL, pace=replace(WELL.pace, due=1_000, late_by_bound=10))
    assert decided(few).verdict is LoadVerdict.OK, "one in a hundred may be late"


def test_lost_is_told_from_not_known() -> None:
    """Lost: the group has read everything. Otherwise nobody knows yet."""
    waiting = replace(WELL, counts=replace(WELL.counts, consumed=90, unread=7))
    for is_read, verdict, code in (
        (True, LoadVerdict.FAILED, "LOST"),
        (False, LoadVerdict.UNKNOWN, "NOT_CONSUMED"),
        (None, LoadVerdict.UNKNOWN, "NOT_CONSUMED"),
    ):
        found = decided(replace(waiting, is_read_to_end=is_read))
        assert (found.verdict, [reason.code for reason in found.reasons]) == (verdict, [code])
    assert decided(replace(waiting, is_consumed=False)).verdict is LoadVerdict.OK


class _Judge(TraceJudge):
    def _cycle(self) -> list[str]:
        return ["a topic could not be read"]

    def _answers(self) -> Any:
        return None


def judged(monkeypatch: pytest.MonkeyPatch, report: LoadReport, **more: Any) -> LoadReport:
    """The report as judged by a trace with the counts of WELL, but for `more`."""
    found = {
        "messages": 97,
        "acknowledged": 97,
        "unacknowledged": 0,
        "complete": 97,
        "consumed": 97,
        "repeated": 0,
        "codes": {"SEND_OK": 97, "CONSUMED": 97},
    }
    monkeypatch.setattr(load_verdicts, "_counted", lambda answers, report: found | more)
    job: Any = type("Job", (), {"lake": "lake"})
    return _Judge(job).judged(report)


def test_the_trace_agrees_or_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Other counts of a complete trace are a failure; of an incomplete one they are unknown."""
    same = judged(monkeypatch, WELL)
    assert same.verdict is LoadVerdict.OK
    assert same.verdicts is not None
    assert same.verdicts["compared"][2] == asdict(ComparedCount("consumed", 97, 97))
    assert same.verdicts["problems"] == ["a topic could not be read"]
    show_answer(load_report, same)
    assert "SEND_OK 97, CONSUMED 97" in capsys.readouterr().out
    other = judged(monkeypatch, WELL, consumed=96)
    assert (other.verdict, other.reasons[0].code) == (LoadVerdict.FAILED, "TRACE_DISAGREES")
    assert "consumed 97, by the trace 96" in other.reasons[0].text
    for gap in ({"complete": 90}, {"messages": 90, "complete": 90, "acknowledged": 90}):
        partial = judged(monkeypatch, WELL, **{"consumed": 90, **gap})
        assert (partial.verdict, partial.reasons[0].code) == (LoadVerdict.UNKNOWN, "TRACE_INCOMPLETE")
    json.dumps(asdict(same))


def test_a_trace_that_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of the load is kept."""

    def failing(self: TraceJudge) -> list[str]:
        raise JobFailed("no trace topic")

    monkeypatch.setattr(_Judge, "_cycle", failing)
    found = judged(monkeypatch, WELL)
    assert (found.verdict, found.reasons[0].code) == (LoadVerdict.UNKNOWN, "NOT_JUDGED")
    assert "no trace topic" in found.reasons[0].text


def test_the_lake_of_the_verdicts(tmp_path: Path) -> None:
    """The one that was named, or a temporary one that is deleted; it begins at the end of the trace."""
    from mqtrail.cli.config import Config

    with ExitStack() as stack:
        kept = TraceJudge.open(stack, Config(), "127.0.0.1:1", str(tmp_path / "lake"), "T")._job
        gone = TraceJudge.open(stack, Config(), "127.0.0.1:1", None, "T")._job
        folder = Path(str(gone.lake)).parent
        assert folder.is_dir()
    assert str(kept.lake) == str(tmp_path / "lake")
    assert (kept.topics, kept.starting_offsets.value) == (("T",), "latest")
    assert not folder.exists()
