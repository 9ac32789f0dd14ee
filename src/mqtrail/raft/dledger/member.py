"""One member of a DLedger group: who leads, what is committed. Pure: time, chance and the log are handed in.

    member.serve(asker, request, now_ms)     a request of another member or of an operator
    member.answered(number, reply, now_ms)   the reply to a call; None: there is none
    member.check_room(count)                 at the leader: may entries be appended to the log? NotLeader elsewhere
    member.tick(now_ms)                      when next_tick_ms() is due
    decided = member.take(now_ms)            after any of them, and after a flush: what to send

Rules beyond DLedger's, each where it could lose or take back what was acknowledged: docs/design/dledger.md.

Source: DLedgerLeaderElector, DLedgerEntryPusher, DLedgerServer, openmessaging/dledger 0.3.1.2; mqtrail.raft.core.
"""

from collections import deque
from collections.abc import Hashable

from mqtrail.wire import (
    LedgerHeartbeat,
    LedgerHeartbeatReply,
    LedgerMetadataReply,
    LedgerPush,
    LedgerPushReply,
    LedgerReply,
    LedgerRequest,
    LedgerTransfer,
    LedgerTransferReply,
    LedgerVote,
    LedgerVoteReply,
)

from .calls import LedgerDecided
from .elections import MemberElections
from .state import DISK_ERRORS, OURS, Status


class LedgerMember(MemberElections):
    """See the module. addresses: id -> host:port, for METADATA. first_body: makes the first entry of each leader."""

    def next_tick_ms(self) -> int:
        """Return when to call `tick` and `take`."""
        times = [self._due[0][0]] if self._due else []
        if self.is_leader:
            times.append(self._beat_ms)
            times += [pushing.next_ms() for pushing in self._pushing.values()]
        else:
            times += [self._election_ms, *self._revotes.values()]
        times += [one.due_ms for one in (self._handing, self._taking) if one is not None]
        return min(times)

    def tick(self, now_ms: int) -> None:
        """Do what is due: heartbeats, an election, calls that count as lost."""
        self._note_time(now_ms)
        while self._due and self._due[0][0] <= now_ms:
            self.answered(self._due.popleft()[1], None, now_ms)
        self._tick_handover(now_ms)
        if self.is_leader:
            if now_ms >= self._beat_ms:
                self._beat(now_ms)
            return
        for member, due_ms in list(self._revotes.items()):
            if now_ms >= due_ms:
                del self._revotes[member]
                self._ask_vote(member, pre_vote=False)
        if now_ms >= self._election_ms:
            self._campaign(now_ms, pre_vote=True)

    def _note_time(self, now_ms: int) -> None:
        """Begin all waits again if the clock was set back."""
        if now_ms < self._now_ms:
            self._beat_ms = min(self._beat_ms, now_ms)
            self._heard_ms = min(self._heard_ms, now_ms)
            self._silent_ms = min(self._silent_ms, now_ms)
            self._resigned_ms = min(self._resigned_ms, now_ms)
            self._preferred_ms = now_ms
            self._space_ms = now_ms
            self._answers_ms = dict.fromkeys(self._answers_ms, now_ms)
            self._due = deque((now_ms + self.config.call_ms, number) for _, number in self._due)
            self._revotes = dict.fromkeys(self._revotes, now_ms)
            for waiting in (self._handing, self._taking):
                if waiting is not None:
                    waiting.due_ms = now_ms
            for pushing in self._pushing.values():
                pushing.hurry()
            self._wait_for_leader(now_ms)
        self._now_ms = now_ms

    def take(self, now_ms: int) -> LedgerDecided:
        """Return what to send."""
        if self.is_leader:
            try:
                self._advance_commit()
            except DISK_ERRORS as error:
                self.resign(error, now_ms)
            for peer, pushing in self._pushing.items():
                try:
                    pushing.step(now_ms)
                except DISK_ERRORS as error:  # a damaged entry, which only this member lacks: the others go on
                    self._problem(f"entries cannot be sent to member {peer}: {error}")
                    pushing.pause(now_ms)
        self._release_answers()
        decided, self._out = self._out, LedgerDecided()
        for name in ("problems", "truncated"):
            found: list[str] = getattr(self.following, name)
            getattr(decided, name).extend(found)
            found.clear()
        return decided

    # Requests of others.

    def serve(self, asker: Hashable, request: LedgerRequest, now_ms: int) -> None:
        """Serve a request; `take` returns the answer, now or after a flush."""
        self._note_time(now_ms)
        if (status := self._is_for_another(request)) is not None:
            self._answer(asker, self._refusal(request, status))
            return
        try:
            self._serve(asker, request, now_ms)
        except DISK_ERRORS as error:  # the term or the vote cannot be kept
            self._problem(f"a request of member {request.leader_id} cannot be served: {error}")
            self._answer(asker, self._refusal(request, Status.DISK_ERROR))

    def _serve(self, asker: Hashable, request: LedgerRequest, now_ms: int) -> None:
        if isinstance(request, LedgerVote):
            self._on_vote(asker, request, now_ms)
        elif isinstance(request, LedgerHeartbeat):
            self._on_heartbeat(asker, request, now_ms)
        elif isinstance(request, LedgerPush):
            self._on_push(asker, request, now_ms)
        elif isinstance(request, LedgerTransfer):
            self._on_transfer(asker, request, now_ms)
        else:
            self._answer(asker, self._metadata())

    def _metadata(self) -> LedgerMetadataReply:
        log, config = self.log, self.config
        return LedgerMetadataReply(
            group=config.group,
            local_id=config.self_id,
            leader_id=self.leader,
            term=self.term,
            mqtrail=OURS,
            instance=self.instance,
            peers=self._addresses or None,
            end_position=self._position_behind(log.end_index),
            committed_position=self._position_behind(log.committed_index),
        )

    def _position_behind(self, index: int) -> int:
        head = self.log.head(index)
        return 0 if head is None else head.position + head.size

    # Replies of others.

    def answered(self, number: int, reply: LedgerReply | None, now_ms: int) -> None:
        """Note the reply to a call; None: there is none. One that comes too late has no effect."""
        self._note_time(now_ms)
        found = self._calls.pop(number, None)
        if found is None:
            return
        peer, request = found
        try:
            self._hear_reply(peer, number, request, reply, now_ms)
        except DISK_ERRORS as error:
            self._problem(f"a reply of member {peer} cannot be obeyed: {error}")

    def _hear_reply(
        self, peer: str, number: int, request: LedgerRequest, reply: LedgerReply | None, now_ms: int
    ) -> None:
        if isinstance(request, LedgerTransfer):
            self._on_transfer_reply(number, reply if isinstance(reply, LedgerTransferReply) else None)
        elif isinstance(request, LedgerPush):
            if self.is_leader and request.term == self.term:
                self._on_push_reply(peer, number, reply if isinstance(reply, LedgerPushReply) else None, now_ms)
        elif isinstance(reply, LedgerVoteReply) and isinstance(request, LedgerVote):
            self._on_vote_reply(peer, request, reply, now_ms)
        elif isinstance(reply, LedgerHeartbeatReply) and self.is_leader and request.term == self.term:
            self._on_heartbeat_reply(peer, reply, now_ms)
