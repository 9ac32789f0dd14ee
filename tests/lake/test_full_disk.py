"""A disk that is full at any write of a commit or a compaction causes an error text; no row is lost or duplicated."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from mqtrail.lake import Change, Lake, LakeUnreadable, compact, copy
from mqtrail.lake.marks import CommitMark
from tests.lake.test_batches import changes, counts
from tests.lake.test_maintenance import NOW_MS, attempt, rows
from tests.lake.test_tables import write

NO_ROOM = "No space left on device"
WRITES: tuple[tuple[Any, str, Exception], ...] = (
    (pq, "write_table", OSError(errno.ENOSPC, NO_ROOM)),
    (DeltaTable, "create_write_transaction", DeltaError(f"Generic LocalFileSystem error: {NO_ROOM} (os error 28)")),
    (CommitMark, "write", OSError(errno.ENOSPC, NO_ROOM)),
)
CALLS_MAX = 40


class FullDisk:
    """Fails one of the writes of a lake."""

    def __init__(self, patch: pytest.MonkeyPatch, fails_at: int) -> None:
        self.left = fails_at
        for place, name, error in WRITES:
            patch.setattr(place, name, self._failing(getattr(place, name), error))
        patch.setattr(
            "mqtrail.lake.maintenance.copy",
            self._failing(copy, duckdb.IOException(f"IO Error: Could not write file: {NO_ROOM}")),
        )

    def _failing(self, plain: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise error
            return plain(*arguments, **named)

        return call


@contextmanager
def no_room_in_words() -> Iterator[None]:
    """The block succeeds, or fails with an error that reports a full disk."""
    message = ""
    try:
        yield
    except LakeUnreadable as error:
        message = str(error)
    assert not message or "found no space left, expected room" in message


@pytest.mark.slow
@pytest.mark.parametrize("same_process", [True, False])
def test_in_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_process: bool) -> None:
    """The disk is full at each write of a batch of three tables in turn: the batch is in all of them once, or in
    none."""
    outcomes = set()
    for fails_at in range(1, CALLS_MAX):
        lake = Lake.create(tmp_path / f"lake {fails_at}")
        assert lake.batches.commit("app", 1, changes(lake, 1), {"read": 1})
        made = changes(lake, 2)
        with monkeypatch.context() as patch:
            disk = FullDisk(patch, fails_at)
            with no_room_in_words(), lake.writing():
                lake.batches.commit("app", 2, made, {"read": 2})
        if disk.left > 0:
            break
        if not same_process:
            lake = Lake.create(lake.path)
        with lake.writing():
            lake.batches.recover()
        last = lake.batches.last("app")
        assert last is not None
        assert counts(lake) == {last.number}
        outcomes.add(last.number)
        again = {name: Change(one.added) for name, one in made.items()}
        assert lake.batches.commit("app", 2, again, {"read": 2}) is (last.number == 1)
        assert counts(lake) == {2}
    else:
        pytest.fail("no commit got through")
    assert outcomes == {1, 2}


@pytest.mark.slow
def test_in_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at each write in turn: the rows are unchanged, and the next compaction succeeds."""
    for fails_at in range(1, CALLS_MAX):
        lake = Lake.create(tmp_path / f"lake {fails_at}")
        table = lake["attempts"]
        for number in range(3):
            table.commit([write(table, f"f{number}", [attempt(f"m{number}", start_ms=number)])], app="a", batch=number)
        before = sorted(rows(lake, "attempts"))
        with monkeypatch.context() as patch:
            disk = FullDisk(patch, fails_at)
            with no_room_in_words():
                compact(lake, 6, now_ms=NOW_MS)
        if disk.left > 0:
            break
        for opened in (lake, Lake.create(lake.path)):
            opened.refresh()
            opened.probe()
            assert sorted(rows(opened, "attempts")) == before
        compact(lake, 6, now_ms=NOW_MS)
        assert sorted(rows(lake, "attempts")) == before
        assert len(lake["attempts"].files()) == 1
    else:
        pytest.fail("no compaction got through")
    assert fails_at > 3
