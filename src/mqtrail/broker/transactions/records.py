"""Records of transactions: half messages, commits and op records.

A half message is an ordinary record of RMQ_SYS_TRANS_HALF_TOPIC, queue 0, without a transaction bit and with its target
queue in its properties. Its commit is another record in the target queue, with bit 8 and the offset of the half
message. An op record (RMQ_SYS_TRANS_OP_HALF_TOPIC, same queue id, tag "d") lists the queue offsets of finished half
messages: "4," or "4,7,5,". 4.9 writes one offset per record without a comma; both formats are read.

Source: TransactionalMessageBridge, TransactionalMessageServiceImpl, EndTransactionProcessor, apache/rocketmq broker/.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from mqtrail.store import PendingRecord
from mqtrail.wire import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    OP_TAG,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    RAW_TAGS,
    Buffer,
    MessageSysFlag,
    RecordHead,
    decode_properties,
    encode_properties,
    encode_record,
    ended_offset,
    ended_offsets,
    find_property,
    tags_code,
)

from ..copies import copy_of
from ..properties import check_size, real_queue, tag_hash

SECONDS_DIGITS_MAX: Final = 11  # of CHECK_IMMUNITY_TIME_IN_SECONDS

_OP_PROPERTIES: Final = encode_properties({PROPERTY_WAIT: "true", PROPERTY_TAGS: OP_TAG}).encode()
_OP_TAGS_CODE: Final = tags_code(OP_TAG)
_MASK: Final = MessageSysFlag.TRANSACTION_MASK


def half_record(record: PendingRecord) -> PendingRecord:
    """Return the half message of a sent message. MessageIllegal: its properties have no room for the additions."""
    properties = decode_properties(bytes(record.properties))
    unique_key = properties.get(PROPERTY_UNIQ_KEY)
    if unique_key is not None:
        properties[PROPERTY_TRANSACTION_ID] = unique_key
    properties |= {PROPERTY_REAL_TOPIC: record.topic, PROPERTY_REAL_QID: str(record.queue_id)}
    text = encode_properties(properties).encode()
    check_size(text)
    return record._replace(
        topic=HALF_TOPIC, queue_id=0, properties=text, tags_code=tag_hash(text), sys_flag=record.sys_flag & ~_MASK
    )


def committed_record(record: Buffer, head: RecordHead, topic: str, queue_id: int) -> PendingRecord:
    """Return the record of a commit: with the properties of the half message unchanged, as in Java."""
    text = bytes(record[head.properties_start : head.properties_end])
    return copy_of(record, head, topic, queue_id, text)._replace(
        sys_flag=head.sys_flag & ~_MASK | MessageSysFlag.TRANSACTION_COMMIT,
        prepared_transaction_offset=head.physical_offset,
    )


def copied_half(record: Buffer, head: RecordHead, changes: Mapping[str, str]) -> PendingRecord:
    """Return a copy of a half message for the half topic, with some properties set."""
    text = bytes(record[head.properties_start : head.properties_end])
    changed = encode_properties({**decode_properties(text), **changes}).encode()
    return copy_of(record, head, HALF_TOPIC, head.queue_id, changed)


def moved_record(record: Buffer, head: RecordHead, topic: str) -> PendingRecord:
    """Return an unchanged copy of a half message for queue 0 of another topic."""
    text = bytes(record[head.properties_start : head.properties_end])
    return copy_of(record, head, topic, 0, text)


def question_body(record: Buffer, head: RecordHead, pending: PendingRecord, physical_offset: int, offset: int) -> bytes:
    """Return the record in a check (39): the half message under its target topic and queue.

    pending, physical_offset, offset: its copy in the half topic, with physical offset and queue offset.
    """
    topic, queue_id = real_queue(bytes(pending.properties)) or (head.topic, head.queue_id)
    return encode_record(
        topic,
        bytes(pending.body),
        bytes(pending.properties),
        queue_id=queue_id,
        queue_offset=offset,
        physical_offset=physical_offset,
        flag=head.flag,
        sys_flag=head.sys_flag,
        born_timestamp_ms=head.born_timestamp_ms,
        born_host=head.born_host,
        store_timestamp_ms=head.store_timestamp_ms,
        store_host=head.store_host,
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
    )


def op_records(
    queue_id: int, half_offsets: Iterable[int], size_max: int, now_ms: int, born_host: bytes
) -> list[PendingRecord]:
    """Return op records of finished half messages, each of about size_max bytes at most."""
    records = []
    body = bytearray()
    for offset in half_offsets:
        if len(body) >= size_max:
            records.append(_op_record(queue_id, bytes(body), now_ms, born_host))
            body.clear()
        body += ended_offset(offset)
    if body:
        records.append(_op_record(queue_id, bytes(body), now_ms, born_host))
    return records


def _op_record(queue_id: int, body: bytes, now_ms: int, born_host: bytes) -> PendingRecord:
    return PendingRecord(OP_HALF_TOPIC, queue_id, body, _OP_PROPERTIES, _OP_TAGS_CODE, now_ms, born_host)


def half_offsets_of(body: bytes, text: bytes) -> list[int]:
    """Return the queue offsets in an op record; anything else is ignored, as in Java."""
    if find_property(text, RAW_TAGS) != OP_TAG.encode():
        return []
    return ended_offsets(body)
