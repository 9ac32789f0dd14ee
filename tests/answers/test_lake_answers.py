"""Answers from a lake: look-up, search, report, export; each with its range, omissions, and time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mqtrail import trail
from mqtrail.answers import (
    Answers,
    LatencySegment,
    NeighbourRelation,
    SearchConditions,
    Status,
    TimeSpan,
    VerdictThresholds,
    change_text,
    compared_spans,
    parse_query,
)
from mqtrail.lake import Lake, LakeError, arrow_rows, note_settings, write_parquet
from mqtrail.lake.judged import KEY
from tests.answers.lakes import AS_OF_MS, BY_NAME, OTEL_TRACE_ID, TRACEPARENT, Row, id_of, key_of, make_lake, rows_of
from tests.trail.histories import HISTORIES, unique_id

NOW_MS = AS_OF_MS + 5_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture(scope="module")
def answers(lake_path: Path) -> Answers:
    return Answers(lake_path)


def test_a_message_is_found_by_its_id(answers: Answers) -> None:
    """The timeline has its send, its copies and every delivery; the scope lists the sources."""
    answer = answers.trace(id_of("consumed after retry"), NOW_MS)
    assert answer.status is Status.FOUND
    [found] = answer.trajectories
    assert found.send_codes == ("SEND_OK",)
    [group] = found.groups
    assert group.codes == ("CONSUMED", "CONSUMED_AFTER_RETRY")
    assert {"SEND", "HANDLED"} <= {event.kind for event in found.events}
    assert found.as_of_ms == AS_OF_MS
    assert answer.scope.as_of_ms < NOW_MS
    assert answer.scope.first_ms is not None
    assert answer.scope.end_ms is not None
    assert answer.scope.first_ms < AS_OF_MS < answer.scope.end_ms + 3_600_000


def test_what_a_lake_lacks_is_listed(answers: Answers) -> None:
    """Every answer lists gaps and rejects, and that the cluster was not queried."""
    reported = " ".join(answers.trace(id_of("send ok"), NOW_MS).scope.omissions)
    assert "broker-a/0 [5, 9)" in reported
    assert "2 trace records did not decode (table trace_rejects); the latest in" in reported
    assert "--namesrv" in reported


def test_by_key_and_by_the_brokers_id(answers: Answers) -> None:
    """A key finds all its messages; the broker's id finds its message."""
    [found] = answers.trace(key_of("hung"), NOW_MS).trajectories
    assert found.msg_id == id_of("hung")
    shared = answers.trace("shared", NOW_MS)
    assert len(shared.trajectories) > 5
    by_broker = answers.trace(found.offset_msg_id, NOW_MS)
    assert id_of("hung") in {one.msg_id for one in by_broker.trajectories}


def test_by_trace_id_of_opentelemetry(answers: Answers) -> None:
    """The id in the context that a message carries finds it, in `trace` and in a search by key."""
    [found] = answers.trace(OTEL_TRACE_ID, NOW_MS).trajectories
    assert (found.msg_id, found.traceparent) == (id_of("one-way and stored"), TRACEPARENT)
    assert [one.msg_id for one in answers.search(SearchConditions(key=OTEL_TRACE_ID), NOW_MS).trajectories] == [
        found.msg_id
    ]


def test_not_found_and_cannot_look_are_not_the_same(answers: Answers, tmp_path: Path) -> None:
    """An unknown id is NOT_FOUND in a readable lake, and CANNOT_LOOK without a lake."""
    absent = answers.trace("7F" * 16, NOW_MS)
    assert absent.status is Status.NOT_FOUND
    assert absent.trajectories == ()
    nowhere = Answers(tmp_path / "none").trace(id_of("send ok"), NOW_MS)
    assert nowhere.status is Status.CANNOT_LOOK
    assert "pipeline once" in nowhere.scope.omissions[0]
    empty = Lake.create(tmp_path / "empty")
    assert Answers(empty.path).trace("7F" * 16, NOW_MS).status is Status.NOT_FOUND


def test_a_cluster_that_is_down_leaves_the_lakes_answer(lake_path: Path) -> None:
    """The lake's answer is returned, with the omission that the cluster could not be queried."""
    answers = Answers(lake_path, "127.0.0.1:1")
    answer = answers.trace(id_of("send ok"), NOW_MS)
    assert answer.status is Status.FOUND
    assert any("could not be queried" in omission for omission in answer.scope.omissions)
    assert answers.trace("7F" * 16, NOW_MS).status is Status.CANNOT_LOOK


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (SearchConditions(codes=("DEAD_LETTERED",)), {"dead, attempts exhausted"}),
        (SearchConditions(codes=("HUNG", "SEND_SLOW")), {"hung", "send slow"}),
        (SearchConditions(codes=("SCHEDULED",)), {"scheduled"}),
        (SearchConditions(key="order-1"), {"send ok"}),
        (SearchConditions(group_name="CG2", codes=("NO_CONSUMER",)), {"two groups, one down"}),
        (SearchConditions(topic="no such topic"), set()),
        (SearchConditions(end_ms=1_000), set()),
        (SearchConditions(group_name="PG", topic="orders"), set(BY_NAME)),
    ],
)
def test_search(answers: Answers, wanted: SearchConditions, names: set[str]) -> None:
    """All conditions must match; of several codes any."""
    found = answers.search(wanted, NOW_MS)
    assert {one.msg_id for one in found.trajectories} == {id_of(name) for name in names}
    assert found.matched_count == len(names)
    assert found.scope.sources


def test_a_search_says_what_it_cut_off(answers: Answers) -> None:
    """The answer names the limit that it reached."""
    found = answers.search(SearchConditions(limit=3), NOW_MS)
    assert len(found.trajectories) == 3
    assert found.matched_count == len(BY_NAME)
    assert any("--limit" in omission for omission in found.scope.omissions)


def test_report(answers: Answers) -> None:
    """Codes with counts and one example, percentiles, lag, the worst messages, and codes that are not judged."""
    found = answers.report(NOW_MS, worst=2)
    counts = {(row.about, row.code): row for row in found.codes}
    assert found.message_count == len(BY_NAME)
    assert counts["CG", "DEAD_LETTERED"].message_count == 1
    assert counts["CG", "DEAD_LETTERED"].example == id_of("dead, attempts exhausted")
    assert counts["send", "SEND_SLOW"].severity == "warning"
    order = [("error", "warning", "open", "info", "good").index(row.severity) for row in found.codes]
    assert order == sorted(order)
    assert len(found.worst) == 2
    assert found.rejects == 2
    assert len(found.gaps) == 1
    assert any(row.lag_count for row in found.lag)
    sends = next(row for row in found.latency if row.segment == "send")
    assert sends.p50_ms <= sends.p99_ms <= sends.max_ms
    assert 5 <= sends.p50_ms <= 6  # 5 ms in a bucket that is 9 % wide
    assert answers.report(NOW_MS, end_ms=1_000).message_count == 0


@pytest.mark.slow
def test_thresholds_are_the_lakes(tmp_path: Path) -> None:
    """Reports have the thresholds used for the verdicts, not the reader's; unknown if the lake has no entry."""
    lake = make_lake(tmp_path, rows_of())
    reader = Answers(tmp_path, settings=trail.Settings(hung_ms=1))
    unknown = VerdictThresholds(len(BY_NAME), None)
    assert reader.report(NOW_MS).judged_with == (unknown,)
    assert reader.trace(id_of("send ok"), NOW_MS).judged_with == (VerdictThresholds(1, None),)
    changed = trail.Settings(send_slow_ms=7)
    notes = [[AS_OF_MS - 1, trail.Settings().values()]]  # of an earlier version: for every cluster
    lake["verdicts"].note(KEY, json.dumps(notes))
    assert reader.report(NOW_MS).judged_with == (VerdictThresholds(len(BY_NAME), {}),)
    note_settings(lake["verdicts"], "send ok", changed, AS_OF_MS)
    of_others = VerdictThresholds(len(BY_NAME) - 1, {})
    assert reader.report(NOW_MS).judged_with == (of_others, VerdictThresholds(1, {"send_slow_ms": 7}))
    assert reader.trace(id_of("send ok"), NOW_MS).judged_with == (VerdictThresholds(1, {"send_slow_ms": 7}),)
    assert reader.trace("nothing", NOW_MS).judged_with == ()
    assert reader.report(NOW_MS, end_ms=1_000).judged_with == ()


def test_export_has_a_line_a_message(answers: Answers) -> None:
    """Exactly the documented fields, every message once."""
    lines = {line["msg_id"]: line for line in answers.export(NOW_MS)}
    assert set(lines) == {id_of(name) for name in BY_NAME}
    line = lines[id_of("two groups, one down")]
    named = ["msg_id", "topic", "keys", "send", "message", "groups", "knowledge", "reasons", "as_of", "cluster"]
    assert list(line) == named
    assert line["cluster"] == "two groups, one down"
    assert line["as_of"] == AS_OF_MS
    assert {"CONSUMED"} < {code for codes in line["groups"].values() for code in codes}
    assert list(answers.export(NOW_MS, end_ms=1_000)) == []


def test_a_folder_that_is_not_a_lake_is_refused(tmp_path: Path) -> None:
    """A search cannot be answered without its lake; the error has a remedy."""
    with pytest.raises(LakeError, match="pipeline once"):
        Answers(tmp_path).search(SearchConditions(), NOW_MS)


@pytest.mark.slow
def test_a_message_of_a_batch_is_found_by_both_ids(tmp_path: Path) -> None:
    """`trace` and `search` find the messages of a batch by its id, and each of them by its own."""
    rows: dict[str, list[Row]] = {}
    for history in HISTORIES:
        if history.name == "batch, a listener gets all of it at once":
            rows = {name: list(some) for name, some in history.rows.items()}
    make_lake(tmp_path / "lake", rows)
    answers = Answers(tmp_path / "lake")
    own = {unique_id(number) for number in (1, 2, 3)}
    assert {one.msg_id for one in answers.trace(unique_id(99), NOW_MS).trajectories} == own
    assert {one.msg_id for one in answers.search(SearchConditions(key=unique_id(99)), NOW_MS).trajectories} == own
    for one in own:
        assert [found.msg_id for found in answers.trace(one, NOW_MS).trajectories] == [one]
        near = answers.neighbours(one, NOW_MS).neighbours
        assert {(found.relation, found.token, found.msg_id) for found in near} == {
            (NeighbourRelation.BATCH, unique_id(99), other) for other in own - {one}
        }
        [found] = answers.search(SearchConditions(key=one), NOW_MS).trajectories
        assert found.msg_id == one


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("handler>40s", {"hung"}),
        ("handler>40s group:CG verdict:HUNG", {"hung"}),
        ("handler>40s group:CG2", set()),
        ("deliveries>1", {"consumed after retry", "dead, attempts exhausted"}),
        ("deliveries>1 group:CG2", set()),
        ("host:10.0.0.2@77", {"hung"}),
        ("host:10.9.9.9", set()),
        ("tag:TagB", set()),
        ("reason:GROUPS_INCOMPLETE", {"no consumer", "waiting", "two groups, one down"}),
        ("reason:GROUP_NOT_TRACED group:CG", {"no consumer", "waiting"}),
        ("reason:CAUSE", set()),
        ("total>1s", {"send slow", "consumed after retry"}),
        ("total>1s group:CG2", set()),
        ("broker:broker-a queue:0 verdict:HUNG", {"hung"}),
        ("queue:9", set()),
        ("size>1000000", set()),
        ("tag:TagA deliveries>1 verdict:CONSUMED", {"consumed after retry"}),
    ],
)
def test_search_by_what_happened_in_a_group(lake_path: Path, text: str, names: set[str]) -> None:
    """With a group, handler time and deliveries are those of that group. A handler that still runs has a time too."""
    found = Answers(lake_path).search(replace(parse_query(text, 0), limit=100), 0)
    assert {one.msg_id for one in found.trajectories} == {id_of(name) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("segment", LatencySegment)
def test_latency_over_time(answers: Answers, segment: LatencySegment) -> None:
    """The histories are of one minute, so each row has the percentiles of the report; other times have none."""
    found = answers.latency(segment, NOW_MS)
    assert found.step_ms == 60_000
    expected = [one for one in answers.report(NOW_MS).latency if one.segment == segment]
    assert expected
    assert [(one.cluster, one.topic, one.group_name, one.message_count) for one in found.spans] == [
        (one.cluster, one.topic, one.group_name, one.message_count) for one in expected
    ]
    assert [(one.p50_ms, one.p99_ms, one.max_ms) for one in found.spans] == [
        (one.p50_ms, one.p99_ms, one.max_ms) for one in expected
    ]
    [at_ms] = {one.at_ms for one in found.spans}
    assert answers.latency(segment, NOW_MS, at_ms, at_ms + 1).spans == found.spans
    assert answers.latency(segment, NOW_MS, at_ms + 60_000).spans == ()
    assert answers.latency(segment, NOW_MS, None, at_ms).spans == ()


def test_two_spans_of_latency_side_by_side(tmp_path: Path) -> None:
    """Each stage has both percentiles and their difference; what one span alone has is no difference of zero."""
    lake = make_lake(tmp_path / "lake", rows_of(["send ok"]))
    table = lake["latency_minute"]
    rows = [row for file in table.path.rglob("*.parquet") for row in pq.read_table(str(file)).to_pylist()]
    minute_ms, doubled = rows[0]["minute_ms"], trail.BUCKETS_A_DOUBLING
    later = [
        {**row, "minute_ms": minute_ms + HOUR_MS, "bucket": row["bucket"] + doubled}
        for row in rows
        if row["segment"] != "send"
    ]
    write_parquet(arrow_rows(trail.LATENCY_MINUTE, later), table.path / "later.parquet")
    table.commit([table.path / "later.parquet"], app="test", batch=1)
    before, after = (TimeSpan(at_ms, at_ms + 60_000) for at_ms in (minute_ms, minute_ms + HOUR_MS))
    answers = Answers(tmp_path / "lake")
    found = answers.compare_latency(before, after, NOW_MS)
    assert (found.before, found.after) == (before, after)
    assert (found.scope.first_ms, found.scope.end_ms) == (after.first_ms, after.end_ms)
    assert [one.segment for one in found.changes if one.group_name] == [*LatencySegment][1:]
    sends = [one for one in found.changes if one.segment == "send"]
    assert sends
    assert all((one.after, one.p50_change_ms) == (None, None) for one in sends)
    total = next(one for one in found.changes if one.segment == "total")
    assert total.before is not None
    assert total.after is not None
    assert total.p99_change_ms == total.after.p99_ms - total.before.p99_ms > 0
    assert total.after.p99_ms + 1 == pytest.approx(2 * (total.before.p99_ms + 1))  # a doubling of buckets
    turned = answers.compare_latency(after, before, NOW_MS, LatencySegment.TOTAL)
    assert [one.p99_change_ms for one in turned.changes] == [-total.p99_change_ms]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (("2h", "1h", "1d"), ((NOW_MS - DAY_MS, NOW_MS - DAY_MS + HOUR_MS), (NOW_MS - 2 * HOUR_MS, NOW_MS - HOUR_MS))),
        (("2h", "", "1d"), ((NOW_MS - DAY_MS, NOW_MS - DAY_MS + 2 * HOUR_MS), (NOW_MS - 2 * HOUR_MS, NOW_MS))),
    ],
)
def test_the_two_spans_have_the_same_length(times: tuple[str, str, str], expected: Any) -> None:
    before, after = compared_spans(*times, NOW_MS)
    assert ((before.first_ms, before.end_ms), (after.first_ms, after.end_ms)) == expected


@pytest.mark.parametrize("times", [("1h", "2h", "1d"), ("1h", "1h", "1d"), ("soon", "", "1d"), ("1h", "", "soon")])
def test_spans_that_cannot_be_compared(times: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        compared_spans(*times, NOW_MS)


def test_a_change_is_text() -> None:
    """What is not known has no difference."""
    assert change_text(12, 30) == "12 ms → 30 ms (+18 ms)"
    assert change_text(2_000, 500) == "2 s → 500 ms (-1.5 s)"
    assert change_text(5, 5) == "5 ms → 5 ms (±0 ms)"
    assert change_text(None, 5) == "? → 5 ms"


def test_rejected_records_with_their_text(tmp_path: Path) -> None:
    """The latest first, in pages; the count is of all."""
    lake = make_lake(tmp_path / "lake", rows_of(["send ok"]))
    answers = Answers(tmp_path / "lake")
    assert (answers.rejects(NOW_MS).reject_count, answers.rejects(NOW_MS).rejects) == (0, ())
    place = {"cluster": "send ok", "broker_name": "broker-a", "trace_topic": "TRACE", "queue_id": 0}
    rows = [
        {
            **place,
            "queue_offset": number,
            "record_no": -1,
            "trace_store_ms": AS_OF_MS + number,
            "trace_born_host": "10.0.0.7",
            "reason": f"found {number} fields",
            "record_text": f"Pub\x01{number}",
        }
        for number in range(5)
    ]
    table = lake["trace_rejects"]
    write_parquet(arrow_rows(trail.TRACE_REJECTS, rows), table.path / "rejects.parquet")
    table.commit([table.path / "rejects.parquet"], app="test", batch=1)
    found = answers.rejects(NOW_MS, 2, 1)
    assert found.reject_count == 5
    assert [(one.text, one.reason, one.stored_ms) for one in found.rejects] == [
        (f"Pub\x01{number}", f"found {number} fields", AS_OF_MS + number) for number in (3, 2)
    ]
    assert (found.rejects[0].host, found.rejects[0].record_no) == ("10.0.0.7", -1)


def test_neighbours_by_key(tmp_path: Path, lake_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other message once, with its verdicts; none of another cluster; a cut is said."""
    rows = rows_of(["hung", "send ok", "one-way and stored"])
    for relation in rows.values():
        for row in relation:
            row["cluster"] = "one"
    make_lake(tmp_path / "lake", rows)
    answers = Answers(tmp_path / "lake")
    found = {one.msg_id: one for one in answers.neighbours(id_of("send ok"), NOW_MS).neighbours}
    assert found.keys() == {id_of("hung"), id_of("one-way and stored")}
    assert (found[id_of("hung")].relation, found[id_of("hung")].token) == (NeighbourRelation.KEY, "shared")
    assert "SEND_OK" in found[id_of("hung")].codes
    monkeypatch.setattr("mqtrail.answers.neighbours.NEIGHBOURS_MAX", 1)
    cut = answers.neighbours(id_of("send ok"), NOW_MS)
    assert len(cut.neighbours) == 1
    assert "'shared' is on more than 1 other messages, the newest are shown" in cut.scope.omissions
    of_others = Answers(lake_path)  # each history has a cluster of its own
    assert of_others.neighbours(id_of("hung"), NOW_MS).neighbours == ()
    assert of_others.neighbours("unknown", NOW_MS).neighbours == ()
