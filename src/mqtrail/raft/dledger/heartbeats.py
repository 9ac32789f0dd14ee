"""Leaders and followers of a term: heartbeats, and when a member begins to follow or leads no longer.

Source: DLedgerLeaderElector, openmessaging/dledger 0.3.1.2.
"""

from collections.abc import Hashable

from mqtrail.wire import LedgerHeartbeat, LedgerHeartbeatReply, LedgerPush

from ..core import NEVER_MS, TERM_STEP_MAX, Role
from .state import FULL, OURS, Status
from .transfers import MemberTransfers


class MemberHeartbeats(MemberTransfers):
    """Whom a member follows, and who follows it."""

    def resign(self, why: object, now_ms: int) -> None:
        """Lead no longer, and let the others go first: this member cannot do what a leader must."""
        config = self.config
        self._problem(f"this member was elected in term {self.term} and cannot lead: {why}")
        self._follow(self.term, None, now_ms)
        self._resigned_ms = now_ms
        self._election_ms = now_ms + 2 * config.election_ms + int(self._chance() * config.election_ms)

    def lost(self, member: str, now_ms: int) -> None:
        """Note that the connection to a member closed. If it leads, the others need not wait for its silence."""
        if member == self.leader and self.role is Role.FOLLOWER:
            self.leader = None
            self._heard_ms = NEVER_MS
            self._election_ms = min(self._election_ms, now_ms + 1 + int(self._chance() * self.config.lost_leader_ms))

    def _follow(self, term: int, leader: str | None, now_ms: int) -> None:
        """Follow a leader in a term, or wait for one. DISK_ERRORS: it cannot be saved; a leader steps down too."""
        is_new = term > self.term or leader != self.leader or self.role is not Role.FOLLOWER
        if self.is_leader:
            self._pushing = {}
            self._wait_for_leader(now_ms)
            self.role, self.leader = Role.FOLLOWER, None
        if term > self.term:
            self.log.set_term(term, None)
            self._fail_held()
        if leader is not None and is_new:
            self.following.begin(term)
        self.role, self.leader = Role.FOLLOWER, leader
        self._revotes = {}
        if self._taking is not None and (term > self._taking.term or leader is not None):
            self._finish_taking(Status.TAKE_LEADERSHIP_FAILED)

    def _fail_held(self) -> None:
        """Answer nothing for an earlier term: its leader must not count this member any more."""
        self._held.clear()

    def _hear(self, now_ms: int) -> None:
        self._heard_ms = self._silent_ms = now_ms
        self._wait_for_leader(now_ms)

    def _beat(self, now_ms: int) -> None:
        """Send heartbeats, or step down if no majority follows."""
        config = self.config
        follow = 1 + sum(now_ms - at_ms <= config.election_ms for at_ms in self._answers_ms.values())
        if follow < config.majority:
            self._problem(
                f"found {follow} of {len(config.members)} members that follow in term {self.term}, expected "
                f"{config.majority}: this member leads no longer, and takes no messages until a majority answers"
            )
            self._follow(self.term, None, now_ms)
            return
        self._beat_ms = now_ms + config.heartbeat_ms
        for peer in config.peers:
            self._call(peer, LedgerHeartbeat, mqtrail=OURS)
        self._look_for_preferred(now_ms)
        self._look_for_space(now_ms)

    def _on_heartbeat(self, asker: Hashable, request: LedgerHeartbeat, now_ms: int) -> None:
        self._note_kind(request.leader_id, is_ours=bool(request.mqtrail))
        status = self._obey(request, now_ms)
        if status is Status.SUCCESS:
            self._hear(now_ms)
        term = self.term if status is not Status.SUCCESS else -1
        mark = OURS | FULL if self.is_full else OURS
        self._answer(asker, LedgerHeartbeatReply(term=term, code=status, mqtrail=mark))

    def _obey(self, request: LedgerHeartbeat | LedgerPush, now_ms: int) -> Status:
        """Follow the leader that sent a request; return SUCCESS, or why not."""
        if request.term < self.term:
            return Status.EXPIRED_TERM
        if request.term == self.term and self.leader not in (None, request.leader_id):
            self._problem(
                f"found {request.leader_id} as leader of term {self.term}, expected {self.leader}: two members lead in "
                "one term, so one of them lost its vote; look for a member whose folder was emptied or restored"
            )
            return Status.INCONSISTENT_LEADER
        if request.term > self.term or self.leader is None:
            self._follow(request.term, request.leader_id, now_ms)
            self._wait_for_leader(now_ms)
        return Status.SUCCESS

    def _on_heartbeat_reply(self, peer: str, reply: LedgerHeartbeatReply, now_ms: int) -> None:
        if reply.mqtrail:
            self._note_kind(peer, is_ours=True)
        if reply.code == Status.SUCCESS:
            if reply.mqtrail & FULL:
                self._full_peers.add(peer)
            else:
                self._full_peers.discard(peer)
            self._answers_ms[peer] = now_ms
            if peer in self._pushing:
                self._pushing[peer].follows = True
        elif reply.code == Status.TERM_NOT_READY:
            self._beat_ms = min(self._beat_ms, now_ms + self.config.revote_ms)
        elif reply.code == Status.EXPIRED_TERM:
            self._depose(reply.term, now_ms)

    def _depose(self, term: int, now_ms: int) -> None:
        if self.term < term <= self.term + TERM_STEP_MAX:
            self._follow(term, None, now_ms)
