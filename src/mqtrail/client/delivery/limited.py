"""LimitedReady: messages that wait for the application and for limits; see limits.py."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from .batch import Batch
from .delivery import Delivery, Source
from .limits import HandlerLimits, LimitsNow
from .ready import Ready

WAIT_MAX_S: Final = 60.0


class LimitedReady(Ready):
    """Deliveries and batches between pullers and handlers, passed on within limits.

    Everything is decided in one turn of the event loop, so that a cancelled caller neither has an item nor holds a
    place.
    """

    is_limited = True

    def __init__(self, limits: HandlerLimits) -> None:
        super().__init__()
        self._limits = limits
        self._takers: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def now(self, concurrency: int, running: int) -> LimitsNow:
        return self._limits.now

    def put(self, item: Delivery | Batch) -> None:
        self._limits.put(item)
        self._wake_one()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._takers:
            self._wake_one()

    async def take(self) -> Delivery | Batch | None:
        loop = asyncio.get_running_loop()
        while not self._closed:
            picked = self._limits.take(now := loop.time())
            if picked is None:
                await self._wait(loop)
            elif (taken := picked.item.taken()) is not None:
                self._limits.started(picked, taken, now)
                self._wake_one()  # there may be more
                return taken
        return None

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until an item may have become free to start."""
        if self._limits.wait_s is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(min(self._limits.wait_s, WAIT_MAX_S), self._wake_one)
        taker = loop.create_future()
        self._takers.append(taker)
        try:
            await taker
        except asyncio.CancelledError:
            if taker.done() and not taker.cancelled():
                self._wake_one()  # it was this caller's turn
            else:
                self._takers.remove(taker)
            raise

    def _wake_one(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return

    def ended(self, deliveries: Iterable[Delivery], *, succeeded: bool | None) -> None:
        self._limits.ended(deliveries, asyncio.get_running_loop().time(), succeeded=succeeded)
        self._wake_one()

    def forget(self, source: Source, queue_offset: int) -> None:
        self.ended(self._limits.found(source, queue_offset), succeeded=None)

    def discard(self, source: Source) -> None:
        self._limits.discard(source)
