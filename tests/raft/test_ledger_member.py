"""Members of a DLedger group, request by request. Lives with faults: tests/sim/test_ledger.py."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from mqtrail.raft import NotLeader, RaftBusy, RaftIdentityError, Role
from mqtrail.raft.dledger import LedgerAnswer, LedgerConfig, LedgerMember
from mqtrail.raft.dledger.pushing import Pushing, PushState
from mqtrail.store import MemoryDisk
from mqtrail.store.dledger import LedgerLog
from mqtrail.wire import (
    LEDGER_HEAD_SIZE,
    LedgerEntry,
    LedgerHeartbeat,
    LedgerHeartbeatReply,
    LedgerMetadata,
    LedgerMetadataReply,
    LedgerPush,
    LedgerPushReply,
    LedgerReply,
    LedgerRequest,
    LedgerStatus,
    LedgerTransfer,
    LedgerTransferReply,
    LedgerVote,
    LedgerVoteReply,
    PushType,
    VoteResult,
    decode_ledger_reply,
    decode_ledger_request,
)
from tests.sim.ledger_group import propose, record, text_of

MEMBERS = ("n0", "n1", "n2")
GROUP = "broker-a"
Status = LedgerStatus


class LedgerTrio:
    """Three members, whose requests and replies a test carries on, drops or holds back. flushes: as writes happen."""

    def __init__(self, members: tuple[str, ...] = MEMBERS, **settings: Any) -> None:
        self.now_ms = 10_000
        self.names = members
        self.settings = settings
        self.disks = {name: MemoryDisk() for name in members}
        self.members: dict[str, LedgerMember] = {}
        self.cut: set[str] = set()  # members that nothing reaches or leaves
        self.problems: list[str] = []
        self.answers: list[LedgerAnswer] = []  # to others than members
        for name in members:
            self.start(name)

    def start(self, name: str) -> LedgerMember:
        log = LedgerLog(self.disks[name], name, segment_size=4_096, index_units=64)
        config = LedgerConfig(self_id=name, members=self.names, group=GROUP, **self.settings)
        chance = random.Random(name).random
        addresses = {member: f"127.0.0.1:{number}" for number, member in enumerate(self.names)}
        self.members[name] = LedgerMember(config, log, chance, lambda at: record(at, ""), self.now_ms, addresses)
        return self.members[name]

    def log(self, name: str) -> LedgerLog:
        return cast(LedgerLog, self.members[name].log)

    def texts(self, name: str) -> list[str]:
        """The committed messages, without the first entries of leaders."""
        log = self.log(name)
        entries = [log.entry(index) for index in range(log.committed_index + 1)]
        return [text for entry in entries if entry is not None and (text := text_of(entry.body))]

    def settle(self) -> None:
        """Carry requests and replies until there are no more."""
        work = True
        while work:
            work = False
            for name, member in list(self.members.items()):
                decided = member.take(self.now_ms)
                self.problems += decided.problems
                for call in decided.calls:
                    work = True
                    self.carry(name, call.number, call.target, call.request)
                for answer in decided.answers:
                    work = True
                    self.bring_back(name, answer)

    def carry(self, name: str, number: int, target: str, request: LedgerRequest) -> None:
        if {name, target} & self.cut or target not in self.members:
            return
        again = decode_ledger_request(request.request_code, request.encode())
        assert again is not None
        self.members[target].serve((name, number, request.request_code), again, self.now_ms)

    def bring_back(self, name: str, answer: LedgerAnswer) -> None:
        if not isinstance(answer.asker, tuple):
            self.answers.append(answer)
            return
        asker, number, code = answer.asker
        if not {name, asker} & self.cut and asker in self.members:
            reply = decode_ledger_reply(code, answer.reply.encode())
            self.members[asker].answered(number, reply, self.now_ms)

    def advance(self, ms: int, *names: str) -> None:
        """Let time pass for some members, all by default."""
        for _ in range(ms // 50):
            self.now_ms += 50
            for name in names or self.names:
                if name in self.members:
                    self.members[name].tick(self.now_ms)
            self.settle()

    def elect(self, name: str) -> LedgerMember:
        """Let one member ask for votes, after the others stopped hearing a leader."""
        self.now_ms += 10_000
        member = self.members[name]
        for _ in range(200):
            if member.is_leader:
                return member
            member.tick(self.now_ms)
            self.settle()
            self.now_ms += 50
        raise AssertionError((member.role, member.term, self.problems))

    def send(self, name: str, *texts: str) -> None:
        for text in texts:
            propose(self.members[name], partial(record, text=text))
        self.settle()

    def ask(self, name: str, request: LedgerRequest) -> LedgerReply:
        """Send a request in the name of nobody; return the answer."""
        self.members[name].serve("test", request, self.now_ms)
        self.settle()
        return self.answers.pop().reply


def heads(log: LedgerLog) -> list[tuple[int, int]]:
    """Index and term of each entry."""
    return [(index, cast(int, log.term_at(index))) for index in range(max(0, log.begin_index), log.end_index + 1)]


def test_a_leader_commits_and_all_have_it() -> None:
    """Three members elect, append and commit; the files are equal byte for byte."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    assert leader.is_ready
    trio.send("n0", "a", "b", "c" * 3_000, "d" * 3_000)
    trio.advance(200)
    assert [trio.texts(name) for name in MEMBERS] == [["a", "b", "c" * 3_000, "d" * 3_000]] * 3
    assert {member.leader for member in trio.members.values()} == {"n0"}
    data = [{path: bytes(file.data) for path, file in disk.files.items()} for disk in trio.disks.values()]
    logs = [[found for path, found in sorted(files.items()) if "/data/" in path] for files in data]
    assert len(logs[0]) == 2
    assert logs[0] == logs[1] == logs[2]
    assert leader.next_tick_ms() > trio.now_ms - 50
    assert trio.problems == []


@pytest.mark.parametrize("names", [("n0",), ("n0", "n1", "n2", "n3", "n4")])
def test_groups_of_one_and_five(names: tuple[str, ...]) -> None:
    """One member decides alone; five with two of them gone."""
    trio = LedgerTrio(names)
    trio.elect("n0")
    trio.cut = set(names[3:])
    trio.send("n0", "a")
    assert trio.texts("n0") == ["a"]


def test_without_a_majority_nothing_is_committed() -> None:
    """The leader takes messages until it notices, then steps down, and says why; with the others back it goes on."""
    trio = LedgerTrio()
    trio.elect("n0")
    trio.cut = {"n1", "n2"}
    trio.send("n0", "lonely")
    assert trio.texts("n0") == []
    trio.advance(3_000, "n0")
    assert not trio.members["n0"].is_leader
    assert any("leads no longer" in problem for problem in trio.problems)
    with pytest.raises(NotLeader):
        trio.send("n0", "more")
    trio.cut = set()
    trio.elect("n0")
    trio.advance(200)
    assert [trio.texts(name) for name in MEMBERS] == [["lonely"]] * 3


def test_a_deposed_leader_loses_what_nobody_else_had() -> None:
    """Its tail is compared, cut off and kept in a file; the new leader's entries take its place."""
    trio = LedgerTrio()
    trio.elect("n0")
    trio.send("n0", "a")
    trio.cut = {"n0"}
    trio.send("n0", "lost", "lost too")
    trio.elect("n1")
    trio.send("n1", "b")
    trio.cut = set()
    trio.advance(2_000, "n1", "n2")
    assert [trio.texts(name) for name in MEMBERS] == [["a", "b"]] * 3
    assert heads(trio.log("n0")) == heads(trio.log("n1"))
    assert trio.disks["n0"].list("truncated")
    assert trio.problems == []


def test_a_member_that_was_away_is_compared_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred entries behind, or with a long tail of its own: a few requests find the place."""
    trio = LedgerTrio()
    trio.elect("n0")
    trio.send("n0", *(f"a{number}" for number in range(40)))
    trio.cut = {"n0"}
    trio.send("n0", *(f"x{number}" for number in range(200)))
    trio.elect("n1")
    trio.send("n1", *(f"b{number}" for number in range(300)))
    compares = []
    carry = trio.carry

    def counting(name: str, number: int, target: str, request: LedgerRequest) -> None:
        if isinstance(request, LedgerPush) and request.type is PushType.COMPARE and target == "n0":
            compares.append(request)
        carry(name, number, target, request)

    monkeypatch.setattr(trio, "carry", counting)
    trio.cut = set()
    trio.advance(2_000, "n1", "n2")
    assert heads(trio.log("n0")) == heads(trio.log("n1"))
    assert len(compares) <= 2 + 9 + 1


def test_a_member_that_does_not_follow_yet_loses_nothing() -> None:
    """Apache's calls every entry inconsistent then: nothing is compared, nor cut off unless it says so again."""
    log = LedgerLog(MemoryDisk(), "n0", segment_size=4_096, index_units=64)
    log.append(chain(*[1] * 10))
    sent: list[tuple[PushType, int]] = []

    def send(kind: PushType, entries: Sequence[LedgerEntry]) -> int:
        sent.append((kind, entries[0].index if entries else -1))
        return len(sent)

    pushing = Pushing(log, LedgerConfig(self_id="n0", members=MEMBERS, group=GROUP), send)
    pushing.step(0)
    assert sent == []
    pushing.follows = True
    for answered in range(20):
        pushing.step(0)
        if pushing.state is PushState.APPEND:
            break
        code = Status.INCONSISTENT_STATE if answered < 2 else Status.SUCCESS
        reply = LedgerPushReply(code=code, index=sent[-1][1], count=1, begin_index=0, end_index=9)
        pushing.answered(len(sent), reply, 0)
    assert {kind for kind, _ in sent} == {PushType.COMPARE}
    assert pushing.match_index == 9


def test_a_member_without_a_log_begins_where_the_leader_does() -> None:
    """The leader has removed its first files: what they had is committed, and gone."""
    trio = LedgerTrio()
    trio.elect("n0")
    trio.send("n0", *(letter * 3_000 for letter in "abcdef"))
    leader = trio.log("n0")
    leader.begin_flush()()
    assert leader.expire_first(leader.committed_index) > 0
    trio.disks["n2"] = MemoryDisk()
    trio.start("n2")
    trio.advance(3_000)
    trio.send("n0", "g")
    trio.advance(200)
    log = trio.log("n2")
    assert log.begin_index == leader.begin_index > 0
    assert heads(log) == heads(leader)
    assert log.committed_index == leader.end_index
    assert any("this log begins anew" in problem for problem in trio.problems)


def test_a_damaged_entry_stops_only_who_lacks_it() -> None:
    """The leader cannot read it; the member that has it follows on, and the operator hears of the other one."""
    trio = LedgerTrio()
    trio.elect("n0")
    trio.cut = {"n2"}
    trio.send("n0", "a", "b")
    leader = trio.log("n0")
    trio.disks["n0"].files[f"{leader.folder}/data/{0:020}"].data[cast(LedgerEntry, leader.entry(1)).position] ^= 1
    trio.cut = set()
    trio.advance(3_000)
    trio.send("n0", "c")
    trio.advance(200)
    assert trio.members["n0"].is_leader
    assert trio.log("n1").committed_index == leader.committed_index == 3
    assert any("cannot be sent to member n2: found damage" in problem for problem in trio.problems)


def test_a_closed_connection_starts_an_election_at_once() -> None:
    """The others do not wait out the heartbeats: a pre-vote, then a vote."""
    trio = LedgerTrio()
    trio.elect("n0")
    trio.send("n0", "a")
    del trio.members["n0"]
    since = trio.now_ms
    for name in ("n1", "n2"):
        trio.members[name].lost("n0", trio.now_ms)
    while not any(member.is_leader for member in trio.members.values()):
        trio.advance(50)
        assert trio.now_ms - since < 1_500
    leader = next(name for name, member in trio.members.items() if member.is_leader)
    trio.advance(200)
    assert trio.texts(leader) == ["a"]


def test_one_lost_connection_disturbs_nobody() -> None:
    """The leader lives: the others hear it, so there is no pre-vote and no new term."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    term = leader.term
    trio.members["n1"].lost("n0", trio.now_ms)
    trio.advance(1_000)
    assert (leader.is_leader, leader.term, trio.members["n1"].leader) == (True, term, "n0")


def test_a_returning_member_disturbs_nobody() -> None:
    """It was apart for long, with an old log or a present one: its term did not grow."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    term = leader.term
    for text in ("", "new"):
        trio.cut = {"n2"}
        trio.advance(20_000)
        if text:
            trio.send("n0", text)
        trio.cut = set()
        trio.advance(3_000)
        assert (leader.is_leader, leader.term) == (True, term)
        assert trio.log("n2").end_index == trio.log("n0").end_index


def test_a_vote_survives_a_restart() -> None:
    """A member votes once in a term, whatever happens between."""
    trio = LedgerTrio()
    request = LedgerVote(group=GROUP, remote_id="n1", local_id="n0", leader_id="n0", term=4)
    assert cast(LedgerVoteReply, trio.ask("n1", request)).vote_result is VoteResult.ACCEPT
    trio.start("n1")
    other = LedgerVote(group=GROUP, remote_id="n1", local_id="n2", leader_id="n2", term=4, ledger_end_index=9)
    assert cast(LedgerVoteReply, trio.ask("n1", other)).vote_result is VoteResult.REJECT_ALREADY_VOTED
    assert cast(LedgerVoteReply, trio.ask("n1", request)).vote_result is VoteResult.ACCEPT


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({"ledger_end_term": 0}, VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        ({"ledger_end_index": 0}, VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
        ({"term": 0}, VoteResult.REJECT_EXPIRED_VOTE_TERM),
        ({"term": 1}, VoteResult.REJECT_ALREADY_HAS_LEADER),
        ({"term": 2}, VoteResult.ACCEPT),
        ({"term": 2, "is_pre_vote": True}, VoteResult.REJECT_ALREADY_HAS_LEADER),
        ({"term": 1, "is_pre_vote": True}, VoteResult.REJECT_EXPIRED_VOTE_TERM),
    ],
)
def test_answers_to_a_candidate(changes: dict[str, Any], result: VoteResult) -> None:
    """A member that follows a leader of term 1 and has entry 1; a candidate that lacks it gets no vote."""
    trio = LedgerTrio()
    trio.elect("n0")
    trio.send("n0", "a")
    assert trio.log("n1").end_index == 1
    fields = {"term": 2, "ledger_end_term": 1, "ledger_end_index": 1, **changes}
    request = LedgerVote(group=GROUP, remote_id="n1", local_id="n2", leader_id="n2", **fields)
    reply = trio.ask("n1", request)
    assert cast(LedgerVoteReply, reply).vote_result is result
    assert (trio.members["n1"].term, trio.members["n1"].leader) == ((2, None) if result == "ACCEPT" else (1, "n0"))


def push(kind: PushType, *entries: LedgerEntry, term: int = 3, leader: str = "n0", commit: int = -1) -> LedgerPush:
    return LedgerPush(
        group=GROUP,
        remote_id="n1",
        local_id=leader,
        leader_id=leader,
        term=term,
        type=kind,
        entries=entries,
        is_batch=len(entries) > 1,
        commit_index=commit,
    )


def chain(*terms: int, text: str = "e") -> list[LedgerEntry]:
    """Entries 0, 1, … of these terms, placed one behind the other."""
    made: list[LedgerEntry] = []
    position = 0
    for index, term in enumerate(terms):
        body = record(position + LEDGER_HEAD_SIZE, f"{text}{index}.{term}")
        made.append(LedgerEntry(index, term, position, body))
        position = made[-1].end
    return made


class Follower:
    """One member, to which a test speaks as its leaders, perhaps Apache's."""

    def __init__(self, **settings: Any) -> None:
        self.trio = LedgerTrio(**settings)
        self.trio.members = {"n1": self.trio.members["n1"]}
        self.log = self.trio.log("n1")

    def push(self, request: LedgerPush) -> LedgerPushReply:
        return cast(LedgerPushReply, self.trio.ask("n1", request))

    def has(self, *entries: LedgerEntry) -> "Follower":
        """Give it entries of a leader."""
        for entry in entries:
            reply = self.push(push(PushType.APPEND, entry, term=entry.term))
            assert (reply.code, reply.index, reply.count) == (Status.SUCCESS, entry.index, 1)
        return self


def test_a_follower_accepts_entries_behind_what_is_proved() -> None:
    """After a change of the leader first a comparison; a gap is no place to append either."""
    a, b, c = chain(1, 1, 3)
    follower = Follower().has(a, b)
    assert follower.push(push(PushType.APPEND, c)).code == Status.INCONSISTENT_STATE
    reply = follower.push(push(PushType.COMPARE, b))
    assert (reply.code, reply.begin_index, reply.end_index, reply.index) == (Status.SUCCESS, 0, 1, 1)
    gap = replace(c, index=3)
    assert follower.push(push(PushType.APPEND, gap)).code == Status.INCONSISTENT_STATE
    assert follower.push(push(PushType.APPEND, c)).code == Status.SUCCESS
    assert follower.push(push(PushType.APPEND, c)).code == Status.SUCCESS  # sent again
    assert follower.log.end_index == 2


def test_a_follower_takes_a_list_of_entries() -> None:
    """As Apache's leader sends them with enableBatchPush, and ours to its own kind; part of it may be known."""
    entries = chain(1, 1, 1)
    follower = Follower().has(entries[0])
    reply = follower.push(push(PushType.APPEND, *entries, term=1))
    assert (reply.code, reply.index, reply.count, reply.end_index) == (Status.SUCCESS, 0, 3, 2)


def test_a_follower_commits_only_what_is_proved_and_of_the_leaders_term() -> None:
    """Apache's leader counts entries of earlier terms: they are committed here with one of its own."""
    a, b, c = chain(1, 1, 3)
    follower = Follower().has(a, b)
    assert follower.log.committed_index == -1
    follower.push(push(PushType.COMMIT, commit=1))
    assert follower.log.committed_index == -1  # nothing is compared yet
    follower.push(push(PushType.COMPARE, b))
    follower.push(push(PushType.COMMIT, commit=1))
    assert follower.log.committed_index == -1
    follower.push(push(PushType.APPEND, c, commit=1))
    assert follower.log.committed_index == -1
    reply = follower.push(push(PushType.COMMIT, commit=7))
    assert (reply.code, reply.index, follower.log.committed_index) == (Status.SUCCESS, None, 2)


def test_a_follower_cuts_off_only_what_differs() -> None:
    """A truncation that comes late, behind entries of the same leader, leaves them."""
    a, b, c = chain(1, 1, 3)
    follower = Follower().has(a, b)
    assert follower.push(push(PushType.TRUNCATE, a)).code == Status.SUCCESS
    assert follower.log.end_index == 0
    d, e = chain(1, 3, 3)[1:]
    for entry in (d, e):
        assert follower.push(push(PushType.APPEND, entry)).code == Status.SUCCESS
    assert follower.push(push(PushType.TRUNCATE, a)).code == Status.SUCCESS
    assert follower.log.end_index == 2
    assert c.term == 3


def test_a_follower_keeps_what_is_committed() -> None:
    """A leader that lacks it is refused, whatever it asks, and the operator hears of it."""
    entries = chain(1, 1, 1)
    follower = Follower().has(*entries)
    follower.push(push(PushType.COMMIT, term=1, commit=1))
    others = chain(1, 2, 2, text="other")
    assert follower.push(push(PushType.COMPARE, others[1])).code == Status.INCONSISTENT_STATE
    assert follower.push(push(PushType.TRUNCATE, entries[0])).code == Status.INCONSISTENT_STATE
    assert follower.push(push(PushType.TRUNCATE, others[1])).code == Status.INCONSISTENT_STATE
    assert follower.log.end_index == 2
    assert any("the leader lacks acknowledged entries" in problem for problem in follower.trio.problems)
    assert follower.push(push(PushType.TRUNCATE, entries[1])).code == Status.SUCCESS
    assert follower.log.end_index == 1


def fails(*given: Any) -> Any:
    raise OSError("the test's disk fails")


def test_a_follower_that_cannot_write_says_so() -> None:
    """Its leader tries again later; the member lives on, and takes the entries when the disk works again."""
    a, b = chain(1, 1)
    follower = Follower().has(a)
    cast(Any, follower.log).append = fails
    assert follower.push(push(PushType.APPEND, b, term=1)).code == Status.DISK_ERROR
    assert any("disk fails" in problem for problem in follower.trio.problems)
    del cast(Any, follower.log).append
    follower.has(b)


def test_a_member_that_cannot_keep_its_vote_gives_none() -> None:
    """It answers a heartbeat of a later term with an error, and asks for no votes itself."""
    follower = Follower()
    cast(Any, follower.log).set_term = fails
    ask = follower.trio.ask
    vote = LedgerVote(
        group=GROUP, remote_id="n1", local_id="n0", leader_id="n0", term=5, ledger_end_index=9, ledger_end_term=4
    )
    assert cast(LedgerVoteReply, ask("n1", vote)).vote_result is not VoteResult.ACCEPT
    beat = LedgerHeartbeat(group=GROUP, remote_id="n1", local_id="n0", leader_id="n0", term=5)
    assert ask("n1", beat).code == Status.DISK_ERROR
    assert (follower.log.term, follower.log.voted) == (0, None)
    alone = LedgerTrio(("n0",))
    cast(Any, alone.log("n0")).set_term = fails
    alone.advance(10_000)
    assert (alone.members["n0"].role, alone.members["n0"].term) == (Role.FOLLOWER, 0)
    assert any("asks for no votes" in problem for problem in alone.problems)


def test_a_leader_whose_disk_fails_steps_down() -> None:
    """It cannot keep a later term, read what to commit, or write its first entry."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    log = cast(Any, leader.log)
    log.set_term = fails
    trio.members["n1"].log.set_term(leader.term + 1, None)
    trio.advance(600)
    assert not leader.is_leader
    del log.set_term

    leader = trio.elect("n0")
    propose(leader, partial(record, text="a"))
    log.term_at = fails
    trio.advance(600)
    assert not leader.is_leader
    del log.term_at

    log.append = fails
    trio.cut = {"n1", "n2"}
    leader._campaign(trio.now_ms, pre_vote=False)
    leader._votes.add("n1")
    leader._count_votes(trio.now_ms)
    assert (leader.is_leader, leader.role) == (False, Role.FOLLOWER)
    assert leader.next_tick_ms() > trio.now_ms
    assert leader._election_ms >= trio.now_ms + 2 * leader.config.election_ms


def test_a_member_that_resigned_takes_over_for_nobody() -> None:
    """The others go first, and a hand-over to it is refused for a while."""
    trio = LedgerTrio()
    first = trio.elect("n0")
    first.resign("its queues cannot be written", trio.now_ms)
    trio.advance(8_000)
    (second,) = [member for member in trio.members.values() if member.is_leader]
    assert second is not first
    assert any("cannot lead: its queues" in problem for problem in trio.problems)
    for ms, leads in ((500, False), (first.config.resigned_ms, True)):
        trio.advance(ms)
        assert second.is_leader
        second.hand_over("n0", trio.now_ms)
        trio.settle()
        trio.advance(100)
        assert first.is_leader is leads


def test_a_leader_with_a_full_disk_hands_over_to_a_member_with_space() -> None:
    """To one that can write, while a majority can without it; a member with a full disk takes over for nobody."""
    trio = LedgerTrio(("n0", "n1", "n2", "n3", "n4"))
    first = trio.elect("n0")
    for name in ("n0", "n1"):
        trio.members[name].is_full = True
    trio.advance(3_000)
    (second,) = [member for member in trio.members.values() if member.is_leader]
    assert second.config.self_id in ("n2", "n3", "n4")
    assert any("found the disk of this member full" in problem for problem in trio.problems)
    second.hand_over("n1", trio.now_ms)
    trio.settle()
    trio.advance(100)
    assert second.is_leader
    trio.members["n0"].is_full = False
    second.hand_over("n0", trio.now_ms)
    trio.settle()
    trio.advance(100)
    assert first.is_leader


def test_a_leader_with_a_full_disk_leads_on_if_no_other_could_commit() -> None:
    """Another disk is full too, or a member lacks entries: messages would wait for a majority that cannot write."""
    trio = LedgerTrio()
    first = trio.elect("n0")
    first.is_full = trio.members["n2"].is_full = True
    trio.advance(5_000)
    assert first.is_leader
    assert any("it leads on and refuses messages" in problem for problem in trio.problems)
    trio.members["n2"].is_full = False
    trio.cut = {"n2"}
    trio.advance(5_000)
    assert first.is_leader
    trio.cut = set()
    trio.advance(5_000)
    assert not first.is_leader


def test_a_preferred_leader_with_a_full_disk_is_not_asked() -> None:
    """Each try would refuse messages for a moment."""
    trio = LedgerTrio(preferred=("n0",))
    trio.elect("n0")
    trio.members["n0"].is_full = True
    trio.advance(3_000)
    (second,) = [member for member in trio.members.values() if member.is_leader]
    assert second is not trio.members["n0"]
    asked: list[str] = []
    second.hand_over = lambda target, now_ms, asker=None: asked.append(target)  # type: ignore[assignment,return-value,method-assign]
    trio.advance(5_000)
    assert asked == []


def test_an_earlier_leader_gets_no_acknowledgement() -> None:
    """Also not for an entry that is here: the present leader may not have it."""
    (a,) = chain(1)
    follower = Follower().has(a)
    vote = LedgerVote(
        group=GROUP, remote_id="n1", local_id="n2", leader_id="n2", term=5, ledger_end_term=4, ledger_end_index=0
    )
    assert cast(LedgerVoteReply, follower.trio.ask("n1", vote)).vote_result is VoteResult.ACCEPT
    reply = follower.push(push(PushType.APPEND, a, term=1))
    assert (reply.code, reply.term) == (Status.EXPIRED_TERM, 5)


def test_an_answer_waits_for_the_flush() -> None:
    """With SYNC_FLUSH a member counts once its entry survives power loss, the leader too."""
    trio = LedgerTrio(waits_for_flush=True)
    trio.elect("n0")
    trio.send("n0", "a")
    leader = trio.members["n0"]
    for name in ("n0", "n1", "n1"):  # the second one answers for the first entry before it gets the next
        assert leader.match_index("n1") == -1 or leader.match_index("n1") < trio.log("n0").end_index
        trio.log(name).begin_flush()()
        trio.settle()
    assert trio.texts("n0") == ["a"]
    assert trio.log("n2").durable_index == -1


def test_a_comparison_waits_for_the_flush_too() -> None:
    """A leader counts a member whose last entry is its own: it must survive power loss."""
    follower = Follower(waits_for_flush=True)
    (a,) = chain(1)
    member = follower.trio.members["n1"]
    for kind in (PushType.APPEND, PushType.COMPARE):
        member.serve("test", push(kind, a, term=1), follower.trio.now_ms)
    follower.trio.settle()
    assert follower.trio.answers == []
    follower.log.begin_flush()()
    follower.trio.settle()
    assert [answer.reply.code for answer in follower.trio.answers] == [Status.SUCCESS] * 2


def test_an_answer_is_not_given_in_a_later_term() -> None:
    """The flush comes after the member voted for another one: the earlier leader must not count it."""
    follower = Follower(waits_for_flush=True)
    (a,) = chain(1)
    member = follower.trio.members["n1"]
    member.serve("test", push(PushType.APPEND, a, term=1), follower.trio.now_ms)
    vote = LedgerVote(
        group=GROUP, remote_id="n1", local_id="n2", leader_id="n2", term=2, ledger_end_term=1, ledger_end_index=0
    )
    assert cast(LedgerVoteReply, follower.trio.ask("n1", vote)).vote_result is VoteResult.ACCEPT
    follower.log.begin_flush()()
    follower.trio.settle()
    assert follower.trio.answers == []


def test_hand_over() -> None:
    """An operator moves the leader; no message is taken meanwhile, and the answer comes when the other one leads."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    trio.send("n0", "a")
    request = LedgerTransfer(group=GROUP, remote_id="n0", transfer_id="n0", transferee_id="n2", term=leader.term)
    leader.serve("operator", request, trio.now_ms)
    with pytest.raises(RaftBusy):
        propose(leader, lambda at: record(at, "b"))
    trio.settle()
    assert trio.members["n2"].is_leader
    (answer,) = trio.answers
    assert (answer.asker, answer.reply.code) == ("operator", Status.SUCCESS)
    trio.advance(200)
    trio.send("n2", "b")
    trio.advance(200)
    assert [trio.texts(name) for name in MEMBERS] == [["a", "b"]] * 3


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"transferee_id": "n9"}, Status.UNKNOWN_MEMBER),
        ({"term": 9}, Status.INCONSISTENT_TERM),
        ({"transfer_id": "n1", "transferee_id": "n2"}, Status.UNEXPECTED_ARGUMENT),
        ({"remote_id": "n1"}, Status.UNKNOWN_MEMBER),
        ({"group": "broker-b"}, Status.UNKNOWN_GROUP),
    ],
)
def test_hand_overs_that_are_refused(changes: dict[str, Any], status: Status) -> None:
    """Each with its code; nothing changes."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    fields = {"group": GROUP, "remote_id": "n0", "transfer_id": "n0", "transferee_id": "n2", "term": leader.term}
    reply = trio.ask("n0", LedgerTransfer(**{**fields, **changes}))
    assert (reply.code, leader.is_leader) == (status, True)


def test_a_hand_over_to_a_dead_member_ends() -> None:
    """The leader goes on, and takes messages again."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    trio.cut = {"n2"}
    assert leader.hand_over("n2", trio.now_ms, "operator") is Status.SUCCESS
    trio.advance(3_500)
    (answer,) = trio.answers
    assert answer.reply.code == Status.TAKE_LEADERSHIP_FAILED
    trio.send("n0", "a")
    assert trio.texts("n0") == ["a"]


def test_a_member_takes_over_once_it_has_the_entries() -> None:
    """It waits a second for them, then gives up."""
    follower = Follower()
    (a,) = chain(1)
    follower.has(a)
    member = follower.trio.members["n1"]
    request = LedgerTransfer(
        group=GROUP, remote_id="n1", transfer_id="n0", transferee_id="n1", term=1, take_leadership_ledger_index=5
    )
    member.serve("n0's", request, follower.trio.now_ms)
    follower.trio.advance(500)
    assert (member.term, follower.trio.answers) == (1, [])
    follower.trio.advance(1_000)
    (answer,) = follower.trio.answers
    assert isinstance(answer.reply, LedgerTransferReply)
    assert answer.reply.code == Status.TAKE_LEADERSHIP_FAILED


def test_the_preferred_member_leads() -> None:
    """Whoever is elected hands over to it within seconds, if it follows."""
    trio = LedgerTrio(preferred=("n2",))
    trio.elect("n0")
    trio.advance(3_000)
    assert trio.members["n2"].is_leader


@pytest.mark.parametrize(
    ("changes", "code", "problem"),
    [
        ({"group": "broker-b"}, Status.UNKNOWN_GROUP, "expected group broker-a"),
        ({"remote_id": "n2"}, Status.UNKNOWN_MEMBER, "must be the same at all members"),
        ({"leader_id": "n7"}, Status.UNKNOWN_MEMBER, "expected one of n0, n2"),
        ({"leader_id": "n1"}, Status.UNEXPECTED_MEMBER, "two members have one dLegerSelfId"),
        ({"term": 1 << 40}, Status.UNEXPECTED_ARGUMENT, "not a member of this group"),
        ({"leader_id": "n2"}, Status.INCONSISTENT_LEADER, "two members lead in one term"),
        ({"term": 0}, Status.EXPIRED_TERM, None),
    ],
)
def test_requests_of_strangers(changes: dict[str, Any], code: Status, problem: str | None) -> None:
    """Other groups, other lists of peers, one id twice: refused with Apache's code, and named for the operator."""
    trio = LedgerTrio()
    trio.elect("n0")
    fields = {"group": GROUP, "remote_id": "n1", "local_id": "n0", "leader_id": "n0", "term": 1, **changes}
    assert trio.ask("n1", LedgerHeartbeat(**fields)).code == code
    assert problem is None or any(problem in found for found in trio.problems)
    assert trio.members["n1"].leader == "n0"


def test_metadata() -> None:
    """Who leads, where the members are, and how far their logs go."""
    trio = LedgerTrio()
    trio.elect("n0")
    trio.cut = {"n2"}
    trio.send("n0", "a")
    leader = trio.log("n0")
    reply = trio.ask("n1", LedgerMetadata(group=GROUP, remote_id="n1"))
    assert isinstance(reply, LedgerMetadataReply)
    assert (reply.leader_id, reply.peers) == ("n0", {"n0": "127.0.0.1:0", "n1": "127.0.0.1:1", "n2": "127.0.0.1:2"})
    end = cast(LedgerEntry, leader.entry(0)).end
    assert (reply.term, reply.end_position, reply.committed_position) == (1, leader.end_position, end)
    trio.advance(100)
    reply = cast(LedgerMetadataReply, trio.ask("n1", LedgerMetadata(group=GROUP, remote_id="n1")))
    assert reply.committed_position == leader.end_position


def test_a_clock_that_is_set_back_delays_nothing() -> None:
    """All waits begin again."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    trio.now_ms -= 1_000_000
    trio.advance(1_000)
    trio.send("n0", "a")
    trio.advance(200)
    assert leader.is_leader
    assert trio.texts("n2") == ["a"]


def test_too_many_entries_without_a_majority_are_refused() -> None:
    """RaftBusy says what to do."""
    trio = LedgerTrio(pending_count_max=3)
    trio.elect("n0")
    trio.cut = {"n1", "n2"}
    trio.send("n0", "a", "b", "c")
    with pytest.raises(RaftBusy, match="wait for a majority"):
        trio.send("n0", "d")


def test_a_large_batch_needs_an_idle_leader() -> None:
    """It may have more entries than may wait, since it comes at once, but nothing beside it."""
    trio = LedgerTrio(pending_count_max=3)
    leader = trio.elect("n0")
    leader.check_room(5)
    trio.cut = {"n1", "n2"}
    trio.send("n0", "a")
    leader.check_room(2)
    with pytest.raises(RaftBusy, match="wait for a majority"):
        leader.check_room(3)
    with pytest.raises(NotLeader):
        trio.members["n1"].check_room(1)


def test_followers_are_those_that_a_leader_hears() -> None:
    """One that is silent leaves, and counts again once it answers."""
    trio = LedgerTrio()
    leader = trio.elect("n0")
    trio.advance(500)
    assert leader.followers == {"n1", "n2"}
    assert not trio.members["n1"].followers
    trio.cut = {"n2"}
    trio.advance(3_000, "n0", "n1")
    assert leader.followers == {"n1"}
    trio.cut = set()
    trio.advance(1_000, "n0", "n1")
    assert leader.followers == {"n1", "n2"}


@pytest.mark.parametrize(("self_id", "members"), [("n9", MEMBERS), ("n0", ("n0", "n1")), ("n0", ("n0", "n0", "n1"))])
def test_a_group_has_one_three_or_five_different_members(self_id: str, members: tuple[str, ...]) -> None:
    with pytest.raises(RaftIdentityError):
        LedgerConfig(self_id=self_id, members=members, group=GROUP)


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda a, b: push(PushType.APPEND), Status.UNEXPECTED_ARGUMENT),
        (lambda a, b: push(PushType.COMPARE, a, b), Status.UNEXPECTED_ARGUMENT),
        (lambda a, b: push(PushType.APPEND, replace(a, term=9)), Status.UNEXPECTED_ARGUMENT),
        (lambda a, b: push(PushType.APPEND, replace(a, position=8)), Status.DISK_ERROR),
        (lambda a, b: replace_group(push(PushType.COMMIT)), Status.UNKNOWN_GROUP),
    ],
)
def test_pushes_that_are_refused(make: Callable[[LedgerEntry, LedgerEntry], LedgerPush], status: Status) -> None:
    """Without what they need, of a term that cannot be, at another position, of another group."""
    follower = Follower()
    reply = follower.push(make(*chain(1, 1)))
    assert (reply.code, follower.log.end_index) == (status, -1)


def replace_group(request: LedgerPush) -> LedgerPush:
    return LedgerPush(group="broker-b", remote_id=request.remote_id, leader_id=request.leader_id, term=request.term)


def test_other_requests_of_strangers() -> None:
    """Each kind of request has its kind of answer."""
    trio = LedgerTrio()
    vote = LedgerVote(group=GROUP, remote_id="n1", local_id="n7", leader_id="n7", term=1)
    assert cast(LedgerVoteReply, trio.ask("n1", vote)).vote_result is VoteResult.REJECT_UNKNOWN_LEADER
    own = LedgerVote(group=GROUP, remote_id="n1", local_id="n1", leader_id="n1", term=1)
    assert cast(LedgerVoteReply, trio.ask("n1", own)).vote_result is VoteResult.REJECT_UNEXPECTED_LEADER
    assert trio.ask("n1", LedgerMetadata(group="broker-b", remote_id="n1")).code == Status.UNKNOWN_GROUP


def test_hand_overs_that_cannot_be() -> None:
    """Not by a follower, not twice at once, not to a member that is far behind; not taken from another leader."""
    trio = LedgerTrio(transfer_behind_max=2)
    leader = trio.elect("n0")
    assert trio.members["n1"].hand_over("n2", trio.now_ms) is Status.NOT_LEADER
    trio.cut = {"n2"}
    trio.send("n0", "a", "b", "c")
    assert leader.hand_over("n2", trio.now_ms) is Status.FALL_BEHIND_TOO_MUCH
    assert leader.hand_over("n1", trio.now_ms) is Status.SUCCESS
    assert leader.hand_over("n1", trio.now_ms) is Status.LEADER_TRANSFERRING
    take = LedgerTransfer(group=GROUP, remote_id="n2", transfer_id="n1", transferee_id="n2", term=leader.term)
    assert trio.ask("n2", take).code == Status.INCONSISTENT_LEADER


def test_a_member_in_an_older_term_is_asked_again() -> None:
    """Apache's member answers TERM_NOT_READY first, and votes a little later."""
    trio = LedgerTrio()
    member = trio.members["n0"]
    trio.members = {"n0": member}
    trio.now_ms += 10_000
    member.tick(trio.now_ms)
    for call in member.take(trio.now_ms).calls:
        member.answered(call.number, LedgerVoteReply(code=Status.UNSUPPORTED), trio.now_ms)
    calls = [call for call in member.take(trio.now_ms).calls if isinstance(call.request, LedgerVote)]
    assert [call.request.term for call in calls] == [1, 1]
    not_ready = LedgerVoteReply(term=0, vote_result=VoteResult.REJECT_TERM_NOT_READY)
    member.answered(calls[0].number, not_ready, trio.now_ms)
    assert member.next_tick_ms() <= trio.now_ms + 30
    member.tick(trio.now_ms + 30)
    (again,) = member.take(trio.now_ms + 30).calls
    member.answered(again.number, LedgerVoteReply(term=1, vote_result=VoteResult.ACCEPT), trio.now_ms + 31)
    assert member.is_leader
    (beat, *_) = [call for call in member.take(trio.now_ms + 31).calls if isinstance(call.request, LedgerHeartbeat)]
    member.answered(beat.number, LedgerHeartbeatReply(code=Status.TERM_NOT_READY), trio.now_ms + 32)
    assert member.next_tick_ms() <= trio.now_ms + 62
    member.tick(trio.now_ms + 62)
    (beat, *_) = [call for call in member.take(trio.now_ms + 62).calls if isinstance(call.request, LedgerHeartbeat)]
    member.answered(beat.number, LedgerHeartbeatReply(code=Status.EXPIRED_TERM, term=9), trio.now_ms + 63)
    assert (member.is_leader, member.term) == (False, 9)
