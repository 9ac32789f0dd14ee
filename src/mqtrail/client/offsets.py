"""Consumer offsets: kept in memory while messages are settled, written to the broker (or a file) now and then.

Remote for clustering (QUERY_ and UPDATE_CONSUMER_OFFSET), a local file for broadcasting.
Source: RemoteBrokerOffsetStore, LocalFileOffsetStore, RocketMQ client.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from mqtrail.client.instance import ClientInstance
from mqtrail.client.routes import queue_name
from mqtrail.net import Log
from mqtrail.wire import MessageQueue, MQError, QueryNotFound, QueueOffsets, RequestCode

log = Log()

Committed = Callable[[MessageQueue, int], None]


class OffsetStore(Protocol):
    """Where a group's offsets are."""

    def update(self, queue: MessageQueue, offset: int, *, only_up: bool = True) -> None:
        """Note in memory. only_up: never go back."""

    def noted(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""
        ...

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset; None when there is none. Raises MQError when that cannot be told."""
        ...

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store what changed of these queues; failures are logged and tried again the next time."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop from memory: the queue is not ours any more."""


class RemoteOffsets:
    """The broker keeps them, a group's members share them."""

    def __init__(self, client: ClientInstance, group: str, committed: Committed) -> None:
        self._client = client
        self._group = group
        self._committed = committed
        self._memory: dict[MessageQueue, int] = {}
        self._stored: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, only_up: bool = True) -> None:
        if not only_up or offset > self._memory.get(queue, -1):
            self._memory[queue] = offset

    def noted(self, queue: MessageQueue) -> int | None:
        return self._memory.get(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        ext = self._ext(queue)
        address = self._client.any_address(queue.broker_name)
        try:
            reply = await self._client.call(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        except QueryNotFound:
            return None
        return int(reply.ext["offset"])

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        changed = [queue for queue in queues if self._memory.get(queue, -1) != self._stored.get(queue, -1)]
        await asyncio.gather(*(self._persist(queue) for queue in changed))

    async def _persist(self, queue: MessageQueue) -> None:
        offset = self._memory.get(queue)
        if offset is None:
            return
        try:
            address = self._client.any_address(queue.broker_name)
            ext = self._ext(queue) | {"commitOffset": str(offset)}
            await self._client.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        except (MQError, OSError) as error:
            log.warning(
                "consumer.commit_failed", group=self._group, queue=queue_name(queue), offset=offset, error=str(error)
            )
        else:
            self._stored[queue] = offset
            self._committed(queue, offset)

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


class LocalOffsets:
    """A file of this client keeps them: every member of a broadcasting group has its own.

    The format is Java's offsets.json, read leniently; the file is replaced whole, its predecessor kept as `.bak`.
    """

    def __init__(self, folder: Path | None, client_name: str, group: str, committed: Committed) -> None:
        folder = Path.home() / ".mqtrail" / "offsets" if folder is None else folder
        self._path = folder / client_name / group / "offsets.json"
        self._committed = committed
        self._memory: dict[MessageQueue, int] = {}
        self._stored: dict[MessageQueue, int] | None = None

    def update(self, queue: MessageQueue, offset: int, *, only_up: bool = True) -> None:
        if not only_up or offset > self._memory.get(queue, -1):
            self._memory[queue] = offset

    def noted(self, queue: MessageQueue) -> int | None:
        return self._memory.get(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        if self._stored is None:
            self._stored = await asyncio.to_thread(self._load)
        return self._stored.get(queue)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        if self._stored is None:
            self._stored = await asyncio.to_thread(self._load)
        changed = {
            queue: offset
            for queue in queues
            if (offset := self._memory.get(queue)) is not None and self._stored.get(queue) != offset
        }
        if not changed:
            return
        merged = self._stored | changed
        try:
            await asyncio.to_thread(self._save, merged)
        except OSError as error:
            log.warning("consumer.commit_failed", path=str(self._path), error=str(error))
            return
        self._stored = merged
        for queue, offset in changed.items():
            self._committed(queue, offset)

    def forget(self, queue: MessageQueue) -> None:
        self._memory.pop(queue, None)

    def _load(self) -> dict[MessageQueue, int]:
        for path in (self._path, self._path.with_name("offsets.json.bak")):
            try:
                return dict(QueueOffsets.decode(path.read_bytes()).offset_table)
            except FileNotFoundError:
                continue
            except (OSError, MQError) as error:
                log.warning("consumer.offsets_unreadable", path=str(path), error=str(error))
        return {}

    def _save(self, offsets: dict[MessageQueue, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._path.with_name("offsets.json.tmp")
        with open(new, "wb") as file:
            file.write(QueueOffsets(offsets).encode())
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            os.replace(self._path, self._path.with_name("offsets.json.bak"))
        os.replace(new, self._path)
