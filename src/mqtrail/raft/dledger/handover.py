"""Leadership that moves on purpose: an operator or the list of preferred leaders asks the leader, which asks a member.

    operator -> leader: hand over to n1          the leader takes no entries meanwhile
    leader -> n1: take over, when you have entry 41
    n1: a new term at once, and votes

Source: DLedgerServer.handleLeadershipTransfer, checkPreferredLeader, DLedgerLeaderElector.TakeLeadershipTask,
openmessaging/dledger 0.3.1.2.
"""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class HandingOver:
    """At the leader. call: the request to the target. asker: who gets the answer; None: the preferred leaders did."""

    target: str
    call: int
    asker: Hashable | None
    due_ms: int


@dataclass(slots=True)
class TakingOver:
    """At the member that takes over. term: that it will lead. index: the entry that it needs before."""

    asker: Hashable
    term: int
    index: int
    due_ms: int
    has_begun: bool = False
