"""The timeline of one message: details that its codes do not have."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from mqtrail.answers import Answers, BrokerChange, GroupVerdict, Trajectory
from mqtrail.cli.draw import timeline
from mqtrail.cli.draw_report import report
from tests.answers.lakes import AS_OF_MS, id_of


def found(lake_path: Path, name: str) -> Trajectory:
    """Return the trajectory of a labelled history."""
    [trajectory] = Answers(lake_path).trace(id_of(name), AS_OF_MS).trajectories
    return trajectory


def drawn(trajectory: Trajectory) -> str:
    """Return its timeline as text."""
    to = StringIO()
    Console(file=to, width=200, color_system=None).print(timeline(trajectory))
    return to.getvalue()


def group_of(trajectory: Trajectory) -> GroupVerdict:
    """Return its only group."""
    [group] = trajectory.groups
    return group


def drawn_with(trajectory: Trajectory, group: GroupVerdict) -> str:
    """Return the timeline with another group in place of its own."""
    return drawn(replace(trajectory, groups=(group,)))


def change_at(at_ms: int) -> BrokerChange:
    """A broker that became master, 60 ms after the one before was seen."""
    return BrokerChange(
        at_ms=at_ms,
        broker="broker-a",
        event="BECAME_MASTER",
        broker_id="3",
        address="10.0.0.3:10911",
        epoch=5,
        reason="connection_closed",
        before_id="1",
        before_address="10.0.0.1:10911",
        before_epoch=4,
        before_until_ms=at_ms - 60,
        from_offset=77,
        to_offset=None,
        detail="",
        evidence="trace:broker-a/0@1#0",
    )


def test_a_change_of_the_master_is_between_the_events(lake_path: Path) -> None:
    """By its time, among the lines of the send."""
    retried = found(lake_path, "send failed")
    first = retried.events[0].at_ms
    assert first is not None
    lines = drawn(replace(retried, broker_changes=(change_at(first + 50),))).splitlines()
    place = next(number for number, line in enumerate(lines) if "became master" in line)
    assert "+50 ms" in lines[place]
    assert "before: 10.0.0.1:10911 [1] (epoch 4), known as master until" in lines[place]
    assert "try" in lines[place - 1]
    assert "try" in lines[place + 1]


def test_a_report_lists_the_latest_changes(lake_path: Path) -> None:
    """Each in one line, and no heading without any."""
    found = Answers(lake_path).report(AS_OF_MS)
    for changes, is_shown in (((change_at(AS_OF_MS),), True), ((), False)):
        to = StringIO()
        Console(file=to, width=300, color_system=None).print(report(replace(found, broker_changes=changes), 8))
        assert ("Changes of brokers, the latest first" in to.getvalue()) is is_shown
        assert ("10.0.0.3:10911 [3] became master (epoch 5, connection_closed)" in to.getvalue()) is is_shown


def test_the_cause_of_a_dead_letter(lake_path: Path) -> None:
    """An inferred cause is marked as such, an unknown one is shown as unknown."""
    dead = found(lake_path, "dead, attempts exhausted")
    group = replace(group_of(dead), reasons=())
    inferred = replace(group, dead_cause="ATTEMPTS_EXHAUSTED", reasons=("CAUSE_INFERRED",))
    assert "cause: ATTEMPTS_EXHAUSTED (inferred)" in drawn_with(dead, inferred)
    assert "cause: BY_HANDLER\n" in drawn_with(dead, replace(group, dead_cause="BY_HANDLER"))
    assert "cause: unknown\n" in drawn_with(dead, replace(group, dead_cause=""))


def test_when_the_next_attempt_is_due(lake_path: Path) -> None:
    """RETRYING shows the time of the next attempt, or that it is unknown."""
    hung = found(lake_path, "hung")
    retrying = replace(group_of(hung), state="RETRYING", codes=("RETRYING",), retry_due_ms=1_700_000_000_000)
    assert "RETRYING  next attempt due 2023-11-14 22:13:20" in drawn_with(hung, retrying)
    assert "next attempt at an unknown time" in drawn_with(hung, replace(retrying, retry_due_ms=None))
    assert "next attempt" not in drawn(hung)


def test_a_half_message_is_not_visible(lake_path: Path) -> None:
    """Its stored copy is not one that consumers can read."""
    sent = found(lake_path, "send ok")
    events = tuple(replace(one, outcome="HALF") if one.kind == "STORED" else one for one in sent.events)
    half = replace(sent, events=events, visible_ms=None)
    assert "no copy visible to consumers" in drawn(half)
    for code, text in (
        ("TX_PENDING", "not visible to consumers yet"),
        ("TX_ROLLED_BACK", "never visible"),
        ("TX_CHECKS_EXHAUSTED", "in TRANS_CHECK_MAX_TIME_TOPIC"),
        ("RECALLED", "never visible"),
    ):
        assert text in drawn(replace(half, message_codes=(code,)))
    assert "visible" not in drawn(replace(sent, message_codes=("TX_COMMITTED",)))
    assert "no copy visible to consumers" not in drawn(sent)
