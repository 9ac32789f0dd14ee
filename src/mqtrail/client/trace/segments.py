"""Segments: contexts collected into trace messages, one business topic each, within a broker's limits.

Grouping follows AsyncTraceDispatcher of RocketMQ >= 5.3.1: one trace message holds contexts of one business topic;
KEYS is the set of their ids and key tokens. Unlike it, the bounds are kept in bytes and kept before a message grows
over them, the KEYS property included.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core import TraceConfig

HEAD_SIZE = 1_024  # bytes left free in a body for its TraceBatch and TraceLoss records


def utf8_size(text: str) -> int:
    """Return the bytes of text in UTF-8 (a lone surrogate becomes one `?`)."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


@dataclass(slots=True)
class Closed:
    """Contexts of one trace message. keys: blank-joined, each once."""

    topic: str
    text: str
    keys: str
    count: int


@dataclass(slots=True)
class _Open:
    topic: str
    first_ms: int
    texts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    count: int = 0
    size: int = 0
    keys_size: int = 0


class TraceSegments:
    """The open segment of each business topic. Sizes are bytes."""

    def __init__(self, config: TraceConfig) -> None:
        self._open: dict[str, _Open] = {}
        self._count_max = config.batch_count_max
        self._size_max = config.body_size_max - HEAD_SIZE
        self._keys_size_max = config.keys_size_max
        self.count = 0  # contexts in open segments
        self.size = 0  # their bytes, ids and keys included

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, topic: str, text: str, ids: str, keys: Sequence[str], count: int, now_ms: int) -> list[Closed]:
        """Add count contexts that must stay together; return the messages that this closed.

        text: their records. ids: keys that occur once in the message, blank-joined. keys: further ones, which may
        repeat; each may be several, blank-joined. Contexts too large for a segment get their own message; too many keys
        are cut off, because a broker would refuse the message.
        """
        joined = " ".join(keys)
        size, keys_size = utf8_size(text), utf8_size(ids) + utf8_size(joined) + 2
        segment = self._open.get(topic)
        closed: list[Closed] = []
        if segment is not None and (
            segment.count + count > self._count_max
            or segment.size + size > self._size_max
            or segment.keys_size + keys_size > self._keys_size_max
        ):
            closed.append(self._close(segment))
            segment = None
        if segment is None:
            segment = self._open[topic] = _Open(topic, now_ms)
        segment.texts.append(text)
        segment.ids.append(ids)
        segment.keys.update(dict.fromkeys(keys if joined.count(" ") < len(keys) else joined.split()))
        segment.count += count
        segment.size += size
        segment.keys_size += keys_size
        self.count += count
        self.size += size + keys_size
        if segment.count >= self._count_max or segment.size >= self._size_max:
            closed.append(self._close(segment))
        return closed

    def due(self, before_ms: int) -> list[Closed]:
        """Close and return the segments whose first context came at or before before_ms."""
        return [self._close(segment) for segment in list(self._open.values()) if segment.first_ms <= before_ms]

    def close_all(self) -> list[Closed]:
        """Close and return every segment."""
        return [self._close(segment) for segment in list(self._open.values())]

    def _close(self, segment: _Open) -> Closed:
        del self._open[segment.topic]
        self.count -= segment.count
        self.size -= segment.size + segment.keys_size
        segment.keys.pop("", None)
        keys = " ".join([*filter(None, segment.ids), *segment.keys])
        if utf8_size(keys) > self._keys_size_max:
            keys = self._cut(keys)
        return Closed(segment.topic, "".join(segment.texts), keys, segment.count)

    def _cut(self, keys: str) -> str:
        kept: list[str] = []
        room = self._keys_size_max + 1
        for key in keys.split():
            room -= utf8_size(key) + 1
            if room < 0:
                break
            kept.append(key)
        return " ".join(kept)
