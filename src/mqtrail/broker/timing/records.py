"""Records of timer messages: due time of a sent message, the waiting record, and the delivered record.

The first of TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS decides; a delay level overrides them. A waiting
record is in rmq_sys_wheel_timer, queue 0. Its TIMER_OUT_MS is a whole second, and it is delivered at the end of that
second: 11:59:59 for a message due at 12:00:00.000, 12:00:00 for one due at 12:00:00.001. So no message is early, and
some are late by less than a second.

Source: HookUtils.handleScheduleMessage, TimerMessageStore, apache/rocketmq broker/ and store/timer.
"""

import re
from typing import Final, NamedTuple

from mqtrail.store import PRECISION_MS, PendingRecord, UnitMagic, floor_ms
from mqtrail.wire import (
    PROPERTIES_SIZE_MAX,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DEQUEUE_MS,
    PROPERTY_TIMER_ENQUEUE_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    RAW_REAL_TOPIC,
    RAW_TIMER_DEL_UNIQKEY,
    RAW_TIMER_OUT_MS,
    TIMER_PROPERTIES,
    TIMER_TOPIC,
    Buffer,
    MessageIllegal,
    RecordHead,
    decode_head,
    decode_properties,
    encode_properties,
    find_property,
    java_string_hash,
    number_of,
)

from ..copies import copy_of
from ..properties import real_queue, tag_hash, with_real_queue

ROLL_WINDOW_MS: Final = 2 * 86_400_000  # RocketMQ: timerRollWindowSlot; a longer delay consists of several parts
_UNITS_MS: Final = {PROPERTY_TIMER_DELAY_SEC: 1_000, PROPERTY_TIMER_DELAY_MS: 1, PROPERTY_TIMER_DELIVER_MS: 1}
_ENQUEUE_MARK: Final = f"{PROPERTY_TIMER_ENQUEUE_MS}\x01".encode()
_DISTANCE_MAX_MS: Final = (
    1 << 31
) // 1_000 * 1_000 - 1_000  # maximum difference of the two times of a unit: whole seconds in an int
_COUNT: Final = re.compile(r"[0-9]{1,9}")  # clients may write anything into the property


def due_ms(text: bytes, now_ms: int) -> int:
    """Return the due time of a timer message, epoch ms. MessageIllegal: its property is not a number."""
    for name in TIMER_PROPERTIES:
        value = find_property(text, name.encode())
        if value is None:
            continue
        if number_of(value[1:] if value[:1] in (b"-", b"+") else value) is None:
            raise MessageIllegal(
                f"timer message illegal: found {name}={value[:20].decode('utf-8', 'replace')}, expected a whole number"
            )
        number = int(value) * _UNITS_MS[name]
        return number if name == PROPERTY_TIMER_DELIVER_MS else now_ms + number
    raise MessageIllegal(f"timer message illegal: found none of {', '.join(TIMER_PROPERTIES)}")


def recalls(text: bytes) -> bool:
    """Return whether the message recalls another one."""
    return RAW_TIMER_DEL_UNIQKEY in text and find_property(text, RAW_TIMER_DEL_UNIQKEY) is not None


def recall_ms(text: bytes) -> int:
    """Return the delivery time for the recall handle of a waiting record, in its second (epoch ms)."""
    value = find_property(text, RAW_TIMER_OUT_MS)
    assert value is not None, "a waiting record has TIMER_OUT_MS"
    return int(value) + 1


def out_ms(due: int) -> int:
    """Return TIMER_OUT_MS of a message due at `due`: it is delivered after that second."""
    return floor_ms(due - 1)


def waiting_record(record: PendingRecord, due: int) -> PendingRecord:
    """Return the waiting record. MessageIllegal: no room in its properties."""
    text = bytes(record.properties)
    if text and not text.endswith(b"\x02"):
        text += b"\x02"
    text = with_real_queue(
        text + f"{PROPERTY_TIMER_OUT_MS}\x01{out_ms(due)}\x02".encode(), record.topic, record.queue_id
    )
    return record._replace(topic=TIMER_TOPIC, queue_id=0, properties=text, tags_code=tag_hash(text))


class TimerWait(NamedTuple):
    """Entry of a waiting record in the timer log. put_ms, slot_ms: whole seconds. out_ms: end of its last part."""

    put_ms: int
    slot_ms: int
    out_ms: int
    magic: int
    topic: str
    topic_hash: int


def wait_of(head: RecordHead, text: bytes, now_ms: int) -> TimerWait | None:
    """Return the entry of a record of the timer topic; None: the record has no time.

    It depends on the record only, so that a lost log can be rebuilt from the queue. now_ms: upper bound of the time at
    which the record was added. Its store time may be later, since store times never go back with the clock.
    """
    out, topic = number_of(find_property(text, RAW_TIMER_OUT_MS)), find_property(text, RAW_REAL_TOPIC)
    if out is None or topic is None:
        return None
    start_ms = floor_ms(min(head.store_timestamp_ms, now_ms))
    slot_ms = max(floor_ms(out), start_ms - PRECISION_MS)
    magic = UnitMagic.DEFAULT
    left_ms = slot_ms - start_ms
    if left_ms >= ROLL_WINDOW_MS:
        magic |= UnitMagic.ROLL
        is_short = left_ms - ROLL_WINDOW_MS < ROLL_WINDOW_MS // 3  # leave enough time for the last part
        slot_ms = start_ms + (ROLL_WINDOW_MS // 2 if is_short else ROLL_WINDOW_MS)
    if recalls(text):
        magic |= UnitMagic.DELETE
    name = topic.decode("utf-8", "replace")
    put_ms = min(
        floor_ms(head.store_timestamp_ms), slot_ms + _DISTANCE_MAX_MS
    )  # in the order that the search in the log needs
    return TimerWait(put_ms, slot_ms, int(out), magic, name, java_string_hash(name))


def delivered_record(record: Buffer, *, rolls: bool, now_ms: int) -> PendingRecord | None:
    """Return the next record of a waiting record: for its real queue, or for the timer topic if another part follows.

    None: it names no queue. As in Java, the properties keep REAL_TOPIC and REAL_QID, and the times of adding and
    removal.
    """
    head = decode_head(record)
    text = bytes(record[head.properties_start : head.properties_end])
    real = real_queue(text)
    if real is None:
        return None
    passed = {
        PROPERTY_TIMER_ENQUEUE_MS: str(floor_ms(head.store_timestamp_ms)),
        PROPERTY_TIMER_DEQUEUE_MS: str(now_ms),
    }
    if rolls or _ENQUEUE_MARK in text:
        properties = decode_properties(text) | passed
        if rolls:
            before = properties.get(PROPERTY_TIMER_ROLL_TIMES, "0")
            properties[PROPERTY_TIMER_ROLL_TIMES] = str(int(before) + 1 if _COUNT.fullmatch(before) else 1)
        passed_text = encode_properties(properties).encode()
    else:
        passed_text = text + encode_properties(passed).encode()
    if len(passed_text) <= PROPERTIES_SIZE_MAX:
        text = passed_text
    copy = copy_of(record, head, *((TIMER_TOPIC, 0) if rolls else real), text)
    return copy._replace(prepared_transaction_offset=head.prepared_transaction_offset)
