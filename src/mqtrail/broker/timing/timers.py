"""Timer messages of 5.x, delivered at any second within three days by the log and the wheel of the store.

A timer message is stored in rmq_sys_wheel_timer. `_take_in` reads that queue and adds a unit for each message to the
timer log, in the slot of its second. `deliver` empties slots whose second is over, oldest message first, and appends
each message to its real queue. Both work in slices, so that a slot with a million messages does not block other
requests: `next_due_ms` returns when the next slice is due.

Work since the last save is repeated after a crash: messages may be delivered twice, never lost. A save counts only
durable deliveries.

Source: TimerMessageStore, apache/rocketmq store/timer. There four kinds of threads do this work.
"""

from typing import Final, NamedTuple

from mqtrail.store import (
    PRECISION_MS,
    PendingRecord,
    TimerCheckpoint,
    UnitMagic,
    floor_ms,
)
from mqtrail.wire import (
    TIMER_TOPIC,
    MessageIllegal,
    MQError,
    SystemError_,
)

from ..files import next_count
from ..state import BrokerState
from .counts import TimerCounts
from .records import ROLL_WINDOW_MS, due_ms, out_ms, recalls, wait_of, waiting_record
from .slots import DamagedTimerLog, SlotReader

READ_COUNT: Final = 64  # messages of the timer topic per read
READ_SIZE: Final = 1 << 20
TAKE_IN_MAX: Final = 500  # messages added to the log by one slice
DELIVER_MAX: Final = 256  # messages delivered by one slice
RETRY_MS: Final = 1_000  # delay after the store refused a delivery
FLUSH_WAIT_MS: Final = 1_000  # after this time appends are usually durable
AHEAD_MAX_MS: Final = 7 * 86_400_000  # maximum time between two slots; above it they could share a place in the wheel
NO_LIMIT: Final = (1 << 31) - 1  # of timer_slot_max
SNAPSHOT_BOUNDS_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)  # RocketMQ: TimerMetrics.timerDist
_SPREAD, _SPREAD_OF = 389, 1_000  # coprime


class TimerLag(NamedTuple):
    """in_count, in_ms: messages not added yet, and the age of the oldest; None: unknown.

    waiting: messages in the wheel. late_ms: time since the end of the second that is delivered next. ahead: number of
    messages due between each two consecutive SNAPSHOT_BOUNDS_S.
    """

    in_count: int
    in_ms: int | None
    waiting: int
    late_ms: int
    ahead: list[int]


class Timers:
    """The timers of one broker."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        store = self._store = state.store
        self._own = state.own
        self._writer = state.writer
        self._log, self._wheel = store.timers.log, store.timers.wheel
        self._now_ms = state.boot_ms  # at the last call
        first, end = store.min_offset(TIMER_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0)
        known = store.timers.checkpoint
        self._saved = known or TimerCheckpoint(floor_ms(state.boot_ms), self._log.end, first)
        self._read_ms = self._saved.read_ms
        self._queue_offset = min(max(self._saved.queue_offset, store.timers.taken_offset, first), end)
        self._rebuild_read_ms = self._read_ms
        self._rebuild_end = 0  # messages before it were added before the log was lost
        self._rebuilt_ms: int | None = None  # the slot whose damaged chain made the log be built again
        if store.timers.must_rebuild:
            self._read_again()
        self._unsaved: tuple[int, TimerCheckpoint] | None = None  # end of the CommitLog to be flushed first, progress
        self._unsaved_ms: int | None = None  # when to check whether it is durable
        self._dirty = False
        self._slots: dict[int, SlotReader] = {}  # started slots: one, and those that an earlier slot interrupted
        self._retry_ms = 0
        self._turn = 0
        self.counts = TimerCounts(state.files, state.boot_ms)

    def _read_again(self) -> None:
        """Take in the messages of the last days again: the log was lost. Those that were delivered stay so."""
        self._rebuild_end, self._rebuild_read_ms = self._queue_offset, self._read_ms
        oldest_ms = self._read_ms - ROLL_WINDOW_MS - PRECISION_MS
        first = self._store.min_offset(TIMER_TOPIC, 0)
        self._queue_offset = max(first, self._store.offset_by_time(TIMER_TOPIC, 0, oldest_ms))

    def divert(self, record: PendingRecord, due_ms: int) -> PendingRecord:
        """Return the record as stored until due_ms (epoch ms), which is not past. MessageIllegal: no room in its
        properties.
        """
        self._now_ms = min(self._now_ms, due_ms)  # the clock was set back: records must not wait for the time before
        return waiting_record(record, due_ms)

    def divert_sent(self, record: PendingRecord, now_ms: int) -> PendingRecord:
        """Return the record to store for a sent timer message; unchanged if its time is over.

        SystemError_: timers are off, or too many messages wait for its second. MessageIllegal: its time is not a number
        or too far ahead, or it is too late to recall the other message.
        """
        self._now_ms = now_ms
        text = bytes(record.properties)
        longest_ms = self._config.timer_delay_max_ms
        if not self._config.timers:
            raise SystemError_("accurate timer message is not enabled, timerWheelEnable is false")
        due = due_ms(text, now_ms)
        if due > now_ms + longest_ms or (due <= now_ms and recalls(text)):
            raise MessageIllegal(
                f"timer message illegal, the delay time should not be bigger than the max delay {longest_ms}ms; or if "
                f"set del msg, the delay time should be bigger than the current time: found {due - now_ms} ms"
            )
        if due <= now_ms:
            return record
        self._check_room(out_ms(due))
        return waiting_record(record, due)

    def _check_room(self, slot_ms: int) -> None:
        """Reject some messages of a second above timer_slot_max, and all above twice that number. SystemError_."""
        limit = self._config.timer_slot_max
        if limit >= NO_LIMIT:
            return
        self._take_in()
        above = self.waiting_count(slot_ms) - limit
        if above <= 0:
            return
        self._turn = (self._turn + _SPREAD) % _SPREAD_OF  # evenly spread, without randomness
        if self._turn * limit < above * _SPREAD_OF:
            raise SystemError_(
                f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater "
                f"than {limit} and less than {2 * limit}, trigger random flow control: choose another second"
            )

    @property
    def kept_ms(self) -> int:
        """Epoch ms. A crash does not repeat messages due before it; later ones may be delivered again."""
        known = self._store.timers.checkpoint
        return 0 if known is None else known.read_ms

    def waiting_count(self, slot_ms: int) -> int:
        """Return the number of messages that wait for a second: TIMER_OUT_MS of a waiting record."""
        slot = self._wheel.slot(slot_ms)
        return 0 if slot is None else slot.waiting

    def lag(self, now_ms: int) -> TimerLag:
        """Return the backlog of the timers, in and out."""
        in_ms: int | None = 0
        in_count = self._store.max_offset(TIMER_TOPIC, 0) - self._queue_offset
        if in_count > 0:
            stored_ms = self._store.store_time(TIMER_TOPIC, 0, self._queue_offset)
            in_ms = max(0, now_ms - stored_ms) if stored_ms > 0 else None
        next_ms = self._wheel.next(self._read_ms)
        late_ms = 0 if next_ms is None else max(0, now_ms - next_ms - PRECISION_MS)
        start_ms = floor_ms(now_ms)
        ends_ms = [start_ms, *(start_ms + bound_s * 1_000 for bound_s in SNAPSHOT_BOUNDS_S), start_ms + AHEAD_MAX_MS]
        counts = self._wheel.counts(self._read_ms, ends_ms)
        return TimerLag(max(0, in_count), in_ms, sum(counts), late_ms, counts[1:-1])

    # The clock.

    def next_due_ms(self) -> int | None:
        """Return when `deliver` is due, epoch ms; None: nothing waits. 0: now."""
        try:
            has_more = self._take_in()
        except (MQError, OSError):
            return self._retry_ms
        if has_more:
            return self._retry_ms
        slot_ms = self._wheel.next(self._read_ms)
        if slot_ms is None:
            return self._unsaved_ms
        due = slot_ms + PRECISION_MS
        if self._retry_ms <= self._now_ms + RETRY_MS:  # otherwise the clock was set back since
            due = max(due, self._retry_ms)
        return due if self._unsaved_ms is None else min(due, self._unsaved_ms)

    def is_behind(self, now_ms: int) -> bool:
        """Return whether a due message is not delivered yet: the store refused it, or there are many."""
        try:
            has_more = self._take_in()
        except (MQError, OSError):
            return True
        slot_ms = self._wheel.next(self._read_ms)
        return has_more or (slot_ms is not None and slot_ms + PRECISION_MS <= now_ms)

    def deliver(self, now_ms: int) -> None:
        """Append some due messages to their real queues. If the store refuses, try again in a second."""
        self._now_ms = now_ms
        if self._unsaved_ms is not None and now_ms >= self._unsaved_ms:
            self._save_durable()
        if now_ms < self._retry_ms <= now_ms + RETRY_MS:
            return
        self._retry_ms = 0
        try:
            self._take_in()
            self._deliver_some(now_ms)
        except (MQError, OSError):
            self._retry_ms = now_ms + RETRY_MS

    def _rebuild(self, reader: SlotReader, error: DamagedTimerLog) -> None:
        """Build log and wheel again from the queue, once for a slot; its damaged chain ends here if that did not help.

        No message of the slot was delivered, unless a part of its chain was read before.
        """
        if self._rebuilt_ms == reader.slot_ms:
            self._own.pass_by(TIMER_TOPIC, f"{error}, after it was built again")
            reader.cut()
            return
        self._own.note(f"{error}: the last days of timer messages are read again, none is lost")
        self._rebuilt_ms = reader.slot_ms
        self._store.timers.begin_rebuild()
        self._slots.clear()
        self._unsaved = None
        self._read_again()
        self._dirty = True

    # In.

    def _take_in(self) -> bool:
        """Add new messages of the timer topic to log and wheel; return whether there are more."""
        try:
            return self._take_some()
        finally:
            self._store.timers.taken_offset = self._queue_offset

    def _take_some(self) -> bool:
        end = self._store.max_offset(TIMER_TOPIC, 0)
        left = TAKE_IN_MAX
        while self._queue_offset < end and left > 0:
            found = self._own.read(TIMER_TOPIC, 0, self._queue_offset, READ_COUNT, READ_SIZE)
            for record, head in found.records:
                wait = wait_of(head, bytes(record[head.properties_start : head.properties_end]), self._now_ms)
                if wait is not None and not self._was_delivered(head.queue_offset, wait.slot_ms):
                    if wait.slot_ms - self._read_ms > AHEAD_MAX_MS and self._wheel.next(self._read_ms) is not None:
                        return False  # waiting messages must leave first
                    change = -1 if wait.magic & UnitMagic.DELETE else 1
                    slot = self._wheel.slot(wait.slot_ms)
                    position = self._log.append(
                        -1 if slot is None else slot.last,
                        wait.magic,
                        wait.put_ms,
                        wait.slot_ms,
                        head.physical_offset,
                        head.size,
                        wait.topic_hash,
                    )
                    self._wheel.put(wait.slot_ms, position, change)
                    self._read_ms = min(self._read_ms, wait.slot_ms)
                    if head.queue_offset >= self._rebuild_end:  # otherwise it was counted before the log was lost
                        self.counts.add(wait.topic, change, head.store_timestamp_ms)
                        self.counts.took_in(wait.topic, wait.out_ms - head.born_timestamp_ms)
                self._queue_offset = head.queue_offset + 1
                left -= 1
            if not found.records and found.next_queue_offset <= self._queue_offset:
                return False
            self._queue_offset = max(self._queue_offset, found.next_queue_offset)
            self._dirty = True
        return self._queue_offset < end

    def _was_delivered(self, queue_offset: int, slot_ms: int) -> bool:
        """Return whether a message that is read again, because the log was lost, has already left its slot."""
        return queue_offset < self._rebuild_end and slot_ms < self._rebuild_read_ms

    # Out.

    def _deliver_some(self, now_ms: int) -> None:
        left = DELIVER_MAX
        while left > 0 and (reader := self._due_slot(now_ms)) is not None:
            if reader.position >= 0:
                try:
                    if not reader.collect():
                        return
                except DamagedTimerLog as error:
                    self._rebuild(reader, error)
                    return
                continue
            if reader.is_empty:
                self._close_slot(reader, now_ms)
                continue
            left -= self._deliver_batch(reader, now_ms)

    def _due_slot(self, now_ms: int) -> SlotReader | None:
        """Return the earliest slot whose second is over; None: there is none.

        Each call searches again: a message for an earlier second may have arrived, on which later ones may depend, and
        the clock may have been set back since a slot was started.
        """
        slot_ms = self._wheel.next(self._read_ms)
        if slot_ms is None or slot_ms + PRECISION_MS > now_ms:
            self._read_ms = max(self._read_ms, floor_ms(now_ms))
            return None
        self._read_ms = slot_ms
        reader = self._slots.get(slot_ms)
        if reader is None:
            slot = self._wheel.slot(slot_ms)
            assert slot is not None
            reader = self._slots[slot_ms] = SlotReader(slot_ms, slot.last, self._store, self._own)
        return reader

    def _deliver_batch(self, reader: SlotReader, now_ms: int) -> int:
        """Append the oldest messages of the slot; return their number."""
        batch = reader.oldest(now_ms)
        if batch.records:
            self._write(batch.records, now_ms)
        reader.forget(batch.taken)
        for topic, change in batch.changes:
            self.counts.add(topic, change, now_ms)
            self.counts.handed_out[topic] += 1
        return batch.taken

    def _write(self, records: list[PendingRecord], now_ms: int) -> None:
        try:
            self._writer.write(records, now_ms)
        except MessageIllegal:  # a single invalid message must not block the others
            if len(records) > 1:
                for record in records:
                    self._write([record], now_ms)

    def _close_slot(self, reader: SlotReader, now_ms: int) -> None:
        slot = self._wheel.slot(reader.slot_ms)
        if slot is not None and slot.last != reader.last:  # messages were added while it was read
            reader.continue_to(slot.last)
            return
        for topic in reader.missed():
            self.counts.add(topic, 1, now_ms)  # it recalled no message
        self._wheel.clear_slot(reader.slot_ms)
        self._read_ms += PRECISION_MS
        del self._slots[reader.slot_ms]
        self._dirty = True

    # Saves.

    def checkpoint(self, now_ms: int) -> TimerCheckpoint:
        """Return the progress of the timers: the content of the file, and the answer to request 60."""
        state_version, _, counter = self._saved.version
        return TimerCheckpoint(
            self._read_ms, self._log.end, self._queue_offset, (state_version, now_ms, next_count(counter))
        )

    def save(self, now_ms: int, *, final: bool = False) -> None:
        """Save the durable progress of the timers. final: flush it, since the broker stops."""
        if final and self._log.end > 0:
            try:
                self._store.flush()
            except (MQError, OSError):
                return  # the next start repeats the work since the last save
            self._dirty, self._unsaved = True, None
        if self._dirty and self._unsaved is None:
            self._dirty = False
            self._unsaved = (self._store.end_offset, self.checkpoint(now_ms))
            self._unsaved_ms = now_ms + FLUSH_WAIT_MS
        if final or self._unsaved_ms is None or now_ms >= self._unsaved_ms:
            self._save_durable(exact=final)
        self.counts.save(now_ms, final=final)

    def _save_durable(self, *, exact: bool = False) -> None:
        """Save the waiting progress if it is durable."""
        self._unsaved_ms = None
        if self._unsaved is None or self._unsaved[0] > self._store.flushed_offset:
            return
        _, checkpoint = self._unsaved
        self._unsaved = None
        self._store.timers.save(checkpoint, exact=exact)
        self._saved = checkpoint
