"""The thresholds of a lake's verdicts: stored when they change, found by the time of judgement."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mqtrail.lake import Lake, LakeDamaged, note_settings, settings_at
from mqtrail.lake.batches import LakeBatch
from mqtrail.lake.judged import KEY, Judgement, Judgements, seen_up_to
from mqtrail.lake.tables import DataFile
from mqtrail.trail import Settings

SLOW, SLOWER = Settings(send_slow_ms=500), Settings(send_slow_ms=700, hung_ms=9_000)


def settings_of(lake: Lake, as_of_ms: int) -> Mapping[str, int] | None:
    return settings_at(lake, [("c", as_of_ms)])["c", as_of_ms]


def test_each_instant_has_the_settings_in_force(tmp_path: Path) -> None:
    """Before the first entry the thresholds are unknown; a reader that opens the lake later finds the same entries."""
    lake = Lake.create(tmp_path)
    verdicts = lake["verdicts"]
    assert settings_of(lake, 10) is None
    note_settings(verdicts, "c", SLOW, 100)
    version = verdicts.version
    note_settings(verdicts, "c", SLOW, 200)
    assert verdicts.version == version  # no change, no write
    note_settings(verdicts, "c", SLOWER, 300)
    for reader in (lake, Lake.open(tmp_path)):
        assert settings_of(reader, 99) is None
        assert settings_of(reader, 100) == settings_of(reader, 299) == SLOW.values()
        assert settings_of(reader, 300) == settings_of(reader, 9_999) == SLOWER.values()


def test_a_judgement_done_again_with_other_settings(tmp_path: Path) -> None:
    """It crashed before its verdicts were committed: the thresholds of the repeated judgement apply."""
    lake = Lake.create(tmp_path)
    note_settings(lake["verdicts"], "c", SLOW, 100)
    note_settings(lake["verdicts"], "c", SLOWER, 100)
    assert settings_of(lake, 100) == SLOWER.values()
    note_settings(lake["verdicts"], "c", SLOWER, 50)  # the clock was set back: later instants cannot have been judged
    assert settings_of(lake, 50) == SLOWER.values()


def test_notes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest entries are dropped; the thresholds of their verdicts are then unknown."""
    monkeypatch.setattr("mqtrail.lake.judged.CHANGES_MAX", 2)
    lake = Lake.create(tmp_path)
    for at_ms, settings in ((100, SLOW), (200, SLOWER), (300, SLOW)):
        note_settings(lake["verdicts"], "c", settings, at_ms)
    assert settings_of(lake, 100) is None
    assert settings_of(lake, 200) == SLOWER.values()


def test_notes_outlive_commits(tmp_path: Path) -> None:
    """Commits of files keep the property, and storing it keeps the committed batches."""
    lake = Lake.create(tmp_path)
    verdicts = lake["verdicts"]
    verdicts.commit([], app="gold", batch=1)
    note_settings(verdicts, "c", SLOW, 100)
    verdicts.commit([], app="gold", batch=2)
    assert settings_of(Lake.open(tmp_path), 100) == SLOW.values()
    assert Lake.open(tmp_path)["verdicts"].last_batch("gold") == 2


@pytest.mark.parametrize("text", ["{", "5", "[5]", "[[1]]", "[[1e999, {}]]", "[" * 100_000])
def test_damaged_settings_are_damage(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any damaged content the error says what was expected."""
    lake = Lake.create(tmp_path)
    monkeypatch.setattr(type(lake["verdicts"]), "noted", lambda *_: text)
    with pytest.raises(LakeDamaged, match="no list of settings"):
        settings_of(lake, 1)


def test_clusters_have_settings_of_their_own(tmp_path: Path) -> None:
    """An entry of one cluster does not apply to another; one of an earlier version applies to all."""
    lake = Lake.create(tmp_path)
    lake["verdicts"].note(KEY, json.dumps([[100, SLOW.values()]]))
    note_settings(lake["verdicts"], "east", SLOWER, 300)
    note_settings(lake["verdicts"], "west", SLOW, 200)  # nothing new
    instants = [("east", 299), ("east", 300), ("west", 300), ("north", 99)]
    assert settings_at(lake, instants) == {
        ("east", 299): SLOW.values(),
        ("east", 300): SLOWER.values(),
        ("west", 300): SLOW.values(),
        ("north", 99): None,
    }


def judgement(number: int, seen: int) -> Judgement:
    return Judgement(as_of_ms=number, number=number, attempts={"ingest": seen}, settings={}, only_until=False)


def file_of(path: str, low: str = "", high: str = "") -> DataFile:
    return DataFile(path, 1, 1, 0, {"cluster": low} if low else {}, {"cluster": high or low} if low else {})


def test_which_files_a_judgement_has_seen() -> None:
    """A file belongs to the batch that its first folder names, whatever folders follow."""
    paths = [f"batch=ingest-{number}/0-0/part-{part}/hour=-1/data_0.parquet" for number in (7, 8) for part in (1, 12)]
    seen = seen_up_to(paths[:2], dataclasses.replace(judgement(1, 6), attempts={"ingest": 6, "other": 3}))
    assert seen == {"ingest": 7, "other": 3}
    assert [judgement(1, 7).has_seen(path) for path in paths] == [True, True, False, False]
    assert judgement(1, 7).has_seen("compact-9-5/part.parquet")


def test_a_file_is_judged_when_its_clusters_are() -> None:
    """A file of one cluster waits for that one; a file of unknown clusters for all of them."""
    both = Judgements({"east": judgement(100, 8), "west": judgement(101, 5)})
    path = "batch=ingest-7/part.parquet"
    found = [both.have_seen(file_of(path, *names)) for names in (("east",), ("west",), ("north",), ("a", "z"), ())]
    assert found == [True, False, False, False, False]
    assert both.have_seen(file_of("batch=ingest-5/part.parquet"))
    assert Judgements.of_batch(LakeBatch("gold", 101, both.notes())) == both


def test_the_judgement_of_an_earlier_version() -> None:
    """It belongs to the lake's only cluster: it covers no files of a cluster that is read later."""
    notes: dict[str, Any] = {"attempts": {"ingest": 7}, "settings": {"hung_ms": 5}, "only_until": False}
    old = Judgements.of_batch(LakeBatch("gold", 100, notes))
    assert old.of("east") == Judgement(as_of_ms=100, number=100, **notes)
    new = Judgements.of_batch(LakeBatch("gold", 200, old.with_one("west", judgement(200, 8)).notes()))
    assert new.of("east") == old.of("east")
    assert not new.have_seen(file_of("batch=ingest-8/part.parquet", "east"))
    assert new.have_seen(file_of("batch=ingest-8/part.parquet", "west"))
