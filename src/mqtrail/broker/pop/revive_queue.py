"""One queue of the revive log as it is read: check points, what was acknowledged of them, how far the log tells.

The log is read in order. A check point stands before its acks; it is settled when the log has been read to two seconds
past its time. After a kill the timer store may bring check points once more that were dealt with before it: they are
known by what stands in the log before the committed offset.

Source: PopReviveService.consumeReviveMessage, apache/rocketmq 5.3.3 broker/processor/.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from mqtrail.store import MessageStore
from mqtrail.wire import (
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    BodyError,
    Buffer,
    PopAck,
    PopCheckPoint,
    RecordHead,
    decode_head,
    find_property,
)

from .revive_log import ACK, ACK_INTERVAL_MS, ACK_TAG, BATCH_ACK_TAG, CHECK_POINT, CHECK_POINT_TAG, What
from .timing import Timing

SETTLED_MS: Final = ACK_INTERVAL_MS + 1_000  # past a check point's time: all its acks have been seen
SCAN_COUNT: Final = 256  # records read at once
SCAN_SIZE: Final = 1 << 20
STROKE_COUNT: Final = 2_000  # records read by one call
POINTS_MAX: Final = 50_000  # check points kept in memory; behind that the oldest goes without later acks

_TAGS: Final = PROPERTY_TAGS.encode()
_DELIVER_MS: Final = PROPERTY_TIMER_DELIVER_MS.encode()
_CHECK_POINT: Final = CHECK_POINT_TAG.encode()
_ACKS: Final = (ACK_TAG.encode(), BATCH_ACK_TAG.encode())
_PointKey = tuple[str, str, int, int, int, str]


@dataclass(slots=True)
class PendingPoint:
    """A check point that waits for its acks. revive_offset: its place in the log."""

    point: PopCheckPoint
    revive_offset: int
    acked: set[int] = field(default_factory=set)

    def open_offsets(self) -> list[int]:
        """Return the queue offsets of its messages without an ack."""
        return [queue_offset for queue_offset in self.point.queue_offsets() if queue_offset not in self.acked]


class ReviveQueue:
    """Reads one queue of the log from next_offset on. look_ms: when to look at it, None while it has nothing new."""

    def __init__(
        self, store: MessageStore, topic: str, queue_id: int, next_offset: int, timers: Timing, broker_name: str
    ) -> None:
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.look_ms: int | None = None
        self._store = store
        self._topic = topic
        self._timers = timers
        self._broker_name = broker_name
        self._pending: OrderedDict[_PointKey, PendingPoint] = OrderedDict()  # its first one is found at once
        self._end_ms = 0  # the log has been read up to what was due then
        self._done: set[tuple[_PointKey, str | None]] = set()
        self._remembers = True
        self._remember_done()
        self.got_counts: Counter[What] = Counter()
        """Check points and acks that were read, since the start."""

    @property
    def unread_count(self) -> int:
        return self._store.max_offset(self._topic, self.queue_id) - self.next_offset

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def first_open(self) -> tuple[int, int]:
        """Return the queue offset of the first record that is not dealt with, and how many there are from it on."""
        oldest = self.oldest()
        first = self.next_offset if oldest is None else min(oldest.revive_offset, self.next_offset)
        return first, max(0, self._store.max_offset(self._topic, self.queue_id) - first)

    def oldest(self) -> PendingPoint | None:
        """Return the check point that was read first, None while there is none."""
        return next(iter(self._pending.values()), None)

    def settled(self) -> PendingPoint | None:
        """Return the oldest check point if all its acks have been read, or too many wait behind it."""
        oldest = self.oldest()
        if oldest is None:
            return None
        is_settled = self._end_ms - oldest.point.revive_ms > SETTLED_MS
        return oldest if is_settled or len(self._pending) >= POINTS_MAX else None

    def drop(self, pending: PendingPoint) -> None:
        """Forget a check point that was dealt with, but that it was: it may stand in the log once more."""
        key = _key(pending.point)
        del self._pending[key]
        if self._remembers and len(self._done) < POINTS_MAX:
            self._done.add((key, pending.point.re_puts))

    def read(self, now_ms: int) -> bool:
        """Read on; return whether the end was reached. Stops early where the oldest check point can be dealt with."""
        left = STROKE_COUNT
        while left > 0 and self.settled() is None:
            found = self._store.read(self._topic, self.queue_id, self.next_offset, SCAN_COUNT, SCAN_SIZE)
            for record in found.records:
                head = decode_head(record)
                self._note(head, record)
                self.next_offset = head.queue_offset + 1
            left -= max(1, len(found.records))
            if not found.records:
                if found.next_queue_offset <= self.next_offset:
                    break
                self.next_offset = found.next_queue_offset
        read_all = self.unread_count <= 0
        if read_all and not self._timers.is_behind(now_ms):
            self._end_ms = max(self._end_ms, now_ms)
        return read_all

    def _note(self, head: RecordHead, record: Buffer) -> None:
        """Take one record of the log in. What cannot be read is left out, as in Java."""
        properties = bytes(record[head.properties_start : head.properties_end])
        tag = find_property(properties, _TAGS)
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
        due_text = find_property(properties, _DELIVER_MS)
        if due_text is not None and due_text.isdigit():
            self._end_ms = int(due_text)  # less than before where the timer store brings records again

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

    # What an earlier life has dealt with.

    def _remember_done(self) -> None:
        """Note the check points before next_offset that the timer store may bring once more."""
        first = self._store.min_offset(self._topic, self.queue_id)
        position = max(first, self._store.offset_by_time(self._topic, self.queue_id, self._timers.kept_ms))
        while position < self.next_offset and len(self._done) < POINTS_MAX:
            found = self._store.read(self._topic, self.queue_id, position, SCAN_COUNT, SCAN_SIZE)
            for record in found.records:
                head = decode_head(record)
                point = _check_point(head, record)
                if point is not None and head.queue_offset < self.next_offset:
                    self._done.add((_key(point), point.re_puts))
            if found.next_queue_offset <= position:
                return
            position = found.next_queue_offset

    def forget_done(self) -> None:
        """Forget them: what the timer store had to bring once more has come."""
        self._done.clear()
        self._remembers = False


def _key(point: PopCheckPoint) -> _PointKey:
    """Return what its acks name a check point by."""
    return (point.topic, point.group, point.queue_id, point.start_offset, point.pop_time_ms, point.broker_name or "")


def _check_point(head: RecordHead, record: Buffer) -> PopCheckPoint | None:
    """Return the check point in a record of the log, None: it is another record."""
    properties = bytes(record[head.properties_start : head.properties_end])
    if find_property(properties, _TAGS) != _CHECK_POINT:
        return None
    try:
        return PopCheckPoint.decode(bytes(record[head.body_start : head.body_end]))
    except BodyError:
        return None
