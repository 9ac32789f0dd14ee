"""Problems of the pipeline in the lake, with their begin and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqtrail import trail
from mqtrail.lake import Lake, connect, relation_of
from mqtrail.pipeline.problems import ProblemLog


def noted(lake: Lake) -> list[tuple[Any, ...]]:
    """All rows: cluster, time, problem, status."""
    lake.refresh()
    names = ", ".join(trail.PROBLEMS.names)
    rows = f"SELECT {names} FROM ({relation_of(lake[trail.PROBLEMS.name])}) AS rows ORDER BY ALL"
    return connect(threads=1).execute(rows).fetchall()


def test_problems_begin_and_end(tmp_path: Path) -> None:
    """A problem has one row for its begin and one for its end, per cluster; a change of its count is no new problem."""
    lake = Lake.create(tmp_path / "lake")
    with lake.writing():
        log = ProblemLog(lake)
        log.note("C", [], 1)
        log.note("C", ["broker a: timed out", "3 messages of broker b could not be read yet"], 2)
        log.note("C", ["5 messages of broker b could not be read yet", "broker a: timed out"], 3)
        log.note("D", ["broker a: timed out"], 4)
        ProblemLog(lake).note("C", ["9 messages of broker b could not be read yet"], 5)
        ProblemLog(lake).note("C", ["9 messages of broker b could not be read yet"], 6)
        ProblemLog(lake).note("C", ["broker a: timed out"], 7)
    assert noted(lake) == [
        ("C", 2, "3 messages of broker b could not be read yet", "BEGUN"),
        ("C", 2, "broker a: timed out", "BEGUN"),
        ("C", 5, "broker a: timed out", "ENDED"),
        ("C", 7, "3 messages of broker b could not be read yet", "ENDED"),
        ("C", 7, "broker a: timed out", "BEGUN"),
        ("D", 4, "broker a: timed out", "BEGUN"),
    ]
