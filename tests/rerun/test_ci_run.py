"""`.ci/run` reports the time of each part, also after a failure."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / ".ci" / "run"


@pytest.mark.parametrize(
    ("script", "status", "wanted", "unwanted"),
    [
        ("exit 0", 0, [r"make demo +\d+ s +\d+ s of processors\n", r"total +\d+ s", "== passed"], ["FAILED", "flaky"]),
        (
            'case "$*" in *databases) exit 1; esac',
            1,
            [r"interop browser databases +.* processors  FAILED\n", "== FAILED with status"],
            ["make demo"],
        ),
        (
            "[ $1 != sim ]",
            1,
            [r"make sim FIRST=1 +\d+ s .*  FAILED\n", "total", "== FAILED with status"],
            ["crash fuzz"],
        ),
        (
            "[ $1 != test ] || echo test_a.py::test_b >>$RERUN",
            0,
            ["flaky tests: failed, then passed alone\ntest_a.py::test_b\n", "== passed"],
            ["FAILED"],
        ),
    ],
)
def test_table_of_times(tmp_path: Path, script: str, status: int, wanted: list[str], unwanted: list[str]) -> None:
    """With a `make` that does nothing, fails at a part, or finds a flaky test."""
    make = tmp_path / "make"
    make.write_text(f"#!/bin/sh\n{script}\n")
    make.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run([str(RUN)], capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode != 0) == (status != 0), done.stderr
    assert [text for text in wanted if not re.search(text, done.stdout)] == [], done.stdout
    assert [text for text in unwanted if text in done.stdout] == [], done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["make"]  # nothing is left behind


def test_without_a_browser_its_suite_fails(tmp_path: Path) -> None:
    """Who cannot install Chromium reads what to install; nothing is skipped."""
    user = tmp_path / "id"
    user.write_text("#!/bin/sh\necho 1000\n")
    user.chmod(0o755)
    script = RUN.parents[1] / "scripts" / "chromium.sh"
    done = subprocess.run(
        ["/bin/sh", str(script)], capture_output=True, text=True, env={"PATH": str(tmp_path)}, check=False
    )
    assert done.returncode == 2
    assert "apt install chromium" in done.stderr
