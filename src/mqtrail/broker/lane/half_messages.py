"""Transactions of the lane: half messages that it appended, and the ends that producers send for them (37).

The lane keeps a half message until its end arrives, so that a commit reads neither the log nor the properties. This is
a cache only: an end whose half message is not kept, or that is unusual (another group, another offset, a second end),
goes to `handle`, which reads the log. Lane and `handle` both report ends to `Transactions.note_commit` and
`note_rollback`.
"""

from typing import Final

from mqtrail.wire import HALF_TOPIC, MessageSysFlag

from ..broker import Broker
from .caches import Record, Route, whole_number

HALF_MESSAGES_MAX: Final = 8_192  # maximum number of kept half messages; one more drops all
HALF_MESSAGES_SIZE_MAX: Final = 16 * 1024 * 1024  # bytes of kept half messages
HALF_SIZE_MAX: Final = 64 * 1024  # larger ones are not kept: copying the body dominates the cost of their end
HALF_QUEUE_ID: Final = 0  # the queue of all half messages

_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)

Kept = tuple[Record, int, str, Route]  # record as appended, queue offset, producer group, target queue


class LaneHalfMessages:
    """Half messages of one broker whose end has not arrived."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transactions = broker.transactions
        self._kept: dict[int, Kept] = {}  # by physical offset
        self._size = 0
        self._route: Route | None = None
        self._reported: tuple[int | None, int] | None = None

    def clear(self) -> None:
        """Drop all half messages: a topic changed, and its counters with it."""
        self._kept.clear()
        self._size = 0
        self._route = None

    def route(self) -> Route:
        """Return the queue of half messages."""
        if self._route is None:
            stats = self._broker.stats
            counter = None if stats is None else stats.put_counter(HALF_TOPIC, HALF_QUEUE_ID)
            self._route = Route(HALF_TOPIC, HALF_QUEUE_ID, 0, counter)
        return self._route

    def keep(self, physical_offset: int, record: Record, queue_offset: int, group: str, route: Route) -> None:
        """Keep an appended half message until its end arrives."""
        size = len(record[2]) + len(record[3])
        if size > HALF_SIZE_MAX:
            return
        if len(self._kept) >= HALF_MESSAGES_MAX or self._size + size > HALF_MESSAGES_SIZE_MAX:
            self._kept.clear()
            self._size = 0
        self._kept[physical_offset] = (record, queue_offset, group, route)
        self._size += size

    def take(
        self, physical_offset: str | bytes, queue_offset: str | bytes, group: str, waiting: int
    ) -> tuple[Record, int, Route] | None:
        """Return the record that the commit of a half message stores, its queue offset and its target; drop the half
        message.

        waiting: number of requests that wait for their append. None: `handle` must serve the end.
        """
        at = whole_number(physical_offset)
        found = self._kept.get(at)
        if found is None:
            return None
        record, half_offset, of_group, route = found
        if group != of_group or whole_number(queue_offset) != half_offset:
            return None
        del self._kept[at]
        _, _, body, properties, tags_code, born_ms, born_host, _, sys_flag, _, _ = record
        self._size -= len(body) + len(properties)
        if not self._transactions.takes_end(HALF_QUEUE_ID, half_offset, waiting):
            return None
        committed = (
            route.topic, route.queue_id, body, properties, tags_code, born_ms,
            born_host, 0, sys_flag | _COMMIT, 0, at,
        )  # fmt: skip
        return committed, half_offset, route

    def note_commit(self, queue_offset: int, topic: str, born_ms: int, now_ms: int) -> None:
        """Report a commit that is in the log."""
        self._transactions.note_commit(HALF_QUEUE_ID, queue_offset, topic, born_ms, now_ms)

    def note_rollback(self, queue_offset: int, topic: str, now_ms: int) -> None:
        """Report a rollback."""
        self._transactions.note_rollback(HALF_QUEUE_ID, queue_offset, topic, now_ms)

    def moved_timer(self) -> bool:
        """Return whether transactions may need an earlier tick than at the last call."""
        times_ms = self._transactions.times_ms()
        if times_ms == self._reported:
            return False
        self._reported = times_ms
        return True
