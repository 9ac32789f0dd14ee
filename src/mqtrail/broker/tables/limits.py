"""Rates of messages by topic and by group, each with a token bucket. Off unless settings or attributes say otherwise.

    rate    topic_send_rate_max, group_pull_rate_max, or the topic's or group's own attribute
    room    rate_burst_s seconds' worth of it, which an idle topic or group saves up

Apache has no such limits in the broker. A send above its topic's rate is refused with 2, upon which clients try
another broker; a pull above its group's with 215, upon which they wait 20 ms (2 before 5.0).
"""

from typing import Final

from mqtrail.wire import FlowControl, SubscriptionGroupConfig, SystemBusy, TopicConfig

from ..config import BrokerConfig

SEND_ATTRIBUTE: Final = "mqtrail.send.rate.max"  # of a topic: outweighs topic_send_rate_max
PULL_ATTRIBUTE: Final = "mqtrail.pull.rate.max"  # of a group: outweighs group_pull_rate_max
BUCKETS_MAX: Final = 50_000  # of each kind; then those that are full again are forgotten


class _Buckets:
    """Name -> (tokens, time they were counted)."""

    def __init__(self, burst_s: int) -> None:
        self._burst_s = burst_s
        self._known: dict[str, tuple[float, int]] = {}

    def left(self, name: str, rate: int, now_ms: int) -> float:
        """Return how many tokens there are now."""
        room = float(rate * self._burst_s)
        known = self._known.get(name)
        if known is None:
            return room
        tokens, counted_ms = known
        return min(room, tokens + max(0, now_ms - counted_ms) * rate / 1000)

    def take(self, name: str, rate: int, count: int, now_ms: int) -> None:
        """Take tokens, below zero if need be: a batch is not split."""
        left = self.left(name, rate, now_ms)
        if len(self._known) >= BUCKETS_MAX and name not in self._known:
            self._forget_full(now_ms)
        self._known[name] = (left - count, now_ms)

    def _forget_full(self, now_ms: int) -> None:
        """Forget those not touched for so long that they are full; if all are busy, the oldest half."""
        before_ms = now_ms - self._burst_s * 1000
        kept = {name: entry for name, entry in self._known.items() if entry[1] > before_ms}
        if len(kept) >= BUCKETS_MAX:
            kept = dict(sorted(kept.items(), key=lambda item: item[1][1])[len(kept) // 2 :])
        self._known = kept


class RateLimits:
    """The broker's buckets."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._sends = _Buckets(config.rate_burst_s)
        self._pulls = _Buckets(config.rate_burst_s)

    def send_rate(self, topic: TopicConfig) -> int:
        """Return the topic's rate, 0: any."""
        return _own_rate(topic.attributes, SEND_ATTRIBUTE, self._config.topic_send_rate_max)

    def pull_rate(self, group: SubscriptionGroupConfig) -> int:
        """Return the group's rate, 0: any."""
        return _own_rate(group.attributes, PULL_ATTRIBUTE, self._config.group_pull_rate_max)

    def take_send(self, topic: TopicConfig, now_ms: int) -> None:
        """Count a message that a topic is about to get. SystemBusy: it has had as many as it may."""
        if not (rate := self.send_rate(topic)):
            return
        if self._sends.left(topic.topic, rate, now_ms) < 1:
            raise SystemBusy(
                f"[FLOW_CONTROL]broker busy, start flow control for a while: topic {topic.topic} takes {rate} messages "
                f"a second (topic_send_rate_max, or its attribute {SEND_ATTRIBUTE})"
            )
        self._sends.take(topic.topic, rate, 1, now_ms)

    def add_sends(self, topic: TopicConfig, count: int, now_ms: int) -> None:
        """Count the further messages of a batch whose first was counted."""
        if rate := self.send_rate(topic):
            self._sends.take(topic.topic, rate, count, now_ms)

    def pulls_left(self, group: SubscriptionGroupConfig, now_ms: int) -> int | None:
        """Return how many messages the group may have now, None: any number. FlowControl: none."""
        rate = self.pull_rate(group)
        if not rate:
            return None
        left = int(self._pulls.left(group.group_name, rate, now_ms))
        if left < 1:
            raise FlowControl(
                f"[FLOW_CONTROL]start flow control for a while: group {group.group_name} gets {rate} messages a second "
                f"(group_pull_rate_max, or its attribute {PULL_ATTRIBUTE})"
            )
        return left

    def take_pulls(self, group: SubscriptionGroupConfig, count: int, now_ms: int) -> None:
        """Count messages that a group got."""
        rate = self.pull_rate(group)
        if rate and count:
            self._pulls.take(group.group_name, rate, count, now_ms)


def _own_rate(attributes: dict[str, str], name: str, otherwise: int) -> int:
    text = attributes.get(name, "") if attributes else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else otherwise
