"""Planted bugs of DLedger's consensus: a checker that misses them would miss others too. Most are rules of Apache's."""

from dataclasses import dataclass

from mqtrail.raft.dledger import LedgerMember
from mqtrail.raft.dledger.following import LedgerFollowing
from mqtrail.wire import LedgerEntry, LedgerPush, LedgerStatus, LedgerVote

from .ledger_group import LedgerGroup


class TwiceVotingMember(LedgerMember):
    """Votes for every candidate of a term."""

    def _may_vote_for(self, candidate: str | None) -> bool:
        return not self.is_leader


class BlindVotingMember(LedgerMember):
    """Votes without a look at the candidate's log."""

    def _is_as_new(self, request: LedgerVote) -> bool:
        return True


class OldTermCountingMember(LedgerMember):
    """Commits entries of earlier terms by count, as Apache's leader."""

    def _counts(self, index: int) -> bool:
        return True


class HastyMember(LedgerMember):
    """Counts, and answers for, entries that are written and not flushed."""

    @property
    def has_entries_index(self) -> int:
        return self.log.end_index


class CuttingFollowing(LedgerFollowing):
    """Cuts off the log whenever it is asked, also below the commit."""

    def _truncate(self, entry: LedgerEntry, request: LedgerPush) -> LedgerStatus | None:
        self._log.committed_index = min(self._log.committed_index, entry.index - 1)
        return super()._truncate(entry, request)

    def _keeps_tail(self, index: int, request: LedgerPush) -> bool:
        return index == self._log.end_index


class LateCuttingFollowing(LedgerFollowing):
    """Obeys a TRUNCATE that comes late, as Apache's follower."""

    def _keeps_tail(self, index: int, request: LedgerPush) -> bool:
        return index == self._log.end_index


class CuttingMember(LedgerMember):
    following_class = CuttingFollowing


class LateCuttingMember(LedgerMember):
    following_class = LateCuttingFollowing


@dataclass(frozen=True, slots=True)
class PlantedLedger:
    """name: of the bug. problems: part of one of the reports. first_seed: the first one."""

    name: str
    member: type[LedgerMember]
    problems: tuple[str, ...]
    first_seed: int = 0

    def group(self, seed: int) -> LedgerGroup:
        group = LedgerGroup(seed)
        group.usual = self.member
        return group


CHANGED = ("a committed entry changed", "committed here", "acknowledged entries are lost")
PLANTED_LEDGERS = (
    PlantedLedger("vote twice", TwiceVotingMember, ("two leaders in term", *CHANGED)),
    PlantedLedger("no log check in a vote", BlindVotingMember, CHANGED),
    PlantedLedger("commit by count of an old term", OldTermCountingMember, CHANGED, first_seed=60),
    PlantedLedger("acknowledge before the flush", HastyMember, CHANGED),
    PlantedLedger("truncate below commit", CuttingMember, CHANGED),
    PlantedLedger("obey a late truncate", LateCuttingMember, CHANGED),
)
