"""Message properties: a string map, written as one text.

    name ␁ value ␂ name ␁ value ␂ …        ␁ = U+0001, ␂ = U+0002

There is no escaping: a name contains neither separator, a value no ␂. Releases up to 4.9.0 and from 5.2.0 write the
last ␂, those in between do not; we write it and read both. Java's map has no order, so the order means nothing; a later
duplicate wins.

Source: MessageDecoder.messageProperties2String and string2messageProperties, MessageConst, apache/rocketmq common/.
"""

from collections.abc import Mapping
from typing import Final

from .errors import PropertiesError

__all__ = [
    "DELAY_PROPERTIES",
    "PROPERTIES_SIZE_MAX",
    "PROPERTY_ARRIVE_TIME",
    "PROPERTY_BORN_TIMESTAMP",
    "PROPERTY_CLUSTER",
    "PROPERTY_CONSUME_START_TIME",
    "PROPERTY_CORRELATION_ID",
    "PROPERTY_CRC32",
    "PROPERTY_DELAY",
    "PROPERTY_FIRST_POP_TIME",
    "PROPERTY_INNER_MULTI_DISPATCH",
    "PROPERTY_INSTANCE_ID",
    "PROPERTY_KEYS",
    "PROPERTY_MAX_OFFSET",
    "PROPERTY_MIN_OFFSET",
    "PROPERTY_MSG_REGION",
    "PROPERTY_MSG_TYPE",
    "PROPERTY_ORIGIN_MESSAGE_ID",
    "PROPERTY_PGROUP",
    "PROPERTY_POP_CK",
    "PROPERTY_PUSH_REPLY_TIME",
    "PROPERTY_REAL_QID",
    "PROPERTY_REAL_TOPIC",
    "PROPERTY_REPLY_TO_CLIENT",
    "PROPERTY_RETRY_TOPIC",
    "PROPERTY_SHARDING_KEY",
    "PROPERTY_START_DELIVER_TIME",
    "PROPERTY_TAGS",
    "PROPERTY_TIMER_DELAY_MS",
    "PROPERTY_TIMER_DELAY_SEC",
    "PROPERTY_TIMER_DELIVER_MS",
    "PROPERTY_TIMER_DEL_UNIQKEY",
    "PROPERTY_TIMER_DEQUEUE_MS",
    "PROPERTY_TIMER_ENQUEUE_MS",
    "PROPERTY_TIMER_OUT_MS",
    "PROPERTY_TIMER_ROLL_TIMES",
    "PROPERTY_TRACE_ON",
    "PROPERTY_TRANSACTION_CHECK_TIMES",
    "PROPERTY_TRANSACTION_ID",
    "PROPERTY_TRAN_MSG",
    "PROPERTY_TRAN_PREPARED_QUEUE_OFFSET",
    "PROPERTY_TTL",
    "PROPERTY_UNIQ_KEY",
    "PROPERTY_WAIT",
    "RAW_CHECK_IMMUNITY_TIME",
    "RAW_DELAY",
    "RAW_KEYS",
    "RAW_PGROUP",
    "RAW_POP_CK",
    "RAW_REAL_QID",
    "RAW_REAL_TOPIC",
    "RAW_TAGS",
    "RAW_TIMER_DELIVER_MS",
    "RAW_TIMER_DEL_UNIQKEY",
    "RAW_TIMER_OUT_MS",
    "RAW_TRAN_MSG",
    "RAW_UNIQ_KEY",
    "RAW_WAIT",
    "REGION_DEFAULT",
    "RESERVED_PROPERTIES",
    "TIMER_PROPERTIES",
    "decode_properties",
    "encode_properties",
    "find_property",
    "number_of",
]

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
PROPERTIES_SIZE_MAX: Final = 32767  # bytes; the length on the wire is a signed int16
NUMBER_DIGITS_MAX: Final = 18

PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QID: Final = "REAL_QID"
PROPERTY_TRAN_MSG: Final = "TRAN_MSG"
PROPERTY_PGROUP: Final = "PGROUP"
PROPERTY_MIN_OFFSET: Final = "MIN_OFFSET"
PROPERTY_MAX_OFFSET: Final = "MAX_OFFSET"
PROPERTY_BUYER_ID: Final = "BUYER_ID"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSFER_FLAG: Final = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG: Final = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG: Final = "MQ2_FLAG"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MSG_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_ON: Final = "TRACE_ON"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIME: Final = "CONSUME_START_TIME"
PROPERTY_TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_ID: Final = "__transactionId__"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_INSTANCE_ID: Final = "INSTANCE_ID"
PROPERTY_CORRELATION_ID: Final = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PROPERTY_TTL: Final = "TTL"
PROPERTY_ARRIVE_TIME: Final = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
PROPERTY_MSG_TYPE: Final = "MSG_TYPE"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_INNER_NUM: Final = "INNER_NUM"
PROPERTY_INNER_BASE: Final = "INNER_BASE"
PROPERTY_INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
PROPERTY_CRC32: Final = "__CRC32#"
PROPERTY_START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
PROPERTY_TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_OUT_MS: Final = "TIMER_OUT_MS"
PROPERTY_TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
PROPERTY_TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
PROPERTY_POP_CK: Final = "POP_CK"
PROPERTY_POP_CK_OFFSET: Final = "POP_CK_OFFSET"
PROPERTY_FIRST_POP_TIME: Final = "1ST_POP_TIME"
PROPERTY_BORN_HOST: Final = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_TRACE_CONTEXT: Final = "TRACE_CONTEXT"
PROPERTY_REDIRECT: Final = "REDIRECT"
PROPERTY_FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
PROPERTY_DUP_INFO: Final = "DUP_INFO"
PROPERTY_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
PROPERTY_TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."  # never stored

# The names as they are in an undecoded text, for `find_property`.
RAW_CHECK_IMMUNITY_TIME: Final = PROPERTY_CHECK_IMMUNITY_TIME.encode()
RAW_DELAY: Final = PROPERTY_DELAY.encode()
RAW_KEYS: Final = PROPERTY_KEYS.encode()
RAW_PGROUP: Final = PROPERTY_PGROUP.encode()
RAW_POP_CK: Final = PROPERTY_POP_CK.encode()
RAW_REAL_QID: Final = PROPERTY_REAL_QID.encode()
RAW_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
RAW_TAGS: Final = PROPERTY_TAGS.encode()
RAW_TIMER_DEL_UNIQKEY: Final = PROPERTY_TIMER_DEL_UNIQKEY.encode()
RAW_TIMER_DELIVER_MS: Final = PROPERTY_TIMER_DELIVER_MS.encode()
RAW_TIMER_OUT_MS: Final = PROPERTY_TIMER_OUT_MS.encode()
RAW_TRAN_MSG: Final = PROPERTY_TRAN_MSG.encode()
RAW_UNIQ_KEY: Final = PROPERTY_UNIQ_KEY.encode()
RAW_WAIT: Final = PROPERTY_WAIT.encode()

TIMER_PROPERTIES: Final = (PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS)
DELAY_PROPERTIES: Final = (PROPERTY_DELAY, *TIMER_PROPERTIES)  # each of them delays a message
REGION_DEFAULT: Final = "DefaultRegion"  # of brokers without the setting

# Names with a meaning in RocketMQ; an application that sets one by accident changes how its message is handled.
RESERVED_PROPERTIES: Final[frozenset[str]] = frozenset(
    value for name, value in list(globals().items()) if name.startswith("PROPERTY_") and name.isupper()
) - {PROPERTY_SEPARATOR, PROPERTY_TRANSIENT_PREFIX}


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the properties' text, in the map's order, each ended by ␂; "" for none.

    PropertiesError: a name is empty or holds a separator, or a value holds ␂ or is empty (Java's reader drops these).
    """
    parts = []
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name:
            raise PropertiesError(f"found property name {name!r}, expected at least one character, no \\x01, no \\x02")
        if not value or "\x02" in value:
            raise PropertiesError(
                f"found value {value!r} of property {name}, expected at least one character and no \\x02"
            )
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


def decode_properties(text: bytes | bytearray | memoryview | str) -> dict[str, str]:
    """Return the map of a properties text; never fails.

    As Java reads since 4.9.1: an entry without ␁, without a name or without a value is ignored, a second ␁ belongs to
    the value, a later duplicate wins, and bytes that are not UTF-8 become U+FFFD.
    """
    if not isinstance(text, str):
        text = str(text, "utf-8", "replace")
    properties = {}
    for entry in text.split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def number_of(text: str | bytes | None, digits_max: int = NUMBER_DIGITS_MAX) -> int | None:
    """Return the whole number in a text that a sender wrote; None: it is none, or longer than any time or offset.

    Senders write what they like: int() takes digits of other scripts, and fails at thousands of digits.
    """
    if text is None or len(text) > digits_max or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def find_property(data: bytes, name: bytes) -> bytes | None:
    """Return one property's value from the undecoded text, or None: as decode_properties, but faster.

    For the hot paths of store and broker, which need only UNIQ_KEY, KEYS or TAGS of a record.
    """
    mark = name + b"\x01"
    end = len(data)
    while (start := data.rfind(mark, 0, end)) >= 0:
        if start == 0 or data[start - 1] == 2:
            value_start = start + len(mark)
            value_end = data.find(b"\x02", value_start)
            value = data[value_start:] if value_end < 0 else data[value_start:value_end]
            if value:
                return value
        end = start + len(mark) - 1
    return None
