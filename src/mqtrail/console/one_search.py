"""Lets one search that takes long run at a time, so that those who wait for it hold none of the few worker threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

from mqtrail.gateway import Problem

T = TypeVar("T")


class OneSearch:
    """A turn that pages take. Wait for `turn` on the event loop, then call `alone` in a worker."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._runs = threading.Lock()

    def alone(self, search: Callable[[], T]) -> T:
        """Return search(). Problem: one that was given up after its time still runs."""
        if not self._runs.acquire(blocking=False):
            words = "an earlier search for incidents still runs: its result is shown when it has ended"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, words)
        try:
            return search()
        finally:
            self._runs.release()
