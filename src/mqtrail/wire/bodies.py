"""Bodies between brokers and name servers, and of administration's lists and configurations.

Source: the classes of remoting/protocol/body, apache/rocketmq.
"""

import struct
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import msgspec

from .body import Body, Long, convert, queue_members, queue_of
from .compression import BODY_SIZE_MAX
from .configs import DataVersion, SubscriptionGroupConfig, TopicConfig
from .errors import BodyError
from .json_body import NODES_MAX, loads
from .values import MessageQueue

__all__ = [
    "ConsumerIdList",
    "ConsumerOffsetTable",
    "DelayOffsetTable",
    "GroupList",
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

_I32 = struct.Struct(">i")
PLAIN_TOPIC_FIELDS: Final = 5  # name, read queues, write queues, permission, filter type; the attributes are 5.x's


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

    @classmethod
    def decode_compressed(cls, data: bytes, topics_max: int) -> Self:
        """Return the body of a request whose header says compressed, with topics_max topics at most.

        It is a zlib stream of length-prefixed texts: the DataVersion's JSON, the count of topics and a line for each,
        the filter servers' JSON; what 5.x adds behind them (static topics) is not read. BodyError: it is not that.
        """
        try:
            reader = zlib.decompressobj()
            plain = reader.decompress(data, BODY_SIZE_MAX)
        except zlib.error as error:
            raise BodyError(f"found a compressed registration that is no zlib stream: {error}") from error
        if reader.unconsumed_tail:
            raise BodyError(f"found a registration that decompresses to more than {BODY_SIZE_MAX} bytes: delete topics")
        texts = _Texts(plain)
        version = DataVersion.decode(texts.next())
        topics = {}
        count = texts.count()
        if count > topics_max:
            raise BodyError(
                f"found {count} topics in a registration, expected at most {topics_max}: delete some, or raise "
                "broker_topics_max"
            )
        for _ in range(count):
            topic = _topic_of_line(texts.next())
            topics[topic.topic] = topic
        servers = convert(loads(texts.next()) or [], tuple[str, ...])
        return cls(TopicConfigTable(topics, version), servers)


class _Texts:
    """Walks over texts, each behind its i32 length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def count(self) -> int:
        if self._position + 4 > len(self._data):
            raise BodyError(f"found a registration cut short at {len(self._data)} bytes")
        (value,) = _I32.unpack_from(self._data, self._position)
        if not 0 <= value <= len(self._data):
            raise BodyError(f"found a length of {value} in a registration of {len(self._data)} bytes")
        self._position += 4
        return int(value)

    def next(self) -> str:
        size = self.count()
        start = self._position
        self._position += size
        if self._position > len(self._data):
            raise BodyError(f"found a text of {size} bytes at {start}, expected {len(self._data) - start}")
        return str(self._data[start : self._position], "utf-8", "replace")


def _topic_of_line(line: str) -> TopicConfig:
    parts = line.split(" ", PLAIN_TOPIC_FIELDS)
    if len(parts) < PLAIN_TOPIC_FIELDS:
        raise BodyError(f"found the topic line {line!r:.80}, expected name, queues, permission and filter type")
    members: dict[str, Any] = dict(
        zip(("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType"), parts, strict=False)
    )
    if len(parts) > PLAIN_TOPIC_FIELDS:
        members["attributes"] = loads(parts[PLAIN_TOPIC_FIELDS])
    return TopicConfig.read(members)


class TopicList(Body, frozen=True):
    """Reply to 206, 224, 304, 305, 311 to 313, 343. broker_addr: of any broker, where asked for."""

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


class TopicConfigList(Body, frozen=True):
    """The body of 18."""

    topic_config_list: tuple[TopicConfig, ...] = ()


class SubscriptionGroupList(Body, frozen=True):
    """The body of 225."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


class SubscriptionGroupTable(Body, frozen=True):
    """Reply to 201 and subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, Long]] = msgspec.field(default_factory=dict)


class LockBatchBody(Body, frozen=True):
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


class ConsumerOffsetTable(Body, frozen=True):
    """Reply to 43 and consumerOffset.json: "topic@group" to queue id to the offset consumed next."""

    dialect_nodes_max: ClassVar[int] = NODES_MAX

    offset_table: dict[str, dict[Long, Long]] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None


class DelayOffsetTable(Body, frozen=True):
    """Reply to 45 and delayOffset.json: delay level to the offset delivered next."""

    offset_table: dict[Long, Long] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None


class TimerMetric(Body, frozen=True):
    """How many messages of one topic wait in the timer, and when that last changed (ms)."""

    count: Long = 0
    time_stamp: Long = 0


class TimerMetrics(Body, frozen=True):
    """Reply to 61 and config/timermetrics: topic to what waits for it."""

    timing_count: dict[str, TimerMetric] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None
