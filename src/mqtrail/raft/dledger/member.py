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
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Final

from mqtrail.wire import (
    LEDGER_HEAD_SIZE,
    LedgerEntry,
    LedgerHeartbeat,
    LedgerHeartbeatReply,
    LedgerMetadata,
    LedgerMetadataReply,
    LedgerPush,
    LedgerPushReply,
    LedgerReply,
    LedgerRequest,
    LedgerStatus,
    LedgerTransfer,
    LedgerTransferReply,
    LedgerVote,
    LedgerVoteReply,
    MQError,
    PushType,
    VoteResult,
)

from ..core import NEVER_MS, TERM_STEP_MAX, Role
from ..errors import NotLeader, RaftBusy
from ..rules import commits_by_count, is_as_new, reached_by
from .calls import LedgerAnswer, LedgerCall, LedgerDecided
from .config import LedgerConfig
from .following import LedgerFollowing
from .handover import HandingOver, TakingOver
from .pushing import Pushing
from .storage import LedgerStorage

Status = LedgerStatus
MakeBody = Callable[[int], bytes]
"""Returns the record of an entry for a physical offset; its size does not depend on it."""
OURS: Final = 1  # what `mqtrail` says in our messages
DISK_ERRORS: Final = (MQError, OSError)  # of the log, and of term and vote: they stay as they were


class LedgerMember:
    """See the module. addresses: id -> host:port, for METADATA. first_body: makes the first entry of each leader."""

    following_class: ClassVar[type[LedgerFollowing]] = LedgerFollowing

    def __init__(
        self,
        config: LedgerConfig,
        log: LedgerStorage,
        chance: Callable[[], float],
        first_body: MakeBody,
        now_ms: int,
        addresses: dict[str, str] | None = None,
    ) -> None:
        self.config = config
        self.log = log
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.election_count = 0  # how often it was elected
        self.following = self.following_class(log)
        self._chance = chance
        self._first_body = first_body
        self._addresses = addresses or {}
        self._now_ms = now_ms
        self._heard_ms = NEVER_MS  # the last heartbeat of the present leader
        self._silent_ms = now_ms  # since when no leader was heard
        self._kinds: dict[str, bool] = {}  # member -> whether it is one of mqtrail, once that is known
        self._votes: set[str] = set()
        self._foreign: set[str] = set()  # members of Apache, which do not answer a pre-vote
        self._revotes: dict[str, int] = {}  # members that were in an older term -> when to ask again
        self._first_index = -1  # of the entry with which this leader began
        self._beat_ms = 0
        self._answers_ms: dict[str, int] = {}  # member -> when it followed this leader last
        self._pushing: dict[str, Pushing] = {}
        self._handing: HandingOver | None = None
        self._taking: TakingOver | None = None
        self._preferred_ms = now_ms
        self._resigned_ms = NEVER_MS
        self._number = 0
        self._calls: dict[int, tuple[str, LedgerRequest]] = {}
        self._due: deque[tuple[int, int]] = deque()  # when each call counts as lost, in order
        self._held: deque[tuple[int, Hashable, LedgerPushReply]] = deque()  # answers that wait for a flush
        self._out = LedgerDecided()
        self._election_ms = now_ms + config.lost_leader_ms + int(chance() * config.election_ms)

    # Questions.

    @property
    def term(self) -> int:
        return self.log.term

    @property
    def now_ms(self) -> int:
        """The latest time that this member knows."""
        return self._now_ms

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_ready(self) -> bool:
        """Whether this member leads, and has committed all that earlier leaders may have."""
        return self.is_leader and self.log.committed_index >= self._first_index

    @property
    def has_entries_index(self) -> int:
        """Up to here this member counts as having the log."""
        return self.log.durable_index if self.config.waits_for_flush else self.log.end_index

    def match_index(self, member: str) -> int:
        """Return up to where a leader knows a member's log to be its own; -1: it does not know."""
        pushing = self._pushing.get(member)
        return -1 if pushing is None else pushing.match_index

    @property
    def followers(self) -> frozenset[str]:
        """The members that this leader hears; nobody follows another one."""
        if not self.is_leader:
            return frozenset()
        since_ms = self._now_ms - self.config.election_ms
        return frozenset(member for member, at_ms in self._answers_ms.items() if at_ms >= since_ms)

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

    # What a member is asked to do.

    def check_room(self, count: int) -> None:
        """Check that so many entries of this term may be appended to the log now; `take` sends them.

        NotLeader; RaftBusy: too many wait for a majority, or another member takes over.
        """
        if not self.is_leader:
            raise NotLeader(self.leader)
        if self._handing is not None:
            raise RaftBusy(f"found member {self._handing.target} about to lead, expected no hand-over: try again")
        waiting = self.log.end_index - self.log.committed_index
        if waiting and waiting + count > self.config.pending_count_max:
            raise RaftBusy(
                f"found {waiting} entries that wait for a majority, expected fewer than "
                f"{self.config.pending_count_max}: try again when more members answer"
            )

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

    def hand_over(self, target: str, now_ms: int, asker: Hashable | None = None) -> Status:
        """At the leader: let another member lead. SUCCESS: it is asked; otherwise why it is not."""
        if not self.is_leader:
            return Status.NOT_LEADER
        if target not in self.config.peers:
            return Status.UNKNOWN_MEMBER
        if self._handing is not None:
            return Status.LEADER_TRANSFERRING
        if self.log.end_index - self.match_index(target) >= self.config.transfer_behind_max:
            return Status.FALL_BEHIND_TOO_MUCH
        number = self._call(
            target,
            LedgerTransfer,
            transfer_id=self.config.self_id,
            transferee_id=target,
            take_leadership_ledger_index=self.log.end_index,
        )
        self._handing = HandingOver(target, number, asker, now_ms + self.config.transfer_ms)
        return Status.SUCCESS

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
            peers=self._addresses or None,
            end_position=self._position_behind(log.end_index),
            committed_position=self._position_behind(log.committed_index),
        )

    def _position_behind(self, index: int) -> int:
        head = self.log.head(index)
        return 0 if head is None else head.position + head.size

    def _is_for_another(self, request: LedgerRequest) -> Status | None:
        """Return why a request is not for this member; None: it is."""
        config = self.config
        if request.group != config.group:
            self._problem(
                f"found a request for group {request.group} from {request.local_id}, expected group {config.group}: "
                "correct dLegerGroup or dLegerPeers there or here"
            )
            return Status.UNKNOWN_GROUP
        if request.remote_id != config.self_id:
            self._problem(
                f"found a request for member {request.remote_id} from {request.local_id}, expected one for "
                f"{config.self_id}: dLegerPeers must be the same at all members"
            )
            return Status.UNKNOWN_MEMBER
        if isinstance(request, LedgerMetadata | LedgerTransfer):
            return None  # of an operator too
        if request.leader_id == config.self_id:
            self._problem(
                f"found a request of member {request.leader_id}, which is this one's own id, expected another: two "
                "members have one dLegerSelfId"
            )
            return Status.UNEXPECTED_MEMBER
        if request.leader_id not in config.peers:
            self._problem(
                f"found a request of member {request.leader_id}, expected one of {', '.join(config.peers)}: "
                "dLegerPeers must be the same at all members"
            )
            return Status.UNKNOWN_MEMBER
        if request.term > self.term + TERM_STEP_MAX:
            self._problem(
                f"found term {request.term} in a request of member {request.leader_id}, expected at most "
                f"{self.term + TERM_STEP_MAX}: it is not a member of this group"
            )
            return Status.UNEXPECTED_ARGUMENT
        return None

    def _refusal(self, request: LedgerRequest, status: Status) -> LedgerReply:
        if isinstance(request, LedgerVote):
            is_unknown = status is not Status.UNEXPECTED_MEMBER
            result = VoteResult.REJECT_UNKNOWN_LEADER if is_unknown else VoteResult.REJECT_UNEXPECTED_LEADER
            return LedgerVoteReply(group=self.config.group, term=self.term, code=status, vote_result=result)
        if isinstance(request, LedgerPush):
            return self._push_reply(request, status)
        if isinstance(request, LedgerTransfer):
            return LedgerTransferReply(group=self.config.group, term=self.term, code=status)
        if isinstance(request, LedgerMetadata):
            return LedgerMetadataReply(group=self.config.group, code=status)
        return LedgerHeartbeatReply(group=self.config.group, term=self.term, code=status)

    # Votes.

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

    # Roles.

    def _leader_timeout_ms(self) -> int:
        config = self.config
        is_ours = self.leader is None or self._kinds.get(self.leader, True)
        return config.election_ms if is_ours else config.foreign_election_ms

    def _wait_for_leader(self, now_ms: int) -> None:
        timeout_ms = self._leader_timeout_ms()
        self._election_ms = now_ms + timeout_ms + int(self._chance() * timeout_ms / 2)

    def _wait_for_votes(self, now_ms: int) -> None:
        wait_ms = self.config.election_ms / 4
        self._election_ms = now_ms + int(wait_ms + self._chance() * wait_ms * 2)

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

    def _hear(self, now_ms: int) -> None:
        self._heard_ms = self._silent_ms = now_ms
        self._wait_for_leader(now_ms)

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

    def _note_kind(self, member: str | None, *, is_ours: bool) -> None:
        if member in self.config.peers and self._kinds.get(member) is not is_ours:
            self._kinds[member] = is_ours
            if member in self._pushing:
                self._pushing[member].is_batching = is_ours

    # Heartbeats.

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

    def _on_heartbeat(self, asker: Hashable, request: LedgerHeartbeat, now_ms: int) -> None:
        self._note_kind(request.leader_id, is_ours=bool(request.mqtrail))
        status = self._obey(request, now_ms)
        if status is Status.SUCCESS:
            self._hear(now_ms)
        term = self.term if status is not Status.SUCCESS else -1
        self._answer(asker, LedgerHeartbeatReply(term=term, code=status, mqtrail=OURS))

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

    # Entries.

    def _on_push(self, asker: Hashable, request: LedgerPush, now_ms: int) -> None:
        status = self._obey(request, now_ms)
        if status is Status.SUCCESS:
            self._hear(now_ms)
            pushed = self.following.push(request)
            if pushed is None:
                return  # it is served again, once the log is cut off
            status = pushed
        reply = self._push_reply(request, status)
        if status is Status.SUCCESS and request.type is not PushType.COMMIT:  # the leader counts COMPARE too
            self._held = deque(one for one in self._held if one[0] <= self.log.end_index)
            self._held.append((request.last_index, asker, reply))
        else:
            self._answer(asker, reply)
        if self._taking is not None:
            self._tick_handover(now_ms)

    def _push_reply(self, request: LedgerPush, status: Status) -> LedgerPushReply:
        log = self.log
        is_commit = request.type is PushType.COMMIT
        return LedgerPushReply(
            group=self.config.group,
            term=self.term if status is Status.EXPIRED_TERM else request.term,
            code=status,
            index=None if is_commit else request.first_index,
            count=0 if is_commit else len(request.entries),
            begin_index=log.begin_index,
            end_index=log.end_index,
        )

    def _release_answers(self) -> None:
        """Answer for the entries that this member has by now."""
        has = self.has_entries_index
        while self._held and self._held[0][0] <= has:
            _, asker, reply = self._held.popleft()
            self._answer(asker, reply)

    def _fail_held(self) -> None:
        """Answer nothing for an earlier term: its leader must not count this member any more."""
        self._held.clear()

    def _pusher(self, peer: str) -> Callable[[PushType, Sequence[LedgerEntry]], int]:
        def send(kind: PushType, entries: Sequence[LedgerEntry]) -> int:
            return self._call(
                peer,
                LedgerPush,
                type=kind,
                commit_index=self.log.committed_index,
                entries=tuple(entries),
                is_batch=len(entries) > 1,
            )

        return send

    def _on_push_reply(self, peer: str, number: int, reply: LedgerPushReply | None, now_ms: int) -> None:
        if reply is not None and reply.code == Status.EXPIRED_TERM and reply.term > self.term:
            self._depose(reply.term, now_ms)
            return
        pushing = self._pushing.get(peer)
        if pushing is not None:
            pushing.answered(number, reply, now_ms)
            if reply is not None and reply.code == Status.SUCCESS:
                self._answers_ms[peer] = now_ms

    def _advance_commit(self) -> None:
        """Commit the newest entry of this term that a majority has, and with it all before."""
        log = self.log
        reached = [self.has_entries_index, *(pushing.match_index for pushing in self._pushing.values())]
        index = reached_by(reached, self.config.majority)
        if index > log.committed_index and self._counts(index):
            log.committed_index = index

    def _counts(self, index: int) -> bool:
        return commits_by_count(self.log.term_at(index), self.term)

    # Hand-overs.

    def _on_transfer(self, asker: Hashable, request: LedgerTransfer, now_ms: int) -> None:
        config = self.config
        if request.transfer_id == config.self_id:
            status = Status.INCONSISTENT_TERM
            if request.term == self.term:
                status = self.hand_over(request.transferee_id or "", now_ms, asker)
            if status is not Status.SUCCESS:
                self._answer(asker, self._refusal(request, status))
        elif request.transferee_id != config.self_id or self.is_leader:
            self._answer(asker, self._refusal(request, Status.UNEXPECTED_ARGUMENT))
        elif request.term != self.term or request.transfer_id != self.leader:
            self._answer(asker, self._refusal(request, Status.INCONSISTENT_LEADER))
        elif self._taking is not None:
            self._answer(asker, self._refusal(request, Status.LEADER_TRANSFERRING))
        elif now_ms - self._resigned_ms < config.resigned_ms:
            self._answer(asker, self._refusal(request, Status.TAKE_LEADERSHIP_FAILED))
        else:
            index = request.take_leadership_ledger_index
            self._taking = TakingOver(asker, self.term + 1, index, now_ms + config.transfer_wait_ms)
            self._tick_handover(now_ms)

    def _tick_handover(self, now_ms: int) -> None:
        handing, taking = self._handing, self._taking
        if handing is not None and now_ms >= handing.due_ms:
            self._finish_handing(Status.TAKE_LEADERSHIP_FAILED)
        if taking is None:
            return
        if not taking.has_begun and self.log.end_index >= taking.index:
            taking.has_begun = True
            taking.due_ms = now_ms + self.config.transfer_ms
            self._campaign(now_ms, pre_vote=False)
        elif now_ms >= taking.due_ms:
            self._finish_taking(Status.TAKE_LEADERSHIP_FAILED)

    def _on_transfer_reply(self, number: int, reply: LedgerTransferReply | None) -> None:
        if self._handing is not None and self._handing.call == number:
            known = reply is not None and reply.code in _STATUSES
            self._finish_handing(Status(reply.code) if reply is not None and known else Status.TAKE_LEADERSHIP_FAILED)

    def _finish_handing(self, status: Status) -> None:
        handing, self._handing = self._handing, None
        if handing is None:
            return
        self._calls.pop(handing.call, None)
        if handing.asker is not None:
            reply = LedgerTransferReply(group=self.config.group, term=self.term, code=status)
            self._answer(handing.asker, reply)

    def _finish_taking(self, status: Status) -> None:
        taking, self._taking = self._taking, None
        if taking is not None:
            self._answer(taking.asker, LedgerTransferReply(group=self.config.group, term=self.term, code=status))

    def _look_for_preferred(self, now_ms: int) -> None:
        """Hand over to a preferred member that follows, the one that lacks least."""
        config = self.config
        if not config.preferred or config.self_id in config.preferred or now_ms < self._preferred_ms:
            return
        self._preferred_ms = now_ms + config.preferred_ms
        follows = [
            peer
            for peer in config.preferred
            if self.match_index(peer) >= 0 and now_ms - self._answers_ms.get(peer, NEVER_MS) <= config.election_ms
        ]
        if follows:
            self.hand_over(max(follows, key=self.match_index), now_ms)

    # Calls and answers.

    def _call(self, target: str, kind: Callable[..., LedgerRequest], **fields: Any) -> int:
        config = self.config
        self._number += 1
        fields.setdefault("term", self.term)
        request = kind(
            group=config.group, remote_id=target, local_id=config.self_id, leader_id=config.self_id, **fields
        )
        self._calls[self._number] = (target, request)
        if kind is not LedgerTransfer:  # a hand-over has a time limit of its own
            self._due.append((self._now_ms + config.call_ms, self._number))
        self._out.calls.append(LedgerCall(self._number, target, request))
        return self._number

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

    def _answer(self, asker: Hashable, reply: LedgerReply) -> None:
        self._out.answers.append(LedgerAnswer(asker, reply))

    def _problem(self, text: str) -> None:
        self._out.problems.append(text)


_STATUSES: Final = frozenset(int(status) for status in LedgerStatus)
