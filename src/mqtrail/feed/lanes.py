"""Sends messages: in order within each queue, several queues at once, and says what is acknowledged.

    add -> a lane for each queue -> batches, one after the other -> acknowledged, in the order of add

A failed send is repeated, in its place, until it succeeds or the time for retries is over. If an answer was lost, the
batch may be stored twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from mqtrail.client import InvalidMessage, SendFailed, SendResult
from mqtrail.net import Log
from mqtrail.wire import BatchItem, Message, MessageQueue, MQError, Refusal, decode_properties

log = Log()

BATCH_COUNT: Final = 256  # messages of one send
BATCH_SIZE: Final = 256 * 1024  # bytes after which a batch is not extended
IN_FLIGHT_COUNT: Final = 4_096  # items that are not acknowledged
IN_FLIGHT_SIZE: Final = 32 * 1024 * 1024  # their bytes
CLOSE_S: Final = 5.0  # at the end: how long sends under way may take
RETRY_S: Final = 0.1  # delay after a failed send; doubles
RETRY_MAX_S: Final = 5.0

Item = TypeVar("Item")


class Sends(Protocol):
    """What a Producer does."""

    async def send(self, message: Message | Sequence[Message], *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message, or several as a batch."""
        ...

    async def send_encoded(self, topic: str, items: Sequence[BatchItem], *, queue: MessageQueue) -> SendResult:
        """Send messages whose properties are encoded, as a batch."""
        ...


@dataclass(slots=True, eq=False)
class _Unit(Generic[Item]):
    """An item on its way. waiting: sends that are not acknowledged. queue_offset: of the last one that is."""

    item: Item
    message: Message | BatchItem | None
    size: int
    waiting: int
    queue_offset: int = -1


@dataclass(slots=True, eq=False)
class _Lane(Generic[Item]):
    queue: MessageQueue
    units: deque[_Unit[Item]] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    is_sending: bool = False


class Lanes(Generic[Item]):
    """Sends to the queues of one topic. Use it with `async with`; it must be in the loop of the producer.

    acknowledged: called with each item, in the order of add, and with its queue offset; -1: it had no message.
    error: the kind of error to raise. remedy: what a refused item is, and what to do. retry_s: bound of retries.
    """

    def __init__(
        self,
        producer: Sends,
        queues: Sequence[MessageQueue],
        acknowledged: Callable[[Item, int], None],
        *,
        error: type[MQError],
        remedy: Callable[[Item], str],
        retry_s: float,
    ) -> None:
        self._producer = producer
        self._acknowledged = acknowledged
        self._error = error
        self._remedy = remedy
        self._retry_s = retry_s
        self._lanes = {queue: _Lane[Item](queue) for queue in queues}
        self._units: deque[_Unit[Item]] = deque()
        self._size = 0
        self._progress = asyncio.Event()
        self._is_closing = False
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises what a lane failed with, as soon as it did."""

    async def __aenter__(self) -> Lanes[Item]:
        self._tasks = {queue: asyncio.create_task(self._run(lane)) for queue, lane in self._lanes.items()}
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_closing = True
        sending = [self._tasks[lane.queue] for lane in self._lanes.values() if lane.is_sending]
        if sending:  # what a broker has already is acknowledged, if another lane failed
            await asyncio.wait(sending, timeout=CLOSE_S)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if not self.failure.cancel():
            self.failure.exception()  # otherwise asyncio logs a failure that was never retrieved

    async def add(
        self,
        item: Item,
        message: Message | BatchItem | None = None,
        queues: Collection[MessageQueue] = (),
        size: int = 0,
    ) -> None:
        """Send an item's message after those of its queues; None: only pass the item on, after all before it.

        message: a Message, or a BatchItem as `Producer.send_encoded` takes it; all of a run are of the same kind.
        size: bytes that count against the bounds. Raises what a lane failed with.
        """
        if self.failure.done() or not self._has_room(size):
            await self._until(lambda: self._has_room(size))
        unit = _Unit(item, message, size, len(queues))
        self._units.append(unit)
        self._size += size
        for queue in queues:
            lane = self._lanes[queue]
            lane.units.append(unit)
            lane.filled.set()
        if not queues:
            self._report()

    async def drain(self) -> None:
        """Wait until all is acknowledged. Raises what a lane failed with."""
        await self._until(lambda: not self._units)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        return len(self._units) < IN_FLIGHT_COUNT and (not self._units or self._size + size <= IN_FLIGHT_SIZE)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not self.failure.done() and not is_so():
            self._progress.clear()
            await self._progress.wait()
        if self.failure.done():
            self.failure.result()

    def _report(self) -> None:
        """Pass on what is acknowledged with all before it."""
        while self._units and not self._units[0].waiting:
            unit = self._units.popleft()
            self._size -= unit.size
            self._acknowledged(unit.item, unit.queue_offset)
        self._progress.set()

    async def _run(self, lane: _Lane[Item]) -> None:
        try:
            while not self._is_closing:
                lane.is_sending = False
                while not lane.units:
                    lane.filled.clear()
                    await lane.filled.wait()
                batch = _batch(lane.units)
                lane.is_sending = True
                try:
                    await self._send(batch, lane.queue)
                except (InvalidMessage, Refusal):
                    for unit in batch:  # one of them, or only their batch, is too large
                        await self._send_alone(unit, lane.queue)
        except Exception as error:
            if not self.failure.done():
                self.failure.set_exception(error)
            self._progress.set()

    async def _send_alone(self, unit: _Unit[Item], queue: MessageQueue) -> None:
        try:
            await self._send([unit], queue)
        except (InvalidMessage, Refusal) as error:  # no retry would change it
            found = f"a send was refused: {error}; {self._remedy(unit.item)}"
            raise self._error(f"{found}; then start it again: it continues there") from error

    async def _send(self, batch: Sequence[_Unit[Item]], queue: MessageQueue) -> None:
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + self._retry_s, RETRY_S
        place = f"{queue.broker_name}/{queue.queue_id}"
        while True:
            try:
                result = await self._sent(batch, queue)
                break
            except (InvalidMessage, Refusal):
                raise
            except MQError as error:
                if loop.time() + pause_s > deadline:
                    raise self._error(
                        f"could not send to {place} for {self._retry_s:.0f} s: {_why(error)}: check the brokers, and "
                        "start it again: it continues there"
                    ) from error
                log.sparse.warning("feed.send_failed", queue=place, error=_why(error), retry_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
        for number, unit in enumerate(batch):
            unit.queue_offset = result.queue_offset + number
            unit.waiting -= 1
        self._report()

    async def _sent(self, batch: Sequence[_Unit[Item]], queue: MessageQueue) -> SendResult:
        if isinstance(batch[0].message, BatchItem):
            items = [unit.message for unit in batch if isinstance(unit.message, BatchItem)]
            if len(items) > 1:
                return await self._producer.send_encoded(queue.topic, items, queue=queue)
            (item,) = items
            properties = decode_properties(item.properties)
            alone = Message(queue.topic, item.body, flag=item.flag, properties=properties)
            return await self._producer.send(alone, queue=queue)
        messages = [unit.message for unit in batch if isinstance(unit.message, Message)]
        return await self._producer.send(messages if len(messages) > 1 else messages[0], queue=queue)


def _why(error: MQError) -> str:
    """Return the last failure of a send: the whole text has the ids of a batch."""
    return str(error.attempts[-1]) if isinstance(error, SendFailed) and error.attempts else str(error)


def _batch(units: deque[_Unit[Item]]) -> list[_Unit[Item]]:
    """Take the next messages of a lane: at least one."""
    found = [units.popleft()]
    size = found[0].size
    while units and len(found) < BATCH_COUNT and size + units[0].size <= BATCH_SIZE:
        size += units[0].size
        found.append(units.popleft())
    return found
