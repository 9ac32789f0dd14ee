"""Counts of transactions: ended ones, counted when they end, and open ones, counted on request.

A half message is open if the check loop has not passed it and it has not ended since the start. Only op records show
whether a half message from before the start has ended, so the number is unknown until a round has passed those.

Source: EndTransactionProcessor, TransactionMetrics, apache/rocketmq 5.3.3 broker/. There half messages are counted as
they come and go, and the counts kept in a file.
"""

from collections import Counter
from typing import Final

from mqtrail.store import MessageStore
from mqtrail.wire import HALF_TOPIC, MQError, decode_head

from ..properties import real_queue
from ..telemetry import Histogram
from .check import EndedHalfMessages, TransactionCheck

LATENCY_BOUNDS_S: Final = (5.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
SPAN_MAX: Final = 200_000  # half messages from the first open one to the last; above it the number is unknown
READ_MAX: Final = 2_000  # open half messages whose topic one request looks up, about 30 ms


class EndCounts:
    """Ends since the start, by topic. latencies_s: from a half message's birth to its commit, whole seconds."""

    def __init__(self) -> None:
        self.commits: Counter[str] = Counter()
        self.rollbacks: Counter[str] = Counter()
        self.latencies_s: dict[str, Histogram] = {}

    def committed(self, topic: str, took_ms: int) -> None:
        self.commits[topic] += 1
        latencies_s = self.latencies_s.get(topic)
        if latencies_s is None:
            latencies_s = self.latencies_s[topic] = Histogram(LATENCY_BOUNDS_S)
        latencies_s.add(max(0, took_ms) // 1_000)


class OpenHalfMessages:
    """Half messages without an end, by their target topic."""

    def __init__(self, store: MessageStore, check: TransactionCheck, ended: EndedHalfMessages) -> None:
        self._store = store
        self._check = check
        self._ended = ended
        self._left = {queue_id: store.max_offset(HALF_TOPIC, queue_id) for queue_id in store.queue_ids(HALF_TOPIC)}
        self._topics: dict[tuple[int, int], str] = {}  # of the half messages that were open at the last request
        self._seen: set[str] = set()

    def by_topic(self) -> dict[str, int] | None:
        """Return the number of open half messages by topic, with 0 for topics of the last request; None: unknown.

        It is also unknown if there are too many to look up: each request looks up the next READ_MAX.
        """
        topics: dict[tuple[int, int], str] = {}
        left = READ_MAX
        for queue_id in self._store.queue_ids(HALF_TOPIC):
            first, end = self._check.walked(queue_id), self._store.max_offset(HALF_TOPIC, queue_id)
            if first < self._left.get(queue_id, 0) or first <= self._ended.forgotten or end - first > SPAN_MAX:
                return None
            for queue_offset in range(max(first, self._store.min_offset(HALF_TOPIC, queue_id)), end):
                key = queue_id, queue_offset
                if self._ended.has(*key):
                    continue
                topic = self._topics.get(key)
                if topic is None and left > 0:
                    left -= 1
                    topic = self._topic_of(*key)
                if topic is not None:
                    topics[key] = topic
        self._topics = topics
        if left <= 0:
            return None
        self._seen.update(topics.values())
        return dict.fromkeys(sorted(self._seen), 0) | Counter(topics.values())

    def _topic_of(self, queue_id: int, queue_offset: int) -> str | None:
        """Return the target topic of a half message; None: it names none, or was deleted."""
        try:
            found = self._store.read(HALF_TOPIC, queue_id, queue_offset, 1, 1)
        except MQError:
            return None
        if not found.records:
            return None
        record = found.records[0]
        head = decode_head(record)
        queue = real_queue(bytes(record[head.properties_start : head.properties_end]))
        return None if queue is None or head.queue_offset != queue_offset else queue[0]
