"""The move of examples/: each order is billed once, and each planted mistake is found."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

# By name, as the other examples: for mypy they are no part of this project's packages.
main, check = (importlib.import_module(f"examples.move_cluster.{name}") for name in ("__main__", "check"))


def test_the_check_finds_what_is_wrong() -> None:
    """By the orders that were billed."""
    right = check.outcome(3, [2, 0, 1], [])
    assert (right.is_right, check.report(right).splitlines()[0]) == (True, "lost       none")
    wrong = check.outcome(4, [0, 1, 1], ["orders broker-a/0: 2 messages, 1 copies"])
    assert (wrong.lost, wrong.doubled, wrong.is_right) == ((2, 3), (1,), False)
    assert check.report(wrong).splitlines()[:2] == ["lost       2 orders: 2, 3", "doubled    1 orders: 1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "code", "text"),
    [
        ([], 0, "The move is right: each order was billed once."),
        (["--plant", "no-offsets"], 1, "doubled    20 orders"),
        (["--plant", "late-start"], 1, "lost       10 orders"),
    ],
    ids=["right", "no-offsets", "late-start"],
)
def test_the_move(tmp_path: Path, capsys: pytest.CaptureFixture[str], plant: list[str], code: int, text: str) -> None:
    """With a mirror that is killed on the way."""
    found = main.main(["--folder", str(tmp_path / "move"), "--orders", "60", *plant])
    out, err = capsys.readouterr()
    assert (found, text in out) == (code, True), f"{out}\n{err[-3_000:]}"


def test_what_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says why, with exit code 2."""
    (tmp_path / "file").touch()
    assert main.main(["--folder", str(tmp_path / "file")]) == 2
    assert "error: " in capsys.readouterr().err
