"""Consumer: a member of a consumer group. Messages come by `async for`, or to a handler by `run`.

    async with Consumer("billing", "127.0.0.1:9876", {"orders": "paid || refunded"}, trace=True) as consumer:
        async for m in consumer:
            async with m.process():
                await bill(m.body)

A queue's offset is committed only up to its lowest unsettled message, so a message that was not settled comes again.
Source: DefaultMQPushConsumerImpl, ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService, RocketMQ 5.x client.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from mqtrail.client.config import NAMESRV_DEFAULT, ConsumerConfig
from mqtrail.client.delivery import Delivery
from mqtrail.client.errors import ClientClosed, ClientError, RetryLater, RouteNotFound
from mqtrail.client.held_queues import HeldQueues
from mqtrail.client.hooks import ConsumeHook
from mqtrail.client.identity import now_ms
from mqtrail.client.instance import ClientInstance
from mqtrail.client.rebalance import Rebalancer
from mqtrail.client.serving import ConsumerServices
from mqtrail.client.trace import ClientTracer
from mqtrail.net import Log
from mqtrail.wire import (
    ConsumerData,
    MessageModel,
    MessageQueue,
    ProcessQueueInfo,
    RemotingCommand,
    SubscriptionData,
    retry_topic,
    validate_group,
    validate_topic,
)

log = Log()

HandlerResult = RetryLater | None
Handler = Callable[[Delivery], Awaitable[HandlerResult] | HandlerResult]


class Consumer:
    """One member of a consumer group. Use it with `async with`, from one event loop.

    subscriptions: topic -> expression: `*`, or tags as in `TagA || TagB`; all members of a group must subscribe
    alike. trace: write a trace record of every delivery. client: share another ClientInstance's connections.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        subscriptions: Mapping[str, str] | None = None,
        *,
        trace: bool = False,
        config: ConsumerConfig | None = None,
        client: ClientInstance | None = None,
        hooks: Sequence[ConsumeHook] = (),
    ) -> None:
        validate_group(group)
        self.group = group
        self.config = config or ConsumerConfig()
        self._own_client = client is None
        self._client = client or ClientInstance(namesrv, self.config.instance)
        self._subscriptions: dict[str, SubscriptionData] = {}
        for topic, expression in (subscriptions or {}).items():
            self.subscribe(topic, expression)
        self._tracer = ClientTracer(self._client, group, self.config.trace, "CONSUME") if trace else None
        listeners = [*([self._tracer] if self._tracer else []), *hooks]
        self._handler: Handler | None = None
        self._queues = HeldQueues(self._client, group, self._subscriptions, listeners, self.config)
        self._services = ConsumerServices(self)
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False
        self.started_ms = 0

    # -- life ------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """How this member is known to the brokers."""
        return self._client.client_id

    @property
    def tracer(self) -> ClientTracer | None:
        """The trace of this consumer, when trace is on."""
        return self._tracer

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues this member consumes now, sorted."""
        return self._queues.queues

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Subscribe to a topic, before `start`. Raises InvalidParameter for a bad name."""
        validate_topic(topic)
        self._subscriptions[topic] = SubscriptionData.build(topic, expression, sub_version=now_ms())

    def handler(self, handler: Handler) -> Handler:
        """Register a handler for `run`: a decorator."""
        self._handler = handler
        return handler

    async def start(self) -> None:
        """Join the group and begin to pull. Topics that do not exist yet are waited for."""
        if self._running:
            return
        if not self._subscriptions:
            raise ClientError(f"consumer of group {self.group!r} without a subscription: give at least one topic")
        if self.config.model is MessageModel.CLUSTERING:
            topic = retry_topic(self.group)
            self._subscriptions.setdefault(topic, SubscriptionData.build(topic, "*", sub_version=now_ms()))
        self.started_ms = now_ms()
        queues = self._queues
        lock = queues.locks.lock if queues.locks is not None else None
        topics = list(self._subscriptions)
        self._rebalancer = Rebalancer(self._client, self.group, topics, queues.offset_store, queues, lock, self.config)
        await self._client.start()
        self._client.add_consumer(self)
        self._running = True
        try:
            for topic in self._subscriptions:
                try:
                    await self._client.route(topic)
                except RouteNotFound:
                    log.info("consumer.topic_missing", group=self.group, topic=topic)
            await self._client.heartbeat()
        except BaseException:
            self._running = False
            await self._client.remove_consumer(self.group)
            if self._own_client:
                await self._client.close()
            raise
        if self._tracer is not None:
            self._tracer.start()
        every = self._client.every
        stuck_ms = min(60_000, max(100, self.config.consume_timeout_ms // 4))
        work = [
            self._rebalancer.run(),
            every(self.config.offset_persist_ms, queues.persist),
            every(stuck_ms, queues.give_back_stuck),
        ]
        if queues.locks is not None:
            work.append(every(self.config.lock_ms, queues.renew_locks))
        self._tasks = [self._client.spawn(one) for one in work]

    async def close(self) -> None:
        """Stop pulling, wait for running handlers, commit, leave the group, bring the trace home."""
        if not self._running:
            return
        self._running = False
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        try:
            await self._queues.stop_pulling()
            count = await self._queues.wait_idle(self.config.close_wait_ms)
            if count:
                log.warning("consumer.closed_over_handlers", group=self.group, count=count, remedy="they come again")
            await self._queues.let_go()
            if self._tracer is not None:
                await self._tracer.close()
            await self._client.remove_consumer(self.group)
        finally:
            if self._own_client:
                await self._client.close()

    # -- getting messages ------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message; ends when the consumer is closed."""
        ready = self._queues.ready
        while self._running or not ready.empty():
            delivery = await ready.get()
            if delivery is None:
                ready.put_nowait(None)  # for the next who asks
                break
            if self._queues.may_start(delivery):
                return delivery
        raise StopAsyncIteration

    async def run(self, handler: Handler | None = None) -> None:
        """Call handler for each message, `concurrency` at once, until the consumer is closed.

        A handler that returns None has succeeded; it asks for another delivery by returning or raising RetryLater, and
        any other exception does the same. A plain function runs in a thread of its own pool.
        """
        handler = self._handler = handler or self._handler
        if handler is None:
            raise ClientError("no handler: hand one to run(), or register it with @consumer.handler")
        if not self._running:
            raise ClientClosed("the consumer is not running: use it within `async with Consumer(...)`")
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        with ThreadPoolExecutor(self.config.concurrency, "mqtrail-handler") as pool:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self.config.concurrency):
                    workers.create_task(self._work(handler, None if is_async else pool))

    async def _work(self, handler: Handler, pool: ThreadPoolExecutor | None) -> None:
        async for delivery in self:
            async with delivery.process():
                if pool is None:
                    answer: Any = handler(delivery)
                    result = await answer if inspect.isawaitable(answer) else answer
                else:
                    answer = await asyncio.get_running_loop().run_in_executor(pool, handler, delivery)
                    result = await answer if inspect.isawaitable(answer) else answer
                if isinstance(result, RetryLater):
                    delivery.retry_later(result.delay_level, result.detail)

    # -- what operators ask for through a broker -------------------------------------------------------------------

    @property
    def registered_handler(self) -> Handler | None:
        """The handler of `run`, when there is one."""
        return self._handler

    @property
    def namesrv_addresses(self) -> tuple[str, ...]:
        """The name servers it was given."""
        return self._client.name_servers.addresses

    def consumer_offsets(self) -> dict[MessageQueue, int]:
        """What would be committed now, queue by queue."""
        return self._queues.offsets()

    def queue_infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """The state of each queue."""
        return self._queues.infos()

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets: what is unsettled of these queues is forgotten, and the offsets are stored."""
        await self._queues.reset(offsets)

    # -- what the instance asks for --------------------------------------------------------------------------------

    def heartbeat_data(self) -> ConsumerData:
        """This member as heartbeats describe it."""
        return ConsumerData(
            self.group,
            message_model=self.config.model,
            consume_from_where=self.config.consume_from,
            subscription_data_set=tuple(self._subscriptions.values()),
        )

    def topics(self) -> Sequence[str]:
        """The topics whose routes it needs."""
        return list(self._subscriptions)

    def on_route_changed(self) -> None:
        """Queues may have come or gone."""
        if self._running:
            self._rebalancer.wake()

    def serve(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Answer a broker's request of this group."""
        return self._services.serve(command)
