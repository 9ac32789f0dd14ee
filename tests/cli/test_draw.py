"""The timeline of one message: what its codes alone do not say."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from mqtrail.answers import Answers, GroupVerdict, Trajectory
from mqtrail.cli.draw import timeline
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


def with_group(trajectory: Trajectory, **changed: object) -> Trajectory:
    """Return the trajectory with changed values in its only group."""
    [group] = trajectory.groups
    changed_group: GroupVerdict = replace(group, **changed)  # type: ignore[arg-type]
    return replace(trajectory, groups=(changed_group,))


def test_the_cause_of_a_dead_letter(lake_path: Path) -> None:
    """An inferred cause is marked, an unknown one is not left out."""
    dead = found(lake_path, "dead, attempts exhausted")
    inferred = with_group(dead, dead_cause="ATTEMPTS_EXHAUSTED", reasons=("CAUSE_INFERRED",))
    assert "cause: ATTEMPTS_EXHAUSTED (inferred)" in drawn(inferred)
    assert "cause: BY_HANDLER\n" in drawn(with_group(dead, dead_cause="BY_HANDLER", reasons=()))
    assert "cause: unknown\n" in drawn(with_group(dead, dead_cause="", reasons=()))


def test_when_the_next_attempt_is_due(lake_path: Path) -> None:
    """RETRYING says when, or that this is unknown."""
    hung = found(lake_path, "hung")
    retrying = with_group(hung, state="RETRYING", codes=("RETRYING",), retry_due_ms=1_700_000_000_000)
    assert "RETRYING  next attempt due 2023-11-14 22:13:20" in drawn(retrying)
    assert "next attempt at an unknown time" in drawn(with_group(retrying, retry_due_ms=None))
    assert "next attempt" not in drawn(hung)


def test_a_half_message_is_not_visible(lake_path: Path) -> None:
    """Its stored copy is not one that consumers can read."""
    sent = found(lake_path, "send ok")
    events = tuple(replace(one, outcome="HALF") if one.kind == "STORED" else one for one in sent.events)
    assert "no copy visible to consumers" in drawn(replace(sent, events=events, visible_ms=None))
    assert "no copy visible to consumers" not in drawn(sent)
