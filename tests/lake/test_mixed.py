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


def test_one_lake_copied_over_a_shorter_one(lakes: tuple[Path, Path], tmp_path: Path) -> None:
    """The result is the copied lake as a whole."""
    path = shutil.copytree(lakes[0], tmp_path / "lake")
    shutil.copytree(lakes[1], path, dirs_exist_ok=True)
    opened_for_writing(path)
    whole, mixed = Lake.open(lakes[1]), Lake.open(path)
    for name in TABLES:
        assert [file.path for file in mixed[name].files()] == [file.path for file in whole[name].files()]
