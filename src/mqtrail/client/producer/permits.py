"""Permits: limit the number of sends, and of bytes, in flight. A send without a permit waits.

Source: the semaphores of DefaultMQProducerImpl (back-pressure of asynchronous sends) and NettyRemotingAbstract,
RocketMQ 5.x client.
"""

import asyncio
import contextlib
from collections import deque


class Permits:
    """Permits of one producer; belongs to one event loop. First come, first served.

    count_max: maximum number of sends; size_max: maximum bytes of their bodies, None for no limit. A body above
    size_max is sent when no other send is in flight. Callers wait in `take`; this class only keeps their order.
    """

    __slots__ = ("_waiting", "count", "count_max", "size", "size_max")

    def __init__(self, count_max: int, size_max: int | None = None) -> None:
        self.count_max = count_max
        self.size_max = size_max
        self.count = 0
        self.size = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, size: int) -> bool:
        """Take a permit for size bytes if one is free and no other send is waiting; return whether it was taken."""
        if self._waiting or self.count >= self.count_max:
            return False
        if self.size_max is not None and not self._fits(size):
            return False
        self.count += 1
        self.size += size
        return True

    async def take(self, size: int, deadline: float) -> None:
        """Wait for a permit for size bytes until deadline (seconds, the loop's clock). Raises TimeoutError."""
        if self.take_now(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(size)  # the permit was granted just as this send timed out
            else:
                with contextlib.suppress(ValueError):  # already removed by _hand_out
                    self._waiting.remove(entry)
                self._hand_out()
            raise

    def give(self, size: int) -> None:
        """Return a permit for size bytes."""
        self.count -= 1
        self.size -= size
        if self._waiting:
            self._hand_out()

    @property
    def waiting_count(self) -> int:
        """Number of sends that wait for a permit."""
        return len(self._waiting)

    def _fits(self, size: int) -> bool:
        if self.count >= self.count_max:
            return False
        return self.size_max is None or not self.size or self.size + size <= self.size_max

    def _hand_out(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if turn.done():  # cancelled; its owner has not run yet
                continue
            self.count += 1
            self.size += size
            turn.set_result(None)
