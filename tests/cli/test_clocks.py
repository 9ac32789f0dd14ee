"""`mqtrail clocks` over a lake of histories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mqtrail.answers import HostClock
from mqtrail.cli.draw_clocks import difference, jump
from tests.cli.conftest import Command

ONE = HostClock(
    cluster="c",
    host="10.0.0.1",
    broker_name="broker-a",
    at_ms=1_700_000_000_000,
    state="KNOWN",
    low_ms=8_996,
    high_ms=9_004,
    offset_ms=9_000,
    error_ms=4,
    jump_ms=0,
    jumped_ms=None,
)


def test_clocks_of_a_lake(mqtrail: Command, lake_path: Path) -> None:
    """Each host that traces or sends has a row; a time without messages has none."""
    found = mqtrail("clocks", "--lake", str(lake_path), "--json")
    assert found.code == 0
    hosts = {row["host"] for row in found.json["clocks"]}
    assert {"10.0.0.1", "10.0.0.2"} <= hosts
    assert "10.0.0.1" in mqtrail("clocks", "--lake", str(lake_path)).out
    assert mqtrail("clocks", "--lake", str(lake_path), "--to", "2020-01-01").code == 1


def test_what_is_not_known_is_said() -> None:
    """A difference has its sign and error; a bound is no difference."""
    shown: dict[str, dict[str, Any]] = {
        "+9 s ± 4 ms": {},
        "-9 s ± 4 ms": {"offset_ms": -9_000},
        "0 ± 4 ms": {"offset_ms": 0},
        "?, ≥ +9 s": {"offset_ms": None, "high_ms": None, "state": "PARTLY"},
        "it was set": {"offset_ms": None, "state": "CHANGED"},
    }
    for text, changes in shown.items():
        assert difference(replace(ONE, **changes)).plain == text
    assert jump(ONE) == "-"
