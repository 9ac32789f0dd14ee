"""ConsumeService: turns pulled messages into deliveries, and the outcomes of handlers into offsets, retries and trace.

Concurrent: each message is delivered independently; a failed one is sent back to the broker. Ordered: only the head of
a queue is delivered, repeatedly until it succeeds or its attempts are used up. Undecodable messages are settled here,
in order, unless the application wants them.
Source: ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService, ProcessQueue.cleanExpiredMsg, RocketMQ client.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mqtrail.net import Log
from mqtrail.wire import MessageExt, MessageModel

from ..core import ClientInstance, ConsumerConfig, Names, OnUndecodable, queue_name, report
from ..delivery import Batch, Delivery, Outcome, ProcessQueue, Ready, RunningHandlers, SendBackCalls
from .offsets import OffsetStore

log = Log()

SUSPEND_MIN_MS, SUSPEND_MAX_MS = 10, 30_000
EXPIRED_DELAY_LEVEL = 3


class ConsumeService:
    """Settles the deliveries of pulled queues.

    may_work: returns whether this client holds an ordered queue's lock now. on_unlocked: called with an ordered queue
    that has messages to deliver and whose lock this client does not hold.
    """

    def __init__(
        self,
        client: ClientInstance,
        names: Names,
        ready: Ready,
        offsets: OffsetStore,
        running_handlers: RunningHandlers,
        config: ConsumerConfig,
        *,
        may_work: Callable[[ProcessQueue], bool],
        on_unlocked: Callable[[ProcessQueue], None],
    ) -> None:
        self._client = client
        self._names = names
        self._ready = ready
        self._offsets = offsets
        self._running_handlers = running_handlers
        self._config = config
        self._clustering = config.model is MessageModel.CLUSTERING
        self._rejects = config.on_undecodable is OnUndecodable.REJECT
        self._may_work = may_work
        self._on_unlocked = on_unlocked
        self._send_back = SendBackCalls(client, names, config)

    # -- out -------------------------------------------------------------------------------------------------------

    def offer(self, queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Offer pulled messages: all of them, or in ordered mode the head of the queue if none is being delivered."""
        if self._config.ordered:
            self.offer_head(queue)
            return
        if self._rejects and (bad := [message for message in messages if message.undecodable is not None]):
            for message in bad:
                self._client.spawn(self._reject(queue, message))
            messages = [message for message in messages if message.undecodable is None]
        count = self._config.batch_count_max
        if count == 1:
            for message in messages:
                self._ready.put(Delivery(self._names.restored(message), queue, self))
            return
        for first in range(0, len(messages), count):
            self._offer_together(queue, messages[first : first + count])

    def _offer_together(self, queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        deliveries = [Delivery(self._names.restored(message), queue, self) for message in messages]
        self._ready.put(deliveries[0] if self._config.batch_count_max == 1 else Batch(deliveries, self))

    def offer_head(self, queue: ProcessQueue) -> None:
        """Ordered: offer the next messages of a queue, unless some are being delivered."""
        if queue.out or queue.dropped or queue.closing:
            return
        head = queue.head(self._config.batch_count_max)
        if not head:
            return
        if self._rejects and head[0].undecodable is not None:
            queue.out = 1
            self._client.spawn(self._reject(queue, head[0]))
            return
        if self._rejects:
            head = list(itertools.takewhile(lambda message: message.undecodable is None, head))
        queue.out = len(head)
        self._offer_together(queue, head)

    async def _reject(self, queue: ProcessQueue, message: MessageExt) -> None:
        """Settle an undecodable message without the application."""
        delivery = Delivery(self._names.restored(message), queue, self)
        if delivery.taken() is not None:
            self._running_handlers.undecodable(delivery, self._names.group)
            await delivery.reject(message.undecodable or "")

    def startable(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return those that may still be delivered to the application, and note the time."""
        queue = deliveries[0].process_queue
        assert isinstance(queue, ProcessQueue)
        if queue.dropped or queue.closing:
            return ()
        if self._config.ordered and not self._may_work(queue):
            queue.out = 0
            self._on_unlocked(queue)
            return ()
        left = [delivery for delivery in deliveries if delivery.message.queue_offset in queue]
        now = asyncio.get_running_loop().time()
        for delivery in left:
            queue.handed[delivery.message.queue_offset] = now
        return left

    def begun(self, deliveries: Sequence[Delivery]) -> None:
        queue = deliveries[0].process_queue
        assert isinstance(queue, ProcessQueue)
        queue.last_consume_ms = self._running_handlers.begun(deliveries)
        queue.running.update(delivery.message.queue_offset for delivery in deliveries)

    # -- back ------------------------------------------------------------------------------------------------------

    async def settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        queue = deliveries[0].process_queue
        assert isinstance(queue, ProcessQueue)
        self._running_handlers.ended(deliveries, outcomes, self._config.consume_timeout_ms)
        succeeded = all(outcome.result == "SUCCESS" for outcome in outcomes)
        if self._ready.is_limited:
            self._ready.ended(deliveries, succeeded=succeeded)
        for delivery in deliveries:
            queue.returned(delivery.message.queue_offset)
        queue.out = max(0, queue.out - len(deliveries))
        if queue.dropped:
            return
        if succeeded:
            self._done(queue, [delivery.message.queue_offset for delivery in deliveries])
        else:
            queue.out += self._config.ordered  # nothing of the queue is delivered until this is decided
            await self._running_handlers.finish(self._failed(queue, deliveries, outcomes))

    def abandon(self, deliveries: Sequence[Delivery]) -> None:
        """A handler was cancelled: offer its unsettled messages again."""
        queue = deliveries[0].process_queue
        assert isinstance(queue, ProcessQueue)
        if any(delivery.started_ms for delivery in deliveries):
            self._running_handlers.abandoned(deliveries)
        self._ready.ended(deliveries, succeeded=None)
        for delivery in deliveries:
            queue.returned(delivery.message.queue_offset)
        queue.out = max(0, queue.out - len(deliveries))
        if queue.dropped:
            return
        if self._config.ordered:
            self.offer_head(queue)
            return
        messages = [queue.message(delivery.message.queue_offset) for delivery in deliveries]
        self.offer(queue, [message for message in messages if message is not None])

    async def _failed(self, queue: ProcessQueue, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        if self._config.ordered:
            await self._retry_in_place(queue, deliveries, outcomes)
            return
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            message = queue.message(delivery.message.queue_offset)
            if message is None or queue.dropped:
                continue  # sent back already: its handler ran for too long
            if outcome.result == "SUCCESS":
                self._done(queue, [message.queue_offset])
            elif not self._clustering:
                log.sparse.warning(
                    "consumer.message_dropped", group=self._names.group, msg_id=message.msg_id, model="BROADCASTING"
                )
                self._done(queue, [message.queue_offset])
            elif await self._given_back(delivery.message, outcome.delay_level):
                self._done(queue, [message.queue_offset])
            else:
                again = _counted_up(message)
                queue.replace(again)
                loop = asyncio.get_running_loop()
                loop.call_later(self._config.resubmit_ms / 1000, self._offer_again, queue, again)

    async def _given_back(self, message: MessageExt, delay_level: int) -> bool:
        if self._rejects and message.undecodable is not None:
            return await self._send_back.dead_letter(message)
        return await self._send_back.give_back(message, delay_level)

    def _offer_again(self, queue: ProcessQueue, message: MessageExt) -> None:
        if not queue.dropped and message.queue_offset in queue:
            self.offer(queue, [message])

    def _done(self, queue: ProcessQueue, offsets: Iterable[int]) -> None:
        """Remove settled messages: note the offset to commit, wake the puller, in ordered mode offer the next."""
        commit_offset = None
        for offset in offsets:
            found = queue.remove(offset)
            commit_offset = commit_offset if found is None else found
        if commit_offset is not None and not queue.dropped:
            self._offsets.update(queue.queue, commit_offset, only_up=not self._config.ordered)
            queue.on_room()
        if self._config.ordered:
            self.offer_head(queue)

    async def _retry_in_place(
        self, queue: ProcessQueue, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]
    ) -> None:
        """Ordered: settle the messages before the first failure, and suspend the queue before it is retried.

        A message whose attempts are used up is sent to the broker, which makes it a dead letter.
        """
        first = next(place for place, outcome in enumerate(outcomes) if outcome.result != "SUCCESS")
        done = [delivery.message.queue_offset for delivery in deliveries[:first]]
        attempts_max = self._config.attempts_max
        is_kept = False
        for delivery in deliveries[first:]:
            message = queue.message(delivery.message.queue_offset)
            if message is None:
                continue
            if self._rejects and message.undecodable is not None:
                if not self._clustering or await self._send_back.dead_letter(delivery.message):
                    done.append(message.queue_offset)
                    continue
            elif attempts_max is not None and message.reconsume_times >= attempts_max:
                try:
                    await self._send_back.resend(delivery.message, 3 + message.reconsume_times)
                    done.append(message.queue_offset)
                    continue
                except Exception as error:
                    report("consumer.give_up_failed", error, group=self._names.group, msg_id=message.msg_id)
            is_kept = True
            queue.replace(_counted_up(message))
        if not is_kept:
            queue.out -= 1
            self._done(queue, done)
            return
        for offset in done:
            if (commit_offset := queue.remove(offset)) is not None and not queue.dropped:
                self._offsets.update(queue.queue, commit_offset, only_up=False)
        suspend_ms = outcomes[first].suspend_ms
        wait_ms = self._config.suspend_ms if suspend_ms is None else suspend_ms
        wait_s = min(SUSPEND_MAX_MS, max(SUSPEND_MIN_MS, wait_ms)) / 1000
        asyncio.get_running_loop().call_later(wait_s, self._go_on, queue)

    def _go_on(self, queue: ProcessQueue) -> None:
        queue.out = max(0, queue.out - 1)
        self.offer_head(queue)

    async def give_back_expired(self, queues: Iterable[ProcessQueue]) -> None:
        """Send back messages whose handlers run longer than consume_timeout; the handlers are not stopped."""
        if self._config.ordered or not self._clustering:
            return
        handed_before = asyncio.get_running_loop().time() - self._config.consume_timeout_ms / 1000
        for queue in queues:
            for offset in [offset for offset, handed in queue.handed.items() if handed <= handed_before]:
                message = queue.message(offset)
                if message is None or queue.dropped:
                    continue
                if await self._send_back.give_back(self._names.restored(message), EXPIRED_DELAY_LEVEL):
                    if offset not in queue.running:
                        self._ready.forget(queue, offset)
                    name = queue_name(queue.queue)
                    log.sparse.warning(
                        "consumer.handler_stuck", group=self._names.group, msg_id=message.msg_id, queue=name
                    )
                    self._done(queue, [offset])


def _counted_up(message: MessageExt) -> MessageExt:
    return replace(message, reconsume_times=message.reconsume_times + 1)
