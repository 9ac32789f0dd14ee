"""The rules of lag: from offsets of queues to waiting messages, trends and sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mqtrail.client import (
    GroupLag,
    LagSum,
    QueueLag,
    QueueReading,
    Trend,
    TrendState,
)
from mqtrail.client.admin.backlog import queue_lag, ranked_lags, sum_of, trend_of, with_age

PLACE = QueueReading("orders", "broker-a", 0)


def reading(offset: int | None, first: int | None, end: int | None, **more: Any) -> QueueReading:
    return replace(PLACE, consumer_offset=offset, min_offset=first, max_offset=end, **more)


def lag(offset: int | None, first: int | None, end: int | None, **more: Any) -> QueueLag:
    return queue_lag(reading(offset, first, end, **more))


@pytest.mark.parametrize(
    ("offset", "first", "end", "start", "count", "expired"),
    [
        (5, 0, 9, 5, 4, 0),
        (9, 0, 9, 9, 0, 0),
        (0, 0, 0, 0, 0, 0),
        (2, 5, 9, 5, 4, 3),  # below the first kept message
        (2, 9, 9, 9, 0, 7),  # all of them expired
        (None, 4, 4, 4, 0, 0),  # an empty queue without an offset
    ],
)
def test_what_waits(offset: int | None, first: int, end: int, start: int, count: int, expired: int) -> None:
    """Offsets are clamped to the queue's range; the age of waiting messages is not known yet."""
    found = lag(offset, first, end)
    assert (found.next_offset, found.lag_count, found.expired_count) == (start, count, expired)
    assert found.lag_ms == (None if count else 0)
    assert not found.why


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (lag(10, 0, 9), "past the queue's end"),
        (lag(None, 0, 9), "no committed offset"),
        (lag(5, None, None, why="broker-a is down"), "broker-a is down"),
        (lag(5, None, None), "range of the queue is unknown"),
        (lag(None, 0, 9, why="broadcasting", starts_at_first=True), "broadcasting"),
    ],
)
def test_what_is_unknown(found: QueueLag, why: str) -> None:
    """An unknown lag is None, never 0, and has a reason."""
    assert (found.lag_count, found.lag_ms, found.next_offset) == (None, None, None)
    assert why in found.why
    assert found.is_unknown
    assert not found.waits


def test_a_group_that_starts_at_the_first_message() -> None:
    """All messages of a queue without an offset wait for such a group."""
    found = lag(None, 3, 9, starts_at_first=True)
    assert (found.next_offset, found.lag_count, found.expired_count) == (3, 6, 0)


def test_ages() -> None:
    """A known age has no reason; an unknown one does."""
    waiting = lag(5, 0, 9)
    assert (with_age(waiting, 7).lag_ms, with_age(waiting, 7, "x").why) == (7, "")
    assert (with_age(waiting, None, "no clock").lag_ms, with_age(waiting, None, "no clock").why) == (None, "no clock")


def test_sums() -> None:
    """Unknown queues are counted apart, and the known sum is a lower bound. Without queues nothing waits."""
    waits, empty, unknown = with_age(lag(5, 0, 9), 7_000), lag(9, 0, 9), lag(None, 0, 9)
    assert sum_of([]) == LagSum(0, 0, 0, 0, 0)
    assert sum_of([empty]) == LagSum(1, 0, 0, 0, 0)
    assert sum_of([waits, empty]) == LagSum(2, 4, 7_000, 0, 0)
    assert sum_of([waits, with_age(lag(2, 5, 9), 9_000)]) == LagSum(2, 8, 9_000, 0, 3)
    assert sum_of([waits, unknown]) == LagSum(2, 4, 7_000, 1, 0)
    assert sum_of([unknown]) == LagSum(1, None, None, 1, 0)
    assert sum_of([empty, unknown]) == LagSum(2, 0, None, 1, 0), "an empty queue does not show the lag of another one"
    assert sum_of([with_age(lag(5, 0, 9), None, "x")]) == LagSum(1, 4, None, 1, 0)


def later(offset: int | None, first: int | None, end: int | None, after_ms: int = 2_000) -> QueueReading:
    return reading(offset, first, end, offset_ms=after_ms, range_ms=after_ms)


@pytest.mark.parametrize(
    ("before", "after", "state", "drain_s"),
    [
        (reading(0, 0, 100), later(40, 0, 120), TrendState.DRAINS, 8.0),  # 20/s out, 10/s in, 80 wait
        (reading(0, 0, 100), later(10, 0, 140), TrendState.GROWS, None),
        (reading(0, 0, 100), later(0, 0, 100), TrendState.STEADY, None),
        (reading(0, 0, 100), later(100, 0, 100), TrendState.EMPTY, 0.0),
    ],
)
def test_trends(before: QueueReading, after: QueueReading, state: TrendState, drain_s: float | None) -> None:
    """A trend has the rates between two readings, and the seconds until nothing waits."""
    found = trend_of([(before, after)])
    assert (found.state, found.drain_s) == (state, drain_s)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, later(0, 0, 100)),
        (reading(50, 0, 100), later(20, 0, 100)),  # a reset
        (reading(None, 0, 100), later(20, 0, 100)),
        (reading(20, 0, 100), later(20, 0, 50)),  # the queue was made again
        (reading(20, None, None), later(20, 0, 50)),
        (reading(20, 0, 100), later(20, None, None)),
        (reading(20, 0, 100), reading(20, 0, 100)),  # no time in between
    ],
)
def test_unknown_trends(before: QueueReading | None, after: QueueReading) -> None:
    """One reading, a reset or an unknown value gives no trend, neither for the queue nor for its group."""
    assert trend_of([(before, after)]) == Trend()
    known = (reading(0, 0, 100), later(40, 0, 120))
    assert trend_of([known, (before, after)]) == Trend()


def test_the_trend_of_several_queues() -> None:
    """Their rates are added."""
    found = trend_of([(reading(0, 0, 100), later(40, 0, 100)), (reading(0, 0, 10), later(0, 0, 30))])
    assert (found.consumed_per_s, found.produced_per_s, found.drain_s) == (20.0, 10.0, 9.0)


def test_ranks() -> None:
    """The longest wait is first, then unknown waits, then groups without lag."""

    def group(name: str, topics: LagSum, retry: LagSum | None = None) -> GroupLag:
        return GroupLag(name, 0, topics, retry or sum_of([]), 0, Trend())

    groups = [
        group("empty", sum_of([lag(9, 0, 9)])),
        group("unknown", sum_of([lag(None, 0, 9)])),
        group("short", LagSum(1, 500, 1_000, 0, 0)),
        group("long", LagSum(1, 1, 9_000, 0, 0)),
        group("retries", sum_of([]), LagSum(1, 1, 5_000, 0, 0)),
        group("undated", LagSum(1, 4, None, 1, 0)),
    ]
    assert [one.group_name for one in ranked_lags(groups)] == [
        "long",
        "retries",
        "short",
        "undated",
        "unknown",
        "empty",
    ]
