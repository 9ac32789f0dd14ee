"""The accumulator: collects single messages for a few milliseconds and sends them as one batch.

    await asyncio.gather(*(producer.send(m) for m in messages))      # auto_batch: fewer requests than messages

Messages of the same topic, queue, WAIT and tags share a batch. A batch is sent when it reaches auto_batch_size bytes or
is auto_batch_ms old. Source: ProduceAccumulator, RocketMQ 5.x client.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from mqtrail.wire import (
    DELAY_PROPERTIES,
    PROPERTY_MSG_TYPE,
    PROPERTY_PGROUP,
    PROPERTY_TAGS,
    PROPERTY_WAIT,
    RETRY_PREFIX,
    Message,
    MessageQueue,
)

from ..core import ProducerConfig, SendResult

SendNow = Callable[[Message | Sequence[Message], MessageQueue | None], Awaitable[SendResult]]
Spawn = Callable[[Coroutine[Any, Any, None]], object]

_ALONE = (*DELAY_PROPERTIES, PROPERTY_PGROUP, PROPERTY_MSG_TYPE)
_Key = tuple[str, MessageQueue | None, str, str]


class _Gathering:
    """Messages collected for one batch."""

    __slots__ = ("futures", "messages", "size", "timer")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.size = 0
        self.timer: asyncio.TimerHandle | None = None


class Accumulator:
    """Collects the single sends of one producer, at most auto_batch_total_size bytes; further ones are sent alone."""

    def __init__(self, send_now: SendNow, spawn: Spawn, config: ProducerConfig) -> None:
        self._send_now = send_now
        self._spawn = spawn
        self._config = config
        self._gathering: dict[_Key, _Gathering] = {}
        self._held_size = 0
        self._leaving: set[asyncio.Future[SendResult]] = set()

    async def send(self, message: Message, queue: MessageQueue | None) -> SendResult:
        """Send a message in a batch if possible, else alone. Raises as Producer.send; a batch fails as a whole."""
        properties = message.wire_properties()
        size = len(message.body)
        if (
            message.topic.startswith(RETRY_PREFIX)
            or any(name in properties for name in _ALONE)
            or self._held_size + size > self._config.auto_batch_total_size
        ):
            return await self._send_now(message, queue)
        key = (message.topic, queue, properties[PROPERTY_WAIT], properties.get(PROPERTY_TAGS, ""))
        loop = asyncio.get_running_loop()
        gathering = self._gathering.get(key)
        if gathering is None:
            gathering = self._gathering[key] = _Gathering()
            gathering.timer = loop.call_later(self._config.auto_batch_ms / 1000, self._leave, key)
        future: asyncio.Future[SendResult] = loop.create_future()
        gathering.messages.append(message)
        gathering.futures.append(future)
        gathering.size += size
        self._held_size += size
        if gathering.size >= self._config.auto_batch_size:
            self._leave(key)
        return await future

    def flush(self) -> None:
        """Send all collected messages now."""
        for key in list(self._gathering):
            self._leave(key)

    async def drain(self) -> None:
        """Send all collected messages and wait for the results."""
        self.flush()
        while self._leaving:
            await asyncio.wait(list(self._leaving))

    def _leave(self, key: _Key) -> None:
        gathering = self._gathering.pop(key)
        if gathering.timer is not None:
            gathering.timer.cancel()
        self._held_size -= gathering.size
        waiting = [
            (message, future)
            for message, future in zip(gathering.messages, gathering.futures, strict=True)
            if not future.done()  # its caller was cancelled before it was sent
        ]
        if waiting:
            self._leaving.update(future for _, future in waiting)
            self._spawn(self._send(waiting, key[1]))

    async def _send(
        self, waiting: list[tuple[Message, asyncio.Future[SendResult]]], queue: MessageQueue | None
    ) -> None:
        futures = [future for _, future in waiting]
        try:
            messages = [message for message, _ in waiting]
            result = await self._send_now(messages if len(messages) > 1 else messages[0], queue)
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        except Exception as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        else:
            for future, one in zip(futures, shares(result, len(futures)), strict=True):
                if not future.done():
                    future.set_result(one)
        finally:
            self._leaving.difference_update(futures)


def shares(result: SendResult, count: int) -> list[SendResult]:
    """Return the result of each message of a batch: its ids and its queue offset."""
    msg_ids, offset_msg_ids = result.msg_id.split(","), result.offset_msg_id.split(",")
    offset = result.queue_offset
    if len(msg_ids) != count:
        return [result] * count
    if len(offset_msg_ids) != count:
        offset_msg_ids = [result.offset_msg_id] * count
    return [
        result._replace(msg_id=msg_id, offset_msg_id=offset_msg_id, queue_offset=offset + place if offset >= 0 else -1)
        for place, (msg_id, offset_msg_id) in enumerate(zip(msg_ids, offset_msg_ids, strict=True))
    ]
