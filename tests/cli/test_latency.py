"""`mqtrail latency`: one part of the way over time."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command


def test_a_part_over_time(mqtrail: Command, lake_path: Path) -> None:
    """A row for each time, topic and group; without a known duration the exit code is 1."""
    shown = mqtrail("latency", "--lake", str(lake_path), "--part", "total")
    assert shown.code == 0
    assert "Latency of total" in shown.out
    assert mqtrail("latency", "--lake", str(lake_path), "--to", "2020-01-01").code == 1
    assert mqtrail("latency", "--lake", str(lake_path), "--part", "gone").code == 2
