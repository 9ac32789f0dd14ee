"""Lock files: one holder at a time."""

from __future__ import annotations

import threading
from pathlib import Path

from mqtrail.net import is_lock_held, wait_for_lock
from tests.waiting import wait_until


def test_a_lock_is_awaited(tmp_path: Path) -> None:
    """The second block begins when the first one ends; the file is for this user alone."""
    path = tmp_path / "a folder" / "users.json.lock"
    seen = []

    def second() -> None:
        seen.append("asked")
        with wait_for_lock(path):
            seen.append("second")

    with wait_for_lock(path):
        assert is_lock_held(path)
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: "asked" in seen)
        seen.append("first")
    thread.join(60)
    assert seen == ["asked", "first", "second"]
    assert not is_lock_held(path)
    assert path.stat().st_mode & 0o777 == 0o600
