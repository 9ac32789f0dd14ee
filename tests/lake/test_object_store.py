"""A lake in an object store behaves like one in a folder, and errors of the store are reported as such."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from interop.objects import Door, Fault, Request

from interop import objects as doors
from mqtrail.answers import Answers, QueryError
from mqtrail.cli.app import run
from mqtrail.lake import (
    Change,
    Lake,
    LakeBusy,
    LakeDamaged,
    LakeLost,
    LakeMissing,
    LakeUnreadable,
    LakeUnsupported,
    LookUp,
    ObjectPath,
    ObjectStoreError,
    compact,
    connect,
    copy_hours,
    emptied,
    lake_errors,
    lease,
    migrate,
    objectfiles,
    objects,
    own_folder,
    place_of,
    relation_of,
    remove_tree,
    sweep,
)
from mqtrail.lake.schemas import TABLES
from mqtrail.lake.storeerrors import store_problem
from tests.lake.memorystore import BUCKET, MemoryStore
from tests.lake.test_tables import write
from tests.trail.histories import BASE_MS, unique_id

HOUR_OF_IDS = BASE_MS // 3_600_000


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def door(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """A door to the store of the environment, with few retries and short pauses."""
    monkeypatch.setattr(objects, "RETRIES_MAX", 2)
    monkeypatch.setattr(objects, "_BACKOFF_MS", (1, 5))
    with Door(store) as door:
        for name, value in doors.environment(door.port).items():
            monkeypatch.setenv(name, value)
        objects._store_of.cache_clear()
        yield door
        objects._store_of.cache_clear()


@pytest.fixture
def place(door: Door) -> ObjectPath:
    found = place_of(f"s3://{BUCKET}/prefix/lake")
    assert isinstance(found, ObjectPath)
    return found


_made: dict[str, tuple[bytes, datetime]] = {}  # the objects of a lake with one batch


@pytest.fixture
def lake(place: ObjectPath, store: MemoryStore) -> Lake:
    """A lake with one batch. It takes hundreds of requests, so it is created once."""
    if not _made:
        commit(Lake.create(place), 1)
        _made.update(store.objects)
    store.objects.update(_made)
    return Lake.open(place)


def once(fault: Fault, where: str, method: str = "PUT", times: int = 1) -> doors.Faults:
    """Return a fault for the first requests of a method whose path contains text."""
    left = [times]

    def choose(request: Request) -> Fault | None:
        if request.method == method and where in request.path and left[0]:
            left[0] -= 1
            return fault
        return None

    return choose


def always(fault: Fault) -> doors.Faults:
    return lambda request: fault


def gap(number: int) -> dict[str, object]:
    return {"cluster": "c", "first_offset": number, "detected_ms": number}


def commit(lake: Lake, number: int) -> bool:
    """Commit one row to each of two tables as a batch."""
    made = {
        "gaps": Change([write(lake["gaps"], f"batch=app-{number}", [gap(number)])]),
        "lag": Change([write(lake["lag"], f"batch=app-{number}", [{"cluster": "c", "sampled_ms": number}])]),
    }
    return lake.batches.commit("app", number, made, {"n": number})


def counts(lake: Lake) -> list[int]:
    lake.refresh()
    return [sum(file.row_count for file in lake[name].files()) for name in ("gaps", "lag")]


# -- paths and files ---------------------------------------------------------------------------------------------------


def test_places() -> None:
    """An S3 URL is an object path, another URL is refused, and everything else is a folder."""
    assert str(place_of("s3://bucket//a/b/")) == "s3://bucket/a/b"
    assert place_of("a folder") == Path("a folder").absolute()
    for wrong in ("gs://bucket/lake", "s3://", "s3://a b/lake", "s3:/bucket/lake"):
        with pytest.raises(LakeUnsupported, match=r"expected .*s3://bucket/prefix"):
            place_of(wrong)


@pytest.mark.parametrize("package", ["obstore", "fsspec"])
def test_the_missing_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LakeUnsupported, match=rf"found no '{package}'.*pip install 'mqtrail\[s3\]'"):
        place_of("s3://bucket/lake")


def test_names_are_those_of_paths() -> None:
    """Joining, parents, suffixes and relative names work as in pathlib."""
    folder = ObjectPath.parse("s3://bucket/lake")
    file = folder / "table" / "part.parquet"
    assert (file.name, file.suffix, str(file.parent)) == ("part.parquet", ".parquet", "s3://bucket/lake/table")
    assert folder / str(file) == folder / file == file
    assert file.relative_to(folder).as_posix() == "table/part.parquet"
    with pytest.raises(ValueError):
        folder.relative_to(file)


def test_objects_are_files(place: ObjectPath, store: MemoryStore) -> None:
    """Objects are written, read back, listed, created once and deleted."""
    file = place / "t" / "a.json"
    assert not file.exists()
    assert not (place / "t").is_dir()
    with pytest.raises(FileNotFoundError):
        file.read_bytes()
    file.create(b"one")
    with pytest.raises(FileExistsError):
        file.create(b"two")
    assert file.read_bytes() == b"one"
    file.write_bytes(b"three")
    (place / "t" / "deep" / "b.parquet").write_bytes(b"4444")
    assert sorted(each.name for each in (place / "t").iterdir()) == ["a.json", "deep"]
    assert [(each.name, each.stat().st_size) for each in place.rglob("*.parquet")] == [("b.parquet", 4)]
    assert [each.name for each in (place / "t").glob("*")] == ["a.json"]
    file.unlink()
    file.unlink()
    assert not file.exists()
    remove_tree(place)
    assert not store.objects


def test_an_open_object_is_a_file(place: ObjectPath, door: Door) -> None:
    """A large object is written in parts and read in ranges; a small one is read with one request."""
    data = bytes(range(256)) * (objectfiles.PART_SIZE // 256 + 1000)
    with (place / "large").open("wb") as file:
        for first in range(0, len(data), 1_000_000):
            file.write(data[first : first + 1_000_000])
    with (place / "large").open("rb") as file:
        assert file.seek(-10, 2) == len(data) - 10
        assert file.read() == data[-10:]
        file.seek(1_000_001)
        assert file.read(5) == data[1_000_001:1_000_006]
    for size in (0, 10):
        (place / "small").write_bytes(data[:size])
        door.requests.clear()
        with (place / "small").open("rb") as file:
            assert file.read() == data[:size]
        assert len(door.requests) <= 2


def test_duckdb_reads_and_writes_objects(place: ObjectPath) -> None:
    """DuckDB reads and writes files, files by hour, and scans with two threads."""
    duck = connect(threads=2)
    rows = "SELECT i AS x, (i % 3)::bigint AS publish_hour FROM range(300000) t(i)"
    duck.execute(f"COPY ({rows}) TO '{place}/all.parquet' (FORMAT parquet, ROW_GROUP_SIZE 20000)")
    assert duck.execute(f"SELECT sum(x) FROM read_parquet(['{place}/all.parquet'])").fetchall() == [(44999850000,)]
    attempts = TABLES["open_ids"]
    names = ", ".join(f"NULL::{c.type} AS {c.name}" for c in attempts.relation if c.name != "publish_hour")
    made = copy_hours(duck, f"SELECT {names}, publish_hour FROM ({rows})", place / "hours", attempts)
    assert len(made) == 3
    listed = ", ".join(f"'{path}'" for path in made)
    assert duck.execute(f"SELECT count(*) FROM read_parquet([{listed}])").fetchall() == [(300000,)]
    duck.execute(f"COPY (FROM read_parquet([{listed}])) TO '{place}/some' (FORMAT parquet, PER_THREAD_OUTPUT)")
    listed = ", ".join(f"'{path}'" for path in (place / "some").rglob("*.parquet"))
    assert duck.execute(f"SELECT count(*) FROM read_parquet([{listed}])").fetchall() == [(300000,)]
    duck.close()


# -- a lake ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lake_answers_as_one_in_a_folder(lake: Lake, tmp_path: Path, door: Door) -> None:
    """The same rows give the same answers; a look-up by id takes few requests; compaction and sweep change no
    answer."""
    lakes = [lake, Lake.create(tmp_path / "lake")]
    ids = [unique_id(number) for number in range(4)]
    hour = HOUR_OF_IDS
    for each in lakes:
        table = each["trajectories"]
        for number, ids_of_file in enumerate((ids[:2], ids[1:3])):
            rows = [
                {"cluster": "c", "publish_hour": hour, "msg_id": one, "as_of_ms": number, "knowledge": "COMPLETE"}
                for one in ids_of_file
            ]
            table.commit([write(table, f"batch=a-{number}", rows)], app="a", batch=number)

    door.requests.clear()

    def answers(lake: Lake) -> list[list[dict[str, Any]]]:
        look = LookUp(Lake.open(lake.path))
        return [look.trajectories(msg_id).rows for msg_id in ids]

    assert answers(lakes[0]) == answers(lakes[1])
    assert [len(rows) for rows in answers(lakes[0])] == [1, 1, 1, 0]
    look = LookUp(Lake.open(lake.path))
    assert not [request for request in door.requests if not request.startswith(("GET", "HEAD"))], "a look-up writes"
    door.requests.clear()
    assert look.trajectories(ids[0]).rows
    assert len(door.requests) == 2, door.requests
    for each in lakes:
        assert compact(each, 10**9, now_ms=1)
    assert answers(lakes[0]) == answers(lakes[1])
    before = len(list(lake.path.rglob("*.parquet")))
    assert sweep(lakes[0], now_ms=2**42)
    assert len(list(lake.path.rglob("*.parquet"))) < before
    assert answers(lakes[0]) == answers(lakes[1])


@pytest.mark.slow
def test_a_query_reads_objects_of_its_lake_alone(lake: Lake, tmp_path: Path) -> None:
    """A user's SQL runs on a lake in a store as on one in a folder."""

    def ask(text: str) -> list[dict[str, Any]]:
        with Answers(lake.path).query(text, 0) as answer:
            return [row for batch in answer.batches for row in batch.to_pylist()]

    assert ask("SELECT count(*) AS n FROM lake.gaps") == [{"n": 1}]
    [file] = lake["gaps"].files()
    [path] = lake["gaps"].paths([file])
    elsewhere = path.replace(str(lake.path), f"{lake.path}-other")
    for other in (elsewhere, str(tmp_path / "other.parquet")):
        with pytest.raises(QueryError, match="Permission Error"):
            ask(f"SELECT * FROM '{other}'")


def test_a_copied_lake_goes_on(place: ObjectPath, store: MemoryStore, tmp_path: Path) -> None:
    """A lake is copied from a folder to the store and back, with all its files."""
    assert commit(Lake.create(tmp_path / "lake"), 1)
    for path in (tmp_path / "lake").rglob("*"):
        if path.is_file():
            key = f"{place.key}/{path.relative_to(tmp_path / 'lake').as_posix()}"
            store.objects[key] = (path.read_bytes(), datetime.now(UTC))
    remote = Lake.open(place)
    assert counts(remote) == [1, 1]
    assert commit(remote, 2)
    for key, (data, _) in store.objects.items():
        file = tmp_path / "back" / key.removeprefix(f"{place.key}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    back = Lake.open(tmp_path / "back")
    assert not commit(back, 2)
    assert commit(back, 3)
    assert counts(back) == [3, 3]
    back.check()


@pytest.mark.slow
@pytest.mark.parametrize("more", [1, 2])
def test_a_lake_copied_over_a_longer_one(place: ObjectPath, store: MemoryStore, more: int) -> None:
    """Its logs go on with commits of the other lake, also if one more looks like that of a crash before its mark."""
    shorter, longer = Lake.create(place / "shorter"), Lake.create(place / "longer")
    for number in range(1, 3 + more):
        assert commit(longer, number)
    for number in (1, 2):
        assert commit(shorter, number)
    for key in [key for key in store.objects if key.startswith(f"{place.key}/shorter/")]:
        store.objects[key.replace("shorter", "longer")] = store.objects[key]
    with pytest.raises(
        LakeDamaged, match=r"0003\.json: found a commit that does not follow the one before it.*restore"
    ):
        Lake.open(longer.path)
    assert [table.table.name for table in Lake.open(longer.path, is_whole=False) if table.damage] == ["gaps", "lag"]


@pytest.mark.slow
def test_a_mark_behind_its_log(place: ObjectPath, store: MemoryStore) -> None:
    """A crash before the mark was written: the commits without it are known to follow, and so is the next one."""
    lake = Lake.create(place / "lake")
    assert commit(lake, 1)
    mark = f"{place.key}/lake/_marks/gaps.json"
    behind = store.objects[mark]
    for number in (2, 3):
        assert commit(lake, number)
    store.objects[mark] = behind
    again = Lake.open(lake.path)
    assert counts(again) == [3, 3]
    assert commit(again, 4)
    store.objects[mark] = behind
    assert counts(Lake.open(lake.path)) == [4, 4]
    infos = [json.loads(line) for number in (3, 4) for line in _log(store, place, number)]
    [third, fourth] = [line["commitInfo"] for line in infos if "commitInfo" in line]
    assert fourth["mqtrail.previous_commit"] == third["mqtrail.commit"]


def _log(store: MemoryStore, place: ObjectPath, version: int) -> list[bytes]:
    return store.objects[f"{place.key}/lake/gaps/_delta_log/{version:020}.json"][0].splitlines()


def test_no_lake_differs_from_no_bucket(place: ObjectPath) -> None:
    """An empty prefix is no lake; a missing bucket is an error of the store, never "not found"."""
    with pytest.raises(LakeMissing, match="pipeline once"):
        Lake.open(place)
    with pytest.raises(LakeUnreadable, match=r"found no such bucket.*create it"):
        Lake.open("s3://other/lake")


@pytest.mark.slow
def test_a_lost_object_is_damage(lake: Lake, place: ObjectPath) -> None:
    """The error names a committed file that is missing; the mark shows that a log lost its end."""
    [file] = lake["gaps"].files()
    (place / "gaps" / file.path).unlink()
    with pytest.raises(LakeDamaged, match="found no such file, expected"):
        Lake.open(place).check()
    (place / "lag" / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(LakeDamaged, match="the log ends at version 0"):
        Lake.open(place)


def test_migration_is_for_folders(place: ObjectPath) -> None:
    with pytest.raises(LakeUnsupported, match="wrote to folders only"):
        next(migrate(place))


# -- one writer --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_writer_is_refused(lake: Lake) -> None:
    """The second writer is refused at once with the holder's name, and succeeds when the first one has ended."""
    second = Lake.open(lake.path)
    with lake.writing():
        with pytest.raises(LakeBusy, match=r"process \d+ on host .*expected one writer"), second.writing():
            pass
        with lake.writing():
            assert commit(lake, 2)
    with second.writing():
        assert commit(second, 3)
    assert counts(lake) == [3, 3]


@pytest.mark.slow
def test_the_lock_of_a_dead_writer_ends(lake: Lake, store: MemoryStore) -> None:
    """After the lease another process takes the lock. A holder that resumes late commits nothing."""
    next_one = Lake.open(lake.path)
    with lake.writing():
        store.ahead = timedelta(milliseconds=lease.LEASE_MS + 1_000)
        with next_one.writing():
            assert commit(next_one, 2)
            held = lake._lock._taken
            assert isinstance(held, lease.Lease)
            held.renew()
            with pytest.raises(LakeLost, match=r"found process .* writing to this lake, expected to be the only"):
                commit(lake, 3)
    assert counts(next_one) == [2, 2]


@pytest.mark.slow
def test_a_late_writer_is_refused_by_the_commit(lake: Lake, store: MemoryStore) -> None:
    """A holder that does not know yet that it lost the lock cannot repeat a batch."""
    next_one = Lake.open(lake.path)
    with lake.writing():
        store.ahead = timedelta(milliseconds=lease.LEASE_MS + 1_000)
        with next_one.writing():
            assert commit(next_one, 2)
            with pytest.raises(LakeBusy, match="another writer"):
                commit(lake, 2)
    assert counts(lake) == counts(Lake.open(lake.path)) == [2, 2]


@pytest.mark.slow
def test_a_writer_that_cannot_renew_waits(lake: Lake, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store does not answer, the writer commits nothing; it continues unless another process took the lock."""
    now_s = lease._uptime_s()
    monkeypatch.setattr(lease, "_uptime_s", lambda: now_s)
    with lake.writing():
        now_s += lease.HELD_MS / 1000 + 1
        door.fault = lambda request: Fault.BUSY if "/_lease/" in request.path else None
        with pytest.raises(LakeUnreadable, match="too busy"):
            commit(lake, 2)
        door.fault = lambda request: None
        assert commit(lake, 2)
    assert counts(lake) == [2, 2]


@pytest.mark.slow
def test_a_writer_does_not_ask_for_its_own_commits(lake: Lake, door: Door) -> None:
    """While a writer holds the lock no other one commits. It reads the log before and after that."""
    other = Lake.open(lake.path)
    assert commit(other, 2)
    with lake.writing():
        assert counts(lake) == [2, 2]
        door.requests.clear()
        assert counts(lake) == [2, 2]
        lake.batches.refresh()
        assert not lake.batches.commit("app", 2, {}, {})
        assert not door.requests
        door.fault = lambda request: Fault.BUSY if request.method == "PUT" and "gaps/_delta" in request.path else None
        with pytest.raises(LakeUnreadable, match="too busy"):
            commit(lake, 3)
        door.fault = lambda request: None
        assert commit(lake, 4)
        assert counts(lake) == [4, 4]
    with other.writing():
        assert commit(other, 5)
    assert counts(lake) == [5, 5]


@pytest.mark.slow
def test_a_log_has_checkpoints(lake: Lake) -> None:
    """Checkpoints keep the number of requests small, however long the pipeline has run."""
    with lake.writing():
        for number in range(2, 12):
            assert commit(lake, number)
    log = lake["gaps"].path / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet"))
    assert counts(Lake.open(lake.path)) == [11, 11]


@pytest.mark.slow
def test_a_number_of_the_lock_is_used_once(lake: Lake, store: MemoryStore) -> None:
    """A process that was suspended before it took the lock finds that others held it since."""
    late, holder = Lake.open(lake.path), Lake.open(lake.path)
    with late.writing():
        late_lease = late._lock._taken
        assert isinstance(late_lease, lease.Lease)
    with holder.writing():
        held = holder._lock._taken
        assert isinstance(held, lease.Lease)
        held.renew()
        locks = {key for key in store.objects if "/_lease/" in key}
        assert late_lease._create(1) is None
        assert {key for key in store.objects if "/_lease/" in key} == locks
        assert len(locks) == 1
        assert commit(holder, 2)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.BUSY_AFTER])
def test_a_lock_whose_answer_is_lost_is_held(lake: Lake, door: Door, fault: Fault) -> None:
    """The store has created the lock: the process recognises its own text."""
    door.fault = once(fault, "/_lease/")
    with lake.writing():
        door.fault = once(fault, "/_lease/")
        held = lake._lock._taken
        assert isinstance(held, lease.Lease)
        held.renew()
        assert commit(lake, 2)


@pytest.mark.slow
def test_a_store_without_conditional_puts_is_refused(lake: Lake, store: MemoryStore) -> None:
    """It is refused before anything is written. Reading works."""
    store.honours_conditions = False
    with pytest.raises(LakeUnsupported, match=r"ignores the condition of a put .*use another store"):
        commit(lake, 2)
    assert counts(Lake.open(lake.path)) == [1, 1]
    store.honours_conditions = True
    assert commit(lake, 2)


def test_writers_give_files_names_of_their_own(place: ObjectPath, tmp_path: Path) -> None:
    """A writer that lost the lock neither replaces nor deletes its successor's files. A lock in a folder cannot be
    lost."""
    mine, yours = emptied(place / "batch=a-1"), emptied(place / "batch=a-1")
    (yours / "part.parquet").write_bytes(b"1")
    assert emptied(place / "batch=a-1") != mine != yours
    assert (yours / "part.parquet").exists()
    (tmp_path / "left").write_bytes(b"")
    assert emptied(tmp_path) == own_folder(tmp_path) == tmp_path
    assert not tmp_path.exists()


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.CUT])
def test_a_short_fault_is_retried(lake: Lake, door: Door, fault: Fault) -> None:
    """Reads and commits continue after a 503 and after a broken connection."""
    door.fault = once(fault, "", "GET", 2)
    assert counts(Lake.open(lake.path)) == [1, 1]
    door.fault = once(Fault.BUSY, "_delta_log", "PUT", 2)
    assert commit(lake, 2)
    door.fault = lambda request: None
    assert counts(Lake.open(lake.path)) == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.BUSY_AFTER])
@pytest.mark.parametrize("where", ["_batches/_delta_log", "gaps/_delta_log", "lag/_delta_log"])
def test_a_commit_whose_answer_is_lost_counts_once(lake: Lake, door: Door, fault: Fault, where: str) -> None:
    """The store has the commit: the writer finds it in the log and continues."""
    door.fault = once(fault, where)
    assert commit(lake, 2)
    assert commit(lake, 3)
    assert not commit(lake, 2)
    assert counts(Lake.open(lake.path)) == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault.BUSY, "too busy or out of order .*SlowDown.*try again later"),
        (Fault.EXPIRED, "credentials that have expired .*ExpiredToken.*renew AWS_ACCESS_KEY_ID"),
        (Fault.CUT, "found no connection.*check AWS_ENDPOINT_URL"),
    ],
)
def test_a_persistent_fault_is_reported(lake: Lake, door: Door, fault: Fault, message: str) -> None:
    """The error has one line and no secrets, in our own requests, in delta-rs, and in DuckDB."""
    verdict = {"cluster": "c", "publish_hour": 1, "msg_id": unique_id(1), "group_name": "g"}
    lake["verdicts"].commit([write(lake["verdicts"], "b", [verdict])], app="a", batch=1)
    reader = Lake.open(lake.path)
    query = f"SELECT * FROM ({relation_of(reader['verdicts'])})"

    def asked_by_duckdb() -> None:
        with lake_errors(lake.path):
            connect().execute(query)

    door.fault = always(fault)
    for attempt in (
        lambda: Lake.open(lake.path),
        asked_by_duckdb,
        lambda: reader["gaps"].readable(reader["gaps"].files()),
        lake.refresh,
        lambda: commit(lake, 9),
    ):
        with pytest.raises((LakeUnreadable, ObjectStoreError), match=message) as failed:
            attempt()
        assert "\n" not in str(failed.value)
        assert doors.ACCESS_KEY not in str(failed.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Error performing PUT http://h/b/batch=a-503/x in 403.1ms - status code: 400 Bad <Code>Foo</Code>", None),
        (
            "Error performing GET http://h/b/503 in 1ms - status code: 403 Forbidden",
            "credentials that the store refuses",
        ),
        ("Error performing GET http://h/b/x - Received redirect without LOCATION", "AWS_REGION"),
        ("Error performing PUT http://h/b/401 - status code: 501 <Code>NotImplemented</Code>", "conditional puts"),
        ("Error performing PUT http://169.254.169.254/latest/api/token - HTTP error: error sending", "no credentials"),
    ],
)
def test_the_cause_is_not_read_from_names(text: str, message: str | None) -> None:
    """Names of objects and durations can contain the numbers of other errors."""
    found = store_problem("s3://b/lake", f"Generic S3 error: {text}")
    assert found == message if message is None else message in str(found)


def test_duckdb_downloads_nothing() -> None:
    """A query that needs an extension does not install it."""
    [(found,)] = connect().execute("SELECT current_setting('autoinstall_known_extensions')").fetchall()
    assert found is False


@pytest.mark.slow
def test_a_silent_store_is_reported(lake: Lake, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request ends after ANSWER_S_MAX, and its retries after RETRY_S_MAX."""
    monkeypatch.setattr(objects, "ANSWER_S_MAX", 1)
    monkeypatch.setattr(objects, "RETRIES_MAX", 1)
    objects._store_of.cache_clear()
    door.fault = always(Fault.SILENT)
    with pytest.raises(LakeUnreadable, match="found no answer in time"):
        Lake.open(lake.path)


@pytest.mark.slow
def test_batches_that_a_fault_interrupts_are_finished(lake: Lake, door: Door) -> None:
    """A batch that the store interrupted is finished by this writer or the next."""
    with lake.writing():
        door.fault = lambda request: Fault.BUSY if request.method == "PUT" and "lag/_delta" in request.path else None
        with pytest.raises(LakeUnreadable, match="too busy"):
            commit(lake, 2)
        door.fault = lambda request: None
    again = Lake.open(lake.path)
    with again.writing():
        assert counts(again) == [2, 2]
        assert commit(again, 3)
    assert counts(again) == [3, 3]


@pytest.mark.slow
def test_secrets_stay_out_of_the_lake(lake: Lake, store: MemoryStore) -> None:
    """No file of a lake contains a key."""
    with lake.writing():
        assert commit(lake, 2)
        assert any("/_lease/" in key for key in store.objects)
    for data, _ in store.objects.values():
        assert doors.SECRET_KEY.encode() not in data
        assert doors.ACCESS_KEY.encode() not in data


@pytest.mark.slow
def test_sql_reads_the_lake_and_nothing_else(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """Users' queries can read this prefix, but no other objects."""
    assert run(["sql", "SELECT count(*) AS n FROM lake.gaps", "--lake", str(lake.path), "--json"]) == 0
    assert '"n": 1' in capsys.readouterr().out
    other = f"SELECT * FROM read_parquet('s3://{BUCKET}/prefix/other.parquet')"
    assert run(["sql", other, "--lake", str(lake.path)]) != 0
    assert "Permission" in capsys.readouterr().err
