"""Ready: messages that wait for the application, in order of arrival.

It needs no limit: the limits of the queues (flow.py) apply to it.
"""

import asyncio
from collections.abc import Iterable
from typing import ClassVar

from .batch import Batch
from .delivery import Delivery, Source
from .limits import LimitsNow


class Ready:
    """Deliveries and batches between pullers and handlers.

    is_limited: `ended` and `forget` must be called.
    """

    is_limited: ClassVar[bool] = False

    def __init__(self) -> None:
        self._items: asyncio.Queue[Delivery | Batch | None] = asyncio.Queue()
        self._closed = False

    def put(self, item: Delivery | Batch) -> None:
        """Offer a delivery. It may have become invalid by the time it is taken; then `take` skips it."""
        self._items.put_nowait(item)

    def close(self) -> None:
        """Stop delivering, and wake all waiting callers."""
        self._closed = True
        self._items.put_nowait(None)

    async def take(self) -> Delivery | Batch | None:
        """Return the next item that may be delivered; None when closed."""
        while not self._closed:
            item = await self._items.get()
            if item is not None and not self._closed and (taken := item.taken()) is not None:
                return taken
        self._items.put_nowait(None)  # for the next waiter
        return None

    def now(self, concurrency: int, running: int) -> LimitsNow:
        """Return the state for operators. concurrency: the configured one. running: number of messages in handlers."""
        return LimitsNow(concurrency, running, self._items.qsize(), {})

    def ended(self, deliveries: Iterable[Delivery], *, succeeded: bool | None) -> None:
        """Note that the application has settled messages. succeeded: of the handler; None: it was cancelled."""

    def forget(self, source: Source, queue_offset: int) -> None:
        """Note that a message was passed on and no handler of it has begun in time."""

    def discard(self, source: Source) -> None:
        """Note that a queue is no longer consumed. `take` skips its messages; where they may wait long, they go now."""
