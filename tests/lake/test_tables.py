"""Commits: exactly once, whole partitions replaced atomically, no data of another version or schema."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mqtrail.lake import (
    SCHEMA_VERSION,
    TABLES,
    FileRefused,
    Lake,
    LakeKnown,
    LakeMissing,
    LakePath,
    LakeTable,
    LakeUnsupported,
    LookUp,
    SchemaVersionError,
    WriteLock,
    arrow_rows,
    connect,
    relation_of,
    write_parquet,
)
from mqtrail.lake.maintenance import rewrite
from mqtrail.lake.tables import create_table


def write(table: LakeTable, name: str, rows: Sequence[dict[str, Any]]) -> LakePath:
    """Write rows as one Parquet file below a table's folder, not committed."""
    path = table.path / name / "part-0.parquet"
    path.parent.mkdir(exist_ok=True)
    write_parquet(arrow_rows(table.table.relation, rows), path)
    return path


def read(lake: Lake, name: str) -> list[tuple[Any, ...]]:
    """All committed rows of a table."""
    return LookUp(lake).connection.sql(relation_of(lake[name])).fetchall()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake, in a path with a blank."""
    return Lake.create(tmp_path / "a lake")


def verdict(msg_id: str, hour: int, state: str = "WAITING") -> dict[str, Any]:
    return {"cluster": "c", "publish_hour": hour, "msg_id": msg_id, "group_name": "g", "as_of_ms": 1, "state": state}


def test_an_empty_lake_reads_as_empty_tables(lake: Lake) -> None:
    """Every table exists with its columns before the first row."""
    for table in TABLES.values():
        assert read(lake, table.name) == []
        assert lake[table.name].files() == []


def test_a_batch_is_committed_once(lake: Lake) -> None:
    """A replay of a committed batch, or of an earlier one, is skipped and reported."""
    table = lake["gaps"]
    assert not table.is_committed("app", 0)
    assert table.commit([write(table, "a", [{"cluster": "c"}])], app="app", batch=0)
    assert table.commit([], app="app", batch=1)
    for batch in (0, 1):
        assert table.is_committed("app", batch)
        assert not table.commit([write(table, f"again-{batch}", [{"cluster": "c"}])], app="app", batch=batch)
    assert len(read(lake, "gaps")) == 1


def test_another_checkpoint_counts_anew(lake: Lake) -> None:
    """Batch 0 of a second app is no replay of the first app's batch 0."""
    table = lake["gaps"]
    for app in ("first", "second"):
        assert table.commit([write(table, app, [{"cluster": app}])], app=app, batch=0)
    assert {row[0] for row in read(lake, "gaps")} == {"first", "second"}


def test_files_that_were_never_committed_are_not_read(lake: Lake) -> None:
    """A crash between write and commit leaves unused files; the replay commits its own."""
    table = lake["gaps"]
    write(table, "crashed", [{"cluster": "lost"}])
    assert read(lake, "gaps") == []
    assert table.commit([write(table, "replayed", [{"cluster": "kept"}])], app="app", batch=0)
    assert [row[0] for row in read(lake, "gaps")] == ["kept"]


def test_a_commit_in_the_same_moment_as_a_reading_is_seen(lake: Lake) -> None:
    """File systems keep times in steps, so the folder of the log looks unchanged. Without a commit nothing is read."""
    writer = lake["gaps"]
    reader = Lake.open(lake.path)["gaps"]
    log = Path(str(reader.path)) / "_delta_log"
    reader.refresh()
    before = log.stat()
    assert writer.commit([write(writer, "a", [{"cluster": "c"}])], app="app", batch=0)
    os.utime(log, ns=(before.st_atime_ns, before.st_mtime_ns))
    reader.refresh()
    assert len(reader.files()) == 1
    reader.refresh()  # the time of the log is that of the first reading
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DeltaTable, "update_incremental", lambda _: pytest.fail("read a log that has not changed"))
        reader.refresh()


def test_a_crash_after_the_commit_skips_the_replay_in_a_new_process(lake: Lake) -> None:
    """The next process that opens the lake sees the commits."""
    table = lake["gaps"]
    table.commit([write(table, "a", [{"cluster": "c"}])], app="app", batch=7)
    reopened = Lake.open(lake.path)["gaps"]
    assert reopened.last_batch("app") == 7
    assert not reopened.commit([], app="app", batch=7)


def test_two_writers_of_one_batch(lake: Lake) -> None:
    """A commit reads the log first: an object with an old snapshot does not commit the batch again."""
    other = Lake.open(lake.path)["gaps"]
    assert lake["gaps"].commit([write(other, "a", [{"cluster": "c"}])], app="app", batch=0)
    assert not other.commit([write(other, "b", [{"cluster": "c"}])], app="app", batch=0)


def test_statistics_tell_what_a_file_may_hold(lake: Lake) -> None:
    """The log has the ranges of ids and times of each file, so look-ups and retention open no other files."""
    table = lake["verdicts"]
    table.commit([write(table, "a", [verdict("m2", 5), verdict("m7", 5)])], app="app", batch=0)
    (file,) = Lake.open(lake.path)["verdicts"].files([5])
    assert (file.hour, file.minimum["msg_id"], file.maximum["msg_id"]) == (5, "m2", "m7")
    assert file.may_hold("msg_id", "m5")
    assert not file.may_hold("msg_id", "m8")
    assert file.may_hold("state", "whatever"), "no statistics, no exclusion"


def test_foreign_files_are_refused(lake: Lake) -> None:
    """A file without a column, or with rows of two hours, never becomes part of a table."""
    gaps, verdicts = lake["gaps"], lake["verdicts"]
    short = gaps.path / "short.parquet"
    write_parquet(arrow_rows(gaps.table.relation, [{}]).select(["cluster"]), short)
    with pytest.raises(FileRefused, match="column 'broker_name' is missing"):
        gaps.commit([short], app="app", batch=0)
    mixed = write(verdicts, "a", [verdict("m", 5), verdict("m", 6)])
    with pytest.raises(FileRefused, match="several publish_hour"):
        verdicts.commit([mixed], app="app", batch=0)
    assert gaps.version == verdicts.version == 0


def test_other_schema_versions_are_refused(lake: Lake) -> None:
    """For older and newer tables the error has found, expected and remedy."""
    for found, remedy in (
        (SCHEMA_VERSION + 1, "Upgrade mqtrail"),
        (SCHEMA_VERSION - 1, "Stop the pipeline"),
        (0, "Use the mqtrail that wrote it"),
    ):
        folder = lake.path / "lag"
        shutil.rmtree(str(folder))
        folder.mkdir()
        DeltaTable.create(
            str(folder),
            arrow_rows(TABLES["lag"].relation, []).schema,
            configuration={"mqtrail.schema": str(found)},
            raise_if_key_not_exists=False,
        )
        for attempt in (Lake.open, Lake.create):
            with pytest.raises(SchemaVersionError, match=f"version {found}, expected {SCHEMA_VERSION}. {remedy}"):
                attempt(lake.path)


def test_no_lake_and_no_object_store(tmp_path: Path) -> None:
    """The error for a missing lake names the command that creates one; a URL is refused with the reason."""
    with pytest.raises(LakeMissing, match="pipeline once"):
        Lake.open(tmp_path)
    for url in ("gs://bucket/lake", Path("s3://bucket/lake")):  # as a Path, it would name a folder `s3:`
        with pytest.raises(LakeUnsupported, match=r"expected a local or mounted folder, or s3://bucket/prefix"):
            Lake.create(url)


LATER = ("trace_on", "body_crc")  # a text and a number


def before_columns(lake: Lake) -> Lake:
    """The lake as written by a version without the columns LATER of attempts, with one attempt "old"."""
    table = TABLES["attempts"]
    columns = tuple(column for column in table.relation if column.name not in LATER)
    older = replace(table, relation=replace(table.relation, columns=columns))
    place = Path(str(lake["attempts"].path))
    shutil.rmtree(place)
    create_table(older, place)
    made = LakeTable(older, place, WriteLock(lake.path))
    made.commit([write(made, "batch=trace-1", [attempt("old")])], app="trace", batch=1)
    return Lake.open(lake.path)


def attempt(msg_id: str, **values: Any) -> dict[str, Any]:
    return {"cluster": "c", "publish_hour": -1, "msg_id": msg_id, "kind": "STORED", "attempt_key": "a", **values}


def test_a_lake_from_before_a_column_is_read_and_written(lake: Lake) -> None:
    """Rows of old files have null in the column, new ones have values; compaction, look-up and a judgement read
    both."""
    lake = before_columns(lake)
    table = lake["attempts"]
    assert table.later_columns == tuple(name for name in table.table.relation.names if name in LATER)
    new = attempt("new", trace_on="true", body_crc=7)
    table.commit([write(table, "batch=trace-2", [new])], app="trace", batch=2)
    expected = [("new", "true", 7), ("old", "", None)]

    def kept() -> list[tuple[Any, ...]]:
        rows = relation_of(lake["attempts"])
        return connect().sql(f"SELECT msg_id, trace_on, body_crc FROM ({rows}) ORDER BY msg_id").fetchall()

    assert expected == kept()
    known = LakeKnown(lake, "c")
    paths, rows = known.new_paths()
    assert (paths, len(connect().sql(rows).fetchall())) == ([], 2)
    rewrite(table, table.files(), connect(), now_ms=0)
    assert len(table.files()) == 1
    assert expected == kept()
    [row] = LookUp(lake).attempts("old").rows
    assert (row["trace_on"], row["body_crc"]) == ("", None)


def test_a_new_lake_lacks_no_column(lake: Lake) -> None:
    """Its files are read without looking for columns."""
    assert {table.later_columns for table in lake} == {()}
