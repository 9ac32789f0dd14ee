"""Message records: one message as the CommitLog keeps it and as pull, query and view replies carry it.

    #   field                          bytes    at (IPv4 hosts)
    1   TOTALSIZE                      4        0      the whole record
    2   MAGICCODE                      4        4      V1: topic length in 1 byte; V2 (5.x, topics > 127 bytes): in 2
    3   BODYCRC                        4        8      CRC-32 of the body as stored, 31 bits; 0 for an empty body
    4   QUEUEID                        4        12
    5   FLAG                           4        16     the application's
    6   QUEUEOFFSET                    8        20
    7   PHYSICALOFFSET                 8        28     the record's place in the CommitLog
    8   SYSFLAG                        4        36     0x10, 0x20: born host, store host are IPv6
    9   BORNTIMESTAMP                  8        40     epoch ms
    10  BORNHOST                       8 or 20  48     ip, port i32
    11  STORETIMESTAMP                 8        56     epoch ms
    12  STOREHOST                      8 or 20  64
    13  RECONSUMETIMES                 4        72
    14  PREPAREDTRANSACTIONOFFSET      8        76     of the half message, for a committed one
    15  BODY                           4 + n    84
    16  TOPIC                          1 + n    …      V2: 2 + n
    17  PROPERTIES                     2 + n    …

A list of records is records back to back. MAGIC_BLANK marks the padding at a CommitLog file's end.

Source: MessageExtEncoder, CommitLog, MessageDecoder.decode, MessageVersion, apache/rocketmq store/ and common/.
"""

import re
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from .codes import MessageSysFlag
from .compression import BODY_SIZE_MAX, EXPANDED_SIZE_MAX, decompress
from .errors import CompressionError, RecordError
from .properties import PROPERTIES_SIZE_MAX, decode_properties
from .values import Host, MessageExt

__all__ = [
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "QUEUE_OFFSET_AT",
    "RECORD_SIZE_MIN",
    "RECORD_V4",
    "Buffer",
    "RecordHead",
    "body_crc",
    "check_record",
    "cut_records",
    "decode_head",
    "decode_record",
    "decode_records",
    "encode_record",
    "open_record",
    "open_records",
    "properties_text",
    "read_records",
    "record_end",
    "topic_length",
]

try:  # four times as fast, on the machines it is built for
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
TOPIC_SIZE_V1_MAX: Final = 127  # bytes

RECORD_V4: Final = struct.Struct(
    ">i"  # total size
    "I"  # magic
    "I"  # body CRC
    "i"  # queue id
    "i"  # flag
    "q"  # queue offset
    "q"  # physical offset
    "i"  # sysFlag
    "q"  # born timestamp, ms
    "8s"  # born host
    "q"  # store timestamp, ms
    "8s"  # store host
    "i"  # reconsume times
    "q"  # prepared transaction offset
    "i"  # body size
)
assert RECORD_V4.size == 88
RECORD_START: Final = struct.Struct(">iIIiiqqiq")  # the same up to the born host, whatever the hosts' size
assert RECORD_START.size == 48
RECORD_SIZE_MIN: Final = RECORD_V4.size + 1 + 2  # no body, topic or properties

# Places of what a store patches or peeks at, without decoding the rest. Offsets from the record's start.
QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
_PHYSICAL_OFFSET: Final = struct.Struct(">q")
SYS_FLAG_AT: Final = 36
STORE_TIMESTAMP_AT_V4: Final = 56  # 12 more where the born host is IPv6

_V6_BITS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")  # V1, V2
RESYNCS_MAX: Final = 1_024  # places of one reply that are tried behind damage: bytes can be made that look so all over
_NO_HOST: Final = Host("0.0.0.0", 0)
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_MIDDLE: Final = struct.Struct(">iqi")  # reconsume times, prepared transaction offset, body size
_I64 = struct.Struct(">q")


class RecordHead(NamedTuple):
    """All of a record but its body and properties, which are ranges [start, end) in the same buffer."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_start: int
    body_end: int
    topic: str
    properties_start: int
    properties_end: int


def body_crc(body: Buffer) -> int:
    """Return what BODYCRC holds for a body as stored: CRC-32 without its top bit; 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF


def encode_record(
    topic: str | bytes,
    body: Buffer,
    properties: Buffer = b"",
    *,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    sys_flag: int = 0,
    flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    crc: int | None = None,
) -> bytes:
    """Return the record's bytes. Hosts are packed (Host.packed); their size sets the sysFlag's IPv6 bits.

    body is as stored (compressed or not, as sys_flag says), properties the encoded text. crc: its BODYCRC where
    known. RecordError: a topic or properties too long, or a number out of its field's range.
    """
    if isinstance(topic, str):
        topic = topic.encode()
    magic, topic_size = MAGIC_V1, topic_length(topic)
    if len(topic_size) == 2:
        magic = MAGIC_V2
    properties_size = len(properties)
    if properties_size > PROPERTIES_SIZE_MAX:
        raise RecordError(f"found properties of {properties_size} bytes, expected at most {PROPERTIES_SIZE_MAX}")
    body_size = len(body)
    if crc is None:
        crc = body_crc(body)
    sys_flag &= ~_V6_BITS
    try:
        if len(born_host) == 8 and len(store_host) == 8:
            head = RECORD_V4.pack(
                RECORD_V4.size + body_size + len(topic_size) + len(topic) + 2 + properties_size,
                magic,
                crc,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp_ms,
                born_host,
                store_timestamp_ms,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_size,
            )
        else:
            sys_flag |= _host_bits(born_host, store_host)
            hosts_size = len(born_host) + len(store_host)
            size = RECORD_V4.size - 16 + hosts_size + body_size + len(topic_size) + len(topic) + 2 + properties_size
            head = b"".join(
                (
                    RECORD_START.pack(
                        size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp_ms
                    ),
                    born_host,
                    _I64.pack(store_timestamp_ms),
                    store_host,
                    _MIDDLE.pack(reconsume_times, prepared_transaction_offset, body_size),
                )
            )
    except struct.error as error:
        raise RecordError(f"found a number out of its field's range ({error}) in a record of {topic!r}") from error
    return b"".join((head, body, topic_size, topic, _I16.pack(properties_size), properties))


def topic_length(topic: bytes) -> bytes:
    """Return the length that stands before a topic in a record: 1 byte (V1) to 127, 2 (V2) above.

    RecordError: an empty topic, or one above 32767 bytes.
    """
    size = len(topic)
    if not 1 <= size <= 32767:
        raise RecordError(f"found a topic of {size} bytes, expected 1 to 32767")
    return bytes((size,)) if size <= TOPIC_SIZE_V1_MAX else _I16.pack(size)


def _host_bits(born_host: bytes, store_host: bytes) -> int:
    bits = 0
    for host, bit in ((born_host, MessageSysFlag.BORN_HOST_V6), (store_host, MessageSysFlag.STORE_HOST_V6)):
        if len(host) == 20:
            bits |= bit
        elif len(host) != 8:
            raise RecordError(f"found a host of {len(host)} bytes, expected 8 (IPv4) or 20 (IPv6)")
    return bits


def record_end(record: Buffer) -> int:
    """Return the physical offset behind a whole record, which a flush must reach to make it durable."""
    physical_offset: int = _PHYSICAL_OFFSET.unpack_from(record, PHYSICAL_OFFSET_AT)[0]
    return physical_offset + len(record)


def decode_head(buffer: Buffer, position: int = 0) -> RecordHead:
    """Return the head of the record at position. RecordError: no whole record stands there.

    Every length is checked against the record's size, and that against the buffer; the body's CRC is not looked at.
    """
    end = len(buffer)
    if end - position < RECORD_SIZE_MIN:
        raise RecordError(
            f"found {end - position} bytes at {position}, expected a record of at least {RECORD_SIZE_MIN}"
        )
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = RECORD_START.unpack_from(
        buffer, position
    )
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RecordError(f"found magic {magic:#010x} at {position}, expected {MAGIC_V1:#x} or {MAGIC_V2:#x}")
    if not RECORD_SIZE_MIN <= size <= end - position:
        raise RecordError(
            f"found a record size of {size} bytes at {position}, expected {RECORD_SIZE_MIN} to {end - position}"
        )
    end = position + size
    at = position + RECORD_START.size
    born_end = at + (20 if sys_flag & MessageSysFlag.BORN_HOST_V6 else 8)
    store_end = born_end + 8 + (20 if sys_flag & MessageSysFlag.STORE_HOST_V6 else 8)
    body_start = store_end + _MIDDLE.size
    if body_start > end:
        raise RecordError(f"found a record of {size} bytes at {position}, expected room for IPv6 hosts")
    (store_ms,) = _I64.unpack_from(buffer, born_end)
    reconsume_times, prepared_offset, body_size = _MIDDLE.unpack_from(buffer, store_end)
    body_end = body_start + body_size
    topic_start = body_end + (1 if magic == MAGIC_V1 else 2)
    if body_size < 0 or topic_start > end:
        raise RecordError(f"found a body of {body_size} bytes in a record of {size} at {position}")
    topic_size = buffer[body_end] if magic == MAGIC_V1 else _I16.unpack_from(buffer, body_end)[0]
    properties_start = topic_start + topic_size + 2
    if topic_size < 0 or (magic == MAGIC_V1 and topic_size > TOPIC_SIZE_V1_MAX) or properties_start > end:
        raise RecordError(f"found a topic of {topic_size} bytes in a record of {size} at {position}")
    (properties_size,) = _I16.unpack_from(buffer, properties_start - 2)
    if properties_size < 0 or properties_start + properties_size != end:
        raise RecordError(
            f"found properties of {properties_size} bytes at {properties_start}, expected {end - properties_start}"
        )
    return RecordHead(
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_ms,
        bytes(buffer[at:born_end]),
        store_ms,
        bytes(buffer[born_end + 8 : store_end]),
        reconsume_times,
        prepared_offset,
        body_start,
        body_end,
        str(buffer[topic_start : properties_start - 2], "utf-8", "replace"),
        properties_start,
        end,
    )


def check_record(buffer: Buffer, position: int = 0, *, crc: bool = True) -> RecordHead:
    """Return the head of the record at position, its body's CRC compared too. RecordError: damaged or not a record."""
    head = decode_head(buffer, position)
    if crc:
        found = body_crc(memoryview(buffer)[head.body_start : head.body_end])
        if found != head.body_crc:
            raise RecordError(
                f"found body CRC {found:08x} at {position}, expected {head.body_crc:08x}: the record is damaged"
            )
    return head


def properties_text(buffer: Buffer, start: int, end: int) -> bytes:
    """Return the properties text of the record at [start, end), nothing else of it looked at. RecordError: none."""
    try:
        flags = buffer[start + 39]
        at = start + 88 if not flags & _V6_BITS else start + 88 + 12 * ((flags >> 4 & 1) + (flags >> 5 & 1))
        at += _I32.unpack_from(buffer, at - 4)[0]
        at += 3 + buffer[at] if buffer[start + 7] == MAGIC_V1 & 0xFF else 4 + _I16.unpack_from(buffer, at)[0]
        if start < at <= end:
            return bytes(buffer[at:end])
    except (IndexError, struct.error):
        pass
    raise RecordError(f"found {end - start} bytes at {start} whose lengths do not fit, expected a record")


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
    """Return the message of a record's bytes. Never fails: `undecodable` says what of it could not be read.

    Its body is then as stored: compressed, where decompression fails or gives more than body_size_max bytes; the bytes
    of the whole record, where that is damaged. Of a damaged one the topic is empty, and numbers are 0 or as found.
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
    """Yield the messages of records, each as open_record gives it, the first in any case.

    It ends before a message with which the decompressed bodies would have more than expanded_size_max bytes together.
    """
    room = expanded_size_max
    first = True
    for record in records:
        size_max = body_size_max if first else min(body_size_max, room)
        message = open_record(record, broker_name, size_max)
        if size_max < body_size_max and message.undecodable is not None and message.topic:
            return  # a poor body, or one too large for what is left: with all the room its reason is the right one
        room -= message.expanded_size
        first = False
        yield message


def read_records(data: Buffer, broker_name: str = "", count_max: int = sys.maxsize) -> list[MessageExt]:
    """Return the first count_max messages of a reply's body, each as open_record gives it.

    Those beyond EXPANDED_SIZE_MAX bytes of decompressed bodies are undecodable too.
    """
    records = cut_records(data, count_max)
    messages = list(open_records(records, broker_name))
    reason = f"found a reply of more than {EXPANDED_SIZE_MAX} bytes decompressed, expected less: ask for this one alone"
    for record in records[len(messages) :]:
        opened = open_record(record, broker_name, 0)
        messages.append(opened if opened.undecodable is None else replace(opened, undecodable=reason))
    return messages


def decode_records(data: Buffer, broker_name: str = "") -> list[MessageExt]:
    """Return the messages of records back to back. RecordError, CompressionError: as decode_record, at the first bad.

    Java keeps what stands before a bad record and drops the rest without a word; whoever wants that walks by hand.
    """
    messages = []
    position, end = 0, len(data)
    while position < end:
        message, position = decode_record(data, position, broker_name)
        messages.append(message)
    return messages


def split_records(data: Buffer) -> list[bytes]:
    """Return the bytes of each record, cut by their sizes and not looked into. RecordError: a size that cannot be."""
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
    """Return the bytes of the first count_max records. Never fails: bytes that are no record are a separate piece.

    After an impossible size, it continues at the next bytes that are a whole record, unless RESYNCS_MAX places that
    looked like one were none: the rest is then one piece.
    """
    data = bytes(data)
    records: list[bytes] = []
    tries = RESYNCS_MAX
    position, end = 0, len(data)
    while position < end and len(records) < count_max:
        size = _I32.unpack_from(data, position)[0] if end - position >= 4 else 0
        if not RECORD_SIZE_MIN <= size <= end - position:
            found, tries = _next_record(data, position + 1, tries)
            size = found - position
        records.append(data[position : position + size])
        position += size
    return records


def _next_record(data: bytes, position: int, tries: int) -> tuple[int, int]:
    """Return where the next whole record begins, at position or behind it, and how many tries are left.

    That is the end of data without one, or after so many tries that failed.
    """
    for match in _MAGIC.finditer(data, position + 4):
        if not tries:
            break
        try:
            decode_head(data, match.start() - 4)
            return match.start() - 4, tries
        except RecordError:
            tries -= 1
    return len(data), tries
