"""LitePullConsumer: the application polls for messages and controls its position.

    async with LitePullConsumer("audit", "127.0.0.1:9876", {"orders": "*"}) as consumer:
        async for message in consumer:             # or: for message in await consumer.poll(timeout_ms=1_000)
            await store(message)

Queues are divided among the group's members (subscribe), or chosen by the application (assign). A lite pull consumer
never sends messages back: to retry one, seek, or send it to another topic.
Source: DefaultLitePullConsumer, DefaultLitePullConsumerImpl, RocketMQ client.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self

from mqtrail.clock import now_ms
from mqtrail.net import NAMESRV_DEFAULT, Log
from mqtrail.wire import (
    PROP_CONSUME_ORDERLY,
    PROP_THREADPOOL_CORE_SIZE,
    SUBSCRIBE_ALL,
    ConsumerData,
    ConsumeType,
    MessageExt,
    MessageQueue,
    ProcessQueueInfo,
    RequestCode,
    SubscriptionData,
)

from ..core import (
    ClientClosed,
    ClientError,
    ClientInstance,
    ConsumeHook,
    LitePullConfig,
    OffsetUnavailable,
    RouteNotFound,
    queue_name,
    reply_number,
    unique_ids,
)
from ..pop import PopQueue
from ..trace import detail
from .allocate import Allocation, Averagely
from .base import ConsumerBase
from .handlers import Handlers
from .listening import QueuesListener, RebalanceListener, notify
from .lite_queue import LiteQueue
from .lite_queues import LiteQueues
from .rebalance import Rebalancer
from .start_offset import StartOffsets
from .subscriptions import Expression, Subscriptions

log = Log()

AUTO_COMMIT_MIN_MS = 1_000


class LitePullConsumer(ConsumerBase):
    """A consumer that the application polls. Use it with `async with`, from one event loop.

    subscriptions: as for Consumer; omit them and call `assign` to choose the queues. allocation, on_rebalance, trace,
    client, hooks: as for Consumer.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] = NAMESRV_DEFAULT,
        subscriptions: Mapping[str, Expression] | None = None,
        *,
        trace: bool = False,
        config: LitePullConfig | None = None,
        client: ClientInstance | None = None,
        hooks: Sequence[ConsumeHook] = (),
        allocation: Allocation | None = None,
        on_rebalance: RebalanceListener | None = None,
    ) -> None:
        self.config = config = config or LitePullConfig()
        super().__init__(group, namesrv, subscriptions, trace, config, client, hooks, on_rebalance)
        self._filters = Subscriptions(self._names)  # of topics that are assigned
        self._assigns = False
        self._subscribed = asyncio.Event()  # queues are divided by rebalance, not assigned
        if subscriptions:
            self._subscribed.set()
        starts = StartOffsets(self._client, self._offsets, config.consume_from, config.consume_from_timestamp_ms)
        self._queues = LiteQueues(
            self._client, self._names, self._subscription, self._offsets, starts, self._stats, config, self._rejected
        )
        self._rebalancer = Rebalancer(
            self._client,
            self.group,
            self._subscriptions.topics,
            starts,
            self._queues,
            allocation or Averagely(),
            config,
            on_share=self._shared_out,
        )
        self._watched: dict[str, tuple[QueuesListener, list[MessageQueue]]] = {}
        self._auto_commit_ms = max(AUTO_COMMIT_MIN_MS, config.auto_commit_ms)
        self._committed_at = 0.0

    def _subscription(self, topic: str) -> SubscriptionData:
        found = (self._filters if self._assigns else self._subscriptions).get(topic)
        return found if found is not None else SubscriptionData.build(topic, SUBSCRIBE_ALL)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues assigned to this consumer now, sorted."""
        return self._queues.queues

    def _prepare(self) -> None:
        return None

    def _periodic_work(self) -> Sequence[Coroutine[Any, Any, None]]:
        every, config = self._client.every, self.config
        return [
            self._rebalance(),
            every(config.offset_persist_ms, self._persist),
            every(config.metadata_check_ms, self._check_watched),
        ]

    def _ending(self) -> None:
        self._queues.wake()

    async def _end(self) -> None:
        """Commit on close (auto_commit): all messages of polls before the last one.

        Call `commit` before to include the messages of the last poll.
        """
        await self._queues.stop()
        if self.config.auto_commit:
            self._queues.note_settled()
        await self._persist()

    def _wake(self) -> None:
        if not self._assigns:
            self._rebalancer.wake()

    def _restart_pulls(self, topic: str) -> None:
        self._queues.restart_pulls(topic)

    async def _rebalance(self) -> None:
        await self._subscribed.wait()
        await self._rebalancer.run()

    async def _persist(self) -> None:
        await self._offsets.persist(self._queues.queues)

    # -- which queues ----------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: Expression = SUBSCRIBE_ALL) -> None:
        """Subscribe to a topic, or change its expression. Raises ClientError if queues are assigned."""
        if self._assigns:
            raise ClientError("this consumer has assigned queues: expected either subscribe or assign, not both")
        super().subscribe(topic, expression)
        self._subscribed.set()

    async def assign(self, queues: Iterable[MessageQueue], filters: Mapping[str, Expression] | None = None) -> None:
        """Read exactly these queues, regardless of other members. filters: topic -> expression; default: all messages.

        Each queue starts at the group's committed offset, else at `consume_from`; `seek` changes that. Queues that
        were assigned before and are not in `queues` are released. Raises ClientError if there are subscriptions, and
        ClientClosed if the consumer is not running.
        """
        self._check_running()
        if self._subscriptions:
            raise ClientError("this consumer has subscriptions: expected either subscribe or assign, not both")
        self._assigns = True
        self._filters = Subscriptions(self._names)
        for topic, expression in (filters or {}).items():
            self._filters.put(topic, expression)
        wanted = {MessageQueue(self._names.topic(one.topic), one.broker_name, one.queue_id) for one in queues}
        for topic in sorted({queue.topic for queue in wanted}):
            await self._client.route(topic)
        await self._filters.check(self._client)
        await self._client.heartbeat()  # registers the group at the brokers before it commits
        for queue in set(self._queues.queues) - wanted:
            await self._queues.drop_queue(queue)
        for queue in sorted(wanted - set(self._queues.queues)):
            self._queues.begin(LiteQueue(queue))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's readable queues from a name server, sorted. Raises RouteNotFound, NoNameServer."""
        return list((await self._client.fetch_route(self._names.topic(topic))).subscribe_queues)

    def watch_queues(self, topic: str, listener: QueuesListener) -> None:
        """Call listener when a topic's queues change; checked every `metadata_check_ms`. One listener per topic."""
        self._watched[topic] = listener, []

    async def _check_watched(self) -> None:
        for topic, (listener, known) in list(self._watched.items()):
            try:
                found = await self.queues(topic)
            except RouteNotFound:
                found = []
            if found != known:
                self._watched[topic] = listener, found
                await notify(listener, topic, found)

    # -- messages --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None, count_max: int | None = None) -> list[MessageExt]:
        """Return messages of one queue in order; an empty list after timeout_ms (None: poll_timeout_ms) without any.

        This call settles the messages of earlier polls; auto_commit commits them. count_max: maximum number of
        messages (None: pull_batch_count). Raises ClientClosed if the consumer is not running.
        """
        self._check_running()
        wait_ms = self.config.poll_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._take(count_max or self.config.pull_batch_count)
        except TimeoutError:
            self._auto_commit()
            return []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageExt:
        """Return the next message; ends when the consumer is closed. A call settles all earlier messages."""
        while self._running:
            if messages := await self._take(1):
                return messages[0]
        raise StopAsyncIteration

    async def _take(self, count_max: int) -> list[MessageExt]:
        messages = await self._queues.take(count_max)
        self._auto_commit()
        if messages and self._hooks:
            self._notify_hooks(messages)
        return list(messages)

    def _auto_commit(self) -> None:
        """Note the settled messages once per auto_commit_ms; the periodic work commits them."""
        now = asyncio.get_running_loop().time()
        if self.config.auto_commit and now - self._committed_at >= self._auto_commit_ms / 1000:
            self._committed_at = now
            self._queues.note_settled()

    def _rejected(self, message: MessageExt) -> None:
        """Log and trace an undecodable message that is skipped: a lite pull consumer sends nothing back."""
        reason = message.undecodable or ""
        log.sparse.warning(
            "consumer.undecodable",
            group=self.group,
            topic=message.topic,
            msg_id=message.msg_id,
            queue=queue_name(message.queue),
            queue_offset=message.queue_offset,
            reason=reason,
        )
        self._notify_hooks((message,), "EXCEPTION", detail(reason))

    def _notify_hooks(self, messages: Sequence[MessageExt], result: str = "SUCCESS", detail_text: str = "") -> None:
        """Report delivered messages as consumed, as Java's poll does: their outcome is unknown."""
        time_ms, request_id = now_ms(), unique_ids().next()
        for hook in self._hooks:
            for message in messages:
                hook.consume_started(request_id, message, time_ms)
            for message in messages:
                hook.consume_complete(
                    request_id,
                    message,
                    result,
                    time_ms,
                    time_ms,
                    success=result == "SUCCESS",
                    detail=detail_text,
                    batch_count=len(messages),
                )

    # -- positions -------------------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at offset. Raises OffsetUnavailable outside [begin, end], ClientError if not assigned."""
        self._queues.get(queue)
        first, end = await self.begin_offset(queue), await self.end_offset(queue)
        if not first <= offset <= end:
            raise OffsetUnavailable(
                f"found offset {offset} to seek to in {queue_name(queue)}, expected one in [{first}, {end}]"
            )
        self._queues.seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue a queue at the first message that it keeps. Raises ClientError if it is not assigned."""
        self._queues.get(queue)
        self._queues.seek(queue, await self.begin_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue a queue at its end, with the next message stored. Raises ClientError if it is not assigned."""
        self._queues.get(queue)
        self._queues.seek(queue, await self.end_offset(queue))

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling these queues until `resume`; messages already pulled are still delivered."""
        self._queues.pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Pull these queues again."""
        self._queues.resume(queues)

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are paused, sorted."""
        return self._queues.paused

    def position(self, queue: MessageQueue) -> int | None:
        """The offset after the last message taken; None while the start is unknown. ClientError: not assigned."""
        return self._queues.get(queue).position

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the offsets after all messages taken, or the given ones, and wait for the brokers' replies.

        Tries all queues, then raises the first failure. Raises ClientError if a queue is not assigned.
        """
        self._check_running()
        wanted = dict(self._queues.positions() if offsets is None else offsets)
        for queue in wanted:
            self._queues.get(queue)
        await self._offsets.store(wanted)
        self._queues.committed(wanted)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, including one not sent yet; None if there is none. Raises MQError."""
        noted = self._offsets.noted(queue)
        return noted if noted is not None else await self._offsets.read(queue)

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time (epoch ms); else the queue's end."""
        return await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(timestamp_ms)})

    async def begin_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that a queue still keeps."""
        return max(0, await self._ask(queue, RequestCode.GET_MIN_OFFSET, {}))

    async def end_offset(self, queue: MessageQueue) -> int:
        """Return the offset that a queue's next message gets."""
        return await self._ask(queue, RequestCode.GET_MAX_OFFSET, {})

    async def _ask(self, queue: MessageQueue, code: RequestCode, further: dict[str, str]) -> int:
        await self._client.route(queue.topic)
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name} | further
        reply = await self._client.call(self._client.any_address(queue.broker_name), code, ext)
        return reply_number(reply, "offset")

    def _check_running(self) -> None:
        if not self._running:
            raise ClientClosed("the consumer is not running: use it within `async with LitePullConsumer(...)`")

    # -- for operators and the instance ----------------------------------------------------------------------------

    @property
    def handlers(self) -> Handlers:
        """An empty collection: this consumer has no handlers."""
        return Handlers()

    def facts(self) -> dict[str, str]:
        """The settings shown to operators in the running info."""
        return {PROP_CONSUME_ORDERLY: "false", PROP_THREADPOOL_CORE_SIZE: "1"}

    def pop_infos(self) -> Mapping[MessageQueue, PopQueue]:
        """An empty mapping: this consumer does not pop."""
        return {}

    def consumer_offsets(self) -> dict[MessageQueue, int]:
        """The offset of each queue noted for the next commit."""
        return {queue: offset for queue in self._queues.queues if (offset := self._offsets.noted(queue)) is not None}

    def queue_infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """The state of each queue."""
        return self._queues.infos()

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at other offsets, and commit them."""
        mine = {queue: offset for queue, offset in offsets.items() if queue in self._queues.queues}
        for queue, offset in mine.items():
            self._queues.seek(queue, offset)
            self._offsets.update(queue, offset, only_up=False)
        await self._offsets.persist(list(mine))

    def heartbeat_data(self) -> ConsumerData:
        """This member's entry in heartbeats."""
        return ConsumerData(
            self.group,
            ConsumeType.CONSUME_ACTIVELY,
            self.config.model,
            self.config.consume_from,
            self._subscriptions.data(),
        )

    def topics(self) -> Sequence[str]:
        """The topics whose routes this consumer needs."""
        return list({*super().topics(), *(queue.topic for queue in self._queues.queues)})
