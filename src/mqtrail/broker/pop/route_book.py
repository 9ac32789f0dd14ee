"""Where else a topic has queues: what name servers say, asked for by the shell.

The broker shares out the queues of all brokers of a topic. Its own it knows; for the others it names the topics whose
routes it wants (`wanted`), and the shell hands in what it was told (`learn`). A topic is asked for again every
REFRESH_MS while clients ask for it. Without name servers (`follows` off) the broker is alone.

Source: TopicRouteInfoManager, apache/rocketmq 5.3.3 broker/topic/.
"""

from dataclasses import dataclass
from typing import Final

from mqtrail.wire import MessageQueue, Perm, TopicRouteData

REFRESH_MS: Final = 30_000  # RocketMQ: loadBalancePollNameServerInterval
UNUSED_MS: Final = 600_000  # a topic that nobody asked about for so long is forgotten
TOPICS_MAX: Final = 10_000  # kept at once; the others are shared out as if this broker were alone


@dataclass(slots=True)
class _Route:
    used_ms: int
    asked_ms: int | None = None
    learned: bool = False
    queues: tuple[MessageQueue, ...] = ()


class RouteBook:
    """Queues of other brokers by topic. follows: set by a shell that has name servers to ask. has_new: ask now."""

    def __init__(self, broker_name: str) -> None:
        self.follows = False
        self.has_new = False
        self._broker_name = broker_name
        self._routes: dict[str, _Route] = {}

    def others(self, topic: str, now_ms: int) -> tuple[MessageQueue, ...] | None:
        """Return the topic's queues on other brokers. None: not known yet, but asked for."""
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
        """Return the topics to ask for now; each is named once, and again after REFRESH_MS."""
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
        """Take in what a name server said. None: it does not know the topic, or none answered; what is known stays."""
        known = self._routes.get(topic)
        if known is None:
            return
        known.learned = True
        if route is not None:
            known.queues = tuple(
                MessageQueue(topic, data.broker_name, number)
                for data in route.queue_datas
                if data.perm & Perm.READ and data.broker_name != self._broker_name
                for number in range(data.read_queue_nums)
            )
