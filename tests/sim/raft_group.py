"""One seeded life of a group of consensus: torn disks, partitions, lost and late messages, clocks that jump; then calm.

Members apply numbers to a list. Clients ask any member to append one, or to read how many there are.
"""

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from mqtrail.raft import (
    Journal,
    MessageKind,
    NotLeader,
    Raft,
    RaftBusy,
    RaftConfig,
    RaftMessage,
    RaftOldDisk,
    decode_message,
    encode_message,
)
from tests.store.hard_disk import HardDisk, HardFile, PowerCut

from .engine import Engine

FAULTS_MS = 12_000.0
CALM_MS = 8_000.0
FILE_SIZE = 16 * 1024
SLICE_SIZE = 200  # bytes of a snapshot that a member writes at once
SLICE_MS = 5.0  # until it writes the next slice
CLIENT_MS = 25.0
FAULTS = (
    *("kill", "power", "jump", "old"),
    *("symmetric", "leader", "leader", "leader", "one-way", "partial", "slow", "heal"),
)
Applied = tuple[int, int, str]  # index, term, data
Files = tuple[dict[str, bytes], dict[str, bytes]]


@dataclass(slots=True)
class RaftHistory:
    """What happened, for the checker. Times are those of the engine, not of a member's clock."""

    problems: list[str] = field(default_factory=list)
    leaders: dict[int, str] = field(default_factory=dict)  # term -> who led
    committed: dict[int, tuple[int, str]] = field(default_factory=dict)  # index -> term, data
    acknowledged: dict[int, str] = field(default_factory=dict)  # index -> data
    reads: int = 0
    elections: int = 0
    snapshots: int = 0  # installed from a leader or read at a start
    refused_disks: int = 0
    final: dict[str, list[Applied]] = field(default_factory=dict)
    final_leader: str | None = None


@dataclass(slots=True)
class LinkRates:
    """Faults of each message, 0 to 1."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0


class RaftMember:
    """One member: its disk outlives its process."""

    def __init__(self, group: "RaftGroup", name: str) -> None:
        self.group = group
        self.name = name
        self.disk = HardDisk(group.engine.chance)
        self.raft: Raft | None = None
        self.applied: list[Applied] = []
        self.skew_ms = 0
        self.kept: Files | None = None  # the newest files, while this member runs on old ones
        self.waiting: dict[int, tuple[int, str]] = {}  # index -> term, data: proposals of this process
        self.reads: dict[int, int] = {}  # number -> highest index acknowledged when it came
        self._timer = 0
        self._incoming: RaftMessage | None = None  # a leader's snapshot that is written
        self._slices: Generator[None, None, None] | None = None  # what is left of it, or of the own one

    def clock_ms(self) -> int:
        return int(self.group.engine.now_ms) + self.skew_ms + 1_000_000

    def start(self) -> None:
        """Start the process; start again if the disk stops it."""
        group = self.group
        if self.raft is not None:
            return
        self.applied, self.waiting, self.reads = [], {}, {}
        self._incoming = self._slices = None
        config = group.config(self.name)
        try:
            journal = group.journal_class(config, self.disk, file_size=FILE_SIZE, slice_size=SLICE_SIZE)
            self.raft = group.raft_class(config, journal, group.chance, self.clock_ms())
        except (PowerCut, OSError):
            self.crash(power=True)
            return
        group.engine.log(f"{self.name} starts in term {journal.term} with {journal.last_index} entries")
        self.act(lambda raft: None)

    def crash(self, *, power: bool) -> None:
        """End the process, and start it a little later."""
        self.raft = None
        self.disk.stop(power=power)
        self.group.engine.log(f"{self.name} crashes {power=}")
        self.group.restart(self)

    def files(self) -> Files:
        """Return a copy of the disk."""
        return {path: bytes(file.data) for path, file in self.disk.files.items()}, dict(self.disk.small)

    def replace_files(self, files: Files) -> None:
        """Give the disk other content."""
        self.disk.files = {}
        for path, data in files[0].items():
            file = self.disk.files[path] = HardFile(self.disk, len(data), path)
            file.data[:] = data
        self.disk.small = dict(files[1])

    def act(self, step: Callable[[Raft], None]) -> None:
        """Do one step, then what it decided."""
        raft = self.raft
        if raft is None:
            return
        try:
            step(raft)
            self._write_slice(raft)
            ready = raft.take(self.clock_ms())
            history = self.group.history
            if ready.snapshot is not None:
                history.snapshots += 1
                self.applied = [tuple(one) for one in json.loads(ready.snapshot)]
                self.group.note_applied(self, self.applied)
            fresh = [(entry.index, entry.term, entry.data.decode()) for entry in ready.committed]
            self.applied += fresh
            self.group.note_applied(self, fresh)
            for index, term, data in fresh:
                if self.waiting.pop(index, None) == (term, data):
                    history.acknowledged[index] = data
            for number in ready.reads:
                self.group.note_read(self, self.reads.pop(number))
            for message in ready.messages:
                self.group.carry(message)
            if raft.wants_snapshot and self._slices is None:
                self._slices = raft.compacting(json.dumps(self.applied).encode())
        except RaftOldDisk:
            self.group.note_refused(self)
            return
        except PowerCut:
            self.crash(power=True)
            return
        except AssertionError as error:
            self.group.history.problems.append(f"a check of {self.name} failed: {error}")
            self.crash(power=False)
            return
        except OSError:
            self.crash(power=False)
            return
        if raft.is_leader:
            self.group.note_leader(self, raft)
        self._set_timer(raft)

    def _write_slice(self, raft: Raft) -> None:
        """Write a part of a snapshot; then the member may have it."""
        slices, self._slices = self._slices, None
        if slices is not None and next(slices, False) is None:
            self._slices = slices
            self.group.engine.after(SLICE_MS, lambda: self.act(lambda raft: None))
        elif self._incoming is not None:
            message, self._incoming = self._incoming, None
            raft.receive(message, self.clock_ms())

    def _set_timer(self, raft: Raft) -> None:
        self._timer += 1
        number = self._timer
        delay_ms = max(1, raft.next_tick_ms() - self.clock_ms())
        self.group.engine.after(
            min(delay_ms, 2_000),
            lambda: self.act(lambda raft: raft.tick(self.clock_ms())) if number == self._timer else None,
        )

    def receive(self, data: bytes) -> None:
        def step(raft: Raft) -> None:
            message = decode_message(data, raft.config.members)
            if message.kind is not MessageKind.SNAPSHOT:
                raft.receive(message, self.clock_ms())
            elif self._incoming is None:
                self._incoming, self._slices = message, raft.preparing(message)

        self.act(step)

    def propose(self, data: str) -> None:
        """A client asks this member to append."""

        def step(raft: Raft) -> None:
            try:
                index, term = raft.propose(data.encode(), self.clock_ms())
                self.waiting[index] = (term, data)
            except (NotLeader, RaftBusy):
                return

        self.act(step)

    def read(self) -> None:
        """A client asks this member how much was appended."""
        known = max(self.group.history.acknowledged, default=0)

        def step(raft: Raft) -> None:
            try:
                self.reads[raft.read(self.clock_ms())] = known
            except (NotLeader, RaftBusy):
                return

        self.act(step)


class RaftGroup:
    """A group of 3 or 5, its network and its clients."""

    member_class: type[RaftMember] = RaftMember
    faults: tuple[str, ...] = FAULTS

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        self.engine = Engine(seed, keeps_log=keeps_log)
        chance = self.engine.chance
        self.names = tuple(f"n{number}" for number in range(chance.choice((3, 3, 5))))
        self.raft_class: type[Raft] = Raft
        self.journal_class: type[Journal] = Journal
        self.history = RaftHistory()
        self.rates = LinkRates(*(chance.choice((0.0, 0.02, 0.1)) for _ in range(3)))
        self.cut: set[tuple[str, str]] = set()  # directed links that carry nothing
        self.slow: dict[tuple[str, str], float] = {}
        self.members = {name: self.member_class(self, name) for name in self.names}
        self._waits = chance.choice((2, 1_000_000))  # how many different waits for an election there are
        self._batch = chance.choice((1, 4))  # entries of one message
        self._pace = chance.choice((0.2, 0.5, 1.0))  # of faults and restarts
        self._delay_least_ms = 0.1
        self._delay_ms = chance.choice((4.0, 60.0))  # at most, of a message
        self._restoring: str | None = None  # a member that runs on an old disk
        self._proposed = 0
        power_cut = chance.choice((0.0, 0.001, 0.004))
        for member in self.members.values():
            member.disk.rates.power_cut = power_cut
            member.disk.rates.sync_error = power_cut / 4

    def config(self, name: str) -> RaftConfig:
        return RaftConfig(
            self_id=name,
            members=self.names,
            heartbeat_ms=50,
            election_ms=300,
            retry_ms=120,
            snapshot_retry_ms=300,
            append_count_max=self._batch,
            append_size_max=120,
            log_size_max=4_000,
            compact_size=500,
        )

    def chance(self) -> float:
        """Decide the wait of a member: in some lives, members often ask for votes at the same time."""
        return self.engine.chance.randrange(self._waits) / self._waits

    def live(self) -> RaftHistory:
        """Live the faults and the calm; return what happened."""
        engine = self.engine
        for member in self.members.values():
            engine.after(engine.between(0, 400), member.start)
        engine.after(500, self._client)
        engine.after(engine.between(500, 1_500), self._cause_fault)
        engine.run_until(FAULTS_MS)
        self._calm()
        engine.run_until(FAULTS_MS + CALM_MS)
        for name, member in self.members.items():
            self.history.final[name] = member.applied
            if member.raft is not None and member.raft.is_leader:
                self.history.final_leader = name
        return self.history

    def carry(self, message: RaftMessage) -> None:
        """Deliver a message late, twice or never."""
        data = encode_message(message, self.names)
        link = (message.sender, message.target)
        self.send(link, lambda: self.members[message.target].receive(data))

    def send(self, link: tuple[str, str], arrive: Callable[[], None]) -> None:
        """Let something arrive over a link late, twice or never."""
        engine, rates = self.engine, self.rates
        if link in self.cut or engine.happens(rates.lost):
            return
        for _ in range(2 if engine.happens(rates.doubled) else 1):
            delay_ms = engine.between(self._delay_least_ms, self._delay_ms) + self.slow.get(link, 0.0)
            if engine.happens(rates.late):
                delay_ms += engine.between(0, 1_000)
            engine.after(delay_ms, lambda: None if link in self.cut else arrive())

    def restart(self, member: RaftMember) -> None:
        self.engine.after(50 + self.engine.between(0, 2_500) * self._pace, member.start)

    # What members did.

    def note_leader(self, member: RaftMember, raft: Raft) -> None:
        known = self.history.leaders.get(raft.term)
        if known is None:
            self.history.leaders[raft.term] = member.name
            self.history.elections += 1
            self.engine.log(f"{member.name} leads term {raft.term}")
        elif known != member.name:
            self.history.problems.append(f"two leaders in term {raft.term}: {known} and {member.name}")

    def note_applied(self, member: RaftMember, applied: list[Applied]) -> None:
        committed = self.history.committed
        for index, term, data in applied:
            known = committed.setdefault(index, (term, data))
            if known != (term, data):
                self.history.problems.append(
                    f"a committed entry changed: {index} was {known}, {member.name} applied {(term, data)}"
                )

    def note_read(self, member: RaftMember, known: int) -> None:
        self.history.reads += 1
        last = member.applied[-1][0] if member.applied else 0
        if last < known:
            self.history.problems.append(
                f"a stale read: {member.name} answered up to entry {last}, and {known} had been acknowledged before"
            )

    def note_refused(self, member: RaftMember) -> None:
        """A member refuses its old disk: the operator gives the newest files back."""
        self.history.refused_disks += 1
        self.engine.log(f"{member.name} refuses its disk")
        member.raft = None
        if member.kept is None:
            self.history.problems.append(f"{member.name} refused its own disk: it lacks records that others saw")
            return
        member.disk.stop(power=False)
        member.replace_files(member.kept)
        member.kept = None
        self._restoring = None
        self.engine.after(50, member.start)

    # Clients and faults.

    def _client(self) -> None:
        engine = self.engine
        if engine.now_ms < FAULTS_MS + CALM_MS / 2:
            for member in self.members.values():
                if engine.happens(0.5):
                    member.read()
                if engine.happens(0.5):
                    self._proposed += 1
                    member.propose(f"v{self._proposed}")
        elif engine.now_ms < FAULTS_MS + CALM_MS - 1_000:
            for member in self.members.values():
                member.read()
        engine.after(engine.between(1, 2 * CLIENT_MS), self._client)

    def _cause_fault(self) -> None:
        engine = self.engine
        if engine.now_ms > FAULTS_MS:
            return
        chance = engine.chance
        member = self.members[chance.choice(self.names)]
        match chance.choice(self.faults):
            case "kill" | "power" as kind:
                if member.raft is not None and self._restoring is None:
                    member.crash(power=kind == "power")
            case "symmetric":
                apart = set(chance.sample(self.names, chance.randrange(1, len(self.names))))
                self.cut = {(a, b) for a in self.names for b in self.names if (a in apart) != (b in apart)}
            case "leader":
                leaders = {name for name, one in self.members.items() if one.raft is not None and one.raft.is_leader}
                self.cut = {(a, b) for a in self.names for b in self.names if (a in leaders) != (b in leaders)}
            case "one-way":
                self.cut = {(member.name, other) for other in self.names}
                if engine.happens(0.5):
                    self.cut = {(other, name) for name, other in self.cut}
            case "partial":
                one, other = chance.sample(self.names, 2)
                self.cut |= {(one, other), (other, one)}
            case "slow":
                self.slow = {(member.name, other): engine.between(20, 400) for other in self.names}
            case "heal":
                self.cut, self.slow = set(), {}
            case "jump":
                member.skew_ms += chance.choice((-60_000, -400, 400, 60_000))
            case "old":
                self._old_disk(member)
            case other:
                self.cause(other, member)
        engine.after(engine.between(100, 1_500) * self._pace, self._cause_fault)

    def cause(self, kind: str, member: RaftMember) -> None:
        """Cause a fault that only another kind of group has."""
        raise NotImplementedError

    def _old_disk(self, member: RaftMember) -> None:
        """Copy a member's files now, and give it this copy a little later."""
        if member.raft is None or self._restoring is not None:
            return
        copied = member.files()
        sequence = member.raft.journal.sequence

        def swap() -> None:
            raft = member.raft
            everybody = [other.raft for other in self.members.values() if other is not member]
            if raft is None or self._restoring is not None or self.engine.now_ms > FAULTS_MS:
                return
            seen = [0 if other is None else other.seen(member.name) for other in everybody]
            if min(seen) <= sequence:
                return  # a majority may not know better: see docs/design/raft.md
            self.engine.log(f"{member.name} gets an old disk")
            self._restoring = member.name
            member.raft = None
            member.disk.stop(power=False)
            member.kept = member.files()
            member.replace_files(copied)
            self.engine.after(20, member.start)

        self.engine.after(self.engine.between(100, 2_000), swap)

    def _calm(self) -> None:
        self.engine.log("calm")
        self.rates, self.cut, self.slow = LinkRates(), set(), {}
        self._delay_ms = 4.0
        for member in self.members.values():
            member.disk.rates.power_cut = member.disk.rates.sync_error = 0.0


def check_group(history: RaftHistory) -> list[str]:
    """Return the promises that a life broke."""
    problems = list(dict.fromkeys(history.problems))
    leader = history.final_leader
    if leader is None:
        return [*problems, "no leader: the group did not recover in the calm"]
    whole = history.final[leader]
    for name, applied in history.final.items():
        if applied != whole[: len(applied)]:
            problems.append(f"logs differ: {name} and the leader {leader} applied different entries")
        if len(applied) < len(whole):
            problems.append(f"{name} is behind: it applied {len(applied)} of {len(whole)} entries after the calm")
    kept = {index: data for index, _, data in whole}
    lost = [index for index, data in history.acknowledged.items() if kept.get(index) != data]
    if lost:
        problems.append(f"acknowledged entries are lost: {lost[:5]}")
    if not history.reads or not history.acknowledged:
        problems.append("nothing was read, or nothing acknowledged")
    return problems
