"""The operators' questions: topics, queues, groups, subscriptions, messages, the node. Nothing is changed here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from mqtrail.wire import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    ConsumerConnections,
    ConsumeStats,
    Host,
    MessageExt,
    MQError,
    NoMessage,
    OffsetWrapper,
    Perm,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    dlq_topic,
)

from ..caller import Caller
from ..member_names import is_of_member
from ..pmq import BROADCAST, PmqInterface, QueueName, is_broadcast
from ..problems import Problem
from ..shapes import body_of
from .broker import OperatorBroker
from .plans import DoorDatabase
from .shapes import (
    KeptMessage,
    OnlineMember,
    OperatedGroup,
    OperatedGroupDetail,
    OperatedLock,
    OperatedMember,
    OperatedNode,
    OperatedQueue,
    OperatedSubscription,
    OperatedTopic,
    Place,
    QueueAge,
)

PULL_MAX: Final = 32  # messages of one pull
AGES_MAX: Final = 2_000  # queues whose first message one answer looks at
GROUP_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)


class Looking:
    """Answers questions. database: None: the broker keeps a CommitLog."""

    def __init__(self, caller: Caller, pmq: PmqInterface, broker_name: str, database: DoorDatabase | None) -> None:
        self._caller = caller
        self._pmq = pmq
        self._broker_name = broker_name
        self._facts = None if database is None else database.facts
        self._keeper = None if database is None else database.keeper
        self._asking = asyncio.Lock()  # the database gets one connection for these questions

    def broker(self, host: Host) -> OperatorBroker:
        """Return the broker for a client with this address."""
        return OperatorBroker(self._caller, host)

    # Topics and queues.

    async def topics(self, host: Host) -> list[OperatedTopic]:
        """Return all topics of applications."""
        broker = self.broker(host)
        return [await self._topic(broker, config) for config in (await broker.topics()).values()]

    async def topic(self, name: str, host: Host) -> OperatedTopic:
        """TopicNotExist."""
        broker = self.broker(host)
        return await self._topic(broker, await broker.known_topic(name))

    async def consumers(self, topic: str, host: Host) -> list[str]:
        """Return the groups that consume a topic, or did."""
        return await self.broker(host).groups_of(topic)

    async def _topic(self, broker: OperatorBroker, config: TopicConfig) -> OperatedTopic:
        reaches = await broker.reaches(config.topic)
        return OperatedTopic(
            config.topic,
            config.read_queue_nums,
            config.write_queue_nums,
            bool(config.perm & Perm.READ),
            bool(config.perm & Perm.WRITE),
            sum(map(_kept, reaches.values())),
            max((one.last_update_timestamp for one in reaches.values()), default=0) or None,
            await broker.groups_of(config.topic),
        )

    async def queues(self, topic: str | None, with_tables: bool, host: Host) -> list[OperatedQueue]:
        """Return the queues of a topic, or of all topics of applications. with_tables: with table and size."""
        broker = self.broker(host)
        topics = [await broker.known_topic(topic)] if topic is not None else list((await broker.topics()).values())
        tables: dict[tuple[str, int], Any] = {}
        if with_tables and self._facts is not None:
            facts = await self._ask_database(True, True)
            tables = {(one.topic, one.queue): one for one in facts.queues if one.state == "used"}
        found = []
        for config in topics:
            for queue_id, reach in (await broker.reaches(config.topic)).items():
                table = tables.get((config.topic, queue_id))
                row = _queue_row(config, queue_id, reach, table)
                if self._keeper is not None:
                    row.node = self._keeper.node_of(config.topic, queue_id)
                    row.writable &= not self._keeper.is_closed(config.topic, queue_id)
                found.append(row)
        return found

    async def ages(self, topic: str | None, host: Host) -> list[QueueAge]:
        """Return when the first message of each queue was stored: of a topic, or of all topics of applications.

        Problem: there are too many queues.
        """
        broker = self.broker(host)
        names = [(await broker.known_topic(topic)).topic] if topic is not None else list(await broker.topics())
        reaches = [(name, number, reach) for name in names for number, reach in (await broker.reaches(name)).items()]
        if len(reaches) > AGES_MAX:
            detail = f"found {len(reaches)} queues, expected at most {AGES_MAX}: ask for one topic"
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        found = []
        for name, number, reach in reaches:
            first = await _pulled(broker, QueueName(name, number), reach.min_offset, reach.min_offset + 1)
            found.append(QueueAge(name, number, first[0].store_timestamp_ms if first else None))
        return found

    async def count(self, topic: str, from_ms: int, until_ms: int, host: Host) -> int:
        """Return how many kept messages of a topic were stored in [from_ms, until_ms). TopicNotExist."""
        broker = self.broker(host)
        await broker.known_topic(topic)
        total = 0
        for number, reach in (await broker.reaches(topic)).items():
            ends = [await broker.offset_at(QueueName(topic, number), at_ms) for at_ms in (from_ms, until_ms)]
            first, end = (min(max(one, reach.min_offset), reach.max_offset) for one in ends)
            total += max(0, end - first)
        return total

    async def _ask_database(self, with_queues: bool, with_sizes: bool) -> Any:
        """Problem: it does not answer."""
        assert self._facts is not None
        async with self._asking:
            try:
                return await asyncio.to_thread(self._facts, with_queues, with_sizes)
            except MQError as error:
                raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error

    # Groups and subscriptions.

    async def groups(self, host: Host) -> list[OperatedGroup]:
        """Return all groups of applications."""
        broker = self.broker(host)
        places = (await broker.places()).consume_stats
        return [
            await self._group(broker, config, _places(places.get(name, ())), await broker.online(name))
            for name, config in (await broker.groups()).items()
        ]

    async def group(self, name: str, host: Host) -> OperatedGroupDetail:
        """SubscriptionGroupNotExist."""
        broker = self.broker(host)
        config = await broker.known_group(name)
        places = _places((await broker.places()).consume_stats.get(name, ()))
        online = await broker.online(name)
        row = await self._group(broker, config, places, online)
        members = [OperatedMember(one.client_id, one.client_addr, "rocketmq") for one in online.connection_set]
        for consumer in self._pmq.members_of(name):
            members.append(OperatedMember(consumer.name, consumer.name.partition("|")[0], "pmq"))
        others = self._pmq.http_members_of(name)
        members += [OperatedMember(one.name, one.address, "http") for one in others]
        return OperatedGroupDetail(**msgspec.structs.asdict(row), members=members, queues=places)

    async def members(self, host: Host) -> list[OnlineMember]:
        """Return the clients of all groups that are online."""
        broker = self.broker(host)
        found = []
        for name in await broker.groups():
            for one in (await broker.online(name)).connection_set:
                version = f"{one.version}"
                found.append(
                    OnlineMember(name, one.client_id, one.client_addr, "rocketmq", one.language, version, None)
                )
            for consumer in self._pmq.members_of(name):
                address = consumer.name.partition("|")[0]
                found.append(OnlineMember(name, consumer.name, address, "pmq", None, None, consumer.seen_ms))
            others = self._pmq.http_members_of(name)
            found += [OnlineMember(name, one.name, one.address, "http", None, None, None) for one in others]
        return found

    async def _group(
        self,
        broker: OperatorBroker,
        config: SubscriptionGroupConfig,
        places: Sequence[Place],
        online: ConsumerConnections,
    ) -> OperatedGroup:
        name = config.group_name
        placed = {one.topic for one in places}
        topics = placed | set(online.subscription_table) | set(self._pmq.topics_of(name))
        is_known = not [one for one in topics - placed if not one.startswith(GROUP_PREFIXES)]
        return OperatedGroup(
            name,
            not config.consume_enable,
            config.retry_max_times,
            sorted(topic for topic in topics if not topic.startswith(RETRY_PREFIX)),
            len(online.connection_set) + self._pmq.online_of(name),
            sum(one.pending for one in places if not one.topic.startswith(RETRY_PREFIX)) if is_known else None,
            sum(one.pending for one in places if one.topic.startswith(RETRY_PREFIX)),
            sum(map(_kept, (await broker.reaches(dlq_topic(name))).values())),
            "member" if is_of_member(name) else BROADCAST if is_broadcast(config) else "cluster",
        )

    async def subscriptions(self, host: Host) -> list[OperatedSubscription]:
        """Return which group consumes which topic."""
        broker = self.broker(host)
        places = (await broker.places()).consume_stats
        found = []
        for name, config in (await broker.groups()).items():
            online = await broker.online(name)
            pending: dict[str, int | None] = dict.fromkeys(
                (*online.subscription_table, *self._pmq.topics_of(name)), None
            )
            for one in _places(places.get(name, ())):
                pending[one.topic] = (pending.get(one.topic) or 0) + one.pending
            count = len(online.connection_set) + self._pmq.online_of(name)
            for topic, behind in sorted(pending.items()):
                if not topic.startswith(GROUP_PREFIXES):
                    known = online.subscription_table.get(topic)
                    tag = None if known is None else known.sub_string
                    found.append(OperatedSubscription(name, topic, tag, count, behind, not config.consume_enable))
        return found

    # Messages.

    async def messages(
        self, topic: str, queue: int | None, first: int | None, from_ms: int | None, count: int, host: Host
    ) -> list[KeptMessage]:
        """Return at most count messages of a queue, or of each queue, from an offset or a time on; else the last ones.

        TopicNotExist.
        """
        broker = self.broker(host)
        await broker.known_topic(topic)
        found: list[MessageExt] = []
        for number, reach in (await broker.reaches(topic)).items():
            if queue in (None, number):
                name = QueueName(topic, number)
                start = max(reach.min_offset, reach.max_offset - count) if first is None else first
                if from_ms is not None:
                    start = await broker.offset_at(name, from_ms)
                found += await _pulled(broker, name, start, min(reach.max_offset, start + count))
        found.sort(key=lambda one: (one.store_timestamp_ms, one.queue_id, one.queue_offset))
        is_tail = first is None and from_ms is None
        return [_message_row(one, is_whole=False) for one in (found[-count:] if is_tail else found[:count])]

    async def messages_by_key(self, topic: str, key: str, count: int, host: Host, *, is_id: bool) -> list[KeptMessage]:
        """Return the newest messages with a key, or with an id. TopicNotExist."""
        broker = self.broker(host)
        await broker.known_topic(topic)
        found = await broker.by_key(topic, key, count, is_id=is_id)
        found.sort(key=lambda one: (one.store_timestamp_ms, one.queue_id, one.queue_offset))
        return [_message_row(one, is_whole=is_id) for one in found]

    async def message(self, topic: str, queue: int, offset: int, host: Host) -> KeptMessage:
        """Return one message, with body and properties. TopicNotExist, NoMessage."""
        broker = self.broker(host)
        await broker.known_topic(topic)
        for one in await _pulled(broker, QueueName(topic, queue), offset, offset + 1):
            return _message_row(one, is_whole=True)
        raise NoMessage(f"found no message at offset {offset} of queue {queue} of {topic}: list its messages")

    # The node.

    async def node(self, host: Host) -> OperatedNode:
        """Return figures of broker and database; of an unreachable database only why."""
        away = self._caller.away
        if away is not None:
            return OperatedNode(self._broker_name, "", 0, away, 0, 0, 0, None)
        figures = await self.broker(host).runtime()
        database: dict[str, Any] | None = None
        if self._facts is not None:
            found = await self._ask_database(False, False)
            leaves = ("queues", "writers")
            database = {name: value for name, value in msgspec.to_builtins(found).items() if name not in leaves}
        end, first = int(figures["commitLogMaxOffset"]), int(figures["commitLogMinOffset"])
        today = int(figures.get("msgPutTotalTodayNow", 0)) - int(figures.get("msgPutTotalTodayMorning", 0))
        return OperatedNode(
            self._broker_name,
            figures["brokerVersionDesc"],
            int(figures["bootTimestamp"]),
            None,
            int(figures["remainHowManyDataToFlush"].split()[0]),
            end - first,
            today,
            database,
        )

    async def lock(self) -> OperatedLock:
        """Return which process may write to the database, and earlier ones. Problem: there is no database."""
        if self._facts is None:
            raise Problem(
                HTTPStatus.NOT_FOUND, "found a broker with a CommitLog, expected one on tables: it has no lock"
            )
        found = await self._ask_database(False, False)
        return OperatedLock(found.writer, found.clock_ms, msgspec.to_builtins(found.writers))


def _kept(reach: TopicOffset) -> int:
    return reach.max_offset - reach.min_offset


def _queue_row(config: TopicConfig, queue_id: int, reach: TopicOffset, table: Any) -> OperatedQueue:
    return OperatedQueue(
        config.topic,
        queue_id,
        reach.min_offset,
        reach.max_offset,
        _kept(reach),
        reach.last_update_timestamp or None,
        bool(config.perm & Perm.READ) and queue_id < config.read_queue_nums,
        bool(config.perm & Perm.WRITE) and queue_id < config.write_queue_nums,
        None if table is None else table.table,
        None if table is None else table.size,
    )


def _places(stats: Sequence[ConsumeStats]) -> list[Place]:
    """Return the places of one group, by topic and queue."""
    found: Mapping[Any, OffsetWrapper] = {queue: at for one in stats for queue, at in one.offset_table.items()}
    return [
        Place(
            queue.topic,
            queue.queue_id,
            at.consumer_offset,
            at.broker_offset,
            max(0, at.broker_offset - at.consumer_offset),
            at.last_timestamp or None,
        )
        for queue, at in sorted(found.items())
    ]


async def _pulled(broker: OperatorBroker, queue: QueueName, start: int, end: int) -> list[MessageExt]:
    """Return the messages in [start, end) that are kept."""
    found: list[MessageExt] = []
    while start < end:
        batch = [one for one in await broker.pull(queue, start, min(PULL_MAX, end - start)) if one.queue_offset < end]
        if not batch:
            break
        found += batch
        start = batch[-1].queue_offset + 1
    return found


def _message_row(message: MessageExt, *, is_whole: bool) -> KeptMessage:
    """is_whole: with body and properties."""
    text, encoded = body_of(message) if is_whole else (None, None)
    return KeptMessage(
        message.msg_id,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.reconsume_times + 1,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
        len(message.body),
        str(message.born_host),
        " ".join(message.keys),
        message.tags,
        message.undecodable,
        message.properties if is_whole else {},
        text,
        encoded,
    )
