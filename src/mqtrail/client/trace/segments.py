"""Segments: contexts collected into trace messages, one business topic each, within a broker's limits.

Grouping follows AsyncTraceDispatcher of RocketMQ >= 5.3.1: one trace message holds contexts of one business topic, and
its KEYS are the set of their ids and key tokens. Unlike there, the limits are bytes, include the KEYS property, and are
checked before a message exceeds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core import TraceConfig

HEAD_SIZE = 1_024  # bytes left free in a body for its TraceBatch and TraceLoss records


def utf8_size(text: str) -> int:
    """Return the number of bytes of text in UTF-8 (a lone surrogate becomes one `?`)."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


@dataclass(slots=True)
class Segment:
    """Contexts of one trace message, of one business topic. Sizes are bytes."""

    topic: str = ""
    first_ms: int = 0
    texts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    tokens: dict[str, None] = field(default_factory=dict)  # further keys
    count: int = 0
    size: int = 0
    keys_size: int = 0

    @property
    def text(self) -> str:
        """The text of all its records."""
        return "".join(self.texts)

    def keys(self, size_max: int) -> str:
        """Return its keys without duplicates, joined by blanks; those beyond size_max bytes are dropped."""
        keys = " ".join([*filter(None, self.ids), *filter(None, self.tokens)])
        return keys if utf8_size(keys) <= size_max else _cut(keys, size_max)


class TraceSegments:
    """The open segment of each business topic. Sizes are bytes."""

    def __init__(self, config: TraceConfig) -> None:
        self._open: dict[str, Segment] = {}
        self._count_max = config.batch_count_max
        self._size_max = config.body_size_max - HEAD_SIZE
        self._keys_size_max = config.keys_size_max
        self.count = 0  # contexts in open segments
        self.size = 0  # their bytes, ids and keys included

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, topic: str, text: str, ids: str, keys: Sequence[str], count: int, now_ms: int) -> list[Segment]:
        """Add count contexts that must stay in one message; return the segments that this closed.

        text: their records. ids: keys that occur once in the message, joined by blanks. keys: further keys, duplicates
        allowed; each item may be several, joined by blanks. Contexts too large for a segment get a separate message.
        Keys beyond the limit are dropped, because a broker would refuse the message.
        """
        joined = " ".join(keys)
        size, keys_size = utf8_size(text), utf8_size(ids) + utf8_size(joined) + 2
        segment = self._open.get(topic)
        closed: list[Segment] = []
        if segment is not None and (
            segment.count + count > self._count_max
            or segment.size + size > self._size_max
            or segment.keys_size + keys_size > self._keys_size_max
        ):
            closed.append(self._close(segment))
            segment = None
        if segment is None:
            segment = self._open[topic] = Segment(topic, now_ms)
        segment.texts.append(text)
        segment.ids.append(ids)
        segment.tokens.update(dict.fromkeys(keys if joined.count(" ") < len(keys) else joined.split()))
        segment.count += count
        segment.size += size
        segment.keys_size += keys_size
        self.count += count
        self.size += size + keys_size
        if segment.count >= self._count_max or segment.size >= self._size_max:
            closed.append(self._close(segment))
        return closed

    def due(self, before_ms: int) -> list[Segment]:
        """Close and return the segments whose first context was added at or before before_ms."""
        return [self._close(segment) for segment in list(self._open.values()) if segment.first_ms <= before_ms]

    def close_all(self) -> list[Segment]:
        """Close and return every segment."""
        return [self._close(segment) for segment in list(self._open.values())]

    def _close(self, segment: Segment) -> Segment:
        del self._open[segment.topic]
        self.count -= segment.count
        self.size -= segment.size + segment.keys_size
        return segment


def _cut(keys: str, size_max: int) -> str:
    kept: list[str] = []
    room = size_max + 1
    for key in keys.split():
        room -= utf8_size(key) + 1
        if room < 0:
            break
        kept.append(key)
    return " ".join(kept)
