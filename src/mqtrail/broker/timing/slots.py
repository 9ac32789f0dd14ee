"""Delivery of one second of the timer: recalls first, then messages, oldest first.

The chain of a slot leads from the newest unit to the oldest. All of it is read before the first message is delivered;
until then one number per message is kept.

Source: TimerMessageStore.dequeue, TimerDequeueGetMessageService, apache/rocketmq store/timer.
"""

from array import array
from typing import Final, NamedTuple

from mqtrail.store import MessageStore, PendingRecord, StoreAway, StoreError, UnitMagic, floor_ms
from mqtrail.wire import (
    RAW_REAL_TOPIC,
    RAW_TIMER_DEL_UNIQKEY,
    RAW_UNIQ_KEY,
    TIMER_TOPIC,
    QueryNotFound,
    RecordError,
    RecordHead,
    check_record,
    find_property,
)

from ..own_queues import OwnQueues
from .records import delivered_record

COLLECT_MAX: Final = 5_000  # units of a slot read by one slice
BATCH_COUNT: Final = 32  # messages delivered with one append
BATCH_SIZE: Final = 1 << 20
_MAGIC_BITS: Final = 4
_NO_UNIT: Final = -1


class SlotBatch(NamedTuple):
    """Messages that leave a slot together. taken: their number, including recalled and deleted ones.

    changes: changes of the counts by topic.
    """

    records: list[PendingRecord]
    taken: int
    changes: list[tuple[str, int]]


class DamagedTimerLog(StoreError):
    """The chain of a slot leads to something else than its units."""


class SlotReader:
    """Reads a slot. position: of the next unit; below 0: all are read. last: start of the chain."""

    def __init__(self, slot_ms: int, last: int, store: MessageStore, own: OwnQueues) -> None:
        self.slot_ms = slot_ms
        self.last = last
        self.position = last
        self._store = store
        self._own = own
        self._log = store.timers.log
        self._stop_position = _NO_UNIT
        self._waiting = array("q")  # physical offset and magic in one number each: a slot may hold millions
        self._recalled: dict[bytes, str] = {}  # real topic+unique key -> real topic
        self._met: set[bytes] = set()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def cut(self) -> None:
        """End the chain before the next unit."""
        self.position = _NO_UNIT

    def continue_to(self, last: int) -> None:
        """Read the units that were added since the last read. last: the new start of the chain."""
        self._stop_position, self.last, self.position = self.last, last, last

    def collect(self) -> bool:
        """Read a part of the chain; return whether all of it was read."""
        for _ in range(COLLECT_MAX):
            if self.position < 0 or self.position == self._stop_position:
                self.position = _NO_UNIT
                return True
            unit = self._log.unit(self.position)
            if unit is None and self.position < self._log.first:  # expired
                self.position = _NO_UNIT
                return True
            if unit is None or floor_ms(unit.slot_ms) != self.slot_ms or unit.previous >= self.position:
                raise DamagedTimerLog(
                    f"found no unit of the second {self.slot_ms} at position {self.position} of timerlog/"
                )
            if unit.magic & UnitMagic.DELETE and not unit.magic & UnitMagic.ROLL:
                self._note_recall(unit.physical_offset)
            else:
                self._waiting.append(unit.physical_offset << _MAGIC_BITS | unit.magic)
            self.position = unit.previous
        return False

    def _note_recall(self, physical_offset: int) -> None:
        found = self._read(physical_offset)
        if found is None:
            return
        _, _, text = found
        key = find_property(text, RAW_TIMER_DEL_UNIQKEY)
        if key is not None:
            topic = find_property(text, RAW_REAL_TOPIC) or b""
            self._recalled.setdefault(key, topic.decode("utf-8", "replace"))

    def _read(self, physical_offset: int) -> tuple[bytes, RecordHead, bytes] | None:
        """Return a waiting record with its head and properties; None: it was deleted or replaced, or is damaged."""
        try:
            record = self._store.read_at(physical_offset)
            head = check_record(record)
        except StoreAway:
            raise
        except (QueryNotFound, StoreError, RecordError) as error:
            if physical_offset >= self._store.min_physical_offset:
                self._own.pass_by(TIMER_TOPIC, f"a timer message at {physical_offset} cannot be read ({error})")
            return None
        if head.topic != TIMER_TOPIC:
            return None
        return record, head, record[head.properties_start : head.properties_end]

    def oldest(self, now_ms: int) -> SlotBatch:
        """Return the oldest messages of the slot to append; call `forget` afterwards."""
        batch = SlotBatch([], 0, [])
        size = count = 0
        for entry in reversed(self._waiting[-BATCH_COUNT:]):
            count += 1
            found = self._read(entry >> _MAGIC_BITS)
            if found is None:
                continue
            record, head, text = found
            topic = find_property(text, RAW_REAL_TOPIC) or b""
            if self._is_recalled(topic, find_property(text, RAW_UNIQ_KEY)):
                continue
            delivered = delivered_record(record, rolls=bool(entry & UnitMagic.ROLL), now_ms=now_ms)
            if delivered is None:
                continue
            batch.records.append(delivered)
            batch.changes.append((topic.decode("utf-8", "replace"), 1 if entry & UnitMagic.DELETE else -1))
            size += head.size
            if size >= BATCH_SIZE:
                break
        return batch._replace(taken=count)

    def _is_recalled(self, topic: bytes, unique_key: bytes | None) -> bool:
        if not self._recalled or unique_key is None:
            return False
        key = topic + b"+" + unique_key
        if key not in self._recalled:
            return False
        self._met.add(key)
        return True

    def forget(self, count: int) -> None:
        """Remove the oldest messages."""
        if count:
            del self._waiting[-count:]

    def missed(self) -> list[str]:
        """Return the topics of recalls whose message was not found."""
        return [topic for key, topic in self._recalled.items() if key not in self._met]
