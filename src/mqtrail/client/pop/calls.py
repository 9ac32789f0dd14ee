"""POP requests: take messages for an invisible time, acknowledge them, or change that time.

Source: MQClientAPIImpl.processPopResponse, DefaultMQPushConsumerImpl.ackAsync and changePopInvisibleTimeAsync,
RocketMQ 5.x client.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from mqtrail.clock import now_ms
from mqtrail.wire import (
    BODY_SIZE_MAX,
    EXPANDED_SIZE_MAX,
    INIT_FROM_MAX,
    INIT_FROM_MIN,
    PROPERTY_POP_CK,
    ChangeInvisibleResponseHeader,
    ConsumeFromWhere,
    MessageExt,
    MessageQueue,
    PopHandle,
    PopResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    open_record,
    open_records,
    refusal_for,
    topic_of_marker,
    with_handles,
)

from ..core import ClientInstance, requested_records

POLL_EXTRA_MS = 10_000  # added to the time that the broker may hold a pop
ACK_TIMEOUT_MS = 3_000


class PopStatus(StrEnum):
    """What a pop found."""

    FOUND = "FOUND"
    NOT_FOUND = "NOT_FOUND"
    FULL = "FULL"  # the broker holds too many pops: try again later


_STATUS = {
    int(ResponseCode.SUCCESS): PopStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PopStatus.NOT_FOUND,
    int(ResponseCode.POLLING_TIMEOUT): PopStatus.NOT_FOUND,
    int(ResponseCode.POLLING_FULL): PopStatus.FULL,
}


@dataclass(frozen=True, slots=True)
class PopResult:
    """Messages popped, each with its handle in POP_CK. rest: messages left in the queues that the broker read.

    beyond: messages not decoded because there was no room; they must be popped again.
    """

    status: PopStatus
    messages: tuple[MessageExt, ...] = ()
    beyond: tuple[MessageExt, ...] = ()
    rest: int = 0


class PopCalls:
    """The requests of one group."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group

    async def pop(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        count_max: int,
        invisible_ms: int,
        poll_ms: int,
        consume_from: ConsumeFromWhere,
        body_size_max: int,
        room: Callable[[], int],
    ) -> PopResult:
        """Pop at most count_max messages of a queue (queue id -1: of all queues of the broker); wait up to poll_ms.

        invisible_ms: time until an unacknowledged message is delivered again. room: called when the reply has arrived;
        returns the bytes left for decompressed bodies. Raises BrokerUnknown, Refusal, NetError, HeaderError.
        """
        first = consume_from is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "maxMsgNums": str(count_max),
            "invisibleTime": str(invisible_ms),
            "pollTime": str(poll_ms),
            "bornTime": str(now_ms()),
            "initMode": str(INIT_FROM_MIN if first else INIT_FROM_MAX),
            "expType": subscription.expression_type,
            "exp": subscription.sub_string,
            "order": "false",
            "bname": queue.broker_name,
        }
        address = self._client.master(queue.broker_name)
        command = RemotingCommand(RequestCode.POP_MESSAGE, ext)
        reply = await self._client.pool.request(address, command, poll_ms + POLL_EXTRA_MS)
        return read_pop_reply(reply, queue, count_max, body_size_max, room())

    async def ack(self, topic: str, handle: PopHandle) -> None:
        """Acknowledge a message. Raises as `pop`."""
        await self._call(RequestCode.ACK_MESSAGE, topic, handle, {})

    async def change_invisible(self, topic: str, handle: PopHandle, invisible_ms: int) -> None:
        """Have a message delivered again after invisible_ms. The handle becomes invalid. Raises as `pop`."""
        ext = {"invisibleTime": str(invisible_ms)}
        await self._call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, topic, handle, ext)

    async def renew(self, topic: str, handle: PopHandle, invisible_ms: int) -> PopHandle:
        """Keep a message invisible for invisible_ms from now; return its new handle. Raises as `pop`."""
        ext = {"invisibleTime": str(invisible_ms)}
        reply = await self._call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, topic, handle, ext)
        header = ChangeInvisibleResponseHeader.from_ext(reply.ext)
        start = handle.start_offset if handle.queue_offset is None else handle.queue_offset
        return handle._replace(
            start_offset=start,
            pop_time_ms=header.pop_time,
            invisible_ms=header.invisible_time,
            revive_queue_id=header.revive_qid,
        )

    async def _call(self, code: RequestCode, topic: str, handle: PopHandle, further: dict[str, str]) -> RemotingCommand:
        ext = {
            "consumerGroup": self._group,
            "topic": topic_of_marker(handle.marker, topic, self._group),
            "queueId": str(handle.queue_id),
            "offset": str(handle.queue_offset),
            "extraInfo": handle.encode(),
            "bname": handle.broker_name,
        } | further
        address = self._client.master(handle.broker_name)
        return await self._client.call(address, code, ext, timeout_ms=ACK_TIMEOUT_MS)


def handle_of(message: MessageExt) -> PopHandle:
    """Return a popped message's handle. HeaderError: the message has no handle."""
    return PopHandle.decode(message.properties.get(PROPERTY_POP_CK, ""))


def due_ms(message: MessageExt) -> int:
    """Return the time at which the broker delivers a popped message again, epoch ms by the broker's clock."""
    handle = handle_of(message)
    return handle.pop_time_ms + handle.invisible_ms


def read_pop_reply(
    reply: RemotingCommand,
    queue: MessageQueue,
    count_max: int = 32,
    body_size_max: int = BODY_SIZE_MAX,
    expanded_size_max: int = EXPANDED_SIZE_MAX,
) -> PopResult:
    """Return the result of a pop of count_max messages; messages have the queue's topic and their handles.

    Messages far beyond that count are not read; the broker delivers them again after their invisible time.
    Raises the Refusal of another code, HeaderError for a header that cannot be read.
    """
    status = _STATUS.get(reply.code)
    if status is None:
        raise refusal_for(reply.code, reply.remark)
    if status is not PopStatus.FOUND:
        return PopResult(status)
    header = PopResponseHeader.from_ext(reply.ext)
    records, _ = requested_records(reply.body, count_max, queue)
    broker_name = queue.broker_name
    bounds = {"body_size_max": body_size_max, "expanded_size_max": expanded_size_max}
    opened = list(open_records(records, broker_name, **bounds))
    count = len(opened)
    opened += [open_record(record, broker_name, 0) for record in records[count:]]
    popped = list(with_handles(opened, header, queue.topic, broker_name))
    beyond = {id(message) for message in opened[count:]}
    return PopResult(
        status,
        tuple(message for source, message in popped if id(source) not in beyond),
        tuple(message for source, message in popped if id(source) in beyond),
        header.rest_num,
    )
