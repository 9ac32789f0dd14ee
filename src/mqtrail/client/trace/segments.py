"""Segments: contexts gathered into trace messages, one business topic each, within the bounds a broker takes.

Grouping follows AsyncTraceDispatcher of RocketMQ >= 5.3.1: one trace message holds contexts of one business topic;
KEYS is the set of their ids and key tokens. Unlike it, the size is counted in bytes before a context is added, so that
no message grows over the bound and is refused, and so is the KEYS property.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mqtrail.client.config import TraceConfig

HEAD_SIZE = 1_024  # bytes left free in a body for its TraceBatch and TraceLoss records


def utf8_size(text: str) -> int:
    """Return the bytes of text in UTF-8 (a lone surrogate becomes one `?`)."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


@dataclass(slots=True)
class Segment:
    """Contexts that will travel together. sizes are bytes; keys keep their order and stand once."""

    topic: str
    first_ms: int
    texts: list[str] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    size: int = 0
    keys_size: int = 0

    @property
    def count(self) -> int:
        """How many contexts are in it."""
        return len(self.texts)


class Segments:
    """The open segment of each business topic. `add` and `due` return segments that are closed: send them."""

    def __init__(self, config: TraceConfig) -> None:
        self._open: dict[str, Segment] = {}
        self._count_max = config.batch_count_max
        self._size_max = config.body_size_max - HEAD_SIZE
        self._keys_size_max = config.keys_size_max
        self.count = 0  # contexts in open segments
        self.size = 0  # their bytes

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, topic: str, text: str, size: int, keys: Sequence[str], now_ms: int) -> Segment | None:
        """Take one context; return the segment that this closed, if any.

        A context is never split. One that is alone too large travels alone; one with too many keys goes without the
        rest of them, for a broker would refuse the message and lose it all.
        """
        closed: Segment | None = None
        segment = self._open.get(topic)
        if segment is not None and not self._fits(segment, size, keys):
            closed = self._close(segment)
            segment = None
        if segment is None:
            segment = self._open[topic] = Segment(topic, now_ms)
        known = segment.keys
        for key in keys:
            if key not in known:
                key_size = utf8_size(key) + 1
                if segment.keys_size + key_size <= self._keys_size_max:
                    known[key] = None
                    segment.keys_size += key_size
        segment.texts.append(text)
        segment.size += size
        self.count += 1
        self.size += size
        if closed is None and (len(segment.texts) >= self._count_max or segment.size >= self._size_max):
            closed = self._close(segment)
        return closed

    def due(self, before_ms: int) -> list[Segment]:
        """Close and return the segments whose first context came at or before before_ms."""
        return [self._close(segment) for segment in list(self._open.values()) if segment.first_ms <= before_ms]

    def close_all(self) -> list[Segment]:
        """Close and return every segment."""
        return [self._close(segment) for segment in list(self._open.values())]

    def _fits(self, segment: Segment, size: int, keys: Sequence[str]) -> bool:
        if segment.size + size > self._size_max:
            return False
        room = self._keys_size_max - segment.keys_size
        if room > 2_048 and len(keys) <= 4:
            room -= sum(map(len, keys)) * 4 + len(keys)  # no UTF-8 text is longer: spares the exact count
            if room >= 0:
                return True
            room = self._keys_size_max - segment.keys_size
        return sum(utf8_size(key) + 1 for key in keys if key not in segment.keys) <= room

    def _close(self, segment: Segment) -> Segment:
        del self._open[segment.topic]
        self.count -= len(segment.texts)
        self.size -= segment.size
        return segment
