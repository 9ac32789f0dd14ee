"""The revive log: check points of popped messages and their acknowledgements, in rmq_sys_REVIVE_LOG_<cluster>.

A check point is due one second before its messages become visible again, an acknowledgement when they do. A reader of a
queue of the log therefore finds a check point before its acknowledgements. Until they are due, both are in the timer
topic.

A check point also has the next offset of the group as a property (NEXT_OFFSET). Offsets are saved at intervals, and
after a crash they are updated from it (positions.py). Apache's broker ignores it.

Source: PopMessageProcessor.buildCkMsg, AckMessageProcessor.appendAck, PopAckConstants, apache/rocketmq 5.3.3.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from mqtrail.store import PendingRecord
from mqtrail.wire import (
    POP_ACK_TAG,
    POP_BATCH_ACK_TAG,
    POP_CHECK_POINT_TAG,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_KEY,
    PopAck,
    PopCheckPoint,
    encode_properties,
    revive_topic,
    tags_code,
)

from ..state import BrokerState
from .timing import Timing

ACK_INTERVAL_MS: Final = 1_000  # time between a check point and its acknowledgements
NEXT_OFFSET: Final = "POP_NEXT_OFFSET"
NO_OFFSET: Final = b"-1"  # NEXT_OFFSET of a check point that moves no offset
CHECK_POINT: Final = "CK"  # name in PopReviveMessageType
ACK: Final = "ACK"

What = tuple[str, str, str]  # group, topic, CHECK_POINT or ACK


class Put(NamedTuple):
    """A record for the log. what: group, topic, and CHECK_POINT or ACK."""

    record: PendingRecord
    what: What


class ReviveLog:
    """Writes check points and acknowledgements. put_counts: number of stored ones since the start."""

    def __init__(self, state: BrokerState, timers: Timing) -> None:
        self.topic = revive_topic(state.config.cluster_name)
        self.queue_nums = state.config.revive_queue_nums
        self.broker_name = state.config.broker_name
        self._born_host = state.config.address.packed()
        self._writer = state.writer
        self._timers = timers
        self.put_counts: Counter[What] = Counter()

    def check_point(
        self, point: PopCheckPoint, revive_queue_id: int, now_ms: int, next_offset: int | None = None
    ) -> Put:
        """Return the record of a check point. next_offset: of the group in the popped queue."""
        key = (
            f"{point.topic}@{point.queue_id}@{point.start_offset}@{point.group}@{point.pop_time_ms}"
            f"@{point.broker_name}@{POP_CHECK_POINT_TAG}"
        )
        more = {NEXT_OFFSET: NO_OFFSET.decode() if next_offset is None else str(next_offset)}
        due_ms = point.revive_ms - ACK_INTERVAL_MS
        record = self._record(point.encode(), POP_CHECK_POINT_TAG, key, revive_queue_id, due_ms, now_ms, more)
        return Put(self._timers.divert(record, max(due_ms, now_ms + 1)), (point.group, point.topic, CHECK_POINT))

    def ack(self, ack: PopAck, invisible_ms: int, revive_queue_id: int, now_ms: int) -> Put:
        """Return the record of an acknowledgement, of one message or (with offsets) of several."""
        what = f"{ack.topic}@{ack.queue_id}@{ack.offset}@{ack.group}@{ack.pop_time_ms}@{ack.broker_name}"
        tag = POP_ACK_TAG if ack.offsets is None else POP_BATCH_ACK_TAG
        due_ms = ack.pop_time_ms + invisible_ms
        record = self._record(ack.encode(), tag, f"{what}@{POP_ACK_TAG}", revive_queue_id, due_ms, now_ms, {})
        if due_ms > now_ms or self._timers.is_behind(now_ms):
            record = self._timers.divert(record, max(due_ms, now_ms + 1))
        # otherwise it is late, and written to the log directly, unless earlier check points are late too
        return Put(record, (ack.group, ack.topic, ACK))

    def position(self, ack: PopAck, next_offset: int, now_ms: int) -> Put:
        """Return the record of an acknowledgement in order. It has no check point; only its NEXT_OFFSET is used."""
        key = f"{ack.topic}@{ack.queue_id}@{ack.offset}@{ack.group}@{ack.pop_time_ms}@{ack.broker_name}@{POP_ACK_TAG}"
        more = {NEXT_OFFSET: str(next_offset)}
        return Put(self._record(ack.encode(), POP_ACK_TAG, key, 0, None, now_ms, more), (ack.group, ack.topic, ACK))

    def write(self, puts: Sequence[Put], now_ms: int) -> int:
        """Append all records or none; return the end of the last one. Refusal: the store refuses them."""
        end_offset = self._writer.write([put.record for put in puts], now_ms)[-1].end_offset
        for put in puts:
            self.put_counts[put.what] += 1
        return end_offset

    def _record(
        self, body: bytes, tag: str, key: str, queue_id: int, due_ms: int | None, now_ms: int, more: dict[str, str]
    ) -> PendingRecord:
        due = {} if due_ms is None else {PROPERTY_TIMER_DELIVER_MS: str(due_ms)}
        properties = {PROPERTY_TAGS: tag, PROPERTY_UNIQ_KEY: key, **due, **more}
        return PendingRecord(
            topic=self.topic,
            queue_id=queue_id,
            body=body,
            properties=encode_properties(properties).encode(),
            tags_code=tags_code(tag),
            born_timestamp_ms=now_ms,
            born_host=self._born_host,
        )
