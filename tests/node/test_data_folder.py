"""The data folder: created, locked, and refused with found, expected and remedy."""

import os
from pathlib import Path

import pytest

from mqtrail.node import DataFolder, DataFolderError, Node
from mqtrail.store import StoreError
from mqtrail.testing.embed import embedded_config


def test_it_is_made_and_opened_again(tmp_path: Path) -> None:
    """The first open creates it with its parents; the second finds it."""
    path = tmp_path / "a b" / "data"
    folder = DataFolder.open(path)
    assert folder.room("broker-a").is_dir()
    folder.close()
    folder.close()
    DataFolder.open(path).close()
    assert path.stat().st_mode & 0o777 == 0o700


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """The second opener's error names the holder; the first one continues."""
    folder = DataFolder.open(tmp_path / "data")
    with pytest.raises(DataFolderError, match=f"in use by process {os.getpid()}.*choose another"):
        DataFolder.open(tmp_path / "data")
    folder.close()
    DataFolder.open(tmp_path / "data").close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 2}', "has format 2; this mqtrail .* reads format 1"),
        ("{}", "expected"),
        ("garbage", "expected"),
        ("[]", "expected"),
        ("[" * 100_000, "expected"),
        ("\udcff\udcfe{", "expected"),
    ],
)
def test_other_formats_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """A folder of another version, or with a damaged format file, is not changed."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "mqtrail.json").write_text(text, errors="surrogateescape")
    with pytest.raises(DataFolderError, match=words):
        DataFolder.open(data)
    assert [entry.name for entry in data.iterdir()] == ["mqtrail.json"]


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    """A folder with other files is refused unchanged; one with a RocketMQ store is accepted."""
    home = tmp_path / "home"
    (home / "photos").mkdir(parents=True)
    with pytest.raises(DataFolderError, match=r"contains 'photos' and no mqtrail\.json"):
        DataFolder.open(home)
    assert [entry.name for entry in home.iterdir()] == ["photos"]
    moved = tmp_path / "moved"
    (moved / "broker-a" / "commitlog").mkdir(parents=True)
    DataFolder.open(moved).close()
    assert (moved / "mqtrail.json").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """The error names a file at the path."""
    (tmp_path / "data").write_text("")
    with pytest.raises(DataFolderError, match="is a file"):
        DataFolder.open(tmp_path / "data")


def test_a_folder_in_a_files_place_is_refused_in_words(tmp_path: Path) -> None:
    """The format file, the lock and a broker's room: each error names the path and what to check."""
    (tmp_path / "a" / "lock").mkdir(parents=True)
    with pytest.raises(DataFolderError, match=r"cannot be used: .*lock.*check"):
        DataFolder.open(tmp_path / "a")
    folder = DataFolder.open(tmp_path / "b")
    (tmp_path / "b" / "broker-a").write_text("")
    with pytest.raises(DataFolderError, match=r"cannot be used: .*broker-a.*check"):
        folder.room("broker-a")
    folder.close()


@pytest.mark.parametrize(
    "place", ["broker-a/config/topics.json", "broker-a/checkpoint", "namesrv/config/kvConfig.json"]
)
@pytest.mark.parametrize("kind", ["folder", "loop"])
async def test_a_start_on_files_that_cannot_be_read_is_refused_in_words(tmp_path: Path, place: str, kind: str) -> None:
    """Neither a traceback nor an empty table; what was taken is given back, so that the next start works."""
    node = Node(embedded_config(tmp_path))
    await node.start()
    await node.stop()
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = path.rename(tmp_path / "lake") if path.exists() else None
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name)
    node = Node(embedded_config(tmp_path))
    with pytest.raises(StoreError, match=f"cannot use its files: .*{path.name}"):
        await node.start()
    if kind == "folder":
        path.rmdir()
    else:
        path.unlink()
    if kept is not None:
        kept.rename(path)
    node = Node(embedded_config(tmp_path))
    await node.start()
    await node.stop()
