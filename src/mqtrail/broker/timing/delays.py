"""Delay levels. Each level is a queue of SCHEDULE_TOPIC_XXXX, in which a message waits until its delay is over.

A message with a delay level is stored under SCHEDULE_TOPIC_XXXX, queue level - 1, with its real topic and queue in its
properties. All messages of a level have the same delay, so its queue is in the order of delivery, and its first message
decides when the level is due: `next_due_ms`. Delivery appends the message to its real queue. The offset of each level
is saved every offsets_save_ms, up to the last durable delivery; after a crash messages may be delivered twice, never
lost.

When the clock is set back, store times do not go back; the due time is in the queue entry. A message sent while the
clock was ahead waits for its whole delay again: it is late, never early.

Source: ScheduleMessageService, HookUtils.handleScheduleMessage, apache/rocketmq broker/. There each level is checked
every 100 ms; here when its first message is due.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from mqtrail.store import PendingRecord
from mqtrail.wire import (
    SCHEDULE_TOPIC,
    Buffer,
    DelayOffsetTable,
    MQError,
    RecordHead,
    dumps_fastjson,
    parse_delay_levels,
)

from ..copies import copy_of
from ..files import DELAYS_FILE, load_table
from ..properties import real_queue, with_real_queue
from ..state import BrokerState

BATCH_COUNT = 32  # records delivered with one append
BATCH_SIZE = 1 << 20
BATCHES_A_TURN = 16  # of all levels; the next ticks deliver the rest
RETRY_MS = 1_000  # delay after the store refused a delivery
UNSAVED_MAX = 16  # saved states that wait for the flush of the log


class DelayedMessages:
    """The delay levels with their offsets and due times."""

    def __init__(self, state: BrokerState) -> None:
        store = state.store
        self._files = state.files
        self._store = store
        self._own = state.own
        self._writer = state.writer
        self.delays_ms: Sequence[int] = parse_delay_levels(state.config.message_delay_level)
        table = load_table(state.files, DELAYS_FILE, DelayOffsetTable) or DelayOffsetTable()
        self._offsets: dict[int, int] = {}
        for level in range(1, len(self.delays_ms) + 1):
            first, end = store.min_offset(SCHEDULE_TOPIC, level - 1), store.max_offset(SCHEDULE_TOPIC, level - 1)
            known = table.offset_table.get(level, 0)
            self._offsets[level] = min(max(known, first), end)
            if known > end:
                state.files.report.append(
                    f"{DELAYS_FILE}: found {known} of delay level {level}, expected at most {end}, the end of its "
                    "queue: set to the end; if delayed messages are missing, stop the broker and set a lower offset"
                )
        self._due_ms: dict[int, int] = {}
        self._now_ms = 0  # at the last call
        self._unknown = set(self._offsets)  # levels whose first message was not read yet
        self._retry_ms = 0  # when unreadable levels are tried again
        self._set_back: dict[int, int] = {}  # level -> end of its queue when the clock was set back
        self._saved = {level: table.offset_table.get(level, 0) for level in self._offsets}
        self._unsaved: deque[tuple[int, dict[int, int]]] = deque()  # end of the log, offsets at that time
        state.writer.on_scheduled = self._unknown.add

    def divert(self, record: PendingRecord, level: int, now_ms: int) -> PendingRecord:
        """Return the record as stored at its level (the highest if above). MessageIllegal: no room in its
        properties."""
        self._now_ms = now_ms
        level = min(level, len(self.delays_ms))
        return record._replace(
            topic=SCHEDULE_TOPIC,
            queue_id=level - 1,
            properties=with_real_queue(bytes(record.properties), record.topic, record.queue_id),
            tags_code=now_ms + self.delays_ms[level - 1],
        )

    def next_due_ms(self) -> int | None:
        """Return when `deliver` is due; None: nothing waits."""
        self._find_due_times()
        due_ms = min(self._due_ms.values(), default=None)
        if not self._unknown:
            return due_ms
        return self._retry_ms if due_ms is None else min(self._retry_ms, due_ms)

    def deliver(self, now_ms: int) -> None:
        """Append due messages to their real queues. If the store or disk refuses, try again in a second."""
        self._now_ms = now_ms
        if not now_ms < self._retry_ms <= now_ms + RETRY_MS:
            self._find_due_times()
        batches = BATCHES_A_TURN
        for level, due_ms in list(self._due_ms.items()):
            latest_ms = now_ms + max(self.delays_ms[level - 1], RETRY_MS)
            if due_ms > latest_ms:  # the clock was set back: these messages wait for their whole delay again
                self._due_ms[level] = latest_ms
                self._set_back[level] = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            elif due_ms <= now_ms and batches > 0:
                batches -= self._deliver_level(level, now_ms, batches)
        if self._unknown:
            self._retry_ms = now_ms + RETRY_MS

    def _deliver_level(self, level: int, now_ms: int, batches_max: int) -> int:
        """Deliver some due messages of a level; return the number of batches. The others are due immediately."""
        try:
            for batches in range(1, batches_max + 1):
                if not self._deliver_some(level, now_ms):
                    self._set_back.pop(level, None)
                    return batches
        except (MQError, OSError):
            self._due_ms[level] = now_ms + RETRY_MS
        else:
            self._unknown.discard(level)
        return batches_max

    def _find_due_times(self) -> None:
        """Read the due times of levels that were empty."""
        for level in list(self._unknown):
            with suppress(MQError, OSError):  # it is tried again in a second
                self._find_due_time(level)

    def _find_due_time(self, level: int) -> None:
        while level in self._offsets and level not in self._due_ms:
            found = self._own.read(SCHEDULE_TOPIC, level - 1, self._offsets[level], 1, BATCH_SIZE)
            if found.records:
                self._due_ms[level] = self._due_of(found.records[0][1], level)
            elif found.next_queue_offset > self._offsets[level]:
                self._offsets[level] = found.next_queue_offset  # the earlier ones were deleted, or are damaged
            else:
                break
        self._unknown.discard(level)

    def _due_of(self, head: RecordHead, level: int) -> int:
        due_ms = head.store_timestamp_ms + self.delays_ms[level - 1]
        if head.store_timestamp_ms <= self._now_ms or not self._now_ms:
            return due_ms
        for _, _, entry_due_ms in self._store.entries(SCHEDULE_TOPIC, level - 1, head.queue_offset, 1):
            due_ms = min(due_ms, entry_due_ms)
        return due_ms

    def _deliver_some(self, level: int, now_ms: int) -> bool:
        """Deliver due records of the level; return whether there may be more."""
        queue_offset = self._offsets[level]
        found = self._own.read(SCHEDULE_TOPIC, level - 1, queue_offset, BATCH_COUNT, BATCH_SIZE)
        due: list[PendingRecord] = []
        next_offset = found.next_queue_offset
        next_due_ms = None
        waited_end = self._set_back.get(level, 0)  # the delay of records before it is over
        for record, head in found.records:
            due_ms = self._due_of(head, level)
            if due_ms > now_ms and head.queue_offset >= waited_end:
                next_offset, next_due_ms = head.queue_offset, due_ms
                break
            delivered = _real_record(record, head)
            if delivered is not None:
                due.append(delivered)
        if due:
            self._writer.write(due, now_ms)
        self._offsets[level] = next_offset
        self._due_ms.pop(level, None)
        if next_due_ms is not None:
            self._due_ms[level] = next_due_ms
            return False
        self._unknown.add(level)
        if found.records:
            self._due_ms[level] = now_ms  # the next call reads it
            return True
        return False

    def offsets(self) -> DelayOffsetTable:
        """Return the offsets of the levels as one body: the content of the file, and the answer to request 45."""
        return DelayOffsetTable({level: offset for level, offset in self._offsets.items() if offset > 0})

    def adopt(self, table: DelayOffsetTable) -> None:
        """On a slave: take the master's offsets. Messages that it delivered before them must be in the log."""
        for level, offset in table.offset_table.items():
            if level in self._offsets:
                self._offsets[level] = max(0, min(offset, self._store.max_offset(SCHEDULE_TOPIC, level - 1)))

    def positions(self) -> dict[int, tuple[int, int]]:
        """Return level -> (offset, end of its queue) for levels in use."""
        table = {}
        for level, offset in self._offsets.items():
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if end > 0:
                table[level] = (offset, end)
        return table

    def save(self) -> None:
        """Write the newest offsets whose deliveries are all durable, if they differ from the saved ones.

        Otherwise they could survive a power failure that loses the delivered copies.
        """
        flushed_offset, found = self._store.flushed_offset, self._saved
        if not self._unsaved or self._unsaved[-1][1] != self._offsets:
            self._unsaved.append((self._store.end_offset, dict(self._offsets)))
        while self._unsaved and self._unsaved[0][0] <= flushed_offset:
            found = self._unsaved.popleft()[1]
        while len(self._unsaved) > UNSAVED_MAX:
            self._unsaved.popleft()
        if found != self._saved:
            self._saved = found
            table = DelayOffsetTable({level: offset for level, offset in found.items() if offset > 0})
            self._files.note(DELAYS_FILE, lambda: lambda: dumps_fastjson(table.members()))


def _real_record(record: Buffer, head: RecordHead) -> PendingRecord | None:
    """Return the record for the real queue; None: it names none."""
    properties = bytes(record[head.properties_start : head.properties_end])
    real = real_queue(properties)
    if real is None:
        return None
    copy = copy_of(record, head, *real, properties)
    return copy._replace(prepared_transaction_offset=head.prepared_transaction_offset)
