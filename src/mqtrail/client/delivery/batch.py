"""Batch: several messages of one queue, delivered and settled together.

    async for batch in consumer.batches():
        async with batch.process():            # all succeed when the block ends, all are retried when it raises
            await store([m.body for m in batch])

Inside the block, `m.retry_later()` retries a single message, `batch.retry_from(index)` that one and all after it. With
ordered consumption the queue continues with the first one that failed.
Source: consumeMessageBatchMaxSize and ConsumeConcurrentlyContext.ackIndex, RocketMQ client.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import overload

from mqtrail.net import Log
from mqtrail.wire import MessageQueue

from ..core import RetryLater
from .delivery import Delivery, Outcome, Settler

log = Log()


class Batch(Sequence[Delivery]):
    """Deliveries of one queue, at least one, in ascending queue offset. Each may also be settled separately."""

    __slots__ = ("_deliveries", "_settler")

    def __init__(self, deliveries: Sequence[Delivery], settler: Settler) -> None:
        self._deliveries = tuple(deliveries)
        self._settler = settler

    @classmethod
    def of(cls, delivery: Delivery) -> "Batch":
        """Return the batch of one delivery."""
        return cls((delivery,), delivery.settler)

    def __len__(self) -> int:
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...

    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        return self._deliveries[index]

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries)

    @property
    def queue(self) -> MessageQueue:
        """The queue they were pulled from."""
        return self._deliveries[0].queue

    @property
    def topic(self) -> str:
        """The topic they were sent to; of a retry topic's messages, that of the first."""
        return self._deliveries[0].topic

    def taken(self) -> "Batch | None":
        """Return the messages that may still be delivered to the application; None if there are none."""
        left = self._settler.startable(self._deliveries)
        if not left:
            return None
        return self if len(left) == len(self._deliveries) else Batch(left, self._settler)

    def begin(self) -> None:
        """Note that the handler starts now. `process` calls this."""
        fresh = [delivery for delivery in self._deliveries if not delivery.started_ms]
        if fresh:
            self._settler.begun(fresh)

    def retry_from(self, index: int, delay_level: int = 0, detail: str = "") -> None:
        """Decide inside `process` that the message at index and all after it are retried."""
        for delivery in self._deliveries[index:]:
            delivery.retry_later(delay_level, detail)

    async def ack(self) -> None:
        """Settle all as successes."""
        await self._settle(None)

    async def retry(self, delay_level: int = 0, detail: str = "", *, suspend_ms: int | None = None) -> None:
        """Settle all as failures: they are delivered again."""
        await self._settle(Outcome("FAILED", delay_level, suspend_ms, detail))

    @asynccontextmanager
    async def process(self, *, reraise: bool = False) -> AsyncIterator["Batch"]:
        """Settle all messages when the block ends; see Delivery.process."""
        self.begin()
        try:
            yield self
        except RetryLater as later:
            await self._settle(Outcome.of(later))
        except Exception as error:
            log.sparse.exception("consumer.handler_failed", topic=self.topic, msg_id=self[0].msg_id, count=len(self))
            await self._settle(Outcome.of(error))
            if reraise:
                raise
        except BaseException:
            if left := [delivery for delivery in self._deliveries if not delivery.settled]:
                self._settler.abandon(left)
            raise
        else:
            await self._settle(None)

    async def _settle(self, outcome: Outcome | None) -> None:
        """Settle what is not settled yet: with outcome, or with the outcome of each delivery."""
        left = [delivery for delivery in self._deliveries if not delivery.settled]
        for delivery in left:
            delivery.claim()
        self.begin()
        if left:
            await self._settler.settle(left, [outcome or delivery.outcome for delivery in left])

    def __repr__(self) -> str:
        return f"Batch({self.topic!r}, {len(self)} messages from {self[0].msg_id!r})"
