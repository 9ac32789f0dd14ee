"""Lives of DLedger groups in which disks fill up, and have space again later.

A member whose disk is full can make and replace no file; as leader it refuses all messages.
"""

from dataclasses import replace

from mqtrail.raft.dledger import LedgerConfig, LedgerMember
from mqtrail.store import MemoryFile, StoreFull
from tests.store.hard_disk import HardDisk

from .ledger_group import LedgerGroup, LedgerSimMember
from .raft_group import FAULTS_MS, RaftGroup

FULL_MS = (100.0, 2_000.0)  # for which a disk is full, and between two that fill up


class FullDisk(HardDisk):
    """A disk that may be full: files that exist have their room."""

    is_full = False

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        self._check(path)
        return super().open(path, size, reserve=reserve)

    def replace(self, path: str, data: bytes) -> None:
        self._check("")
        super().replace(path, data)

    def _check(self, path: str) -> None:
        if self.is_full and path not in self.files:
            raise StoreFull("the test's disk is full")


class FullSimMember(LedgerSimMember):
    """A member on such a disk."""

    def __init__(self, group: RaftGroup, name: str) -> None:
        super().__init__(group, name)
        rates = self.disk.rates
        self.disk: FullDisk = FullDisk(group.engine.chance)
        self.disk.rates = rates

    def fill(self, *, is_full: bool) -> None:
        """Fill the disk, or make space."""
        self.disk.is_full = is_full
        self.act_on(self.know)

    def know(self, member: LedgerMember) -> None:
        """Let the member know, as its broker does."""
        member.is_full = self.disk.is_full

    def start(self) -> None:
        try:
            super().start()
        except StoreFull:
            self.crash(power=False)  # it needs a new file; it starts again later
            return
        self.act_on(self.know)

    def propose(self, data: str) -> None:
        if not self.disk.is_full:
            super().propose(data)


class FullLedgerGroup(LedgerGroup):
    """Its members' disks fill up, and an operator makes space."""

    member_class = FullSimMember

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        super().__init__(seed, keeps_log=keeps_log)
        self.engine.after(FULL_MS[0], self._fill_one)

    def ledger_config(self, name: str) -> LedgerConfig:
        return replace(super().ledger_config(name), full_ms=100)

    def _fill_one(self) -> None:
        """Fill the leader's disk or another one; make space later."""
        engine = self.engine
        if engine.now_ms > FAULTS_MS:
            return
        leaders = [one for one in self.members.values() if one.raft is not None and one.raft.is_leader]
        member = engine.chance.choice(leaders or list(self.members.values()))
        if engine.happens(0.3):
            member = self.members[engine.chance.choice(self.names)]
        assert isinstance(member, FullSimMember)
        member.fill(is_full=True)
        engine.after(engine.between(*FULL_MS), lambda: member.fill(is_full=False))
        engine.after(engine.between(*FULL_MS), self._fill_one)

    def _calm(self) -> None:
        super()._calm()
        for member in self.members.values():
            assert isinstance(member, FullSimMember)
            member.fill(is_full=False)
