"""Mixed lakes: a table copied from another lake is detected by a writer and by readers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqtrail.lake import TABLES, Lake, LakeDamaged
from tests.lake.test_batches import changes


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two lakes with two and three batches."""
    made = []
    for name, count in (("one", 2), ("other", 3)):
        folder = tmp_path_factory.mktemp("mixed") / name
        lake = Lake.create(folder)
        for number in range(1, count + 1):
            assert lake.batches.commit("app", number, changes(lake, number), {"of": name})
        made.append(folder)
    return made[0], made[1]


def opened_for_writing(path: Path) -> None:
    lake = Lake.create(path)
    with lake.writing():
        lake.check()


@pytest.mark.parametrize("name", [*TABLES, "_batches"])
@pytest.mark.parametrize("into", [0, 1])
def test_a_table_of_another_lake(lakes: tuple[Path, Path], tmp_path: Path, name: str, into: int) -> None:
    """Whether it has more commits or fewer, the error names it and the remedy; a reader skips it."""
    path = shutil.copytree(lakes[into], tmp_path / "lake")
    shutil.rmtree(path / name)
    shutil.copytree(lakes[1 - into] / name, path / name)
    has_own_commits = (path / "_marks" / f"{name}.json").exists()
    if not has_own_commits:
        return  # an empty table is an empty table
    with pytest.raises(LakeDamaged, match=rf"{name}.*found .*expected .*restore"):
        opened_for_writing(path)
    if name in TABLES:
        lake = Lake.open(path, is_whole=False)
        assert [table.table.name for table in lake if table.damage] == [name]


@pytest.mark.parametrize("more", [1, 2])
def test_a_lake_copied_over_a_longer_one(lakes: tuple[Path, Path], tmp_path: Path, more: int) -> None:
    """Its logs go on with commits of the other lake, which no mark covers; one commit looks like that of a crash."""
    longer = shutil.copytree(lakes[1], tmp_path / "lake")
    if more == 2:
        lake = Lake.create(longer)
        lake.batches.commit("app", 4, changes(lake, 4), {"of": "other"})
    shutil.copytree(lakes[0], longer, dirs_exist_ok=True)
    with pytest.raises(
        LakeDamaged, match=r"0003\.json: found a commit that does not follow the one before it.*restore"
    ):
        opened_for_writing(longer)
    skipped = [table.table.name for table in Lake.open(longer, is_whole=False) if table.damage]
    assert set(skipped) == set(changes(Lake.open(lakes[0]), 9))


@pytest.mark.parametrize("name", ["gaps", "lag", "verdicts"])
def test_a_copy_without_the_ends_of_a_log_and_its_mark(lakes: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    """The record of batches has the version that the log had: the last batch alone would hide the missing ones."""
    path = shutil.copytree(lakes[1], tmp_path / "lake")
    for version in (2, 3):
        (path / name / "_delta_log" / f"{version:020}.json").unlink()
    (path / "_marks" / f"{name}.json").unlink()
    with pytest.raises(LakeDamaged, match=rf"{name}: found a log that ends at version 1, expected at least 2.*restore"):
        opened_for_writing(path)


def test_a_copy_whose_record_of_batches_is_older(lakes: tuple[Path, Path], tmp_path: Path) -> None:
    """Also a table that the recorded batch does not change shows it."""
    path = shutil.copytree(lakes[0], tmp_path / "lake")
    for number in (3, 4):
        lake = Lake.create(path)
        old = shutil.copytree(path / "_batches", tmp_path / f"record-{number}")
        mark = shutil.copy(path / "_marks" / "_batches.json", tmp_path / f"mark-{number}")
        one = changes(lake, number)
        lake.batches.commit("app", number, {"lag": one["lag"]} if number == 3 else {"gaps": one["gaps"]}, {})
    shutil.rmtree(path / "_batches")
    shutil.copytree(old, path / "_batches")
    shutil.copy(mark, path / "_marks" / "_batches.json")
    with pytest.raises(LakeDamaged, match=r"gaps: found batch 4 of 'app', expected at most 3.*restore"):
        opened_for_writing(path)


def test_one_lake_copied_over_a_shorter_one(lakes: tuple[Path, Path], tmp_path: Path) -> None:
    """The result is the copied lake as a whole."""
    path = shutil.copytree(lakes[0], tmp_path / "lake")
    shutil.copytree(lakes[1], path, dirs_exist_ok=True)
    opened_for_writing(path)
    whole, mixed = Lake.open(lakes[1]), Lake.open(path)
    for name in TABLES:
        assert [file.path for file in mixed[name].files()] == [file.path for file in whole[name].files()]
