"""The settings of one member of a group. Times are ms, sizes bytes."""

import zlib
from dataclasses import dataclass
from typing import Final

from .rules import check_members, majority_of

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """members: ids of the whole group, the same at each member. self_id: one of them.

    Membership is fixed: a group has 1, 3 or 5 members, and every message names the group it comes from.
    """

    self_id: str
    members: tuple[str, ...]
    group: str = "controllers"
    heartbeat_ms: int = 150
    election_ms: int = 1_000  # without a leader's message; each wait is this plus up to as much again
    lost_leader_ms: int = 100  # at most, before an election once the connection to the leader closed
    retry_ms: int = 400  # before entries are sent again to a member that did not answer
    snapshot_retry_ms: int = 2_000  # the same for a snapshot
    append_count_max: int = 256  # entries of one message
    append_size_max: int = 512 * KIB  # bytes of the entries of one message, unless one entry is larger
    entry_size_max: int = 256 * KIB
    log_size_max: int = 4 * MIB  # bytes of entries since the last snapshot; more are refused
    compact_size: int = MIB  # bytes of entries since the last snapshot from which a snapshot is asked for
    snapshot_size_max: int = 8 * MIB
    reads_max: int = 1_024  # reads that wait for the confirmation of the leader

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

    @property
    def identity(self) -> str:
        """The group and all its members, in one order for each list of the same members."""
        return f"{self.group}: {' '.join(sorted(self.members))}"

    @property
    def group_key(self) -> int:
        """A number of the identity, in each message: members with different lists do not talk to each other."""
        return zlib.crc32(self.identity.encode())
