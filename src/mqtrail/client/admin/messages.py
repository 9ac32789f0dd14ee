"""Messages: queries by id, key, offset or time; their consumers; direct consumption; resending of dead letters."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum

from mqtrail.wire import (
    DLQ_PREFIX,
    INNER_PRODUCER_GROUP,
    RETRY_PREFIX,
    TOOLS_CONSUMER_GROUP,
    BroadcastConsumption,
    CompressionError,
    ConsumeQueueEntries,
    ConsumerNotOnline,
    ConsumeType,
    DirectConsumeResult,
    MessageExt,
    MessageModel,
    MessageQueue,
    MQError,
    NoMessage,
    PullHeader,
    PullSysFlag,
    QueryMessageHeader,
    QueryNotFound,
    RecallHandle,
    RemotingCommand,
    RequestCode,
    dlq_topic,
    is_system_topic,
    origin_topic,
    parse_offset_msg_id,
    popped_topic,
    read_records,
    resend_target,
    resent_copy,
    validate_topic,
)

from ..consumer import PullResult, read_pull_reply
from ..core import (
    Composer,
    InvalidMessage,
    ProducerConfig,
    ReadFailed,
    RouteNotFound,
    SendResult,
    queue_name,
    unique_ids,
)
from ..producer import Sender
from .base import Gathered
from .groups import FORWARD_TIMEOUT_MS
from .offsets import AdminOffsets

QUERY_COUNT_MAX = 64  # a broker's limit for one query (maxMsgsNumBatch)
END_MS_MAX = 0x7FFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Messages found by an index, oldest first. failures: brokers that failed. cut_off: a limit may hide more."""

    messages: tuple[MessageExt, ...]
    failures: Mapping[str, Exception]
    cut_off: bool = False


class TrackStatus(StrEnum):
    """The state of a message in a group, by the group's offset; the values are mqadmin's."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"  # its members poll
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Track:
    """The state of a message in one group. error: why it is unknown."""

    group: str
    status: TrackStatus
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Resent:
    """The outcome of resending one dead letter: result or error, one of them None."""

    message: MessageExt
    result: SendResult | None
    error: Exception | None = None


class AdminMessages(AdminOffsets):
    """Admin's methods for messages."""

    async def message_at(self, offset_msg_id: str) -> MessageExt:
        """The message with a broker's id. Raises IdError for an invalid id, SystemError_ if there is no message."""
        host, physical_offset = parse_offset_msg_id(offset_msg_id)
        address = f"[{host.ip}]:{host.port}" if ":" in host.ip else str(host)
        reply = await self._client.call(address, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)})
        found = read_records(reply.body, count_max=1)
        if not found:
            raise NoMessage(f"found no record of {offset_msg_id} in the reply of the broker at {address}, expected one")
        return found[0]

    async def query(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = END_MS_MAX,
        *,
        count_max: int = QUERY_COUNT_MAX,
        unique: bool = False,
    ) -> QueryResult:
        """Messages of a topic with a key (unique: with this id), from every broker's index.

        begin_ms, end_ms: range of store times, epoch ms. A broker returns at most QUERY_COUNT_MAX messages, the newest;
        `cut_off` is set if there may be more. Hash collisions are dropped.
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
        """All copies of a client's message id stored in a topic (retries and dead letters are in other topics)."""
        return await self.query(topic, msg_id, begin_ms, unique=True)

    async def _query(self, address: str, header: QueryMessageHeader, broker_name: str) -> list[MessageExt]:
        try:
            reply = await self._client.call(address, RequestCode.QUERY_MESSAGE, header.to_ext())
        except QueryNotFound:
            return []
        return read_records(reply.body, broker_name, max(QUERY_COUNT_MAX, header.max_num))

    async def pull(
        self, queue: MessageQueue, offset: int, count_max: int = 32, *, address: str | None = None
    ) -> PullResult:
        """Pull once, without changing the cluster. offset must be within the queue's range (see sync/reader.py).

        address: of the broker; None: by the topic's route.
        """
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
        address = address or await self._address_of(queue)
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
        reply = await self._client.pool.request(address, command, self._timeout_ms)
        return read_pull_reply(reply, queue, offset, count_max)

    async def message_at_offset(self, queue: MessageQueue, offset: int) -> MessageExt:
        """The message at an offset of a queue. Raises NoMessage outside of the queue's range."""
        first, end = await self.min_offset(queue), await self.max_offset(queue)
        if first <= offset < end:
            found = next((await self.pull(queue, offset, 1)).open(queue, offset), None)
            if found is not None and found.queue_offset == offset:
                return found
        raise NoMessage(
            f"found no message at offset {offset} of {queue.topic}/{queue.broker_name}/{queue.queue_id}, expected one "
            f"of [{first}, {end})"
        )

    async def messages(
        self, topic: str, begin_ms: int = 0, end_ms: int = END_MS_MAX, *, queue: MessageQueue | None = None
    ) -> AsyncIterator[MessageExt]:
        """Yield the messages of a topic (queue: only of that one) stored in [begin_ms, end_ms), queue by queue.

        begin_ms, end_ms: epoch ms. Messages stored after the call began are not listed. Nothing is changed on the
        cluster. Raises ReadFailed for a queue of which a broker does not return all messages.
        """
        for one in [queue] if queue is not None else await self.queues(topic):
            end = await self.max_offset(one)
            begin = await self.offset_by_time(one, begin_ms) if begin_ms > 0 else 0
            async with aclosing(self.messages_of_queue(one, begin, end)) as found:
                async for message in found:
                    if message.store_timestamp_ms >= end_ms:
                        break
                    if message.store_timestamp_ms >= begin_ms or message.undecodable is not None:
                        yield message

    async def messages_of_queue(self, queue: MessageQueue, begin: int, end: int) -> AsyncGenerator[MessageExt]:
        """Yield the messages of a queue at the offsets [begin, end), as far as it keeps them. Nothing is changed.

        Raises ReadFailed if the broker does not return all of them.
        """
        offset = max(begin, await self.min_offset(queue))
        while offset < end:
            asked = offset
            result = await self.pull(queue, asked, min(32, end - asked))
            if result.next_offset <= asked:
                raise ReadFailed(
                    f"found {result.status} and nextBeginOffset {result.next_offset} for a pull at offset {asked} "
                    f"of {queue_name(queue)}, expected a higher one: the queue ended at {end} when listing began. "
                    "Its messages from there on are not listed; if the topic was not deleted, list again"
                )
            offset = result.next_offset
            for message in result.open(queue, asked):  # one body is decompressed at a time
                if message.queue_offset < end:
                    yield message

    async def consume_queue(
        self, queue: MessageQueue, index: int, count: int = 16, *, group: str | None = None
    ) -> ConsumeQueueEntries:
        """A queue's index entries from `index` on. group: also report whether its filter matches each."""
        ext = {"topic": queue.topic, "queueId": str(queue.queue_id), "index": str(index), "count": str(count)}
        ext |= {"consumerGroup": group} if group else {}
        address = await self._address_of(queue)
        return await self._ask(address, RequestCode.QUERY_CONSUME_QUEUE, ext, ConsumeQueueEntries.decode)

    # -- consumers of a message ------------------------------------------------------------------------------------

    async def message_tracks(self, message: MessageExt) -> list[Track]:
        """The state of a message in each group of its topic, by the groups' offsets (a trace shows more)."""
        groups: set[str] = set()
        for found in (await self.groups_of_topic(message.topic)).values():
            groups.update(found.group_list)
        return [await self._track(message, group) for group in sorted(groups)]

    async def _track(self, message: MessageExt, group: str) -> Track:
        try:
            members = [one for one in (await self.group_connections(group)).values() if one.connection_set]
            if not members:
                return Track(group, TrackStatus.NOT_ONLINE)
            connections = members[0]
            if connections.message_model == MessageModel.BROADCASTING:
                return Track(group, TrackStatus.CONSUME_BROADCASTING)
            if connections.consume_type == ConsumeType.CONSUME_ACTIVELY:
                return Track(group, TrackStatus.PULL)
            stats = await self.consume_stats(group, message.topic)
        except ConsumerNotOnline as error:
            return Track(group, TrackStatus.NOT_ONLINE, error)
        except BroadcastConsumption as error:
            return Track(group, TrackStatus.CONSUME_BROADCASTING, error)
        except (MQError, OSError) as error:
            return Track(group, TrackStatus.UNKNOWN, error)
        offsets = {queue: reach for table in stats.values() for queue, reach in table.offset_table.items()}
        reach = offsets.get(message.queue)
        if reach is None:
            failure = next(iter(stats.failures.values()), None)
            return Track(group, TrackStatus.UNKNOWN, failure)
        if reach.consumer_offset <= message.queue_offset:
            return Track(group, TrackStatus.NOT_CONSUME_YET)
        subscription = connections.subscription_table.get(message.topic)
        if subscription is not None and not subscription.matches_tag(message.tags):
            return Track(group, TrackStatus.CONSUMED_BUT_FILTERED)
        return Track(group, TrackStatus.CONSUMED)

    # -- direct consumption, resending ------------------------------------------------------------------------------

    async def consume_directly(
        self, message: MessageExt, group: str, *, client_id: str | None = None
    ) -> Gathered[DirectConsumeResult]:
        """Have live members of a group consume a stored message now; results by client id.

        client_id: only by that member. No offset is committed. Raises ConsumerNotOnline if no member is online.
        """
        address = self._store_address(message)
        if client_id is None:
            connections = await self.consumer_connections(group, address)
            client_ids = [one.client_id for one in connections.connection_set]
        else:
            client_ids = [client_id]

        async def consume(client_id: str) -> DirectConsumeResult:
            ext = {
                "consumerGroup": group,
                "clientId": client_id,
                "msgId": message.offset_msg_id,
                "brokerName": message.broker_name,
                "topic": message.topic,
            }
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            return await self._ask(address, code, ext, DirectConsumeResult.decode, timeout_ms=FORWARD_TIMEOUT_MS)

        return await self._gather({one: consume(one) for one in client_ids})

    async def dead_letters(
        self, group: str, *, msg_ids: frozenset[str] | None = None, count_max: int | None = None
    ) -> AsyncIterator[MessageExt]:
        """Yield the dead letters of a group, queue by queue, each id once: one that died again has several copies.

        msg_ids: only these letters. count_max: maximum number of letters.
        """
        found: set[str] = set()
        most = len(msg_ids) if msg_ids is not None else count_max
        try:
            letters = self.messages(dlq_topic(group))
            async for letter in letters:
                if most is not None and len(found) >= most:
                    break
                if letter.msg_id not in found and (msg_ids is None or letter.msg_id in msg_ids):
                    found.add(letter.msg_id)
                    yield letter
        except RouteNotFound:
            return  # the group has no dead letters

    async def resend_dead_letters(
        self, group: str, *, msg_ids: frozenset[str] | None = None, to_topic: bool = False, count_max: int | None = None
    ) -> AsyncIterator[Resent]:
        """Resend dead letters of a group with their ids, and yield the outcome of each; the dead letters remain.

        msg_ids, count_max: as of dead_letters. to_topic: as of resend_message.
        """
        sender = self._resender()
        async for letter in self.dead_letters(group, msg_ids=msg_ids, count_max=count_max):
            yield await self._resend(sender, letter, group, to_topic=to_topic)

    async def resend_message(self, message: MessageExt, group: str, *, to_topic: bool = False) -> Resent:
        """Send a copy of a stored message with its id; the message remains.

        It is sent to the retry topic that the group reads, so that other groups do not get it, or (to_topic) to the
        topic that the message was first sent to. That topic is from the property RETRY_TOPIC, which any sender can set:
        it must exist, and must not be a system, retry or dead-letter topic. Otherwise nothing is sent and the outcome
        has an `error`.
        """
        return await self._resend(self._resender(), message, group, to_topic=to_topic)

    def _resender(self) -> Sender:
        config = ProducerConfig()
        return Sender(self._client, Composer(INNER_PRODUCER_GROUP, config, unique_ids().next), config, (), ())

    async def _resend(self, sender: Sender, letter: MessageExt, group: str, *, to_topic: bool) -> Resent:
        message = resent_copy(letter, group, resend_target(letter, group, to_topic=to_topic))
        origin = origin_topic(letter, group) if to_topic else popped_topic(letter, group)
        try:
            if origin is not None:
                await self._check_origin(origin)
            if letter.undecodable is not None:
                raise CompressionError(f"the message cannot be read, not by its group either: {letter.undecodable}")
            out = sender.composer.message(message)
            deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000
            return Resent(letter, await sender.send(out, await sender.route(out, deadline), None, deadline))
        except (MQError, OSError) as error:
            return Resent(letter, None, error)

    async def _check_origin(self, topic: str) -> None:
        """Check a dead letter's RETRY_TOPIC. Raises InvalidMessage, InvalidParameter, RouteNotFound."""
        validate_topic(topic)
        if is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise InvalidMessage(
                f"found a dead letter whose RETRY_TOPIC is {topic!r}, expected an application's topic: "
                "resend it to the group instead"
            )
        await self._client.route(topic)

    async def resume_check(self, message: MessageExt) -> None:
        """Have a broker check a half message again whose checks were used up (in TRANS_CHECK_MAX_TIME_TOPIC)."""
        ext = {"msgId": message.offset_msg_id, "topic": message.topic}
        await self._client.call(self._store_address(message), RequestCode.RESUME_CHECK_HALF_MESSAGE, ext)

    async def recall_message(self, handle: RecallHandle) -> None:
        """Have a broker not deliver a timer (5.3.2 and later). Raises the broker's Refusal, BrokerUnknown.

        It answers the same if it has no such timer.
        """
        route = await self._client.route(handle.topic)
        ext = {
            "producerGroup": INNER_PRODUCER_GROUP,
            "topic": handle.topic,
            "recallHandle": handle.encode(),
            "bname": handle.broker_name,
        }
        address = self._client.master(handle.broker_name, route)
        await self._client.call(address, RequestCode.RECALL_MESSAGE, ext)

    def _store_address(self, message: MessageExt) -> str:
        if message.broker_name:
            try:
                return self._client.any_address(message.broker_name)
            except MQError:
                pass
        host = message.store_host
        return f"[{host.ip}]:{host.port}" if ":" in host.ip else str(host)


def _is_asked_for(message: MessageExt, topic: str, key: str, unique: bool) -> bool:
    if unique:
        return key in (message.msg_id, message.offset_msg_id)
    return message.topic == topic and key in message.keys
