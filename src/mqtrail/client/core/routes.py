"""Routes: the writable and readable queues of a topic, and the addresses of their brokers.

Built from a name server's TopicRouteData. Source: MQClientInstance.topicRouteData2TopicPublishInfo and
…SubscribeInfo, RocketMQ client.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from mqtrail.wire import MASTER_ID, BodyError, BrokerData, MessageQueue, Perm, TopicRouteData

ROUTE_QUEUES_MAX: Final = 131_072
"""Maximum number of queues of one topic, over all brokers, in a route. mqtrail's brokers allow 65,536 each."""
ROUTE_ADDRESSES_MAX: Final = 4_096
"""Maximum number of broker addresses in a route, slaves included: a client connects to each of them."""

_ORDERED = re.compile(r"(.+):([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The route of one topic. from_template: the topic does not exist yet; this is its template's route."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]  # broker name -> broker id -> "host:port"
    from_template: bool = False

    @classmethod
    def build(cls, topic: str, data: TopicRouteData) -> "TopicRoute":
        """Return the route of a topic, queues sorted. Queues without a master or write permission are not writable."""
        brokers = {broker.broker_name: _addresses(broker) for broker in data.broker_datas}
        of_broker = _queues_of_brokers(topic, data)
        publish: list[MessageQueue] = []
        read_counts: dict[str, int] = {}
        for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
            name = queues.broker_name
            if queues.perm & Perm.READ:
                read_counts[name] = max(queues.read_queue_nums, read_counts.get(name, 0))
            if queues.perm & Perm.WRITE and MASTER_ID in brokers.get(name, {}):
                publish += of_broker[name][: queues.write_queue_nums]
        if data.order_topic_conf:
            publish = [
                MessageQueue(topic, name, queue_id)
                for name, count in _order_conf(data.order_topic_conf)
                for queue_id in range(count)
            ]
        subscribe = chain.from_iterable(of_broker[name][:count] for name, count in read_counts.items())
        return cls(topic, tuple(publish), tuple(subscribe), brokers)

    @classmethod
    def from_template_route(cls, topic: str, data: TopicRouteData, queue_nums: int) -> "TopicRoute":
        """Return a route for a topic that the first send creates, made from the template topic's route."""
        brokers = {broker.broker_name: _addresses(broker) for broker in data.broker_datas}
        publish = [
            MessageQueue(topic, queues.broker_name, queue_id)
            for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name)
            if queues.perm & Perm.WRITE and MASTER_ID in brokers.get(queues.broker_name, {})
            for queue_id in range(min(queue_nums, queues.read_queue_nums))
        ]
        return cls(topic, tuple(publish), (), brokers, from_template=True)

    def master(self, broker_name: str) -> str | None:
        """The address of the broker's master; None while it has none."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def address(self, broker_name: str, broker_id: int = MASTER_ID, *, only: bool = False) -> str | None:
        """The address to read from: that of broker_id, else (unless only is set) that of another broker id."""
        addresses = self.brokers.get(broker_name, {})
        if broker_id in addresses or only:
            return addresses.get(broker_id)
        if broker_id != MASTER_ID and broker_id + 1 in addresses:
            return addresses[broker_id + 1]
        return next(iter(addresses.values()), None)


def read_route(data: bytes) -> TopicRouteData:
    """Return the route in a name server's answer. BodyError: it cannot be read, or exceeds the limits.

    The limits bound memory: a few bytes can claim any number of queues.
    """
    route = TopicRouteData.decode(data)
    counts = [(queues.read_queue_nums, queues.write_queue_nums) for queues in route.queue_datas]
    ordered = sum(count for _, count in _order_conf(route.order_topic_conf or ""))
    if min((min(pair) for pair in counts), default=0) < 0:
        raise BodyError("found a route with fewer than 0 queues on a broker, expected 0 or more")
    found = max(sum(reads for reads, _ in counts), sum(writes for _, writes in counts), ordered)
    if found > ROUTE_QUEUES_MAX:
        raise BodyError(f"found a route with {found} queues, expected at most {ROUTE_QUEUES_MAX}")
    addresses = sum(len(broker.broker_addrs) for broker in route.broker_datas)
    if addresses > ROUTE_ADDRESSES_MAX:
        raise BodyError(f"found a route with {addresses} addresses of brokers, expected {ROUTE_ADDRESSES_MAX} or fewer")
    return route


def queue_count(data: TopicRouteData) -> int:
    """Return how many queues `TopicRoute.build` makes of a route."""
    ordered = sum(count for _, count in _order_conf(data.order_topic_conf or ""))
    return ordered + sum(queues.read_queue_nums + queues.write_queue_nums for queues in data.queue_datas)


def queue_name(queue: MessageQueue) -> str:
    """Return topic/broker/queue id, for logs and errors."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _addresses(broker: BrokerData) -> dict[int, str]:
    return {broker_id: broker.broker_addrs[broker_id] for broker_id in sorted(broker.broker_addrs)}


def _queues_of_brokers(topic: str, data: TopicRouteData) -> dict[str, list[MessageQueue]]:
    """Return all queues of each broker, in order. A queue that is both read and written is one object."""
    counts: dict[str, int] = {}
    for queues in data.queue_datas:
        count = max(queues.read_queue_nums, queues.write_queue_nums)
        counts[queues.broker_name] = max(count, counts.get(queues.broker_name, 0))
    return {name: [MessageQueue(topic, name, queue_id) for queue_id in range(count)] for name, count in counts.items()}


def _order_conf(text: str) -> list[tuple[str, int]]:
    """Parse `broker-a:4;broker-b:2`; parts of another shape are ignored."""
    found = (_ORDERED.fullmatch(part) for part in text.split(";"))
    return [(match[1], int(match[2])) for match in found if match is not None]
