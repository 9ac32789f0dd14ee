"""Lives of DLedger groups with members that keep Apache's rules, as far as those differ from ours.

Connections keep the order, and nothing arrives twice: Apache's members rely on it. Processes are killed, and no power
fails: Apache's members answer before they sync. What only they committed is not held against ours.
"""

from collections.abc import Hashable
from typing import Any, cast

from mqtrail.raft import Role
from mqtrail.raft.dledger import LedgerMember
from mqtrail.raft.dledger.following import LedgerFollowing
from mqtrail.wire import (
    LedgerEntry,
    LedgerHeartbeat,
    LedgerHeartbeatReply,
    LedgerPush,
    LedgerStatus,
    LedgerVote,
    LedgerVoteReply,
    PushType,
    VoteResult,
)

from .ledger_group import LedgerGroup, LedgerSimMember, text_of
from .raft_group import Applied, RaftHistory, RaftMember

NEWER_LOGS = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)


class ApacheLikeFollowing(LedgerFollowing):
    """Appends behind any entry, cuts whatever it is asked to, commits what the leader says."""

    def _append(self, entries: tuple[LedgerEntry, ...]) -> LedgerStatus:
        self.matched_index = max(self.matched_index, self._log.end_index)
        return super()._append(entries)

    def _truncate(self, entry: LedgerEntry, request: LedgerPush) -> LedgerStatus | None:
        self._log.committed_index = min(self._log.committed_index, entry.index - 1)
        return super()._truncate(entry, request)

    def _keeps_tail(self, index: int, request: LedgerPush) -> bool:
        return index == self._log.end_index

    def _commit_up_to(self, index: int, term: int) -> None:
        self._log.committed_index = max(self._log.committed_index, min(index, self._log.end_index))


class ApacheLikeMember(LedgerMember):
    """Knows no pre-vote, begins to lead without an entry, counts entries of earlier terms, is not ready for a term that
    it did not know, and answers an earlier leader for entries that it has."""

    following_class = ApacheLikeFollowing

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._could_vote: set[str] = set()  # members that answered in this round, and whose logs are not newer

    def _on_vote(self, asker: Hashable, request: LedgerVote, now_ms: int) -> None:
        if request.is_pre_vote:
            self._answer(asker, LedgerVoteReply(code=LedgerStatus.UNSUPPORTED))
        elif request.term > self.term and self._is_as_new(request):
            old_term = self.term
            self._follow(request.term, None, now_ms)
            self._wait_for_votes(now_ms)
            result = VoteResult.REJECT_TERM_NOT_READY
            self._answer(asker, LedgerVoteReply(group=request.group, term=old_term, vote_result=result))
        else:
            reply = LedgerVoteReply(group=request.group, vote_result=self._vote(request, now_ms), term=self.term)
            self._answer(asker, reply)

    def _on_heartbeat(self, asker: Hashable, request: LedgerHeartbeat, now_ms: int) -> None:
        if request.term > self.term:
            self._follow(request.term, None, now_ms)
            self._wait_for_votes(now_ms)
            self._answer(asker, LedgerHeartbeatReply(code=LedgerStatus.TERM_NOT_READY))
            return
        status = self._obey(request, now_ms)
        if status is LedgerStatus.SUCCESS:
            self._hear(now_ms)
        self._answer(asker, LedgerHeartbeatReply(code=status, term=self.term))

    def _on_push(self, asker: Hashable, request: LedgerPush, now_ms: int) -> None:
        if request.term != self.term or self.leader != request.leader_id:
            mine = [self.log.entry(entry.index) for entry in request.entries]
            has_all = all(one is not None and one.is_same(two) for one, two in zip(mine, request.entries, strict=True))
            answers = request.type is PushType.APPEND and has_all
            status = LedgerStatus.SUCCESS if answers else LedgerStatus.INCONSISTENT_STATE
            self._answer(asker, self._push_reply(request, status))
            return
        super()._on_push(asker, request, now_ms)

    def _campaign(self, now_ms: int, *, pre_vote: bool) -> None:
        """Begin a new term only if a majority could have voted in the last round; else ask again in this one."""
        could_vote, self._could_vote = len(self._could_vote) + 1, set()
        if could_vote >= self.config.majority:
            super()._campaign(now_ms, pre_vote=False)
            return
        self.role, self.leader, self._votes, self._revotes = Role.CANDIDATE, None, set(), {}
        self._wait_for_votes(now_ms)
        if self._may_vote_for(self.config.self_id):
            self.log.set_term(self.term, self.config.self_id)
            self._votes = {self.config.self_id}
        for peer in self.config.peers:
            self._ask_vote(peer, pre_vote=False)

    def _on_vote_reply(self, peer: str, request: LedgerVote, reply: LedgerVoteReply, now_ms: int) -> None:
        if reply.vote_result not in NEWER_LOGS:
            self._could_vote.add(peer)
        super()._on_vote_reply(peer, request, reply, now_ms)

    def _lead(self, now_ms: int) -> None:
        """It compares at once, whether the others follow or not."""
        super()._lead(now_ms)
        for pushing in self._pushing.values():
            pushing.follows = True

    def lost(self, member: str, now_ms: int) -> None:
        """It waits for heartbeats, whatever happens to the connection."""

    def _counts(self, index: int) -> bool:
        return True

    def _append_first(self) -> int:
        return self.log.end_index


class MixedLedgerGroup(LedgerGroup):
    """Some members, at least one and not all, are like Apache's."""

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        super().__init__(seed, keeps_log=keeps_log)
        self.loses_power = False
        self.rates.doubled = self.rates.late = 0.0
        self._delay_least_ms = self._delay_ms
        for member in self.members.values():
            member.disk.rates.power_cut = member.disk.rates.sync_error = 0.0
        count = self.engine.chance.randrange(1, len(self.names))
        self.kinds = dict.fromkeys(self.engine.chance.sample(self.names, count), ApacheLikeMember)

    def live(self) -> RaftHistory:
        """Take the logs of Apache's members as they are at the end: they may have shown others before."""
        history = super().live()
        for name in self.kinds:
            member = cast(LedgerSimMember, self.members[name]).member
            if member is not None:
                log = member.log
                entries = [log.entry(index) for index in range(log.committed_index + 1)]
                history.final[name] = [(one.index, one.term, text_of(one.body)) for one in entries if one is not None]
        return history

    def note_applied(self, member: RaftMember, applied: list[Applied]) -> None:
        """Apache's may show what is replaced later; ours never."""
        if member.name not in self.kinds:
            super().note_applied(member, applied)

    def acknowledges(self, name: str, term: int, own_term: int) -> bool:
        """Apache's leader fails what waits from its earlier terms (checkTermForPendingMap)."""
        return name not in self.kinds or term == own_term

    def note_problem(self, member: LedgerSimMember, problem: str) -> None:
        if member.name not in self.kinds:
            super().note_problem(member, problem)

    @property
    def leaders_of_ours(self) -> int:
        """How many terms a member of ours led."""
        return sum(name not in self.kinds for name in self.history.leaders.values())
