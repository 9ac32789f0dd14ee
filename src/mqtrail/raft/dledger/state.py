"""What a member knows and counts, and what it sends. The modules above it add the rules, concern by concern:

    state -> refusals -> transfers -> heartbeats -> entries -> elections -> member

Each class extends the one before, since all of them read and change this one state.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Final

from mqtrail.wire import LedgerPushReply, LedgerReply, LedgerRequest, LedgerStatus, LedgerTransfer, MQError

from ..core import NEVER_MS, Role
from .calls import LedgerAnswer, LedgerCall, LedgerDecided
from .config import LedgerConfig
from .following import LedgerFollowing
from .handover import HandingOver, TakingOver
from .pushing import Pushing
from .storage import LedgerStorage

Status = LedgerStatus
MakeBody = Callable[[int], bytes]
"""Returns the record of an entry for a physical offset; its size does not depend on it."""
OURS: Final = 1  # the value of `mqtrail` in our messages
FULL: Final = 2  # added to it in the answer to a heartbeat: the member's disk is full
DISK_ERRORS: Final = (MQError, OSError)  # of the log, and of term and vote: they stay as they were


class MemberState:
    """What a member knows. The subclasses add the rules."""

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
        self.instance: str | None = None  # a text by chance, for the member to know its own process by
        self.election_count = 0  # how often it was elected
        self.is_full = False  # its disk, so that it would refuse every message as leader; whoever knows sets it
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
        self._full_peers: set[str] = set()  # that said so in their last answer
        self._space_ms = now_ms  # when a leader with a full disk looks for another one
        self._space_turn = 0
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
        """The members that answered this leader lately; none if this member does not lead."""
        if not self.is_leader:
            return frozenset()
        since_ms = self._now_ms - self.config.election_ms
        return frozenset(member for member, at_ms in self._answers_ms.items() if at_ms >= since_ms)

    def _follows(self, member: str) -> bool:
        """Whether a leader hears a member."""
        return self._now_ms - self._answers_ms.get(member, NEVER_MS) <= self.config.election_ms

    # Waits.

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

    def _answer(self, asker: Hashable, reply: LedgerReply) -> None:
        self._out.answers.append(LedgerAnswer(asker, reply))

    def _problem(self, text: str) -> None:
        self._out.problems.append(text)

    def _note_kind(self, member: str | None, *, is_ours: bool) -> None:
        if member in self.config.peers and self._kinds.get(member) is not is_ours:
            self._kinds[member] = is_ours
            if member in self._pushing:
                self._pushing[member].is_batching = is_ours

    def _campaign(self, now_ms: int, *, pre_vote: bool) -> None:
        """Of `MemberElections`; a hand-over begins one too."""
        raise NotImplementedError
