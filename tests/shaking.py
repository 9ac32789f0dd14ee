"""Event loops as on a machine that is busy: they stall, and see what is ready late and in any order.

`pytest --shake SEED` does it to every test that runs on asyncio's own loop. What fails then on a good machine fails on
a busy one now and then: a test that does not wait for what it checks, a time-out that is too near, or a race of ours.
Sockets decide too, so that a seed leads to like runs, not to equal ones.
"""

import asyncio
import selectors
import sys
import time
from random import Random
from typing import Any

import pytest

STALL_CHANCE = 0.05  # of each round of a loop
STALL_S = 0.05  # at most
LOOK_S = 0.02  # shorter waits between two checks of a test's condition become one round of the loop


def shake(patch: pytest.MonkeyPatch, seed: str) -> None:
    """Shake every asyncio loop of this process until patch is undone."""
    chance = Random(seed)
    sleep, select = asyncio.sleep, selectors.DefaultSelector.select

    async def sleep_shorter(delay: float, result: Any = None) -> Any:
        # A condition that is checked in every round is noticed as soon as it holds.
        is_look = 0 < delay <= LOOK_S and sys._getframe(1).f_globals["__name__"].startswith("tests.")
        return await sleep(0 if is_look else delay, result)

    def select_some(selector: Any, timeout: float | None = None) -> Any:
        if chance.random() < STALL_CHANCE:
            time.sleep(chance.random() * STALL_S)
        ready = select(selector, timeout)
        chance.shuffle(ready)
        return ready[: chance.randint(1, len(ready))] if ready else ready

    patch.setattr(asyncio, "sleep", sleep_shorter)
    patch.setattr(selectors.DefaultSelector, "select", select_some)
