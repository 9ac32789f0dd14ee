"""Answers from a damaged lake: they use the readable parts and list the others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtrail.answers import Answers, SearchConditions, Status
from mqtrail.answers.lakeview import LakeView, UnknownCluster
from mqtrail.lake import JUDGED, JUDGED_APP, Lake, LakeDamaged
from tests.answers.lakes import AS_OF_MS, id_of, key_of

DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "garbage inside": lambda file: _scramble(file),
    "garbage": lambda file: file.write_bytes(os.urandom(file.stat().st_size)),
}


def _scramble(file: Path) -> None:
    """Damage the pages, but neither the footer nor the size."""
    data = bytearray(file.read_bytes())
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[4:end] = b"\xff" * (end - 4)
    file.write_bytes(data)


@pytest.fixture
def lake(lake_path: Path, tmp_path: Path) -> Path:
    return shutil.copytree(lake_path, tmp_path / "lake")


def file_of(lake: Path, table: str) -> Path:
    [file] = (lake / table).glob("part-*/0.parquet")
    return file


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_of_verdicts(lake: Path, how: str) -> None:
    """Messages are found without their verdicts, and every kind of answer names the file."""
    file = file_of(lake, "verdicts")
    DAMAGE[how](file)
    answers = Answers(lake)
    traced = answers.trace(id_of("send ok"), AS_OF_MS)
    assert traced.status is Status.FOUND
    found = answers.search(SearchConditions(), AS_OF_MS)
    assert found.matched_count > 0
    report = answers.report(AS_OF_MS)
    assert report.message_count == found.matched_count
    for scope in (traced.scope, found.scope, report.scope):
        assert scope.is_damaged
        assert any(str(file) in one for one in scope.omissions)
    lines: list[object] = []
    exported = answers.export(AS_OF_MS)
    with pytest.raises(LakeDamaged, match="exported messages come from the others"):
        lines.extend(exported)
    assert len(lines) == found.matched_count


@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_that_may_hold_the_message(lake: Path, how: str) -> None:
    """It does not prove that there is no such message."""
    DAMAGE[how](file_of(lake, "trajectories"))
    answer = Answers(lake).trace(id_of("send ok"), AS_OF_MS)
    assert (answer.status, answer.trajectories) == (Status.CANNOT_LOOK, ())
    assert any("trajectories" in one for one in answer.scope.omissions)


def test_the_index_of_keys(lake: Path) -> None:
    """A key that is not found in the readable part may still exist; an id is found without it."""
    DAMAGE["missing"](file_of(lake, "key_index"))
    assert Answers(lake).trace(key_of("send ok"), AS_OF_MS).status is Status.CANNOT_LOOK
    assert Answers(lake).trace(id_of("send ok"), AS_OF_MS).status is Status.FOUND


def test_a_table_without_a_log(lake: Path) -> None:
    """The other tables answer."""
    shutil.rmtree(lake / "verdicts" / "_delta_log")
    answer = Answers(lake).trace(id_of("send ok"), AS_OF_MS)
    assert answer.status is Status.FOUND
    assert any("found no Delta log" in one for one in answer.scope.omissions)


def test_damage_of_evidence_alone(lake: Path) -> None:
    """Judged messages are complete without their evidence."""
    shutil.rmtree(lake / "message_meta" / "_delta_log")
    found = Answers(lake).search(SearchConditions(), AS_OF_MS)
    assert not found.scope.is_damaged
    assert any("message_meta" in one for one in found.scope.omissions)


@pytest.mark.parametrize("table", ["trajectories", "key_index", "verdicts"])
@pytest.mark.parametrize("how", ["deleted", "foreign"])
def test_the_last_commit(lake: Path, table: str, how: str) -> None:
    """A log without its last commit looks like an empty table: it does not prove that there is no such message."""
    last = max((lake / table / "_delta_log").glob("*.json"))
    last.unlink() if how == "deleted" else last.write_text('{"hello": "world"}')
    answers = Answers(lake)
    traced = answers.trace(key_of("send ok"), AS_OF_MS)
    assert traced.status is (Status.FOUND if table == "verdicts" else Status.CANNOT_LOOK)
    found = answers.search(SearchConditions(), AS_OF_MS)
    for scope in (traced.scope, found.scope):
        assert scope.is_damaged
        assert any(last.name in one for one in scope.omissions)
        assert not any("no judged message yet" in one for one in scope.omissions)


def test_a_judgement_that_is_not_complete(lake: Path) -> None:
    """A writer interrupted between two gold tables is no damage, but answers report it until all are committed."""
    writer = Lake.open(lake)
    for done, relation in enumerate(JUDGED, start=1):
        writer[relation.name].commit([], app=JUDGED_APP, batch=AS_OF_MS)
        answer = Answers(lake).trace(id_of("send ok"), AS_OF_MS)
        assert answer.status is Status.FOUND
        assert not answer.scope.is_damaged
        reported = [one for one in answer.scope.omissions if "is not complete yet" in one]
        behind = ", ".join(later.name for later in JUDGED[done:])
        assert len(reported) == (done < len(JUDGED))
        assert all(behind in one for one in reported)


@pytest.mark.parametrize("table", ["queue_ranges", "group_offsets", "trajectories"])
def test_the_lag_names_what_could_not_be_read(lake: Path, table: str) -> None:
    """A group without its samples does not look like one without lag, nor a damaged lake like an empty one."""
    cluster = LakeView(lake).clusters[0]
    for file in (lake / table).glob("part-*/*.parquet"):
        DAMAGE["cut"](file)
    try:
        said = "; ".join(Answers(lake, cluster=cluster).lag(AS_OF_MS).problems)
    except UnknownCluster as error:
        said = str(error)
    assert "damaged: " in said
    assert f"{table}/part-" in said
