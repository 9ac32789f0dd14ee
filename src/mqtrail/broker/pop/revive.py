"""Revive: popped messages that are not acknowledged in time are copied to the retry topic of the group.

Each queue of the revive log is read in order. A check point is kept until the log is read up to two seconds past its
time, when all its acknowledgements have been read. Its messages without one are then copied to the retry topic, and the
committed offset of the queue (of CID_RMQ_SYS_REVIVE_GROUP; the last finished record, not the next one) moves to it.
Offsets are saved when the copies are durable: a crash in between repeats copies and loses none.

A message whose copy is refused gets a check point of its own, with a growing delay. If the store refuses everything,
all wait.

Source: PopReviveService, apache/rocketmq 5.3.3 broker/processor/. There a thread per queue runs every reviveInterval;
here a queue is read when its oldest check point is due.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mqtrail.store import PendingRecord, StoreError
from mqtrail.wire import (
    PROPERTY_FIRST_POP_TIME,
    RETRY_PREFIX,
    REVIVE_GROUP,
    MessageIllegal,
    MQError,
    Perm,
    PopCheckPoint,
    RecordError,
    StoredKind,
    decode_head,
    find_property,
    number_of,
    pop_retry_topic,
    pop_topic_of,
)

from ..copies import copy_of
from ..properties import with_properties
from ..state import BrokerState
from .revive_log import ReviveLog
from .revive_queue import SETTLED_MS, PendingPoint, ReviveQueue
from .timing import Timing

RETRY_QUEUES: Final = 1
WORK_MAX: Final = 1_024
"""Of all queues in one tick: COPY_WORK for a message revived, READ_WORK for a record read, 1 for a finished point."""
COPY_WORK: Final = 8  # it is read, stored, and may create its retry topic
READ_WORK: Final = 2  # its JSON is read
FLUSH_WAIT_MS: Final = 100  # interval of the check whether copies are durable
FULL_RETRY_MS: Final = 1_000  # delay after the store refused everything
REPEAT_MS: Final = 600_000  # time after a start in which the timer store may repeat records
PUT_AGAIN_S: Final = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class Revive:
    """Reads the revive log. on_copied: saves the offsets; called after copies and when they are durable."""

    def __init__(self, state: BrokerState, log: ReviveLog, timers: Timing, on_copied: Callable[[int], None]) -> None:
        self._config = state.config
        self._store = state.store
        self._own = state.own
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._writer = state.writer
        self._log = log
        self._timers = timers
        self._on_copied = on_copied
        self._copied = False
        self._error: StoreError | RecordError | None = None
        self._save_after = 0  # end of the log after the last copies
        self._save_ms: int | None = None  # when to check whether they are durable
        self._born_host = state.config.address.packed()
        self._repeats_until_ms: int | None = state.boot_ms + REPEAT_MS
        self.queues = [self._queue(queue_id, state.boot_ms) for queue_id in range(log.queue_nums)]
        self._work_left = 0
        self._first = 0  # place of the queue that the next tick serves first
        self.copied_counts: Counter[tuple[str, str]] = Counter()
        """Group and topic -> messages revived since the start."""

    def _queue(self, queue_id: int, now_ms: int) -> ReviveQueue:
        topic = self._log.topic
        first, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        done = self._offsets.get(REVIVE_GROUP, topic, queue_id)
        if done is not None and done >= end:  # the end of the log was lost: new records take its place
            self._offsets.commit(REVIVE_GROUP, topic, queue_id, end - 1)
            done = end - 1
        next_offset = max(0 if done is None else done + 1, first)
        queue = ReviveQueue(
            self._store, self._own, topic, queue_id, next_offset, self._timers, self._config.broker_name
        )
        if queue.unread_count > 0:
            queue.read_ms = now_ms
        return queue

    def arrived(self, queue_id: int, now_ms: int) -> None:
        """Report that a queue of the log has grown."""
        if 0 <= queue_id < len(self.queues) and self.queues[queue_id].read_ms is None:
            self.queues[queue_id].read_ms = now_ms + self._config.revive_interval_ms

    @property
    def is_saving(self) -> bool:
        """Whether there are copies that the start after a crash would repeat."""
        return self._save_ms is not None

    def next_due_ms(self) -> int | None:
        """Return the epoch ms of the next `tick`; None: nothing waits."""
        times = [queue.read_ms for queue in self.queues] + [self._save_ms]
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def behind_count(self) -> int:
        """Return the number of unfinished records of the log."""
        return sum(queue.unread_count + queue.pending_count for queue in self.queues)

    def tick(self, now_ms: int) -> None:
        """Read new records and revive due messages. StoreError: a message is damaged; all others were served."""
        if self._repeats_until_ms is not None and now_ms > self._repeats_until_ms:
            self._repeats_until_ms = None
            for queue in self.queues:
                queue.forget_done()
        self._work_left = WORK_MAX
        for _ in self.queues:
            queue = self.queues[self._first]
            if queue.read_ms is not None and queue.read_ms <= now_ms:
                if self._work_left <= 0:
                    break  # the next tick begins with this queue
                try:
                    self._serve(queue, now_ms)
                except (MQError, OSError):
                    queue.read_ms = now_ms + FULL_RETRY_MS
            self._first = (self._first + 1) % len(self.queues)
        if self._copied:
            self._copied = False
            self._save_after = self._store.end_offset
            self._save(now_ms)
        elif self._save_ms is not None and self._save_ms <= now_ms:
            self._save(now_ms)
        if self._error is not None:
            try:
                raise self._error  # not by a local name, which would keep this frame until the next garbage collection
            finally:
                self._error = None

    def _save(self, now_ms: int) -> None:
        """Store the offsets to save; they are written when the copies are durable."""
        is_durable = self._store.flushed_offset >= self._save_after
        self._save_ms = None if is_durable else now_ms + FLUSH_WAIT_MS
        self._on_copied(now_ms)

    def _serve(self, queue: ReviveQueue, now_ms: int) -> None:
        """Serve one queue. Refusal, OSError: the store fails."""
        read_all, count = queue.read(now_ms, -(-self._work_left // READ_WORK))
        self._work_left -= READ_WORK * count
        is_done = self._revive_settled(queue, now_ms)
        oldest = queue.oldest()
        if oldest is None and read_all and queue.next_offset > 0:
            self._commit(queue, queue.next_offset - 1)  # acknowledgements without a check point are finished
        if not (read_all and is_done):
            queue.read_ms = now_ms
        elif oldest is not None:
            queue.read_ms = max(oldest.point.revive_ms + SETTLED_MS + 1, now_ms + self._config.revive_interval_ms)
        else:
            queue.read_ms = None

    def _revive_settled(self, queue: ReviveQueue, now_ms: int) -> bool:
        """Copy messages of settled check points, in the order of the log; return whether none is left."""
        while (pending := queue.settled()) is not None:
            if self._work_left <= 0:
                return False
            self._work_left -= 1
            if self._is_wanted(pending.point):
                self._work_left -= COPY_WORK * self._copy(pending, queue.queue_id, now_ms)
            queue.drop(pending)
            self._commit(queue, pending.revive_offset)
        return True

    def _commit(self, queue: ReviveQueue, revive_offset: int) -> None:
        done = self._offsets.get(REVIVE_GROUP, self._log.topic, queue.queue_id)
        if done is None or revive_offset > done:
            self._offsets.move(REVIVE_GROUP, self._log.topic, queue.queue_id, revive_offset)

    def _is_wanted(self, point: PopCheckPoint) -> bool:
        """Return whether topic and group exist."""
        topic = pop_topic_of(point.topic, point.group)
        return topic in self._topics and self._groups.get(point.group) is not None

    def _copy(self, pending: PendingPoint, queue_id: int, now_ms: int) -> int:
        """Copy messages without an acknowledgement to the retry topic; return their number. Refusal: the store refuses
        all."""
        point = pending.point
        copies: list[tuple[int, PendingRecord]] = []
        for queue_offset in pending.open_offsets():
            try:
                copy = self._copy_of(point, queue_offset)
            except (StoreError, RecordError) as error:  # damaged: it is tried again later, without delaying the others
                self._error = error
                self._put_again(point, queue_offset, queue_id, now_ms)
                continue
            if copy is not None:
                copies.append((queue_offset, copy))
        if not copies:
            return 0
        self._make_topic(copies[0][1].topic, point.group, now_ms)
        try:
            self._writer.write([copy for _, copy in copies], now_ms, StoredKind.RETRY)
            self.copied_counts[point.group, point.topic] += len(copies)
        except MessageIllegal:  # a single invalid message must not block the others
            for queue_offset, copy in copies:
                try:
                    self._writer.write([copy], now_ms, StoredKind.RETRY)
                    self.copied_counts[point.group, point.topic] += 1
                except MessageIllegal:
                    self._put_again(point, queue_offset, queue_id, now_ms)
        self._copied = True
        return len(copies)

    def _copy_of(self, point: PopCheckPoint, queue_offset: int) -> PendingRecord | None:
        """Return the copy of a message for the retry topic; None: the message was deleted."""
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
            with suppress(MQError):  # if there is no room, the copy is written without it
                properties = with_properties(properties, {PROPERTY_FIRST_POP_TIME: str(point.pop_time_ms)})
        copy = copy_of(record, head, topic, 0, properties)
        return copy._replace(born_host=self._born_host, reconsume_times=head.reconsume_times + 1)

    def _make_topic(self, topic: str, group: str, now_ms: int) -> None:
        if topic not in self._topics:
            self._topics.create_own(topic, RETRY_QUEUES, Perm.READ | Perm.WRITE, now_ms)
            if self._offsets.get(group, topic, 0) is None:
                self._offsets.commit(group, topic, 0, 0)

    def _put_again(self, point: PopCheckPoint, queue_offset: int, queue_id: int, now_ms: int) -> None:
        """Write a check point for one message, with a growing delay. Refusal: the store refuses all."""
        times = number_of(point.re_puts.encode("utf-8", "replace")) or 0 if point.re_puts else 0
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
