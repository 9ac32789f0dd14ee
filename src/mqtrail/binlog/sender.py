"""Sends messages: in order within each queue, several queues at once, and says what is acknowledged.

    add -> a lane for each queue -> batches, one after the other -> acknowledged, in the order of add

A failed send is repeated, in its place, until it succeeds or the time for retries is over. If an answer was lost, the
batch may be stored twice: its messages have equal values of BINLOG_ORDER.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from mqtrail.client import InvalidMessage, SendFailed, SendResult, by_hash
from mqtrail.net import Log
from mqtrail.wire import Message, MessageQueue, MQError, Refusal

from .messages import Checkpoint, Outbound
from .model import BinlogError

log = Log()

BATCH_COUNT: Final = 64  # messages of one send
BATCH_SIZE: Final = 256 * 1024  # bytes of bodies after which a batch is not extended
IN_FLIGHT_COUNT: Final = 4_096  # messages that are not acknowledged
IN_FLIGHT_SIZE: Final = 32 * 1024 * 1024  # bytes of their bodies
CLOSE_S: Final = 5.0  # at the end: how long sends under way may take
RETRY_S: Final = 0.1  # delay after a failed send; doubles
RETRY_MAX_S: Final = 5.0


class Sends(Protocol):
    """What a Producer does."""

    async def send(self, message: Message | Sequence[Message], *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message, or several as a batch."""
        ...


@dataclass(slots=True, eq=False)
class _Unit:
    """A message on its way, or a checkpoint among them. waiting: sends that are not acknowledged."""

    item: Outbound | Checkpoint
    waiting: int
    size: int


@dataclass(slots=True)
class _Lane:
    units: deque[_Unit] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    is_sending: bool = False


class LaneSender:
    """Sends to the queues of one topic. acknowledged: called in order for what is done. retry_s: bound of retries.

    Use it with `async with`; it must be in the loop of the producer.
    """

    def __init__(
        self,
        producer: Sends,
        queues: Sequence[MessageQueue],
        acknowledged: Callable[[Outbound | Checkpoint], None],
        retry_s: float,
    ) -> None:
        self._producer = producer
        self._queues = list(queues)
        self._acknowledged = acknowledged
        self._retry_s = retry_s
        self._lanes = [_Lane() for _ in self._queues]
        self._units: deque[_Unit] = deque()
        self._size = 0
        self._progress = asyncio.Event()
        self._failure: Exception | None = None
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> LaneSender:
        self._tasks = [
            asyncio.create_task(self._run(lane, queue)) for lane, queue in zip(self._lanes, self._queues, strict=True)
        ]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_closing = True
        sending = [task for task, lane in zip(self._tasks, self._lanes, strict=True) if lane.is_sending]
        if sending:  # what a broker has already is acknowledged, if another lane failed
            await asyncio.wait(sending, timeout=CLOSE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def add(self, item: Outbound | Checkpoint) -> None:
        """Send a message after those of its queue, or note a checkpoint. Raises what a lane failed with."""
        size = len(item.message.body) if isinstance(item, Outbound) else 0
        await self._until(lambda: len(self._units) < IN_FLIGHT_COUNT and (not self._units or self._fits(size)))
        lanes = self._lanes_of(item)
        unit = _Unit(item, len(lanes), size)
        self._units.append(unit)
        self._size += size
        for lane in lanes:
            lane.units.append(unit)
            lane.filled.set()
        if not lanes:
            self._report()

    async def drain(self) -> None:
        """Wait until all is acknowledged. Raises what a lane failed with."""
        await self._until(lambda: not self._units)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _fits(self, size: int) -> bool:
        return self._size + size <= IN_FLIGHT_SIZE

    def _lanes_of(self, item: Outbound | Checkpoint) -> list[_Lane]:
        if isinstance(item, Checkpoint):
            return []
        if item.key is None:
            return self._lanes
        queue = by_hash(item.key)(self._queues, item.message)
        assert queue is not None, "a hash always chooses"
        return [self._lanes[self._queues.index(queue)]]

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._failure is not None:
                raise self._failure
            self._progress.clear()
            await self._progress.wait()
        if self._failure is not None:
            raise self._failure

    def _report(self) -> None:
        """Pass on what is acknowledged with all before it."""
        while self._units and not self._units[0].waiting:
            unit = self._units.popleft()
            self._size -= unit.size
            self._acknowledged(unit.item)
        self._progress.set()

    async def _run(self, lane: _Lane, queue: MessageQueue) -> None:
        try:
            while not self._is_closing:
                lane.is_sending = False
                while not lane.units:
                    lane.filled.clear()
                    await lane.filled.wait()
                batch = _batch(lane.units)
                lane.is_sending = True
                try:
                    await self._send(batch, queue)
                except (InvalidMessage, Refusal):
                    for unit in batch:  # one of them, or only their batch, is too large
                        await self._send_alone(unit, queue)
                else:
                    self._done(batch)
        except Exception as error:
            self._failure = self._failure or error
            self._progress.set()

    def _done(self, units: list[_Unit]) -> None:
        for unit in units:
            unit.waiting -= 1
        self._report()

    async def _send_alone(self, unit: _Unit, queue: MessageQueue) -> None:
        try:
            await self._send([unit], queue)
        except (InvalidMessage, Refusal) as error:  # no retry would change it
            raise _refused(error, _outbound(unit)) from error
        self._done([unit])

    async def _send(self, batch: list[_Unit], queue: MessageQueue) -> None:
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + self._retry_s, RETRY_S
        messages = [_outbound(unit).message for unit in batch]
        while True:
            try:
                await self._producer.send(messages if len(messages) > 1 else messages[0], queue=queue)
                return
            except (InvalidMessage, Refusal):
                raise
            except MQError as error:
                if loop.time() + pause_s > deadline:
                    raise BinlogError(
                        f"could not send to {queue.broker_name}/{queue.queue_id} for {self._retry_s:.0f} s: "
                        f"{_why(error)}: "
                        "check the brokers, and start it again: it continues there"
                    ) from error
                log.sparse.warning(
                    "binlog.send_failed",
                    queue=f"{queue.broker_name}/{queue.queue_id}",
                    error=str(error),
                    retry_s=pause_s,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)


def _why(error: MQError) -> str:
    """Return the last failure of a send: the whole text has the ids of a batch."""
    return str(error.attempts[-1]) if isinstance(error, SendFailed) and error.attempts else str(error)


def _outbound(unit: _Unit) -> Outbound:
    assert isinstance(unit.item, Outbound), "a checkpoint has no lane"
    return unit.item


def _batch(units: deque[_Unit]) -> list[_Unit]:
    """Take the next messages of a lane: at least one."""
    found = [units.popleft()]
    size = found[0].size
    while units and len(found) < BATCH_COUNT and size + units[0].size <= BATCH_SIZE:
        size += units[0].size
        found.append(units.popleft())
    return found


def _refused(error: Exception, found: Outbound) -> BinlogError:
    return BinlogError(
        f"a send was refused: {error}; the message of {found.name}, key {found.key or 'none'}, order {found.order}, "
        f"has a body of {len(found.message.body)} bytes: if it is too large, raise body_size_max of [producer] and "
        "maxMessageSize of the brokers, or leave a column out (--exclude-column); then start it again: it continues "
        "there"
    )
