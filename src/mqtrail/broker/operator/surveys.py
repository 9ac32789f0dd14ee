"""Requests to all live consumers of a group: their offsets (223, which sends 221) and resets (222, which sends 220).

4.9 brokers reset offsets through clients; this is kept for useServerSideResetOffset=false. It needs live consumers,
which do the reset.

Source: Broker2Client.getConsumeStatus, resetOffset, apache/rocketmq broker/client/net/.
"""

from contextlib import suppress
from functools import partial
from typing import Final

from mqtrail.wire import (
    FLAG_ONEWAY,
    BodyError,
    ClientStatus,
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
    Work,
    answer,
    encode_in_slices,
    version_text,
)

from ..clients import ForwardedRequests
from ..jobs import QUEUES_A_SLICE, SliceCounter
from ..state import BrokerState
from ..tables import Client

VERSION_ASKABLE: Final = 28  # V3_0_7_SNAPSHOT: older clients do not serve 220 and 221


class _Survey:
    """A request to several clients: answered when each of them has answered or timed out."""

    def __init__(self, peer: Peer, request: RemotingCommand, open_count: int) -> None:
        self._peer = peer
        self._request = request
        self._open_count = open_count
        self._found: dict[str, dict[MessageQueue, int]] = {}

    def take(self, client_id: str, reply: RemotingCommand | None) -> list[Send]:
        """Store the answer of a client; None: it did not answer and is omitted, as in Java."""
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            with suppress(BodyError):
                self._found[client_id] = ClientStatus.decode(reply.body).message_queue_table
        self._open_count -= 1
        if self._open_count:
            return []
        body = ConsumerStatus(consumer_table=self._found)
        return answer(self._peer, self._request, body=body.encode(strict=False))


class ClientSurveys:
    """Sends requests to all live consumers of a group."""

    def __init__(self, state: BrokerState, forwards: ForwardedRequests) -> None:
        self._broker_name = state.config.broker_name
        self._topics = state.topics
        self._clients = state.clients
        self._offsets = state.offsets
        self._store = state.store
        self._forwards = forwards
        self._opaque = 0

    def positions(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """223: offsets of each live consumer of a group, or of one of them, in a topic. SystemError_: none is live."""
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

    def reset(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """222: send the new offsets to each live consumer (220, one-way). ConsumerNotOnline: there is none."""
        header = ResetOffsetHeader.from_ext(request.ext)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise TopicNotExist(f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}")
        counter = SliceCounter()
        table: dict[MessageQueue, int] = {}
        for queue_id in range(topic.write_queue_nums):
            table[MessageQueue(header.topic, self._broker_name, queue_id)] = self._target(header, queue_id)
            if counter.queue_done():
                yield
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise ConsumerNotOnline(
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}"
            )
        in_java = yield from encode_in_slices(
            QueueOffsets(), "offsetTable", table.items(), QUEUES_A_SLICE, strict=False
        )
        body = (yield from QueueOffsets(table).encode_list(QUEUES_A_SLICE)) if request.language == "CPP" else in_java
        order = ResetOffsetHeader(header.topic, header.group, header.timestamp).to_ext()
        sends = []
        for client in group.members.values():
            _require_askable(client)
            self._opaque = self._opaque + 1 & 0x7FFFFFFF
            command = RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(order), body, opaque=self._opaque, flag=FLAG_ONEWAY
            )
            sends.append(Send(client.peer.id, command))
        return [*sends, *answer(peer, request, body=in_java)]

    def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        """Return the new offset of the group in a queue: not above its current one, unless forced."""
        consumed = self._offsets.get(header.group, header.topic, queue_id)
        if consumed is None:
            raise SystemError_(f"THe consumer group <{header.group}> not exist: it has no offset for queue {queue_id}")
        if header.timestamp == -1:
            target = self._store.max_offset(header.topic, queue_id)
        else:
            target = self._store.offset_by_time(header.topic, queue_id, header.timestamp)
        return target if header.is_force else min(target, consumed)


def _require_askable(client: Client) -> None:
    if client.version < VERSION_ASKABLE:
        raise SystemError_(f"the client does not support this feature. version={version_text(client.version)}")
