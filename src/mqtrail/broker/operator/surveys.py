"""What is asked of all live consumers of a group: where they stand (223 by way of 221), to reset (222 by way of 220).

A reset through the clients is the way of 4.9 brokers, kept for useServerSideResetOffset=false: it needs live consumers
and is theirs to do.

Source: Broker2Client.getConsumeStatus, resetOffset, apache/rocketmq broker/client/net/.
"""

from contextlib import suppress
from functools import partial
from typing import Final

from mqtrail.wire import (
    FLAG_ONEWAY,
    BodyError,
    ConsumerNotOnline,
    ConsumerStatus,
    ConsumerStatusHeader,
    MessageQueue,
    Peer,
    QueueOffsets,
    RemotingCommand,
    RequestCode,
    ResetOffsetHeader,
    ResponseCode,
    Send,
    SystemError_,
    TopicNotExist,
    answer,
    version_text,
)

from ..clients import ForwardedRequests
from ..state import BrokerState
from ..tables import Client

VERSION_ASKABLE: Final = 28  # V3_0_7_SNAPSHOT: older clients do not serve 220 and 221


class _Survey:
    """One question put to several clients: answered when the last of them has answered or is given up."""

    def __init__(self, peer: Peer, request: RemotingCommand, open_count: int) -> None:
        self._peer = peer
        self._request = request
        self._open_count = open_count
        self._found: dict[str, dict[MessageQueue, int]] = {}

    def take(self, client_id: str, reply: RemotingCommand | None) -> list[Send]:
        """Note a client's answer; None: it gave none. It is left out then, as Java leaves it out."""
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            with suppress(BodyError):
                self._found[client_id] = ConsumerStatus.decode(reply.body).message_queue_table
        self._open_count -= 1
        if self._open_count:
            return []
        body = ConsumerStatus(consumer_table=self._found)
        return answer(self._peer, self._request, body=body.encode(strict=False))


class ClientSurveys:
    """Asks and tells all live consumers of a group."""

    def __init__(self, state: BrokerState, forwards: ForwardedRequests) -> None:
        self._broker_name = state.config.broker_name
        self._topics = state.topics
        self._clients = state.clients
        self._offsets = state.offsets
        self._store = state.store
        self._forwards = forwards
        self._opaque = 0

    def positions(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """223: where each live consumer of a group, or one of them, stands in a topic. SystemError_: none is live."""
        header = ConsumerStatusHeader.from_ext(request.ext)
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise SystemError_(f"No Any Consumer online in the consumer group: [{header.group}]")
        asked = [one for one in group.members.values() if not header.client_addr or header.client_addr == one.client_id]
        for client in asked:
            _require_askable(client)
        if not asked:
            return answer(peer, request, body=ConsumerStatus().encode(strict=False))
        self._forwards.require_room(peer, [client.peer.id for client in asked])
        survey = _Survey(peer, request, len(asked))
        question = ConsumerStatusHeader(header.topic, header.group).to_ext()
        sends = []
        for client in asked:
            command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(question))
            finish = partial(survey.take, client.client_id)
            sends += self._forwards.ask(peer, request, client.peer.id, command, finish, now_ms)
        return sends

    def reset(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """222: tell every live consumer (220, one way) where to go on. ConsumerNotOnline: there is none."""
        header = ResetOffsetHeader.from_ext(request.ext)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise TopicNotExist(f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}")
        table = {
            MessageQueue(header.topic, self._broker_name, queue_id): self._target(header, queue_id)
            for queue_id in range(topic.write_queue_nums)
        }
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise ConsumerNotOnline(
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}"
            )
        body = QueueOffsets(table)
        in_java = body.encode(strict=False)
        told = body.encode_list() if request.language == "CPP" else in_java
        order = ResetOffsetHeader(header.topic, header.group, header.timestamp).to_ext()
        sends = []
        for client in group.members.values():
            _require_askable(client)
            self._opaque = self._opaque + 1 & 0x7FFFFFFF
            command = RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(order), told, opaque=self._opaque, flag=FLAG_ONEWAY
            )
            sends.append(Send(client.peer.id, command))
        return [*sends, *answer(peer, request, body=in_java)]

    def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        """Return where the group goes on in a queue: not ahead of where it stands, unless it is forced."""
        consumed = self._offsets.get(header.group, header.topic, queue_id)
        if consumed is None:
            raise SystemError_(f"THe consumer group <{header.group}> not exist: it has no offset of queue {queue_id}")
        if header.timestamp == -1:
            target = self._store.max_offset(header.topic, queue_id)
        else:
            target = self._store.offset_by_time(header.topic, queue_id, header.timestamp)
        return target if header.is_force else min(target, consumed)


def _require_askable(client: Client) -> None:
    if client.version < VERSION_ASKABLE:
        raise SystemError_(f"the client does not support this feature. version={version_text(client.version)}")
