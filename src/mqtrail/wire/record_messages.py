"""Reads messages from records: one record, or the list in a pull, query or view reply, which may be damaged."""

import re
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from .compression import EXPANDED_SIZE_MAX, decompress
from .errors import CompressionError, RecordError
from .properties import decode_properties
from .record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    RECORD_START,
    Buffer,
    RecordHead,
    decode_head,
)
from .values import BODY_SIZE_MAX, Host, MessageExt

__all__ = [
    "cut_records",
    "decode_record",
    "decode_records",
    "open_record",
    "open_records",
    "read_records",
]

_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")  # V1, V2
RESYNCS_MAX: Final = 1_024  # places tried after damage in one reply: any bytes can look like records
_NO_HOST: Final = Host("0.0.0.0", 0)
_I32 = struct.Struct(">i")


def decode_record(buffer: Buffer, position: int = 0, broker_name: str = "") -> tuple[MessageExt, int]:
    """Return the message at position, its body decompressed, and where the next record begins.

    RecordError: no whole record. CompressionError: a whole one whose body cannot be decompressed (decode_head still
    reads it). The CRC is not compared, as in Java's clients.
    """
    head = decode_head(buffer, position)
    return message_of(head, buffer, broker_name), position + head.size


def message_of(
    head: RecordHead, buffer: Buffer, broker_name: str = "", body_size_max: int = BODY_SIZE_MAX
) -> MessageExt:
    """Return the message of a head and the buffer it was decoded from. CompressionError: as decode_record."""
    body = decompress(bytes(buffer[head.body_start : head.body_end]), head.sys_flag, body_size_max)
    return _message(head, buffer, broker_name, body)


def _message(
    head: RecordHead, buffer: Buffer, broker_name: str, body: bytes, undecodable: str | None = None
) -> MessageExt:
    return MessageExt(
        topic=head.topic,
        body=body,
        flag=head.flag,
        properties=decode_properties(buffer[head.properties_start : head.properties_end]),
        queue_id=head.queue_id,
        queue_offset=head.queue_offset,
        physical_offset=head.physical_offset,
        sys_flag=head.sys_flag,
        born_timestamp_ms=head.born_timestamp_ms,
        born_host=Host.unpack(head.born_host),
        store_timestamp_ms=head.store_timestamp_ms,
        store_host=Host.unpack(head.store_host),
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
        body_crc=head.body_crc,
        store_size=head.size,
        broker_name=broker_name,
        undecodable=undecodable,
    )


def open_record(record: Buffer, broker_name: str = "", body_size_max: int = BODY_SIZE_MAX) -> MessageExt:
    """Return the message of a record's bytes. This never fails: `undecodable` is the reason why it could not be read.

    The body of an undecodable message is as stored: compressed, if decompression fails or gives more than body_size_max
    bytes; the bytes of the whole record, if that is damaged. A damaged one has an empty topic, and its numbers are 0 or
    as found.
    """
    try:
        head = decode_head(record)
    except RecordError as error:
        return _damaged(bytes(record), broker_name, str(error))
    try:
        return message_of(head, record, broker_name, body_size_max)
    except CompressionError as error:
        return _message(head, record, broker_name, bytes(record[head.body_start : head.body_end]), str(error))


def _damaged(record: bytes, broker_name: str, reason: str) -> MessageExt:
    queue_id = queue_offset = physical_offset = 0
    if len(record) >= RECORD_START.size:
        _, magic, _, queue_id, _, queue_offset, physical_offset, *_ = RECORD_START.unpack_from(record)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            queue_id = queue_offset = physical_offset = 0
    return MessageExt(
        topic="",
        body=record,
        flag=0,
        properties={},
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=0,
        born_timestamp_ms=0,
        born_host=_NO_HOST,
        store_timestamp_ms=0,
        store_host=_NO_HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=len(record),
        broker_name=broker_name,
        undecodable=reason,
    )


def open_records(
    records: Iterable[Buffer],
    broker_name: str = "",
    *,
    body_size_max: int = BODY_SIZE_MAX,
    expanded_size_max: int = EXPANDED_SIZE_MAX,
) -> Iterator[MessageExt]:
    """Yield the messages of records, each as open_record gives it, and at least the first.

    It ends before the message whose body would raise the decompressed bodies above expanded_size_max bytes in all.
    """
    room = expanded_size_max
    first = True
    for record in records:
        size_max = body_size_max if first else min(body_size_max, room)
        message = open_record(record, broker_name, size_max)
        if size_max < body_size_max and message.undecodable is not None and message.topic:
            return  # damaged, or too large for the rest: only the full limit gives the right reason
        room -= message.expanded_size
        first = False
        yield message


def read_records(data: Buffer, broker_name: str = "", count_max: int = sys.maxsize) -> list[MessageExt]:
    """Return the first count_max messages of a reply's body, each as open_record gives it.

    Messages beyond EXPANDED_SIZE_MAX bytes of decompressed bodies are undecodable as well.
    """
    records = cut_records(data, count_max)
    messages = list(open_records(records, broker_name))
    reason = (
        f"found a reply of more than {EXPANDED_SIZE_MAX} bytes decompressed, expected less: pull this message alone"
    )
    for record in records[len(messages) :]:
        opened = open_record(record, broker_name, 0)
        messages.append(opened if opened.undecodable is None else replace(opened, undecodable=reason))
    return messages


def decode_records(data: Buffer, broker_name: str = "") -> list[MessageExt]:
    """Return the messages of consecutive records. RecordError, CompressionError: as decode_record, at the first bad
    one.

    Java keeps the records before a bad one and drops the rest silently; `read_records` does not.
    """
    messages = []
    position, end = 0, len(data)
    while position < end:
        message, position = decode_record(data, position, broker_name)
        messages.append(message)
    return messages


def split_records(data: Buffer) -> list[bytes]:
    """Return the bytes of each record, cut by their sizes without further checks. RecordError: an impossible size."""
    records = []
    position, end = 0, len(data)
    while position < end:
        size = _I32.unpack_from(data, position)[0] if end - position >= 4 else 0
        if not RECORD_SIZE_MIN <= size <= end - position:
            raise RecordError(
                f"found a record size of {size} bytes at {position}, expected {RECORD_SIZE_MIN} to {end - position}"
            )
        records.append(bytes(data[position : position + size]))
        position += size
    return records


def cut_records(data: Buffer, count_max: int = sys.maxsize) -> list[bytes]:
    """Return the bytes of the first count_max records. This never fails: bytes that are not a record are a separate
    piece.

    After a size that is impossible or damaged, it continues at the next whole record. After RESYNCS_MAX places that
    only looked like a record, the rest is one piece.
    """
    data = bytes(data)
    records: list[bytes] = []
    tries = RESYNCS_MAX
    position, end = 0, len(data)
    while position < end and len(records) < count_max:
        size = _I32.unpack_from(data, position)[0] if end - position >= 4 else 0
        if not RECORD_SIZE_MIN <= size <= end - position or not (
            _begins_or_ends(data, position + size) or _is_record(data, position)
        ):
            found, tries = _next_record(data, position + 1, tries)
            size = found - position
        records.append(data[position : position + size])
        position += size
    return records


def _begins_or_ends(data: bytes, position: int) -> bool:
    """Return whether the data ends there, or a record may begin: a damaged size names another place."""
    return position == len(data) or _MAGIC.match(data, position + 4) is not None


def _is_record(data: bytes, position: int) -> bool:
    try:
        decode_head(data, position)
    except RecordError:
        return False
    return True


def _next_record(data: bytes, position: int, tries: int) -> tuple[int, int]:
    """Return where the next whole record begins, at position or after it, and how many tries are left.

    If there is none, or no tries are left, return the end of data.
    """
    for match in _MAGIC.finditer(data, position + 4):
        if not tries:
            break
        if _is_record(data, match.start() - 4):
            return match.start() - 4, tries
        tries -= 1
    return len(data), tries
