"""Bodies about the state of topics, groups and clients: offsets, connections, running consumers, statistics.

Maps by queue have object names in Java's JSON (see json_body); here they are maps by MessageQueue.

Source: the classes of remoting/protocol/admin and remoting/protocol/body, apache/rocketmq.
"""

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Final, Self

import msgspec

from .body import (
    REQUEST_DIALECT_NODES_MAX,
    REQUEST_NODES_MAX,
    Body,
    Long,
    convert,
    encode_list_in_slices,
    queue_table,
    read_queue_table,
)
from .heartbeat import SubscriptionData
from .json_bounds import NODES_MAX
from .values import MessageQueue

__all__ = [
    "PROP_CLIENT_VERSION",
    "PROP_CONSUMER_START_TIMESTAMP",
    "PROP_CONSUME_ORDERLY",
    "PROP_CONSUME_TYPE",
    "PROP_NAMESERVER_ADDR",
    "PROP_THREADPOOL_CORE_SIZE",
    "BrokerConsumeStats",
    "BrokerStatsData",
    "ClientConnection",
    "ClientStatus",
    "ConsumeQueueEntries",
    "ConsumeQueueEntry",
    "ConsumeStats",
    "ConsumeStatus",
    "ConsumeTimeSpan",
    "ConsumeTimeSpans",
    "ConsumerConnections",
    "ConsumerRunningInfo",
    "ConsumerStatus",
    "DirectConsumeResult",
    "GroupSubscription",
    "OffsetWrapper",
    "PopQueueInfo",
    "ProcessQueueInfo",
    "ProducerConnections",
    "ProducerInfo",
    "ProducerTable",
    "QueueOffsets",
    "StatsItem",
    "TopicOffset",
    "TopicStatsTable",
]


class TopicOffset(Body, frozen=True):
    """A queue's range [min_offset, max_offset) and when it was last written, epoch ms."""

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0


class TopicStatsTable(Body, frozen=True):
    """Reply to 202."""

    dialect_nodes_max: ClassVar[int] = NODES_MAX

    offset_table: dict[MessageQueue, TopicOffset] = msgspec.field(default_factory=dict)
    topic_put_tps: float = 0.0

    def members(self) -> dict[str, Any]:
        return {"offsetTable": queue_table(self.offset_table), "topicPutTps": self.topic_put_tps}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            read_queue_table(value.get("offsetTable"), TopicOffset), convert(value.get("topicPutTps") or 0.0, float)
        )


class OffsetWrapper(Body, frozen=True):
    """A group on a queue. broker_offset: the queue's end. last_timestamp: store time of the last consumed, ms."""

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long | None = None
    last_timestamp: Long = 0


class ConsumeStats(Body, frozen=True):
    """Reply to 208."""

    dialect_nodes_max: ClassVar[int] = NODES_MAX

    offset_table: dict[MessageQueue, OffsetWrapper] = msgspec.field(default_factory=dict)
    consume_tps: float = 0.0

    def members(self) -> dict[str, Any]:
        return {"consumeTps": self.consume_tps, "offsetTable": queue_table(self.offset_table)}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            read_queue_table(value.get("offsetTable"), OffsetWrapper), convert(value.get("consumeTps") or 0.0, float)
        )


class BrokerConsumeStats(Body, frozen=True):
    """Reply to 317: for each group, in the broker's order, its statistics topic by topic."""

    dialect_nodes_max: ClassVar[int] = NODES_MAX

    consume_stats: dict[str, tuple[ConsumeStats, ...]] = msgspec.field(default_factory=dict)
    broker_addr: str = ""
    total_diff: Long = 0
    total_inflight_diff: Long | None = None

    def members(self) -> dict[str, Any]:
        groups = [{group: [stat.members() for stat in stats]} for group, stats in self.consume_stats.items()]
        members = {"brokerAddr": self.broker_addr, "consumeStatsList": groups, "totalDiff": self.total_diff}
        if self.total_inflight_diff is not None:
            members["totalInflightDiff"] = self.total_inflight_diff
        return members

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        stats: dict[str, tuple[ConsumeStats, ...]] = {}
        for groups in convert(value.get("consumeStatsList") or [], list[dict[str, list[Any]]]):
            for group, items in groups.items():
                stats[group] = tuple(ConsumeStats.read(convert(item, dict)) for item in items)
        in_flight = value.get("totalInflightDiff")
        return cls(
            stats,
            convert(value.get("brokerAddr") or "", str),
            convert(value.get("totalDiff") or 0, int),
            None if in_flight is None else convert(in_flight, int),
        )


class QueueOffsets(Body, frozen=True):
    """Reply to 222 and the body of 220: an offset for each queue."""

    dialect_nodes_max: ClassVar[int] = NODES_MAX

    offset_table: dict[MessageQueue, Long] = msgspec.field(default_factory=dict)

    def members(self) -> dict[str, Any]:
        return {"offsetTable": queue_table(self.offset_table)}

    def encode_list(self, count: int) -> Generator[None, None, bytes]:
        """Return the body as C++ clients expect it, a list, yielding after each count of queues."""
        items = (
            _QueueOffset(queue.topic, queue.broker_name, queue.queue_id, offset)
            for queue, offset in self.offset_table.items()
        )
        return (yield from encode_list_in_slices(_QueueOffsetList(), "offsetTable", items, count))

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        table = value.get("offsetTable")
        if isinstance(table, list):
            items = convert(table, list[_QueueOffset])
            return cls({MessageQueue(item.topic, item.broker_name, item.queue_id): item.offset for item in items})
        return cls(read_queue_table(table, int))


class _QueueOffset(Body, frozen=True):
    topic: str
    broker_name: str
    queue_id: Long
    offset: Long


class _QueueOffsetList(Body, frozen=True):
    offset_table: tuple[_QueueOffset, ...] = ()


class ConsumerStatus(Body, frozen=True):
    """Reply to 221 (a client's own offsets) and 223 (those of each client of the group)."""

    dialect_nodes_max: ClassVar[int] = NODES_MAX

    message_queue_table: dict[MessageQueue, Long] = msgspec.field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Long]] = msgspec.field(default_factory=dict)

    def members(self) -> dict[str, Any]:
        return {
            "consumerTable": {client: queue_table(table) for client, table in self.consumer_table.items()},
            "messageQueueTable": queue_table(self.message_queue_table),
        }

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        clients = convert(value.get("consumerTable") or {}, dict[str, Any])
        return cls(
            read_queue_table(value.get("messageQueueTable"), int),
            {client: read_queue_table(table, int) for client, table in clients.items()},
        )


class ClientStatus(ConsumerStatus, frozen=True):
    """The reply to 221 as a broker reads it: one client's queues of one topic."""

    nodes_max: ClassVar[int] = REQUEST_NODES_MAX
    dialect_nodes_max: ClassVar[int] = REQUEST_DIALECT_NODES_MAX


class ClientConnection(Body, frozen=True):
    """A client as its broker sees it. client_addr: "ip:port" of the connection."""

    client_id: str = ""
    client_addr: str = ""
    language: str | None = None
    version: Long = 0


class ConsumerConnections(Body, frozen=True):
    """Reply to 203: the group's live clients, and its subscriptions by topic."""

    connection_set: tuple[ClientConnection, ...] = ()
    subscription_table: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnections(Body, frozen=True):
    """Reply to 204."""

    connection_set: tuple[ClientConnection, ...] = ()


class ProducerInfo(Body, frozen=True):
    """A producer client. last_update_timestamp: epoch ms of its last heartbeat."""

    client_id: str = ""
    remote_ip: str = msgspec.field(name="remoteIP", default="")
    language: str | None = None
    version: Long = 0
    last_update_timestamp: Long = 0


class ProducerTable(Body, frozen=True):
    """Reply to 328: clients by producer group."""

    data: dict[str, tuple[ProducerInfo, ...]] = msgspec.field(default_factory=dict)


class ProcessQueueInfo(Body, frozen=True):
    """A queue's state at its consumer. Timestamps are epoch ms; "droped" is spelled so."""

    commit_offset: Long = 0
    cached_msg_min_offset: Long = 0
    cached_msg_max_offset: Long = 0
    cached_msg_count: Long = 0
    cached_msg_size_in_mib: Long = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: Long = 0
    transaction_msg_max_offset: Long = 0
    transaction_msg_count: Long = 0
    locked: bool = False
    try_unlock_times: Long = 0
    last_lock_timestamp: Long = 0
    droped: bool = False
    last_pull_timestamp: Long = 0
    last_consume_timestamp: Long = 0


class PopQueueInfo(Body, frozen=True):
    """An assignment's state at its popping consumer; "droped" is spelled so. last_pop_timestamp: epoch ms."""

    droped: bool = False
    last_pop_timestamp: Long = 0
    wait_ack_count: Long = 0


class ConsumeStatus(Body, frozen=True):
    """A topic's consumption by one client: response times in ms, rates per second, failures of the last hour."""

    pull_rt: float = msgspec.field(name="pullRT", default=0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default=0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default=0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: Long = 0


# Properties of a ConsumerRunningInfo that Apache's admin tools require.
PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"


class ConsumerRunningInfo(Body, frozen=True):
    """Reply to 307: a consumer client about itself. Admin tools need the properties named in PROP_…."""

    dialect_nodes_max: ClassVar[int] = NODES_MAX

    properties: dict[str, str] = msgspec.field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    user_consumer_info: dict[str, str] = msgspec.field(default_factory=dict)
    jstack: str | None = None
    mq_pop_table: dict[MessageQueue, PopQueueInfo] = msgspec.field(default_factory=dict)

    def members(self) -> dict[str, Any]:
        members: dict[str, Any] = {
            "mqPopTable": queue_table(self.mq_pop_table),  # 5.x tools walk the map
            "mqTable": queue_table(self.mq_table),
            "properties": self.properties,
            "statusTable": {topic: status.members() for topic, status in self.status_table.items()},
            "subscriptionSet": [subscription.members() for subscription in self.subscription_set],
            "userConsumerInfo": self.user_consumer_info,
        }
        return members if self.jstack is None else {"jstack": self.jstack, **members}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        jstack = value.get("jstack")
        return cls(
            convert(value.get("properties") or {}, dict[str, str]),
            convert(value.get("subscriptionSet") or (), tuple[SubscriptionData, ...]),
            read_queue_table(value.get("mqTable"), ProcessQueueInfo),
            convert(value.get("statusTable") or {}, dict[str, ConsumeStatus]),
            convert(value.get("userConsumerInfo") or {}, dict[str, str]),
            None if jstack is None else convert(jstack, str),
            read_queue_table(value.get("mqPopTable"), PopQueueInfo),
        )


class DirectConsumeResult(Body, frozen=True):
    """Reply to 309.

    consume_result: CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or CR_RETURN_NULL.
    """

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Long = 0


class StatsItem(Body, frozen=True):
    """The sum over a time span, its rate per second, and the average per call."""

    sum: Long = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body, frozen=True):
    """Reply to 315."""

    stats_minute: StatsItem = StatsItem()
    stats_hour: StatsItem = StatsItem()
    stats_day: StatsItem = StatsItem()


class ConsumeTimeSpan(Body, frozen=True):
    """A queue's oldest, newest and consumed message times, epoch ms; delay_time: ms the group is behind.

    The …_str members are the same as local time, `2026-11-21#08:00:00:000`: Java's tools print them.
    """

    min_time_stamp: Long = 0
    max_time_stamp: Long = 0
    consume_time_stamp: Long = 0
    delay_time: Long = 0
    message_queue: dict[str, Any] = msgspec.field(default_factory=dict)
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


class ConsumeTimeSpans(Body, frozen=True):
    """Reply to 303."""

    consume_time_span_set: tuple[ConsumeTimeSpan, ...] = ()


class ConsumeQueueEntry(Body, frozen=True):
    """An entry of a ConsumeQueue. eval: whether the group's filter accepts it; msg: why not, if known."""

    physic_offset: Long = 0
    physic_size: Long = 0
    tags_code: Long = 0
    eval: bool = False
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class ConsumeQueueEntries(Body, frozen=True):
    """Reply to 321."""

    queue_data: tuple[ConsumeQueueEntry, ...] = ()
    min_queue_index: Long = 0
    max_queue_index: Long = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class GroupSubscription(Body, frozen=True):
    """Reply to 345."""

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None
