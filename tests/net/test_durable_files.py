"""A temporary file that should replace a file is removed if the replacement fails."""

import errno
import os
from pathlib import Path

import pytest

from mqtrail.net import replace_file
from mqtrail.wire import part_file


def test_a_part_is_removed_when_it_fails(tmp_path: Path) -> None:
    """Otherwise the new file stays; it is no error if there is no file to remove."""
    target = tmp_path / "file"
    with part_file(tmp_path / "file.tmp") as part:
        part.write_text("new")
        part.replace(target)

    def fail(error: BaseException, *, writes: bool) -> None:
        with part_file(tmp_path / "file.tmp") as part:
            if writes:
                part.write_text("newer")
            raise error

    with pytest.raises(OSError, match="full"):
        fail(OSError("full"), writes=True)
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt(), writes=False)
    assert os.listdir(tmp_path) == ["file"]
    assert target.read_text() == "new"


def test_a_nodes_file_that_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the old content remains."""

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    replace_file(tmp_path / "file", b"old", 0o600)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "file", b"new", 0o600)
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
