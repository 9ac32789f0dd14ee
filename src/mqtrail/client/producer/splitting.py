"""Splitting many messages into batches that a broker accepts: one topic, one WAIT, no delay, a maximum size.

Source: MessageBatch.generateFromList, RocketMQ client; the item's layout in docs/design/frame.md.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mqtrail.wire import (
    BATCH_ITEM_SIZE_MIN,
    DELAY_PROPERTIES,
    PROPERTY_MSG_TYPE,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    RETRY_PREFIX,
    Message,
    MQError,
    SendStatus,
)

from ..core import InvalidMessage, SendResult

_ALONE = (*DELAY_PROPERTIES, PROPERTY_TRAN_MSG, PROPERTY_MSG_TYPE)
_ID_SIZE = 2 + len(PROPERTY_UNIQ_KEY) + 56  # the property of the id that is added, for an IPv6 host


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The outcome of one batch of send_all: its messages, and either the broker's answer or the error."""

    messages: tuple[Message, ...]
    result: SendResult | None
    error: MQError | None

    @property
    def stored(self) -> bool:
        """Whether the broker acknowledged it. False also if a local file keeps it (status DEGRADED)."""
        return self.result is not None and self.result.status is not SendStatus.DEGRADED


def split_batches(messages: Iterable[Message], size_max: int) -> Iterator[tuple[Message, ...]]:
    """Yield the messages in order, cut into pieces that can each be sent in one request.

    A piece of several messages is a batch of at most size_max bytes; a message that cannot be batched (delayed, to
    a retry topic) is a separate piece. Raises InvalidMessage for a single message larger than size_max.
    """
    piece: list[Message] = []
    piece_size = 0
    piece_kind: tuple[str, str] | None = None
    for message in messages:
        properties = message.wire_properties()
        size = _size(message, properties)
        if len(message.body) > size_max:
            raise InvalidMessage(f"a body of {len(message.body)} bytes: expected at most {size_max}")
        alone = message.topic.startswith(RETRY_PREFIX) or any(name in properties for name in _ALONE)
        kind = (message.topic, properties.get(PROPERTY_WAIT, "true"))
        if piece and (alone or kind != piece_kind or piece_size + size > size_max):
            yield tuple(piece)
            piece, piece_size = [], 0
        if alone:
            yield (message,)
            continue
        piece.append(message)
        piece_size += size
        piece_kind = kind
    if piece:
        yield tuple(piece)


def _size(message: Message, properties: dict[str, str]) -> int:
    """Upper bound of the bytes of a message in a batch."""
    text = sum(len(name.encode()) + len(str(value).encode()) + 2 for name, value in properties.items())
    return BATCH_ITEM_SIZE_MIN + len(message.body) + text + _ID_SIZE
