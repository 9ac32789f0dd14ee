"""Elections: pre-votes, votes, and how a member begins to lead.

Source: DLedgerLeaderElector, openmessaging/dledger 0.3.1.2; mqtrail.raft.core.
"""

from collections.abc import Hashable

from mqtrail.wire import LEDGER_HEAD_SIZE, LedgerEntry, LedgerVote, LedgerVoteReply, VoteResult

from ..core import TERM_STEP_MAX, Role
from ..rules import is_as_new
from .entries import MemberEntries
from .pushing import Pushing
from .state import DISK_ERRORS, OURS, Status


class MemberElections(MemberEntries):
    """How a member votes, and becomes the leader."""

    def _on_vote(self, asker: Hashable, request: LedgerVote, now_ms: int) -> None:
        self._note_kind(request.leader_id, is_ours=bool(request.mqtrail))
        result = self._pre_vote(request, now_ms) if request.is_pre_vote else self._vote(request, now_ms)
        term = request.term if request.is_pre_vote and result is VoteResult.ACCEPT else self.term
        self._answer(
            asker,
            LedgerVoteReply(
                group=request.group,
                remote_id=request.remote_id,
                local_id=request.local_id,
                leader_id=request.leader_id,
                term=term,
                mqtrail=OURS,
                vote_result=result,
            ),
        )

    def _log_is_newer(self, request: LedgerVote) -> VoteResult | None:
        """Return why a candidate's log may lack what is committed; None: it does not."""
        if self._is_as_new(request):
            return None
        if request.ledger_end_term < self.log.end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        return VoteResult.REJECT_SMALL_LEDGER_END_INDEX

    def _is_as_new(self, request: LedgerVote) -> bool:
        log = self.log
        return is_as_new(request.ledger_end_term, request.ledger_end_index, log.end_term, log.end_index)

    def _pre_vote(self, request: LedgerVote, now_ms: int) -> VoteResult:
        """Would this member vote? Not while it hears a leader."""
        if request.term <= self.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if (newer := self._log_is_newer(request)) is not None:
            return newer
        hears = self.is_leader or now_ms - self._heard_ms < self._leader_timeout_ms()
        return VoteResult.REJECT_ALREADY_HAS_LEADER if hears else VoteResult.ACCEPT

    def _vote(self, request: LedgerVote, now_ms: int) -> VoteResult:
        candidate = request.leader_id
        if (newer := self._log_is_newer(request)) is not None:
            return newer
        if request.term < self.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if request.term > self.term:
            self._follow(request.term, None, now_ms)
        elif self.leader not in (None, candidate):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if not self._may_vote_for(candidate):
            return VoteResult.REJECT_ALREADY_VOTED
        self.log.set_term(self.term, candidate)
        self._wait_for_leader(now_ms)
        return VoteResult.ACCEPT

    def _may_vote_for(self, candidate: str | None) -> bool:
        return self.log.voted in (None, candidate)

    def _campaign(self, now_ms: int, *, pre_vote: bool) -> None:
        """Ask for pre-votes of the next term, or begin it and ask for votes."""
        config = self.config
        if self.log.is_cutting:  # it could not write its first entry
            self._wait_for_votes(now_ms)
            return
        self.leader = None
        self._votes, self._foreign, self._revotes = {config.self_id}, set(), {}
        self._wait_for_votes(now_ms)
        if pre_vote and config.majority > 1:
            self.role = Role.PRE_CANDIDATE
        else:
            pre_vote = False
            try:
                self.log.set_term(self.term + 1, config.self_id)
            except DISK_ERRORS as error:
                self._problem(f"this member asks for no votes, since it cannot keep its own: {error}")
                self.role = Role.FOLLOWER
                return
            self.role = Role.CANDIDATE
            if config.majority == 1:
                self._lead(now_ms)
                return
        for peer in config.peers:
            self._ask_vote(peer, pre_vote=pre_vote)

    def _ask_vote(self, peer: str, *, pre_vote: bool) -> None:
        self._call(
            peer,
            LedgerVote,
            term=self.term + 1 if pre_vote else self.term,
            mqtrail=OURS,
            is_pre_vote=pre_vote,
            ledger_end_index=self.log.end_index,
            ledger_end_term=self.log.end_term,
        )

    def _on_vote_reply(self, peer: str, request: LedgerVote, reply: LedgerVoteReply, now_ms: int) -> None:
        if reply.code == Status.UNSUPPORTED:
            self._note_kind(peer, is_ours=False)
        elif reply.mqtrail:
            self._note_kind(peer, is_ours=True)
        if reply.vote_result is VoteResult.ACCEPT:
            wanted = Role.PRE_CANDIDATE if request.is_pre_vote else Role.CANDIDATE
            if self.role is wanted and request.term == self.term + (1 if request.is_pre_vote else 0):
                self._votes.add(peer)
        elif reply.term > self.term and reply.term <= self.term + TERM_STEP_MAX:
            self._follow(reply.term, None, now_ms)
            return
        elif reply.vote_result is VoteResult.REJECT_TERM_NOT_READY and self.role is Role.CANDIDATE:
            if request.term == self.term:
                self._revotes[peer] = now_ms + self.config.revote_ms
        elif request.is_pre_vote and self._kinds.get(peer) is False:
            self._foreign.add(peer)
        self._count_votes(now_ms)

    def _count_votes(self, now_ms: int) -> None:
        majority = self.config.majority
        if self.role is Role.CANDIDATE and len(self._votes) >= majority:
            self._lead(now_ms)
        elif self.role is Role.PRE_CANDIDATE:
            # Apache's members have no pre-vote: they count as willing, once a leader of theirs would have been heard.
            is_silent = now_ms - self._silent_ms >= self.config.foreign_election_ms
            willing = self._votes | self._foreign if is_silent else self._votes
            if len(willing) >= majority:
                self._campaign(now_ms, pre_vote=False)

    def _lead(self, now_ms: int) -> None:
        """Begin to lead: an entry of the own term makes the earlier ones committable."""
        config = self.config
        try:
            self._first_index = self._append_first()
        except DISK_ERRORS as error:
            self.resign(error, now_ms)
            return
        self.role, self.leader = Role.LEADER, config.self_id
        self.election_count += 1
        self._finish_handing(Status.TAKE_LEADERSHIP_FAILED)
        self._answers_ms = dict.fromkeys(config.peers, now_ms)
        self._pushing = {peer: Pushing(self.log, config, self._pusher(peer)) for peer in config.peers}
        for peer, pushing in self._pushing.items():
            pushing.is_batching = self._kinds.get(peer, False)
        self._revotes = {}
        self._fail_held()
        self._beat(now_ms)
        if self._taking is not None:
            self._finish_taking(Status.SUCCESS)

    def _append_first(self) -> int:
        log, make = self.log, self._first_body
        position = log.place(LEDGER_HEAD_SIZE + len(make(0)))
        entry = LedgerEntry(log.end_index + 1, self.term, position, make(position + LEDGER_HEAD_SIZE))
        log.append([entry])
        return entry.index
