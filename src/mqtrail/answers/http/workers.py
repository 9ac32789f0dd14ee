"""Runs blocking questions off the event loop: a bounded number runs, a bounded number waits, each has a time-out.

A thread cannot be stopped: a question that timed out keeps its worker until it ends, and counts as running until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final, TypeVar

from mqtrail.gateway import Problem
from mqtrail.wire import MQError

from .problems import problem_of

T = TypeVar("T")
WORKERS_MAX: Final = 4
WAITING_MAX: Final = 64  # questions that run or wait; further ones are refused
TIMEOUT_S: Final = 30.0


class Workers:
    """The threads of an API. Call `run` from one event loop."""

    def __init__(
        self, *, count: int = WORKERS_MAX, waiting_max: int = WAITING_MAX, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._threads = ThreadPoolExecutor(count, "mqtrail-answer")
        self._waiting_max = waiting_max
        self._timeout_s = timeout_s
        self.asked_count = 0  # questions that run or wait

    async def run(self, ask: Callable[[], T]) -> T:
        """Return the answer. Problem: a source failed, too many questions wait, or the time is over."""
        if self.asked_count >= self._waiting_max:
            detail = f"{self.asked_count} requests run or wait, expected at most {self._waiting_max}: try again"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail)
        self.asked_count += 1
        asked = self._threads.submit(ask)
        loop = asyncio.get_running_loop()
        asked.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._done))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), self._timeout_s)
        except TimeoutError:
            detail = f"no answer within {self._timeout_s:g} s: narrow the question, for example its time range"
            raise Problem(HTTPStatus.GATEWAY_TIMEOUT, detail) from None
        except MQError as error:
            raise problem_of(error) from error

    def _done(self) -> None:
        self.asked_count -= 1

    def close(self) -> None:
        """Stop taking questions. Those that run end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
