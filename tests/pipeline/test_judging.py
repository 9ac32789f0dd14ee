"""After a crash between the commits of a judgement, the next process finishes it, and gold equals that without a
crash."""

import gc
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.pipeline.test_ingest import HOUR_0_MS, Reader, fill
from tests.pipeline.test_shares import TasksHere

from mqtrail import trail
from mqtrail.lake import Lake, LakeError, connect, parquet_of, settings_at
from mqtrail.pipeline import judging
from mqtrail.pipeline.files import Committer
from mqtrail.pipeline.judging import RESULTS, Judge

AS_OF_MS = HOUR_0_MS + 120_000


class Crash(Exception):
    """The process died here."""


class Gold:
    """The judging part of a job on a lake, in a process that may die."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.lake = Lake.create(folder)
        self.committer = Committer(self.lake)
        self.judge = Judge(TasksHere(scratch), self.lake, self.committer, trail.Settings())

    def die_before(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Die before a table's commit, or before the whole batch is recorded."""
        batches = self.lake.batches
        if name == "batch":
            monkeypatch.setattr(batches, "_write", _die)
            return
        monkeypatch.setattr(self.lake[name], "commit_actions", _die)

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        self.lake.refresh()
        return {
            relation.name: sorted(
                duckdb.execute(f"SELECT * FROM {parquet_of(paths)}").fetchall() if paths else [], key=repr
            )
            for relation in RESULTS
            for paths in [self.lake[relation.name].paths()]
        }


def _die(*_: Any) -> None:
    raise Crash


@pytest.mark.parametrize(
    "point", [pytest.param("verdicts", marks=pytest.mark.slow), pytest.param("batch", marks=pytest.mark.cycles)]
)
def test_a_crash_between_commits(tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """The crash is before the batch is recorded, and then between the commits of its tables."""
    reader = Reader(tmp_path, cluster)
    fill(cluster)
    reader.run()
    shutil.copytree(tmp_path / "lake", tmp_path / point)
    whole = Gold(tmp_path / "lake", tmp_path)
    assert whole.judge.run("c", AS_OF_MS) == 6
    wanted = whole.rows()
    last = whole.lake.batches.last("gold")
    assert last is not None
    assert list(last.notes["clusters"]["c"]["attempts"]) == ["ingest"]
    assert all(rows for name, rows in wanted.items() if name != trail.OPEN_IDS.name)
    assert settings_at(whole.lake, [("c", AS_OF_MS)]) == {("c", AS_OF_MS): trail.Settings().values()}
    crashing = Gold(tmp_path / point, tmp_path)
    crashing.die_before(point, monkeypatch)
    with pytest.raises(Crash):
        crashing.judge.run("c", AS_OF_MS)
    again = Gold(tmp_path / point, tmp_path)
    with again.lake.writing():
        assert again.judge.run("c", AS_OF_MS) == (6 if point == "batch" else 0)
    assert again.rows() == wanted


def test_a_judgement_after_a_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judgements share a DuckDB, unless one fails: an error may make it useless. Its folder ends with the judge."""
    gold = Gold(tmp_path / "lake", tmp_path)
    made: list[duckdb.DuckDBPyConnection] = []
    monkeypatch.setattr(judging, "connect", lambda **settings: made.append(connect(**settings)) or made[-1])
    gold.judge.run("c", AS_OF_MS)
    [(spill,)] = made[0].execute("SELECT current_setting('temp_directory')").fetchall()
    gold.judge.run("c", AS_OF_MS + 1)
    assert len(made) == 1
    made[0].close()  # as an error that invalidates it
    with pytest.raises(LakeError):
        gold.judge.run("c", AS_OF_MS + 2)
    gold.judge.run("c", AS_OF_MS + 3)
    assert len(made) == 2
    assert Path(spill).is_dir()
    del gold
    gc.collect()
    assert not Path(spill).exists()
