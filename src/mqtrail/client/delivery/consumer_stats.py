"""Counts and rates of a consumer by topic, shown to operators in its running info.

Counters only grow. Samples are taken every ten seconds: rates cover the last minute, failures the last hour.
Source: ConsumerStatsManager, RocketMQ client.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from mqtrail.wire import ConsumeStatus

SAMPLE_MS = 10_000
MINUTE_SAMPLES = 6
HOUR_SAMPLES = 360
TOPICS_MAX = 1_024  # further topics are not counted


class ConsumerTotals(NamedTuple):
    """Totals since the start. Times are ms. undecodable: messages received that could not be read, delivered or not.

    throttled: messages that had to wait for a limit of handlers (`rate_max` and others).
    """

    pull_count: int = 0
    pulled: int = 0
    pull_ms: int = 0
    consumed: int = 0
    failed: int = 0
    consume_ms: int = 0
    undecodable: int = 0
    throttled: int = 0


@dataclass(slots=True)
class _TopicCounts:
    totals: list[int] = field(default_factory=lambda: [0] * len(ConsumerTotals._fields))
    minute: deque[ConsumerTotals] = field(default_factory=lambda: deque([ConsumerTotals()], maxlen=MINUTE_SAMPLES + 1))
    failed: deque[int] = field(default_factory=lambda: deque([0], maxlen=HOUR_SAMPLES + 1))


class ConsumerStats:
    """Counts of one consumer. `sample` is called every SAMPLE_MS."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicCounts] = {}

    def pulled(self, topic: str, count: int, cost_ms: int) -> None:
        """Count the messages of one pull. cost_ms: the time the pull took."""
        if (totals := self._totals(topic)) is not None:
            totals[0] += 1
            totals[1] += count
            totals[2] += cost_ms

    def consumed(self, topic: str, count: int, failed: int, cost_ms: int) -> None:
        """Count messages that a handler has finished. failed: how many of them failed."""
        if (totals := self._totals(topic)) is not None:
            totals[3] += count - failed
            totals[4] += failed
            totals[5] += cost_ms

    def undecodable(self, topic: str) -> None:
        """Count one undecodable message, delivered or not."""
        if (totals := self._totals(topic)) is not None:
            totals[6] += 1

    def throttled(self, topic: str, count: int) -> None:
        """Count messages that have to wait for a limit of handlers."""
        if (totals := self._totals(topic)) is not None:
            totals[7] += count

    def totals(self, topic: str | None = None) -> ConsumerTotals:
        """Return the counts of a topic, or of all topics together."""
        if topic is None:
            columns = zip(ConsumerTotals(), *(one.totals for one in self._topics.values()), strict=True)
            return ConsumerTotals(*map(sum, columns))
        found = self._topics.get(topic)
        return ConsumerTotals() if found is None else ConsumerTotals(*found.totals)

    def _totals(self, topic: str) -> list[int] | None:
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= TOPICS_MAX:
                return None
            found = self._topics[topic] = _TopicCounts()
        return found.totals

    def sample(self) -> None:
        """Take the next sample."""
        for topic in self._topics.values():
            totals = ConsumerTotals(*topic.totals)
            topic.minute.append(totals)
            topic.failed.append(totals.failed)

    def status(self) -> dict[str, ConsumeStatus]:
        """Return, by topic, the rates per second and average times in ms over the last minute."""
        return {name: _status(topic) for name, topic in self._topics.items()}


def _status(topic: _TopicCounts) -> ConsumeStatus:
    now, then = ConsumerTotals(*topic.totals), topic.minute[0]
    lately = ConsumerTotals(*(new - old for new, old in zip(now, then, strict=True)))
    seconds = max(1, len(topic.minute)) * SAMPLE_MS / 1000
    return ConsumeStatus(
        pull_rt=lately.pull_ms / max(1, lately.pull_count),
        pull_tps=lately.pulled / seconds,
        consume_rt=lately.consume_ms / max(1, lately.consumed + lately.failed),
        consume_ok_tps=lately.consumed / seconds,
        consume_failed_tps=lately.failed / seconds,
        consume_failed_msgs=now.failed - topic.failed[0],
    )
