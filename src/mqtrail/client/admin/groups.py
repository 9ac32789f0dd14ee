"""Groups: configuration, members, offsets, consumption mode."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from mqtrail.wire import (
    BrokerConsumeStats,
    ConsumerConnections,
    ConsumerNotOnline,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumeStats,
    ConsumeTimeSpans,
    GroupList,
    GroupSubscription,
    ProducerConnections,
    ProducerTable,
    Refusal,
    RequestCode,
    RequestCodeNotSupported,
    RequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicList,
    dlq_topic,
    retry_topic,
)

from .base import Gathered, in_parts
from .topics import AdminTopics, Deleted

GROUPS_AT_ONCE_MAX = 16  # concurrent requests to one broker for the connections of groups
FORWARD_TIMEOUT_MS = 15_000  # a broker waits 10 s for the client that it forwards a request to


@dataclass(frozen=True, slots=True)
class Member:
    """A live consumer, as its broker reports it. running: None if it did not answer, then error says why."""

    client_id: str
    address: str
    broker_name: str
    language: str
    version: int
    running: ConsumerRunningInfo | None
    error: Exception | None = None


class AdminGroups(AdminTopics):
    """Admin's methods for groups."""

    async def groups(self, broker_address: str) -> SubscriptionGroupTable:
        """The configurations of all consumer groups of a broker."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._ask(broker_address, code, {}, SubscriptionGroupTable.decode)

    async def group_config(self, group: str) -> Gathered[SubscriptionGroupConfig | None]:
        """The group's configuration on each master; None where it has none."""

        async def config(address: str) -> SubscriptionGroupConfig | None:
            return (await self.groups(address)).subscription_group_table.get(group)

        return await self._on_targets(None, None, config)

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Create a consumer group, or change it, on one broker or on all masters of a cluster."""
        code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config.encode()
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, {}, body))

    async def create_groups(
        self, configs: Sequence[SubscriptionGroupConfig], *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Create groups, LISTED_MAX per request. 4.9 brokers refuse (RequestCodeNotSupported)."""
        bodies = [SubscriptionGroupList(tuple(some)).encode() for some in in_parts(configs)]
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        return await self._on_targets(cluster, broker, lambda address: self._call_in_parts(address, code, bodies))

    async def delete_group(
        self, group: str, *, cluster: str | None = None, broker: str | None = None, clean_offsets: bool = False
    ) -> Gathered[str]:
        """Delete a group's configuration (clean_offsets: and offsets), but not its retry and dead-letter topics."""
        clean = "true" if clean_offsets else "false"
        ext = {"groupName": group, "cleanOffset": clean, "removeOffset": clean}
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, ext))

    async def delete_group_topics(self, group: str, *, cluster: str | None = None) -> dict[str, Deleted]:
        """Delete a group's retry and dead-letter topics and all messages in them."""
        return {
            topic: await self.delete_topic(topic, cluster=cluster) for topic in (retry_topic(group), dlq_topic(group))
        }

    async def groups_of_topic(self, topic: str) -> Gathered[GroupList]:
        """The groups that consume a topic, from each of its brokers: live ones, and those with a committed offset.

        Apache's brokers up to 5.3.3 return the topic's name instead of its live groups. From such a broker, the
        connections of all configured groups are requested.
        Source: ConsumerManager.registerConsumer, apache/rocketmq 5.3.3 broker/.
        """

        async def groups(address: str) -> GroupList:
            code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
            known = await self._ask(address, code, {"topic": topic}, GroupList.decode)
            if topic not in known.group_list:
                return known
            with_offsets = {group for group in known.group_list if group != topic}
            return GroupList(tuple(sorted(with_offsets | await self._live_groups(topic, address))))

        route = await self._client.fetch_route(topic)
        addresses = {name: address for name in route.brokers if (address := route.address(name)) is not None}
        return await self._gather({name: groups(address) for name, address in addresses.items()})

    async def _live_groups(self, topic: str, address: str) -> set[str]:
        """The configured groups of a broker whose live members subscribe to the topic."""
        asking = asyncio.Semaphore(GROUPS_AT_ONCE_MAX)

        async def subscribes(group: str) -> bool:
            async with asking:
                try:
                    return topic in (await self.consumer_connections(group, address)).subscription_table
                except Refusal:  # no member of the group is connected to the broker
                    return False

        groups = sorted((await self.groups(address)).subscription_group_table)
        found = await asyncio.gather(*map(subscribes, groups))
        return {group for group, is_found in zip(groups, found, strict=True) if is_found}

    async def topics_of_group(self, group: str, broker_address: str) -> list[str]:
        """The topics for which a broker has an offset of the group. 4.9 brokers refuse (RequestCodeNotSupported)."""
        found = await self._ask(
            broker_address, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group}, TopicList.decode
        )
        return sorted(found.topic_list)

    async def subscription(self, group: str, topic: str) -> Gathered[GroupSubscription]:
        """The subscription of the group's live members to a topic, from each of its brokers.

        From 4.9 brokers it is read from the members' connections.
        """
        ext = {"group": group, "topic": topic}

        async def subscription(address: str) -> GroupSubscription:
            try:
                return await self._ask(
                    address, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ext, GroupSubscription.decode
                )
            except RequestCodeNotSupported:
                known = await self.consumer_connections(group, address)
                return GroupSubscription(group, topic, known.subscription_table.get(topic))

        route = await self._client.fetch_route(topic)
        addresses = {name: address for name in route.brokers if (address := route.address(name)) is not None}
        return await self._gather({name: subscription(address) for name, address in addresses.items()})

    # -- live members ----------------------------------------------------------------------------------------------

    async def consumer_connections(self, group: str, broker_address: str) -> ConsumerConnections:
        """The live members of a group at a broker. Raises ConsumerNotOnline if there are none."""
        ext = {"consumerGroup": group}
        return await self._ask(
            broker_address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext, ConsumerConnections.decode
        )

    async def group_connections(self, group: str) -> Gathered[ConsumerConnections]:
        """The live members of a group at each master; an empty entry where there are none."""

        async def connections(address: str) -> ConsumerConnections:
            try:
                return await self.consumer_connections(group, address)
            except ConsumerNotOnline:
                return ConsumerConnections()

        return await self._on_targets(None, None, connections)

    async def running_info(
        self,
        group: str,
        client_id: str,
        broker_address: str,
        *,
        jstack: bool = False,
        timeout_ms: int = FORWARD_TIMEOUT_MS,
    ) -> ConsumerRunningInfo:
        """The running info of a live consumer, requested through its broker. jstack: include its threads' stacks.

        Raises SystemError_ (Java's code 1) if it is not connected there, ConsumeMsgTimeout if it did not answer.
        """
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "true" if jstack else "false"}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return await self._ask(broker_address, code, ext, ConsumerRunningInfo.decode, timeout_ms=timeout_ms)

    async def members(self, group: str, *, jstack: bool = False) -> Gathered[list[Member]]:
        """The live consumers of a group by broker, each with its running info."""

        async def member(address: str, name: str) -> list[Member]:
            try:
                connections = await self.consumer_connections(group, address)
            except ConsumerNotOnline:
                return []
            asked = {one.client_id: one for one in connections.connection_set}
            reports = await self._gather(
                {client_id: self.running_info(group, client_id, address, jstack=jstack) for client_id in asked}
            )
            return [
                Member(
                    client_id,
                    one.client_addr,
                    name,
                    one.language or "?",
                    one.version,
                    reports.found.get(client_id),
                    reports.failures.get(client_id),
                )
                for client_id, one in sorted(asked.items())
            ]

        masters = await self.targets()
        return await self._gather({name: member(address, name) for name, address in masters.items()})

    async def producer_connections(self, group: str, broker_address: str) -> ProducerConnections:
        """The live producers of a group at a broker. Raises SystemError_ (Java's code 1) if there are none."""
        ext = {"producerGroup": group}
        return await self._ask(
            broker_address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ext, ProducerConnections.decode
        )

    async def producers(self) -> Gathered[ProducerTable]:
        """All live producers of every master, by group."""
        code = RequestCode.GET_ALL_PRODUCER_INFO
        return await self._on_targets(None, None, lambda address: self._ask(address, code, {}, ProducerTable.decode))

    # -- progress --------------------------------------------------------------------------------------------------

    async def consume_stats(self, group: str, topic: str | None = None) -> Gathered[ConsumeStats]:
        """A group's offset of each queue of a topic (None: of all its topics), from every master.

        For a queue without a committed offset brokers return consumer offset 0 or -1; use `committed_offsets` to
        distinguish it from a committed 0.
        """
        ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        code = RequestCode.GET_CONSUME_STATS
        return await self._on_targets(None, None, lambda address: self._ask(address, code, ext, ConsumeStats.decode))

    async def broker_consume_stats(self, broker_address: str, *, ordered: bool = False) -> BrokerConsumeStats:
        """The progress of all groups of a broker. ordered: only topics of ordered messages."""
        ext = {"isOrder": "true" if ordered else "false"}
        return await self._ask(broker_address, RequestCode.GET_BROKER_CONSUME_STATS, ext, BrokerConsumeStats.decode)

    async def consume_time_spans(self, group: str, topic: str) -> Gathered[ConsumeTimeSpans]:
        """For each queue the times of its oldest, newest and consumed message, and the group's delay."""
        ext = {"group": group, "topic": topic}
        return await self._on_topic(topic, RequestCode.QUERY_CONSUME_TIME_SPAN, ext, ConsumeTimeSpans.decode)

    async def broker_time_spans(self, broker_address: str, group: str, topic: str) -> ConsumeTimeSpans:
        """As consume_time_spans, from one broker. Raises TopicNotExist."""
        ext = {"group": group, "topic": topic}
        return await self._ask(broker_address, RequestCode.QUERY_CONSUME_TIME_SPAN, ext, ConsumeTimeSpans.decode)

    async def consumer_status(
        self, group: str, topic: str, *, client_id: str | None = None
    ) -> Gathered[ConsumerStatus]:
        """The offsets in the memory of each live member of a group, requested through the topic's brokers."""
        ext = {"group": group, "topic": topic} | ({"clientAddr": client_id} if client_id else {})
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        return await self._on_topic(topic, code, ext, ConsumerStatus.decode)

    async def set_consume_mode(
        self,
        group: str,
        topic: str,
        mode: str,
        *,
        pop_share_queue_num: int = 0,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Gathered[str]:
        """Set the mode in which a group consumes a topic (5.x). mode: PULL or POP.

        pop_share_queue_num: number of members whose queues a popping member shares; 0: all members pop all queues.
        """
        body = RequestMode(topic, group, mode, pop_share_queue_num).encode()
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, {}, body))
