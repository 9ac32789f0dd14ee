"""The settings of one member of a DLedger group. Times are ms, sizes bytes.

Source of Apache's values: DLedgerConfig, openmessaging/dledger 0.3.1.2.
"""

from dataclasses import dataclass
from typing import Final

from ..rules import check_members, majority_of

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """members: ids of the whole group, the same at each member. self_id: one of them.

    waits_for_flush: a member counts as having an entry when it survives power loss, and not when it is written.
    """

    self_id: str
    members: tuple[str, ...]
    group: str
    waits_for_flush: bool = False
    preferred: tuple[str, ...] = ()  # members that should lead, if they can
    heartbeat_ms: int = 500  # Apache: 2 000
    election_ms: int = 2_000  # without a heartbeat of a leader of mqtrail; each wait is this plus up to half of it
    foreign_election_ms: int = 6_000  # the same of Apache's leader, which sends one every 2 s
    lost_leader_ms: int = 100  # at most, before a pre-vote once the connection to the leader closed
    revote_ms: int = 30  # before a member that was in an older term is asked again
    call_ms: int = 1_000  # before a request counts as lost
    compare_retry_ms: int = 200  # before a log is compared again after a request failed
    commit_push_ms: int = 50  # between two requests that tell only what is committed
    push_count_max: int = 256  # entries of one request to a member of mqtrail; one to others
    push_size_max: int = 256 * KIB  # bytes of the entries of one request, unless one entry is larger
    flight_count_max: int = 256  # requests with entries on their way to a member
    flight_size_max: int = 8 * MIB  # bytes of their entries, unless one entry is larger
    pending_count_max: int = 10_000  # entries of a leader that wait for a majority; more are refused
    transfer_ms: int = 3_000  # before a hand-over counts as failed
    transfer_wait_ms: int = 1_000  # that a member that takes over waits for the leader's last entries
    transfer_behind_max: int = 1_000  # entries that it may lack
    preferred_ms: int = 1_000  # between two looks for a preferred leader
    full_ms: int = 1_000  # between two tries of a leader with a full disk to hand over
    resigned_ms: int = 30_000  # for which a member that could not lead accepts no hand-over

    def __post_init__(self) -> None:
        """RaftIdentityError: the members are no group, or self_id is not one of them."""
        check_members(self.self_id, self.members, self.group)

    @property
    def majority(self) -> int:
        """How many members, this one included, decide."""
        return majority_of(self.members)

    @property
    def peers(self) -> tuple[str, ...]:
        """The other members."""
        return tuple(member for member in self.members if member != self.self_id)
