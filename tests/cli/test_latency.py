"""`mqtrail latency`: one part of the way over time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command


def test_a_part_over_time(mqtrail: Command, lake_path: Path) -> None:
    """A row for each time, topic and group; without a known duration the exit code is 1."""
    shown = mqtrail("latency", "--lake", str(lake_path), "--part", "total")
    assert shown.code == 0
    assert "Latency of total" in shown.out
    assert mqtrail("latency", "--lake", str(lake_path), "--to", "2020-01-01").code == 1
    assert mqtrail("latency", "--lake", str(lake_path), "--part", "gone").code == 2


def test_two_spans_side_by_side(mqtrail: Command, lake_path: Path) -> None:
    """A row for each topic, group and stage; nothing before, so no difference is shown."""
    times = ("--from", "2023-11-14T22:00", "--to", "2023-11-14T23:00", "--against", "2023-11-13T22:00")
    shown = mqtrail("latency", "--lake", str(lake_path), *times)
    assert shown.code == 0
    assert "handler" in shown.out
    assert "? →" in shown.out
    one = mqtrail("latency", "--lake", str(lake_path), *times, "--part", "total", "--json")
    found = json.loads(one.out)
    assert {(change["segment"], change["before"], change["p99_change_ms"]) for change in found["changes"]} == {
        ("total", None, None)
    }
    assert found["before"]["end_ms"] - found["before"]["first_ms"] == 3_600_000
    assert mqtrail("latency", "--lake", str(lake_path), "--against", "1d").code == 2
    assert mqtrail("latency", "--lake", str(lake_path), "--against", "1d", "--from", "1h", "--to", "2h").code == 2
    assert mqtrail("latency", "--lake", str(lake_path), "--against", "1d", "--from", "1h").code == 1
