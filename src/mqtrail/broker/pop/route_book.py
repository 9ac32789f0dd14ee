"""Queues of topics on other brokers, from routes of name servers that the shell requests.

The broker assigns the queues of all brokers of a topic. It names the topics whose routes it needs (`wanted`), and the
shell passes the routes to `learn`. A route is requested again every REFRESH_MS while clients use it. Without name
servers (`follows` off) the broker assigns its own queues only.

Source: TopicRouteInfoManager, apache/rocketmq 5.3.3 broker/topic/.
"""

from dataclasses import dataclass
from typing import Final

from mqtrail.wire import Perm, TopicRouteData

QueueCount = tuple[str, int]
"""Name of a broker, and its number of readable queues of a topic; their ids start at 0."""

REFRESH_MS: Final = 30_000  # RocketMQ: loadBalancePollNameServerInterval
UNUSED_MS: Final = 600_000  # a topic without requests for this time is removed
TOPICS_MAX: Final = 10_000  # maximum number of topics; for others only this broker's queues are assigned


@dataclass(slots=True)
class _Route:
    used_ms: int
    asked_ms: int | None = None
    learned: bool = False
    queues: tuple[QueueCount, ...] = ()


class RouteBook:
    """Queues of other brokers by topic. follows: the shell has name servers. has_new: request routes now."""

    def __init__(self, broker_name: str) -> None:
        self.follows = False
        self.has_new = False
        self._broker_name = broker_name
        self._routes: dict[str, _Route] = {}

    def others(self, topic: str, now_ms: int) -> tuple[QueueCount, ...] | None:
        """Return the queues of the topic on other brokers. None: not known yet, but requested."""
        if not self.follows:
            return ()
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= TOPICS_MAX:
                return ()
            route = self._routes[topic] = _Route(now_ms)
            self.has_new = True
        route.used_ms = now_ms
        return route.queues if route.learned else None

    def wanted(self, now_ms: int) -> list[str]:
        """Return the topics to request now: each once, and again after REFRESH_MS."""
        for topic in [topic for topic, route in self._routes.items() if now_ms - route.used_ms > UNUSED_MS]:
            del self._routes[topic]
        self.has_new = False
        topics = []
        for topic, route in self._routes.items():
            if route.asked_ms is None or now_ms - route.asked_ms >= REFRESH_MS:
                route.asked_ms = now_ms
                topics.append(topic)
        return topics

    def learn(self, topic: str, route: TopicRouteData | None) -> None:
        """Store a route. None: the topic is unknown, or no name server answered; an earlier route is kept."""
        known = self._routes.get(topic)
        if known is None:
            return
        known.learned = True
        if route is not None:
            counts: dict[str, int] = {}
            for data in route.queue_datas:
                if data.perm & Perm.READ and data.broker_name != self._broker_name:
                    counts[data.broker_name] = max(data.read_queue_nums, counts.get(data.broker_name, 0))
            known.queues = tuple(counts.items())
