"""Two checkouts are compared by the ratio of medians, in turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import versions


@pytest.mark.parametrize(("here", "is_worse"), [([104, 300, 104], False), ([106, 106, 90], True)])
def test_five_percent_more_is_worse(here: list[float], is_worse: bool) -> None:
    """A single slow round does not make a figure worse."""
    figure = versions.Figure("64x1", "CPU µs", here, [100, 100, 100])
    assert figure.is_worse is is_worse
    assert ("worse" if is_worse else "ok") in str(figure)


def test_sides_take_turns_to_begin() -> None:
    figure, order = versions.Figure("x", "s"), []

    def one(side: int) -> float:
        order.append(side)
        return float(side)

    versions.in_turns(figure, 2, one)
    assert order == [0, 1, 1, 0]
    assert (figure.here, figure.there) == ([0.0, 0.0], [1.0, 1.0])


def test_a_folder_that_is_no_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        versions.main([str(tmp_path)])
    assert "expected a checkout of mqtrail" in capsys.readouterr().err


def test_a_server_keeps_its_compiled_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each start would compile them again, and hold more memory than an installed package."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    found = versions.environment(tmp_path)
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert found["PYTHONPATH"] == str(tmp_path / "src")
