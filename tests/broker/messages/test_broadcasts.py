"""Offsets of broadcasting clients: the broker supplies the start of clients behind proxies."""

import pytest

from mqtrail.wire import (
    ConsumerData,
    HeartbeatData,
    MessageModel,
    Peer,
    PullHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
)

from ..helpers import NOW_MS, OTHER, PEER, Bench, at_once

COMMON = "g@broadcast"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    for number in range(5):
        bench.send(body=b"%d" % number)
    return bench


def pull(
    bench: Bench, queue_offset: int, client_id: str | None = None, *, peer: Peer = PEER, count: int = 2
) -> RemotingCommand:
    """Pull as a proxy for client_id, or as a direct client."""
    ext = PullHeader("g", "orders", 0, queue_offset, count, 4, 0, 0, "*").to_ext()
    if client_id is not None:
        ext |= {"requestSource": "1", "proxyFrowardClientId": client_id}
    return bench.ask(RequestCode.PULL_MESSAGE, ext, peer=peer)


def heartbeat(bench: Bench, client_id: str, peer: Peer = PEER) -> None:
    data = HeartbeatData(client_id, (), (ConsumerData("g", message_model=MessageModel.BROADCASTING),))
    bench.ask(RequestCode.HEART_BEAT, body=data.encode(), peer=peer)


def reported_start(reply: RemotingCommand) -> int:
    """Return the client's start as the broker reports it."""
    assert (reply.code, reply.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    return int(reply.ext["nextBeginOffset"])


def test_proxy_client_begins(bench: Bench) -> None:
    """A client begins at the first message of a young queue, else at the end; later pulls are ordinary pulls."""
    assert reported_start(pull(bench, -1, "p1")) == 0
    assert pull(bench, 0, "p1").code == ResponseCode.SUCCESS
    bench = Bench(young_queue_size=-1)
    bench.send()
    assert reported_start(pull(bench, -1, "p1")) == 1


def test_a_proxy_client_returns(bench: Bench) -> None:
    """A known client continues at its offset; an unknown one starts at the slowest client's offset."""
    pull(bench, -1, "fast")
    pull(bench, 4, "fast")
    pull(bench, -1, "slow")
    pull(bench, 2, "slow")
    assert reported_start(pull(bench, -1, "fast")) == 4
    bench.broker.save(NOW_MS)
    assert bench.broker.offsets.get(COMMON, "orders", 0) == 2
    assert reported_start(pull(bench, -1, "new")) == 2
    bench.restart()
    assert reported_start(pull(bench, -1, "fast")) == 2


def test_from_proxy_to_broker_and_back(bench: Bench) -> None:
    """A client that changes between proxy and direct access continues where it was."""
    pull(bench, -1, "c1")
    pull(bench, 3, "c1")
    heartbeat(bench, "c1")
    assert reported_start(pull(bench, 0)) == 3
    assert pull(bench, 3).code == ResponseCode.SUCCESS
    assert reported_start(pull(bench, 0, "c1")) == 3


def test_client_of_its_own(bench: Bench) -> None:
    """The broker supplies no start to a client that keeps its own offsets."""
    heartbeat(bench, "c1")
    heartbeat(bench, "c2", OTHER)
    for offset, peer in ((0, PEER), (4, OTHER), (2, PEER)):
        assert pull(bench, offset, peer=peer).code == ResponseCode.SUCCESS
    bench.broker.save(NOW_MS)
    assert bench.broker.offsets.get(COMMON, "orders", 0) == 2
    assert at_once(bench.broker.offsets.groups_of("orders")) == []


def test_silent_clients_are_forgotten(bench: Bench) -> None:
    """Two minutes after a client disconnected, it no longer holds back the group's common offset."""
    pull(bench, -1, "slow")
    pull(bench, 1, "slow")
    for _ in range(30):
        pull(bench, 4, "fast")
        bench.advance(5_000)
    assert bench.broker.offsets.get(COMMON, "orders", 0) == 4
    assert reported_start(pull(bench, -1, "slow")) == 4


def test_switched_off() -> None:
    """When switched off, a proxy's pull is an ordinary pull."""
    bench = Bench(broadcast_offsets=False)
    bench.send()
    assert pull(bench, -1, "p1").remark != "OFFSET_RESET"
