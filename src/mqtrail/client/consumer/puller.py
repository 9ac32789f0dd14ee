"""Pulling one queue: one request at a time, within the limits of unsettled messages.

Source: DefaultMQPushConsumerImpl.pullMessage, PullAPIWrapper, RocketMQ 5.x client.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import (
    MASTER_ID,
    FlowControl,
    MessageExt,
    MessageQueue,
    MQError,
    PullSysFlag,
    SubscriptionData,
    SubscriptionNotExist,
    SubscriptionNotLatest,
)

from ..core import ClientInstance, ConsumerConfig, EmptyAnswers, Names, keep_going, queue_name
from ..delivery import ConsumerStats, Flow, ProcessQueue
from .offsets import OffsetStore
from .pull import PullRequest, PullResult, PullStatus, pull_address, read_pull_reply

log = Log()

OnMessages = Callable[[ProcessQueue, Sequence[MessageExt]], None]
OnMoved = Callable[[ProcessQueue, int], None]


class PullerParts:
    """What all pullers of one consumer share.

    room: bytes left for decompressed bodies. on_moved: called with the offset to continue at if the requested one is
    outside the queue.
    """

    def __init__(
        self,
        client: ClientInstance,
        names: Names,
        subscriptions: Mapping[str, SubscriptionData],
        offsets: OffsetStore,
        flow: Flow,
        stats: ConsumerStats,
        config: ConsumerConfig,
        *,
        commits: bool,
        may_pull: Callable[[ProcessQueue], bool],
        room: Callable[[], int],
        on_messages: OnMessages,
        on_moved: OnMoved,
    ) -> None:
        self.client = client
        self.names = names
        self.group = names.group
        self.subscriptions = subscriptions
        self.offsets = offsets
        self.flow = flow
        self.stats = stats
        self.config = config
        self.commits = commits
        self.may_pull = may_pull
        self.room = room
        self.on_messages = on_messages
        self.on_moved = on_moved
        self.answers: dict[MessageQueue, EmptyAnswers] = {}  # of the queues held; kept when a puller restarts

    def count_undecodable(self, messages: Sequence[MessageExt]) -> None:
        """Count the undecodable messages, by the topic they were sent to."""
        for message in messages:
            if message.undecodable is not None:
                self.stats.undecodable(self.names.restored(message).topic)


class Puller:
    """Pulls one queue until it is dropped, and passes the messages on."""

    def __init__(self, work: PullerParts, process_queue: ProcessQueue, offset: int) -> None:
        self._work = work
        self._config = work.config
        self._process_queue = process_queue
        self._offset = offset
        self._broker_id = MASTER_ID
        self._room = asyncio.Event()
        self._answers = work.answers.setdefault(process_queue.queue, EmptyAnswers())
        self._unknown = False  # the last pull was refused: the broker did not know the subscription
        self.last_pull_ms = 0

    def wake(self) -> None:
        """Check the limits again: messages were settled."""
        self._room.set()

    async def run(self) -> None:
        """Pull until cancelled or the queue is dropped."""
        held = self._process_queue
        name = queue_name(held.queue)
        await keep_going("pull", self._turn, lambda: held.dropped or held.closing, group=self._work.group, queue=name)

    async def _turn(self) -> None:
        held, work, config = self._process_queue, self._work, self._config
        await work.flow.opened()
        if not work.may_pull(held) or held.queue.topic not in work.subscriptions:
            await asyncio.sleep(config.pull_error_ms / 1000)
            return
        if work.flow.is_full(held) or (held.count and work.room() <= 0):
            await self._wait_for_room()
            return
        try:
            await self._pull()
        except FlowControl:
            await asyncio.sleep(config.broker_flow_control_ms / 1000)
        except (SubscriptionNotExist, SubscriptionNotLatest) as refusal:
            name = queue_name(held.queue)
            log.sparse.info("consumer.subscription_unknown", group=work.group, queue=name, error=str(refusal))
            await work.client.heartbeat()
            if self._unknown:  # the last heartbeat did not help
                await asyncio.sleep(config.pull_error_ms / 1000)
            self._unknown = True
        except (MQError, OSError) as error:
            if not held.dropped:
                log.sparse.warning(
                    "consumer.pull_failed", group=work.group, queue=queue_name(held.queue), error=str(error)
                )
            await asyncio.sleep(config.pull_error_ms / 1000)
        else:
            self._unknown = False
            # Yield to the event loop at least once, so that one busy queue does not starve the others.
            await asyncio.sleep(config.pull_interval_ms / 1000)

    async def _wait_for_room(self) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(self._config.flow_control_ms / 1000):
                await self._room.wait()
        except TimeoutError:
            pass

    async def _pull(self) -> None:
        held, work = self._process_queue, self._work
        subscription = work.subscriptions[held.queue.topic]
        request = self._request(subscription)
        address = pull_address(work.client, held.queue, self._broker_id)
        begun_ms = self.last_pull_ms = now_ms()
        reply = await work.client.pool.request(address, request.command(), self._config.poll_timeout_ms)
        result = read_pull_reply(reply, held.queue, request.offset, request.count_max)
        is_empty = result.status is PullStatus.OFFSET_MOVED or result.next_offset <= request.offset
        if wait_ms := self._answers.wait_ms(is_empty=is_empty, took_ms=now_ms() - begun_ms):
            await asyncio.sleep(wait_ms / 1000)
        if held.dropped or held.closing:
            return  # released while the pull was in flight
        self._broker_id = result.suggested_broker_id
        if result.status is PullStatus.FOUND:
            work.stats.pulled(held.queue.topic, len(result.records), now_ms() - begun_ms)
        self._take(result, subscription)

    def _request(self, subscription: SubscriptionData) -> PullRequest:
        queue, work, config = self._process_queue.queue, self._work, self._config
        commit = work.offsets.noted(queue) if work.commits and self._broker_id == MASTER_ID else None
        flags = PullSysFlag.SUSPEND | (PullSysFlag.COMMIT_OFFSET if commit else 0)
        if config.pull_with_subscription:
            flags |= PullSysFlag.SUBSCRIPTION
        return PullRequest(
            work.group,
            queue,
            self._offset,
            config.pull_batch_count,
            config.pull_batch_size,
            flags,
            config.poll_suspend_ms,
            subscription,
            commit or 0,
        )

    def _take(self, result: PullResult, subscription: SubscriptionData) -> None:
        held, work = self._process_queue, self._work
        if result.status is PullStatus.OFFSET_MOVED:
            log.sparse.warning(
                "consumer.offset_moved",
                group=work.group,
                queue=queue_name(held.queue),
                asked=self._offset,
                next=result.next_offset,
                kept=f"[{result.min_offset}, {result.max_offset})",
            )
            work.on_moved(held, result.next_offset)
            return
        messages: Sequence[MessageExt] = ()
        next_offset = result.next_offset
        if result.status is PullStatus.FOUND:
            opened = result.wanted(subscription, held.queue, self._offset, self._config.body_size_max, work.room())
            messages, next_offset = opened.messages, opened.next_offset
        self._offset = next_offset
        if new := held.put(messages, next_offset):
            work.count_undecodable(new)
            work.on_messages(held, new)
        if not held.count:
            work.offsets.update(held.queue, next_offset)
