"""Damaged lakes: a writer refuses them with an error, a reader skips the damaged parts and lists them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqtrail.lake import (
    SCHEMA_VERSION,
    TABLES,
    Lake,
    LakeBusy,
    LakeDamaged,
    LakeError,
    LakeLost,
    LakeMissing,
    LakeUnreadable,
    LookUp,
    SchemaVersionError,
    compact,
    expire,
    relation_of,
    sweep,
)
from mqtrail.lake.lock import LOCK_FILE
from mqtrail.lake.marks import COMMITS_MAX, MARKS, CommitMark
from tests.lake.test_tables import verdict, write

DAMAGED_LOGS: dict[str, Callable[[Path], object]] = {
    "last commit cut": lambda log: _last(log).write_bytes(_last(log).read_bytes()[:-200]),
    "last commit empty": lambda log: _last(log).write_bytes(b""),
    "last commit garbage": lambda log: _last(log).write_bytes(bytes(range(256))),
    "first commit missing": lambda log: (log / "00000000000000000000.json").unlink(),
    "log missing": shutil.rmtree,
    "log empty": lambda log: [file.unlink() for file in log.iterdir()],
    "log a file": lambda log: (shutil.rmtree(log), log.write_text("x")),
    "a commit of something else": lambda log: (log / "00000000000000000009.json").write_text('{"x": 1}'),
    "a newer Delta protocol": lambda log: _edit(log, '"minReaderVersion":1', '"minReaderVersion":99'),
}
DAMAGED_COMMITS: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    # change of the log with two commits after the first -> ids that can still be read
    "last commit deleted": (lambda log: _last(log).unlink(), {"m5"}),
    "both commits deleted": (lambda log: [file.unlink() for file in sorted(log.glob("*.json"))[1:]], set()),
    "last commit of something else": (lambda log: _last(log).write_text('{"x": 1}'), {"m5"}),
    "earlier commit of something else": (lambda log: sorted(log.glob("*.json"))[1].write_text('{"x": 1}'), {"m6"}),
    "last commit of another table": (
        lambda log: shutil.copy(_last(log.parent.parent / "gaps" / "_delta_log"), _last(log)),
        {"m5"},
    ),
    "mark garbage": (lambda log: (log.parent.parent / MARKS / "verdicts.json").write_bytes(b"x"), {"m5", "m6"}),
    "mark nested deep": (
        lambda log: (log.parent.parent / MARKS / "verdicts.json").write_text('{"commits":' + "[" * 100_000),
        {"m5", "m6"},
    ),
    "mark empty": (lambda log: (log.parent.parent / MARKS / "verdicts.json").write_bytes(b""), {"m5", "m6"}),
}
DAMAGED_FILES: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-20]),
    "empty": lambda file: file.write_bytes(b""),
    "garbage of the same size": lambda file: file.write_bytes(os.urandom(file.stat().st_size)),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


def _last(log: Path) -> Path:
    return max(log.glob("*.json"))


def _edit(log: Path, old: str, new: str) -> None:
    file = log / "00000000000000000000.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with two files of verdicts and one of gaps."""
    path = tmp_path_factory.mktemp("sound") / "lake"
    lake = Lake.create(path)
    for hour in (5, 6):
        lake["verdicts"].commit([write(lake["verdicts"], f"h{hour}", [verdict(f"m{hour}", hour)])], app="a", batch=hour)
    lake["gaps"].commit([write(lake["gaps"], "g", [{"cluster": "c"}])], app="a", batch=0)
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "lake")


def ids(lake: Lake) -> set[str]:
    return {
        row[0]
        for row in LookUp(lake).connection.sql(f"SELECT msg_id FROM ({relation_of(lake['verdicts'])})").fetchall()
    }


@pytest.mark.parametrize("name", DAMAGED_LOGS)
def test_a_damaged_log(path: Path, name: str) -> None:
    """A writer's error names the table and a remedy, and creates no empty table; a reader has all other tables."""
    DAMAGED_LOGS[name](path / "verdicts" / "_delta_log")
    for opened in (Lake.open, Lake.create):
        with pytest.raises(LakeError, match=r"verdicts.*expected.*restore") as reported:
            opened(path)
        assert "\n" not in str(reported.value)
    lake = Lake.open(path, is_whole=False)
    assert [table.table.name for table in lake if table.damage] == ["verdicts"]
    assert ids(lake) == set()
    lake.refresh()
    assert len(lake["gaps"].files()) == 1


def test_commits_that_are_lost_under_a_writer(path: Path) -> None:
    """A writer reads the logs again once in a cycle, not before each use of a table, and refuses a changed log then."""
    lake = Lake.create(path)
    with lake.writing():
        lake.check()
        assert lake["verdicts"].is_committed("a", 6)
        _last(path / "verdicts" / "_delta_log").unlink()
        lake.refresh()
        assert lake["verdicts"].is_committed("a", 6)
        with pytest.raises(LakeDamaged, match=r"verdicts.*expected.*restore"):
            lake.check()
    with lake.writing(), pytest.raises(LakeDamaged, match=r"verdicts.*expected.*restore"):
        lake.refresh()


def test_a_writer_sees_what_others_wrote_before(path: Path) -> None:
    """Under a lock that is taken anew, commits of the holder in between are read."""
    first, second = Lake.create(path), Lake.create(path)
    for number, (one, other) in enumerate([(first, second), (second, first)], start=7):
        with one.writing():
            one.refresh()
            assert not one["verdicts"].is_committed("a", number)
            one["verdicts"].commit([write(one["verdicts"], f"h{number}", [verdict("m", 5)])], app="a", batch=number)
            assert one["verdicts"].is_committed("a", number)
        with other.writing():
            assert other["verdicts"].is_committed("a", number)
            assert len(other["verdicts"].files()) == number - 4


@pytest.mark.parametrize("name", DAMAGED_COMMITS)
def test_commits_that_are_not_as_written(path: Path, name: str) -> None:
    """The mark detects a change that Delta does not notice: a writer refuses, a reader skips the table."""
    damages, left = DAMAGED_COMMITS[name]
    damages(path / "verdicts" / "_delta_log")
    for opened in (Lake.open, Lake.create):
        with pytest.raises(LakeDamaged, match=r"verdicts.*found .*expected.*restore") as reported:
            opened(path)
        assert "\n" not in str(reported.value)
    lake = Lake.open(path, is_whole=False)
    assert [table.table.name for table in lake if table.damage] == ["verdicts"]
    assert ids(lake) == left


def test_all_logs_removed(path: Path) -> None:
    """A lake with commits is not treated as a new one, nor as one of an older version, which lacks some tables."""
    for log in path.glob("*/_delta_log"):
        shutil.rmtree(log)
    for opened in (Lake.open, Lake.create, partial(Lake.open, is_whole=False)):
        with pytest.raises(LakeDamaged, match=r"found no Delta log of any table, expected \d+: restore the folder"):
            opened(path)
    assert not list(path.glob("*/_delta_log"))


def test_a_mark_behind_its_log(path: Path) -> None:
    """A crash between a commit and its mark is no damage, and the next commit marks both."""
    file = path / MARKS / "verdicts.json"
    before = file.read_bytes()
    table = Lake.open(path)["verdicts"]
    table.commit([write(table, "h7", [verdict("m7", 7)])], app="a", batch=7)
    file.write_bytes(before)
    lake = Lake.open(path)
    lake["verdicts"].commit([write(lake["verdicts"], "h8", [verdict("m8", 8)])], app="a", batch=8)
    assert sorted(json.loads(file.read_bytes())["commits"]) == ["0", "1", "2", "3", "4"]
    assert Lake.open(path)["verdicts"].version == 4


def test_a_lake_without_marks(path: Path) -> None:
    """A lake of an earlier mqtrail is readable, and gets marks from its next commit on."""
    shutil.rmtree(path / MARKS)
    lake = Lake.open(path)
    assert ids(lake) == {"m5", "m6"}
    lake["verdicts"].note("k", "v")
    _last(path / "verdicts" / "_delta_log").unlink()
    with pytest.raises(LakeDamaged, match=r"0003\.json: found no such commit \(the log ends at version 2\)"):
        Lake.open(path)


def test_a_mark_keeps_no_more_than_the_log_needs(tmp_path: Path) -> None:
    """Marks before a checkpoint are dropped; without one, all except the latest ones are kept."""
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    mark = CommitMark(log.parent)
    for version in range(COMMITS_MAX + 20):
        (log / f"{version:020}.json").write_text(str(version))
        mark.write(version, "")
    assert len(mark.commits) == COMMITS_MAX
    assert mark.version == COMMITS_MAX + 19
    (log / "_last_checkpoint").write_text(json.dumps({"version": COMMITS_MAX + 10}))
    mark.write(COMMITS_MAX + 19, "")
    assert min(mark.commits) == COMMITS_MAX + 11
    assert mark.problems(COMMITS_MAX + 19) == {}
    (log / f"{COMMITS_MAX + 15:020}.json").unlink()
    assert mark.problems(COMMITS_MAX + 19) == {}, "the log was read, so a later checkpoint covers it"


@pytest.mark.parametrize("name", DAMAGED_FILES)
def test_a_damaged_file(path: Path, name: str) -> None:
    """A writer's error names the file; a reader has the rows of the others and lists it."""
    file = path / "verdicts" / "h5" / "part-0.parquet"
    DAMAGED_FILES[name](file)
    with pytest.raises(LakeDamaged, match=r"h5/part-0.parquet: found .*restore"):
        Lake.open(path).probe()
    if name != "garbage of the same size":  # before each cycle files are compared with their sizes, not read
        with pytest.raises(LakeDamaged, match=r"h5/part-0.parquet: found .*restore"):
            Lake.open(path).check()
    lake = Lake.open(path, is_whole=False)
    lake.probe()
    assert ids(lake) == {"m6"}
    [reported] = lake.damage
    assert str(file) in reported
    assert "\n" not in reported


def test_not_readable_by_permissions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of the operating system are reported with the path, for the whole lake and for one file."""
    denied = path / "verdicts" / "h5" / "part-0.parquet"
    really = Path.open

    def refuse(file: Path, *arguments: Any, **named: Any) -> Any:  # root may read everything
        if file == denied:
            raise PermissionError(13, "Permission denied", str(file))
        return really(file, *arguments, **named)

    monkeypatch.setattr(Path, "open", refuse)
    lake = Lake.open(path, is_whole=False)
    assert ids(lake) == {"m6"}
    assert "Permission denied" in lake.damage[0]

    def locked(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", locked)
    for opened in (Lake.open, Lake.create):
        with pytest.raises(LakeUnreadable, match="permission denied, expected read access"):
            opened(path)


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    """The file is no lake, and no lake is created below it."""
    file = tmp_path / "file"
    file.write_text("hello")
    with pytest.raises(LakeMissing):
        Lake.open(file)
    with pytest.raises(LakeUnreadable, match="found a file, expected the folder of a lake"):
        Lake.create(file)


def test_a_newer_version_is_no_damage(path: Path) -> None:
    """A lake of a newer mqtrail is refused as a whole, also by readers."""
    _set_version(path / "verdicts" / "_delta_log", SCHEMA_VERSION + 1)
    shutil.rmtree(path / MARKS)  # a newer one would have marks for its commits
    for is_whole in (True, False):
        with pytest.raises(SchemaVersionError, match="Upgrade mqtrail"):
            Lake.open(path, is_whole=is_whole)


def test_an_older_version_is_no_damage(path: Path) -> None:
    """A lake that lacks a newer table is refused as one of an older version, not as damaged."""
    for log in path.glob("*/_delta_log"):
        if log.parent.name in TABLES:
            _set_version(log, SCHEMA_VERSION - 1)
    shutil.rmtree(path / MARKS)
    shutil.rmtree(path / "samples")
    for opened in (Lake.open, Lake.create):
        with pytest.raises(SchemaVersionError, match=rf"schema version {SCHEMA_VERSION - 1}, expected"):
            opened(path)


def _set_version(log: Path, version: int) -> None:
    _edit(log, f'"mqtrail.schema":"{SCHEMA_VERSION}"', f'"mqtrail.schema":"{version}"')


def test_a_table_that_a_crash_left_unmade(tmp_path: Path) -> None:
    """Missing tables are created if nothing was committed: a crash during creation is no damage."""
    Lake.create(tmp_path / "lake")
    shutil.rmtree(tmp_path / "lake" / "verdicts")
    with pytest.raises(LakeMissing):
        Lake.open(tmp_path / "lake")
    assert Lake.create(tmp_path / "lake")["verdicts"].files() == []


def test_one_writer_at_a_time(path: Path) -> None:
    """The second writer is refused, whatever it writes, with the first one's process and host."""
    first, second = Lake.open(path), Lake.open(path)
    file = write(second["gaps"], "late", [{"cluster": "d"}])
    with first.writing(), first.writing():
        first["gaps"].note("k", "v")
        holder = rf"process {os.getpid()} on host {socket.gethostname()} \(since 20.*expected one writer: wait"
        writers: list[Callable[[], object]] = [
            lambda: second["gaps"].commit([file], app="b", batch=0),
            lambda: second["gaps"].note("k", "w"),
            lambda: compact(second, 10, now_ms=0),
            lambda: expire(second, 0, now_ms=0),
            lambda: sweep(second, now_ms=0),
            lambda: second.writing().__enter__(),
        ]
        for writes in writers:
            with pytest.raises(LakeBusy, match=holder):
                writes()
        assert ids(second) == {"m5", "m6"}
    assert second["gaps"].commit([file], app="b", batch=0)


def test_a_lock_ends_with_its_process(path: Path) -> None:
    """A killed writer leaves its name in the file, but the lock is free."""
    script = (
        "import os, sys; from mqtrail.lake import Lake\n"
        "with Lake.open(sys.argv[1]).writing(): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LakeBusy, match=f"process {holder.pid} on host"), Lake.open(path).writing():
        pass
    holder.kill()
    holder.communicate()
    assert json.loads((path / LOCK_FILE).read_text())["pid"] == holder.pid
    with Lake.open(path).writing():
        pass


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.rename(file.with_name("old"))])
def test_a_lock_file_that_was_deleted_locks_no_more(path: Path, damage: Callable[[Path], object]) -> None:
    """A second writer then gets a lock of its own; the first one commits nothing more and says why."""
    first, second = Lake.open(path), Lake.open(path)
    file = write(first["gaps"], "late", [{"cluster": "d"}])
    with first.writing():
        damage(path / LOCK_FILE)
        for other in (nullcontext(), second.writing()):
            with other:
                with pytest.raises(LakeLost, match=r"lock file removed or replaced.*start this command again"):
                    first["gaps"].commit([file], app="b", batch=0)
                with pytest.raises(LakeLost):
                    first["gaps"].note("k", "v")
    assert second["gaps"].commit([file], app="b", batch=0)


def test_a_holder_that_does_not_say_who_it_is(path: Path) -> None:
    """A lock without a readable holder still holds."""
    with (path / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LakeBusy, match="found another process writing"), Lake.open(path).writing():
            pass
