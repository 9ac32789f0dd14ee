"""Rebalance: decide which queues this member consumes, then take or release queues.

The client decides from routes and the group's members, by an allocation strategy. With client_rebalance off, a broker
decides (QUERY_ASSIGNMENT), also whether a topic's messages are pulled or popped.
Source: RebalanceImpl, RebalancePushImpl, RocketMQ 5.x client.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from mqtrail.net import Log
from mqtrail.wire import (
    ALL_QUEUES,
    ConsumerIdList,
    MessageModel,
    MessageQueue,
    MQError,
    QueryAssignmentBody,
    QueueAssignments,
    RequestCode,
    RequestCodeNotSupported,
)

from ..core import BaseConsumerConfig, ClientInstance, RouteNotFound, keep_going, off_loop, queue_name, report
from .allocate import Allocation
from .start_offset import StartOffsets

log = Log()

RETRY_MS: Final = 1_000  # after a rebalance that could not assign a topic
REPAIRS_A_TURN: Final = 1_000  # kept queues that are looked at before others are served
QUEUES_OF_BROKER_MAX: Final = 65_536  # of one topic, the limit of mqtrail's broker; Java has no limit


class QueueTaker(Protocol):
    """Consumes the queues that are assigned for pulling."""

    @property
    def queues(self) -> Sequence[MessageQueue]:
        """The queues it has."""
        ...

    async def take_queue(self, queue: MessageQueue, offset: int) -> None: ...

    async def drop_queue(self, queue: MessageQueue) -> bool:
        """Release a queue; False if that must wait (an ordered handler is running)."""
        ...

    def repair(self, queue: MessageQueue) -> None:
        """Restart a kept queue whose puller has ended."""


class PopTaker(Protocol):
    """Consumes the queues that are assigned for popping."""

    @property
    def queues(self) -> Sequence[MessageQueue]: ...

    def take_queue(self, queue: MessageQueue) -> None: ...

    def drop_queue(self, queue: MessageQueue) -> None: ...


class Share(NamedTuple):
    """A member's share of a topic. all: every known queue of the topic."""

    all: Sequence[MessageQueue]
    pulled: set[MessageQueue]
    popped: set[MessageQueue]


OnShare = Callable[[str, Share], Awaitable[None]]
Lock = Callable[[list[MessageQueue]], Awaitable[set[MessageQueue]]]


class Rebalancer:
    """Keeps this member's queues in step with the cluster.

    topics: called at each rebalance; returns the topics. popping: takes the queues to pop; None: the client decides,
    not a broker. on_share: called after this member's queues of a topic changed.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        topics: Callable[[], Sequence[str]],
        starts: StartOffsets,
        taker: QueueTaker,
        allocation: Allocation,
        config: BaseConsumerConfig,
        *,
        lock: Lock | None = None,
        popping: PopTaker | None = None,
        on_share: OnShare | None = None,
    ) -> None:
        self._client = client
        self._group = group
        self._model = config.model
        self._topics = topics
        self._starts = starts
        self._taker = taker
        self._allocation = allocation
        self._interval_ms = config.rebalance_ms
        self._count_max = config.assigned_count_max
        self._lock = lock
        self._popping = popping
        self._on_share = on_share
        self._wanted = asyncio.Event()
        self._is_missing = False  # a topic that does not exist was met in this turn
        self._missing_wait_ms = 0

    def wake(self) -> None:
        """Rebalance soon: members, routes or subscriptions changed."""
        self._wanted.set()

    async def run(self) -> None:
        """Rebalance every interval and when woken; after one second if a topic could not be assigned.

        A topic that does not exist is looked for after 1, 2, 4 seconds and so on up to the interval.
        """
        await keep_going("rebalance", self._turn, group=self._group)

    async def _turn(self) -> None:
        self._wanted.clear()
        self._is_missing = False
        settled = await self.once()
        wait_ms = self._interval_ms
        if self._is_missing:
            wait_ms = self._missing_wait_ms = min(max(RETRY_MS, 2 * self._missing_wait_ms), wait_ms)
        else:
            self._missing_wait_ms = 0
        if not settled:
            wait_ms = min(RETRY_MS, wait_ms)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def once(self) -> bool:
        """Rebalance every topic now; False if a topic could not be assigned and must be retried soon."""
        settled = True
        topics = list(self._topics())
        for topic in topics:
            try:
                settled &= await self._topic(topic)
            except Exception as error:  # the other topics are still balanced
                report("consumer.rebalance_failed", error, group=self._group, topic=topic)
                settled = False
        for topic in {queue.topic for queue in self._taken()} - set(topics):
            settled &= await self._apply(topic, Share((), set(), set()))
        return settled

    def _taken(self) -> list[MessageQueue]:
        return [*self._taker.queues, *(self._popping.queues if self._popping is not None else ())]

    async def _topic(self, topic: str) -> bool:
        try:
            route = await self._client.route(topic)
        except RouteNotFound:
            self._is_missing = True
            return True
        queues = route.subscribe_queues
        if self._model is MessageModel.BROADCASTING:
            return await self._apply(topic, await off_loop(len(queues), lambda: Share(queues, set(queues), set())))
        if self._popping is not None:
            try:
                share = await self._assigned(topic, queues)
            except RequestCodeNotSupported:
                log.sparse.info(
                    "consumer.assignment_unsupported", group=self._group, topic=topic, instead="client_rebalance"
                )
            else:
                return share is not None and await self._apply(topic, share)
        if not queues:
            return await self._apply(topic, Share((), set(), set()))
        members = await self._members(topic)
        if members is None:
            return False
        try:
            share = await off_loop(len(queues), self._allocated, queues, members)
        except Exception:  # the strategy may be the application's
            log.exception("consumer.allocation_failed", group=self._group, strategy=self._allocation.name)
            return False
        return await self._apply(topic, share)

    def _allocated(self, queues: Sequence[MessageQueue], members: list[str]) -> Share:
        """This member's share by the strategy."""
        return Share(queues, set(self._allocation(self._client.client_id, list(queues), members)), set())

    async def _members(self, topic: str) -> list[str] | None:
        """The sorted client ids of the group, from one broker of the topic; None if no broker answers."""
        for name in self._brokers(topic):
            try:
                address = self._client.any_address(name)
                reply = await self._client.call(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group}
                )
                return sorted(set(ConsumerIdList.decode(reply.body).consumer_id_list))  # a duplicate would get a share
            except (MQError, OSError) as error:
                log.sparse.warning("consumer.members_unknown", group=self._group, broker=name, error=str(error))
        return None

    async def _assigned(self, topic: str, queues: Sequence[MessageQueue]) -> Share | None:
        """A broker's assignment; None if no broker answers. Raises RequestCodeNotSupported for 4.x brokers."""
        strategy = self._allocation.name
        body = QueryAssignmentBody(topic, self._group, self._client.client_id, strategy, self._model.value).encode()
        for name in self._brokers(topic):
            try:
                address = self._client.any_address(name)
                reply = await self._client.call(address, RequestCode.QUERY_ASSIGNMENT, {}, body)
                found = QueueAssignments.decode(reply.body).assignments
            except RequestCodeNotSupported:
                raise
            except (MQError, OSError) as error:
                log.sparse.warning("consumer.assignment_unknown", group=self._group, broker=name, error=str(error))
                continue
            if found is None:
                return None
            mine = [one for one in found if self._is_ours(one.queue, topic)]
            if len(mine) < len(found):
                log.sparse.warning(
                    "consumer.assignment_foreign",
                    group=self._group,
                    topic=topic,
                    broker=name,
                    count=len(found) - len(mine),
                )
            popped = {one.queue for one in mine if one.mode == "POP"}
            return Share(queues, {one.queue for one in mine} - popped, popped)
        return None

    def _is_ours(self, queue: MessageQueue, topic: str) -> bool:
        """Whether an assigned queue can belong to the topic. Others are ignored: each costs a task and requests."""
        route = self._client.known_route(topic)
        known = route is not None and queue.broker_name in route.brokers
        return known and queue.topic == topic and ALL_QUEUES <= queue.queue_id < QUEUES_OF_BROKER_MAX

    def _brokers(self, topic: str) -> list[str]:
        route = self._client.known_route(topic)
        names = list(route.brokers) if route is not None else []
        random.shuffle(names)
        return names

    async def _apply(self, topic: str, share: Share) -> bool:
        taker = self._taker
        settled, changed = True, False
        share = await self._bounded(topic, share)
        had = taker.queues
        dropped, kept, gained = await off_loop(len(had) + len(share.pulled), _changes, topic, had, share.pulled)
        for queue in dropped:
            if await taker.drop_queue(queue):
                changed = True
                log.sparse.info("consumer.queue_dropped", group=self._group, queue=queue_name(queue))
            else:
                settled = False
        for number, queue in enumerate(kept, 1):
            taker.repair(queue)
            if number % REPAIRS_A_TURN == 0:
                await asyncio.sleep(0)
        if self._lock is not None and gained:
            locked = await self._lock(gained)
            settled &= len(locked) == len(gained)
            gained = [queue for queue in gained if queue in locked]
        for queue in gained:
            try:
                offset = await self._starts.of(queue)
            except (MQError, OSError) as error:
                log.sparse.warning(
                    "consumer.offset_unknown", group=self._group, queue=queue_name(queue), error=str(error)
                )
                settled = False
                continue
            await taker.take_queue(queue, offset)
            changed = True
            log.sparse.info("consumer.queue_taken", group=self._group, queue=queue_name(queue), queue_offset=offset)
        changed |= self._apply_pop(topic, share.popped)
        if changed and self._on_share is not None:
            await self._on_share(topic, share)
        return settled

    async def _bounded(self, topic: str, share: Share) -> Share:
        """Return the part of a share that this member takes: each queue costs a task and requests.

        Java has no limit; one thread sends its requests. Kept queues are preferred.
        """
        count = len(share.pulled) + len(share.popped)
        taken = self._taken()
        room = max(0, self._count_max - sum(queue.topic != topic for queue in taken))
        if count <= room:
            return share
        log.sparse.error(
            "consumer.too_many_queues",
            group=self._group,
            topic=topic,
            found=count,
            expected_at_most=room,
            remedy="start more members of the group, or raise assigned_count_max",
        )
        return await off_loop(count, _cut, share, set(taken), room)

    def _apply_pop(self, topic: str, wanted: set[MessageQueue]) -> bool:
        if self._popping is None:
            return False
        had = {queue for queue in self._popping.queues if queue.topic == topic}
        for queue in sorted(had - wanted):
            self._popping.drop_queue(queue)
            log.sparse.info("consumer.pop_ended", group=self._group, queue=queue_name(queue))
        for queue in sorted(wanted - had):
            self._popping.take_queue(queue)
            log.sparse.info("consumer.pop_begun", group=self._group, queue=queue_name(queue))
        return had != wanted


def _cut(share: Share, taken: set[MessageQueue], room: int) -> Share:
    """Return a share with at most `room` queues to consume."""
    mine = set(sorted(share.pulled | share.popped, key=lambda queue: (queue not in taken, queue))[:room])
    return Share(share.all, share.pulled & mine, share.popped & mine)


def _changes(
    topic: str, had: Sequence[MessageQueue], wanted: set[MessageQueue]
) -> tuple[list[MessageQueue], list[MessageQueue], list[MessageQueue]]:
    """Return the queues of a topic to drop, to keep and to take, sorted."""
    mine = {queue for queue in had if queue.topic == topic}
    return sorted(mine - wanted), sorted(mine & wanted), sorted(wanted - mine)
