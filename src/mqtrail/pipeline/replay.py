"""What earlier attempts of a task stored: the check before a task sends, and after a request without an answer.

The first message of a task to a topic is its marker: it is sent alone, has an id that does not depend on the order of
rows, and nothing else is sent before a broker finds it by that id. So a task that does not find its marker is the first
one, or the earlier ones stored nothing but the marker. A task that finds it reads all that was stored since.

    what is looked up           by
    the marker                  the unique-key index of each broker of the topic
    rows after a found marker   the queues of the topic, from the marker's store time on (less clockSkewMaxMs)
    a request without answer    the unique-key index of the broker that it was sent to

Delayed messages are looked up where brokers keep them first: SCHEDULE_TOPIC_XXXX and rmq_sys_wheel_timer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from mqtrail.client import Admin, RouteNotFound
from mqtrail.wire import RAW_UNIQ_KEY, TIMER_TOPIC, MessageQueue, MQError, RecordError, decode_head, find_property

from .bounds import bounds_of
from .cluster import Cluster, Pulled, Retrying
from .reading import PULL_COUNT_MAX
from .rowids import ROW_ID_PROPERTY, StoredRows, TaskIds
from .sinkoptions import SinkOptions

T = TypeVar("T")

FIND_WAIT_S: Final = 0.02  # between two look-ups of a marker that was just stored
RETRY_WAIT_S: Final = 0.5
_ROW_ID: Final = ROW_ID_PROPERTY.encode()


class SinkFailed(MQError):
    """A request of the sink failed until its timeout. The task may run again: it finds what this one stored."""


class NoTimers(SinkFailed):
    """The cluster has no timer messages."""


class Replay:
    """Looks up what is stored. Belongs to the event loop of one task."""

    def __init__(
        self, options: SinkOptions, ids: TaskIds, admin: Admin, connected: Callable[[], Cluster], *, again: bool = False
    ) -> None:
        """again: an earlier attempt of this task has just ended, and requests of it may still be on their way."""
        self._options = options
        self._ids = ids
        self._admin = admin
        self._connected = connected
        self._again = again
        self._settled = False

    async def stored(self, stored_in: str, marker: str) -> StoredRows | None:
        """Return what earlier attempts stored in a topic; None: nothing."""
        if stored_in == TIMER_TOPIC:
            await self._retrying(f"route of {stored_in}", self._check_timers)
        if self._again:
            await self._settle()
        begun_ms = await self._retrying(f"look-up of {marker} in {stored_in}", partial(self._find, stored_in, marker))
        if begun_ms is None:
            return None
        await self._settle()
        since_ms = max(begun_ms - self._options.clock_skew_max_ms, 0)
        found = await asyncio.to_thread(self._read, stored_in, since_ms)
        return StoredRows(self._ids, found)

    async def wait_for(self, stored_in: str, marker: str) -> None:
        """Return when brokers find a marker that was stored. Raises SinkFailed if they do not."""
        until = time.monotonic() + self._options.retry_timeout_ms / 1000
        while await self._retrying(f"look-up of {marker}", partial(self._find, stored_in, marker)) is None:
            if time.monotonic() > until:
                raise SinkFailed(
                    f"message {marker} was stored in {stored_in}, and its broker did not find it by its id for "
                    f"{self._options.retry_timeout_ms} ms. The sink needs the index of brokers: set "
                    "messageIndexEnable to true there"
                )
            await asyncio.sleep(FIND_WAIT_S)

    async def has(self, stored_in: str, msg_id: str, broker_name: str) -> bool:
        """Whether a broker stored this id. Raises MQError if it does not answer."""
        result = await self._admin.query(stored_in, msg_id, unique=True)
        if result.messages:
            return True
        if (failure := result.failures.get(broker_name)) is not None:
            raise SinkFailed(f"broker {broker_name} does not answer whether it stored {msg_id}: {failure}") from failure
        if broker_name not in {one.broker_name for one in await self._admin.queues(stored_in)}:
            raise SinkFailed(f"broker {broker_name} is in no route of {stored_in} now, and may have stored {msg_id}")
        return False

    async def _check_timers(self) -> None:
        """Raise SinkFailed if brokers have no timers: they would deliver the message at once."""
        try:
            await self._admin.queues(TIMER_TOPIC)
        except RouteNotFound:
            raise NoTimers(
                f"found no topic {TIMER_TOPIC}, expected brokers of 5.x with timers (timerWheelEnable) for rows with "
                "deliverAt: use delayLevel"
            ) from None

    async def _find(self, stored_in: str, marker: str) -> int | None:
        """Return when the first message of this id was stored, epoch ms of its broker; None: nowhere."""
        try:
            result = await self._admin.query(stored_in, marker, unique=True)
        except RouteNotFound:
            return None  # no broker has the topic
        for name, failure in result.failures.items():
            raise SinkFailed(f"broker {name}: {failure}") from failure
        return min((message.store_timestamp_ms for message in result.messages), default=None)

    async def _settle(self) -> None:
        if not self._settled:
            await asyncio.sleep(self._options.replay_settle_ms / 1000)
            self._settled = True

    async def _retrying(self, what: str, request: Callable[[], Awaitable[T]]) -> T:
        until = time.monotonic() + self._options.retry_timeout_ms / 1000
        while True:
            try:
                return await request()
            except NoTimers:
                raise
            except MQError as error:
                if time.monotonic() > until:
                    raise SinkFailed(
                        f"{what} failed for {self._options.retry_timeout_ms} ms, last with: {error}. Check that all "
                        "brokers of the topic are up: without their answers the sink cannot know what is stored"
                    ) from error
            await asyncio.sleep(RETRY_WAIT_S)

    def _read(self, stored_in: str, since_ms: int) -> list[str]:
        cluster = self._connected()
        try:
            return list(rows_since(cluster, stored_in, since_ms, self._ids, self._options.retry_timeout_ms))
        finally:
            cluster.close()


def rows_since(cluster: Cluster, topic: str, since_ms: int, ids: TaskIds, retry_timeout_ms: int) -> Iterator[str]:
    """Yield the ids of a task's rows that a topic has from a time on; a row may come several times."""
    retrying = Retrying(retry_timeout_ms)
    for queue, (first, end) in bounds_of(cluster, [topic], retry_timeout_ms, hold_unreachable=False).items():
        at = retrying(f"offset of {queue} at {since_ms}", partial(cluster.offset_by_time, queue, since_ms))
        at = max(at - 1, first)  # versions of brokers differ by one message
        while at < end:
            count = min(PULL_COUNT_MAX, end - at)
            pulled = retrying(f"pull of {queue} at {at}", partial(_pull, cluster, queue, at, count))
            for record in pulled.records:
                if (row_id := _row_id(record, ids.prefix)) is not None:
                    yield row_id
            at = pulled.next_offset


def _pull(cluster: Cluster, queue: MessageQueue, at: int, count: int) -> Pulled:
    pulled = cluster.pull(queue, at, count)
    if pulled.next_offset <= at:
        raise SinkFailed(f"found no message of {queue} at {at}, although its broker has later ones")
    return pulled


def _row_id(record: bytes, prefix: str) -> str | None:
    """Return the id of a row of a task; None: the message is another's."""
    try:
        head = decode_head(record)
    except RecordError:
        return None
    properties = record[head.properties_start : head.properties_end]
    found = find_property(properties, _ROW_ID) or find_property(properties, RAW_UNIQ_KEY)
    text = "" if found is None else bytes(found).decode("utf-8", "replace")
    return text if text.startswith(prefix) else None
