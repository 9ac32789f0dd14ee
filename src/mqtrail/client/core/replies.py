"""Request and reply: pending requests, and how a reply is composed.

A request carries CORRELATION_ID, REPLY_TO_CLIENT and TTL; the replier sends its answer to the topic
`<cluster>_REPLY_TOPIC` with MSG_TYPE=reply, and the broker pushes it (326) over the connection of the client named.
Source: DefaultMQProducerImpl.request, RequestFutureHolder, MessageUtil, ClientRemotingProcessor, RocketMQ 5.x client.
"""

import asyncio
import uuid
from typing import Final, Protocol

from mqtrail.clock import now_ms
from mqtrail.net import Log
from mqtrail.wire import (
    PROPERTY_ARRIVE_TIME,
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MSG_TYPE,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TTL,
    Host,
    Message,
    MessageExt,
    MQError,
    RemotingCommand,
    ReplyMessageHeader,
    ResponseCode,
    decode_properties,
    decompress,
    reply_topic,
)

from .errors import ClientClosed, ClientError, NotARequest

log = Log()

REPLY_TYPE: Final = "reply"
_NO_HOST: Final = Host("0.0.0.0", 0)


class Replyable(Protocol):
    """The parts of a request that a reply needs. MessageExt and Delivery have them."""

    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def msg_id(self) -> str: ...


class ReplyWaiters:
    """The pending requests of one client, count_max at most."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def expect(self, count_max: int) -> tuple[str, asyncio.Future[MessageExt]]:
        """Return a new correlation id and the future of its reply. ClientError: count_max requests are pending."""
        if len(self._waiting) >= count_max:
            raise ClientError(
                f"{count_max} requests are waiting for their reply, the maximum: wait for one to end, or raise "
                "requests_max"
            )
        correlation_id = str(uuid.uuid4())
        reply = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        return correlation_id, reply

    def forget(self, correlation_id: str) -> None:
        """Stop waiting; a reply that arrives later is dropped."""
        self._waiting.pop(correlation_id, None)

    def serve(self, command: RemotingCommand) -> RemotingCommand:
        """Accept a reply pushed by a broker, and return the response to the broker."""
        try:
            message = read_reply(command)
        except (MQError, ValueError) as error:
            log.sparse.warning("client.reply_unreadable", error=str(error))
            return RemotingCommand.reply_to(command, ResponseCode.SYSTEM_ERROR, f"process reply message fail: {error}")
        reply = self._waiting.pop(message.properties.get(PROPERTY_CORRELATION_ID, ""), None)
        if reply is None:
            log.sparse.warning("client.reply_unasked", correlation_id=message.properties.get(PROPERTY_CORRELATION_ID))
        elif not reply.done():
            reply.set_result(message)
        return RemotingCommand.reply_to(command, ResponseCode.SUCCESS)

    def close(self) -> None:
        """Fail the pending requests."""
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(ClientClosed("the client was closed while a request waited for its reply"))
                reply.exception()  # retrieved, in case no caller waits any more


def read_reply(command: RemotingCommand) -> MessageExt:
    """Return the message that PUSH_REPLY_MESSAGE_TO_CLIENT (326) carries. MQError: it cannot be read."""
    header = ReplyMessageHeader.from_ext(command.ext)
    properties = decode_properties(header.properties or "")
    properties[PROPERTY_ARRIVE_TIME] = str(now_ms())
    return MessageExt(
        topic=header.topic,
        body=decompress(bytes(command.body or b""), header.sys_flag),
        flag=header.flag,
        properties=properties,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp,
        born_host=_host(header.born_host),
        store_timestamp_ms=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=0,
    )


def _host(text: str) -> Host:
    try:
        return Host.parse(text)
    except MQError:
        return _NO_HOST


def make_reply(request: Replyable, body: bytes) -> Message:
    """Return the reply to a request, to be sent by any producer of the cluster. Raises NotARequest."""
    properties = request.properties
    cluster = properties.get(PROPERTY_CLUSTER)
    if not cluster:
        raise NotARequest(
            f"message {request.msg_id} has no property CLUSTER, expected a message received from a broker: reply to "
            "the message that the consumer delivered"
        )
    correlation_id = properties.get(PROPERTY_CORRELATION_ID)
    client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
    if not correlation_id or not client_id:
        raise NotARequest(
            f"message {request.msg_id} requests no reply, expected the properties CORRELATION_ID and REPLY_TO_CLIENT: "
            "send it by request()"
        )
    back = {
        PROPERTY_MSG_TYPE: REPLY_TYPE,
        PROPERTY_CORRELATION_ID: correlation_id,
        PROPERTY_REPLY_TO_CLIENT: client_id,
    }
    if PROPERTY_TTL in properties:
        back[PROPERTY_TTL] = properties[PROPERTY_TTL]
    return Message(reply_topic(cluster), body, properties=back)
