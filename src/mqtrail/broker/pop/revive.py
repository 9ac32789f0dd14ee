"""Reviving: popped messages that nobody acknowledged in time go to the group's retry topic.

Each queue of the revive log is read in order. A check point is kept until the log has been read to two seconds past its
time, so that every ack of it has been seen; then its messages without an ack are copied to the retry topic, and the
queue's committed offset (of CID_RMQ_SYS_REVIVE_GROUP; the last one done, not the next) moves to it. The offsets are
saved at once when something was copied: a kill in between repeats the copies of that moment, and loses none.

After a kill the timer store may bring check points once more that were dealt with before it. They are known by what
stands in the log before the committed offset.

A message whose copy is refused for itself gets a check point of its own and another time, later and later; when the
store takes nothing at all, everything waits.

Source: PopReviveService, apache/rocketmq 5.3.3 broker/processor/. There one thread a queue looks every reviveInterval;
here a queue is looked at when its oldest check point is due.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mqtrail.store import MessageStore, PendingRecord, StoreError
from mqtrail.wire import (
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    RETRY_PREFIX,
    BodyError,
    Buffer,
    MessageIllegal,
    MQError,
    Perm,
    PopAck,
    PopCheckPoint,
    RecordHead,
    StoredKind,
    decode_head,
    find_property,
    pop_retry_topic,
    pop_topic_of,
)

from ..config import BrokerConfig
from ..groups import GroupTable
from ..message_properties import tag_hash, with_properties
from ..offsets import OffsetTable
from ..topics import TopicTable
from ..writer import MessageWriter
from .revive_log import ACK_INTERVAL_MS, ACK_TAG, BATCH_ACK_TAG, CHECK_POINT_TAG, REVIVE_GROUP, ReviveLog
from .timing import Timing

SETTLED_MS: Final = ACK_INTERVAL_MS + 1_000  # past a check point's time: all its acks have been seen
RETRY_QUEUES: Final = 1
SCAN_COUNT: Final = 256  # records read at once
SCAN_SIZE: Final = 1 << 20
STROKE_COUNT: Final = 2_000  # records read by one call
POINTS_MAX: Final = 50_000  # check points kept in memory, each queue; behind that the oldest goes without later acks
COPIES_MAX: Final = 512  # messages revived by one call, of each queue
FULL_RETRY_MS: Final = 1_000  # after the store took nothing
PUT_AGAIN_S: Final = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)

_TAGS: Final = PROPERTY_TAGS.encode()
_DELIVER_MS: Final = PROPERTY_TIMER_DELIVER_MS.encode()
_PointKey = tuple[str, str, int, int, int, str]
_REPEAT_MS: Final = 600_000  # after a start: what the timer store brings once more has come by then


@dataclass(slots=True)
class _Pending:
    """A check point that waits for its acks. revive_offset: its place in the revive log."""

    point: PopCheckPoint
    revive_offset: int
    offsets: tuple[int, ...]
    acked: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Queue:
    """One queue of the revive log. end_ms: the log has been read up to what was due then."""

    queue_id: int
    next_offset: int
    pending: dict[_PointKey, _Pending] = field(default_factory=dict)
    done: set[tuple[_PointKey, str | None]] = field(default_factory=set)
    end_ms: int = 0
    look_ms: int | None = None


class Revive:
    """Reads the revive log. on_copied: called when messages were revived; save the offsets."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        writer: MessageWriter,
        log: ReviveLog,
        timers: Timing,
        on_copied: Callable[[int], None],
        now_ms: int,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._writer = writer
        self._log = log
        self._timers = timers
        self._on_copied = on_copied
        self._born_host = config.address.packed()
        self._repeats_until_ms = now_ms + _REPEAT_MS
        self._queues = [self._queue(queue_id, now_ms) for queue_id in range(log.queue_nums)]

    def _queue(self, queue_id: int, now_ms: int) -> _Queue:
        topic = self._log.topic
        first, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        done = self._offsets.get(REVIVE_GROUP, topic, queue_id)
        if done is not None and done >= end:  # the log has lost its end: what comes there is new
            self._offsets.commit(REVIVE_GROUP, topic, queue_id, end - 1)
            done = end - 1
        queue = _Queue(queue_id, max(0 if done is None else done + 1, first))
        self._remember_done(queue, first)
        if end > queue.next_offset:
            queue.look_ms = now_ms
        return queue

    def _remember_done(self, queue: _Queue, first: int) -> None:
        """Note the check points that an earlier life has dealt with and that may come again."""
        since_ms = self._timers.kept_ms
        position = max(first, self._store.offset_by_time(self._log.topic, queue.queue_id, since_ms))
        while position < queue.next_offset and len(queue.done) < POINTS_MAX:
            found = self._store.read(self._log.topic, queue.queue_id, position, SCAN_COUNT, SCAN_SIZE)
            for record in found.records:
                head = decode_head(record)
                point = _check_point(head, record)
                if point is not None and head.queue_offset < queue.next_offset:
                    queue.done.add((_key(point), point.re_puts))
            if found.next_queue_offset <= position:
                return
            position = found.next_queue_offset

    def arrived(self, queue_id: int, now_ms: int) -> None:
        """Note that a queue of the log has grown."""
        if 0 <= queue_id < len(self._queues) and self._queues[queue_id].look_ms is None:
            self._queues[queue_id].look_ms = now_ms + self._config.revive_interval_ms

    def next_due_ms(self) -> int | None:
        """Return when `tick` is to be called next, None while nothing waits."""
        return min((queue.look_ms for queue in self._queues if queue.look_ms is not None), default=None)

    def behind_count(self) -> int:
        """Return how many records of the log have not been dealt with."""
        return sum(
            self._store.max_offset(self._log.topic, queue.queue_id) - queue.next_offset + len(queue.pending)
            for queue in self._queues
        )

    def tick(self, now_ms: int) -> None:
        """Read what is new, revive what is due."""
        copied = False
        for queue in self._queues:
            if queue.look_ms is None or queue.look_ms > now_ms:
                continue
            if now_ms > self._repeats_until_ms:
                queue.done.clear()
            try:
                copied |= self._look(queue, now_ms)
            except (MQError, OSError):
                queue.look_ms = now_ms + FULL_RETRY_MS
        if copied:
            self._on_copied(now_ms)

    def _look(self, queue: _Queue, now_ms: int) -> bool:
        """Deal with one queue; return whether messages were copied. Refusal, OSError: the store fails."""
        read_all = self._scan(queue, now_ms)
        copied, is_done = self._revive_due(queue, now_ms)
        if not queue.pending and read_all and queue.next_offset > 0:
            self._commit(queue, queue.next_offset - 1)  # acks without a check point hold nothing up
        if not (read_all and is_done):
            queue.look_ms = now_ms
        elif queue.pending:
            first = next(iter(queue.pending.values()))
            queue.look_ms = max(first.point.revive_ms + SETTLED_MS + 1, now_ms + self._config.revive_interval_ms)
        else:
            queue.look_ms = None
        return copied

    # Reading.

    def _scan(self, queue: _Queue, now_ms: int) -> bool:
        """Read on; return whether the end was reached. Stops early when the oldest check point can be dealt with."""
        left = STROKE_COUNT
        while left > 0 and len(queue.pending) < POINTS_MAX and not self._is_settled(queue):
            found = self._store.read(self._log.topic, queue.queue_id, queue.next_offset, SCAN_COUNT, SCAN_SIZE)
            for record in found.records:
                head = decode_head(record)
                self._note(queue, head, record)
                queue.next_offset = head.queue_offset + 1
            left -= max(1, len(found.records))
            if not found.records:
                if found.next_queue_offset <= queue.next_offset:
                    break
                queue.next_offset = found.next_queue_offset
        read_all = self._store.max_offset(self._log.topic, queue.queue_id) <= queue.next_offset
        due_ms = self._timers.next_due_ms()
        if read_all and (due_ms is None or due_ms > now_ms):
            queue.end_ms = max(queue.end_ms, now_ms)
        return read_all

    def _is_settled(self, queue: _Queue) -> bool:
        """Tell whether the oldest check point's acks have all been read."""
        for pending in queue.pending.values():
            return queue.end_ms - pending.point.revive_ms > SETTLED_MS
        return False

    def _note(self, queue: _Queue, head: RecordHead, record: Buffer) -> None:
        """Take one record of the log in. What cannot be read is left out, as in Java."""
        properties = bytes(record[head.properties_start : head.properties_end])
        tag = find_property(properties, _TAGS) or b""
        body = bytes(record[head.body_start : head.body_end])
        try:
            if tag == CHECK_POINT_TAG.encode():
                self._note_check_point(queue, PopCheckPoint.decode(body), head.queue_offset)
            elif tag in (ACK_TAG.encode(), BATCH_ACK_TAG.encode()):
                self._note_ack(queue, PopAck.decode(body))
        except BodyError:
            return
        due_text = find_property(properties, _DELIVER_MS)
        if due_text is not None and due_text.isdigit():
            queue.end_ms = max(queue.end_ms, int(due_text))

    def _note_check_point(self, queue: _Queue, point: PopCheckPoint, revive_offset: int) -> None:
        if not point.topic or not point.group:
            return
        key = _key(point)
        if key not in queue.pending and (key, point.re_puts) not in queue.done:
            queue.pending[key] = _Pending(point, revive_offset, point.queue_offsets())

    def _note_ack(self, queue: _Queue, ack: PopAck) -> None:
        broker_name = ack.broker_name or self._config.broker_name
        key = (ack.topic, ack.group, ack.queue_id, ack.start_offset, ack.pop_time_ms, broker_name)
        pending = queue.pending.get(key)
        if pending is not None:
            pending.acked.update((ack.offset,) if ack.offsets is None else ack.offsets)

    # Reviving.

    def _revive_due(self, queue: _Queue, now_ms: int) -> tuple[bool, bool]:
        """Copy what is due, in the log's order; return whether something was, and whether nothing more is due."""
        count = 0
        while self._is_settled(queue) or len(queue.pending) >= POINTS_MAX:
            if count >= COPIES_MAX:
                return True, False
            key, pending = next(iter(queue.pending.items()))
            if self._is_wanted(pending.point):
                count += self._copy(pending, queue.queue_id, now_ms)
            del queue.pending[key]
            self._commit(queue, pending.revive_offset)
        return count > 0, True

    def _commit(self, queue: _Queue, revive_offset: int) -> None:
        done = self._offsets.get(REVIVE_GROUP, self._log.topic, queue.queue_id)
        if done is None or revive_offset > done:
            self._offsets.commit(REVIVE_GROUP, self._log.topic, queue.queue_id, revive_offset)

    def _is_wanted(self, point: PopCheckPoint) -> bool:
        """Tell whether topic and group are still there."""
        topic = pop_topic_of(point.topic, point.group)
        return topic in self._topics and self._groups.get(point.group) is not None

    def _copy(self, pending: _Pending, queue_id: int, now_ms: int) -> int:
        """Put the messages without an ack into the retry topic; return how many. Refusal: the store takes nothing."""
        point = pending.point
        copies: list[tuple[int, PendingRecord]] = []
        for queue_offset in pending.offsets:
            if queue_offset not in pending.acked:
                try:
                    copy = self._copy_of(point, queue_offset)
                except StoreError:  # damaged: it is tried again, the others need not wait for it
                    self._put_again(point, queue_offset, queue_id, now_ms)
                    continue
                if copy is not None:
                    copies.append((queue_offset, copy))
        if not copies:
            return 0
        self._make_topic(copies[0][1].topic, point.group, now_ms)
        try:
            self._writer.write([copy for _, copy in copies], now_ms, StoredKind.RETRY)
        except MessageIllegal:  # one of them: the others must not wait for it for ever
            for queue_offset, copy in copies:
                try:
                    self._writer.write([copy], now_ms, StoredKind.RETRY)
                except MessageIllegal:
                    self._put_again(point, queue_offset, queue_id, now_ms)
        return len(copies)

    def _copy_of(self, point: PopCheckPoint, queue_offset: int) -> PendingRecord | None:
        """Return a message as it goes to the retry topic; None: it is gone."""
        found = self._store.read(point.topic, point.queue_id, queue_offset, 1, 1)
        if not found.records:
            return None
        record = found.records[0]
        head = decode_head(record)
        if head.queue_offset != queue_offset:
            return None
        topic = point.topic
        if not topic.startswith(RETRY_PREFIX):
            topic = pop_retry_topic(topic, point.group, v2=self._config.retry_topic_v2)
        properties = bytes(record[head.properties_start : head.properties_end])
        if head.reconsume_times == 0 or find_property(properties, PROPERTY_FIRST_POP_TIME.encode()) is None:
            with suppress(MQError):  # no room for it, and rather without it than not at all
                properties = with_properties(properties, {PROPERTY_FIRST_POP_TIME: str(point.pop_time_ms)})
        return PendingRecord(
            topic=topic,
            queue_id=0,
            body=bytes(record[head.body_start : head.body_end]),
            properties=properties,
            tags_code=tag_hash(properties),
            born_timestamp_ms=head.born_timestamp_ms,
            born_host=self._born_host,
            flag=head.flag,
            sys_flag=head.sys_flag,
            reconsume_times=head.reconsume_times + 1,
        )

    def _make_topic(self, topic: str, group: str, now_ms: int) -> None:
        if topic not in self._topics:
            self._topics.create_own(topic, RETRY_QUEUES, Perm.READ | Perm.WRITE, now_ms)
            if self._offsets.get(group, topic, 0) is None:
                self._offsets.commit(group, topic, 0, 0)

    def _put_again(self, point: PopCheckPoint, queue_offset: int, queue_id: int, now_ms: int) -> None:
        """Give one message a check point of its own, due later each time. Refusal: the store takes nothing."""
        times = int(point.re_puts) if point.re_puts and point.re_puts.isdigit() else 0
        delay_ms = PUT_AGAIN_S[min(times, len(PUT_AGAIN_S) - 1)] * 1_000
        again = PopCheckPoint(
            start_offset=queue_offset,
            pop_time_ms=point.pop_time_ms,
            invisible_ms=point.invisible_ms + delay_ms,
            count=1,
            queue_id=point.queue_id,
            topic=point.topic,
            group=point.group,
            diffs=(0,),
            broker_name=point.broker_name,
            re_puts=str(times + 1),
        )
        self._log.write([self._log.check_point(again, queue_id, now_ms)], now_ms)


def _key(point: PopCheckPoint) -> _PointKey:
    """Return what its acks name a check point by."""
    return (point.topic, point.group, point.queue_id, point.start_offset, point.pop_time_ms, point.broker_name or "")


def _check_point(head: RecordHead, record: Buffer) -> PopCheckPoint | None:
    """Return the check point in a record of the log, None: it is another record."""
    properties = bytes(record[head.properties_start : head.properties_end])
    if find_property(properties, _TAGS) != CHECK_POINT_TAG.encode():
        return None
    try:
        return PopCheckPoint.decode(bytes(record[head.body_start : head.body_end]))
    except BodyError:
        return None
