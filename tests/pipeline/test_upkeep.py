"""Upkeep between cycles: slices give the result of `compact` and `sweep`, whatever is committed meanwhile."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.lake.test_maintenance import rows
from tests.lake.test_tables import verdict, write

from mqtrail.lake import Lake, LakeError, keep_incidents
from mqtrail.pipeline import upkeep
from mqtrail.pipeline.upkeep import COMPACT_INTERVAL_MS, TIDY_INTERVAL_MS, LakeUpkeep
from mqtrail.trail.incidents import INCIDENTS, Incident

HOUR_MS = 3_600_000
END_S = 60.0


class Turns:
    """Slices of upkeep, each at the time of the next look for work."""

    def __init__(self, lake: Lake) -> None:
        self.upkeep = LakeUpkeep(lake, 1_000_000 * HOUR_MS, "200MB")
        self.at_ms = time.time_ns() // 1_000_000
        self.done: dict[str, int] = {}

    def turn(self, step_ms: int = COMPACT_INTERVAL_MS) -> None:
        self.at_ms += step_ms
        for work, count in self.upkeep.slice(self.at_ms).items():
            self.done[work] = self.done.get(work, 0) + count

    def written(self) -> None:
        """Wait for the file that is being written, without its commit."""
        end = time.monotonic() + END_S
        while self.upkeep._writing is not None and self.upkeep._writing.is_alive:
            assert time.monotonic() < end
            time.sleep(0.01)

    def until(self, work: str, count: int) -> None:
        end = time.monotonic() + END_S
        while self.done.get(work, 0) < count:
            assert time.monotonic() < end
            self.turn()
            self.written()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(tmp_path / "lake")


def fill(lake: Lake, *hours: int) -> None:
    table = lake["verdicts"]
    for batch, hour in enumerate(hours):
        files = [write(table, f"h{hour}-{name}", [verdict(f"m{name}", hour)]) for name in "ab"]
        table.commit(files, app="app", batch=batch)


def test_closed_hours_are_compacted_one_after_the_other(lake: Lake) -> None:
    """Each hour has the same rows in one file, and is compacted once."""
    fill(lake, 5, 6, 7)
    before = sorted(rows(lake, "verdicts"))
    turns = Turns(lake)
    turns.until("compacted", 3)
    assert [file.hour for file in lake["verdicts"].files()] == [5, 6, 7] or len(lake["verdicts"].files()) == 3
    assert sorted(rows(lake, "verdicts")) == before
    turns.turn()
    turns.turn()
    assert turns.upkeep._writing is None


def test_a_file_whose_sources_are_gone_is_given_up(lake: Lake) -> None:
    """A commit of the pipeline during the write wins; the next look finds its files."""
    fill(lake, 5)
    turns = Turns(lake)
    turns.turn()
    turns.written()
    table = lake["verdicts"]
    table.swap([write(table, "new", [verdict("mc", 5)])], table.files())
    turns.turn(1)
    assert turns.done.get("compacted", 0) == 0
    assert len(rows(lake, "verdicts")) == 1
    turns.until("compacted", 1)
    assert len(rows(lake, "verdicts")) == 1


def test_a_file_that_cannot_be_compacted_is_reported_once(lake: Lake) -> None:
    """A damaged file is reported once and does not delay the others."""
    fill(lake, 5, 6)
    path = Path(lake["verdicts"].paths(lake["verdicts"].files([5]))[0])
    path.write_bytes(b"x" * path.stat().st_size)
    turns = Turns(lake)
    turns.turn()
    turns.written()
    with pytest.raises(LakeError):
        turns.turn(1)
    turns.until("compacted", 1)
    assert len(lake["verdicts"].files([6])) == 1
    turns.turn()
    assert turns.upkeep._writing is None


def test_a_sweep_in_slices(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice ends in time, commits between slices are kept, and all files that no commit names are deleted."""
    monkeypatch.setattr(upkeep, "SLICE_MS", 0)
    fill(lake, 5)
    table = lake["verdicts"]
    old = time.time() - 7_200
    for number in range(20):
        os.utime(str(write(table, f"crashed-{number:02}", [verdict("m", 5)])), (old, old))
    late = write(table, "zz-late", [verdict("mz", 5)])
    os.utime(str(late), (old, old))
    turns = Turns(lake)
    turns.turn()
    table.commit([late], app="app", batch=9)  # after the sweep has begun
    for _ in range(500):
        turns.turn(1)
        turns.written()
    assert turns.done["swept"] == 20
    assert late.exists() or turns.done["compacted"]
    assert len(rows(lake, "verdicts")) == 3
    assert TIDY_INTERVAL_MS > COMPACT_INTERVAL_MS


def test_the_end_gives_up_what_is_under_way(lake: Lake) -> None:
    """After the stop nothing is committed, and nothing is lost."""
    fill(lake, 5)
    turns = Turns(lake)
    turns.turn()
    turns.upkeep.end()
    assert turns.upkeep._writing is None
    assert len(rows(lake, "verdicts")) == 2


def test_incidents_that_wait(lake: Lake) -> None:
    """What a search found while the pipeline writes the lake is in its table after the next slice."""
    turns = Turns(lake)
    values: dict[str, Any] = {column.name: "" if column.type == "string" else 0 for column in INCIDENTS}
    with lake.writing():
        keep_incidents(Lake.open(lake.path), [Incident(**values)], [""], 0, 1, now_ms=1)
        assert lake[INCIDENTS.name].files() == []
        turns.turn()
        assert [file.row_count for file in lake[INCIDENTS.name].files()] == [1]
