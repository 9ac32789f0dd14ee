"""Rebalance: which queues this member has now, decided from routes and the group's members, and taken over or given up.

Source: RebalanceImpl, RebalancePushImpl, RocketMQ 5.x client.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from mqtrail.client.allocate import Allocation, allocate_averagely
from mqtrail.client.config import ConsumerConfig
from mqtrail.client.errors import RouteNotFound
from mqtrail.client.instance import ClientInstance
from mqtrail.client.offsets import OffsetStore
from mqtrail.client.routes import queue_name
from mqtrail.net import Log
from mqtrail.wire import (
    RETRY_PREFIX,
    ConsumeFromWhere,
    ConsumerIdList,
    MessageModel,
    MessageQueue,
    MQError,
    RequestCode,
)

log = Log()


class QueueTaker(Protocol):
    """Who works on the queues."""

    async def take_queue(self, queue: MessageQueue, offset: int) -> None: ...

    async def drop_queue(self, queue: MessageQueue) -> bool:
        """Give a queue up; False when that must wait (an ordered handler is running)."""
        ...


class Rebalancer:
    """Keeps the set of assigned queues in step with the cluster."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        topics: Sequence[str],
        offsets: OffsetStore,
        taker: QueueTaker,
        lock: Callable[[list[MessageQueue]], Awaitable[set[MessageQueue]]] | None,
        config: ConsumerConfig,
        allocation: Allocation = allocate_averagely,
    ) -> None:
        self._client = client
        self._group = group
        self._topics = topics
        self._offsets = offsets
        self._taker = taker
        self._lock = lock
        self._config = config
        self._allocate = allocation
        self._wanted = asyncio.Event()
        self.assigned: set[MessageQueue] = set()

    def wake(self) -> None:
        """Rebalance soon: members or routes changed."""
        self._wanted.set()

    async def run(self) -> None:
        """Rebalance every rebalance_ms and when woken; again after a second while something is not settled."""
        while True:
            settled = await self.once()
            wait_ms = self._config.rebalance_ms if settled else min(1_000, self._config.rebalance_ms)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()

    async def once(self) -> bool:
        """Rebalance every topic now; False when some topic could not be settled and shall be tried again soon."""
        settled = True
        for topic in list(self._topics):
            try:
                settled &= await self._topic(topic)
            except (MQError, OSError) as error:
                log.warning("consumer.rebalance_failed", group=self._group, topic=topic, error=str(error))
                settled = False
        return settled

    async def _topic(self, topic: str) -> bool:
        try:
            route = await self._client.route(topic)
        except RouteNotFound:
            return True  # not there yet: the route refresh finds it, and wakes us
        queues = list(route.subscribe_queues)
        if self._config.model is MessageModel.CLUSTERING and queues:
            members = await self._members(topic)
            if members is None:
                return False
            queues = self._allocate(self._client.client_id, queues, members)
        return await self._apply(topic, set(queues))

    async def _members(self, topic: str) -> list[str] | None:
        """The sorted client ids of the group, from one broker of the topic; None when no broker tells."""
        route = self._client.known_route(topic)
        names = list(route.brokers) if route is not None else []
        random.shuffle(names)
        for name in names:
            try:
                address = self._client.any_address(name)
                reply = await self._client.call(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group}
                )
                return sorted(ConsumerIdList.decode(reply.body).consumer_id_list)
            except (MQError, OSError) as error:
                log.warning("consumer.members_unknown", group=self._group, broker=name, error=str(error))
        return None

    async def _apply(self, topic: str, wanted: set[MessageQueue]) -> bool:
        settled = True
        for queue in sorted(queue for queue in self.assigned if queue.topic == topic and queue not in wanted):
            if await self._taker.drop_queue(queue):
                self.assigned.discard(queue)
                log.info("consumer.queue_dropped", group=self._group, queue=queue_name(queue))
            else:
                settled = False
        gained = sorted(wanted - self.assigned)
        if self._lock is not None and gained:
            locked = await self._lock(gained)
            settled &= len(locked) == len(gained)
            gained = [queue for queue in gained if queue in locked]
        for queue in gained:
            try:
                self._offsets.forget(queue)
                offset = await self.start_offset(queue)
            except (MQError, OSError) as error:
                log.warning("consumer.offset_unknown", group=self._group, queue=queue_name(queue), error=str(error))
                settled = False
                continue
            self.assigned.add(queue)
            await self._taker.take_queue(queue, offset)
            log.info("consumer.queue_taken", group=self._group, queue=queue_name(queue), queue_offset=offset)
        return settled

    async def start_offset(self, queue: MessageQueue) -> int:
        """Return where to begin: the stored offset, else what consume_from says. Raises MQError if unknown."""
        stored = await self._offsets.read(queue)
        if stored is not None and stored >= 0:
            return stored
        consume_from = self._config.consume_from
        by_time = consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        retries = queue.topic.startswith(RETRY_PREFIX)
        if consume_from is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET or (retries and not by_time):
            return 0
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
        code = RequestCode.GET_MAX_OFFSET
        if by_time and not retries:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            ext["timestamp"] = str(self._config.consume_from_timestamp_ms)
        reply = await self._client.call(self._client.any_address(queue.broker_name), code, ext)
        return int(reply.ext["offset"])
