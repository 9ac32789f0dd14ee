"""The body of SEND_BATCH_MESSAGE: consecutive items, each of which the broker stores as one record.

    TOTALSIZE i32 (with itself) ‖ MAGICCODE i32 = 0 ‖ BODYCRC i32 = 0 ‖ FLAG i32
    ‖ body size i32 ‖ body (never compressed) ‖ properties size i16 ‖ properties

All items go to one topic, with the same WAIT and without a delay. An item's UNIQ_KEY, KEYS and TAGS are in its
properties.

Source: MessageDecoder.encodeMessages and decodeMessages, MessageBatch, apache/rocketmq common/.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from .errors import BodyError, PropertiesError
from .properties import PROPERTIES_SIZE_MAX, encode_properties
from .values import Message

__all__ = [
    "BATCH_HEAD",
    "BATCH_ITEM_SIZE_MIN",
    "BatchItem",
    "batch_items",
    "decode_batch",
    "encode_batch",
]

BATCH_HEAD: Final = struct.Struct(
    ">i"  # total size of the item
    "i"  # magic, 0
    "i"  # body CRC, 0
    "i"  # flag
    "i"  # body size
)
assert BATCH_HEAD.size == 20
BATCH_ITEM_SIZE_MIN: Final = BATCH_HEAD.size + 2
_I16 = struct.Struct(">h")


class BatchItem(NamedTuple):
    """One message of a batch: its body and its properties' text, encoded."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(messages: Iterable[Message | BatchItem]) -> bytes:
    """Return the batch's body. PropertiesError: properties that cannot be written or are too long."""
    parts: list[bytes] = []
    for message in messages:
        if isinstance(message, BatchItem):
            body, properties, flag = message
        else:
            body, flag = message.body, message.flag
            properties = encode_properties(message.wire_properties()).encode()
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise PropertiesError(
                f"found properties of {len(properties)} bytes, expected at most {PROPERTIES_SIZE_MAX}"
            )
        size = BATCH_ITEM_SIZE_MIN + len(body) + len(properties)
        parts += (BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body, _I16.pack(len(properties)), properties)
    return b"".join(parts)


def decode_batch(data: bytes | bytearray | memoryview) -> list[BatchItem]:
    """Return the items. BodyError: the sizes do not add up; a batch is accepted whole or not at all."""
    return list(batch_items(data))


def batch_items(data: bytes | bytearray | memoryview) -> Iterator[BatchItem]:
    """Yield the items one by one. BodyError, possibly after some items: the sizes do not add up."""
    position, end = 0, len(data)
    while position < end:
        if end - position < BATCH_ITEM_SIZE_MIN:
            raise BodyError(f"found {end - position} bytes at {position}, expected a batch item of at least 22")
        size, _, _, flag, body_size = BATCH_HEAD.unpack_from(data, position)
        item_end = position + size
        body_start = position + BATCH_HEAD.size
        properties_start = body_start + body_size + 2
        if body_size < 0 or item_end > end or properties_start > item_end:
            raise BodyError(
                f"found a batch item of {size} bytes at {position} with a body of {body_size}, expected at most "
                f"{end - position} and a body that fits"
            )
        (properties_size,) = _I16.unpack_from(data, properties_start - 2)
        if properties_size < 0 or properties_start + properties_size != item_end:
            raise BodyError(
                f"found properties of {properties_size} bytes at {properties_start}, expected "
                f"{item_end - properties_start}"
            )
        yield BatchItem(bytes(data[body_start : properties_start - 2]), bytes(data[properties_start:item_end]), flag)
        position = item_end
