"""Routes: the writable and readable queues of a topic, and the addresses of their brokers.

Built from a name server's TopicRouteData. Source: MQClientInstance.topicRouteData2TopicPublishInfo and
…SubscribeInfo, RocketMQ client.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mqtrail.wire import MASTER_ID, BrokerData, MessageQueue, Perm, TopicRouteData


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """What a client knows about one topic. from_template: the topic does not exist yet; its template's route."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]  # broker name -> broker id -> "host:port"
    from_template: bool = False

    @classmethod
    def build(cls, topic: str, data: TopicRouteData) -> "TopicRoute":
        """Return the route of a topic. Queues are sorted; a queue that cannot be written has no master or no right."""
        brokers = {broker.broker_name: _addresses(broker) for broker in data.broker_datas}
        publish: list[MessageQueue] = []
        subscribe: list[MessageQueue] = []
        for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
            name = queues.broker_name
            if queues.perm & Perm.READ:
                subscribe += [MessageQueue(topic, name, queue_id) for queue_id in range(queues.read_queue_nums)]
            if queues.perm & Perm.WRITE and MASTER_ID in brokers.get(name, {}):
                publish += [MessageQueue(topic, name, queue_id) for queue_id in range(queues.write_queue_nums)]
        if data.order_topic_conf:
            publish = [
                MessageQueue(topic, name, queue_id)
                for name, count in _order_conf(data.order_topic_conf)
                for queue_id in range(count)
            ]
        return cls(topic, tuple(publish), tuple(sorted(subscribe)), brokers)

    @classmethod
    def from_template_route(cls, topic: str, data: TopicRouteData, queue_nums: int) -> "TopicRoute":
        """Return a route for a topic that is to be created by the first send, after the template topic's route."""
        brokers = {broker.broker_name: _addresses(broker) for broker in data.broker_datas}
        publish = [
            MessageQueue(topic, queues.broker_name, queue_id)
            for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name)
            if queues.perm & Perm.WRITE and MASTER_ID in brokers.get(queues.broker_name, {})
            for queue_id in range(min(queue_nums, queues.read_queue_nums))
        ]
        return cls(topic, tuple(publish), (), brokers, from_template=True)

    def master(self, broker_name: str) -> str | None:
        """The address that may be written to; None while the broker has no master."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def address(self, broker_name: str, broker_id: int = MASTER_ID, *, only: bool = False) -> str | None:
        """The address to read from: that of broker_id, else another broker id's."""
        addresses = self.brokers.get(broker_name, {})
        if broker_id in addresses or only:
            return addresses.get(broker_id)
        if broker_id != MASTER_ID and broker_id + 1 in addresses:
            return addresses[broker_id + 1]
        return next(iter(addresses.values()), None)


def queue_name(queue: MessageQueue) -> str:
    """Return topic/broker/queue id, for logs and errors."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _addresses(broker: BrokerData) -> dict[int, str]:
    return {broker_id: broker.broker_addrs[broker_id] for broker_id in sorted(broker.broker_addrs)}


def _order_conf(text: str) -> list[tuple[str, int]]:
    """Parse `broker-a:4;broker-b:2`; a part that is not of this shape is left out."""
    pairs = [part.rpartition(":") for part in text.split(";")]
    return [(name, int(count)) for name, _, count in pairs if name and count.isdigit()]
