"""What operators ask of the broker, in RocketMQ's requests."""

from __future__ import annotations

from dataclasses import dataclass

from mqtrail.wire import (
    BrokerConsumeStats,
    ConsumerConnections,
    ConsumerNotOnline,
    GroupList,
    KvTable,
    MessageExt,
    OffsetResponseHeader,
    QueryMessageHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SearchOffsetHeader,
    SubscriptionGroupConfig,
    SubscriptionGroupNotExist,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicNotExist,
    TopicOffset,
    TopicStatsTable,
    is_business_group,
    is_business_topic,
    read_records,
    refusal_for,
)

from ..caller import ASK_TIMEOUT_MS, succeed
from ..pmq import PmqBroker, QueueName

FOREVER_MS = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class OperatorBroker(PmqBroker):
    """The broker for an operator: what pmq's interface asks of it, and more. Every call: Refusal, TimeoutError."""

    async def ask(self, code: RequestCode, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        """Return the reply of a request that the broker accepted."""
        return await succeed(self.caller, RemotingCommand(code, ext or {}, body), self.host)

    # Topics and queues.

    async def topics(self) -> dict[str, TopicConfig]:
        """Return the topics of applications by name."""
        found = TopicConfigTable.decode((await self.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body).topic_config_table
        reply = await self.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        systems = set(TopicList.decode(reply.body).topic_list)
        return {name: found[name] for name in sorted(found.keys() - systems) if is_business_topic(name)}

    async def known_topic(self, name: str) -> TopicConfig:
        """Return a topic. TopicNotExist."""
        found = await self.topic(name)
        if found is None:
            raise TopicNotExist(f"found no topic {name}")
        return found

    async def reaches(self, topic: str) -> dict[int, TopicOffset]:
        """Return the range of each queue; {}: there is no such topic."""
        command = RemotingCommand(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        reply = await self.caller.ask(command, self.host, ASK_TIMEOUT_MS)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        if reply.code != ResponseCode.SUCCESS:
            raise refusal_for(reply.code, reply.remark)
        table = TopicStatsTable.decode(reply.body).offset_table
        return {queue.queue_id: reach for queue, reach in sorted(table.items())}

    async def offset_at(self, queue: QueueName, time_ms: int) -> int:
        """Return the offset of the first message stored at or after a time; the queue's end: there is none."""
        reply = await self.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader(*queue, time_ms).to_ext())
        return OffsetResponseHeader.from_ext(reply.ext).offset

    # Groups.

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the groups of applications by name."""
        table = SubscriptionGroupTable.decode((await self.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
        found = table.subscription_group_table
        return {name: found[name] for name in sorted(found) if is_business_group(name)}

    async def known_group(self, name: str) -> SubscriptionGroupConfig:
        """Return a group. SubscriptionGroupNotExist."""
        found = await self.group(name)
        if found is None:
            raise SubscriptionGroupNotExist(
                f"found no group {name}, expected one: create it with `mqtrail pmq group create`"
            )
        return found

    async def online(self, group: str) -> ConsumerConnections:
        """Return the members that are online, with their subscriptions."""
        command = RemotingCommand(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        reply = await self.caller.ask(command, self.host, ASK_TIMEOUT_MS)
        if reply.code == ConsumerNotOnline.code:
            return ConsumerConnections()
        if reply.code != ResponseCode.SUCCESS:
            raise refusal_for(reply.code, reply.remark)
        return ConsumerConnections.decode(reply.body)

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that consume a topic, or did, by name."""
        reply = await self.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
        return sorted(name for name in GroupList.decode(reply.body).group_list if is_business_group(name))

    async def places(self) -> BrokerConsumeStats:
        """Return the offsets of all groups."""
        reply = await self.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        return BrokerConsumeStats.decode(reply.body)

    # Messages and the broker.

    async def by_key(self, topic: str, key: str, count: int, *, is_id: bool) -> list[MessageExt]:
        """Return the newest messages with this key, or this id."""
        header = QueryMessageHeader(topic, key, count, 0, FOREVER_MS, is_id)
        command = RemotingCommand(RequestCode.QUERY_MESSAGE, header.to_ext())
        reply = await self.caller.ask(command, self.host, ASK_TIMEOUT_MS)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if reply.code != ResponseCode.SUCCESS:
            raise refusal_for(reply.code, reply.remark)
        return [one for one in read_records(reply.body) if one.msg_id == key] if is_id else read_records(reply.body)

    async def runtime(self) -> dict[str, str]:
        """Return the broker's figures."""
        return KvTable.decode((await self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
