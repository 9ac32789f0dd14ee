"""Ready: what waits for the application to take it, in the order it came.

It needs no bound of its own: what queues may hold (flow.py) bounds what can be here.
"""

import asyncio

from .batch import Batch
from .delivery import Delivery


class Ready:
    """Deliveries and batches between those who pull and those who handle."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Delivery | Batch | None] = asyncio.Queue()
        self._closed = False

    def put(self, item: Delivery | Batch) -> None:
        """Offer a delivery; it may have become void by the time it is taken."""
        self._items.put_nowait(item)

    def close(self) -> None:
        """Hand out nothing more; whoever waits is told so."""
        self._closed = True
        self._items.put_nowait(None)

    async def take(self) -> Delivery | Batch | None:
        """Return the next that may be handed out; None when nothing more will be."""
        while not self._closed:
            item = await self._items.get()
            if item is not None and not self._closed and (taken := item.taken()) is not None:
                return taken
        self._items.put_nowait(None)  # for the next who waits
        return None
