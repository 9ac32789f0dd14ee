"""Reader of one queue of the revive log: check points and their acknowledgements.

The log is read in order. A check point precedes its acknowledgements; it is settled when the log is read up to two
seconds past its time. After a crash the timer store may repeat finished check points. They are recognized because the
records before the committed offset list them.

Source: PopReviveService.consumeReviveMessage, apache/rocketmq 5.3.3 broker/processor/.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from mqtrail.store import MessageStore
from mqtrail.wire import (
    POP_ACK_TAG,
    POP_BATCH_ACK_TAG,
    POP_CHECK_POINT_TAG,
    RAW_TAGS,
    RAW_TIMER_DELIVER_MS,
    BodyError,
    Buffer,
    PopAck,
    PopCheckPoint,
    RecordHead,
    find_property,
    number_of,
)

from ..own_queues import OwnQueues
from .revive_log import ACK, ACK_INTERVAL_MS, CHECK_POINT, What
from .timing import Timing

SETTLED_MS: Final = ACK_INTERVAL_MS + 1_000  # time after a check point at which all its acknowledgements were read
SCAN_COUNT: Final = 256  # records per read
SCAN_SIZE: Final = 1 << 20
POINTS_MAX: Final = 50_000  # check points in memory; above it the oldest is settled early

_CHECK_POINT: Final = POP_CHECK_POINT_TAG.encode()
_ACKS: Final = (POP_ACK_TAG.encode(), POP_BATCH_ACK_TAG.encode())
_PointKey = tuple[str, str, int, int, int, str]


@dataclass(slots=True)
class PendingPoint:
    """A check point that waits for acknowledgements. revive_offset: its offset in the log."""

    point: PopCheckPoint
    revive_offset: int
    acked: set[int] = field(default_factory=set)

    def open_offsets(self) -> list[int]:
        """Return the queue offsets of its messages that are not acknowledged."""
        return [queue_offset for queue_offset in self.point.queue_offsets() if queue_offset not in self.acked]


class ReviveQueue:
    """Reads a queue of the log from next_offset. read_ms: when to read it; None: nothing new."""

    def __init__(
        self,
        store: MessageStore,
        own: OwnQueues,
        topic: str,
        queue_id: int,
        next_offset: int,
        timers: Timing,
        broker_name: str,
    ) -> None:
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.read_ms: int | None = None
        self._store = store
        self._own = own
        self._topic = topic
        self._timers = timers
        self._broker_name = broker_name
        self._pending: OrderedDict[_PointKey, PendingPoint] = OrderedDict()  # the first one is found in constant time
        self._end_ms = 0  # due time up to which the log was read
        self._done: set[tuple[_PointKey, str | None]] = set()
        self._remembers = True
        self._remember_done()
        self.got_counts: Counter[What] = Counter()
        """Number of check points and acknowledgements read since the start."""

    @property
    def unread_count(self) -> int:
        return self._store.max_offset(self._topic, self.queue_id) - self.next_offset

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def first_open(self) -> tuple[int, int]:
        """Return the queue offset of the first unfinished record, and the number of records from it on."""
        oldest = self.oldest()
        first = self.next_offset if oldest is None else min(oldest.revive_offset, self.next_offset)
        return first, max(0, self._store.max_offset(self._topic, self.queue_id) - first)

    def oldest(self) -> PendingPoint | None:
        """Return the oldest check point; None: there is none."""
        return next(iter(self._pending.values()), None)

    def settled(self) -> PendingPoint | None:
        """Return the oldest check point if it is settled, or if too many wait behind it."""
        oldest = self.oldest()
        if oldest is None:
            return None
        is_settled = self._end_ms - oldest.point.revive_ms > SETTLED_MS
        return oldest if is_settled or len(self._pending) >= POINTS_MAX else None

    def drop(self, pending: PendingPoint) -> None:
        """Remove a finished check point, but remember that it is finished: the log may repeat it."""
        key = _key(pending.point)
        del self._pending[key]
        if self._remembers and len(self._done) < POINTS_MAX:
            self._done.add((key, pending.point.re_puts))

    def read(self, now_ms: int, count_max: int) -> tuple[bool, int]:
        """Read on; return whether the end was reached, and how many records were read. It stops at count_max records,
        and when the oldest check point is settled."""
        left = count_max
        while left > 0 and self.settled() is None:
            found = self._own.read(self._topic, self.queue_id, self.next_offset, min(left, SCAN_COUNT), SCAN_SIZE)
            for record, head in found.records:
                self._note(head, record)
                self.next_offset = head.queue_offset + 1
            left -= max(1, len(found.records))
            if not found.records and found.next_queue_offset <= self.next_offset:
                break
            self.next_offset = max(self.next_offset, found.next_queue_offset)
        read_all = self.unread_count <= 0
        if read_all and not self._timers.is_behind(now_ms):
            self._end_ms = max(self._end_ms, now_ms)
        return read_all, count_max - left

    def _note(self, head: RecordHead, record: Buffer) -> None:
        """Process a record of the log. Invalid records are ignored, as in Java."""
        properties = bytes(record[head.properties_start : head.properties_end])
        tag = find_property(properties, RAW_TAGS)
        body = bytes(record[head.body_start : head.body_end])
        try:
            if tag == _CHECK_POINT:
                point = PopCheckPoint.decode(body)
                self._note_check_point(point, head.queue_offset)
                self.got_counts[point.group, point.topic, CHECK_POINT] += 1
            elif tag in _ACKS:
                ack = PopAck.decode(body)
                self._note_ack(ack)
                self.got_counts[ack.group, ack.topic, ACK] += 1
        except BodyError:
            return
        due_ms = number_of(find_property(properties, RAW_TIMER_DELIVER_MS))
        if due_ms is not None:
            self._end_ms = due_ms  # lower than before if the timer store repeats records

    def _note_check_point(self, point: PopCheckPoint, revive_offset: int) -> None:
        key = _key(point)
        is_known = key in self._pending or (key, point.re_puts) in self._done
        if point.topic and point.group and not is_known:
            self._pending[key] = PendingPoint(point, revive_offset)

    def _note_ack(self, ack: PopAck) -> None:
        broker_name = ack.broker_name or self._broker_name
        key = (ack.topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_time_ms, broker_name)
        pending = self._pending.get(key)
        if pending is not None:
            pending.acked.update((ack.offset,) if ack.offsets is None else ack.offsets)

    # Check points finished before a crash.

    def _remember_done(self) -> None:
        """Remember the check points before next_offset, which the timer store may repeat."""
        first = self._store.min_offset(self._topic, self.queue_id)
        position = max(first, self._store.offset_by_time(self._topic, self.queue_id, self._timers.kept_ms))
        while position < self.next_offset and len(self._done) < POINTS_MAX:
            found = self._own.read(self._topic, self.queue_id, position, SCAN_COUNT, SCAN_SIZE)
            for record, head in found.records:
                point = _check_point(head, record)
                if point is not None and head.queue_offset < self.next_offset:
                    self._done.add((_key(point), point.re_puts))
            if found.next_queue_offset <= position:
                return
            position = found.next_queue_offset

    def forget_done(self) -> None:
        """Forget them: the timer store has no more records to repeat."""
        self._done.clear()
        self._remembers = False


def _key(point: PopCheckPoint) -> _PointKey:
    """Return the key by which acknowledgements refer to a check point."""
    return (point.topic, point.group, point.queue_id, point.start_offset, point.pop_time_ms, point.broker_name or "")


def _check_point(head: RecordHead, record: Buffer) -> PopCheckPoint | None:
    """Return the check point in a record of the log; None: another kind of record."""
    properties = bytes(record[head.properties_start : head.properties_end])
    if find_property(properties, RAW_TAGS) != _CHECK_POINT:
        return None
    try:
        return PopCheckPoint.decode(bytes(record[head.body_start : head.body_end]))
    except BodyError:
        return None
