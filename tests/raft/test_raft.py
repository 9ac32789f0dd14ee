"""Consensus, message by message. Lives with faults: tests/sim/test_raft.py."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.raft import (
    Decided,
    Journal,
    LogEntry,
    MessageKind,
    NotLeader,
    Raft,
    RaftBusy,
    RaftConfig,
    RaftMessage,
    RaftOldDisk,
    Role,
    decode_message,
    encode_message,
)
from mqtrail.store import MemoryDisk
from mqtrail.wire import RemotingError

MEMBERS = ("n0", "n1", "n2")
Kind = MessageKind


class Trio:
    """Three members and their messages, which a test carries on or drops."""

    def __init__(self, members: tuple[str, ...] = MEMBERS, **settings: Any) -> None:
        self.now_ms = 10_000
        self.settings = settings
        self.names = members
        self.disks = {name: MemoryDisk() for name in members}
        self.rafts: dict[str, Raft] = {}
        self.applied: dict[str, list[bytes]] = {}
        self.reads: dict[str, list[int]] = {}
        self.refused: dict[str, list[int]] = {}
        self.cut: set[str] = set()  # members that no message reaches or leaves
        for name in members:
            self.start(name)

    def config(self, name: str) -> RaftConfig:
        return RaftConfig(self_id=name, members=self.names, **self.settings)

    def start(self, name: str) -> Raft:
        config = self.config(name)
        chance = random.Random(name).random
        self.rafts[name] = Raft(config, Journal(config, self.disks[name]), chance, self.now_ms)
        self.applied[name], self.reads[name], self.refused[name] = [], [], []
        return self.rafts[name]

    def take(self, name: str) -> Decided:
        ready = self.rafts[name].take(self.now_ms)
        if ready.snapshot is not None:
            self.applied[name] = ready.snapshot.split()
        self.applied[name] += [entry.data for entry in ready.committed if entry.data]
        self.reads[name] += ready.reads
        self.refused[name] += ready.refused
        return ready

    def settle(self) -> None:
        """Deliver messages until no member sends more."""
        while messages := [message for name in self.rafts for message in self.take(name).messages]:
            for message in messages:
                if not {message.sender, message.target} & self.cut and message.target in self.rafts:
                    self.rafts[message.target].receive(message, self.now_ms)

    def advance(self, ms: int, names: tuple[str, ...] | None = None) -> None:
        """Let time pass for some members, all by default."""
        for _ in range(ms // 50):
            self.now_ms += 50
            for name in names or self.names:
                if name in self.rafts:
                    self.rafts[name].tick(self.now_ms)
            self.settle()

    def elect(self, name: str) -> Raft:
        """Let one member ask for votes once the others hear no leader."""
        self.advance(200)
        self.now_ms += 3_000
        raft = self.rafts[name]
        for _ in range(2):
            raft.tick(self.now_ms)
            self.settle()
            self.now_ms += 2_000 if not raft.is_leader else 0
        assert raft.is_leader, (raft.role, raft.term)
        return raft

    def propose(self, name: str, *data: bytes) -> None:
        for one in data:
            self.rafts[name].propose(one, self.now_ms)
        self.settle()


def test_a_leader_commits_and_all_apply() -> None:
    """Three members elect, append, commit and apply in one order; one member alone does too."""
    trio = Trio()
    leader = trio.elect("n0")
    trio.propose("n0", b"a", b"b")
    trio.advance(200)
    assert trio.applied == {name: [b"a", b"b"] for name in MEMBERS}
    assert {raft.leader for raft in trio.rafts.values()} == {"n0"}
    assert leader.next_tick_ms() > trio.now_ms - 50
    one = Trio(("n0",))
    one.elect("n0")
    one.propose("n0", b"a")
    assert one.applied["n0"] == [b"a"]


def test_nothing_leaves_before_it_is_durable() -> None:
    """A vote and an acknowledgement are on the disk when take returns them."""
    trio = Trio()
    trio.elect("n0")
    trio.propose("n0", b"a")
    for name in ("n1", "n2"):
        again = Journal(trio.config(name), trio.disks[name])
        assert (again.term, again.voted) == (trio.rafts["n0"].term, "n0")
        assert again.entries(again.last_index, again.last_index + 1)[0].data == b"a"


def test_only_a_leader_serves() -> None:
    """Others name the leader; bounds refuse with an error that can be tried again."""
    trio = Trio(entry_size_max=10, log_size_max=120, reads_max=2)
    with pytest.raises(NotLeader):
        trio.rafts["n1"].propose(b"a", 0)
    trio.elect("n0")
    with pytest.raises(NotLeader) as refused:
        trio.rafts["n1"].read(0)
    assert refused.value.leader == "n0"
    leader = trio.rafts["n0"]
    for data in (b"", b"12345678901"):
        with pytest.raises(RaftBusy, match="1 to 10"):
            leader.propose(data, trio.now_ms)
    trio.cut = {"n1", "n2"}
    for _ in range(3):
        leader.propose(b"1234567890", trio.now_ms)
    with pytest.raises(RaftBusy, match="without a snapshot"):
        leader.propose(b"1234567890", trio.now_ms)
    for _ in range(2):
        leader.read(trio.now_ms)
    with pytest.raises(RaftBusy, match="reads that wait"):
        leader.read(trio.now_ms)


def test_a_returning_member_disturbs_nobody() -> None:
    """Pre-vote: a member that was apart asks in vain, and its term does not grow."""
    trio = Trio()
    leader = trio.elect("n0")
    term = leader.term
    trio.cut = {"n2"}
    trio.advance(20_000)
    assert trio.rafts["n2"].term == term
    assert trio.rafts["n2"].role is Role.PRE_CANDIDATE
    trio.cut = set()
    trio.advance(1_000)
    assert (leader.is_leader, leader.term, trio.rafts["n2"].role) == (True, term, Role.FOLLOWER)


def test_a_leader_that_nobody_answers_steps_down() -> None:
    """It refuses its reads, and the others elect one that goes on."""
    trio = Trio()
    old = trio.elect("n0")
    trio.propose("n0", b"a")
    trio.cut = {"n0"}
    number = old.read(trio.now_ms)
    trio.propose("n0", b"never")
    trio.advance(5_000)
    assert not old.is_leader
    assert (trio.reads["n0"], trio.refused["n0"]) == ([], [number])
    (new,) = (name for name in ("n1", "n2") if trio.rafts[name].is_leader)
    trio.propose(new, b"b")
    trio.cut = set()
    trio.advance(1_000)
    assert trio.applied == {name: [b"a", b"b"] for name in MEMBERS}


def test_a_read_waits_for_a_majority() -> None:
    """It is answered after a round that began later, and after an entry of the leader's own term is committed."""
    trio = Trio()
    leader = trio.elect("n0")
    trio.cut = {"n1", "n2"}
    number = leader.read(trio.now_ms)
    trio.settle()
    assert trio.reads["n0"] == []
    trio.cut = {"n2"}
    trio.advance(200)
    assert trio.reads["n0"] == [number]


def test_a_candidate_without_the_newest_entries_is_not_elected() -> None:
    """Whoever lacks a committed entry finds no majority."""
    trio = Trio()
    trio.elect("n0")
    trio.cut = {"n2"}
    trio.propose("n0", b"a")
    del trio.rafts["n0"]
    trio.cut = set()
    trio.advance(10_000, names=("n2",))
    assert not trio.rafts["n2"].is_leader
    trio.advance(5_000, names=("n1", "n2"))
    assert trio.rafts["n1"].is_leader
    assert trio.applied["n2"] == [b"a"]


def test_entries_that_no_majority_has_are_replaced() -> None:
    """The log of a deposed leader follows the new one's."""
    trio = Trio()
    trio.elect("n0")
    trio.cut = {"n0"}
    trio.propose("n0", *(b"lost" for _ in range(30)))
    trio.advance(6_000, names=("n1", "n2"))
    (new,) = (name for name in ("n1", "n2") if trio.rafts[name].is_leader)
    trio.propose(new, b"kept")
    trio.cut = set()
    trio.advance(1_000)
    assert trio.applied == {name: [b"kept"] for name in MEMBERS}
    assert len({raft.journal.last_index for raft in trio.rafts.values()}) == 1


def test_an_entry_of_an_old_term_is_not_committed_by_count() -> None:
    """A majority may have it and a later leader may still replace it: it waits for an entry of the own term."""
    trio = Trio()
    leader = trio.elect("n0")
    term, last = leader.term, leader.journal.last_index
    trio.rafts = {"n0": leader}
    leader.journal.set_term(term + 1, "n0")
    leader.journal.append([LogEntry(last + 1, term + 1, b"new")])
    for index, commit in ((last, leader.commit_index), (last + 1, last + 1)):
        leader._progress["n1"].match_index = 0
        reply = RaftMessage(
            kind=Kind.APPEND_REPLY,
            sender="n1",
            target="n0",
            term=term + 1,
            group_key=leader.config.group_key,
            index=index,
            accepted=True,
        )
        leader.commit_index = min(leader.commit_index, commit) if index == last + 1 else 0
        leader.take(trio.now_ms)
        leader.receive(reply, trio.now_ms)
        assert leader.commit_index == (last + 1 if index == last + 1 else 0)


def test_a_snapshot_serves_a_member_that_is_far_behind() -> None:
    """It gets the state and the entries behind it; so does a member that starts again."""
    trio = Trio(compact_size=200)
    leader = trio.elect("n0")
    trio.cut = {"n2"}
    for number in range(20):
        trio.propose("n0", b"v%d" % number)
    assert leader.wants_snapshot
    assert [*leader.compacting(b" ".join(trio.applied["n0"]))] == []
    trio.propose("n0", b"after")
    assert trio.applied["n2"] == []
    trio.cut = set()
    trio.advance(1_000)
    assert trio.applied["n2"] == trio.applied["n0"]
    trio.start("n2")
    trio.advance(1_000)
    assert trio.applied["n2"] == trio.applied["n0"]


def test_late_and_doubled_messages_cut_nothing() -> None:
    """An old append that is contained in the log leaves what is behind it."""
    trio = Trio()
    leader = trio.elect("n0")
    leader.propose(b"a", trio.now_ms)
    late = [message for message in trio.take("n0").messages if message.kind is Kind.APPEND]
    for message in late:
        trio.rafts[message.target].receive(message, trio.now_ms)
    trio.settle()
    trio.propose("n0", b"b")
    trio.advance(200)
    for message in late:
        trio.rafts[message.target].receive(message, trio.now_ms)
    trio.settle()
    assert trio.applied == {name: [b"a", b"b"] for name in MEMBERS}
    assert {raft.journal.last_index for raft in trio.rafts.values()} == {leader.journal.last_index}


def test_a_closed_connection_to_the_leader_shortens_the_wait() -> None:
    """Members that lost it elect within lost_leader_ms and a round, not after the whole time-out."""
    trio = Trio()
    trio.elect("n0")
    trio.advance(500)
    del trio.rafts["n0"]
    for name in ("n1", "n2"):
        trio.rafts[name].lost("n0", trio.now_ms)
    trio.advance(300)
    assert any(raft.is_leader for raft in trio.rafts.values())


def test_an_old_disk_is_refused() -> None:
    """A member whose files are older than what a peer saw stops before it votes or appends."""
    trio = Trio()
    trio.elect("n0")
    trio.disks["n1"] = MemoryDisk()
    trio.propose("n0", b"a")
    raft = trio.start("n1")
    assert not raft.may_vote
    with pytest.raises(RaftOldDisk, match="restore the newest copy"):
        trio.advance(200)
    assert raft.journal.last_index == 0


def test_messages_of_others_have_no_effect() -> None:
    """Another group, another target, an unknown sender, a member that is not compared yet."""
    trio = Trio()
    leader = trio.elect("n0")
    term = leader.term
    vote = RaftMessage(
        kind=Kind.VOTE, sender="n1", target="n0", term=99, group_key=leader.config.group_key, index=99, log_term=99
    )
    for message in (
        replace(vote, group_key=1),
        replace(vote, target="n1"),
        replace(vote, sender="n9"),
    ):
        leader.receive(message, trio.now_ms)
    fresh = trio.start("n2")
    fresh.receive(replace(vote, target="n2"), trio.now_ms)
    assert (leader.term, leader.is_leader, fresh.term) == (term, True, term)
    leader.receive(vote, trio.now_ms)
    assert leader.term == 99


def test_a_clock_that_is_set_back_delays_no_election() -> None:
    """All waits begin again with the new time."""
    trio = Trio()
    trio.elect("n0")
    trio.now_ms -= 1_000_000
    del trio.rafts["n0"]
    trio.advance(5_000)
    assert any(raft.is_leader for raft in trio.rafts.values())


numbers = st.integers(0, 2**64 - 1)
messages = st.builds(
    RaftMessage,
    kind=st.sampled_from(Kind),
    sender=st.sampled_from(MEMBERS),
    target=st.sampled_from(MEMBERS),
    term=numbers,
    group_key=st.integers(0, 2**32 - 1),
    index=numbers,
    log_term=numbers,
    commit=numbers,
    round=numbers,
    previous=numbers,
    sequence=numbers,
    accepted=st.booleans(),
    entries=st.lists(st.builds(LogEntry, numbers, numbers, st.binary(max_size=9)), max_size=3).map(tuple),
    data=st.binary(max_size=9),
)


@given(messages, st.data())
def test_messages_survive_the_wire(message: RaftMessage, data: st.DataObject) -> None:
    """Any message comes back; cut or changed bytes give RemotingError or another message."""
    wire = encode_message(message, MEMBERS)
    assert decode_message(wire, MEMBERS) == message
    cut = data.draw(st.integers(0, len(wire) - 1))
    with pytest.raises(RemotingError):
        decode_message(wire[:cut], MEMBERS)
    for bad in (b"\2" + wire[1:], wire[:1] + b"\0" + wire[2:], wire[:2] + b"\7" + wire[3:], wire + b"x"):
        with pytest.raises(RemotingError):
            decode_message(bad, MEMBERS)


def test_a_message_of_another_version_is_refused() -> None:
    """The error names both formats and the remedy."""
    members = ("n0", "n1")
    data = encode_message(RaftMessage(kind=MessageKind.HELLO, sender="n0", target="n1", term=1), members)
    later = bytes([data[0] + 1]) + data[1:]
    expected = f"in format {data[0] + 1}, expected {data[0]}: run one version at all members"
    with pytest.raises(RemotingError, match=expected):
        decode_message(later, members)
