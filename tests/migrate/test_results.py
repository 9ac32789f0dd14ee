"""Results of handlers: what differs is found as what it is, and nothing else; files that end anywhere are read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mqtrail.clock import now_ms
from mqtrail.migrate import Comparison, MigrateError, ResultLog, ResultRange, TeeSide, compare_results
from mqtrail.trail import ProofResult


def found(folder: Path, since_ms: int | None = None, until_ms: int | None = None) -> Comparison:
    """Compare."""
    return compare_results(ResultRange(folder=folder, since_ms=since_ms, until_ms=until_ms))


def counts(of: Comparison) -> dict[str, int]:
    """Those that are not 0."""
    return {kind: count for kind, count in of.counts.items() if count}


def test_each_difference(tmp_path: Path) -> None:
    """Of several processes, in any order: missing, extra, different, and double on either side."""
    keys = [f"event-{number}" for number in range(500)]
    for side in TeeSide:
        logs = [ResultLog(tmp_path, side) for _ in range(3)]
        chance = random.Random(str(side))
        chance.shuffle(keys)
        for key in keys:
            chance.choice(logs).add(key, {"key": key, "n": 1}, time_ms=1_000)
        for log in logs:
            log.close()
    same = found(tmp_path)
    assert (same.outcome, same.matched, same.keys, counts(same)) == (ProofResult.NONE, 500, 500, {})
    with ResultLog(tmp_path, TeeSide.KAFKA) as old, ResultLog(tmp_path, TeeSide.ROCKETMQ) as new:
        old.add("missing", 1, time_ms=1_000)
        new.add("extra", 1, time_ms=1_000)
        old.add("different", "a", time_ms=1_000)
        new.add("different", "b", time_ms=1_000)
        old.add("event-1", {"n": 1, "key": "event-1"}, time_ms=1_000)
        new.add("event-2", {"key": "event-2", "n": 1}, time_ms=1_000)
    differs = found(tmp_path)
    assert counts(differs) == {"missing": 1, "extra": 1, "different": 1, "double": 2}
    assert differs.examples["different"] == [
        f'different: {old.path.name}:2 "a" and {new.path.name}:2 "b"',
    ]
    accepted = compare_results(ResultRange(folder=tmp_path, accepted=frozenset(counts(differs))))
    assert accepted.outcome is ProofResult.NONE


def test_times(tmp_path: Path) -> None:
    """A result that is young, or near to an end of the range, may get its other side; one outside is left out."""
    with ResultLog(tmp_path, TeeSide.KAFKA) as old, ResultLog(tmp_path, TeeSide.ROCKETMQ) as new:
        for log in (old, new):
            log.add("both", 1, time_ms=500_000)
        old.add("young", 1)
        old.add("old", 1, time_ms=600_000)
    assert (counts(found(tmp_path)), found(tmp_path).pending) == ({"missing": 1}, 1)
    inside = found(tmp_path, since_ms=460_000, until_ms=700_000)
    assert (counts(inside), inside.pending, inside.matched) == ({"missing": 1}, 0, 1)
    near = found(tmp_path, since_ms=480_000, until_ms=610_000)
    assert (counts(near), near.pending, near.outcome) == ({}, 1, ProofResult.NONE)
    assert found(tmp_path, since_ms=now_ms() + 60_000).outcome is ProofResult.CANNOT_TELL


def test_files_that_end_anywhere(tmp_path: Path) -> None:
    """A cut line at the end is left out; a damaged one is a gap, as is a file that was full."""
    with pytest.raises(MigrateError, match="found no results of kafka"):
        found(tmp_path)
    with ResultLog(tmp_path, TeeSide.KAFKA) as old, ResultLog(tmp_path, TeeSide.ROCKETMQ) as new:
        for log in (old, new):
            assert log.add("a", b"\xff", time_ms=1_000)
    with new.path.open("ab") as file:
        file.write(json.dumps({"k": "b"}).encode()[:-2])
    assert found(tmp_path).outcome is ProofResult.NONE
    with new.path.open("ab") as file:
        file.write(b"\n")
    damaged = found(tmp_path)
    assert (damaged.outcome, damaged.gaps) == (
        ProofResult.CANNOT_TELL,
        {f"{new.path.name}: lines that cannot be read": 1},
    )


def test_a_full_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are not kept are counted, and the comparison knows of them. So is one after the close."""
    monkeypatch.setattr("mqtrail.migrate.results.FILE_SIZE_MAX", 200)
    with ResultLog(tmp_path, TeeSide.KAFKA) as old, ResultLog(tmp_path, TeeSide.ROCKETMQ, text_length=0) as new:
        assert [old.add("a", "x" * 50, time_ms=1_000) for _ in range(3)] == [True, False, False]
        assert new.add("a", "x" * 50, time_ms=1_000)
    assert (old.lost_count, new.lost_count) == (2, 0)
    full = found(tmp_path)
    assert (full.outcome, full.matched) == (ProofResult.CANNOT_TELL, 1)
    assert full.gaps == {f"{old.path.name}: full, later results are lost": 1}
    assert not old.add("b", 1)
    assert "x" not in new.path.read_text()
