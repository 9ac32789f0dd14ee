"""A member behind a port: commands in, commands out."""

from typing import cast

import pytest

from mqtrail.raft import Role
from mqtrail.raft.dledger import LedgerPort
from mqtrail.store import StoreError
from mqtrail.store.dledger import LedgerLog
from mqtrail.wire import (
    Host,
    LedgerCode,
    LedgerHeartbeat,
    LedgerPushReply,
    LedgerStatus,
    LedgerVoteReply,
    Peer,
    PeerId,
    PushType,
    RemotingCommand,
    ResponseCode,
    Send,
    VoteResult,
    decode_ledger_reply,
)

from .test_ledger_member import GROUP, LedgerTrio, chain, push

PEER = Peer(PeerId(7), Host("127.0.0.1", 4))
NOW_MS = 10_000


def port(name: str = "n1") -> LedgerPort:
    return LedgerPort(LedgerTrio().members[name])


def status_of(sends: list[Send]) -> int:
    (send,) = sends
    assert (send.peer, send.command.code) == (PEER.id, 200)
    return cast(LedgerPushReply, decode_ledger_reply(LedgerCode.PUSH, send.command.body)).code


def pushed(kind: PushType, place: int) -> RemotingCommand:
    return RemotingCommand(LedgerCode.PUSH, body=push(kind, chain(1, 1)[place], term=1).encode())


def test_requests_to_truncate_wait_for_a_flush() -> None:
    """Others do not; after the flush they are answered in order."""
    one = port()
    one.begin_flush()
    assert one.handle(PEER, pushed(PushType.TRUNCATE, 0), NOW_MS) == []
    assert one.member.log.end_index == -1
    assert status_of(one.handle(PEER, pushed(PushType.APPEND, 0), NOW_MS)) == LedgerStatus.SUCCESS
    assert status_of(one.end_flush(NOW_MS)) == LedgerStatus.SUCCESS
    assert status_of(one.handle(PEER, pushed(PushType.TRUNCATE, 0), NOW_MS)) == LedgerStatus.SUCCESS


def test_a_cut_is_made_by_another_thread() -> None:
    """Until it is done no entry is taken, this member asks for no votes, and requests wait; then they are answered."""
    one = port()
    log = cast(LedgerLog, one.member.log)
    log.defers_cuts = True
    kept, *lost = chain(1, 1, 1)
    for entry in (kept, *lost):
        command = RemotingCommand(LedgerCode.PUSH, body=push(PushType.APPEND, entry, term=1).encode())
        assert status_of(one.handle(PEER, command, NOW_MS)) == LedgerStatus.SUCCESS
    new = chain(1, 2)[1]
    requests = [
        RemotingCommand(LedgerCode.PUSH, body=push(kind, entry, term=2, leader="n2").encode())
        for kind, entry in ((PushType.TRUNCATE, kept), (PushType.APPEND, new))
    ]
    for command in requests:
        assert one.handle(PEER, command, NOW_MS) == []
    assert (log.is_cutting, log.end_index, log.expire_first(2)) == (True, 2, 0)
    with pytest.raises(StoreError, match="being cut off"):
        log.append([chain(1, 1, 1, 1)[3]])
    one.member._campaign(NOW_MS, pre_vote=False)
    assert (one.member.role, one.member.term) == (Role.FOLLOWER, 2)

    assert log.end_truncate() is None  # as after a failure
    assert one.end_cut(None, NOW_MS) == []
    assert (log.is_cutting, log.end_index) == (False, 2)
    for command in requests:
        assert one.handle(PEER, command, NOW_MS) == []
    log.begin_truncate()()
    replies = [status_of([send]) for send in one.end_cut(log.end_truncate(), NOW_MS)]
    assert replies == [LedgerStatus.SUCCESS, LedgerStatus.SUCCESS]
    assert (log.end_index, log.end_term) == (1, 2)
    assert any("were cut off: truncated/" in problem for problem in one.take_problems())


def test_addresses_that_are_not_admitted() -> None:
    """They get no answer of the member, and change nothing."""
    one = port()
    one.allows = lambda ip: ip == "10.0.0.1"
    (send,) = one.handle(PEER, pushed(PushType.APPEND, 0), NOW_MS)
    assert (send.command.code, one.member.log.end_index) == (ResponseCode.NO_PERMISSION, -1)
    assert "slaveAddresses" in (send.command.remark or "")
    known = Peer(PEER.id, Host("10.0.0.1", 4))
    assert status_of(one.handle(known, pushed(PushType.APPEND, 0), NOW_MS)) == LedgerStatus.SUCCESS


def test_a_closed_connection_of_the_leader() -> None:
    """The leader opened it; another one to the same leader still counts."""
    one = port()
    beat = LedgerHeartbeat(group=GROUP, remote_id="n1", local_id="n0", leader_id="n0", term=1)
    other = Peer(PeerId(8), PEER.address)
    for peer in (PEER, other):
        one.handle(peer, RemotingCommand(LedgerCode.HEART_BEAT, body=beat.encode()), NOW_MS)
    one.disconnected(PEER.id)
    assert one.member.leader == "n0"
    one.disconnected(PeerId(99))
    one.disconnected(other.id)
    assert one.member.leader is None
    assert cast(int, one.next_tick_ms()) <= NOW_MS + 200


def test_replies_to_a_pre_vote() -> None:
    """Apache's member does not know the request; no reply and one that cannot be read are none."""
    one = port()
    one.tick(NOW_MS + 10_000)
    calls = {call.target: call for call in one.take_calls()}
    assert {call.command.code for call in calls.values()} == {LedgerCode.PRE_VOTE}
    unknown = RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    one.replied(calls["n0"].number, unknown, NOW_MS + 10_000)
    assert one.member.role is Role.CANDIDATE  # alone with one of Apache's, after a long silence
    one.replied(calls["n2"].number, RemotingCommand(200, body=b"[]"), NOW_MS + 10_000)
    assert "cannot be read" in one.take_problems()[0]
    votes = one.take_calls()
    assert {call.command.code for call in votes} == {LedgerCode.VOTE}
    one.replied(votes[0].number, None, NOW_MS + 10_000)
    accepted = LedgerVoteReply(term=1, vote_result=VoteResult.ACCEPT)
    one.replied(votes[1].number, RemotingCommand(200, body=accepted.encode()), NOW_MS + 10_000)
    assert one.member.is_leader


def test_a_lost_connection_to_the_leader() -> None:
    """This member opened it."""
    one = port()
    beat = LedgerHeartbeat(group=GROUP, remote_id="n1", local_id="n0", leader_id="n0", term=1)
    one.handle(PEER, RemotingCommand(LedgerCode.HEART_BEAT, body=beat.encode()), NOW_MS)
    one.lost("n2", NOW_MS)
    assert one.member.leader == "n0"
    one.lost("n0", NOW_MS)
    assert one.member.leader is None
