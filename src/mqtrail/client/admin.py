"""Admin: what operators and our own tools ask of name servers and brokers.

A question that many brokers answer returns `Gathered`: what was found, and which brokers failed and how. "Nothing
there" and "could not look" are never the same answer: a broker's refusal is kept in `failures`, with its class.
Nothing here writes to the cluster but the methods named create_, delete_, reset_.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mqtrail.client.admin_base import AdminBase, Gathered
from mqtrail.client.nameservers import read_body
from mqtrail.client.pull import PullResult, read_pull_reply
from mqtrail.wire import (
    TOOLS_CONSUMER_GROUP,
    ConsumerConnections,
    ConsumerOffsetTable,
    ConsumeStats,
    CreateTopicHeader,
    GroupList,
    KvTable,
    MessageExt,
    MessageQueue,
    NoMessage,
    ProducerConnections,
    PullHeader,
    PullSysFlag,
    QueryMessageHeader,
    QueryNotFound,
    QueueOffsets,
    RemotingCommand,
    RequestCode,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
    decode_records,
    parse_offset_msg_id,
)

QUERY_COUNT_MAX = 64  # a broker's bound for one query (maxMsgsNumBatch)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Messages that an index knew, oldest first; brokers that could not be asked; whether a bound cut some off."""

    messages: tuple[MessageExt, ...]
    failures: Mapping[str, Exception]
    cut_off: bool = False


class Admin(AdminBase):
    """Asks name servers and brokers. Use it with `async with`, from one event loop."""

    # -- cluster and topics ----------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        found = await self._client.name_servers.ask(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, lambda reply: read_body(reply, TopicList.decode)
        )
        return sorted(found.topic_list)

    async def route(self, topic: str) -> TopicRouteData:
        """The topic's route as the name server tells it now. Raises RouteNotFound."""
        return await self._client.name_servers.route(topic)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, sorted. Raises RouteNotFound."""
        return list((await self._client.fetch_route(topic)).subscribe_queues)

    async def create_topic(
        self, config: TopicConfig, *, cluster: str | None = None, broker_address: str | None = None
    ) -> Gathered[str]:
        """Create a topic, or change it, on one broker or on all masters of a cluster (None: of every cluster).

        Raises ClientError when there is no such broker.
        """
        header = CreateTopicHeader(
            topic=config.topic,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(f"+{name}={value}" for name, value in config.attributes.items()) or None,
        )
        return await self._on_masters(
            cluster,
            broker_address,
            lambda address: self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()),
        )

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> Gathered[str]:
        """Delete a topic on the masters of a cluster (None: of every cluster) and then on the name servers."""
        gathered = await self._on_masters(
            cluster, None, lambda address: self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        )
        for address in await self._client.name_servers.known():
            await self._call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
        return gathered

    async def topic_configs(self, broker_address: str) -> TopicConfigTable:
        """All topics of a broker."""
        return await self._ask(broker_address, RequestCode.GET_ALL_TOPIC_CONFIG, {}, TopicConfigTable.decode)

    async def topic_stats(self, topic: str) -> Gathered[TopicStatsTable]:
        """Each broker's queue ranges of a topic and when they were last written."""
        ext = {"topic": topic}
        return await self._on_topic(topic, RequestCode.GET_TOPIC_STATS_INFO, ext, TopicStatsTable.decode)

    # -- groups ----------------------------------------------------------------------------------------------------

    async def groups(self, broker_address: str) -> SubscriptionGroupTable:
        """All consumer groups that a broker has a configuration of."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._ask(broker_address, code, {}, SubscriptionGroupTable.decode)

    async def create_group(
        self, config: SubscriptionGroupConfig, *, cluster: str | None = None, broker_address: str | None = None
    ) -> Gathered[str]:
        """Create a consumer group, or change it, on one broker or on all masters of a cluster."""
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return await self._on_masters(
            cluster, broker_address, lambda address: self._call(address, code, {}, config.encode())
        )

    async def groups_of_topic(self, topic: str) -> Gathered[GroupList]:
        """The groups that consume a topic, from each of its brokers: live ones, and those with a committed offset."""
        return await self._on_topic(topic, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}, GroupList.decode)

    async def topics_of_group(self, group: str, broker_address: str) -> list[str]:
        """The topics of which a broker has an offset of the group. Not of 4.9 brokers (RequestCodeNotSupported)."""
        found = await self._ask(
            broker_address, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group}, TopicList.decode
        )
        return sorted(found.topic_list)

    async def consumer_connections(self, group: str, broker_address: str) -> ConsumerConnections:
        """The live members of a group at a broker. Raises ConsumerNotOnline when it has none there."""
        ext = {"consumerGroup": group}
        return await self._ask(
            broker_address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext, ConsumerConnections.decode
        )

    async def producer_connections(self, group: str, broker_address: str) -> ProducerConnections:
        """The live producers of a group at a broker. Raises SystemError_ (Java's code 1) when it has none there."""
        ext = {"producerGroup": group}
        return await self._ask(
            broker_address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ext, ProducerConnections.decode
        )

    async def consume_stats(self, group: str, topic: str | None = None) -> Gathered[ConsumeStats]:
        """Where a group stands on each queue of a topic (None: of all its topics), from every broker's master.

        A queue without a committed offset is shown by brokers with consumer offset 0 or -1: `committed_offsets` tells
        the difference.
        """
        ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        masters = await self.masters()
        return await self._gather(
            {
                name: self._ask(address, RequestCode.GET_CONSUME_STATS, ext, ConsumeStats.decode)
                for name, address in masters.items()
            }
        )

    async def committed_offsets(self, broker_address: str) -> ConsumerOffsetTable:
        """All offsets that groups committed at a broker: "topic@group" -> queue id -> offset."""
        return await self._ask(broker_address, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, ConsumerOffsetTable.decode)

    async def reset_offset(self, group: str, topic: str, timestamp_ms: int) -> Gathered[QueueOffsets]:
        """Move a group to what was stored from a time on (-1: to the end), on every broker of the topic."""
        ext = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "true"}
        return await self._on_topic(topic, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext, QueueOffsets.decode)

    # -- queues ----------------------------------------------------------------------------------------------------

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The group's committed offset of a queue; None when it committed none."""
        # Without setZeroIfNotFound=false a broker answers 0 for a young queue.
        ext = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        try:
            return await self._offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        except QueryNotFound:
            return None

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first offset that the queue still keeps."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, {})

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, {})

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after a time; the queue's end when there is none."""
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(timestamp_ms)})

    async def pull(self, queue: MessageQueue, offset: int, count_max: int = 32) -> PullResult:
        """Pull once, without leaving a mark; offset must be within the queue's range (see QueueReader's head)."""
        header = PullHeader(
            consumer_group=TOOLS_CONSUMER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count_max,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            expression_type="TAG",
        )
        address = await self._address_of(queue)
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
        return read_pull_reply(await self._client.pool.request(address, command, self._timeout_ms))

    # -- messages --------------------------------------------------------------------------------------------------

    async def message_at(self, offset_msg_id: str) -> MessageExt:
        """The message of a broker's id. Raises IdError for another shape, SystemError_ when it is not there."""
        host, physical_offset = parse_offset_msg_id(offset_msg_id)
        address = f"[{host.ip}]:{host.port}" if ":" in host.ip else str(host)
        reply = await self._client.call(address, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)})
        found = decode_records(reply.body)
        if not found:
            raise NoMessage(f"the broker at {address} answered without a record for {offset_msg_id}")
        return found[0]

    async def query(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = 0x7FFF_FFFF_FFFF_FFFF,
        *,
        count_max: int = QUERY_COUNT_MAX,
        unique: bool = False,
    ) -> QueryResult:
        """Messages of a topic that carry a key (unique: that have this id), from every broker's index.

        Brokers know messages by time of storage and give at most QUERY_COUNT_MAX, the newest; `cut_off` tells that
        there may be more. Hash collisions are dropped.
        """
        header = QueryMessageHeader(topic, key, count_max, begin_ms, end_ms, unique)
        route = await self._client.route(topic)
        names = [name for name in route.brokers if route.address(name) is not None]
        answers = await self._gather({name: self._query(route.address(name) or "", header, name) for name in names})
        messages = [
            message for found in answers.values() for message in found if _is_asked_for(message, topic, key, unique)
        ]
        cut_off = any(len(found) >= min(count_max, QUERY_COUNT_MAX) for found in answers.values())
        messages.sort(key=lambda message: (message.store_timestamp_ms, message.physical_offset))
        return QueryResult(tuple(messages), answers.failures, cut_off)

    async def message_by_id(self, topic: str, msg_id: str, begin_ms: int = 0) -> QueryResult:
        """All stored copies of a client's id (retries and dead letters stand in other topics)."""
        return await self.query(topic, msg_id, begin_ms, unique=True)

    async def _query(self, address: str, header: QueryMessageHeader, broker_name: str) -> list[MessageExt]:
        try:
            reply = await self._client.call(address, RequestCode.QUERY_MESSAGE, header.to_ext())
        except QueryNotFound:
            return []
        return decode_records(reply.body, broker_name)

    # -- brokers ---------------------------------------------------------------------------------------------------

    async def broker_config(self, broker_address: str) -> dict[str, str]:
        """A broker's settings."""
        return await self._ask(broker_address, RequestCode.GET_BROKER_CONFIG, {}, _properties_text)

    async def runtime_info(self, broker_address: str) -> dict[str, str]:
        """A broker's counters and versions."""
        table = await self._ask(broker_address, RequestCode.GET_BROKER_RUNTIME_INFO, {}, KvTable.decode)
        return dict(table.table)


def _is_asked_for(message: MessageExt, topic: str, key: str, unique: bool) -> bool:
    if unique:
        return message.msg_id == key or message.offset_msg_id == key
    return message.topic == topic and key in message.keys


def _properties_text(body: bytes) -> dict[str, str]:
    """Read `name=value` lines."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").splitlines())
    return {name.strip(): value.strip() for name, equals, value in lines if equals and not name.startswith("#")}
