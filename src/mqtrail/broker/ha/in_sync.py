"""The SyncStateSet of a group, as its master keeps it: the replicas of which each can become master without a loss.

The set is at the controller, with a number that each change raises. The master asks for a change (1001), and counts
with both sets until it knows which one holds:

    joining    a slave that is near the log's end. Sends wait for it from then on, and once it has all that was
               acknowledged before, the controller is asked to add it
    asked      in a set that the controller may hold already, because its answer did not come
    removed    a slave whose connection closed, or that is behind for haMaxTimeSlaveNotCatchup. Sends wait for it until
               the controller has removed it

So whichever broker the controller elects has all that was acknowledged.
Source: AutoSwitchHAService, ReplicasManager, apache/rocketmq store/ha/autoswitch/ and broker/.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from .epoch_sender import EpochSender

JOIN_GAP_MAX: Final = 1 << 20  # bytes that a slave may be behind when sends begin to wait for it


class MasterTerm(NamedTuple):
    """The time of a broker as master. epoch: its number; ids, number: the SyncStateSet at its begin."""

    broker_id: int
    epoch: int
    ids: frozenset[int]
    number: int


class InSyncSet:
    """ids, number: as the controller has confirmed them. start_offset: of this master's epoch."""

    def __init__(self, term: MasterTerm, start_offset: int, late_max_ms: int) -> None:
        self.term = term
        self.ids = term.ids | {term.broker_id}
        self.number = term.number
        self._start_offset = start_offset
        self._late_max_ms = late_max_ms
        self._joining: set[int] = set()
        self._asked: frozenset[int] = frozenset()

    @property
    def counted(self) -> frozenset[int]:
        """The ids of the slaves that sends wait for."""
        return (self.ids | self._joining | self._asked) - {self.term.broker_id}

    def review(
        self, slaves: Iterable[EpochSender], end_offset: int, confirm_offset: int, now_ms: int
    ) -> frozenset[int] | None:
        """Return the set to ask the controller for; None: the present one is right."""
        wanted = {self.term.broker_id}
        near = set()
        for slave in slaves:
            if slave.is_learner or slave.broker_id < 0 or slave.acked_offset < 0:
                continue
            is_late = slave.acked_offset < end_offset and now_ms - slave.caught_up_ms > self._late_max_ms
            if is_late:
                continue
            if slave.broker_id in self.ids:
                wanted.add(slave.broker_id)
            elif slave.acked_offset >= self._start_offset and end_offset - slave.acked_offset <= JOIN_GAP_MAX:
                near.add(slave.broker_id)
                if slave.broker_id in self._joining and slave.acked_offset >= confirm_offset:
                    wanted.add(slave.broker_id)
        self._joining = near
        return None if wanted == self.ids and not self._asked else frozenset(wanted)

    def ask(self, wanted: frozenset[int]) -> None:
        """Note that the controller is asked for this set."""
        self._asked |= wanted

    def refused(self, number: int) -> None:
        """Note that the controller has refused what it was asked for, and held this number of the set afterwards."""
        if number == self.number:
            self._asked = frozenset()

    def settle(self, ids: Iterable[int], number: int) -> bool:
        """Take the set that the controller holds; return whether it is newer than the known one."""
        if number <= self.number:
            return False
        self.ids, self.number = frozenset(ids) | {self.term.broker_id}, number
        self._asked = frozenset()
        self._joining -= self.ids
        return True
