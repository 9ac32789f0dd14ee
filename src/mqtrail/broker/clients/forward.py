"""Requests forwarded to clients: 307 and 309 with their answers, and replies (326).

Source: AdminBrokerProcessor.callConsumer, Broker2Client, apache/rocketmq broker/.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from mqtrail.wire import (
    FLAG_RESPONSE,
    ConsumeMessageDirectlyHeader,
    ConsumeMsgTimeout,
    ConsumerRunningInfoHeader,
    Peer,
    PeerId,
    RemotingCommand,
    Send,
    SystemBusy,
    SystemError_,
    answer,
    parse_offset_msg_id,
    version_text,
    without_signature,
)

from ..state import BrokerState
from ..tables import Client

FORWARDS_MAX: Final = 4_000
FORWARDS_PEER_MAX: Final = 400  # open requests from one connection, and to one connection
VERSION_ASKABLE = 62  # V3_1_8_SNAPSHOT: older clients do not serve these


Finish = Callable[[RemotingCommand | None], list[Send]]


@dataclass(frozen=True, slots=True)
class _Forward:
    asker: Peer
    request: RemotingCommand
    asked: PeerId
    deadline_ms: int
    finish: Finish | None = None
    """Builds the answer from the answer of the client (None: there was none). Default: the client's answer
    unchanged."""


class ForwardedRequests:
    """Requests that wait for the answer of a client, each for at most timeout_ms."""

    def __init__(self, state: BrokerState) -> None:
        self._clients = state.clients
        self._store = state.store
        self._timeout_ms = state.config.forward_timeout_ms
        self._waiting: dict[int, _Forward] = {}  # the oldest first
        self._of_requester: Counter[PeerId] = Counter()
        self._of_target: Counter[PeerId] = Counter()
        self._opaque = 0

    def running_info(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """307: request the running information of a consumer."""
        header = ConsumerRunningInfoHeader.from_ext(request.ext)
        return self._forward(peer, request, header.consumer_group, header.client_id, request.body, now_ms)

    def consume_directly(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """309: let a consumer process a stored message now. IdError, QueryNotFound: no such message."""
        header = ConsumeMessageDirectlyHeader.from_ext(request.ext)
        body = request.body
        if header.msg_id:
            _, physical_offset = parse_offset_msg_id(header.msg_id)
            body = bytes(self._store.read_at(physical_offset))
        return self._forward(peer, request, header.consumer_group, header.client_id or "", body, now_ms)

    def _forward(
        self, peer: Peer, request: RemotingCommand, group: str, client_id: str, body: bytes, now_ms: int
    ) -> list[Send]:
        client = self._client(group, client_id)
        self.require_room(peer, [client.peer.id])
        command = RemotingCommand(request.code, without_signature(request.ext), body)
        return self._put(peer, request, client.peer.id, command, now_ms)

    def ask(
        self, peer: Peer, request: RemotingCommand, asked: PeerId, command: RemotingCommand, finish: Finish, now_ms: int
    ) -> list[Send]:
        """Send a command to a client; finish builds the answer to the request from the answer of the client.

        `require_room` comes first.
        """
        return self._put(peer, request, asked, command, now_ms, finish)

    def require_room(self, asker: Peer, asked: Collection[PeerId]) -> None:
        """Raise SystemBusy unless each client of asked can be sent a request now.

        A single request may exceed the bound of its own connection, if no other one is open.
        """
        of_asker = self._of_requester[asker.id]
        of_asked = max([count + self._of_target[one] for one, count in Counter(asked).items()], default=0)
        for what, found, limit in (
            ("requests to clients", len(self._waiting) + len(asked), FORWARDS_MAX),
            ("requests of one connection to clients", of_asker + len(asked) if of_asker else 1, FORWARDS_PEER_MAX),
            ("requests to one client", of_asked, FORWARDS_PEER_MAX),
        ):
            if found > limit:
                raise SystemBusy(f"found {found} {what} without an answer, expected at most {limit}: try again later")

    def _put(
        self,
        peer: Peer,
        request: RemotingCommand,
        asked: PeerId,
        command: RemotingCommand,
        now_ms: int,
        finish: Finish | None = None,
    ) -> list[Send]:
        self._opaque = self._opaque + 1 & 0x7FFFFFFF
        command.opaque = self._opaque
        request.body = b""  # the command contains it; it is not needed here
        self._waiting[self._opaque] = _Forward(peer, request, asked, now_ms + self._timeout_ms, finish)
        self._of_requester[peer.id] += 1
        self._of_target[asked] += 1
        return [Send(asked, command)]

    def _client(self, group: str, client_id: str) -> Client:
        consumers = self._clients.consumer_group(group)
        client = None if consumers is None else consumers.member(client_id)
        if client is None:
            raise SystemError_(f"The Consumer <{group}> <{client_id}> not online")
        if client.version < VERSION_ASKABLE:
            raise SystemError_(
                f"The Consumer <{group}> <{client_id}> Version <{version_text(client.version)}> too low to be asked, "
                "please upgrade it to V3_1_8"
            )
        return client

    def answered(self, peer: Peer, reply: RemotingCommand) -> list[Send]:
        """Forward the answer of a client to the requester. An unexpected answer is dropped."""
        forward = self._waiting.get(reply.opaque)
        if forward is None or forward.asked != peer.id:
            return []
        self._take(reply.opaque)
        if forward.finish is not None:
            return forward.finish(reply)
        back = RemotingCommand(reply.code, reply.ext, reply.body, reply.remark, forward.request.opaque, FLAG_RESPONSE)
        return [Send(forward.asker.id, back)]

    def _take(self, opaque: int) -> _Forward:
        forward = self._waiting.pop(opaque)
        for counts, peer in ((self._of_requester, forward.asker.id), (self._of_target, forward.asked)):
            counts[peer] -= 1
            if not counts[peer]:
                del counts[peer]
        return forward

    def next_deadline_ms(self) -> int | None:
        return next((forward.deadline_ms for forward in self._waiting.values()), None)

    def tick(self, now_ms: int) -> list[Send]:
        """Answer requests whose client did not answer in time."""
        late = list(takewhile(lambda opaque: self._waiting[opaque].deadline_ms <= now_ms, self._waiting))
        return self._give_up(late, f"found no answer from the consumer within {self._timeout_ms} ms")

    def disconnected(self, peer: PeerId) -> list[Send]:
        """Answer requests to a closed connection; drop requests from it."""
        for opaque in [opaque for opaque, forward in self._waiting.items() if forward.asker.id == peer]:
            self._take(opaque)
        gone = [opaque for opaque, forward in self._waiting.items() if forward.asked == peer]
        return self._give_up(gone, "the consumer closed its connection before it answered")

    def _give_up(self, opaques: list[int], remark: str) -> list[Send]:
        sends = []
        for opaque in opaques:
            forward = self._take(opaque)
            if forward.finish is not None:
                sends += forward.finish(None)
                continue
            sends += answer(forward.asker, forward.request, code=ConsumeMsgTimeout.code, remark=remark)
        return sends
