"""Lakes of schema version 1: migrated in place, with the same verdicts afterwards.

data/version1.tar.gz is a lake that mqtrail 0.1 wrote in two runs (18 messages, a group that fails on some), and the
output of its `mqtrail export`.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mqtrail import trail
from mqtrail.lake import (
    Cycle,
    Lake,
    LakeBusy,
    LakeDamaged,
    LakeKnown,
    LakeMissing,
    LookUp,
    SchemaVersionError,
    WriteLock,
    arrow_rows,
    connect,
    judge_rows,
    keyframes_at,
    migrate,
    migration,
    rebuild,
    relation_of,
)
from mqtrail.pipeline.changes import Changes
from mqtrail.trail import Settings
from tests.trail.histories import AS_OF_MS, HISTORIES, History, evidence

from .stories import story
from .test_cycles import Evidence

KEPT = Path(__file__).parent / "data" / "version1.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A lake of version 1; export.jsonl is beside it."""
    with tarfile.open(KEPT) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "lake"


def exported(old: Path) -> dict[str, dict[str, Any]]:
    """The verdicts of version 1, by message."""
    rows = [json.loads(line) for line in (old.parent / "export.jsonl").read_text().splitlines()]
    return {row["msg_id"]: row for row in rows}


def codes_of(path: Path, as_of_ms: int) -> dict[str, dict[str, list[str]]]:
    """Judge a lake again, and return message -> group ('' for the message) -> codes."""
    duck = connect(threads=1)
    lake = Lake.open(path)
    [cluster] = LookUp(lake).clusters()
    known = LakeKnown(lake, cluster)
    assert known.last is None, "a migrated lake has no judgement"
    Cycle(duck, known, as_of_ms, Settings(), None).run()
    rows = duck.execute(
        """SELECT msg_id, group_name, codes FROM append_verdicts WHERE reasons NOT LIKE 'GROUP_SEEN_LATER%' UNION ALL
        SELECT msg_id, '', concat_ws(',', send_codes, message_codes, knowledge) FROM append_trajectories"""
    ).fetchall()
    found: dict[str, dict[str, list[str]]] = {}
    for msg_id, group, codes in rows:
        found.setdefault(msg_id, {})[group] = sorted(code for code in codes.split(",") if code)
    return found


def wanted_codes(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """The result of `codes_of` that follows from an export. Samples of version 1 do not show whether every broker
    answered."""
    return {
        msg_id: {
            "": sorted([*row["send"], *row["message"], "INCOMPLETE"]),
            **{group: sorted(codes) for group, codes in row["groups"].items()},
        }
        for msg_id, row in rows.items()
    }


def steps(path: Path) -> list[str]:
    return list(migrate(path))


@pytest.mark.slow
def test_kept_lake(old: Path) -> None:
    """A migrated lake has the previous verdicts for the same instant; nothing of silver is lost."""
    rows = exported(old)
    [as_of_ms] = {row["as_of"] for row in rows.values()}
    lines = steps(old)
    assert lines[-1].endswith("the next cycle judges every message again")
    assert codes_of(old, as_of_ms) == wanted_codes(rows)
    assert not (old / "_migration").exists()
    assert steps(old) == [f"{old} has schema version 2: nothing to do"]


def test_samples_continue(old: Path) -> None:
    """The sampler continues from the last sample with a keyframe and the first appearance of each group."""
    steps(old)
    lake = Lake.open(old)
    [(cluster, keyframe_ms)] = keyframes_at(lake, 1 << 60).items()
    changes = Changes.load(lake, cluster, 90 * 86_400_000)
    assert changes.sampled_ms == keyframe_ms
    assert changes.groups == ["stock"]


def test_refused_before(old: Path) -> None:
    """A lake of version 1 is refused by readers and writers, with the command that migrates it, also if half
    migrated."""
    with pytest.raises(SchemaVersionError, match=r"schema version 1, expected 2.*mqtrail pipeline migrate --lake DIR"):
        Lake.open(old)
    for line in migrate(old):
        if "replaced" in line:
            break
    with pytest.raises(SchemaVersionError, match="mqtrail pipeline migrate"):
        Lake.create(old)


class Dead(BaseException):
    """The process ends here."""


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a lake, by table."""
    duck = connect(threads=1)
    lake = Lake.open(path)
    return {one.table.name: duck.execute(f"FROM ({relation_of(one)}) ORDER BY ALL").fetchall() for one in lake}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of a lake that was migrated without a crash."""
    folder = tmp_path_factory.mktemp("whole")
    with tarfile.open(KEPT) as tar:
        tar.extractall(folder, filter="data")
    steps(folder / "lake")
    return contents(folder / "lake")


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(15, marks=pytest.mark.slow),
        *(pytest.param(at, marks=pytest.mark.cycles) for at in (1, 2, 5, 18, 19, 30, 42)),
    ],
)
def test_crashes(old: Path, whole: dict[str, list[tuple[Any, ...]]], at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash at any change of the folder, the repeated command gives the same lake."""
    calls = 0

    def counted(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise Dead
            return real(*args, **options)

        return call

    with monkeypatch.context() as patched:
        for module, name in ((os, "rename"), (shutil, "rmtree"), (migration, "create_table"), (migration, "copy")):
            patched.setattr(module, name, counted(getattr(module, name)))
        with pytest.raises(Dead):
            steps(old)
    steps(old)
    assert contents(old) == whole


def test_other_lakes(tmp_path: Path, old: Path) -> None:
    """A path without a lake, a lake in use, and a newer lake are left unchanged."""
    with pytest.raises(LakeMissing, match="expected the folder of a lake"):
        steps(tmp_path / "nothing")
    with WriteLock(old).held(), pytest.raises(LakeBusy, match="writing to this lake"):
        steps(old)
    steps(old)
    Lake.open(old)["trace_events"].note("mqtrail.schema", "3")
    with pytest.raises(SchemaVersionError, match="found schema version 3, expected 1 or 2"):
        steps(old)


def without_indexes(path: Path) -> None:
    """Turn a lake of this version into one without indexes and without the tables that start empty."""
    for relation in (*trail.INDEXES, trail.UNREAD_RANGES, trail.PROBLEMS, trail.BROKER_EVENTS):
        shutil.rmtree(path / relation.name)
        (path / "_marks" / f"{relation.name}.json").unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["writer", "command"])
def test_indexes_are_added(old: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers refuse a lake without indexes; its writer or the command adds them, also after a crash."""
    steps(old)
    wanted = contents(old)
    assert wanted["queue_spans"]
    without_indexes(old)
    with pytest.raises(
        SchemaVersionError,
        match=r"without table '(client_records|clock_bounds|unread_ranges|problems|broker_events)'.*migrate --lake",
    ):
        Lake.open(old)

    def add() -> None:
        if by == "writer":
            Lake.create(old)
        else:
            made = "client_records and queue_spans and clock_bounds and unread_ranges and problems and broker_events"
            assert steps(old)[0] == f"made {made}"

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", die)
        with pytest.raises(Dead):
            add()
    add()
    assert contents(old) == wanted
    assert not (old / "_indexes").exists()
    assert (old / "_marks" / "queue_spans.json").exists()


def die(*_: object) -> None:
    raise Dead


def as_migrated(rows: Evidence) -> Evidence:
    """Evidence whose samples are full copies, with the migrated form of them."""
    duck = connect(threads=1)
    sampled = [relation for relation in trail.EVIDENCE if relation.name in trail.SAMPLED]
    for relation in sampled:
        duck.register(f"old_{relation.name}", arrow_rows(relation, rows.get(relation.name, ())))
    migration.define_changes(duck)
    return {**rows, **{one.name: duck.sql(f"FROM {one.name}").to_arrow_table().to_pylist() for one in sampled}}


def has_ended_subscription(history: History) -> bool:
    """Whether a later sample lacks a subscription. Version 1 did not record samples, so this is unknown."""
    times: dict[str, int] = {}
    for row in history.rows.get(trail.SUBSCRIPTIONS.name, ()):
        times[row["expression"]] = max(times.get(row["expression"], 0), row["sampled_ms"])
    sampled = [row["sampled_ms"] for one in trail.SAMPLED for row in history.rows.get(one, ())]
    return any(last_ms < max(sampled) for last_ms in times.values())


@pytest.mark.cycles
@pytest.mark.parametrize("seed", [0, None, 1, 2])
def test_same_verdicts(seed: int | None) -> None:
    """Full copies turned into changes give the same verdicts, with the same sample times in their reasons."""
    if seed is None:
        chosen = tuple(one for one in HISTORIES if not has_ended_subscription(one))
        assert len(chosen) > 0.9 * len(HISTORIES)
        rows, as_of_ms, settings = evidence(chosen), AS_OF_MS, Settings()
    else:
        rows, _, as_of_ms, settings = story(seed)
    rows = {name: some for name, some in rows.items() if name != trail.SAMPLES.name}  # version 1 had none
    clients = trail.CLIENTS.name
    rows[clients] = [row | {"ordered": ""} for row in rows.get(clients, ())]  # version 1 did not ask
    before, after = judge_rows(rows, as_of_ms, settings), judge_rows(as_migrated(rows), as_of_ms, settings)
    for relation in (trail.VERDICTS, trail.TRAJECTORIES):
        query = f"SELECT {', '.join(relation.names)} FROM {relation.name} ORDER BY ALL"
        assert after.execute(query).fetchall() == before.execute(query).fetchall()


def attempts_of(path: Path) -> list[tuple[Any, ...]]:
    rows = relation_of(Lake.open(path)[trail.ATTEMPTS.name])
    merged = trail.with_requests_sql(f"({trail.merge_sql(f'({rows})')}) AS merged")
    return connect(threads=1).execute(f"FROM ({merged}) ORDER BY ALL").fetchall()


@pytest.mark.cycles
@pytest.mark.parametrize("is_expired", [False, True])
def test_rebuild(old: Path, is_expired: bool) -> None:
    """Silver rebuilt from bronze has the same attempts, also a second time, and every message is judged again."""
    steps(old)
    before = attempts_of(old)
    lake = Lake.open(old)
    for name in (trail.TRACE_EVENTS.name, trail.MESSAGE_META.name) if not is_expired else ():
        lake[name].note("mqtrail.expired_before_ms", "0")
    attempts = lake[trail.ATTEMPTS.name]
    attempts.swap([], attempts.files())
    for number in (1, 2):
        assert list(rebuild(old))[-1].endswith("the next cycle judges every message again")
        assert attempts_of(old) == before
        files = [file.path for file in Lake.open(old)[trail.ATTEMPTS.name].files()]
        assert any(path.startswith(f"batch=rebuild-{number}/") for path in files)
        # what retention may have thinned out is completed, everything else is replaced
        assert any(path.startswith("batch=rebuild-1/") for path in files) == (number == 1 or is_expired)
    rows = exported(old)
    assert codes_of(old, next(iter(rows.values()))["as_of"]) == wanted_codes(rows)


@pytest.mark.slow
@pytest.mark.parametrize("table", ["attempts", "trace_events"])
def test_rebuild_of_a_damaged_lake(old: Path, table: str) -> None:
    """A missing file of silver is skipped, also where silver is only completed; a missing file of bronze is an
    error."""
    steps(old)
    before = attempts_of(old)
    lake = Lake.open(old)
    Path(lake[table].paths()[0]).unlink()
    if table == "trace_events":
        with pytest.raises(LakeDamaged, match="found no such file"):
            list(rebuild(old))
        return
    list(rebuild(old))
    Lake.open(old).check()
    assert attempts_of(old) == before
