"""Timer messages as records: when a sent one is due, how it waits, and as what it is delivered.

TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS: the first of them counts, and a delay level outweighs them all.
What waits stands in rmq_sys_wheel_timer, queue 0. Its TIMER_OUT_MS is a whole second, and it is handed out when that
second is over: a message due at 12:00:00.000 waits for 11:59:59, one due at 12:00:00.001 for 12:00:00. So none is
early, and some are late by less than a second.

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
    TIMER_TOPIC,
    Buffer,
    MessageIllegal,
    RecordHead,
    decode_head,
    decode_properties,
    encode_properties,
    find_property,
    java_string_hash,
)

from ..properties import TIMER_PROPERTIES, tag_hash, with_real_queue

ROLL_WINDOW_MS: Final = 2 * 86_400_000  # RocketMQ: timerRollWindowSlot; longer waits are made of several
_UNITS_MS: Final = {PROPERTY_TIMER_DELAY_SEC: 1_000, PROPERTY_TIMER_DELAY_MS: 1, PROPERTY_TIMER_DELIVER_MS: 1}
_OUT_MS: Final = PROPERTY_TIMER_OUT_MS.encode()
_DEL_UNIQKEY: Final = b"TIMER_DEL_UNIQKEY"
_DISTANCE_MAX_MS: Final = (1 << 31) // 1_000 * 1_000 - 1_000  # between a unit's two times: whole seconds in an int
_COUNT: Final = re.compile(r"[0-9]{1,9}")  # what the property says is a client's to write
_NUMBER_DIGITS_MAX: Final = 18  # beyond, no date and no delay


def due_ms(text: bytes, now_ms: int) -> int:
    """Return when a timed message is due. MessageIllegal: what it says is no number."""
    for name in TIMER_PROPERTIES:
        value = find_property(text, name.encode())
        if value is None:
            continue
        digits = value[1:] if value[:1] in (b"-", b"+") else value
        if not digits.isdigit() or len(digits) > _NUMBER_DIGITS_MAX:
            raise MessageIllegal(
                f"timer message illegal: found {name}={value[:20].decode('utf-8', 'replace')}, expected a whole number"
            )
        number = int(value) * _UNITS_MS[name]
        return number if name == PROPERTY_TIMER_DELIVER_MS else now_ms + number
    raise MessageIllegal(f"timer message illegal: found none of {', '.join(TIMER_PROPERTIES)}")


def recalls(text: bytes) -> bool:
    """Tell whether the message is there to recall another one."""
    return b"TIMER_DEL_UNIQKEY\x01" in text and find_property(text, _DEL_UNIQKEY) is not None


def recall_ms(text: bytes) -> int:
    """Return the delivery time that a waiting record's recall handle names: it falls into the same second."""
    value = find_property(text, _OUT_MS)
    assert value is not None, "a record that waits says until when"
    return int(value) + 1


def out_ms(due: int) -> int:
    """Return TIMER_OUT_MS of a message due at `due`: the second behind which it is handed out."""
    return floor_ms(due - 1)


def waiting_record(record: PendingRecord, due: int) -> PendingRecord:
    """Return the record as it waits for its time. MessageIllegal: its properties have no room for that."""
    text = bytes(record.properties)
    if text and not text.endswith(b"\x02"):
        text += b"\x02"
    text = with_real_queue(text + f"TIMER_OUT_MS\x01{out_ms(due)}\x02".encode(), record.topic, record.queue_id)
    return record._replace(topic=TIMER_TOPIC, queue_id=0, properties=text, tags_code=tag_hash(text))


class TimerWait(NamedTuple):
    """What the timer log keeps of a waiting record. put_ms, slot_ms: whole seconds. out_ms: where all its turns end."""

    put_ms: int
    slot_ms: int
    out_ms: int
    magic: int
    topic: str
    topic_hash: int


def wait_of(head: RecordHead, text: bytes, now_ms: int) -> TimerWait | None:
    """Return how a record of the timer topic waits, told by itself alone; None: it does not say.

    So a log that is lost can be built again from the queue, unit by unit. now_ms: a record is not put in later than
    that. Its store time may be: store times never run backwards, so they stand still when a clock is set back.
    """
    out, topic = find_property(text, _OUT_MS), find_property(text, b"REAL_TOPIC")
    if out is None or topic is None or not out.isdigit() or len(out) > _NUMBER_DIGITS_MAX:
        return None
    start_ms = floor_ms(min(head.store_timestamp_ms, now_ms))
    slot_ms = max(floor_ms(int(out)), start_ms - PRECISION_MS)
    magic = UnitMagic.DEFAULT
    left_ms = slot_ms - start_ms
    if left_ms >= ROLL_WINDOW_MS:
        magic |= UnitMagic.ROLL
        is_short = left_ms - ROLL_WINDOW_MS < ROLL_WINDOW_MS // 3  # give the last part of the way its time
        slot_ms = start_ms + (ROLL_WINDOW_MS // 2 if is_short else ROLL_WINDOW_MS)
    if recalls(text):
        magic |= UnitMagic.DELETE
    name = topic.decode("utf-8", "replace")
    put_ms = min(
        floor_ms(head.store_timestamp_ms), slot_ms + _DISTANCE_MAX_MS
    )  # in order, as the log's search wants it
    return TimerWait(put_ms, slot_ms, int(out), magic, name, java_string_hash(name))


def delivered_record(record: Buffer, *, rolls: bool, now_ms: int) -> PendingRecord | None:
    """Return a waiting record as it goes on: to its real queue or, where it rolls, into the timer topic once more.

    None: it names no queue. As Java writes it: the text keeps REAL_TOPIC and REAL_QID, and tells when it was put in and
    taken out.
    """
    head = decode_head(record)
    text = bytes(record[head.properties_start : head.properties_end])
    topic, queue_id = find_property(text, b"REAL_TOPIC"), find_property(text, b"REAL_QID")
    if topic is None or queue_id is None or not queue_id.isdigit():
        return None
    passed = {
        PROPERTY_TIMER_ENQUEUE_MS: str(floor_ms(head.store_timestamp_ms)),
        PROPERTY_TIMER_DEQUEUE_MS: str(now_ms),
    }
    if rolls or b"TIMER_ENQUEUE_MS\x01" in text:
        properties = decode_properties(text) | passed
        if rolls:
            before = properties.get(PROPERTY_TIMER_ROLL_TIMES, "0")
            properties[PROPERTY_TIMER_ROLL_TIMES] = str(int(before) + 1 if _COUNT.fullmatch(before) else 1)
        passed_text = encode_properties(properties).encode()
    else:
        passed_text = text + encode_properties(passed).encode()
    if len(passed_text) <= PROPERTIES_SIZE_MAX:
        text = passed_text
    return PendingRecord(
        topic=TIMER_TOPIC if rolls else topic.decode("utf-8", "replace"),
        queue_id=0 if rolls else int(queue_id),
        body=bytes(record[head.body_start : head.body_end]),
        properties=text,
        tags_code=tag_hash(text),
        flag=head.flag,
        sys_flag=head.sys_flag,
        born_timestamp_ms=head.born_timestamp_ms,
        born_host=head.born_host,
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
    )
