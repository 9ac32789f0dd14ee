"""Subscriptions: the expression of each topic, which may change while the consumer runs.

Source: DefaultMQPushConsumerImpl.subscribe, FilterAPI, MQClientInstance.checkClientInBroker, RocketMQ client.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from mqtrail.clock import now_ms
from mqtrail.wire import (
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    RETRY_PREFIX,
    RequestCode,
    SubscriptionData,
    dumps,
    validate_topic,
)

from ..core import ClientInstance, Names, RouteNotFound


@dataclass(frozen=True, slots=True)
class Sql:
    """A filter by properties, in RocketMQ's SQL92: `Sql("amount > 100 AND region IN ('EU', 'UK')")`.

    Brokers evaluate it if `enablePropertyFilter` is on.
    """

    expression: str


Expression = str | Sql


class Subscriptions(Mapping[str, SubscriptionData]):
    """Subscriptions by the topic's name at brokers. A changed subscription gets a newer version."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._data: dict[str, SubscriptionData] = {}

    def __getitem__(self, topic: str) -> SubscriptionData:
        return self._data[topic]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def put(self, topic: str, expression: Expression) -> None:
        """Subscribe to an application's topic, or change its expression.

        Raises InvalidParameter for a bad name, SubscriptionParseFailed for tags that are only separators.
        """
        validate_topic(topic)
        name = self._names.topic(topic)
        kind = EXPRESSION_SQL92 if isinstance(expression, Sql) else EXPRESSION_TAG
        text = expression.expression if isinstance(expression, Sql) else expression
        self._data[name] = SubscriptionData.build(name, text, kind, self._version(name))

    def put_retry(self, topic: str) -> None:
        """Subscribe to one of the group's retry topics, if not subscribed already."""
        if topic not in self._data:
            self._data[topic] = SubscriptionData.build(topic, "*", sub_version=now_ms())

    def remove(self, topic: str) -> bool:
        """Remove the subscription of a topic, by its name at brokers; return whether there was one."""
        return self._data.pop(topic, None) is not None

    def renew(self, topic: str) -> None:
        """Give a subscription a newer version, as after a rebalance."""
        if (data := self._data.get(topic)) is not None:
            self._data[topic] = msgspec.structs.replace(data, sub_version=self._version(topic))

    def _version(self, name: str) -> int:
        known = self._data.get(name)
        return max(now_ms(), known.sub_version + 1 if known is not None else 0)

    def topics(self) -> list[str]:
        """The topics, including retry topics."""
        return list(self._data)

    def applications(self) -> list[str]:
        """The topics without retry topics, as the application knows them."""
        return [self._names.plain(topic) for topic in self._data if not topic.startswith(RETRY_PREFIX)]

    def data(self) -> tuple[SubscriptionData, ...]:
        """All of them, for heartbeats."""
        return tuple(self._data.values())

    async def check(self, client: ClientInstance, topics: Sequence[str] | None = None) -> None:
        """Ask a broker of each topic to check expressions other than tags (CHECK_CLIENT_CONFIG).

        topics: as brokers know them (None: all). Raises the broker's Refusal: SubscriptionParseFailed for an invalid
        expression, another one if filters are not enabled. A topic that does not exist yet is not checked.
        """
        for topic in self.topics() if topics is None else topics:
            data = self._data.get(topic)
            if data is None or data.expression_type == EXPRESSION_TAG:
                continue
            try:
                route = await client.route(topic)
            except RouteNotFound:
                continue
            address = next((found for name in route.brokers if (found := route.address(name))), None)
            if address is None:
                continue
            members = {
                "clientId": client.client_id,
                "group": self._names.group,
                "namespace": self._names.namespace,
                "subscriptionData": data.members(),
            }
            await client.call(address, RequestCode.CHECK_CLIENT_CONFIG, {}, dumps(members))
