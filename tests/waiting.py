"""Waits of tests: poll a condition until it holds, up to a deadline that only a failure reaches."""

import asyncio
import time
from collections.abc import Callable

WITHIN_S = 120.0


async def until(condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait until the condition holds. TimeoutError: it did not within_s."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """The same for tests without a loop."""
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, f"the condition did not hold within {within_s} s"
        time.sleep(0.01)
