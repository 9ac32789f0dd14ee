"""Replies to request messages: 324 and 325, forwarded to the producer of the request (326).

The property REPLY_TO_CLIENT names the client id of that producer. The reply is sent to it, and the replying client is
answered after the producer has answered. The reply is also stored in the reply topic of the cluster, whether it arrives
or not.

Source: ReplyMessageProcessor, apache/rocketmq broker/processor/.
"""

from mqtrail.store import PendingRecord
from mqtrail.wire import (
    EXT_MSG_REGION,
    EXT_TRACE_ON,
    PROPERTY_MSG_REGION,
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TRACE_ON,
    MessageSysFlag,
    MQError,
    Peer,
    RemotingCommand,
    ReplyMessageHeader,
    RequestCode,
    ResponseCode,
    Send,
    SendMessageHeader,
    SendResponseHeader,
    answer,
    answer_error,
    decode_properties,
    encode_properties,
    offset_msg_id,
)

from ..clients import ForwardedRequests
from ..properties import check_size, tag_hash
from ..state import BrokerState
from .send import SendMessages

_OURS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6 | MessageSysFlag.TRANSACTION_MASK


class ReplyMessages:
    """Forwards replies."""

    def __init__(self, state: BrokerState, send: SendMessages, forwards: ForwardedRequests) -> None:
        self._config = state.config
        self._clients = state.clients
        self._send = send
        self._forwards = forwards
        self._writer = state.writer
        trace_on = "true" if state.config.trace_on else "false"
        self._ext = {EXT_MSG_REGION: state.config.region_id, EXT_TRACE_ON: trace_on}
        self._added = {PROPERTY_MSG_REGION: state.config.region_id, PROPERTY_TRACE_ON: trace_on}

    def handle(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """Send the reply to its producer and answer after the producer; immediately if it is not connected."""
        try:
            header = SendMessageHeader.from_ext(request.ext)
            text = header.properties.encode()
            check_size(text)
            topic, queue_id = self._send.queue_for(header, request, now_ms)
            properties = decode_properties(text) | self._added
            text = encode_properties(properties).encode()
            client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
            addressee = None if client_id is None else self._clients.producer(client_id)
            place = self._store(peer, header, topic, queue_id, text, request.body, now_ms)
            if client_id is None:
                return self._refuse(
                    peer, request, place, f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
                )
            if addressee is None:
                remark = f"push reply message fail, channel of <{client_id}> not found."
                return self._refuse(peer, request, place, remark)
            pushed = properties | {PROPERTY_PUSH_REPLY_TIME: str(now_ms)}
            ext = self._pushed_header(peer, header, encode_properties(pushed), now_ms).to_ext()

            def finish(reply: RemotingCommand | None) -> list[Send]:
                if reply is None or reply.code != ResponseCode.SUCCESS:
                    return self._refuse(peer, request, place, f"push reply message to {client_id}fail.")
                return answer(peer, request, self._ext | place)

            command = RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext, request.body)
            self._forwards.require_room(peer, [addressee.peer.id])
            return self._forwards.ask(peer, request, addressee.peer.id, command, finish, now_ms)
        except MQError as error:
            return answer_error(peer, request, error, dict(self._ext))

    def _refuse(self, peer: Peer, request: RemotingCommand, place: dict[str, str], remark: str) -> list[Send]:
        return answer(peer, request, self._ext | place, code=ResponseCode.SYSTEM_ERROR, remark=remark)

    def _pushed_header(self, peer: Peer, header: SendMessageHeader, properties: str, now_ms: int) -> ReplyMessageHeader:
        return ReplyMessageHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=str(peer.address),
            store_host=str(self._config.address),
            store_timestamp=now_ms,
            properties=properties,
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )

    def _store(
        self,
        peer: Peer,
        header: SendMessageHeader,
        topic: str,
        queue_id: int,
        text: bytes,
        body: bytes,
        now_ms: int,
    ) -> dict[str, str]:
        """Store the reply if store_replies is on; return its place for the answer. A failure is not an error."""
        where = SendResponseHeader("0", queue_id, 0)
        if self._config.store_replies:
            record = PendingRecord(
                topic=topic,
                queue_id=queue_id,
                body=body,
                properties=text,
                tags_code=tag_hash(text),
                born_timestamp_ms=header.born_timestamp,
                born_host=peer.address.packed(),
                flag=header.flag,
                sys_flag=header.sys_flag & ~_OURS,
                reconsume_times=header.reconsume_times,
            )
            try:
                (place,) = self._writer.write([record], now_ms)
            except MQError:
                return where.to_ext()
            where.msg_id = offset_msg_id(self._config.address, place.physical_offset)
            where.queue_offset = place.queue_offset
        return where.to_ext()
