"""What pmq's interface asks of the broker, in RocketMQ's requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from mqtrail.wire import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    TOOLS_CONSUMER_GROUP,
    CreateTopicHeader,
    Host,
    Message,
    MessageExt,
    OffsetResponseHeader,
    Perm,
    PullHeader,
    PullResponseHeader,
    PullSysFlag,
    QueryConsumerOffsetHeader,
    QueueHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionGroupConfig,
    TopicConfig,
    UpdateConsumerOffsetHeader,
    number_of,
    read_records,
    refusal_for,
)

from ..caller import ASK_TIMEOUT_MS, Caller, succeed
from ..gate import FAILURE_SUFFIX
from .desk import QueueName
from .shapes import PmqMessage

BIZ_ID: Final = "pmq_bizId"
TRACE_ID: Final = "pmq_traceId"
RETRY_COUNT: Final = "pmq_retryCount"
SEND_IP: Final = "pmq_sendIp"  # what the publisher says its address is, if that is not the one of its connection
COUNT_DIGITS_MAX: Final = 9
HEAD: Final = "pmq_head"
FAILURE_TRIES: Final = 3  # a message of a failure topic with so many is not delivered any more
MODE: Final = "mqtrail.pmq.mode"  # attribute of a group
BROADCAST: Final = "broadcast"
NO_TAG: Final = "null"  # what pmq stores for a message without a tag


@dataclass(frozen=True, slots=True)
class PmqBroker:
    """The broker for one client, whose address is host. own_ip: the door's address of this connection."""

    caller: Caller
    host: Host
    own_ip: str = ""

    async def topic(self, name: str) -> TopicConfig | None:
        """Return a topic; None: there is none."""
        reply = await self._asked(RequestCode.GET_TOPIC_CONFIG, {"topic": name}, ResponseCode.TOPIC_NOT_EXIST)
        return None if reply is None else TopicConfig.decode(reply.body)

    async def create_topic(self, name: str, queues: int) -> None:
        header = CreateTopicHeader(name, queues, queues, Perm.READ | Perm.WRITE)
        await succeed(self.caller, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()), self.host)

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group; None: there is none."""
        absent = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        reply = await self._asked(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name}, absent)
        return None if reply is None else SubscriptionGroupConfig.decode(reply.body)

    async def _asked(self, code: RequestCode, ext: dict[str, str], absent: ResponseCode) -> RemotingCommand | None:
        """Return the broker's answer; None: it answered that there is no such thing. Refusal."""
        reply = await self.caller.ask(RemotingCommand(code, ext), self.host, ASK_TIMEOUT_MS)
        if reply.code not in (ResponseCode.SUCCESS, absent):
            raise refusal_for(reply.code, reply.remark)
        return reply if reply.code == ResponseCode.SUCCESS else None

    async def end_of(self, queue: QueueName) -> int:
        """Return the offset behind the last message, which is pmq's last id."""
        command = RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader(*queue).to_ext())
        return OffsetResponseHeader.from_ext((await succeed(self.caller, command, self.host)).ext).offset

    async def offset_of(self, group: str, queue: QueueName) -> int | None:
        """Return the consumer offset, which is pmq's offset; None: the group has none."""
        header = QueryConsumerOffsetHeader(group, *queue, set_zero_if_not_found=False)
        command = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())
        reply = await self.caller.ask(command, self.host, ASK_TIMEOUT_MS)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if reply.code != ResponseCode.SUCCESS:
            raise refusal_for(reply.code, reply.remark)
        return OffsetResponseHeader.from_ext(reply.ext).offset

    async def begin(self, group: str, queues: Sequence[QueueName]) -> None:
        """Give a group that is new on a topic its offsets on all queues: the ends. A queue that the topic got since
        begins at its first message."""
        found = [await self.offset_of(group, queue) for queue in queues]
        is_new = all(offset is None for offset in found)
        for queue, offset in zip(queues, found, strict=True):
            if offset is None:
                await self.commit(group, queue, await self.end_of(queue) if is_new else 0)

    async def commit(self, group: str, queue: QueueName, offset: int) -> None:
        header = UpdateConsumerOffsetHeader(group, *queue, commit_offset=offset)
        await succeed(self.caller, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext()), self.host)

    async def pull(self, queue: QueueName, start: int, count: int) -> list[MessageExt]:
        """Return at most count messages from an offset on, or from the next one that still exists."""
        for _ in range(2):
            header = PullHeader(
                TOOLS_CONSUMER_GROUP, *queue, start, count, PullSysFlag.SUBSCRIPTION, 0, 0, subscription="*"
            )
            command = RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())
            reply = await self.caller.ask(command, self.host, ASK_TIMEOUT_MS)
            if reply.code == ResponseCode.SUCCESS:
                return read_records(reply.body, count_max=count)
            if reply.code not in (
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            ):
                raise refusal_for(reply.code, reply.remark)
            next_offset = PullResponseHeader.from_ext(reply.ext).next_begin_offset
            if next_offset <= start:
                return []
            start = next_offset
        return []


def message_of(topic: str, item: PmqMessage, trace_id: str, send_ip: str | None = None) -> Message:
    """Return the message to send. PropertiesError: a value cannot be stored."""
    properties = {TRACE_ID: item.trace_id or trace_id}
    if send_ip:
        properties[SEND_IP] = send_ip
    if item.biz_id:
        properties[BIZ_ID] = item.biz_id
    if item.retry_count:
        properties[RETRY_COUNT] = str(item.retry_count)
    if item.head is not None:
        head = {name: _text_of(value) for name, value in item.head.items()}
        properties[HEAD] = msgspec.json.encode(head).decode()
    words = [word for text in (item.biz_id, properties[TRACE_ID]) if text for word in text.split()]
    tag = NO_TAG if item.tag is None else item.tag
    return Message(topic, _text_of(item.body).encode(), tags=tag, keys=words, properties=properties)


def _text_of(value: object) -> str:
    """Return the text that Java's parser reads where a text is expected."""
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def pulled(message: MessageExt) -> dict[str, object]:
    """Return a message as pmq's client reads it. Fields without a value are absent."""
    properties = message.properties
    found: dict[str, object] = {"id": message.queue_offset + 1, "tag": properties.get(PROPERTY_TAGS, "")}
    biz_id = properties.get(BIZ_ID, properties.get(PROPERTY_KEYS))
    if biz_id is not None:
        found["bizId"] = biz_id
    if HEAD in properties:
        found["head"] = _head_of(properties[HEAD])
    found["body"] = message.body.decode("utf-8", "replace")
    found["traceId"] = properties.get(TRACE_ID, message.msg_id)
    found["retryCount"] = tries_of(message)
    found["sendIp"] = properties.get(SEND_IP, message.born_host.ip)
    found["sendTime"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(message.store_timestamp_ms // 1000)) + ":000"
    return found


def is_broadcast(config: SubscriptionGroupConfig) -> bool:
    """Return whether each client of pmq that registers with the group gets each message."""
    return config.attributes.get(MODE) == BROADCAST


def failure_topic(group: str, topic: str) -> str:
    """Return the topic of a group's messages that failed."""
    return f"{group}_{topic}{FAILURE_SUFFIX}"


def tries_of(message: MessageExt) -> int:
    """Return how often a message of a failure topic was tried."""
    return number_of(message.properties.get(RETRY_COUNT), COUNT_DIGITS_MAX) or 0


def _head_of(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def parts_of(items: Sequence[PmqMessage]) -> dict[tuple[int, bool], list[PmqMessage]]:
    """Return messages by (pmq's id of the queue that they name, strict); (0, False): any queue."""
    found: dict[tuple[int, bool], list[PmqMessage]] = {}
    for item in items:
        partition = item.partition_info
        key = (0, False) if partition is None else (partition.queue_id, partition.strict_mode == 1)
        found.setdefault(key, []).append(item)
    return found
