"""The running handlers, of pulled and popped messages: notifies hooks and counters, and lets close wait for them.

Source: the hooks around MessageListener.consumeMessage, RocketMQ client.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from mqtrail.clock import now_ms
from mqtrail.net import Log

from ..core import ClientInstance, ConsumeHook, queue_name, unique_ids
from .consumer_stats import ConsumerStats
from .delivery import Delivery, Outcome

log = Log()

CANCELLED = Outcome("EXCEPTION", detail="CancelledError: the handler was cancelled")


class RunningHandlers:
    """The messages of one consumer whose handlers have started and that are not settled."""

    def __init__(self, client: ClientInstance, hooks: Sequence[ConsumeHook], stats: ConsumerStats) -> None:
        self._client = client
        self._hooks = tuple(hooks)
        self._stats = stats
        self._running: set[Delivery] = set()
        self._finishing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._next_id = unique_ids().next

    @property
    def count(self) -> int:
        """Number of messages that handlers are processing now."""
        return len(self._running)

    def begun(self, deliveries: Sequence[Delivery]) -> int:
        """Note that a handler starts with these messages; return the time, epoch ms."""
        started_ms = now_ms()
        request_id = self._next_id() if self._hooks else ""
        for delivery in deliveries:
            delivery.started_ms, delivery.request_id = started_ms, request_id
        self._running.update(deliveries)
        for hook in self._hooks:
            for delivery in deliveries:
                hook.consume_started(request_id, delivery.message, started_ms)
        return started_ms

    def ended(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome], late_ms: int) -> None:
        """Note that the handler has finished. late_ms: a handler that ran longer is reported as TIME_OUT."""
        ended_ms = now_ms()
        count = len(deliveries)
        failed = 0
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            success = outcome.result == "SUCCESS"
            failed += not success
            late = ended_ms - delivery.started_ms >= late_ms and outcome.result != "EXCEPTION"
            for hook in self._hooks:
                hook.consume_complete(
                    delivery.request_id,
                    delivery.message,
                    "TIME_OUT" if late else outcome.result,
                    delivery.started_ms,
                    ended_ms,
                    success=success,
                    detail=outcome.detail,
                    batch_count=count,
                )
        self._stats.consumed(deliveries[0].topic, count, failed, ended_ms - deliveries[0].started_ms)
        self._running.difference_update(deliveries)
        self._changed.set()

    def undecodable(self, delivery: Delivery, group: str) -> None:
        """Log an undecodable message that is settled without the application."""
        log.sparse.warning(
            "consumer.undecodable",
            group=group,
            topic=delivery.topic,
            msg_id=delivery.msg_id,
            queue=queue_name(delivery.queue),
            queue_offset=delivery.message.queue_offset,
            reason=delivery.undecodable,
        )

    def abandoned(self, deliveries: Sequence[Delivery]) -> None:
        """Note that the handler was cancelled."""
        self.ended(deliveries, [CANCELLED] * len(deliveries), 1 << 62)

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Await work that settles messages; it completes even if the caller is cancelled."""
        task = self._client.spawn(work)
        self._finishing.add(task)
        task.add_done_callback(self._finished)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            # The client was closed during the work: the message is delivered again, and the caller continues.

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._finishing.discard(task)
        self._changed.set()

    async def wait_idle(self, wait_ms: int) -> int:
        """Wait up to wait_ms until all handlers have finished and settled; return the number still running."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while self._running or self._finishing:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return len(self._running)
