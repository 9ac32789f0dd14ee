"""Records and rows: what a message table has of a record, and the same record from it again, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row

from mqtrail.wire import (
    QUEUE_OFFSET_AT,
    RAW_KEYS,
    RAW_TAGS,
    RAW_UNIQ_KEY,
    decode_head,
    encode_record,
    find_property,
    index_key_hash,
)

from ..base import QueueState
from ..commitlog.indexer import keys_of
from .queues import WaitingRecord


def queue_offset_of(record: bytes) -> int:
    """Return the queue offset in a record."""
    return int.from_bytes(record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big")


def row_of(written: WaitingRecord) -> dict[str, Any]:
    """Return the row of a message table for a record."""
    record = written.record
    head = decode_head(record)
    properties = record[head.properties_start : head.properties_end]
    return {
        "id": head.queue_offset,
        "physical_offset": head.physical_offset,
        "size": head.size,
        "store_ms": head.store_timestamp_ms,
        "born_ms": head.born_timestamp_ms,
        "tags_code": written.tags_code,
        "flag": head.flag,
        "sys_flag": head.sys_flag,
        "reconsume_times": head.reconsume_times,
        "prepared_offset": head.prepared_transaction_offset,
        "born_host": head.born_host,
        "store_host": head.store_host,
        "msg_id": _text(properties, RAW_UNIQ_KEY),
        "tag": _text(properties, RAW_TAGS),
        "msg_keys": _text(properties, RAW_KEYS),
        "properties": properties,
        "body": record[head.body_start : head.body_end],
    }


def _text(properties: bytes, name: bytes) -> str | None:
    """Return a property for people to read. A zero byte, which no text column of PostgreSQL has, is left out."""
    value = find_property(properties, name)
    return None if value is None else value.decode("utf-8", "replace").replace("\0", "")


def record_of(queue: QueueState, row: Row[Any]) -> bytes:
    """Return the record of a row, as it was appended."""
    return encode_record(
        queue.topic,
        row.body,
        row.properties,
        queue_id=queue.queue_id,
        queue_offset=row.id,
        physical_offset=row.physical_offset,
        flag=row.flag,
        sys_flag=row.sys_flag,
        born_timestamp_ms=row.born_ms,
        born_host=row.born_host,
        store_timestamp_ms=row.store_ms,
        store_host=row.store_host,
        reconsume_times=row.reconsume_times,
        prepared_transaction_offset=row.prepared_offset,
    )


def key_hashes(topic: str, properties: bytes) -> Iterator[int]:
    """Yield the hashes under which a record is found, each once."""
    yield from {index_key_hash(topic, key.decode("utf-8", "replace")) for key in keys_of(properties)}
