"""One seeded life of a DLedger group: `raft_group` with entries, requests and files of DLedger.

A request and its reply travel apart, and either may be lost, late or doubled. A member counts an entry as soon as it is
written, or, in some lives, once it is flushed; only these lose power.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from mqtrail.raft import NotLeader, RaftBusy
from mqtrail.raft.dledger import LedgerConfig, LedgerDecided, LedgerMember
from mqtrail.store import StoreBroken, StoreError, StoreFull
from mqtrail.store.dledger import LedgerLog
from mqtrail.wire import (
    LEDGER_HEAD_SIZE,
    Host,
    LedgerEntry,
    LedgerReply,
    MessageSysFlag,
    check_record,
    decode_ledger_reply,
    decode_ledger_request,
    encode_record,
)
from tests.store.hard_disk import PowerCut

from .raft_group import RaftGroup, RaftMember

SEGMENT_SIZE = 2_048
INDEX_UNITS = 64
HOST = Host("127.0.0.1", 10911).packed()
CLOSED_MS = 20.0  # until the others see that a killed member's connections closed
FAULTS = (
    *("kill", "kill", "power", "blackout", "jump", "hand over"),
    *("symmetric", "leader", "leader", "leader", "one-way", "partial", "slow", "heal"),
)


def record(physical_offset: int, text: str, topic: str = "T") -> bytes:
    """A message; one without text is rolled back and in no queue, as a leader's first one."""
    return encode_record(
        topic,
        text.encode(),
        b"KEYS\x01k\x02",
        queue_id=0,
        queue_offset=0,
        physical_offset=physical_offset,
        flag=0,
        sys_flag=0 if text else int(MessageSysFlag.TRANSACTION_ROLLBACK),
        born_timestamp_ms=1,
        born_host=HOST,
        store_timestamp_ms=1,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


def propose(member: LedgerMember, make: Callable[[int], bytes]) -> tuple[int, int]:
    """Append an entry at the leader, as the store of its broker does; return index and term. NotLeader, RaftBusy."""
    member.check_room(1)
    log = member.log
    position = log.place(LEDGER_HEAD_SIZE + len(make(0)))
    entry = LedgerEntry(log.end_index + 1, member.term, position, make(position + LEDGER_HEAD_SIZE))
    log.append([entry])
    return entry.index, entry.term


def text_of(body: bytes) -> str:
    head = check_record(body)
    return body[head.body_start : head.body_end].decode()


def _note_checkpoint(member: LedgerMember) -> None:
    log = cast(LedgerLog, member.log)
    try:
        log.begin_checkpoint(log.committed_index)()
    except StoreFull:
        if log.fault is not None:
            raise  # otherwise the log is durable, and the next checkpoint tries again


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asked: a member, its life and its call."""

    name: str
    life: int
    number: int
    code: int


class LedgerSimMember(RaftMember):
    """One member: its disk outlives its process."""

    group: "LedgerGroup"

    def __init__(self, group: RaftGroup, name: str) -> None:
        super().__init__(group, name)
        self.member: LedgerMember | None = None
        self.life = 0
        self._flushes = False

    def start(self) -> None:
        """Start the process; start again if the disk stops it."""
        group = self.group
        if self.member is not None:
            return
        self.applied, self.waiting = [], {}
        self.life += 1
        try:
            log = group.ledger_class(self.disk, self.name, segment_size=SEGMENT_SIZE, index_units=INDEX_UNITS)
            config = group.ledger_config(self.name)
            kind = group.member_kind(self.name)
            self.member = kind(config, log, group.chance, lambda at: record(at, ""), self.clock_ms())
        except (PowerCut, OSError):
            self.crash(power=True)
            return
        except StoreError as error:
            group.history.problems.append(f"{self.name} cannot start: {error}")
            return
        self.raft = cast(Any, self.member)  # for the faults, which ask whether it leads
        group.engine.log(f"{self.name} starts in term {log.term} with entries up to {log.end_index}")
        self.act_on(lambda member: None)
        self._checkpoint_later()

    def crash(self, *, power: bool) -> None:
        self.member = None
        super().crash(power=power and self.group.loses_power)
        for other in self.group.members.values():
            if other is not self:
                self.group.engine.after(CLOSED_MS, self._closes(cast(LedgerSimMember, other)))

    def _closes(self, other: "LedgerSimMember") -> Callable[[], None]:
        """Return what tells a member that its connection to this one closed, if no cut link hides it."""

        def close() -> None:
            if (self.name, other.name) not in self.group.cut:
                other.act_on(lambda member: member.lost(self.name, other.clock_ms()))

        return close

    def act_on(self, step: Callable[[LedgerMember], Any]) -> None:
        """Do one step, then what it decided."""
        member = self.member
        if member is None:
            return
        group = self.group
        try:
            step(member)
            decided = member.take(self.clock_ms())
            self._note_committed(member)
            self._send(decided)
            self._flush_later(member)
        except PowerCut:
            self.crash(power=True)
            return
        except AssertionError as error:
            group.history.problems.append(f"a check of {self.name} failed: {error}")
            self.crash(power=False)
            return
        except (OSError, StoreBroken):
            self.crash(power=False)
            return
        for problem in decided.problems:
            if "committed here" in problem or "two members lead" in problem or "two leaders" in problem:
                group.note_problem(self, f"{self.name}: {problem}")
            group.engine.log(f"{self.name}: {problem}")
        if member.is_leader:
            group.note_leader(self, cast(Any, member))
        self._timer += 1
        number = self._timer
        delay_ms = max(1, member.next_tick_ms() - self.clock_ms())
        group.engine.after(min(delay_ms, 2_000), lambda: self._tick() if number == self._timer else None)

    def _tick(self) -> None:
        self.act_on(lambda member: member.tick(self.clock_ms()))

    def _note_committed(self, member: LedgerMember) -> None:
        log = member.log
        next_index = self.applied[-1][0] + 1 if self.applied else 0
        if log.end_index < next_index - 1:
            cut = f"a committed entry changed: {self.name} cut off its log at {log.end_index}"
            self.group.note_problem(self, f"{cut}, and had committed {next_index - 1}")
            self.applied = self.applied[: log.end_index + 1]
            return
        fresh = []
        for index in range(next_index, log.committed_index + 1):
            entry = log.entry(index)
            assert entry is not None, f"entry {index} is committed and not in the log"
            fresh.append((index, entry.term, text_of(entry.body)))
        self.applied += fresh
        self.group.note_applied(self, fresh)
        for index, term, text in fresh:
            was_asked = self.waiting.pop(index, None) == (term, text)
            if was_asked and self.group.acknowledges(self.name, term, member.term):
                self.group.history.acknowledged[index] = text

    def _send(self, decided: LedgerDecided) -> None:
        for call in decided.calls:
            asked = Asked(self.name, self.life, call.number, call.request.request_code)
            self.group.ask(call.target, asked, call.request.encode())
        for answer in decided.answers:
            self.group.reply(self.name, cast(Asked, answer.asker), answer.reply.encode())

    def _flush_later(self, member: LedgerMember) -> None:
        log = cast(LedgerLog, member.log)
        if not self._flushes and log.flushed_position < log.end_position:
            self._flushes = True
            life = self.life
            self.group.engine.after(self.group.engine.between(0.1, self.group.flush_ms), lambda: self._flush(life))

    def _flush(self, life: int) -> None:
        self._flushes = False
        if life == self.life:
            self.act_on(lambda member: cast(LedgerLog, member.log).begin_flush()())

    def _checkpoint_later(self) -> None:
        life = self.life
        self.group.engine.after(self.group.engine.between(50, 1_000), lambda: self._checkpoint(life))

    def _checkpoint(self, life: int) -> None:
        if life == self.life and self.member is not None:
            self.act_on(_note_checkpoint)
            self._checkpoint_later()

    def serve(self, asked: Asked, body: bytes) -> None:
        request = decode_ledger_request(asked.code, body)
        assert request is not None
        self.act_on(lambda member: member.serve(asked, request, self.clock_ms()))

    def hear(self, asked: Asked, body: bytes) -> None:
        if asked.life == self.life:
            reply: LedgerReply = decode_ledger_reply(asked.code, body)
            self.act_on(lambda member: member.answered(asked.number, reply, self.clock_ms()))

    def propose(self, data: str) -> None:
        def step(member: LedgerMember) -> None:
            try:
                index, term = propose(member, lambda at: record(at, data))
                self.waiting[index] = (term, data)
            except (NotLeader, RaftBusy):
                return

        self.act_on(step)

    def read(self) -> None:
        """Nothing: what is committed may be read anywhere."""
        self.group.history.reads += 1


class LedgerGroup(RaftGroup):
    """A group of 3 or 5. kinds: of the members whose class is not the usual one."""

    member_class = LedgerSimMember
    faults = FAULTS
    ledger_class: type[LedgerLog] = LedgerLog
    usual: type[LedgerMember] = LedgerMember

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        super().__init__(seed, keeps_log=keeps_log)
        self.kinds: dict[str, type[LedgerMember]] = {}
        self.loses_power = self.engine.happens(0.5)
        self._preferred = self.engine.happens(0.3)
        self.flush_ms = self.engine.chance.choice((10.0, 200.0))  # at most, until a flush
        for member in self.members.values():
            rates = member.disk.rates
            if not self.loses_power:
                rates.power_cut = rates.sync_error = 0.0

    def note_problem(self, member: LedgerSimMember, problem: str) -> None:
        self.history.problems.append(problem)

    def member_kind(self, name: str) -> type[LedgerMember]:
        return self.kinds.get(name, self.usual)

    def acknowledges(self, name: str, term: int, own_term: int) -> bool:
        """Whether a member answers a client whose entry of a term it commits in its own term."""
        return True

    def ledger_config(self, name: str) -> LedgerConfig:
        return LedgerConfig(
            self_id=name,
            members=self.names,
            group="broker-a",
            waits_for_flush=self.loses_power,
            preferred=self.names[:1] if self._preferred else (),
            heartbeat_ms=50,
            election_ms=300,
            foreign_election_ms=600,
            lost_leader_ms=50,
            revote_ms=10,
            call_ms=400,
            compare_retry_ms=60,
            commit_push_ms=20,
            push_count_max=self._batch,
            push_size_max=600,
            flight_count_max=4,
            transfer_ms=500,
            transfer_wait_ms=200,
            preferred_ms=400,
        )

    def _calm(self) -> None:
        """What a member sends arrives in order, as over one connection: else a long log takes long to copy."""
        super()._calm()
        self._delay_least_ms = self._delay_ms = 2.0

    def ask(self, target: str, asked: Asked, body: bytes) -> None:
        self.send((asked.name, target), lambda: cast(LedgerSimMember, self.members[target]).serve(asked, body))

    def reply(self, sender: str, asked: Asked, body: bytes) -> None:
        member = cast(LedgerSimMember, self.members[asked.name])
        self.send((sender, asked.name), lambda: member.hear(asked, body))

    def cause(self, kind: str, member: RaftMember) -> None:
        """The faults that only this group has: all members lose power at once; an operator moves the leader."""
        members = [cast(LedgerSimMember, other) for other in self.members.values()]
        for other in members:
            if kind == "hand over":
                other.act_on(lambda leader: leader.hand_over(member.name, leader.now_ms) if leader.is_leader else None)
            elif other.member is not None:
                other.crash(power=True)


assert LEDGER_HEAD_SIZE < SEGMENT_SIZE
