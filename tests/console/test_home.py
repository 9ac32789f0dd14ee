"""The first page: which range a pointer drew over its chart."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mqtrail.console.home import brushed
from mqtrail.console.looks import local_ms
from mqtrail.console.one_search import OneSearch
from mqtrail.gateway import Problem
from tests.waiting import until

TIMES = (1_000, 2_000, 3_000)


@pytest.mark.parametrize(
    ("areas", "expected"),
    [
        ([{"brushType": "lineX", "coordRange": [0, 1]}], (1_000, 3_000)),
        ([{"coordRange": [2, 2]}], (3_000, 4_000)),
        ([{"coordRange": [1, 3]}], None),
        ([{"coordRange": [2, 1]}], None),
        ([{"coordRange": ["x", 1]}], None),
        ([{"coordRange": [0, float("inf")]}], None),
        ([{"coordRange": [1]}], None),
        ([{}], None),
        ([], None),
        (None, None),
    ],
)
def test_the_range_that_was_drawn(areas: Any, expected: tuple[int, int] | None) -> None:
    """What the browser sends is not trusted: a click without a range, and anything else, is no range."""
    assert brushed(areas, TIMES, 1_000) == expected


async def test_one_search_runs_at_a_time() -> None:
    """Who waits for the turn holds no worker. A search that was given up still holds the others back until its end."""
    one, ended = OneSearch(), threading.Event()
    assert one.alone(lambda: 1) == 1
    async with one.turn:
        running = asyncio.create_task(asyncio.to_thread(one.alone, lambda: ended.wait(30)))
        await until(lambda: one._runs.locked())
        with pytest.raises(Problem):
            one.alone(lambda: 2)
        ended.set()
        assert await running
    assert one.alone(lambda: 2) == 2
    with pytest.raises(ZeroDivisionError):
        one.alone(lambda: 1 // 0)
    assert one.alone(lambda: 3) == 3


def test_a_time_that_was_typed() -> None:
    """It is in the zone of the reader; an empty field is no time."""
    assert local_ms("2026-11-23T08:00:00", ZoneInfo("Asia/Shanghai")) == 1_795_392_000_000
    assert local_ms("2026-11-23T08:00", ZoneInfo("Asia/Shanghai")) == 1_795_392_000_000
    assert local_ms("", ZoneInfo("UTC")) is None
    assert local_ms("2026-11", ZoneInfo("UTC")) is None
