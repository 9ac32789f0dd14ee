"""A batch is in all of its tables or in none, after any crash, and its notes agree with the tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mqtrail.lake import Change, FileRefused, Lake, LakeDamaged, LakeTable
from tests.lake.test_tables import lake, read, verdict, write

__all__ = ["lake"]


class Crash(Exception):
    """The process died here."""


def changes(lake: Lake, number: int) -> dict[str, Change]:
    """New files of three tables."""
    rows: dict[str, dict[str, Any]] = {
        "gaps": {"cluster": "c", "first_offset": number},
        "lag": {"cluster": "c", "sampled_ms": number},
        "verdicts": verdict(f"id-{number}", number),
    }
    return {name: Change([write(lake[name], f"batch=app-{number}", [row])]) for name, row in rows.items()}


def counts(lake: Lake) -> set[int]:
    """The numbers of rows of the three tables."""
    lake.refresh()
    return {len(read(lake, name)) for name in ("gaps", "lag", "verdicts")}


def test_a_batch_is_committed_to_its_tables_once(lake: Lake) -> None:
    """Its notes can be read back; a replay, and an earlier batch, are skipped."""
    assert lake.batches.last("app") is None
    for number in (3, 7):
        assert lake.batches.commit("app", number, changes(lake, number), {"read": [number]})
        for again in (3, number):
            assert not lake.batches.commit("app", again, changes(lake, again), {})
    assert counts(lake) == {2}
    reopened = Lake.create(lake.path)
    found = reopened.batches.last("app")
    assert found is not None
    assert (found.number, found.notes) == (7, {"read": [7]})
    assert reopened.batches.last("other") is None


def test_a_batch_removes_files(lake: Lake) -> None:
    """The files that it replaces are removed by the same commit, also if a crash comes before that."""
    assert lake.batches.commit("app", 1, changes(lake, 1), {})
    replaced = {name: Change(one.added, lake[name].files()) for name, one in changes(lake, 2).items()}
    assert lake.batches.commit("app", 2, replaced, {})
    assert counts(lake) == {1}


@pytest.mark.parametrize("tables_done", [0, 1, 2, 3])
@pytest.mark.parametrize("same_process", [False, True])
def test_a_crash_between_the_commits(
    lake: Lake, tables_done: int, same_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next writer completes the batch first, be it another process or this one with its next batch."""
    assert lake.batches.commit("app", 1, changes(lake, 1), {})
    commit, done = LakeTable.commit_actions, 0

    def until_then(table: LakeTable, *given: Any) -> None:
        nonlocal done
        if done > tables_done:  # the first commit is the record's
            raise Crash
        done += 1
        commit(table, *given)

    replacing = {name: Change(one.added, lake[name].files()) for name, one in changes(lake, 2).items()}
    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "commit_actions", until_then)
        try:
            lake.batches.commit("app", 2, replacing, {"read": 2})
        except Crash:
            assert tables_done < 3
    if same_process:
        assert lake.batches.commit("app", 3, changes(lake, 3), {"read": 3})
        assert counts(lake) == {2}
        return
    again = Lake.create(lake.path)
    with again.writing():
        found = again.batches.last("app")
    assert found is not None
    assert found.notes == {"read": 2}
    assert counts(again) == {1}
    with again.writing():
        assert again.batches.recover() == []


def test_a_crash_before_the_record(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of the batch exists, and its number is free."""

    def never(table: LakeTable, *given: Any) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "commit_actions", never)
        with pytest.raises(Crash):
            lake.batches.commit("app", 1, changes(lake, 1), {})
    again = Lake.create(lake.path)
    with again.writing():
        assert again.batches.last("app") is None
    assert counts(again) == {0}
    assert again.batches.commit("app", 1, changes(again, 1), {})
    assert counts(again) == {1}


def test_a_file_that_does_not_fit_commits_nothing(lake: Lake) -> None:
    """All files are checked before the record."""
    wrong = changes(lake, 1) | {"clients": Change([write(lake["lag"], "foreign", [{"cluster": "c"}])])}
    shutil.copytree(str(lake["lag"].path / "foreign"), str(lake["clients"].path / "foreign"))
    with pytest.raises(FileRefused, match=r"column '\w+' is missing"):
        lake.batches.commit("app", 1, wrong | {"clients": Change(["foreign/part-0.parquet"])}, {})
    assert lake.batches.last("app") is None
    assert counts(lake) == {0}


def test_a_record_of_an_older_copy_is_refused(lake: Lake, tmp_path: Path) -> None:
    """Otherwise new batches would count as replays, and their rows would be lost."""
    record = Path(str(lake.path), "_batches")
    mark = Path(str(lake.path), "_marks", "_batches.json")
    assert lake.batches.commit("app", 1, changes(lake, 1), {})
    shutil.copytree(record, tmp_path / "older")
    shutil.copy(mark, tmp_path / "older.json")
    assert lake.batches.commit("app", 2, changes(lake, 2), {})
    shutil.rmtree(record)
    with pytest.raises(LakeDamaged, match="no Delta log"):
        Lake.create(lake.path).batches.last("app")
    shutil.copytree(tmp_path / "older", record)
    with pytest.raises(LakeDamaged, match="found no such commit"):
        Lake.create(lake.path).batches.last("app")
    shutil.copy(tmp_path / "older.json", mark)
    again = Lake.create(lake.path)
    with pytest.raises(LakeDamaged, match="found batch 2 of 'app', expected at most 1"), again.writing():
        pass
