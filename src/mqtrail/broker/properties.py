"""Reads and extends the properties text of a message, if possible without decoding all of it.

Like 5.3.3, the broker sets CLUSTER, MSG_REGION and TRACE_ON on every message, adds a missing UNIQ_KEY and removes
POP_CK. A text without these names is kept and extended; any other text is decoded and encoded again.

Source: SendMessageProcessor.sendMessage and preSend, apache/rocketmq broker/processor/.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqtrail.wire import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CLUSTER,
    PROPERTY_MSG_REGION,
    PROPERTY_POP_CK,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRACE_ON,
    RAW_DELAY,
    RAW_REAL_QID,
    RAW_REAL_TOPIC,
    RAW_TAGS,
    RAW_TIMER_OUT_MS,
    RAW_TRAN_MSG,
    RAW_UNIQ_KEY,
    RAW_WAIT,
    SCHEDULE_TOPIC,
    TIMER_PROPERTIES,
    TIMER_TOPIC,
    MessageIllegal,
    decode_properties,
    encode_properties,
    find_property,
    number_of,
    tags_code,
)

from .config import BrokerConfig

WAITING_TOPICS = frozenset({HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})  # records in them leave later
_QUEUE_DIGITS_MAX = 9
_OURS = tuple(
    f"{name}\x01".encode() for name in (PROPERTY_CLUSTER, PROPERTY_MSG_REGION, PROPERTY_TRACE_ON, PROPERTY_POP_CK)
)
_REAL_MARKS = (RAW_REAL_TOPIC + b"\x01", RAW_REAL_QID + b"\x01")
_TIMERS = tuple(name.encode() for name in TIMER_PROPERTIES)
_TIMER_MARK = b"TIMER_DEL"  # common prefix of their names


class StoredProperties(NamedTuple):
    """A properties text as stored, and the values that the broker reads from it."""

    text: bytes
    unique_id: str
    tags_code: int
    delay_level: int
    waits: bool
    """False: the sender does not want to wait for the flush (WAIT=false), and a crash does not lose the message."""
    timed: bool
    """The message has a timer property (TIMER_DELAY_SEC, …) and no delay level."""


class PropertyRules:
    """Turns sent properties into stored ones. unique_id: returns a new UNIQ_KEY."""

    def __init__(self, config: BrokerConfig, unique_id: Callable[[], str]) -> None:
        self.new_id = unique_id
        self._all_wait = config.loses_unflushed
        self._added = {
            PROPERTY_CLUSTER: config.cluster_name,
            PROPERTY_MSG_REGION: config.region_id,
            PROPERTY_TRACE_ON: "true" if config.trace_on else "false",
        }
        self._suffix = encode_properties(self._added).encode()

    def of_message(self, sent: bytes) -> StoredProperties:
        """Return the stored form of a message's properties text.

        MessageIllegal: too long, or DELAY is not a number.
        """
        check_size(sent)
        level = delay_level(sent)
        text = self._with_ours(sent, level)
        unique_id = find_property(text, RAW_UNIQ_KEY)
        if unique_id is None:
            unique_id = self.new_id().encode()
            text += RAW_UNIQ_KEY + b"\x01" + unique_id + b"\x02"
        check_size(text)
        timed = level <= 0 and is_timed(text)
        wait = self._all_wait or waits(text)
        return StoredProperties(text, unique_id.decode("utf-8", "replace"), tag_hash(text), level, wait, timed)

    def plain(self, sent: bytes) -> tuple[bytes, int, bool] | None:
        """Return suffix, tags code and wait of a text with UNIQ_KEY that `of_message` only extends, sooner than it.

        None: the text may have a name that the broker sets or acts on, or is long: ask `of_message`.
        """
        if RAW_DELAY in sent or _TIMER_MARK in sent or len(sent) + len(self._suffix) >= PROPERTIES_SIZE_MAX:
            return None
        for mark in _OURS:
            if mark in sent:
                return None
        suffix = self._suffix if sent.endswith(b"\x02") else b"\x02" + self._suffix
        return suffix, tag_hash(sent), self._all_wait or waits(sent)

    def of_batch_item(self, sent: bytes, batch_wait: bool) -> StoredProperties:
        """Return the same for a message of a batch. It keeps its own UNIQ_KEY, unlike in 5.3.3 (compatibility.md)."""
        stored = self.of_message(sent)
        if stored.delay_level > 0:
            raise MessageIllegal("found a delay level in a batch, expected none: send delayed messages one by one")
        if stored.timed:
            raise MessageIllegal("found a timer property in a batch, expected none: send timer messages one by one")
        return stored._replace(waits=batch_wait)

    def _with_ours(self, sent: bytes, level: int) -> bytes:
        untimed = level > 0 and _TIMER_MARK in sent
        if not untimed and not any(mark in sent for mark in _OURS):
            return (sent if not sent or sent.endswith(b"\x02") else sent + b"\x02") + self._suffix
        properties = decode_properties(sent)
        if untimed:
            for name in TIMER_PROPERTIES:
                properties.pop(name, None)
        properties.pop(PROPERTY_POP_CK, None)
        return encode_properties(properties | self._added).encode()


def check_size(text: bytes) -> None:
    """Raise MessageIllegal if a properties text does not fit into a record."""
    if len(text) > PROPERTIES_SIZE_MAX:
        raise MessageIllegal(
            f"the message is illegal: found properties of {len(text)} bytes, expected at most {PROPERTIES_SIZE_MAX}: "
            "shorten keys, tags or user properties"
        )


def delay_level(text: bytes) -> int:
    """Return DELAY, or 0 without one. MessageIllegal: it is not a number."""
    if RAW_DELAY not in text:
        return 0
    value = find_property(text, RAW_DELAY)
    if value is None:
        return 0
    try:
        return int(value)
    except ValueError:
        raise MessageIllegal(
            f"found DELAY={value[:20].decode('utf-8', 'replace')}, expected a level such as 3"
        ) from None


def is_timed(text: bytes) -> bool:
    """Return whether a properties text asks for a timer. TIMER_OUT_MS says that the timer has fired already."""
    return (
        _TIMER_MARK in text
        and find_property(text, RAW_TIMER_OUT_MS) is None
        and any(find_property(text, name) is not None for name in _TIMERS)
    )


def waits(text: bytes) -> bool:
    """Return whether the sender waits for the flush: true without WAIT."""
    if RAW_WAIT not in text:
        return True
    value = find_property(text, RAW_WAIT)
    return value is None or value.lower() == b"true"


def is_transactional(text: bytes) -> bool:
    """Return whether the text marks a half message (TRAN_MSG=true)."""
    return RAW_TRAN_MSG in text and (find_property(text, RAW_TRAN_MSG) or b"").lower() == b"true"


def tag_hash(text: bytes) -> int:
    """Return the hash of the message's tag for its ConsumeQueue entry; 0 without a tag."""
    if RAW_TAGS not in text:
        return 0
    value = find_property(text, RAW_TAGS)
    return 0 if value is None else tags_code(value.decode("utf-8", "replace"))


def real_properties(topic: str, queue_id: int) -> bytes:
    """Return the properties with the target of a message that waits in a system topic."""
    return f"{PROPERTY_REAL_TOPIC}\x01{topic}\x02{PROPERTY_REAL_QID}\x01{queue_id}\x02".encode()


def with_real_queue(text: bytes, topic: str, queue_id: int) -> bytes:
    """Return the text of a message that waits in a system topic, with its target queue. MessageIllegal: too long."""
    if any(mark in text for mark in _REAL_MARKS):
        properties = decode_properties(text)
        properties |= {PROPERTY_REAL_TOPIC: topic, PROPERTY_REAL_QID: str(queue_id)}
        text = encode_properties(properties).encode()
    else:
        text += real_properties(topic, queue_id)
    check_size(text)
    return text


def real_queue(text: bytes) -> tuple[str, int] | None:
    """Return the target topic and queue of a record that waits in a system topic; None: it names none, or such a topic.

    Any client can send a record with these properties to the timer topic: one that names the timer topic itself would
    be delivered for ever.
    """
    topic, queue_id = (
        find_property(text, RAW_REAL_TOPIC),
        number_of(find_property(text, RAW_REAL_QID), _QUEUE_DIGITS_MAX),
    )
    if topic is None or queue_id is None:
        return None
    name = topic.decode("utf-8", "replace")
    return None if name in WAITING_TOPICS else (name, queue_id)


def with_properties(text: bytes, changes: Mapping[str, str]) -> bytes:
    """Return the text with some properties set. MessageIllegal: too long."""
    changed = encode_properties({**decode_properties(text), **changes}).encode()
    check_size(changed)
    return changed
