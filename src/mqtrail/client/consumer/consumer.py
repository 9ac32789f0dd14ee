"""Consumer: a member of a consumer group. It delivers messages by `async for`, or to handlers by `run`.

    async with Consumer("billing", "127.0.0.1:9876", {"orders": "paid || refunded"}, trace=True) as consumer:
        async for m in consumer:
            async with m.process():
                await bill(m.body)

A queue's offset is committed only up to its lowest unsettled message, so an unsettled message is delivered again.
Source: DefaultMQPushConsumerImpl, ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService, RocketMQ 5.x client.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from mqtrail.net import NAMESRV_DEFAULT, Log
from mqtrail.wire import (
    PROP_CONSUME_ORDERLY,
    PROP_THREADPOOL_CORE_SIZE,
    RETRY_PREFIX,
    SUBSCRIBE_ALL,
    ConsumerData,
    MessageModel,
    MessageQueue,
    ProcessQueueInfo,
    pop_retry_topic,
)

from ..core import ClientClosed, ClientError, ClientInstance, ConsumeHook, ConsumerConfig
from ..delivery import Batch, Delivery, Flow, HandlerLimits, LimitedReady, LimitsNow, Ready, RunningHandlers
from ..pop import PoppedQueues, PopQueue
from .allocate import Allocation, Averagely
from .base import ConsumerBase
from .handlers import AnyHandler, BatchHandler, Handler, Handlers
from .held_queues import HeldQueues
from .listening import RebalanceListener
from .rebalance import Rebalancer, Share
from .start_offset import StartOffsets
from .subscriptions import Expression

log = Log()

H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)

EXPIRED_CHECK_MAX_MS, EXPIRED_CHECK_MIN_MS = 60_000, 100
RENEWAL_CHECKS = 6  # of popped messages that wait, in their invisible time


class Consumer(ConsumerBase):
    """One member of a consumer group. Use it with `async with`, from one event loop.

    subscriptions: topic -> `*`, or tags as in `TagA || TagB`, or Sql("a > 5"); all members of a group must have the
    same. trace: write a trace record of every delivery. client: share another ClientInstance's connections.
    allocation: how queues are divided; it must be the same for all members. on_rebalance: called with a topic, all its
    queues and those of this member, after this member's queues changed.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        subscriptions: Mapping[str, Expression] | None = None,
        *,
        trace: bool = False,
        config: ConsumerConfig | None = None,
        client: ClientInstance | None = None,
        hooks: Sequence[ConsumeHook] = (),
        allocation: Allocation | None = None,
        on_rebalance: RebalanceListener | None = None,
    ) -> None:
        self.config = config = config or ConsumerConfig()
        super().__init__(group, namesrv, subscriptions, trace, config, client, hooks, on_rebalance)
        self._clustering = config.model is MessageModel.CLUSTERING
        self._allocation = allocation or Averagely()
        self._handlers = Handlers()
        self._ready = LimitedReady(HandlerLimits(config, self._stats.throttled)) if config.is_limited else Ready()
        self._flow = Flow(config)
        self._running_handlers = RunningHandlers(self._client, self._hooks, self._stats)
        shared = (self._client, self._names, self._subscriptions, self._ready, self._running_handlers)
        self._queues = HeldQueues(*shared, self._offsets, self._flow, self._stats, config, self._wake)
        self._popped = PoppedQueues(*shared, self._flow, self._stats, config)

    # -- life ------------------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this member consumes now, sorted. Queue id -1: it pops all queues of that broker."""
        return sorted([*self._queues.queues, *self._popped.queues])

    def _prepare(self) -> None:
        if not self._subscriptions:
            raise ClientError(f"consumer of group {self.group!r} has no subscription: subscribe to at least one topic")
        if self._clustering:
            self._subscriptions.put_retry(self._names.retry_topic)
        config, queues = self.config, self._queues
        by_broker = self._clustering and not config.ordered and not config.client_rebalance
        self._rebalancer = Rebalancer(
            self._client,
            self.group,
            self._subscriptions.topics,
            StartOffsets(self._client, self._offsets, config.consume_from, config.consume_from_timestamp_ms),
            queues,
            self._allocation,
            config,
            lock=queues.locks.lock if queues.locks is not None else None,
            popping=self._popped if by_broker else None,
            on_share=self._shared_out,
        )

    def _periodic_work(self) -> Sequence[Coroutine[Any, Any, None]]:
        every, queues, config = self._client.every, self._queues, self.config
        expired_ms = min(EXPIRED_CHECK_MAX_MS, max(EXPIRED_CHECK_MIN_MS, config.consume_timeout_ms // 4))
        work = [
            self._rebalancer.run(),
            every(config.offset_persist_ms, queues.persist),
            every(expired_ms, queues.give_back_expired),
        ]
        if config.is_limited:
            renewal_ms = max(EXPIRED_CHECK_MIN_MS, config.pop_invisible_ms // RENEWAL_CHECKS)
            work.append(every(renewal_ms, self._popped.renew_waiting))
        if queues.locks is not None:
            work.append(every(config.lock_ms, queues.renew_locks))
        return work

    def _ending(self) -> None:
        self._ready.close()

    async def _end(self) -> None:
        """Settle and commit what handlers finish within `close_wait_ms`.

        Messages that are not finished by then are delivered again, here or to another member.
        """
        await self._queues.stop_pulling()
        await self._popped.stop()
        count = await self._running_handlers.wait_idle(self.config.close_wait_ms)
        if count:
            log.warning(
                "consumer.closed_over_handlers",
                group=self.group,
                count=count,
                remedy="none needed: these messages are delivered again; to wait longer, raise close_wait_ms",
            )
        await self._queues.let_go()

    @property
    def limits(self) -> LimitsNow:
        """How many handlers may run, how many do, how many messages wait, and how many had to wait for a limit."""
        return self._ready.now(self.config.concurrency, self._running_handlers.count)

    def suspend(self) -> None:
        """Stop pulling until `resume`; messages already pulled are still delivered."""
        self._flow.suspend()

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._flow.resume()
        self._wake()

    def _restart_pulls(self, topic: str) -> None:
        self._queues.restart_pulls(topic)

    def _wake(self) -> None:
        if self._running:
            self._rebalancer.wake()

    async def _shared_out(self, topic: str, share: Share) -> None:
        """Divide the topic's limits again, and subscribe to the retry topic left by pop consumption."""
        self._flow.share(topic, sorted(share.pulled))
        if self._clustering and not topic.startswith(RETRY_PREFIX) and bool(share.pulled) != bool(share.popped):
            # Popped messages that failed are in a separate retry topic, which a broker reads only in POP mode.
            retries = pop_retry_topic(topic, self.group)
            if share.popped:
                self._subscriptions.remove(retries)
            elif not self.config.client_rebalance and not self.config.ordered:
                self._subscriptions.put_retry(retries)
        await super()._shared_out(topic, share)

    # -- handlers --------------------------------------------------------------------------------------------------

    @overload
    def handler(self, topic: H, /) -> H: ...

    @overload
    def handler(self, topic: str, expression: Expression = SUBSCRIBE_ALL, /) -> Callable[[H], H]: ...

    def handler(self, topic: Any, expression: Expression = SUBSCRIBE_ALL, /) -> Any:
        """Register a handler for `run`. A decorator: with a topic and an expression, or without for all topics.

        With a topic, it also subscribes. A topic may have several handlers, by tag. Raises ClientError if two handlers
        match the same messages, or if batch handlers are registered too; and as `subscribe`.
        """
        return self._register(topic, expression, batches=False)

    @overload
    def batch_handler(self, topic: B, /) -> B: ...

    @overload
    def batch_handler(self, topic: str, expression: Expression = SUBSCRIBE_ALL, /) -> Callable[[B], B]: ...

    def batch_handler(self, topic: Any, expression: Expression = SUBSCRIBE_ALL, /) -> Any:
        """Register a handler of batches (at most `batch_count_max` messages of one queue), as `handler` does."""
        return self._register(topic, expression, batches=True)

    def _register(self, topic: Any, expression: Expression, *, batches: bool) -> Any:
        if callable(topic):
            self._check_batches(batches)
            self._handlers.put(topic, batches=batches)
            return topic

        def register(handler: AnyHandler) -> AnyHandler:
            self._check_batches(batches)
            wanted = self._handlers.put_topic(topic, expression, handler, batches=batches)
            self.subscribe(topic, wanted)
            return handler

        return register

    def _check_batches(self, batches: bool) -> None:
        if not batches and self.config.batch_count_max > 1:
            raise ClientError(
                f"batch_count_max is {self.config.batch_count_max}, so messages are delivered in batches: "
                "register with batch_handler, or iterate over batches()"
            )

    async def run(self, handler: Handler | BatchHandler | None = None) -> None:
        """Call handlers for the messages, `concurrency` at once, until the consumer is closed.

        A handler that returns None has succeeded. If it returns or raises RetryLater, or raises any other exception,
        the message is delivered again. A plain function runs in a thread pool of the consumer.
        """
        if handler is not None:
            self._handlers.put(handler, batches=self.config.batch_count_max > 1)
        if not self._handlers:
            raise ClientError("found no handler: pass one to run(), or register it with @consumer.handler")
        if not self._running:
            raise ClientClosed("the consumer is not running: use it within `async with Consumer(...)`")
        await self._handlers.run(_Items(self._ready), self.config.concurrency)

    # -- iterating -------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        self._check_batches(False)
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message; ends when the consumer is closed."""
        item = await self._ready.take()
        if isinstance(item, Delivery):
            return item
        if item is None:
            raise StopAsyncIteration
        raise ClientError("batch_count_max is above 1, so messages are delivered in batches: iterate over batches()")

    def batches(self) -> AsyncIterator[Batch]:
        """Iterate over batches of at most `batch_count_max` messages of one queue; ends with the consumer."""
        return _Batches(self._ready)

    # -- for operators, through a broker ---------------------------------------------------------------------------

    @property
    def handlers(self) -> Handlers:
        """The handlers of `run`."""
        return self._handlers

    def facts(self) -> dict[str, str]:
        """The settings shown to operators in the running info."""
        limits = self.limits
        return {
            PROP_CONSUME_ORDERLY: "true" if self.config.ordered else "false",
            PROP_THREADPOOL_CORE_SIZE: str(limits.concurrency),
            "PROP_WAITING_COUNT": str(limits.waiting),
            **{f"PROP_THROTTLED_{name.upper()}": str(count) for name, count in sorted(limits.throttled.items())},
        }

    def pop_infos(self) -> Mapping[MessageQueue, PopQueue]:
        """The state of each assignment that is popped."""
        return self._popped.infos()

    def consumer_offsets(self) -> dict[MessageQueue, int]:
        """The offset of each queue that would be committed now."""
        return self._queues.offsets()

    def queue_infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """The state of each queue that is pulled."""
        return self._queues.infos()

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets and continue there; unsettled messages of these queues are dropped."""
        await self._queues.reset(offsets)

    def heartbeat_data(self) -> ConsumerData:
        """This member's entry in heartbeats."""
        return ConsumerData(
            self.group,
            message_model=self.config.model,
            consume_from_where=self.config.consume_from,
            subscription_data_set=self._subscriptions.data(),
        )


class _Items:
    """Iterates over ready items; several workers share them."""

    def __init__(self, ready: Ready) -> None:
        self._ready = ready

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery | Batch:
        item = await self._ready.take()
        if item is None:
            raise StopAsyncIteration
        return item


class _Batches(_Items):
    """The same items as batches: a single delivery becomes a batch of one."""

    async def __anext__(self) -> Batch:
        item = await super().__anext__()
        return item if isinstance(item, Batch) else Batch.of(item)
