"""A member behind a port: commands of the remoting protocol in, commands out. A core as `controller` and `broker` are.

    port.handle(peer, command, now_ms)       a request on a connection that another member opened
    port.replied(number, command, now_ms)    the reply to a call; None: there is none
    port.take_calls()                        after any of them: commands for other members, each with its number

While another thread flushes the log it must not be cut: `begin_flush` and `end_flush` say when that is, and requests to
truncate wait. While another thread cuts it (`LedgerStorage.is_cutting`), all requests with entries wait for `end_cut`.

Source: DLedgerRpcNettyService, openmessaging/dledger 0.3.1.2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mqtrail.wire import (
    BodyError,
    LedgerCode,
    LedgerHeartbeat,
    LedgerPush,
    LedgerReply,
    LedgerStatus,
    LedgerVoteReply,
    Peer,
    PeerId,
    PushType,
    RemotingCommand,
    ResponseCode,
    Send,
    WorkParts,
    answer,
    decode_ledger_reply,
    decode_ledger_request,
)

from .calls import LedgerCall
from .member import LedgerMember

CODE_OF_REPLIES: Final = 200  # of their commands; their bodies have the one that counts
LEADERS_MAX: Final = 256  # connections of which it is known which member is behind them
WAITING_MAX: Final = 16  # requests that wait for another thread; more are dropped, and their leader asks again
CUT_OFF: Final = "entries that the leader does not have were cut off: {}"


@dataclass(frozen=True, slots=True)
class LedgerCommand:
    """A command for a member; `LedgerPort.replied` gets the reply with the number."""

    number: int
    target: str
    command: RemotingCommand


@dataclass(frozen=True, slots=True)
class _Asker:
    peer: Peer
    command: RemotingCommand


class LedgerPort:
    """See the module. allows: whether an IP address may be that of a member, or of an operator."""

    def __init__(self, member: LedgerMember) -> None:
        self.parts = WorkParts()
        self.member = member
        self.allows: Callable[[str], bool] = lambda ip: True
        self._calls: list[LedgerCommand] = []
        self._codes: dict[int, int] = {}  # number of a call -> code of its request
        self._problems: list[str] = []
        self._leaders: dict[PeerId, str | None] = {}  # connections of members that lead
        self._is_flushing = False
        self._waiting: list[tuple[Peer, RemotingCommand]] = []

    def handle(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        """Serve a request."""
        if not self.allows(peer.address.ip):
            remark = f"found a request from {peer.address.ip}, expected one of slaveAddresses"
            return answer(peer, command, code=ResponseCode.NO_PERMISSION, remark=remark)
        try:
            request = decode_ledger_request(command.code, command.body)
        except BodyError as error:
            return answer(peer, command, code=ResponseCode.SYSTEM_ERROR, remark=str(error))
        if request is None:
            remark = f" request type {command.code} not supported"
            return answer(peer, command, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        leader = request.leader_id if isinstance(request, LedgerHeartbeat | LedgerPush) else None
        if leader in self.member.config.peers and len(self._leaders) < LEADERS_MAX:
            self._leaders[peer.id] = leader
        is_cut = isinstance(request, LedgerPush) and request.type is PushType.TRUNCATE
        waits = isinstance(request, LedgerPush) and self.member.log.is_cutting
        if not waits and not (is_cut and self._is_flushing):
            self.member.serve(_Asker(peer, command), request, now_ms)
            waits = is_cut and self.member.log.is_cutting
            if not waits:
                return self.advance(now_ms)
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append((peer, command))
        return self.advance(now_ms)

    def begin_flush(self) -> None:
        """Cut nothing off: another thread flushes the log."""
        self._is_flushing = True

    def end_flush(self, now_ms: int) -> list[Send]:
        """Answer for what was flushed, and serve what waited."""
        self._is_flushing = False
        return self._serve_waiting(now_ms)

    def end_cut(self, path: str | None, now_ms: int) -> list[Send]:
        """Serve what waited for a cut. path: of the file with what was cut off; None: nothing was, and whoever asked
        asks again."""
        if path is None:
            self._waiting = []
        else:
            self._problems.append(CUT_OFF.format(path))
        return self._serve_waiting(now_ms)

    def _serve_waiting(self, now_ms: int) -> list[Send]:
        waiting, self._waiting = self._waiting, []
        sends = self.advance(now_ms)
        for peer, command in waiting:
            sends += self.handle(peer, command, now_ms)
        return sends

    def replied(self, number: int, command: RemotingCommand | None, now_ms: int) -> list[Send]:
        """Note the reply to a call; None: the member cannot be reached, or did not answer in time."""
        code = self._codes.pop(number, None)
        reply: LedgerReply | None = None
        if code is not None and command is not None:
            if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and code == LedgerCode.PRE_VOTE:
                reply = LedgerVoteReply(code=LedgerStatus.UNSUPPORTED)
            elif command.body:
                try:
                    reply = decode_ledger_reply(code, command.body)
                except BodyError as error:
                    self._problems.append(f"found a reply to request {code} that cannot be read: {error}")
        self.member.answered(number, reply, now_ms)
        return self.advance(now_ms)

    def tick(self, now_ms: int) -> list[Send]:
        """Do what is due."""
        self.member.tick(now_ms)
        return self.advance(now_ms)

    def next_tick_ms(self) -> int | None:
        """Return when to call `tick`."""
        return self.member.next_tick_ms()

    def disconnected(self, peer: PeerId) -> list[Send]:
        """Note that a connection closed that another member had opened."""
        leader = self._leaders.pop(peer, None)
        if leader is not None and leader not in self._leaders.values():
            self.member.lost(leader, self.member.now_ms)
            return self.advance(self.member.now_ms)
        return []

    def lost(self, member: str, now_ms: int) -> list[Send]:
        """Note that a connection closed that this member had opened to another one."""
        self.member.lost(member, now_ms)
        return self.advance(now_ms)

    def advance(self, now_ms: int) -> list[Send]:
        """Return what may be sent now; call it also after entries were written or flushed."""
        decided = self.member.take(now_ms)
        self._problems += decided.problems
        self._problems += map(CUT_OFF.format, decided.truncated)
        self._calls += map(self._command, decided.calls)
        return [
            send
            for one in decided.answers
            if isinstance(one.asker, _Asker)
            for send in answer(one.asker.peer, one.asker.command, code=CODE_OF_REPLIES, body=one.reply.encode())
        ]

    def _command(self, call: LedgerCall) -> LedgerCommand:
        code = call.request.request_code
        self._codes[call.number] = code
        return LedgerCommand(call.number, call.target, RemotingCommand(code, body=call.request.encode()))

    def take_calls(self) -> list[LedgerCommand]:
        """Return the commands to send, in order."""
        calls, self._calls = self._calls, []
        return calls

    def take_problems(self) -> list[str]:
        """Return what an operator should know."""
        problems, self._problems = self._problems, []
        return problems
