"""Changes of masters beside the messages that they explain: in their time, of their broker, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqtrail import trail
from mqtrail.answers import Answers, Trajectory, change_line
from mqtrail.broker import BrokerConfig
from mqtrail.clock import now_ms
from mqtrail.lake import arrow_rows
from mqtrail.testing import embedded
from mqtrail.wire import BROKER_EVENTS_KEY, TRACE_TOPIC, BrokerEvent, Message, encode_trace

from .lakes import AS_OF_MS, _commit, id_of, make_lake, producer, rows_of

NAMES = ("send failed", "send ok")
OLD, NEW = "10.0.0.8:10911", "10.0.0.3:10911"


def event(at_ms: int, broker: str, cluster: str, **fields: Any) -> dict[str, Any]:
    row = {
        "cluster": cluster,
        "source": "trace",
        "broker_name": broker,
        "trace_topic": "RMQ_SYS_TRACE_TOPIC",
        "queue_id": 0,
        "queue_offset": at_ms % 1_000_000,
        "record_no": 1,
        "trace_store_ms": at_ms,
        "event_ms": at_ms,
        "event_broker_name": broker,
        "event": "BECAME_MASTER",
        "broker_id": "2",
        "address": NEW,
        "epoch": 5,
        "reason": "connection_closed",
        "before_id": "1",
        "before_address": OLD,
        "before_epoch": 4,
        "before_until_ms": at_ms - 100,
    }
    return row | fields


def lake_with(path: Path, *events: dict[str, Any]) -> Answers:
    lake = make_lake(path, rows_of(NAMES))
    if events:
        _commit(lake, trail.BROKER_EVENTS.name, arrow_rows(trail.BROKER_EVENTS, events))
    return Answers(path)


def traced(answers: Answers, name: str) -> Trajectory:
    (found,) = answers.trace(id_of(name), AS_OF_MS).trajectories
    return found


def times(one: Trajectory) -> tuple[int, int]:
    known = [event.at_ms for event in one.events if event.at_ms]
    return min(known), max(known)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return lake_with(tmp_path_factory.mktemp("plain") / "lake")


def test_the_fail_over_during_a_failed_send(tmp_path: Path, plain: Answers) -> None:
    """Who took over, when, why, and until when the master before was known; the verdict does not change."""
    before = traced(plain, "send failed")
    first_ms, last_ms = times(before)
    (broker,) = {one.place.partition("/")[0] for one in before.events if one.place}
    at_ms = last_ms + 5_000  # the new master of a failed send comes after its last try
    by_address = event(at_ms, "broker-x", before.cluster, before_address=broker)
    answers = lake_with(
        tmp_path / "lake",
        by_address,
        event(at_ms + 1, "broker-x", before.cluster, event="BECAME_SLAVE"),
        event(first_ms - 60_000, "broker-x", before.cluster, broker_id="7"),
        event(at_ms + 600_000, "broker-x", before.cluster, broker_id="8"),
        event(at_ms, "broker-y", before.cluster, broker_id="9", before_address="10.0.0.7:10911"),
        event(at_ms, "broker-x", "another", broker_id="10"),
    )
    found = traced(answers, "send failed")
    (change,) = found.broker_changes
    assert (change.event, change.address, change.broker_id, change.epoch) == ("BECAME_MASTER", NEW, "2", 5)
    assert (change.before_until_ms, change.evidence) == (at_ms - 100, f"trace:broker-x/0@{at_ms % 1_000_000}#1")
    assert (found.send_codes, found.knowledge, found.events) == (before.send_codes, before.knowledge, before.events)
    assert traced(answers, "send ok").broker_changes == ()
    worst = {one.msg_id: one for one in answers.report(AS_OF_MS, worst=2).worst}
    assert worst[id_of("send failed")].broker_changes == (change,)


def test_a_change_beside_a_good_message_is_not_shown(tmp_path: Path, plain: Answers) -> None:
    """It explains nothing there, unless it was during the time of the message."""
    before = traced(plain, "send ok")
    first_ms, last_ms = times(before)
    broker = before.place.partition("/")[0]
    for at_ms, is_shown in ((last_ms + 20_000, False), (first_ms + 10, True), (first_ms - 20_000, False)):
        path = tmp_path / str(at_ms)
        assert bool(traced(lake_with(path, event(at_ms, broker, before.cluster)), "send ok").broker_changes) is is_shown


def test_report_and_list(tmp_path: Path) -> None:
    """The report has the changes of masters of its time; the list has all events, the latest first."""
    answers = lake_with(
        tmp_path / "lake",
        event(1_000, "broker-a", "send ok"),
        event(2_000, "broker-a", "send ok", event="STARTED"),
        event(3_000, "broker-b", "send ok", event="TRUNCATED", from_offset=10, to_offset=30, detail="cut.log"),
    )
    report = answers.report(AS_OF_MS)
    assert [(one.at_ms, one.event) for one in report.broker_changes] == [(3_000, "TRUNCATED"), (1_000, "BECAME_MASTER")]
    assert [one.at_ms for one in answers.report(AS_OF_MS, 2_000, 4_000).broker_changes] == [3_000]
    every = answers.broker_changes(AS_OF_MS)
    assert ([one.at_ms for one in every.changes], every.matched_count) == ([3_000, 2_000, 1_000], 3)
    assert [one.at_ms for one in answers.broker_changes(AS_OF_MS, 1_500, broker="broker-a").changes] == [2_000]
    assert "20 bytes from 10, kept in cut.log" in change_line(report.broker_changes[0])


def test_the_view_shows_each_event_once(tmp_path: Path) -> None:
    """A record that a slave sent twice is one row."""
    answers = lake_with(
        tmp_path / "lake",
        event(1_000, "broker-a", "send ok"),
        event(1_000, "broker-a", "send ok", queue_offset=4),
    )
    with answers.query("SELECT broker, event, before_address, epoch, source FROM broker_events", AS_OF_MS) as answer:
        rows = [tuple(row.values()) for batch in answer.batches for row in batch.to_pylist()]
        assert rows == [("broker-a", "BECAME_MASTER", OLD, 5, "trace")]


def test_the_line_of_a_change(tmp_path: Path) -> None:
    """One line: who, what, why, who was master before."""
    answers = lake_with(
        tmp_path / "lake",
        event(1_000, "broker-a", "send ok"),
        event(9_000_000, "broker-a", "send ok", source="sample", event="MASTER_GONE", address="", broker_id="",
              epoch=None, reason="", before_id="", before_epoch=None),
    )  # fmt: skip
    gone, became = answers.broker_changes(AS_OF_MS).changes
    assert change_line(became) == (
        "broker-a: 10.0.0.3:10911 [2] became master (epoch 5, connection_closed); before: 10.0.0.8:10911 [1] "
        "(epoch 4), known as master until 00:00:00.900"
    )
    assert change_line(gone) == ("broker-a: has no master; before: 10.0.0.8:10911, known as master until 02:29:59.900")
    assert gone.evidence == "sample:9000000"


def test_without_a_lake_the_brokers_are_asked() -> None:
    """Their latest events have a key of their own. A fail-over of another time is not shown."""
    with embedded(broker=BrokerConfig(trace_topic_enable=True)) as broker:
        with producer(broker, trace=True) as shop:
            result = shop.send(Message("orders", b"x"))
        answers = Answers(namesrv=broker.namesrv_address)
        (before,) = answers.trace(result.msg_id, now_ms()).trajectories
        assert before.broker_changes == ()
        assert before.send_start_ms is not None
        events = [
            BrokerEvent(
                time_stamp=before.send_start_ms - ago_ms,
                broker_name="broker-a",
                event="BECAME_MASTER",
                address=NEW,
                epoch=epoch,
                before_address=OLD,
            )
            for epoch, ago_ms in ((2, 3_600_000), (3, 0))
        ]
        with producer(broker, trace=False) as writer:
            writer.send(Message(TRACE_TOPIC, encode_trace(events).encode(), keys=BROKER_EVENTS_KEY))
        (found,) = answers.trace(result.msg_id, now_ms()).trajectories
    assert [one.epoch for one in found.broker_changes] == [3]
    assert (found.send_codes, found.message_codes) == (before.send_codes, before.message_codes)
