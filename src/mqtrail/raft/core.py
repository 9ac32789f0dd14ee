"""One member of a group: who leads, what is committed, what may be read. Pure: time, randomness and disk are arguments.

    raft.receive(message, now_ms)      a message of another member
    raft.propose(data, now_ms)         at the leader: append an entry; NotLeader elsewhere
    raft.read(now_ms)                  at the leader: ask whether it still leads
    raft.tick(now_ms)                  when next_tick_ms() is due
    ready = raft.take(now_ms)          after any of them: sync the journal; then what to send and to apply

Rules beyond the paper's: a member asks for votes only after a majority would give them (pre-vote), so a returning
member disturbs no leader. A leader that no majority answered for election_ms steps down. A leader commits only
entries of its own term by count. Each read waits for a majority's answer to a round that began after it (no clock
decides). After a start, a member votes only once a majority has compared its journal with what they saw of it
(`RaftOldDisk`).

Source: Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm; Ongaro's thesis, 6.4, 9.6.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from .config import RaftConfig
from .errors import NotLeader, RaftBadMessage, RaftBusy, RaftOldDisk
from .journal import Journal
from .messages import LogEntry, MessageKind, RaftMessage
from .rules import commits_by_count, is_as_new, reached_by

Kind = MessageKind
NEVER_MS: Final = -(10**15)
TERM_STEP_MAX: Final = 1 << 32  # terms, entries or rounds that a member can be behind another one


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"  # asks whether a majority would vote for it
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(slots=True)
class Progress:
    """What a leader knows of another member."""

    next_index: int
    match_index: int = 0
    sent_ms: int = NEVER_MS  # when entries or a snapshot left that are not answered; NEVER_MS: none
    sends_snapshot: bool = False
    heard_ms: int = NEVER_MS
    round: int = 0  # the last round that the member answered


@dataclass(slots=True)
class _Read:
    number: int
    index: int = 0  # apply up to here before the answer; 0: not asked yet
    round: int = 0


@dataclass(slots=True)
class Decided:
    """What one step decided. All of it rests on a durable journal.

    Apply snapshot, if any, then committed, then answer reads. refused: reads whose leader may be deposed.
    """

    messages: list[RaftMessage] = field(default_factory=list)
    snapshot: bytes | None = None
    committed: list[LogEntry] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)


class Raft:
    """A member. chance: returns a number in [0, 1) and decides how long each wait for an election is.

    RaftOldDisk, errors of the journal's disk: the member must stop; its journal may be opened again.
    """

    def __init__(self, config: RaftConfig, journal: Journal, chance: Callable[[], float], now_ms: int) -> None:
        self.config = config
        self.journal = journal
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.commit_index = journal.snapshot_index
        self.applied_index = 0
        self._chance = chance
        self._key = config.group_key
        self._now_ms = now_ms
        self._election_ms = now_ms
        self._heard_ms = NEVER_MS  # the last message of a leader
        self._votes: set[str] = set()
        self._progress: dict[str, Progress] = {}
        self._round = 0
        self._asks_round = False  # a read waits for a round that has not begun
        self._heartbeat_ms = 0
        self._reads: list[_Read] = []
        self._read_number = 0
        self._out: list[RaftMessage] = []
        self._done_reads: list[int] = []
        self._refused_reads: list[int] = []
        self._seen: dict[str, int] = {}  # member -> highest sequence in its messages
        self._proved_by: set[str] = {config.self_id}
        self._hello_ms = now_ms
        self._handlers: dict[Kind, Callable[[RaftMessage, int], None]] = {
            Kind.PRE_VOTE: self._on_pre_vote,
            Kind.PRE_VOTE_REPLY: self._on_pre_vote_reply,
            Kind.VOTE: self._on_vote,
            Kind.VOTE_REPLY: self._on_vote_reply,
            Kind.APPEND: self._on_append,
            Kind.APPEND_REPLY: self._on_append_reply,
            Kind.HEARTBEAT: self._on_heartbeat,
            Kind.HEARTBEAT_REPLY: self._on_heartbeat_reply,
            Kind.SNAPSHOT: self._on_snapshot,
            Kind.HELLO: self._on_hello,
            Kind.HELLO_REPLY: self._on_hello_reply,
        }
        self._wait_for_leader(now_ms)

    # Questions.

    def seen(self, member: str) -> int:
        """Return how many changes of a member's journal its messages showed."""
        return self._seen.get(member, 0)

    @property
    def term(self) -> int:
        return self.journal.term

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def may_vote(self) -> bool:
        """Whether a majority compared this member's journal with what it saw of it."""
        return len(self._proved_by) >= self.config.majority

    @property
    def wants_snapshot(self) -> bool:
        """Whether the log is long enough for `compacting`."""
        return (
            self.journal.entries_size >= self.config.compact_size and self.applied_index > self.journal.snapshot_index
        )

    def next_tick_ms(self) -> int:
        """Return when to call `tick`."""
        if self.is_leader:
            return self._heartbeat_ms
        return self._election_ms if self.may_vote else min(self._election_ms, self._hello_ms)

    # What a member is asked to do.

    def propose(self, data: bytes, now_ms: int) -> tuple[int, int]:
        """Append an entry; return its index and term. It is committed when `take` returns it with this term.

        NotLeader; RaftBusy: too many bytes wait, or the entry is too large.
        """
        config = self.config
        if not self.is_leader:
            raise NotLeader(self.leader)
        if not 0 < len(data) <= config.entry_size_max:
            raise RaftBusy(f"found an entry of {len(data)} bytes, expected 1 to {config.entry_size_max}")
        entry = LogEntry(self.journal.last_index + 1, self.term, data)
        if self.journal.entries_size + entry.size > config.log_size_max:
            raise RaftBusy(
                f"found {self.journal.entries_size} bytes of entries without a snapshot, expected at most "
                f"{config.log_size_max}: try again when a majority of the group answers"
            )
        self.journal.append([entry])
        return entry.index, entry.term

    def read(self, now_ms: int) -> int:
        """Ask for a read; `take` returns its number in reads or refused. NotLeader, RaftBusy."""
        if not self.is_leader:
            raise NotLeader(self.leader)
        if len(self._reads) >= self.config.reads_max:
            raise RaftBusy(f"found {len(self._reads)} reads that wait for a majority: try again later")
        self._read_number += 1
        self._reads.append(_Read(self._read_number))
        return self._read_number

    def compacting(self, data: bytes) -> Generator[None, None, None]:
        """Replace all applied entries by a snapshot of the applied state, in slices. RaftBusy: it is too large.

        Other steps may come between two slices. If one of them took a new file, nothing is replaced: try again.
        """
        size_max = self.config.snapshot_size_max
        if len(data) > size_max:
            raise RaftBusy(f"found a snapshot of {len(data)} bytes, expected at most {size_max}")
        return self._compact(self.applied_index, data)

    def _compact(self, index: int, data: bytes) -> Generator[None, None, None]:
        journal = self.journal
        term = journal.term_at(index)
        assert term is not None, f"entry {index} is not in the log"
        if (yield from journal.prepare(index, term, data)):
            journal.compact(index, data)

    def preparing(self, message: RaftMessage) -> Generator[None, None, None]:
        """Write a leader's snapshot in slices, if `receive` would take it: then `receive` has little left to write."""
        is_new = message.term >= self.term and message.index > self.commit_index
        if is_new and self.may_vote and self._is_ours(message):
            yield from self.journal.prepare(message.index, message.log_term, message.data)

    def lost(self, member: str, now_ms: int) -> None:
        """Note that the connection to a member closed. If it leads, the others need not wait for its silence."""
        if member == self.leader and self.role is Role.FOLLOWER:
            self.leader = None
            self._heard_ms = NEVER_MS
            self._election_ms = min(self._election_ms, now_ms + 1 + int(self._chance() * self.config.lost_leader_ms))

    def tick(self, now_ms: int) -> None:
        """Do what is due: heartbeats, or an election."""
        self._note_time(now_ms)
        if self.is_leader:
            if now_ms >= self._heartbeat_ms:
                self._beat(now_ms)
            return
        if not self.may_vote and now_ms >= self._hello_ms:
            self._hello_ms = now_ms + self.config.heartbeat_ms
            for peer in self.config.peers:
                if peer not in self._proved_by:
                    self._send(Kind.HELLO, peer)
        if now_ms >= self._election_ms:
            self._wait_for_leader(now_ms)
            if self.may_vote:
                self._ask_for_votes(now_ms, pre_vote=True)

    def _note_time(self, now_ms: int) -> None:
        """Begin all waits again if the clock was set back."""
        if now_ms < self._now_ms:
            self._heartbeat_ms = self._hello_ms = now_ms
            self._heard_ms = min(self._heard_ms, now_ms)
            for progress in self._progress.values():
                progress.heard_ms, progress.sent_ms = min(progress.heard_ms, now_ms), NEVER_MS
            self._wait_for_leader(now_ms)
        self._now_ms = now_ms

    def take(self, now_ms: int) -> Decided:
        """Make the journal durable; then return what to send, to apply and to answer."""
        journal = self.journal
        if self.is_leader:
            for peer, progress in self._progress.items():
                if progress.next_index <= journal.last_index and progress.sent_ms == NEVER_MS:
                    self._send_entries(peer, progress, now_ms)
            self._begin_round(now_ms)
        journal.sync()
        if self.is_leader:
            self._advance_commit()
            self._answer_reads()
        messages = [replace(message, sequence=journal.sequence) for message in self._out]
        ready = Decided(messages, None, [], self._done_reads, self._refused_reads)
        self._out, self._done_reads, self._refused_reads = [], [], []
        if self.applied_index < journal.snapshot_index:
            ready.snapshot = journal.snapshot
            self.applied_index = journal.snapshot_index
        if self.applied_index < self.commit_index:
            ready.committed = journal.entries(self.applied_index + 1, self.commit_index + 1)
            self.applied_index = self.commit_index
        return ready

    # Messages.

    def check(self, message: RaftMessage) -> None:
        """RaftBadMessage: no member sends this to this one, so it is false, and `receive` must not see it.

        It proves nothing else: a false message may be plausible. Who can send one is up to the shell.
        """
        config = self.config
        if message.group_key != config.group_key:
            raise RaftBadMessage(
                f"found a message of member {message.sender} of a group with key {message.group_key}, expected key "
                f"{config.group_key} of the group {config.identity!r}: its name and the ids of its members must be the "
                "same at all members"
            )
        if not self._is_ours(message):
            raise RaftBadMessage(
                f"found a message of member {message.sender} for member {message.target}, expected one of another "
                f"member for {config.self_id}: two members have one id, or an address in the list is of another member"
            )
        journal, term = self.journal, message.term
        last = max(journal.last_index, self.commit_index)
        if term > self.term + TERM_STEP_MAX or message.log_term > self.term + TERM_STEP_MAX:
            raise _false(message, f"a term of at most {self.term + TERM_STEP_MAX}")
        if message.index > last + TERM_STEP_MAX and message.kind is not Kind.HELLO_REPLY:
            raise _false(message, f"an index of at most {last + TERM_STEP_MAX}")
        if message.kind is Kind.HEARTBEAT_REPLY and term == self.term and message.round > self._round:
            raise _false(message, f"a round of at most {self._round}")
        if message.kind is Kind.SNAPSHOT and not message.log_term <= term:
            raise _false(message, f"a snapshot of a term of at most {term}")
        before = message.log_term
        for place, entry in enumerate(message.entries, message.index + 1):
            if entry.index != place or not before <= entry.term <= term:
                raise _false(message, f"entry {place} with a term from {before} to {term}")
            if journal.snapshot_index < place <= self.commit_index and journal.term_at(place) != entry.term:
                raise _false(message, f"entry {place}, which is committed, as it is")
            before = entry.term

    def receive(self, message: RaftMessage, now_ms: int) -> None:
        """Serve a message. One of another group, or for another member, has no effect."""
        if not self._is_ours(message):
            return
        self._note_time(now_ms)
        kind, sender = message.kind, message.sender
        if kind not in (Kind.HELLO, Kind.HELLO_REPLY) and not self.may_vote:
            return  # keep the journal as it was until it is compared
        self._seen[sender] = max(self._seen.get(sender, 0), 0 if kind is Kind.HELLO else message.sequence)
        if kind not in _TERMLESS and not self._is_current(message, now_ms):
            return
        self._handlers[kind](message, now_ms)

    def _is_ours(self, message: RaftMessage) -> bool:
        """Whether another member of this group sent it to this one."""
        is_here = message.group_key == self._key and message.target == self.config.self_id
        return is_here and message.sender in self.config.peers

    def _is_current(self, message: RaftMessage, now_ms: int) -> bool:
        """Adopt a newer term, refuse an older one, note a leader. Return whether to serve the message."""
        kind, sender = message.kind, message.sender
        if message.term > self.term:
            self._follow(message.term, None, now_ms)
        elif message.term < self.term:
            if kind in _ANSWERED:
                self._send(_ANSWERED[kind], sender)  # its term deposes the sender
            return False
        if kind in _OF_LEADER:
            if self.is_leader:
                return False  # two leaders of one term: no correct member sends this
            self._follow(message.term, sender, now_ms)
            self._heard_ms = now_ms
            self._wait_for_leader(now_ms)
        return True

    def _on_hello(self, message: RaftMessage, now_ms: int) -> None:
        """A member started: return what was seen of it, and forget what a leader knew of its log."""
        seen = self._seen.get(message.sender, 0)
        self._send(Kind.HELLO_REPLY, message.sender, index=seen)
        progress = self._progress.get(message.sender)
        if progress is not None:
            self._progress[message.sender] = Progress(
                max(1, self.journal.last_index), heard_ms=progress.heard_ms, round=progress.round
            )

    def _on_hello_reply(self, message: RaftMessage, now_ms: int) -> None:
        if self.may_vote:
            return
        if message.index > self.journal.sequence:
            raise RaftOldDisk(
                f"found {self.journal.sequence} records in the journal of member {self.config.self_id}, expected at "
                f"least the {message.index} that member {message.sender} saw: its folder is an old copy or was "
                "emptied, so it could vote twice: restore the newest copy of the folder; without one, stop all "
                "members and start them with empty folders"
            )
        self._proved_by.add(message.sender)

    def _on_pre_vote(self, message: RaftMessage, now_ms: int) -> None:
        """Would this member vote? Not while it hears a leader."""
        hears = self.is_leader or now_ms - self._heard_ms < self.config.election_ms
        accepted = message.term > self.term and not hears and self.may_vote and self._is_as_new(message)
        self._send(Kind.PRE_VOTE_REPLY, message.sender, term=message.term if accepted else self.term, accepted=accepted)

    def _on_pre_vote_reply(self, message: RaftMessage, now_ms: int) -> None:
        if not message.accepted:
            if message.term > self.term:
                self._follow(message.term, None, now_ms)
        elif self.role is Role.PRE_CANDIDATE and message.term == self.term + 1:
            self._votes.add(message.sender)
            if len(self._votes) >= self.config.majority:
                self._ask_for_votes(now_ms, pre_vote=False)

    def _on_vote(self, message: RaftMessage, now_ms: int) -> None:
        journal = self.journal
        accepted = journal.voted in (None, message.sender) and self.may_vote and self._is_as_new(message)
        if accepted:
            journal.set_term(self.term, message.sender)
            self._wait_for_leader(now_ms)
        self._send(Kind.VOTE_REPLY, message.sender, accepted=accepted)

    def _on_vote_reply(self, message: RaftMessage, now_ms: int) -> None:
        if self.role is Role.CANDIDATE and message.accepted:
            self._votes.add(message.sender)
            if len(self._votes) >= self.config.majority:
                self._lead(now_ms)

    def _on_append(self, message: RaftMessage, now_ms: int) -> None:
        journal = self.journal
        previous, entries = message.index, message.entries
        last = previous + len(entries)
        if previous < journal.snapshot_index:  # the snapshot has them: they are committed, so they match
            entries = entries[journal.snapshot_index - previous :]
            if not entries:
                self._send(Kind.APPEND_REPLY, message.sender, accepted=True, index=last)
                return
        elif journal.term_at(previous) != message.log_term:
            self._refuse_entries(message)
            return
        self._append(self._new_of(entries))
        self._commit_up_to(min(message.commit, last))
        self._send(Kind.APPEND_REPLY, message.sender, accepted=True, index=last)

    def _new_of(self, entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        """Return a leader's entries from the first one on that is not in the log: a late message must cut nothing."""
        for place, entry in enumerate(entries):
            if self.journal.term_at(entry.index) != entry.term:
                return entries[place:]
        return ()

    def _append(self, entries: tuple[LogEntry, ...]) -> None:
        """Append new entries of a leader, in the place of others that were never committed."""
        if entries:
            first = entries[0].index
            assert first > self.commit_index, f"a leader would replace entry {first}, which is committed"
            self.journal.append(entries)

    def _refuse_entries(self, message: RaftMessage) -> None:
        """Tell the leader where its log may match: the last entry here that is not newer than the one it named."""
        journal = self.journal
        hint = min(message.index, journal.last_index)
        while hint > journal.snapshot_index and (journal.term_at(hint) or 0) > message.log_term:
            hint -= 1
        self._send(
            Kind.APPEND_REPLY,
            message.sender,
            index=hint,
            log_term=journal.term_at(hint) or 0,
            previous=message.index,
        )

    def _on_append_reply(self, message: RaftMessage, now_ms: int) -> None:
        progress = self._heard(message.sender, now_ms)
        if progress is None:
            return
        if message.accepted:
            progress.sent_ms = NEVER_MS
            progress.match_index = max(progress.match_index, message.index)
            progress.next_index = max(progress.next_index, message.index + 1)
            self._advance_commit()
            return
        if message.previous != progress.next_index - 1:
            return  # of an earlier request
        progress.sent_ms = NEVER_MS
        journal = self.journal
        index = min(message.index, progress.next_index - 2)
        while index > journal.snapshot_index and (journal.term_at(index) or 0) > message.log_term:
            index -= 1
        progress.next_index = max(index, progress.match_index) + 1

    def _on_heartbeat(self, message: RaftMessage, now_ms: int) -> None:
        self._commit_up_to(min(message.commit, self.journal.last_index))
        self._send(Kind.HEARTBEAT_REPLY, message.sender, round=message.round)

    def _on_heartbeat_reply(self, message: RaftMessage, now_ms: int) -> None:
        progress = self._heard(message.sender, now_ms)
        if progress is None:
            return
        progress.round = max(progress.round, message.round)
        wait_ms = self.config.snapshot_retry_ms if progress.sends_snapshot else self.config.retry_ms
        if progress.sent_ms != NEVER_MS and now_ms - progress.sent_ms >= wait_ms:
            progress.sent_ms = NEVER_MS
        self._answer_reads()

    def _on_snapshot(self, message: RaftMessage, now_ms: int) -> None:
        if message.index > self.commit_index:
            self.journal.install(message.index, message.log_term, message.data)
            self.commit_index = message.index
        self._send(Kind.APPEND_REPLY, message.sender, accepted=True, index=message.index)

    # Roles.

    def _is_as_new(self, message: RaftMessage) -> bool:
        """Whether a candidate's log has every entry that may be committed."""
        return is_as_new(message.log_term, message.index, self.journal.last_term, self.journal.last_index)

    def _wait_for_leader(self, now_ms: int) -> None:
        election_ms = self.config.election_ms
        self._election_ms = now_ms + election_ms + int(self._chance() * election_ms)

    def _follow(self, term: int, leader: str | None, now_ms: int) -> None:
        if term > self.term:
            self.journal.set_term(term, None)
        if self.is_leader:
            self._refused_reads += [read.number for read in self._reads]
            self._reads = []
            self._progress = {}
            self._wait_for_leader(now_ms)
        self.role, self.leader = Role.FOLLOWER, leader

    def _ask_for_votes(self, now_ms: int, *, pre_vote: bool) -> None:
        config, journal = self.config, self.journal
        self.leader = None
        self._votes = {config.self_id}
        if pre_vote and config.majority > 1:
            self.role = Role.PRE_CANDIDATE
            kind, term = Kind.PRE_VOTE, self.term + 1
        else:
            self.role = Role.CANDIDATE
            journal.set_term(self.term + 1, config.self_id)
            kind, term = Kind.VOTE, self.term
            if config.majority == 1:
                self._lead(now_ms)
                return
        for peer in config.peers:
            self._send(kind, peer, term=term, index=journal.last_index, log_term=journal.last_term)

    def _lead(self, now_ms: int) -> None:
        """Begin to lead: an entry of the own term makes the earlier ones committable."""
        last = self.journal.last_index
        self.role, self.leader = Role.LEADER, self.config.self_id
        self._progress = {peer: Progress(last + 1, heard_ms=now_ms) for peer in self.config.peers}
        self._round = 0
        self.journal.append([LogEntry(last + 1, self.term, b"")])
        self._heartbeat_ms = now_ms
        self._beat(now_ms)

    # Leading.

    def _beat(self, now_ms: int) -> None:
        """Send heartbeats, or step down if no majority answered for too long."""
        config = self.config
        answered = 1 + sum(now_ms - one.heard_ms <= config.election_ms for one in self._progress.values())
        if answered < config.majority:
            self._follow(self.term, None, now_ms)
            return
        self._asks_round = True
        self._begin_round(now_ms)

    def _begin_round(self, now_ms: int) -> None:
        """Send a round of heartbeats, if a read waits for one or the time is up."""
        waiting = [read for read in self._reads if not read.index]
        leads_for_sure = self.journal.term_at(self.commit_index) == self.term
        if not self._asks_round and not (waiting and leads_for_sure):
            return
        self._asks_round = False
        self._heartbeat_ms = now_ms + self.config.heartbeat_ms
        self._round += 1
        for peer, progress in self._progress.items():
            commit = min(self.commit_index, progress.match_index)
            self._send(Kind.HEARTBEAT, peer, round=self._round, commit=commit)
        if leads_for_sure:
            for read in waiting:
                read.index, read.round = self.commit_index, self._round

    def _send_entries(self, peer: str, progress: Progress, now_ms: int) -> None:
        config, journal = self.config, self.journal
        progress.sent_ms = now_ms
        previous = progress.next_index - 1
        log_term = journal.term_at(previous)
        progress.sends_snapshot = log_term is None
        if log_term is None:
            self._send(
                Kind.SNAPSHOT,
                peer,
                index=journal.snapshot_index,
                log_term=journal.snapshot_term,
                data=journal.snapshot,
            )
            return
        entries: list[LogEntry] = []
        size = 0
        for entry in journal.entries(previous + 1, min(journal.last_index, previous + config.append_count_max) + 1):
            size += entry.size
            if entries and size > config.append_size_max:
                break
            entries.append(entry)
        self._send(
            Kind.APPEND, peer, index=previous, log_term=log_term, commit=self.commit_index, entries=tuple(entries)
        )

    def _heard(self, member: str, now_ms: int) -> Progress | None:
        progress = self._progress.get(member)
        if progress is not None:
            progress.heard_ms = now_ms
        return progress

    def _advance_commit(self) -> None:
        """Commit the newest entry of this term that a majority has, and with it all before."""
        if not self.is_leader:
            return
        durable = [self.journal.durable_index, *(one.match_index for one in self._progress.values())]
        index = reached_by(durable, self.config.majority)
        if index > self.commit_index and self._counts(index):
            self._commit_up_to(index)

    def _counts(self, index: int) -> bool:
        """Whether a majority commits this entry: a later leader could replace one of an earlier term."""
        return commits_by_count(self.journal.term_at(index), self.term)

    def _commit_up_to(self, index: int) -> None:
        self.commit_index = max(self.commit_index, index)

    def _answer_reads(self) -> None:
        """Release the reads whose round a majority answered: then this member led when they came."""
        rounds = [self._round, *(one.round for one in self._progress.values())]
        answered = reached_by(rounds, self.config.majority)
        done = [read for read in self._reads if read.index and read.round <= answered]
        if done:
            self._done_reads += [read.number for read in done]
            self._reads = [read for read in self._reads if not read.index or read.round > answered]

    def _send(self, kind: Kind, target: str, *, term: int | None = None, **fields: Any) -> None:
        self._out.append(
            RaftMessage(
                kind=kind,
                sender=self.config.self_id,
                target=target,
                term=self.term if term is None else term,
                group_key=self._key,
                **fields,
            )
        )


def _false(message: RaftMessage, expected: str) -> RaftBadMessage:
    return RaftBadMessage(
        f"found a false message of consensus ({message.kind.name}, term {message.term}, index {message.index}) in the "
        f"name of {message.sender}, expected {expected}: let only controllers reach this port, or set "
        "inner_credentials"
    )


_TERMLESS: Final = frozenset({Kind.HELLO, Kind.HELLO_REPLY, Kind.PRE_VOTE, Kind.PRE_VOTE_REPLY})
_OF_LEADER: Final = frozenset({Kind.APPEND, Kind.HEARTBEAT, Kind.SNAPSHOT})
_ANSWERED: Final = {
    Kind.VOTE: Kind.VOTE_REPLY,
    Kind.APPEND: Kind.APPEND_REPLY,
    Kind.SNAPSHOT: Kind.APPEND_REPLY,
    Kind.HEARTBEAT: Kind.HEARTBEAT_REPLY,
}
