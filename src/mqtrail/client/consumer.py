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
from dataclasses import replace
from typing import Any, Self

from mqtrail.client.config import NAMESRV_DEFAULT, ConsumerConfig
from mqtrail.client.delivery import Delivery
from mqtrail.client.errors import ClientClosed, ClientError, RetryLater, RouteNotFound
from mqtrail.client.hooks import ConsumeHook
from mqtrail.client.identity import local_address, now_ms
from mqtrail.client.instance import ClientInstance
from mqtrail.client.locks import QueueLocks
from mqtrail.client.offsets import LocalOffsets, OffsetStore, RemoteOffsets
from mqtrail.client.process_queue import ProcessQueue
from mqtrail.client.puller import Puller
from mqtrail.client.rebalance import Rebalancer
from mqtrail.client.routes import queue_name
from mqtrail.client.send_back import SendBack
from mqtrail.client.serving import ConsumerServices
from mqtrail.client.trace import ClientTracer
from mqtrail.net import Log
from mqtrail.wire import (
    PROPERTY_RETRY_TOPIC,
    ConsumerData,
    MessageExt,
    MessageModel,
    MessageQueue,
    MQError,
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


class Held:
    """One queue in our hands: its unsettled messages and the task that pulls it."""

    __slots__ = ("dropping_since", "process_queue", "puller", "task")

    def __init__(self, process_queue: ProcessQueue, puller: Puller, task: asyncio.Task[None]) -> None:
        self.process_queue = process_queue
        self.puller = puller
        self.task = task
        self.dropping_since = 0.0  # loop time since which an ordered queue waits to be given up

    def info(self, noted: int | None) -> ProcessQueueInfo:
        """The queue's state, as admin tools show it."""
        queue = self.process_queue
        return ProcessQueueInfo(
            commit_offset=-1 if noted is None else noted,
            cached_msg_min_offset=queue.first_offset or 0,
            cached_msg_max_offset=queue.last_offset or 0,
            cached_msg_count=queue.count,
            cached_msg_size_in_mib=queue.size >> 20,
            locked=queue.locked_until > 0,
            droped=queue.dropped,
            last_pull_timestamp=self.puller.last_pull_ms,
            last_consume_timestamp=queue.last_consume_ms,
        )


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
        self._hooks: list[ConsumeHook] = [*([self._tracer] if self._tracer else []), *hooks]
        self._clustering = self.config.model is MessageModel.CLUSTERING
        self._handler: Handler | None = None
        self._ready: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._held: dict[MessageQueue, Held] = {}
        self._send_back = SendBack(self._client, group, self.config)
        self._services = ConsumerServices(self)
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False
        self.started_ms = 0
        self._idle = asyncio.Event()

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
        return sorted(self._held)

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
        if self._clustering:
            topic = retry_topic(self.group)
            self._subscriptions.setdefault(topic, SubscriptionData.build(topic, "*", sub_version=now_ms()))
        self.started_ms = now_ms()
        self._offsets = self._make_offsets()
        self._locks = QueueLocks(self._client, self.group, self.config)
        ordered = self.config.ordered and self._clustering
        expressions = {topic: data.sub_string for topic, data in self._subscriptions.items()}
        lock = self._locks.lock if ordered else None
        self._rebalancer = Rebalancer(self._client, self.group, expressions, self._offsets, self, lock, self.config)
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
        work = [self._rebalancer.run(), every(self.config.offset_persist_ms, self._persist)]
        work.append(every(min(60_000, max(100, self.config.consume_timeout_ms // 4)), self._give_back_stuck))
        if ordered:
            work.append(every(self.config.lock_ms, self._renew_locks))
        self._tasks = [self._client.spawn(one) for one in work]

    async def close(self) -> None:
        """Stop pulling, wait for running handlers, commit, leave the group, bring the trace home."""
        if not self._running:
            return
        self._running = False
        for task in self._tasks:
            task.cancel()
        for held in self._held.values():
            held.task.cancel()
        pulls = [held.task for held in self._held.values()]
        if tasks := [*self._tasks, *pulls]:
            await asyncio.wait(tasks)
        try:
            await self._wait_for_handlers()
            self._ready.put_nowait(None)
            await self._offsets.persist(list(self._held))
            if self.config.ordered and self._clustering:
                await self._locks.unlock(list(self._held))
            for held in self._held.values():
                held.process_queue.dropped = True
            if self._tracer is not None:
                await self._tracer.close()
            await self._client.remove_consumer(self.group)
        finally:
            self._held.clear()
            if self._own_client:
                await self._client.close()

    async def _wait_for_handlers(self) -> None:
        try:
            async with asyncio.timeout(self.config.close_wait_ms / 1000):
                while any(held.process_queue.running for held in self._held.values()):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            count = sum(len(held.process_queue.running) for held in self._held.values())
            log.warning("consumer.closed_over_handlers", group=self.group, count=count, remedy="they will come again")

    def _make_offsets(self) -> OffsetStore:
        if self._clustering:
            return RemoteOffsets(self._client, self.group, self._committed)
        # The name must outlive the process, so it is not the client id, as in Java: one consumer a group and host.
        return LocalOffsets(self.config.offset_dir, f"{local_address()}@DEFAULT", self.group, self._committed)

    # -- getting messages ------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message; ends when the consumer is closed."""
        while self._running or not self._ready.empty():
            delivery = await self._ready.get()
            if delivery is None:
                self._ready.put_nowait(None)  # for the next who asks
                break
            queue, offset = delivery.process_queue, delivery.message.queue_offset
            if queue.dropped or offset not in queue:
                continue
            if self.config.ordered and self._clustering and not self._locks.holds(queue):
                asyncio.get_running_loop().call_later(0.1, self._offer_again, queue, delivery.message)
                continue
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

    # -- queues: what the rebalancer asks for ----------------------------------------------------------------------

    async def take_queue(self, queue: MessageQueue, offset: int) -> None:
        """Begin with a queue at an offset."""
        process_queue = ProcessQueue(queue)
        ordered = self.config.ordered and self._clustering
        puller = Puller(
            self._client,
            self.group,
            lambda: self._subscriptions[queue.topic],
            process_queue,
            offset,
            self._offsets,
            self._on_messages,
            self.config,
            commits=self._clustering,
            may_pull=self._locks.holds if ordered else lambda _: True,
        )
        if ordered:
            self._locks.note(process_queue)
        self._held[queue] = Held(process_queue, puller, self._client.spawn(puller.run()))

    async def drop_queue(self, queue: MessageQueue) -> bool:
        """Give a queue up: commit what is settled, ignore what comes later."""
        held = self._held.get(queue)
        if held is None:
            return True
        if self.config.ordered and self._clustering and held.process_queue.running:
            # Its handler is running: another member must not start before it is done, unless it hangs.
            now = asyncio.get_running_loop().time()
            held.dropping_since = held.dropping_since or now
            if now - held.dropping_since < self.config.lock_ms / 1000:
                return False
        held.process_queue.dropped = True
        held.task.cancel()
        del self._held[queue]
        await self._offsets.persist([queue])
        self._offsets.forget(queue)
        if self.config.ordered and self._clustering:
            await self._locks.unlock([queue])
        return True

    def _on_messages(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Hand pulled messages on: all of them, or in ordered mode the first of the queue when none is out."""
        if self.config.ordered:
            if process_queue.count == len(messages):
                self._offer(process_queue, messages[0])
            return
        for message in messages:
            self._offer(process_queue, message)

    def _offer(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        origin = message.properties.get(PROPERTY_RETRY_TOPIC)
        if origin and message.topic == retry_topic(self.group):
            message = replace(message, topic=origin)
        self._ready.put_nowait(Delivery(message, process_queue, self))

    # -- settling --------------------------------------------------------------------------------------------------

    def begun(self, delivery: Delivery) -> str:
        """A handler starts: tell the hooks, return the request id."""
        request_id = ""
        for hook in self._hooks:
            request_id = hook.consume_started(delivery.message, delivery.started_ms) or request_id
        return request_id

    async def settle(self, delivery: Delivery, result: str, delay_level: int, text: str, ended_ms: int) -> None:
        """A handler is done: tell the hooks, then commit, give back, or keep for another try."""
        message, queue = delivery.message, delivery.process_queue
        late = ended_ms - delivery.started_ms >= self.config.consume_timeout_ms
        success = result == "SUCCESS"
        for hook in self._hooks:
            hook.consume_complete(
                delivery.request_id,
                message,
                "TIME_OUT" if late and result != "EXCEPTION" else result,
                delivery.started_ms,
                ended_ms,
                success=success,
                detail=text,
            )
        queue.running.pop(message.queue_offset, None)
        if not queue.dropped and message.queue_offset in queue:
            if success or not self._clustering:
                if not success:
                    log.warning(
                        "consumer.message_dropped", group=self.group, msg_id=message.msg_id, model="BROADCASTING"
                    )
                self._done(queue, message.queue_offset)
            elif self.config.ordered:
                await self._retry_in_place(queue, message)
            elif await self._send_back.give_back(message, delay_level):
                self._done(queue, message.queue_offset)
            else:
                self._retry_here(queue, message, self.config.resubmit_ms)
        self._idle.set()

    def _done(self, queue: ProcessQueue, queue_offset: int) -> None:
        commit_offset = queue.remove(queue_offset)
        if commit_offset is not None and not queue.dropped:
            self._offsets.update(queue.queue, commit_offset, only_up=not self.config.ordered)
            held = self._held.get(queue.queue)
            if held is not None:
                held.puller.wake()
            if self.config.ordered and (first := queue.first_offset) is not None:
                following = queue.message(first)
                if following is not None:
                    self._offer(queue, following)

    def _retry_here(self, queue: ProcessQueue, message: MessageExt, wait_ms: int) -> None:
        """Deliver again from memory, counted up."""
        again = replace(message, reconsume_times=message.reconsume_times + 1)
        queue.replace(again)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._offer_again, queue, again)

    def _offer_again(self, queue: ProcessQueue, message: MessageExt) -> None:
        if not queue.dropped and message.queue_offset in queue:
            self._offer(queue, message)

    async def _retry_in_place(self, queue: ProcessQueue, message: MessageExt) -> None:
        """Ordered: the queue stands still until this message succeeds, or its attempts are used up."""
        attempts_max = self.config.attempts_max
        if attempts_max is not None and message.reconsume_times >= attempts_max:
            try:
                await self._send_back.resend(message, 3 + message.reconsume_times)
            except (MQError, OSError) as error:
                log.error("consumer.give_up_failed", group=self.group, msg_id=message.msg_id, error=str(error))
            else:
                self._done(queue, message.queue_offset)
                return
        self._retry_here(queue, message, min(30_000, max(10, self.config.suspend_ms)))

    def _committed(self, queue: MessageQueue, offset: int) -> None:
        time_ms = now_ms()
        for hook in self._hooks:
            hook.offset_committed(queue, offset, time_ms)

    # -- periodic work ---------------------------------------------------------------------------------------------

    async def _persist(self) -> None:
        await self._offsets.persist(list(self._held))

    async def _renew_locks(self) -> None:
        await self._locks.renew([held.process_queue for held in self._held.values()])

    async def _give_back_stuck(self) -> None:
        """Give back messages whose handler runs for longer than consume_timeout; the handler itself is not stopped."""
        if self.config.ordered or not self._clustering:
            return
        begun_before = asyncio.get_running_loop().time() - self.config.consume_timeout_ms / 1000
        for held in list(self._held.values()):
            queue = held.process_queue
            for offset in [offset for offset, begun in queue.running.items() if begun <= begun_before]:
                message = queue.message(offset)
                if message is not None and await self._send_back.give_back(message, 3):
                    log.warning(
                        "consumer.handler_stuck", group=self.group, msg_id=message.msg_id, queue=queue_name(queue.queue)
                    )
                    self._done(queue, offset)

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
        return {queue: offset for queue in self._held if (offset := self._offsets.noted(queue)) is not None}

    def queue_infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """The state of each queue."""
        return {queue: held.info(self._offsets.noted(queue)) for queue, held in self._held.items()}

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets: what is unsettled of these queues is forgotten, and the offsets are stored."""
        for queue, offset in offsets.items():
            held = self._held.get(queue)
            if held is not None:
                held.process_queue.dropped = True
                held.task.cancel()
                self._offsets.update(queue, offset, only_up=False)
                await self.take_queue(queue, offset)
        await self._offsets.persist([queue for queue in offsets if queue in self._held])

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
