"""Planted bugs of consensus: a checker that misses them would miss others too."""

from dataclasses import dataclass

from mqtrail.raft import Journal, LogEntry, Raft, RaftMessage

from .raft_group import RaftGroup


class TwiceVoter(Raft):
    """Votes for every candidate of a term."""

    def _on_vote(self, message: RaftMessage, now_ms: int) -> None:
        if not self.is_leader:
            self.journal.voted = None
        super()._on_vote(message, now_ms)


class OldTermCounter(Raft):
    """Commits entries of earlier terms by count."""

    def _counts(self, index: int) -> bool:
        return True


class BlindVoter(Raft):
    """Votes without a look at the candidate's log."""

    def _is_as_new(self, message: RaftMessage) -> bool:
        return True


class Truncater(Raft):
    """Cuts its log behind what a leader's message contains, also below the commit."""

    def _new_of(self, entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        return entries

    def _append(self, entries: tuple[LogEntry, ...]) -> None:
        self.journal.append(entries)


class StaleReader(Raft):
    """Answers reads as soon as it believes that it leads."""

    def _answer_reads(self) -> None:
        self._done_reads += [read.number for read in self._reads]
        self._reads = []


class HastyAcknowledger(Journal):
    """Reports entries as durable that it did not sync. The first sync of a file stays."""

    def sync(self) -> None:
        if self._durable:
            self.durable_index = self.last_index
        else:
            super().sync()


@dataclass(frozen=True, slots=True)
class PlantedRaft:
    """name: of the bug. raft, journal: the part that has it. problem: part of the report. first_seed: the first one."""

    name: str
    problem: str
    raft: type[Raft] = Raft
    journal: type[Journal] = Journal
    first_seed: int = 0

    def group(self, seed: int) -> RaftGroup:
        group = RaftGroup(seed)
        group.raft_class, group.journal_class = self.raft, self.journal
        return group


PLANTED_RAFTS = (
    PlantedRaft("vote twice", "two leaders in term", TwiceVoter),
    PlantedRaft("commit by count of an old term", "which is committed", OldTermCounter, first_seed=200),
    PlantedRaft("no log check in a vote", "a committed entry changed", BlindVoter),
    PlantedRaft("truncate below commit", "a committed entry changed", Truncater),
    PlantedRaft("stale leader reads", "a stale read", StaleReader),
    PlantedRaft("acknowledge before the sync", "refused its own disk", journal=HastyAcknowledger),
)
