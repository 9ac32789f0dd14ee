"""Calls that the event loop waits for only so long."""

import asyncio
import threading

import pytest

from mqtrail.node.in_time import InTime


def test_results_and_errors_come_back() -> None:
    """As from a direct call."""
    in_time = InTime(60.0)
    assert in_time(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0)
    assert in_time(threading.current_thread) is not threading.current_thread()


def test_a_call_that_does_not_end_holds_nobody() -> None:
    """It times out; later calls fail at once while it runs, and work after its end."""
    end = threading.Event()
    in_time = InTime(0.01)
    with pytest.raises(TimeoutError):
        in_time(end.wait)
    in_time._wait_s = 60.0
    with pytest.raises(TimeoutError):
        in_time(lambda: 1)
    late = in_time._late
    assert late is not None
    end.set()
    assert late.result(60.0)
    assert in_time(lambda: 2) == 2


async def test_a_later_call_ends_on_the_loop() -> None:
    """Also when it fails; the loop serves others meanwhile."""
    end, done = threading.Event(), asyncio.Event()
    in_time = InTime(60.0)
    in_time.later(end.wait, lambda: None)
    in_time.later(lambda: 1 // 0, done.set)
    assert not done.is_set()
    end.set()
    async with asyncio.timeout(60):
        await done.wait()
