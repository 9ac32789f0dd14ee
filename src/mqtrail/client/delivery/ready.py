"""Ready: messages that wait for the application, in order of arrival.

It needs no limit: the limits of the queues (flow.py) apply to it.
"""

import asyncio

from .batch import Batch
from .delivery import Delivery


class Ready:
    """Deliveries and batches between pullers and handlers."""

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
