"""SyncAdmin: Admin for code without asyncio."""

from collections.abc import Sequence
from typing import Self

from mqtrail.client.admin import QUERY_COUNT_MAX, Admin, QueryResult
from mqtrail.client.admin_base import Gathered
from mqtrail.client.config import NAMESRV_DEFAULT, InstanceConfig
from mqtrail.client.pull import PullResult
from mqtrail.client.sync import Facade, background
from mqtrail.wire import (
    ClusterInfo,
    ConsumerConnections,
    ConsumerOffsetTable,
    ConsumeStats,
    GroupList,
    MessageExt,
    MessageQueue,
    ProducerConnections,
    QueueOffsets,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
    TopicStatsTable,
)


class SyncAdmin(Facade[Admin]):
    """The questions of Admin, asked and waited for. Thread safe. What each means and raises: see Admin."""

    def __init__(self, namesrv: str | Sequence[str] = NAMESRV_DEFAULT, *, config: InstanceConfig | None = None) -> None:
        super().__init__(lambda: Admin(namesrv, config=config))

    def __enter__(self) -> Self:
        return self

    def cluster(self) -> ClusterInfo:
        return background().run(self._get().cluster())

    def topics(self) -> list[str]:
        return background().run(self._get().topics())

    def route(self, topic: str) -> TopicRouteData:
        return background().run(self._get().route(topic))

    def queues(self, topic: str) -> list[MessageQueue]:
        return background().run(self._get().queues(topic))

    def create_topic(
        self, config: TopicConfig, *, cluster: str | None = None, broker_address: str | None = None
    ) -> Gathered[str]:
        return background().run(self._get().create_topic(config, cluster=cluster, broker_address=broker_address))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> Gathered[str]:
        return background().run(self._get().delete_topic(topic, cluster=cluster))

    def topic_configs(self, broker_address: str) -> TopicConfigTable:
        return background().run(self._get().topic_configs(broker_address))

    def topic_stats(self, topic: str) -> Gathered[TopicStatsTable]:
        return background().run(self._get().topic_stats(topic))

    def groups(self, broker_address: str) -> SubscriptionGroupTable:
        return background().run(self._get().groups(broker_address))

    def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, broker_address: str | None = None
    ) -> Gathered[str]:
        return background().run(self._get().create_group(config, cluster=cluster, broker_address=broker_address))

    def groups_of_topic(self, topic: str) -> Gathered[GroupList]:
        return background().run(self._get().groups_of_topic(topic))

    def topics_of_group(self, group: str, broker_address: str) -> list[str]:
        return background().run(self._get().topics_of_group(group, broker_address))

    def consumer_connections(self, group: str, broker_address: str) -> ConsumerConnections:
        return background().run(self._get().consumer_connections(group, broker_address))

    def producer_connections(self, group: str, broker_address: str) -> ProducerConnections:
        return background().run(self._get().producer_connections(group, broker_address))

    def consume_stats(self, group: str, topic: str | None = None) -> Gathered[ConsumeStats]:
        return background().run(self._get().consume_stats(group, topic))

    def committed_offsets(self, broker_address: str) -> ConsumerOffsetTable:
        return background().run(self._get().committed_offsets(broker_address))

    def reset_offset(self, group: str, topic: str, timestamp_ms: int) -> Gathered[QueueOffsets]:
        return background().run(self._get().reset_offset(group, topic, timestamp_ms))

    def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        return background().run(self._get().consumer_offset(group, queue))

    def min_offset(self, queue: MessageQueue) -> int:
        return background().run(self._get().min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return background().run(self._get().max_offset(queue))

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return background().run(self._get().offset_by_time(queue, timestamp_ms))

    def pull(self, queue: MessageQueue, offset: int, count_max: int = 32) -> PullResult:
        return background().run(self._get().pull(queue, offset, count_max))

    def message_at(self, offset_msg_id: str) -> MessageExt:
        return background().run(self._get().message_at(offset_msg_id))

    def query(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = 0x7FFF_FFFF_FFFF_FFFF,
        *,
        count_max: int = QUERY_COUNT_MAX,
        unique: bool = False,
    ) -> QueryResult:
        return background().run(self._get().query(topic, key, begin_ms, end_ms, count_max=count_max, unique=unique))

    def message_by_id(self, topic: str, msg_id: str, begin_ms: int = 0) -> QueryResult:
        return background().run(self._get().message_by_id(topic, msg_id, begin_ms))

    def masters(self, cluster: str | None = None) -> dict[str, str]:
        return background().run(self._get().masters(cluster))

    def broker_config(self, broker_address: str) -> dict[str, str]:
        return background().run(self._get().broker_config(broker_address))

    def runtime_info(self, broker_address: str) -> dict[str, str]:
        return background().run(self._get().runtime_info(broker_address))
