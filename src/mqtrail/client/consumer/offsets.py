"""Consumer offsets: updated in memory when messages are settled, and stored periodically.

Clustering stores them at the broker (QUERY_ and UPDATE_CONSUMER_OFFSET), broadcasting in a file (local_offsets.py).
Source: RemoteBrokerOffsetStore, RocketMQ client.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import MessageModel, MessageQueue, MQError, QueryNotFound, RequestCode

from ..core import (
    ClientInstance,
    ConsumeHook,
    ConsumerConfig,
    LitePullConfig,
    local_address,
    queue_name,
    reply_number,
)
from .local_offsets import LocalOffsets
from .noted_offsets import NotedOffsets

log = Log()

Committed = Callable[[MessageQueue, int], None]


def in_waves(queues: Iterable[MessageQueue]) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """Split queues into those to commit first, one per topic and broker, and the rest, to commit afterwards.

    An Apache broker creates a group's offset table of a topic at the first commit. It acknowledges two concurrent first
    commits, but may keep only one (ConsumerOffsetManager.commitOffset, observed with 4.9.7).
    """
    first: dict[tuple[str, str], MessageQueue] = {}
    rest = [queue for queue in queues if first.setdefault((queue.topic, queue.broker_name), queue) is not queue]
    return list(first.values()), rest


class OffsetStore(Protocol):
    """Stores the offsets of a group."""

    async def open(self) -> None:
        """Open the store. Raises ClientError if another consumer uses the same file."""

    async def close(self) -> None:
        """Close the store."""

    def update(self, queue: MessageQueue, offset: int, *, only_up: bool = True) -> None:
        """Note an offset in memory. only_up: ignore one below the noted offset."""

    def noted(self, queue: MessageQueue) -> int | None:
        """The offset in memory; None if there is none."""
        ...

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset; None if there is none. Raises MQError if it cannot be read."""
        ...

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store the changed offsets of these queues; failures are logged, and the next call retries them."""

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets now. Tries all, then raises the first failure."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop the offset of a queue from memory: it is no longer assigned."""


class RemoteOffsets(NotedOffsets):
    """Offsets at the broker, shared by the members of a group."""

    def __init__(self, client: ClientInstance, group: str, committed: Committed) -> None:
        super().__init__()
        self._client = client
        self._group = group
        self._committed = committed
        self._stored: dict[MessageQueue, int] = {}

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def read(self, queue: MessageQueue) -> int | None:
        ext = self._ext(queue)
        address = self._client.any_address(queue.broker_name)
        try:
            reply = await self._client.call(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        except QueryNotFound:
            return None
        return reply_number(reply, "offset")

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        changed = [queue for queue in queues if self._memory.get(queue, -1) != self._stored.get(queue, -1)]
        for wave in in_waves(changed):
            await asyncio.gather(*(self._persist(queue) for queue in wave))

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._memory.update(offsets)
        results: list[BaseException | None] = []
        for wave in in_waves(offsets):
            stored = (self._store(queue, offsets[queue]) for queue in wave)
            results += await asyncio.gather(*stored, return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _store(self, queue: MessageQueue, offset: int) -> None:
        address = self._client.any_address(queue.broker_name)
        ext = self._ext(queue) | {"commitOffset": str(offset)}
        await self._client.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        self._stored[queue] = offset
        self._committed(queue, offset)

    async def _persist(self, queue: MessageQueue) -> None:
        offset = self._memory.get(queue)
        if offset is None:
            return
        try:
            await self._store(queue, offset)
        except (MQError, OSError) as error:
            log.sparse.warning(
                "consumer.commit_failed", group=self._group, queue=queue_name(queue), offset=offset, error=str(error)
            )

    def forget(self, queue: MessageQueue) -> None:
        self._memory.pop(queue, None)
        self._stored.pop(queue, None)

    def _ext(self, queue: MessageQueue) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "bname": queue.broker_name,
        }


def open_offsets(
    client: ClientInstance, group: str, hooks: Sequence[ConsumeHook], config: ConsumerConfig | LitePullConfig
) -> OffsetStore:
    """Return the offset store of a consumer. Offsets that it commits at brokers are reported to hooks."""

    def committed(queue: MessageQueue, offset: int) -> None:
        time_ms = now_ms()
        for hook in hooks:
            hook.offset_committed(queue, offset, time_ms)

    if config.model is MessageModel.CLUSTERING:
        return RemoteOffsets(client, group, committed)
    # The name must outlive the process, so it is not the client id, as in Java: one consumer per group, host and name.
    return LocalOffsets(config.offset_dir, f"{local_address()}@{config.instance_name}", group)
