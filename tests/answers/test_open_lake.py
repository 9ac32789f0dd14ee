"""A lake that stays open between questions: it answers as it is now, in bounded memory, and shares work."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import duckdb
import pytest

from mqtrail.answers import Answers, SearchConditions, Status, openlake
from mqtrail.answers.openlake import IDLE_MAX, OpenLake
from mqtrail.lake import Lake, LakeError, arrow_rows, connect, write_parquet
from mqtrail.trail import PUBLISHED_FROM, TRAJECTORIES
from tests.answers.lakes import AS_OF_MS, id_of, make_lake, rows_of


@pytest.fixture
def path(lake_path: Path, tmp_path: Path) -> Path:
    return shutil.copytree(lake_path, tmp_path / "lake")


def answers_of(path: Path) -> tuple[OpenLake, Answers]:
    opened = OpenLake(path)
    return opened, Answers(path, opened=opened)


def add_message(path: Path, msg_id: str, hour: int, **times: int) -> None:
    """Commit a message to a lake as a later cycle does."""
    lake = Lake.open(path)
    table = lake[TRAJECTORIES.name]
    file = table.path / f"part-{msg_id}" / "0.parquet"
    file.parent.mkdir()
    row = {"cluster": "c", "msg_id": msg_id, "publish_hour": hour, "as_of_ms": AS_OF_MS, "knowledge": "COMPLETE"}
    write_parquet(arrow_rows(TRAJECTORIES, [row | {"events": []} | times]), file)
    table.commit([file], app=msg_id, batch=0)


@pytest.mark.parametrize(("lake_count", "memory_mb"), [(1, 1_000), (2, 500), (64, 250)])
def test_lakes_of_one_process_share_its_memory(path: Path, lake_count: int, memory_mb: int) -> None:
    """Each has a part, and no less than a search needs."""
    limits: list[str] = []

    def noted(*, memory_limit: str) -> duckdb.DuckDBPyConnection:
        limits.append(memory_limit)
        return connect(memory_limit=memory_limit)

    opened = OpenLake(path, lake_count)
    with patch.object(openlake, "connect", noted):
        assert Answers(path, opened=opened).search(SearchConditions(), AS_OF_MS).matched_count
    opened.close()
    assert limits == [f"{memory_mb}MB"]


def test_later_commits_are_seen(path: Path) -> None:
    """A question finds what was committed after the question before it."""
    opened, answers = answers_of(path)
    before = answers.search(SearchConditions(), AS_OF_MS).matched_count
    with patch.object(Lake, "open", side_effect=AssertionError("opened again")):
        assert answers.search(SearchConditions(), AS_OF_MS).matched_count == before
    add_message(path, "later", 5, stored_ms=5)
    assert answers.search(SearchConditions(), AS_OF_MS).matched_count == before + 1
    opened.close()


@pytest.mark.slow
def test_another_lake_at_the_path(path: Path, tmp_path: Path) -> None:
    """A folder that was replaced is opened anew, also if its tables have the same versions."""
    opened, answers = answers_of(path)
    assert answers.trace(id_of("send ok"), AS_OF_MS).status is Status.FOUND
    assert answers.report(AS_OF_MS).message_count > 1
    shutil.rmtree(path)
    with pytest.raises(LakeError, match="no lake"):
        answers.report(AS_OF_MS)
    make_lake(path, rows_of(["hung"]), gaps=True, rejects=2)
    assert answers.trace(id_of("send ok"), AS_OF_MS).status is Status.NOT_FOUND
    assert answers.report(AS_OF_MS).message_count == 1
    opened.close()


def test_damage_that_is_repaired(path: Path) -> None:
    """An answer from a damaged lake is not given again."""
    [file] = (path / "trajectories").glob("part-*/0.parquet")
    whole = file.read_bytes()
    opened, answers = answers_of(path)
    file.write_bytes(whole[:-9])
    assert answers.report(AS_OF_MS).scope.is_damaged
    file.write_bytes(whole)
    repaired = answers.report(AS_OF_MS)
    assert not repaired.scope.is_damaged
    assert repaired.message_count > 0
    opened.close()


@pytest.mark.slow
def test_questions_at_once(path: Path) -> None:
    """Each thread has its own tables and views; no more lakes stay open than questions ran."""
    opened, answers = answers_of(path)
    expected = answers.report(AS_OF_MS, worst=0).message_count
    barrier = threading.Barrier(IDLE_MAX)

    def ask(number: int) -> int:
        barrier.wait(timeout=30)
        return answers.report(AS_OF_MS, first_ms=number, worst=number).message_count

    with ThreadPoolExecutor(IDLE_MAX) as threads:
        assert list(threads.map(ask, range(1, IDLE_MAX + 1))) == [expected] * IDLE_MAX
    assert 1 <= len(opened._idle) <= IDLE_MAX
    opened.close()


def test_an_answer_is_shared_until_the_next_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many viewers of one page cost one search. With newer commits, an answer is given again for some seconds only."""
    opened, answers = answers_of(path)
    first = answers.report(AS_OF_MS)
    assert answers.report(AS_OF_MS) is first
    assert answers.report(AS_OF_MS, worst=0) is not first
    add_message(path, "later", 5, stored_ms=5)
    assert answers.report(AS_OF_MS) is first
    monkeypatch.setattr(openlake, "SHARED_S", -1.0)
    assert answers.report(AS_OF_MS).message_count == first.message_count + 1
    opened.close()


def test_viewers_share_a_search_for_incidents(path: Path) -> None:
    """What people did about them is added for each viewer. A search whose result is kept is one of its own."""
    opened, answers = answers_of(path)
    first = answers.incidents(AS_OF_MS, is_kept=False)
    assert answers.incidents(AS_OF_MS + 1, is_kept=False) is first
    assert answers.incidents(AS_OF_MS, 0, None, is_kept=False) is not first
    assert answers.incidents(AS_OF_MS) is not first
    add_message(path, "later", 5, stored_ms=5)
    assert answers.incidents(AS_OF_MS, is_kept=False, recent_s=60.0) is first  # as on the first page
    assert answers.incidents(AS_OF_MS, is_kept=False, recent_s=-1.0) is not first
    opened.close()


def test_memory_is_bounded(path: Path) -> None:
    """All questions together have one bound, and a private folder for what does not fit."""
    opened, _ = answers_of(path)
    settings = "SELECT name, value FROM duckdb_settings() WHERE name IN ('memory_limit', 'temp_directory')"
    with opened.view() as one, opened.view() as other:
        found = dict(one.connection.execute(settings).fetchall())
        assert found == dict(other.connection.execute(settings).fetchall())
    assert found["memory_limit"].startswith("953")  # MiB
    folder = Path(found["temp_directory"])
    assert folder.stat().st_mode & 0o077 == 0
    opened.close()
    assert not folder.exists()


def test_a_range_of_time_opens_the_hours_that_may_hold_it(path: Path) -> None:
    """The hour in an id is of another clock: the times in the files decide, and a file without them stays in."""
    add_message(path, "sent", 5, send_start_ms=1_000_000, stored_ms=2_000_000)
    add_message(path, "stored", 6, stored_ms=2_000_000)
    add_message(path, "undated", 7)
    opened, answers = answers_of(path)
    with opened.view() as view:
        lookup = view.lookup

        def hours(first_ms: int | None, end_ms: int | None) -> frozenset[int] | None:
            found = lookup.published_hours(first_ms, end_ms)
            return None if found is None else found.all

        assert hours(1_000_000, 1_000_001) == frozenset({5})
        assert hours(1_999_999, 2_000_001) == frozenset({5, 6})
        assert hours(1_000_001, 2_000_000) == frozenset(), "a message is published at one of its times"
        assert hours(0, 1_000_000) == frozenset()
        dated, later = lookup.published_hours(0, None), lookup.published_hours(1_500_000, None)
        assert dated is not None
        assert later is not None
        assert {5, 6} <= dated.whole, "each of their messages has a time in the range"
        assert 7 not in dated.all, "its message has no time"
        assert later.partial == frozenset({5})
        assert hours(None, None) is None
        table = view.lookup.lake[TRAJECTORIES.name]
        for file in table.files([5]):
            object.__setattr__(file, "minimum", {})
            object.__setattr__(file, "nulls", {})
        assert hours(0, 1_000_000) == frozenset({5}), "written by a version without these statistics"
    found = answers.search(SearchConditions(first_ms=1_000_000, end_ms=2_000_000), AS_OF_MS)
    assert [one.msg_id for one in found.trajectories] == ["sent"]
    report = answers.report(AS_OF_MS, 1_500_000, 2_500_000)
    assert (report.message_count, report.scope.first_ms, report.scope.end_ms) == (1, 1_500_000, 2_500_000)
    assert set(PUBLISHED_FROM) <= set(TRAJECTORIES.names)
    opened.close()


@pytest.mark.parametrize("before_ms", [0, 500_000, 599_000])
def test_a_report_of_a_range_counts_what_a_search_finds(path: Path, before_ms: int) -> None:
    """Hours that are whole in the range, those that are not, and all: each code counts once a message."""
    add_message(path, "early", 5, stored_ms=AS_OF_MS - 400_000)
    opened, answers = answers_of(path)
    first_ms = AS_OF_MS - before_ms if before_ms else None
    found = answers.search(SearchConditions(first_ms=first_ms, limit=100), AS_OF_MS)
    counts = Counter[tuple[str, str, str]]()
    for one in found.trajectories:
        texts = {"send": one.send_codes, "message": one.message_codes, "knowledge": (one.knowledge,)}
        texts |= {group.group_name: group.codes for group in one.groups}
        counts.update((one.cluster, about, code) for about, codes in texts.items() for code in set(codes))
    report = answers.report(AS_OF_MS, first_ms, worst=100)
    assert report.message_count == found.matched_count > 0
    assert {(one.cluster, one.about, one.code): one.message_count for one in report.codes} == counts
    assert {one.msg_id for one in report.worst} <= {one.msg_id for one in found.trajectories}
    history = answers.history(AS_OF_MS, first_ms)
    assert history.message_count == report.message_count
    opened.close()
