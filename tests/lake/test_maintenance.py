"""Compaction changes files, not rows; retention removes old rows; a sweep deletes files that the log does not name."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from mqtrail.lake import (
    Lake,
    LakeUnreadable,
    LookUp,
    compact,
    expire,
    keyframes_at,
    lake_errors,
    relation_of,
    sample_files,
    sweep,
)
from tests.lake.test_tables import verdict, write

HOUR_MS = 3_600_000
NOW_MS = 1000 * HOUR_MS


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake."""
    return Lake.create(tmp_path / "lake")


def attempt(msg_id: str, **values: Any) -> dict[str, Any]:
    return {"cluster": "c", "publish_hour": 5, "msg_id": msg_id, "kind": "HANDLED", "attempt_key": "R", **values}


def rows(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    """Return all rows, in stored order."""
    return LookUp(lake).connection.sql(relation_of(lake[name])).fetchall()


def test_partial_attempts_become_one(lake: Lake) -> None:
    """Compaction merges rows of one key by their folds, sorts by id, and writes bloom filters."""
    table = lake["attempts"]
    parts = [
        write(table, "a", [attempt("m2", start_ms=10), attempt("m1", start_ms=3)]),
        write(table, "b", [attempt("m2", end_ms=20, start_ms=11), attempt("m2", end_ms=20)]),
    ]
    table.commit(parts, app="app", batch=0)
    assert compact(lake, 6, now_ms=NOW_MS) == 1
    (file,) = table.files()
    names = table.table.relation.names
    found = [dict(zip(names, row, strict=True)) for row in rows(lake, "attempts")]
    assert [(r["msg_id"], r["start_ms"], r["end_ms"]) for r in found] == [("m1", 3, None), ("m2", 10, 20)]
    filters = LookUp(lake).connection.sql(
        f"SELECT bloom_filter_offset FROM parquet_metadata('{table.paths([file])[0]}') WHERE path_in_schema = 'msg_id'"
    )
    assert all(offset is not None for (offset,) in filters.fetchall())
    assert compact(lake, 6, now_ms=NOW_MS) == 0, "nothing is due twice"


def test_open_hours_stay_as_they_are(lake: Lake) -> None:
    """Only hours before the given one are rewritten."""
    table = lake["verdicts"]
    table.commit([write(table, f"h{h}", [verdict("m", h)]) for h in (5, 6)], app="app", batch=0)
    assert compact(lake, 6, now_ms=NOW_MS) == 1
    assert {f.hour: f.path.startswith("compact-") for f in table.files()} == {5: True, 6: False}


def test_small_bronze_files_are_joined(lake: Lake) -> None:
    """Many small files of a table without partitions become one with the same rows."""
    table = lake["gaps"]
    files = [write(table, f"b{i}", [{"cluster": "c", "first_offset": i, "detected_ms": i}]) for i in range(9)]
    table.commit(files, app="app", batch=0)
    before = sorted(rows(lake, "gaps"))
    assert compact(lake, 0, now_ms=NOW_MS) == 1
    assert len(table.files()) == 1
    assert sorted(rows(lake, "gaps")) == before


def test_a_compacted_table_still_knows_its_batches(lake: Lake) -> None:
    """Rewriting files keeps the committed batches."""
    table = lake["verdicts"]
    table.commit([write(table, "a", [verdict("m", 5)])], app="app", batch=3)
    compact(lake, 6, now_ms=NOW_MS)
    assert Lake.open(lake.path)["verdicts"].is_committed("app", 3)


def test_retention_and_sweep(lake: Lake) -> None:
    """Expired files leave the table at once and the disk after the grace period; a reader's snapshot stays readable
    until then."""
    verdicts, gaps = lake["verdicts"], lake["gaps"]
    verdicts.commit([write(verdicts, f"h{h}", [verdict("m", h)]) for h in (5, 900)], app="app", batch=0)
    gaps.commit([write(gaps, "g", [{"cluster": "c", "detected_ms": 5 * HOUR_MS}])], app="app", batch=0)
    write(gaps, "crashed", [{"cluster": "c"}])
    reader = Lake.open(lake.path)
    assert expire(lake, 800 * HOUR_MS, now_ms=NOW_MS) == 2
    assert [f.hour for f in verdicts.files()] == [900]
    assert gaps.files() == []
    assert len(rows(reader, "verdicts")) == 2
    later_ms = int(Path(verdicts.paths()[0]).stat().st_mtime * 1000) + 2 * HOUR_MS
    assert sweep(lake, now_ms=later_ms - 2 * HOUR_MS) == 0, "within the grace"
    assert sweep(lake, now_ms=later_ms) == 3
    assert len(rows(lake, "verdicts")) == 1
    assert not list(gaps.path.glob("crashed/*"))


def test_a_joined_file_keeps_types(lake: Lake) -> None:
    """Arrow reads the columns that DuckDB writes with the table's own types."""
    table = lake["trajectories"]
    row = {
        "cluster": "c",
        "publish_hour": 5,
        "msg_id": "m",
        "as_of_ms": 1,
        "knowledge": "COMPLETE",
        "events": [{"at_ms": 1, "kind": "SEND", "retry_times": None}],
    }
    table.commit([write(table, "a", [row])], app="app", batch=0)
    compact(lake, 6, now_ms=NOW_MS)
    (path,) = table.paths()
    (read,) = pq.read_table(path).to_pylist()
    assert read["events"][0]["kind"] == "SEND"
    assert read["publish_hour"] == 5


def test_samples_are_read_and_kept_from_a_keyframe_on(lake: Lake) -> None:
    """Each cluster's files from its keyframe on are read, are joined with files of the same cluster only, and do not
    expire before the instant that reads them."""
    table = lake["samples"]
    for number, (cluster, sampled_ms, keyframe_ms) in enumerate(
        [("a", 10, 10), ("a", 20, 10), ("a", 30, 30), ("a", 40, 30), ("b", 5, 5), ("b", 15, 5)]
    ):
        row = {"cluster": cluster, "sampled_ms": sampled_ms, "keyframe_ms": keyframe_ms, "what": "SAMPLE"}
        table.commit([write(table, f"s{number}", [row])], app="samples", batch=number)
    assert keyframes_at(lake, 35) == {"a": 30, "b": 5}
    assert keyframes_at(lake, 25) == {"a": 10, "b": 5}
    assert keyframes_at(lake, 7) == {"b": 5}
    assert sorted(file.path[:2] for file in sample_files(lake, 35)["samples"]) == ["s2", "s3", "s4", "s5"]
    assert expire(lake, 35, now_ms=NOW_MS) == 2
    assert sorted(row[1] for row in rows(lake, "samples")) == [5, 15, 30, 40]
    for number in range(6, 14):
        row = {"cluster": "a", "sampled_ms": 10 * number, "keyframe_ms": 30, "what": "SAMPLE"}
        table.commit([write(table, f"s{number}", [row])], app="samples", batch=number)
    assert compact(lake, 0, now_ms=NOW_MS) == 1
    assert sorted((file.minimum["cluster"], file.maximum["cluster"], file.row_count) for file in table.files()) == [
        ("a", "a", 10),
        ("b", "b", 1),
        ("b", "b", 1),
    ]


def test_a_full_disk_is_no_file_system_without_locks(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock holds without its holder's name; the next write reports the disk, also without an errno."""

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mqtrail.lake.lock.os.pwrite", full)
    of_delta = OSError("Generic LocalFileSystem error\n↳ Unable to write\n↳ No space left on device (os error 28)")
    with pytest.raises(LakeUnreadable, match="found no space left, expected room"), lake.writing():
        raise of_delta


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        duckdb.IOException('IO Error: Could not write file "a.parquet": No space left on device'),
        DeltaError("Generic LocalFileSystem error: Unable to copy data to file: No space left on device (os error 28)"),
        CommitFailedError("Generic LocalFileSystem error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_no_damage(tmp_path: Path, error: Exception) -> None:
    """In every library the remedy is to make room, not to use another lake."""
    remedy = r"no space left.*free space.*what was committed is kept"
    with pytest.raises(LakeUnreadable, match=remedy), lake_errors(tmp_path):
        raise error


def test_too_little_memory_is_no_damage(tmp_path: Path) -> None:
    """The remedy is more memory, not another lake."""
    duck = duckdb.connect(config={"memory_limit": "20MB", "temp_directory": ""})
    with pytest.raises(LakeUnreadable, match=r"too little memory .*: raise task_memory"), lake_errors(tmp_path):
        duck.execute("CREATE TABLE t AS SELECT range AS n, hash(range) AS h FROM range(10_000_000) ORDER BY h")
