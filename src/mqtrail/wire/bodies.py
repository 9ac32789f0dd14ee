"""Bodies between brokers and name servers, and of administration's lists and configurations.

Source: the classes of remoting/protocol/body, apache/rocketmq.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgspec

from .body import Body, Long, RequestBody, convert, queue_members, queue_of
from .configs import DataVersion, SubscriptionGroupConfig, TopicConfig
from .errors import BodyError
from .json_bounds import NODES_MAX
from .topics import is_business_group
from .values import MessageQueue

__all__ = [
    "ConsumerIdList",
    "ConsumerOffsetTable",
    "DelayOffsetTable",
    "GroupList",
    "GroupOffsets",
    "KvTable",
    "LockBatchBody",
    "LockedQueues",
    "RegisterBrokerBody",
    "SubscriptionGroupList",
    "SubscriptionGroupTable",
    "TimerMetric",
    "TimerMetrics",
    "TopicConfigList",
    "TopicConfigTable",
    "TopicList",
]


class TopicConfigTable(Body, frozen=True):
    """Reply to 21, part of 103, and topics.json: all topics of a broker."""

    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_detail_map: dict[str, Any] | None = None
    topic_queue_mapping_info_map: dict[str, Any] | None = None


class RegisterBrokerBody(Body, frozen=True):
    """The body of REGISTER_BROKER (103)."""

    topic_config_serialize_wrapper: TopicConfigTable = TopicConfigTable()
    filter_server_list: tuple[str, ...] = ()


class TopicList(Body, frozen=True):
    """Reply to 206, 224, 304, 305, 311 to 313, 343. broker_addr: any broker's address, for requests that need one."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


class GroupList(Body, frozen=True):
    """Reply to 300."""

    group_list: tuple[str, ...] = ()


class ConsumerIdList(Body, frozen=True):
    """Reply to 38."""

    consumer_id_list: tuple[str, ...] = ()


class KvTable(Body, frozen=True):
    """Reply to 28 and 219, and to 103 where order topics are returned."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class TopicConfigList(RequestBody, frozen=True):
    """The body of 18."""

    topic_config_list: tuple[TopicConfig, ...] = ()


class SubscriptionGroupList(RequestBody, frozen=True):
    """The body of 225."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


class SubscriptionGroupTable(Body, frozen=True):
    """Reply to 201 and subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, Long]] = msgspec.field(default_factory=dict)

    def business_groups(self) -> set[str]:
        """Return the groups of applications."""
        return {group for group in self.subscription_group_table if is_business_group(group)}


class LockBatchBody(RequestBody, frozen=True):
    """The body of 41 and 42: queues of a group to lock or unlock for a client."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False

    def members(self) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.consumer_group,
            "mqSet": [queue_members(queue) for queue in self.mq_set],
            "onlyThisBroker": self.only_this_broker,
        }

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            convert(value.get("consumerGroup") or "", str),
            convert(value.get("clientId") or "", str),
            _queues(value.get("mqSet")),
            convert(value.get("onlyThisBroker") or False, bool),
        )


class LockedQueues(Body, frozen=True):
    """Reply to 41: the queues that the client now holds."""

    locked: tuple[MessageQueue, ...] = ()

    def members(self) -> dict[str, Any]:
        return {"lockOKMQSet": [queue_members(queue) for queue in self.locked]}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return cls(_queues(value.get("lockOKMQSet")))


def _queues(items: object) -> tuple[MessageQueue, ...]:
    if not isinstance(items, list | tuple | None):
        raise BodyError(f"found a {type(items).__name__}, expected a list of queues")
    return tuple(queue_of(item) for item in items or ())


BROADCAST: Final = "broadcast"
"""Third part of the key under which a 5.x broker keeps the common offset of a broadcasting group behind proxies."""


class GroupOffsets(NamedTuple):
    """A group's offsets in a topic: queue id to the offset consumed next.

    is_broadcast: the offset is the lowest one of a broadcasting group's clients; no client has committed it.
    """

    topic: str
    group: str
    is_broadcast: bool
    queues: Mapping[int, int]


class ConsumerOffsetTable(Body, frozen=True):
    """Reply to 43 and consumerOffset.json: "topic@group" to queue id to the offset consumed next."""

    dialect_nodes_max: ClassVar[int] = NODES_MAX

    offset_table: dict[str, dict[Long, Long]] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None

    def by_group(self) -> Iterator[GroupOffsets]:
        """Return the offsets of each topic and group. Keys of another form belong to no group and are skipped."""
        for key, queues in self.offset_table.items():
            match key.split("@"):
                case [topic, group]:
                    yield GroupOffsets(topic, group, False, queues)
                case [topic, group, mark] if mark == BROADCAST:
                    yield GroupOffsets(topic, group, True, queues)

    def of_business(self) -> Iterator[GroupOffsets]:
        """Return the offsets of the groups of applications."""
        return (offsets for offsets in self.by_group() if is_business_group(offsets.group))


class DelayOffsetTable(Body, frozen=True):
    """Reply to 45 and delayOffset.json: delay level to the offset delivered next."""

    offset_table: dict[Long, Long] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None


class TimerMetric(Body, frozen=True):
    """The number of messages of one topic in the timer, and when it last changed (ms)."""

    count: Long = 0
    time_stamp: Long = 0


class TimerMetrics(Body, frozen=True):
    """Reply to 61 and config/timermetrics: topic to its waiting messages."""

    timing_count: dict[str, TimerMetric] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None
