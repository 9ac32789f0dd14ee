"""A client's heartbeat to a broker: its groups and their subscriptions (HEART_BEAT, code 34).

Source: HeartbeatData, ConsumerData, ProducerData, SubscriptionData, FilterAPI, apache/rocketmq remoting/ and common/.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Self

import msgspec

from .body import Body, Long, RequestBody
from .errors import SubscriptionParseFailed
from .ids import java_string_hash, tags_code
from .json_body import dumps

__all__ = [
    "EXPRESSION_SQL92",
    "EXPRESSION_TAG",
    "SUBSCRIBE_ALL",
    "ConsumeFromWhere",
    "ConsumeType",
    "ConsumerData",
    "HeartbeatData",
    "MessageModel",
    "ProducerData",
    "SubscriptionData",
]

SUBSCRIBE_ALL: Final = "*"
EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"


# Members are in Java's order: fastjson accepts an enum's ordinal as well as its name, so a peer may send either.


class ConsumeType(StrEnum):
    """How the client consumes: its code pulls (actively), the client calls a listener (passively), or POP."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether a group's consumers share the messages or each gets all of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without a committed offset starts. The three in between are deprecated."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body, frozen=True):
    """A group's subscription to a topic. sub_string: the expression as written. sub_version: ms; the newest one
    counts."""

    topic: str = ""
    sub_string: str = SUBSCRIBE_ALL
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Long, ...] = ()
    sub_version: Long = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False

    @classmethod
    def build(
        cls, topic: str, expression: str | None, expression_type: str | None = EXPRESSION_TAG, sub_version: int = 0
    ) -> Self:
        """Return the subscription of an expression: "*", "", None for all, else tags joined by "||", or SQL92's text.

        SubscriptionParseFailed: the expression has separators only.
        """
        if expression_type is not None and expression_type != EXPRESSION_TAG:
            return cls(topic, expression or "", sub_version=sub_version, expression_type=expression_type)
        if not expression or expression == SUBSCRIBE_ALL:
            return cls(topic, SUBSCRIBE_ALL, sub_version=sub_version)
        tags = tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))
        if not tags:
            raise SubscriptionParseFailed(f"found subscription {expression!r} of {topic}, expected tags joined by ||")
        codes = tuple(dict.fromkeys(map(tags_code, tags)))
        return cls(topic, expression, tags, codes, sub_version)

    @property
    def is_all(self) -> bool:
        """Whether it accepts all tags: "*", and SQL92, which does not filter by tags."""
        return self.sub_string == SUBSCRIBE_ALL or not self.tags_set

    def matches_code(self, code: int) -> bool:
        """The broker's test, by hash: it may accept a wrong tag, but never rejects a right one."""
        return self.is_all or code in self.code_set

    def matches_tag(self, tag: str) -> bool:
        """The consumer's test, by text."""
        return self.is_all or tag in self.tags_set


class ProducerData(Body, frozen=True):
    """A producer group of the client."""

    group_name: str


class ConsumerData(Body, frozen=True):
    """A consumer group of the client."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


class HeartbeatData(RequestBody, frozen=True):
    """The body of HEART_BEAT. without_sub: groups without their subscriptions, known by the fingerprint (5.x)."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: Long = 0
    without_sub: bool = False

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """Return the heartbeat; an enum may be its ordinal. BodyError as Body.read."""
        consumers = value.get("consumerDataSet")
        if isinstance(consumers, list):
            value = {**value, "consumerDataSet": [_with_enum_names(consumer) for consumer in consumers]}
        return super().read(value)

    def fingerprint(self) -> int:
        """Return what a 5.x client puts into heartbeat_fingerprint: a hash of the groups and their subscriptions."""
        consumers = []
        for consumer in self.consumer_data_set:
            members = consumer.members()
            members["subscriptionDataSet"] = [
                {**subscription.members(), "subVersion": 0} for subscription in consumer.subscription_data_set
            ]
            consumers.append(members)
        plain = HeartbeatData("", self.producer_data_set).members() | {"consumerDataSet": consumers}
        return java_string_hash(dumps(plain).decode())


_ENUMS: dict[str, tuple[StrEnum, ...]] = {
    "consumeType": tuple(ConsumeType),
    "messageModel": tuple(MessageModel),
    "consumeFromWhere": tuple(ConsumeFromWhere),
}


def _with_enum_names(consumer: object) -> object:
    if not isinstance(consumer, dict):
        return consumer
    named = {}
    for name, names in _ENUMS.items():
        place = consumer.get(name)
        if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(names):
            named[name] = names[place].value
    return {**consumer, **named}
