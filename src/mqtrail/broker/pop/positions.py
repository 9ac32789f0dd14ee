"""The offset of a group's next pop in each queue, also after a crash.

A pop moves the committed offset of the group past its messages; a check point records the missing acknowledgements.
Offsets are saved every few seconds only, so after a crash the broker would deliver messages again that were popped, or
even acknowledged, since the last save. Therefore each save also stores the ends of the timer topic and of the revive
log. The next start reads the records after these ends: check points, and acknowledgements in order, of this broker
contain the next offset of their group (NEXT_OFFSET). Those of Apache's broker do not; if one is found, an Apache broker
ran in between, and the saved offset is used.

Source of the first offset: PopMessageProcessor.getInitOffset, apache/rocketmq 5.3.3 broker/.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from mqtrail.wire import (
    INIT_FROM_MIN,
    POP_ACK_TAG,
    POP_CHECK_POINT_TAG,
    POP_POSITION_GROUP,
    RAW_REAL_TOPIC,
    RAW_TAGS,
    RETRY_PREFIX,
    TIMER_TOPIC,
    BodyError,
    MQError,
    PopCheckPoint,
    find_property,
    number_of,
    revive_topic,
    tags_code,
)

from ..state import BrokerState
from ..tables import is_young
from .orders import OrderTable
from .revive_log import NEXT_OFFSET, NO_OFFSET

LATE_MS: Final = 60_000  # a check point stored this long after its pop is a repeated one
_READ_COUNT: Final = 256
_READ_SIZE: Final = 1 << 20
_NEXT_OFFSET: Final = NEXT_OFFSET.encode()

_Key = tuple[str, str, int]  # group, topic, queue id


class Positions:
    """Next offsets of groups that pop."""

    def __init__(self, state: BrokerState, orders: OrderTable) -> None:
        self._config = state.config
        self._store = state.store
        self._own = state.own
        self._offsets = state.offsets
        self._groups = state.groups
        self._boot_ms = state.boot_ms
        self._orders = orders
        self._revive = revive_topic(state.config.cluster_name).encode()
        self._logs = ((TIMER_TOPIC, 0), (revive_topic(state.config.cluster_name), 0))
        self._is_saved = self._is_noted()

    def find(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of the group's next pop, without a change; the start of the queue for a new group."""
        offset = self._offsets.get(group, topic, queue_id)
        return self._store.min_offset(topic, queue_id) if offset is None else offset

    def begin(self, group: str, topic: str, queue_id: int, init_mode: int) -> int:
        """Return the start offset of the current pop, after a pending reset; for a new group by init_mode."""
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self._orders.clear((topic, group, queue_id))
            self._offsets.commit(group, topic, queue_id, reset)
            return reset
        offset = self._offsets.get(group, topic, queue_id)
        if offset is None:
            offset = self._first(topic, queue_id, init_mode)
            self._offsets.commit(group, topic, queue_id, offset)
        return offset

    def _first(self, topic: str, queue_id: int, init_mode: int) -> int:
        if init_mode == INIT_FROM_MIN or topic.startswith(RETRY_PREFIX):
            return self._store.min_offset(topic, queue_id)
        if is_young(self._store, topic, queue_id, self._config.young_queue_size):
            return 0
        return max(0, self._store.max_offset(topic, queue_id) - 1)

    # After a crash.

    def start(self) -> bool:
        """Store the ends of the logs before the first pop of a broker; return whether offsets must be saved now.

        Call `started` when they are saved.
        """
        if self._is_saved:
            return False
        if not self._is_noted():
            for topic, queue_id in self._logs:
                self._offsets.commit(POP_POSITION_GROUP, topic, queue_id, self._store.max_offset(topic, queue_id))
        return True

    def started(self) -> None:
        """Report that the save after `start` succeeded, or that answers wait for it."""
        self._is_saved = True

    def start_failed(self) -> None:
        """Report that the save failed: the next pop tries again."""
        self._is_saved = False

    def note(self) -> None:
        """Store the ends of the logs. Call it before the offsets are saved."""
        if self._is_noted():
            for topic, queue_id in self._logs:
                end = self._store.max_offset(topic, queue_id)
                if self._offsets.get(POP_POSITION_GROUP, topic, queue_id) != end:
                    self._offsets.move(POP_POSITION_GROUP, topic, queue_id, end)

    def _is_noted(self) -> bool:
        return self._offsets.get(POP_POSITION_GROUP, *self._logs[0]) is not None

    def recover(self) -> int:
        """Update offsets from the records since the last save; return the number of changed offsets.

        If the ends were never saved, the logs are read from their start: the broker may have stopped after the check
        points of its first pop and before the save. Their starts are then stored among the offsets, and the next save
        stores the ends. It does so when the changed offsets are durable, not earlier: after another crash the next
        start would have neither.

        A group that is in these records but not in the table was created automatically by its pop, and the broker
        stopped before the save. It is created again: revive drops check points of groups that do not exist. So is a
        group that was deleted after the last save of offsets.
        """
        found: dict[_Key, tuple[int, int | None]] = {}
        for topic, queue_id in self._logs:
            self._gather(topic, queue_id, self._offsets.get(POP_POSITION_GROUP, topic, queue_id) or 0, found)
        changed = 0
        for (group, topic, queue_id), (_, next_offset) in found.items():
            if next_offset is None or next_offset > self._store.max_offset(topic, queue_id):
                continue  # of another broker, or of a deleted topic
            with suppress(MQError):  # its name is invalid, or the table is full
                self._groups.find(group, self._boot_ms)
            if next_offset != self._offsets.get(group, topic, queue_id):
                self._offsets.move(group, topic, queue_id, next_offset)
                changed += 1
        if not self._is_noted() and any(self._store.max_offset(*log) for log in self._logs):
            for topic, queue_id in self._logs:
                self._offsets.commit(POP_POSITION_GROUP, topic, queue_id, 0)
        return changed

    def _gather(self, log: str, log_queue_id: int, start: int, found: dict[_Key, tuple[int, int | None]]) -> None:
        """Add to found: (group, topic, queue id) -> (time, next offset; None: popped by another broker)."""
        waits = log == TIMER_TOPIC  # check points that left the timer topic are in the revive log as well
        tag = POP_CHECK_POINT_TAG if waits else POP_ACK_TAG
        for body, properties, store_ms in self._records(log, log_queue_id, start, frozenset({tags_code(tag)})):
            if find_property(properties, RAW_TAGS) != tag.encode():
                continue
            if waits and find_property(properties, RAW_REAL_TOPIC) != self._revive:
                continue
            try:
                point = PopCheckPoint.decode(
                    body
                )  # an acknowledgement has the same fields for group, topic, queue and pop time
            except BodyError:
                continue
            text = find_property(properties, _NEXT_OFFSET)
            if store_ms - point.pop_time_ms > LATE_MS or (text is None and not waits) or text == NO_OFFSET:
                continue
            key = (point.group, point.topic, point.queue_id)
            if store_ms >= found.get(key, (0, None))[0]:
                found[key] = (store_ms, number_of(text))

    def _records(
        self, topic: str, queue_id: int, start: int, tags_codes: frozenset[int]
    ) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield body, properties and store time of the records of a queue that have one of the tags."""
        position = max(start, self._store.min_offset(topic, queue_id))
        while position < self._store.max_offset(topic, queue_id):
            found = self._own.read(topic, queue_id, position, _READ_COUNT, _READ_SIZE, tags_codes)
            for record, head in found.records:
                properties = bytes(record[head.properties_start : head.properties_end])
                yield bytes(record[head.body_start : head.body_end]), properties, head.store_timestamp_ms
            if found.next_queue_offset <= position:
                return
            position = found.next_queue_offset
