"""Coverage of trace: which times may explain what is missing of a message, in `trace` and in the view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqtrail.answers import Answers, CoverageTime
from tests.answers.lakes import AS_OF_MS, make_lake
from tests.cli.conftest import Command, mqtrail
from tests.trail.story import BROKER, CLIENT, CONSUMER, GROUP, History, at, unique_id

__all__ = ["mqtrail"]

ROW: dict[str, Any] = {"group_name": GROUP, "status": "OK", "client_id": CLIENT, "client_host": CONSUMER}


def history(cluster: str, *numbers: int, gone: float | None = None, msg: int = 1) -> History:
    """A message that the group's offset has passed, without a record of a delivery; the group traced another one.

    numbers: those of its client's trace messages, 5 s apart. gone: the sample without the client.
    """
    found = History(cluster).pub(msg=msg).stored(msg=msg).scanned().group(CLIENT)
    found.pub(msg=msg + 1).stored(offset=3, msg=msg + 1).handled(msg=msg + 1, request="R8")
    found.rows["clients"] = []
    found.sampled("clients", -60, **ROW, change="SEEN", first_ms=at(-60))
    if gone is not None:
        found.sampled("clients", gone, **ROW, change="GONE", seen_ms=at(gone - 5))
    for place, number in enumerate(numbers):
        found.numbered(5.0 * place, number)
    return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cluster for each reason."""
    path = tmp_path_factory.mktemp("coverage") / "lake"
    silent = history("silent", 1, 2, msg=50)
    failed: dict[str, Any] = {"what": "OFFSETS", "broker_name": BROKER, "reason": "no answer"}
    silent.sampled("samples", 20, **failed, status="FAILED", seen_ms=at(-5))
    silent.sampled("samples", 40, what="OFFSETS", broker_name=BROKER, status="OK")
    vanished = history("vanished", 1, 2, gone=30)
    vanished.sampled("clients", 300, **ROW, change="GONE", first_ms=at(-60), seen_ms=at(25))  # a keyframe repeats it
    there = history("there", 1, 2, gone=-20, msg=60)  # what it says about its order became known
    there.sampled("clients", -20, **ROW, change="SEEN", first_ms=at(-20), ordered="true")
    there.sampled("clients", 300, **ROW, change="SEEN", first_ms=at(-20), ordered="true")
    there.sampled("clients", 300, **ROW, change="GONE", first_ms=at(-60), seen_ms=at(-25))
    moved = history("moved", 1, 2, gone=30, msg=70)  # it left one of its groups
    moved.sampled("clients", -60, **ROW | {"group_name": "other"}, change="SEEN", first_ms=at(-60))
    histories = [
        vanished,
        there,
        moved,
        history("hole", 1, 4, msg=10),
        history("numberless", msg=20),
        history("unread", 1, 2, msg=30).gap(-10, 10),
        history("whole", 1, 2, msg=40),
        silent,
    ]
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in histories:
        for name, some in one.rows.items():
            rows.setdefault(name, []).extend(some)
    make_lake(path, rows)
    return path


def shown(lake: Path, msg: int) -> list[CoverageTime]:
    """What may explain what a message lacks."""
    [found] = Answers(lake).trace(unique_id(msg), AS_OF_MS).trajectories
    assert found.knowledge == "INCOMPLETE"
    return list(found.coverage)


@pytest.mark.slow
def test_a_client_that_vanished(lake: Path) -> None:
    """Since its last trace message, until the sample without it."""
    [one] = shown(lake, 1)
    assert (one.kind, one.client_id, one.from_ms, one.to_ms) == ("VANISHED", CLIENT, at(5), at(30))
    assert "its last trace message is of 2023-11-14 22:13:25" in one.reason


@pytest.mark.slow
def test_numbers_that_are_missing(lake: Path) -> None:
    """Between the trace messages around the hole."""
    [one] = shown(lake, 10)
    assert (one.kind, one.lost_count, one.from_ms, one.to_ms) == ("LOST", 2, at(0), at(5))
    assert one.reason == "TRACE_MESSAGES_LOST"


@pytest.mark.slow
def test_a_client_without_numbers(lake: Path) -> None:
    """It is unknown whether it lost records."""
    [one] = shown(lake, 20)
    assert (one.kind, one.client_id, one.to_ms) == ("NOT_NUMBERED", CLIENT, None)


@pytest.mark.slow
def test_what_concerns_every_client(lake: Path) -> None:
    """A range of the trace topic that was not read, and a broker that did not answer."""
    [unread] = shown(lake, 30)
    assert (unread.kind, unread.client_id, unread.from_ms, unread.to_ms) == ("UNREAD", "", at(-10), at(10))
    [silent] = shown(lake, 50)
    assert (silent.kind, silent.from_ms, silent.to_ms) == ("SILENT", at(-5), at(40))


@pytest.mark.slow
def test_no_reason_is_invented(lake: Path) -> None:
    """All trace messages of the client are there, and it is there, also if what is known of it changed."""
    assert [shown(lake, msg) for msg in (40, 60, 70)] == [[], [], []]
    with Answers(lake, cluster="whole").query("SELECT kind, from_at, to_at FROM coverage", AS_OF_MS) as answer:
        [row] = [row for batch in answer.batches for row in batch.to_pylist()]
    assert (row["kind"], row["to_at"].timestamp() - row["from_at"].timestamp()) == ("TRACED", 5)


@pytest.mark.slow
def test_trace_prints_it(lake: Path, mqtrail: Command) -> None:
    """Below what is missing."""
    found = mqtrail("trace", unique_id(1), "--lake", str(lake))
    assert f"may explain it: VANISHED {CLIENT}" in " ".join(found.out.replace("│", " ").split())
