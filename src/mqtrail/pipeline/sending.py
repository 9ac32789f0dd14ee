"""Sends the rows of one task: in batches, a bounded number at once, each row once.

    outcome of a request                  what follows
    acknowledged                          done
    certainly not stored                  sent again
    perhaps stored (no answer)            its broker is asked after replaySettleMs; what it lacks is sent again
    refused for its content               its rows are sent one by one; a refused row is a bad row

All of it within retryTimeoutMs, then the task fails. Rows with an order key go to the queue of their key, one request
after the other in each queue, so a row is never stored before an earlier one of its key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mqtrail.client import InvalidMessage, Producer, SendFailed, by_hash
from mqtrail.wire import PROPERTY_UNIQ_KEY, MessageIllegal, MessageQueue, MQError, Refusal

from .replay import Replay, SinkFailed
from .rowids import ROW_ID_PROPERTY, StoredRows, TaskIds
from .rows import BadRow, SinkRow
from .sinkoptions import SinkOptions

RETRY_WAIT_FIRST_S: Final = 0.1
RETRY_WAIT_MAX_S: Final = 2.0

Lane = tuple[str, MessageQueue | None]
"""Rows that may share a request: a topic, and the queue of ordered rows."""


@dataclass(slots=True)
class _Filling:
    """Rows that wait for more."""

    rows: list[SinkRow]
    size: int = 0


class RowSender:
    """Sends rows. Belongs to the event loop of one task; `refuse` gets rows that brokers do not take."""

    def __init__(
        self,
        options: SinkOptions,
        ids: TaskIds,
        producer: Producer,
        replay: Replay,
        refuse: Callable[[BadRow], None],
    ) -> None:
        self._options = options
        self._ids = ids
        self._producer = producer
        self._replay = replay
        self._refuse = refuse
        self._slots = asyncio.Semaphore(options.in_flight_max)
        self._places: dict[tuple[str, str], StoredRows | None] = {}  # (topic, stored in) -> what was stored before
        self._queues: dict[str, list[MessageQueue]] = {}
        self._filling: dict[Lane, _Filling] = {}
        self._turns: dict[Lane, asyncio.Lock] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self.sent_count = 0
        self.found_count = 0

    async def send(self, row: SinkRow) -> None:
        """Take a row; wait while too many requests are in flight. Raises the error of an earlier row."""
        place = row.message.topic, row.stored_in
        lane = row.message.topic, await self._queue_of(row)
        if place not in self._places and await self._open(place, row, lane[1]):
            return
        before = self._places[place]
        if before is not None and before.take(row.row_id):
            self.found_count += 1
        elif row.stored_in != row.message.topic or self._options.batch_rows_max == 1:
            if lane[1] is not None:
                await self._flush(lane)
            await self._start([row], lane)
        else:
            filling = self._filling.setdefault(lane, _Filling([]))
            if filling.rows and filling.size + row.size > self._options.batch_size_max:
                await self._flush(lane)
                filling = self._filling.setdefault(lane, _Filling([]))
            filling.rows.append(row)
            filling.size += row.size
            if len(filling.rows) >= self._options.batch_rows_max:
                await self._flush(lane)

    async def drain(self) -> None:
        """Send all rows that wait, and return when every one is acknowledged. Raises the first error."""
        for lane in list(self._filling):
            await self._flush(lane)
        while self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            self._raise()
        self._raise()

    async def close(self) -> None:
        """Cancel what is in flight, after an error."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    # -- the first message to a place ---------------------------------------------------------------------------------

    async def _open(self, place: tuple[str, str], row: SinkRow, queue: MessageQueue | None) -> bool:
        """Look up what is stored at a place; if nothing is, send this row as its marker. Return whether it was sent."""
        topic, stored_in = place
        marker = self._ids.marker(topic, stored_in)
        self._places[place] = await self._replay.stored(stored_in, marker)
        if self._places[place] is not None:
            return False
        own = {**row.message.properties, PROPERTY_UNIQ_KEY: marker, ROW_ID_PROPERTY: row.row_id}
        first = row._replace(message=replace(row.message, properties=own), row_id=marker)
        before = self.sent_count
        await self._store([first], queue)
        if self.sent_count > before:
            await self._replay.wait_for(stored_in, marker)
        else:
            del self._places[place]  # the broker refused it: the next row is the marker
        return True

    async def _queue_of(self, row: SinkRow) -> MessageQueue | None:
        if row.order_key is None:
            return None
        topic = row.message.topic
        if topic not in self._queues:
            self._queues[topic] = await self._retrying_queues(topic)
        return by_hash(row.order_key)(self._queues[topic], row.message)

    async def _retrying_queues(self, topic: str) -> list[MessageQueue]:
        until = time.monotonic() + self._options.retry_timeout_ms / 1000
        while True:
            try:
                if queues := await self._producer.queues(topic):
                    return queues
                raise SinkFailed(f"topic {topic} has no writable queue, expected one for rows with orderKey")
            except MQError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(RETRY_WAIT_MAX_S)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _flush(self, lane: Lane) -> None:
        filling = self._filling.pop(lane, None)
        if filling is not None and filling.rows:
            await self._start(filling.rows, lane)

    async def _start(self, rows: Sequence[SinkRow], lane: Lane) -> None:
        await self._slots.acquire()
        self._raise()
        task = asyncio.create_task(self._in_turn(rows, lane))
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _in_turn(self, rows: Sequence[SinkRow], lane: Lane) -> None:
        if lane[1] is None:
            await self._store(rows, None)
            return
        async with self._turns.setdefault(lane, asyncio.Lock()):  # waiting tasks get it in their order
            self._raise()
            await self._store(rows, lane[1])

    async def _store(self, rows: Sequence[SinkRow], queue: MessageQueue | None) -> None:
        """Store rows of one topic, each once. Raises SinkFailed."""
        until = time.monotonic() + self._options.retry_timeout_ms / 1000
        wait_s = RETRY_WAIT_FIRST_S
        unsure: str | None = None  # the broker that perhaps stored them
        while rows:
            try:
                if unsure is not None:
                    rows, unsure = await self._missing(rows, unsure), None
                    continue
                await self._request(rows, queue)
                self.sent_count += len(rows)
                return
            except MessageIllegal as refusal:
                if len(rows) == 1:
                    self._refuse(BadRow(rows[0].batch, rows[0].number, f"the broker refuses it: {refusal}"))
                    return
                for row in rows:
                    await self._store([row], queue)
                return
            except MQError as error:
                if isinstance(error, SendFailed) and error.maybe_stored:
                    unsure = error.attempts[-1].broker_name
                if isinstance(error, Refusal | InvalidMessage) or time.monotonic() > until:
                    raise SinkFailed(
                        f"{len(rows)} rows to topic {rows[0].message.topic!r} are not stored: {error}. The task may "
                        "run again, and then sends only what is missing"
                    ) from error
            await asyncio.sleep(self._options.replay_settle_ms / 1000 if unsure is not None else wait_s)
            wait_s = min(wait_s * 2, RETRY_WAIT_MAX_S)

    async def _missing(self, rows: Sequence[SinkRow], broker_name: str) -> list[SinkRow]:
        """Return the rows that the broker did not store."""
        missing = [row for row in rows if not await self._replay.has(row.stored_in, row.row_id, broker_name)]
        self.sent_count += len(rows) - len(missing)
        return missing

    async def _request(self, rows: Sequence[SinkRow], queue: MessageQueue | None) -> None:
        messages = [row.message for row in rows]
        await self._producer.send(messages if len(messages) > 1 else messages[0], queue=queue)
