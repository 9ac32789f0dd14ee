"""Transactions of the lane: half messages it has appended, and their ends by their producers (37).

A half message that the lane appended is kept until its end comes, so that its commit needs neither a read of the log
nor a look into its properties. What is kept is a short cut: an end whose half message is not here, or that is not
exactly as expected (another group, another offset, a second end), goes the general road, which reads the log and
answers. Both roads note their ends with `Transactions.note_commit` and `note_rollback`.
"""

from typing import Final

from mqtrail.wire import HALF_TOPIC, MessageSysFlag

from ..broker import Broker
from .routes import Record, Route, whole_number

HALVES_MAX: Final = 8_192  # half messages kept; then all are forgotten
HALVES_SIZE_MAX: Final = 16 * 1024 * 1024  # bytes of them
HALF_SIZE_MAX: Final = 64 * 1024  # larger ones are not kept: what their end costs is the body's anyway
HALF_QUEUE_ID: Final = 0  # all half messages wait in this queue

_COMMIT: Final = int(MessageSysFlag.TRANSACTION_COMMIT)

Kept = tuple[Record, int, str, Route]  # as appended, its queue offset, its producer group, the queue it is meant for


class LaneHalves:
    """Half messages and ends of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transactions = broker.transactions
        self._kept: dict[int, Kept] = {}  # by physical offset
        self._size = 0
        self._route: Route | None = None
        self._told: tuple[int | None, int] | None = None

    def clear(self) -> None:
        """Forget everything: a topic changed, so its counters may have."""
        self._kept.clear()
        self._size = 0
        self._route = None

    def route(self) -> Route:
        """Return the queue that half messages wait in."""
        if self._route is None:
            stats = self._broker.stats
            counter = None if stats is None else stats.put_counter(HALF_TOPIC, HALF_QUEUE_ID)
            self._route = Route(HALF_TOPIC, HALF_QUEUE_ID, 0, counter)
        return self._route

    def keep(self, physical_offset: int, record: Record, queue_offset: int, group: str, route: Route) -> None:
        """Keep a half message that was appended, for its end."""
        size = len(record[2]) + len(record[3])
        if size > HALF_SIZE_MAX:
            return
        if len(self._kept) >= HALVES_MAX or self._size + size > HALVES_SIZE_MAX:
            self._kept.clear()
            self._size = 0
        self._kept[physical_offset] = (record, queue_offset, group, route)
        self._size += size

    def take(
        self, physical_offset: str | bytes, queue_offset: str | bytes, group: str, waiting: int
    ) -> tuple[Record, int, Route] | None:
        """Return what the commit of a half message stores, its queue offset and where it goes; keep it no longer.

        waiting: how many requests of this piece wait for their append. None: the general road takes the end.
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
        """Note that a half message is done with: its commit is in the log."""
        self._transactions.note_commit(HALF_QUEUE_ID, queue_offset, topic, born_ms, now_ms)

    def note_rollback(self, queue_offset: int, topic: str, now_ms: int) -> None:
        """Note that a half message is done with: it was rolled back."""
        self._transactions.note_rollback(HALF_QUEUE_ID, queue_offset, topic, now_ms)

    def moved_timer(self) -> bool:
        """Tell whether transactions may want to tick sooner than when this was last asked."""
        times_ms = self._transactions.times_ms()
        if times_ms == self._told:
            return False
        self._told = times_ms
        return True
