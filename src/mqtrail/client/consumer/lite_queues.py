"""The queues of a lite pull consumer: pulled ahead of the application within limits; polls take them in turn.

Source: DefaultLitePullConsumerImpl.PullTaskImpl, PullAPIWrapper, RocketMQ client.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import (
    EXPRESSION_TAG,
    FlowControl,
    MessageExt,
    MessageQueue,
    MQError,
    ProcessQueueInfo,
    PullSysFlag,
    RequestCode,
    RequestCodeNotSupported,
    SubscriptionData,
)

from ..core import ClientError, ClientInstance, LitePullConfig, Names, OnUndecodable, keep_going, queue_name
from ..delivery import ConsumerStats
from .lite_queue import LiteQueue
from .offsets import OffsetStore
from .pull import PullRequest, PullStatus, pull_address, read_pull_reply
from .start_offset import StartOffsets

log = Log()

FLAGS = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL


class LiteQueues:
    """The queues that a rebalancer, or the application, has assigned. on_rejected: called with undecodable messages."""

    def __init__(
        self,
        client: ClientInstance,
        names: Names,
        subscription: Callable[[str], SubscriptionData],
        offsets: OffsetStore,
        starts: StartOffsets,
        stats: ConsumerStats,
        config: LitePullConfig,
        on_rejected: Callable[[MessageExt], None],
    ) -> None:
        self._client = client
        self._names = names
        self._subscription = subscription
        self._offsets = offsets
        self._starts = starts
        self._stats = stats
        self._config = config
        self._on_rejected = on_rejected
        self._queues: dict[MessageQueue, tuple[LiteQueue, asyncio.Task[None]]] = {}
        self._paused: set[MessageQueue] = set()
        self._old_brokers: set[str] = set()  # 4.9 brokers, which do not support LITE_PULL_MESSAGE
        self._last: LiteQueue | None = None
        self._filled = asyncio.Event()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues assigned now, sorted."""
        return sorted(self._queues)

    def get(self, queue: MessageQueue) -> LiteQueue:
        """The state of an assigned queue. ClientError: it is not assigned."""
        found = self._queues.get(queue)
        if found is None:
            raise ClientError(
                f"queue {queue_name(queue)} is not assigned to this consumer (a rebalance may be in progress); "
                f"assigned queues: {', '.join(map(queue_name, self.queues)) or 'none'}"
            )
        return found[0]

    # -- for the rebalancer ----------------------------------------------------------------------------------------

    async def take_queue(self, queue: MessageQueue, offset: int) -> None:
        """Start to consume a queue at an offset."""
        self.begin(LiteQueue(queue, offset))

    def begin(self, lite: LiteQueue) -> None:
        """Start to pull a queue."""
        if lite.queue in self._paused:
            lite.open.clear()
        self._queues[lite.queue] = lite, self._client.spawn(self._run(lite))

    async def drop_queue(self, queue: MessageQueue) -> bool:
        """Release a queue; with auto_commit, commit its settled messages."""
        lite, task = self._queues.pop(queue)
        lite.dropped = True
        task.cancel()
        if self._config.auto_commit and lite.settled is not None:
            self._offsets.update(queue, lite.settled, only_up=False)
        await self._offsets.persist([queue])
        self._offsets.forget(queue)
        return True

    def repair(self, queue: MessageQueue) -> None:
        """Restart the puller of a queue if it ended by an error."""
        lite, task = self._queues[queue]
        if task.done():
            self.begin(lite)

    def restart_pulls(self, topic: str) -> None:
        """Restart the pulls of a topic: its subscription changed, and pulls in flight have the old one."""
        for queue, (lite, task) in list(self._queues.items()):
            if queue.topic == topic:
                task.cancel()
                self._queues[queue] = lite, self._client.spawn(self._run(lite))

    async def stop(self) -> None:
        """End all pulls."""
        tasks = [task for _, task in self._queues.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- for the application ---------------------------------------------------------------------------------------

    async def take(self, count_max: int) -> Sequence[MessageExt]:
        """Wait for messages and return at most count_max of one queue; queues take turns. Returns () when woken."""
        while True:
            if self._last is not None:
                self._last.settle()
                self._last = None
            self._filled.clear()
            for queue, (lite, _) in list(self._queues.items()):
                if lite.count:
                    self._queues[queue] = self._queues.pop(queue)  # to the end: the other queues are next
                    return self._taken(lite, count_max)
            await self._filled.wait()
            if not any(lite.count for lite, _ in self._queues.values()):
                return ()

    def _taken(self, lite: LiteQueue, count_max: int) -> Sequence[MessageExt]:
        self._last = lite
        messages = [self._names.restored(message) for message in lite.take(count_max)]
        lite.last_taken_ms = now_ms()
        return messages

    def wake(self) -> None:
        """Make `take` return."""
        self._filled.set()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at an offset. Raises ClientError if it is not assigned."""
        lite = self.get(queue)
        self._queues[queue][1].cancel()
        lite.seek(offset)
        self._queues[queue] = lite, self._client.spawn(self._run(lite))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling these queues, also ones assigned later; messages already pulled are still delivered."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self._queues:
                self.get(queue).open.clear()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull these queues again."""
        for queue in queues:
            self._paused.discard(queue)
            if queue in self._queues:
                self.get(queue).open.set()

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are paused, sorted."""
        return sorted(self._paused)

    def note_settled(self) -> None:
        """Note the settled offsets for the next commit."""
        for queue, (lite, _) in self._queues.items():
            if lite.settled is not None:
                self._offsets.update(queue, lite.settled, only_up=False)

    def committed(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note an explicit commit: auto-commit continues from there."""
        for queue, offset in offsets.items():
            if queue in self._queues:
                self._queues[queue][0].settled = offset

    def positions(self) -> dict[MessageQueue, int]:
        """The offset after the last message taken, by queue; queues of which nothing was taken are left out."""
        return {
            queue: lite.position
            for queue, (lite, _) in self._queues.items()
            if lite.position is not None and (lite.last_taken_ms or lite.settled is not None)
        }

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """The state of each queue, as admin tools show it."""
        return {
            queue: ProcessQueueInfo(
                commit_offset=-1 if (noted := self._offsets.noted(queue)) is None else noted,
                cached_msg_min_offset=lite.position or 0,
                cached_msg_max_offset=lite.pull_offset or 0,
                cached_msg_count=lite.count,
                cached_msg_size_in_mib=lite.size >> 20,
                droped=lite.dropped,
                last_pull_timestamp=lite.last_pull_ms,
                last_consume_timestamp=lite.last_taken_ms,
            )
            for queue, (lite, _) in self._queues.items()
        }

    # -- pulling ---------------------------------------------------------------------------------------------------

    async def _run(self, lite: LiteQueue) -> None:
        group, name = self._names.group, queue_name(lite.queue)
        await keep_going("lite pull", partial(self._turn, lite), lambda: lite.dropped, group=group, queue=name)

    async def _turn(self, lite: LiteQueue) -> None:
        config = self._config
        await lite.open.wait()
        if self._is_full(lite):
            await self._wait_for_room(lite)
            return
        wait_ms = 0
        try:
            await self._pull(lite)
        except RequestCodeNotSupported as error:
            known = lite.queue.broker_name in self._old_brokers
            log.sparse.info("consumer.lite_pull_unsupported", broker=lite.queue.broker_name, error=str(error))
            self._old_brokers.add(lite.queue.broker_name)
            wait_ms = config.pull_error_ms if known else 0
        except FlowControl:
            wait_ms = config.broker_flow_control_ms
        except (MQError, OSError) as error:
            log.sparse.warning(
                "consumer.pull_failed", group=self._names.group, queue=queue_name(lite.queue), error=str(error)
            )
            wait_ms = config.pull_error_ms
        await asyncio.sleep(wait_ms / 1000)

    def _code(self, broker_name: str) -> RequestCode:
        old = broker_name in self._old_brokers
        return RequestCode.PULL_MESSAGE if old else RequestCode.LITE_PULL_MESSAGE

    def _is_full(self, lite: LiteQueue) -> bool:
        config = self._config
        return (
            lite.count > config.queue_count_max
            or lite.size > config.queue_size_max
            or lite.span > config.span_max
            or (lite.count > 0 and self._room() <= 0)
            or sum(one.count for one, _ in self._queues.values()) > config.count_max
        )

    def _room(self) -> int:
        """Bytes that further decompressed bodies may take."""
        return self._config.expanded_size_max - sum(lite.expanded_size for lite, _ in self._queues.values())

    async def _wait_for_room(self, lite: LiteQueue) -> None:
        lite.room.clear()
        try:
            async with asyncio.timeout(self._config.flow_control_ms / 1000):
                await lite.room.wait()
        except TimeoutError:
            pass

    async def _pull(self, lite: LiteQueue) -> None:
        config, queue = self._config, lite.queue
        if lite.pull_offset is None:
            lite.pull_offset = lite.position = await self._starts.of(queue)
        subscription = self._subscription(queue.topic)
        asked = subscription
        if subscription.expression_type == EXPRESSION_TAG:
            asked = msgspec.structs.replace(subscription, sub_version=0)
        request = PullRequest(
            self._names.group,
            queue,
            lite.pull_offset,
            config.pull_batch_count,
            config.pull_batch_size,
            FLAGS,
            config.suspend_ms,
            asked,
            code=self._code(queue.broker_name),
        )
        address = pull_address(self._client, queue, lite.broker_id)
        begun_ms = lite.last_pull_ms = now_ms()
        reply = await self._client.pool.request(address, request.command(), config.suspend_timeout_ms)
        result = read_pull_reply(reply, queue, request.offset, request.count_max)
        is_empty = result.status is PullStatus.OFFSET_MOVED or result.next_offset <= request.offset
        if wait_ms := lite.answers.wait_ms(is_empty=is_empty, took_ms=now_ms() - begun_ms):
            await asyncio.sleep(wait_ms / 1000)
        messages: Sequence[MessageExt] = ()
        next_offset = result.next_offset
        if result.status is PullStatus.FOUND:
            self._stats.pulled(queue.topic, len(result.records), now_ms() - begun_ms)
            opened = result.wanted(subscription, queue, lite.pull_offset, config.body_size_max, self._room())
            messages, next_offset = self._readable(opened.messages), opened.next_offset
        elif result.status is PullStatus.OFFSET_MOVED:
            kept = f"[{result.min_offset}, {result.max_offset})"
            log.sparse.warning("consumer.offset_moved", group=self._names.group, queue=queue_name(queue), kept=kept)
        lite.put(messages, next_offset)
        if messages:
            self._filled.set()
        lite.broker_id = result.suggested_broker_id

    def _readable(self, messages: Sequence[MessageExt]) -> Sequence[MessageExt]:
        """Return the messages that go to the application; undecodable ones only if it asked for them."""
        delivers = self._config.on_undecodable is OnUndecodable.DELIVER
        for message in messages:
            if message.undecodable is not None:
                self._stats.undecodable(message.topic)
                if not delivers:
                    self._on_rejected(self._names.restored(message))
        if delivers:
            return messages
        return [message for message in messages if message.undecodable is None]
