"""Kafka records as messages, and back (docs/how-to/migrate-from-kafka.md has the table).

| Kafka | message |
|---|---|
| value | body; null and empty values, which no message can have: the body NO_VALUE and KAFKA_VALUE=null or empty |
| key | KAFKA_KEY, percent-encoded; the same is the first of the message's keys if it is short, else its hash |
| empty key, unlike none | KAFKA_KEY_EMPTY=true |
| header | the property of that name, if it fits; if one does not, KAFKA_HEADERS has all of them, in order, exactly |
| topic, partition, offset, timestamp | KAFKA_TOPIC, KAFKA_PARTITION, KAFKA_OFFSET, KAFKA_TIMESTAMP (epoch ms) |

topic:partition:offset is the last of the keys: a record that is sent twice has the same. A record that Kafka does not
have yet (offset -1, of a tee with RocketMQ deciding) has neither this key nor partition, offset and timestamp.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from mqtrail.feed import KEY_LENGTH_MAX, SAFE, short_word
from mqtrail.wire import (
    PROPERTIES_SIZE_MAX,
    RESERVED_PROPERTIES,
    BatchItem,
    Message,
    MessageQueue,
    encode_properties,
    java_string_hash,
)

from .model import KafkaRecord, MigrateError

NO_VALUE: Final = b"\0"  # the body of a record without a value: brokers refuse empty bodies
TOPIC, PARTITION, OFFSET, TIMESTAMP = "KAFKA_TOPIC", "KAFKA_PARTITION", "KAFKA_OFFSET", "KAFKA_TIMESTAMP"
KEY, KEY_EMPTY, VALUE, HEADERS = "KAFKA_KEY", "KAFKA_KEY_EMPTY", "KAFKA_VALUE", "KAFKA_HEADERS"
OWN_PREFIX: Final = "KAFKA_"
_STAYS: Final = re.compile(rb"[A-Za-z0-9_.~%s-]*" % re.escape(SAFE.encode()))  # what quote() leaves, and SAFE
NULL, EMPTY = "null", "empty"
USUAL_SIZE_MAX: Final = PROPERTIES_SIZE_MAX // 2  # bytes of properties; with more, their size is checked exactly
NAMES_MAX: Final = 4_096  # names of headers that are remembered


class HeaderRule(StrEnum):
    """What becomes of a record with a header that does not fit a property."""

    ENCODE = "encode"
    REFUSE = "refuse"


class OrderBy(StrEnum):
    """What decides a record's queue."""

    PARTITION = "partition"
    KEY = "key"


class Bridged(NamedTuple):
    """A message on its way. size: bytes of its body and properties, about."""

    message: Message
    record: KafkaRecord
    size: int

    @property
    def place(self) -> str:
        """topic:partition:offset."""
        return record_id(self.record.topic, self.record.partition, self.record.offset)


def record_id(topic: str, partition: int, offset: int) -> str:
    """Return what identifies a record of a cluster."""
    return f"{topic}:{partition}:{offset}"


def key_word(key: bytes) -> str:
    """Return a record's key as one word: percent-encoded, or its hash if that is long."""
    return short_word(_encoded(key), key)


def _encoded(key: bytes) -> str:
    """Return a key percent-encoded. Most keys have no character that changes."""
    return key.decode("ascii") if _STAYS.fullmatch(key) is not None else quote(key, safe=SAFE)


def misfit(name: str, value: bytes | None) -> str | None:
    """Return why a header cannot be a property; None: it can."""
    if name in RESERVED_PROPERTIES or name.startswith(OWN_PREFIX):
        return "a reserved name"
    if not name or "\x01" in name or "\x02" in name:
        return "an empty name, or one with \\x01 or \\x02"
    if not value:
        return "no value" if value is None else "an empty value"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "a value that is not UTF-8"
    return "a value with \\x01 or \\x02" if "\x01" in text or "\x02" in text else None


def outbound_of(record: KafkaRecord, topic: str, rule: HeaderRule = HeaderRule.ENCODE) -> Bridged:
    """Return the message of a record for a topic. MigrateError: it cannot be one."""
    properties, keys = {TOPIC: record.topic}, list[str]()
    place = record_id(record.topic, record.partition, record.offset)
    if record.offset >= 0:
        properties |= {
            PARTITION: str(record.partition),
            OFFSET: str(record.offset),
            TIMESTAMP: str(record.timestamp_ms),
        }
        keys.append(place)
    if record.key:
        properties[KEY] = _encoded(record.key)
        keys.insert(0, short_word(properties[KEY], record.key))
    elif record.key is not None:
        properties[KEY_EMPTY] = "true"
    if record.headers:
        properties |= _header_properties(record, place, rule)
    body = record.value or NO_VALUE
    if not record.value:
        properties[VALUE] = NULL if record.value is None else EMPTY
    values = "".join(properties.values())
    size = len(values) if values.isascii() else len(values.encode())
    size += len("".join(properties)) + 2 * len(properties)
    if size > PROPERTIES_SIZE_MAX:
        raise MigrateError(
            f"found {size} bytes of key and headers as properties in the record {place}, expected at most "
            f"{PROPERTIES_SIZE_MAX}, all that a message may have: move data from headers to the value in the Kafka "
            "producer, or leave the record out (--skip-record); then start it again: it continues there"
        )
    return Bridged(Message(topic, body, keys=keys, properties=properties), record, len(body) + size)


class RecordEncoder:
    """Encodes the messages of records for one topic, as `outbound_of` and `encode_properties` do; most at once."""

    def __init__(self, topic: str, rule: HeaderRule) -> None:
        self._topic = topic
        self._rule = rule
        self._fits: dict[str, bool] = {}  # by name of a header: whether it is one that a property can have

    def encode(self, record: KafkaRecord) -> BatchItem:
        """Return body and properties, which have no UNIQ_KEY. MigrateError: the record cannot be a message."""
        return self._usual(record) or self._any(record)

    def _any(self, record: KafkaRecord) -> BatchItem:
        message = outbound_of(record, self._topic, self._rule).message
        return BatchItem(message.body, encode_properties(message.wire_properties()).encode())

    def _usual(self, record: KafkaRecord) -> BatchItem | None:
        """Return what `_any` does for a record with a value, a plain key or none, and headers that fit; None: other."""
        topic, partition, offset, timestamp_ms, key, value, headers = record
        if not value or offset < 0:
            return None
        keys, tail = f"{topic}:{partition}:{offset}", ""
        if key is not None:
            if not 0 < len(key) <= KEY_LENGTH_MAX or _STAYS.fullmatch(key) is None:
                return None
            text = key.decode()
            keys, tail = f"{text} {keys}", f"{KEY}\x01{text}\x02"
        if headers:
            try:
                for name, data in headers:
                    if not data or not self._is_fit(name):
                        return None
                    tail += f"{name}\x01{data.decode()}\x02"
            except UnicodeDecodeError:
                return None
            count = len(headers) + (key is not None)
            if tail.count("\x01") != count or tail.count("\x02") != count:
                return None  # a value has one
            if len(headers) > 1 and len({name for name, _ in headers}) < len(headers):
                return None
        properties = (
            f"WAIT\x01true\x02KEYS\x01{keys}\x02KAFKA_TOPIC\x01{topic}\x02KAFKA_PARTITION\x01{partition}\x02"
            f"KAFKA_OFFSET\x01{offset}\x02KAFKA_TIMESTAMP\x01{timestamp_ms}\x02{tail}"
        ).encode()
        return BatchItem(value, properties) if len(properties) < USUAL_SIZE_MAX else None

    def _is_fit(self, name: str) -> bool:
        found = self._fits.get(name)
        if found is None:
            if len(self._fits) >= NAMES_MAX:
                self._fits.clear()
            found = self._fits[name] = misfit(name, b"-") is None
        return found


def _header_properties(record: KafkaRecord, place: str, rule: HeaderRule) -> dict[str, str]:
    found: dict[str, str] = {}
    does_fit = True
    names = [name for name, _ in record.headers]
    repeated = {name for name, count in Counter(names).items() if count > 1} if len(set(names)) < len(names) else ()
    for name, value in record.headers:
        reason = "several values" if name in repeated else misfit(name, value)
        if reason is None:
            assert value is not None, "it fits"
            found[name] = value.decode()
            continue
        does_fit = False
        if rule is HeaderRule.REFUSE:
            raise MigrateError(
                f"found the header {name!r} with {reason} in the record {place}, expected one that fits a property: "
                "pass --headers encode, which keeps all headers of such a record in the property KAFKA_HEADERS; it "
                "continues there"
            )
    if not does_fit:
        pairs = [(name, None if value is None else base64.b64encode(value).decode()) for name, value in record.headers]
        found[HEADERS] = json.dumps(pairs, separators=(",", ":"))
    return found


def value_of(body: bytes, properties: Mapping[str, str]) -> bytes | None:
    """Return the value of the record that became a message."""
    kind = properties.get(VALUE)
    return body if kind is None else None if kind == NULL else b""


def key_of(properties: Mapping[str, str]) -> bytes | None:
    """Return the key of the record that became a message; None: it had none."""
    text = properties.get(KEY)
    if text is None:
        return b"" if KEY_EMPTY in properties else None
    return unquote_to_bytes(text)


def queue_for(record: KafkaRecord, queues: list[MessageQueue], order: OrderBy) -> MessageQueue:
    """Return the queue of a record: by its partition, or by its key as `by_hash(key)` of the clients chooses."""
    if order is OrderBy.KEY and record.key:
        try:
            text = record.key.decode()
        except UnicodeDecodeError:
            text = quote(record.key, safe=SAFE)
        return queues[abs(java_string_hash(text)) % len(queues)]
    return queues[record.partition % len(queues)]
