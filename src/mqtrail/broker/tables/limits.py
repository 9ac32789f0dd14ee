"""Message rates by topic and by group, each limited by a token bucket. Off by default.

    rate    topic_send_rate_max, group_pull_rate_max, or the attribute of the topic or group
    burst   messages of rate_burst_s seconds, which an idle topic or group accumulates

Apache has no such limits in the broker. A send above the rate of its topic is refused with 2; clients then try another
broker. A pull above the rate of its group is refused with 215 (2 before 5.0); clients then wait 20 ms.
"""

from collections import Counter
from typing import Final

from mqtrail.wire import FlowControl, SubscriptionGroupConfig, SystemBusy, TopicConfig, number_of

from ..config import BrokerConfig

SEND_ATTRIBUTE: Final = "mqtrail.send.rate.max"  # of a topic; overrides topic_send_rate_max
PULL_ATTRIBUTE: Final = "mqtrail.pull.rate.max"  # of a group; overrides group_pull_rate_max
RATE_DIGITS_MAX: Final = 9
BUCKETS_MAX: Final = 50_000  # of each kind; above it full buckets are dropped


class _Buckets:
    """Name -> (tokens, time of the count)."""

    def __init__(self, burst_s: int) -> None:
        self._burst_s = burst_s
        self._known: dict[str, tuple[float, int]] = {}

    def left(self, name: str, rate: int, now_ms: int) -> float:
        """Return the current number of tokens."""
        room = float(rate * self._burst_s)
        known = self._known.get(name)
        if known is None:
            return room
        tokens, counted_ms = known
        return min(room, tokens + max(0, now_ms - counted_ms) * rate / 1000)

    def take(self, name: str, rate: int, count: int, now_ms: int) -> None:
        """Take tokens, below zero if necessary, since a batch is not split."""
        left = self.left(name, rate, now_ms)
        if len(self._known) >= BUCKETS_MAX and name not in self._known:
            self._forget_full(now_ms)
        self._known[name] = (left - count, now_ms)

    def _forget_full(self, now_ms: int) -> None:
        """Drop the buckets that are full again; if there are none, the oldest half."""
        before_ms = now_ms - self._burst_s * 1000
        kept = {name: entry for name, entry in self._known.items() if entry[1] > before_ms}
        if len(kept) >= BUCKETS_MAX:
            kept = dict(sorted(kept.items(), key=lambda item: item[1][1])[len(kept) // 2 :])
        self._known = kept


class RateLimits:
    """The buckets of a broker.

    refused_sends, refused_pulls: number of refusals of a topic and of a group since the start.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.refused_sends: Counter[str] = Counter()
        self.refused_pulls: Counter[str] = Counter()
        self._config = config
        self._sends = _Buckets(config.rate_burst_s)
        self._pulls = _Buckets(config.rate_burst_s)

    def send_rate(self, topic: TopicConfig) -> int:
        """Return the rate of the topic; 0: no limit."""
        return _own_rate(topic.attributes, SEND_ATTRIBUTE, self._config.topic_send_rate_max)

    def pull_rate(self, group: SubscriptionGroupConfig) -> int:
        """Return the rate of the group; 0: no limit."""
        return _own_rate(group.attributes, PULL_ATTRIBUTE, self._config.group_pull_rate_max)

    def take_send(self, topic: TopicConfig, now_ms: int) -> None:
        """Count a message to a topic. SystemBusy: the rate is exceeded."""
        if not (rate := self.send_rate(topic)):
            return
        if self._sends.left(topic.topic, rate, now_ms) < 1:
            _add(self.refused_sends, topic.topic)
            raise SystemBusy(
                f"[FLOW_CONTROL]broker busy, start flow control for a while: topic {topic.topic} accepts {rate} "
                f"messages a second: send more slowly, or raise topic_send_rate_max or its attribute {SEND_ATTRIBUTE}"
            )
        self._sends.take(topic.topic, rate, 1, now_ms)

    def add_sends(self, topic: TopicConfig, count: int, now_ms: int) -> None:
        """Count the other messages of a batch whose first message was counted."""
        if rate := self.send_rate(topic):
            self._sends.take(topic.topic, rate, count, now_ms)

    def pulls_left(self, group: SubscriptionGroupConfig, now_ms: int) -> int | None:
        """Return how many messages the group may receive now; None: no limit. FlowControl: none."""
        rate = self.pull_rate(group)
        if not rate:
            return None
        left = int(self._pulls.left(group.group_name, rate, now_ms))
        if left < 1:
            _add(self.refused_pulls, group.group_name)
            raise FlowControl(
                f"[FLOW_CONTROL]start flow control for a while: group {group.group_name} receives {rate} messages a "
                f"second: wait, or raise group_pull_rate_max or its attribute {PULL_ATTRIBUTE}"
            )
        return left

    def take_pulls(self, group: SubscriptionGroupConfig, count: int, now_ms: int) -> None:
        """Count messages delivered to a group."""
        rate = self.pull_rate(group)
        if rate and count:
            self._pulls.take(group.group_name, rate, count, now_ms)


def _add(counts: Counter[str], name: str) -> None:
    if name in counts or len(counts) < BUCKETS_MAX:
        counts[name] += 1


def _own_rate(attributes: dict[str, str], name: str, otherwise: int) -> int:
    rate = number_of(attributes.get(name), RATE_DIGITS_MAX) if attributes else None
    return otherwise if rate is None else rate
