"""Texts that accompany popped messages: handles, and lists of offsets.

    handle (extraInfo, POP_CK)   "41 1700000000123 60000 3 0 broker-a 2 45"
                                 ckOffset popTime invisibleTime reviveQid marker brokerName queueId [queueOffset]
    startOffsetInfo              "0 2 41;1 0 7"              marker queueId startOffset
    msgOffsetInfo                "0 2 41,42,45;1 0 7"        marker queueId offset,offset,…
    orderCountInfo               "0 qo2%41 1;0 2 0"          marker queueId count, marker qo<queueId>%<offset> count

The marker says which of a group's topics a queue belongs to: the topic itself, or the retry topic of messages that
were popped and not acknowledged. A retry topic's name has two forms.

Source: ExtraInfoUtil, KeyBuilder, apache/rocketmq 5.3.3 remoting/ and common/.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Self

from .errors import HeaderError
from .topics import RETRY_PREFIX

__all__ = [
    "ORDERLY_REVIVE_QUEUE",
    "PopHandle",
    "decode_message_offsets",
    "decode_order_counts",
    "decode_start_offsets",
    "encode_message_offsets",
    "encode_order_counts",
    "encode_start_offsets",
    "marker_of",
    "pop_retry_topic",
    "pop_topic_of",
    "topic_of_marker",
]

NORMAL_MARKER: Final = "0"
RETRY_MARKER_V1: Final = "1"
RETRY_MARKER_V2: Final = "2"
ORDERLY_REVIVE_QUEUE: Final = 999  # in place of a revive queue in the handle of a message popped in order
_OFFSET_KEY: Final = "qo"

QueueName = tuple[str, int]  # marker, queue id


class PopHandle(NamedTuple):
    """A client returns it with a popped message. Times are ms; revive_queue_id: the queue of its check point.

    start_offset: the queue offset that its check point begins at. queue_offset: the message's, if given.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    marker: str
    broker_name: str
    queue_id: int
    queue_offset: int | None = None

    @property
    def is_orderly(self) -> bool:
        return self.revive_queue_id == ORDERLY_REVIVE_QUEUE

    def encode(self) -> str:
        """Return the text. A broker name with a blank reads as two fields, as in Java."""
        return " ".join(map(str, self if self.queue_offset is not None else self[:-1]))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the handle of a text. HeaderError: too few fields, or a field is not a number."""
        fields = text.split(" ")
        if len(fields) < 7:
            raise HeaderError(f"found the handle {text[:80]!r} with {len(fields)} fields, expected 7 or 8 (extraInfo)")
        numbers = [_number(text, fields[place]) for place in (0, 1, 2, 3, 6)]
        queue_offset = _number(text, fields[7]) if len(fields) > 7 else None
        return cls(numbers[0], numbers[1], numbers[2], numbers[3], fields[4], fields[5], numbers[4], queue_offset)


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Return the topic of the group's messages of topic that were popped and not acknowledged in time."""
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def is_pop_retry_v2(topic: str) -> bool:
    """Tell whether a topic is a retry topic with the second form of name (no other name contains a "+")."""
    return topic.startswith(RETRY_PREFIX) and "+" in topic


def pop_topic_of(topic: str, group: str) -> str:
    """Return the topic whose messages a pop retry topic of the group holds; any other topic as it is."""
    if not topic.startswith(RETRY_PREFIX):
        return topic
    return topic[len(RETRY_PREFIX) + len(group) + 1 :]


def marker_of(topic: str) -> str:
    """Return the marker of a topic."""
    if is_pop_retry_v2(topic):
        return RETRY_MARKER_V2
    return RETRY_MARKER_V1 if topic.startswith(RETRY_PREFIX) else NORMAL_MARKER


def topic_of_marker(marker: str, topic: str, group: str) -> str:
    """Return the topic of a marker. HeaderError: it is not a marker."""
    if marker == NORMAL_MARKER:
        return topic
    if marker not in (RETRY_MARKER_V1, RETRY_MARKER_V2):
        raise HeaderError(f"found the marker {marker[:20]!r} of {topic}, expected 0 (the topic), 1 or 2 (its retries)")
    return pop_retry_topic(topic, group, v2=marker == RETRY_MARKER_V2)


def encode_start_offsets(starts: Iterable[tuple[str, int, int]]) -> str:
    """Return the text of (marker, queue id, start offset) items."""
    return ";".join(f"{marker} {queue_id} {queue_offset}" for marker, queue_id, queue_offset in starts)


def decode_start_offsets(text: str) -> dict[QueueName, int]:
    """Return the start offset of each queue; "" has no queues. HeaderError: it is not such a text, or names a queue
    twice."""
    return {(marker, _number(text, name)): _number(text, value) for (marker, name), value in _items(text).items()}


def encode_message_offsets(queues: Iterable[tuple[str, int, Sequence[int]]]) -> str:
    """Return the text of (marker, queue id, offsets of its messages) items."""
    return ";".join(f"{marker} {queue_id} {','.join(map(str, offsets))}" for marker, queue_id, offsets in queues)


def decode_message_offsets(text: str) -> dict[QueueName, list[int]]:
    """Return the offsets of each queue's messages; "" has no queues. HeaderError as decode_start_offsets."""
    return {
        (marker, _number(text, name)): [_number(text, offset) for offset in value.split(",")]
        for (marker, name), value in _items(text).items()
    }


class OrderCounts(NamedTuple):
    """How often messages were popped in order before: the minimum of a queue, and that of single messages."""

    queues: Mapping[QueueName, int]
    messages: Mapping[tuple[str, int, int], int]
    """(marker, queue id, queue offset) -> times; only where it is more than 0."""


def encode_order_counts(marker: str, queue_id: int, messages: Mapping[int, int], least: int) -> str:
    """Return one queue's part of an orderCountInfo: queue offset -> times, and the least over all its messages."""
    parts = [f"{marker} {_OFFSET_KEY}{queue_id}%{offset} {count}" for offset, count in messages.items()]
    return ";".join([*parts, f"{marker} {queue_id} {least}"])


def decode_order_counts(text: str) -> OrderCounts:
    """Return the counts of an orderCountInfo. HeaderError as decode_start_offsets."""
    counts = OrderCounts({}, {})
    queues: dict[QueueName, int] = {}
    messages: dict[tuple[str, int, int], int] = {}
    for (marker, name), value in _items(text).items():
        if name.startswith(_OFFSET_KEY):
            queue, _, offset = name.removeprefix(_OFFSET_KEY).partition("%")
            messages[marker, _number(text, queue), _number(text, offset)] = _number(text, value)
        else:
            queues[marker, _number(text, name)] = _number(text, value)
    return counts._replace(queues=queues, messages=messages)


def _items(text: str) -> dict[tuple[str, str], str]:
    items: dict[tuple[str, str], str] = {}
    for item in text.split(";") if text else ():
        fields = item.split(" ")
        if len(fields) != 3:
            raise HeaderError(f"found {item[:80]!r} with {len(fields)} fields, expected 3: marker, queue, value")
        if (fields[0], fields[1]) in items:
            raise HeaderError(f"found the queue {fields[0]} {fields[1][:20]} twice in {text[:80]!r}")
        items[fields[0], fields[1]] = fields[2]
    return items


def _number(text: str, field: str) -> int:
    try:
        return int(field)
    except ValueError:
        raise HeaderError(f"found {field[:20]!r} in {text[:80]!r}, expected a number") from None
