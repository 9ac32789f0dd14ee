"""Sends messages: in order within each queue, several queues at once. Reports what is acknowledged in order of `add`.

A failed send is repeated, in its place, until it succeeds or the time for retries is over. If an answer was lost, the
batch may be stored twice: its messages have equal values of KAFKA_PARTITION and KAFKA_OFFSET.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from mqtrail.client import InvalidMessage, SendFailed, SendResult
from mqtrail.net import Log
from mqtrail.wire import Message, MessageQueue, MQError, Refusal

from .messages import Bridged
from .model import KafkaRecord, MigrateError

log = Log()

BATCH_COUNT: Final = 64  # messages of one send
BATCH_SIZE: Final = 256 * 1024  # bytes after which a batch is not extended
IN_FLIGHT_COUNT: Final = 4_096  # messages that are not acknowledged
IN_FLIGHT_SIZE: Final = 32 * 1024 * 1024  # their bytes
CLOSE_S: Final = 5.0  # at the end: how long sends under way may take
RETRY_S: Final = 0.1  # delay after a failed send; doubles
RETRY_MAX_S: Final = 5.0


class SendsBatches(Protocol):
    """What a Producer does."""

    async def send(self, message: Message | Sequence[Message], *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message, or several as a batch."""
        ...


@dataclass(slots=True, eq=False)
class Transit:
    """A record on its way. message: None for one that is left out. queue_offset: where it is stored, once it is."""

    record: KafkaRecord
    message: Bridged | None
    queue: MessageQueue | None = None
    queue_offset: int = -1
    is_done: bool = False

    @property
    def size(self) -> int:
        """Bytes that count against IN_FLIGHT_SIZE."""
        return 0 if self.message is None else self.message.size


@dataclass(slots=True)
class _QueueLane:
    queue: MessageQueue
    units: deque[Transit] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    is_sending: bool = False


class BridgeSender:
    """Sends to the queues of one topic. acknowledged: called in order of add. retry_s: bound of retries.

    Use it with `async with`; it must be in the loop of the producer.
    """

    def __init__(
        self,
        producer: SendsBatches,
        queues: Sequence[MessageQueue],
        acknowledged: Callable[[Transit], None],
        retry_s: float,
    ) -> None:
        self._producer = producer
        self._acknowledged = acknowledged
        self._retry_s = retry_s
        self._lanes = {queue: _QueueLane(queue) for queue in queues}
        self._units: deque[Transit] = deque()
        self._size = 0
        self._progress = asyncio.Event()
        self._failure: Exception | None = None
        self._is_closing = False
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}

    async def __aenter__(self) -> BridgeSender:
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

    async def add(self, unit: Transit) -> None:
        """Send a message after those of its queue. Raises what a lane failed with."""
        await self._until(lambda: len(self._units) < IN_FLIGHT_COUNT and (not self._units or self._fits(unit)))
        self._units.append(unit)
        self._size += unit.size
        if unit.queue is None:
            unit.is_done = True
            self._report()
            return
        lane = self._lanes[unit.queue]
        lane.units.append(unit)
        lane.filled.set()

    def check(self) -> None:
        """Raise what a lane failed with: call it now and then while there is nothing to add."""
        if self._failure is not None:
            raise self._failure

    async def drain(self) -> None:
        """Wait until all is acknowledged. Raises what a lane failed with."""
        await self._until(lambda: not self._units)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _fits(self, unit: Transit) -> bool:
        return self._size + unit.size <= IN_FLIGHT_SIZE

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.check()
            self._progress.clear()
            await self._progress.wait()
        self.check()

    def _report(self) -> None:
        """Pass on what is acknowledged with all before it."""
        while self._units and self._units[0].is_done:
            unit = self._units.popleft()
            self._size -= unit.size
            self._acknowledged(unit)
        self._progress.set()

    async def _run(self, lane: _QueueLane) -> None:
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
            self._failure = self._failure or error
            self._progress.set()

    async def _send_alone(self, unit: Transit, queue: MessageQueue) -> None:
        try:
            await self._send([unit], queue)
        except (InvalidMessage, Refusal) as error:  # no retry would change it
            raise _refused(error, _message(unit)) from error

    async def _send(self, batch: list[Transit], queue: MessageQueue) -> None:
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + self._retry_s, RETRY_S
        messages = [_message(unit).message for unit in batch]
        while True:
            try:
                result = await self._producer.send(messages if len(messages) > 1 else messages[0], queue=queue)
                break
            except (InvalidMessage, Refusal):
                raise
            except MQError as error:
                if loop.time() + pause_s > deadline:
                    raise MigrateError(
                        f"could not send to {queue.broker_name}/{queue.queue_id} for {self._retry_s:.0f} s: "
                        f"{_why(error)}: check the brokers, and start it again: it continues there"
                    ) from error
                log.sparse.warning(
                    "migrate.send_failed",
                    queue=f"{queue.broker_name}/{queue.queue_id}",
                    error=_why(error),
                    retry_s=pause_s,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
        for number, unit in enumerate(batch):
            unit.queue_offset = result.queue_offset + number
            unit.is_done = True
        self._report()


def _why(error: MQError) -> str:
    """Return the last failure of a send: the whole text has the ids of a batch."""
    return str(error.attempts[-1]) if isinstance(error, SendFailed) and error.attempts else str(error)


def _message(unit: Transit) -> Bridged:
    assert unit.message is not None, "what is left out has no lane"
    return unit.message


def _batch(units: deque[Transit]) -> list[Transit]:
    """Take the next messages of a lane: at least one."""
    found = [units.popleft()]
    size = found[0].size
    while units and len(found) < BATCH_COUNT and size + units[0].size <= BATCH_SIZE:
        size += units[0].size
        found.append(units.popleft())
    return found


def _refused(error: Exception, found: Bridged) -> MigrateError:
    return MigrateError(
        f"a send was refused: {error}; the record {found.place} has a value of {len(found.message.body)} bytes: if it "
        "is too large, raise body_size_max of [producer] and maxMessageSize of the brokers, or leave it out with "
        f"--skip-record {found.place}; then start it again: it continues there"
    )
