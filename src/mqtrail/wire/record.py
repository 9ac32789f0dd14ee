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

In a list, records follow each other without separators. MAGIC_BLANK marks the padding at a CommitLog file's end.

Source: MessageExtEncoder, CommitLog, MessageDecoder.decode, MessageVersion, apache/rocketmq store/ and common/.
"""

import struct
from typing import Final, NamedTuple, TypeAlias

from .codes import MessageSysFlag
from .errors import RecordError
from .properties import PROPERTIES_SIZE_MAX

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
    "decode_head",
    "encode_record",
    "properties_text",
    "record_end",
    "topic_length",
]

try:  # four times as fast, where there is a build of it
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

# Positions of fields that a store changes or reads without decoding the record, from the record's start.
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
_PHYSICAL_OFFSET: Final = struct.Struct(">q")
SYS_FLAG_AT: Final = 36

_V6_BITS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_MIDDLE: Final = struct.Struct(">iqi")  # reconsume times, prepared transaction offset, body size
_I64 = struct.Struct(">q")


class RecordHead(NamedTuple):
    """All fields of a record; its body and properties are ranges [start, end) in the same buffer."""

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
    """Return the BODYCRC of a body as stored: CRC-32 without its top bit; 0 for an empty body."""
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
    """Return the length field before a topic in a record: 1 byte (V1) to 127, 2 (V2) above.

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
    """Return the head of the record at position. RecordError: there is no whole record.

    Every length is checked against the record's size, and that against the buffer. The body's CRC is not checked.
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
    """Return the head of the record at position; check its body's CRC too. RecordError: damaged or not a record."""
    head = decode_head(buffer, position)
    if crc:
        found = body_crc(memoryview(buffer)[head.body_start : head.body_end])
        if found != head.body_crc:
            raise RecordError(
                f"found body CRC {found:08x} at {position}, expected {head.body_crc:08x}: the record is damaged"
            )
    return head


def properties_text(buffer: Buffer, start: int, end: int) -> bytes:
    """Return the properties text of the record at [start, end); the rest is not checked. RecordError: no record."""
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
