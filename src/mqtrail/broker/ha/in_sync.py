"""The SyncStateSet of a group, as its master keeps it: the replicas of which each can become master without a loss.

The set is at the controller, with a number that each change raises. The master asks for a change (1001), and counts
with both sets until it knows which one holds:

    joining    a slave that is near the log's end. Sends wait for it from then on, and once it has all that was
               acknowledged before, the controller is asked to add it
    asked      in a set that the controller may hold already, because its answer did not come
    barred     a slave that the controller refused, because it does not know it or does not hear it. It counts for
               nothing until the next try, so that a stranger with an id of its own holds back neither sends nor others
    removed    a slave whose connection closed, or that is behind for haMaxTimeSlaveNotCatchup. Sends wait for it until
               the controller has removed it

So whichever broker the controller elects has all that was acknowledged.
Source: AutoSwitchHAService, ReplicasManager, apache/rocketmq store/ha/autoswitch/ and broker/.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from .epoch_sender import EpochSender

JOIN_GAP_MAX: Final = 1 << 20  # bytes that a slave may be behind when sends begin to wait for it
BARRED_MS: Final = 1_000  # until a slave that the controller refused is asked for again
BARRED_MAX: Final = 1_000  # ids that are kept of them


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
        self._barred: dict[int, int] = {}  # id -> until when it is, or was last
        self._reviewed_ms = 0

    @property
    def counted(self) -> frozenset[int]:
        """The ids of the slaves that sends wait for."""
        return (self.ids | self._joining | self._asked) - {self.term.broker_id}

    def review(
        self, slaves: Iterable[EpochSender], end_offset: int, confirm_offset: int, now_ms: int
    ) -> frozenset[int] | None:
        """Return the set to ask the controller for; None: the present one is right."""
        self._reviewed_ms = now_ms
        wanted = {self.term.broker_id}
        near, ready = set(), set()
        for slave in slaves:
            if slave.is_learner or slave.broker_id < 0 or slave.acked_offset < 0:
                continue
            is_late = slave.acked_offset < end_offset and now_ms - slave.caught_up_ms > self._late_max_ms
            if is_late:
                continue
            if slave.broker_id in self.ids:
                wanted.add(slave.broker_id)
            elif self._barred.get(slave.broker_id, 0) > now_ms:
                continue
            elif slave.acked_offset >= self._start_offset and end_offset - slave.acked_offset <= JOIN_GAP_MAX:
                near.add(slave.broker_id)
                if slave.broker_id in self._joining and slave.acked_offset >= confirm_offset:
                    ready.add(slave.broker_id)
        self._joining = near
        if ready and wanted == self.ids:  # one change at a time: the controller takes or refuses a set as a whole
            wanted.add(min(ready, key=lambda one: (self._barred.get(one, 0), one)))
        return None if wanted == self.ids and not self._asked else frozenset(wanted)

    def ask(self, wanted: frozenset[int]) -> None:
        """Note that the controller is asked for this set."""
        self._asked |= wanted

    def refused(self, number: int, *, bars: bool = False) -> None:
        """Note that the controller has refused what it was asked for, and held this number of the set afterwards.

        bars: because it does not know the new replicas, or does not hear them; they count for nothing for BARRED_MS.
        """
        if number == self.number:
            if bars:
                newcomers = self._asked - self.ids
                self._barred |= dict.fromkeys(newcomers, self._reviewed_ms + BARRED_MS)
                self._joining -= newcomers
                while len(self._barred) > BARRED_MAX:
                    del self._barred[next(iter(self._barred))]
            self._asked = frozenset()

    def settle(self, ids: Iterable[int], number: int) -> bool:
        """Take the set that the controller holds; return whether it is newer than the known one."""
        if number <= self.number:
            return False
        self.ids, self.number = frozenset(ids) | {self.term.broker_id}, number
        self._asked = frozenset()
        self._joining -= self.ids
        return True
