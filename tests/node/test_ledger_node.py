"""Members of a DLedger group on sockets: they elect, replicate, survive a member, and take no strangers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from mqtrail.net import BindError, ConnectionPool
from mqtrail.node import LedgerNode, ledger_node
from mqtrail.raft.dledger import LedgerConfig
from mqtrail.store import RealDisk, StoreFull
from mqtrail.store.dledger import LedgerLog
from mqtrail.wire import (
    InvalidParameter,
    LedgerCode,
    LedgerHeartbeat,
    LedgerHeartbeatReply,
    LedgerStatus,
    RemotingCommand,
    ResponseCode,
    decode_ledger_reply,
)
from tests.ports import free_ports
from tests.sim.ledger_group import propose, record, text_of
from tests.waiting import until

NAMES = ("n0", "n1", "n2")
FIRST = partial(record, text="")


class LedgerNodes:
    """Three members, each with a folder of its own."""

    def __init__(self, folder: Path, *, waits_for_flush: bool) -> None:
        self.folder = folder
        self.waits_for_flush = waits_for_flush
        self.addresses = dict(zip(NAMES, (f"127.0.0.1:{port}" for port in free_ports(3)), strict=True))
        self.nodes: dict[str, LedgerNode] = {}

    async def start(self, name: str) -> None:
        log = LedgerLog(RealDisk(self.folder / name), name, segment_size=64 * 1024, index_units=1_000)
        config = LedgerConfig(
            self_id=name,
            members=NAMES,
            group="broker-a",
            waits_for_flush=self.waits_for_flush,
            heartbeat_ms=50,
            election_ms=300,
            commit_push_ms=10,
        )
        self.nodes[name] = node = LedgerNode(config, self.addresses, log, FIRST)
        await node.start()

    async def stop(self, name: str) -> None:
        node = self.nodes.pop(name)
        await node.stop()
        node.ledger.close(node.ledger.committed_index)

    def send(self, name: str, text: str) -> None:
        propose(self.nodes[name].member, partial(record, text=text))
        self.nodes[name].advance()

    def texts(self, name: str) -> list[str]:
        log = self.nodes[name].ledger
        entries = [log.entry(index) for index in range(log.committed_index + 1)]
        return [text for entry in entries if entry is not None and (text := text_of(entry.body))]

    async def leader(self) -> str:
        await until(lambda: any(node.member.is_ready for node in self.nodes.values()))
        return next(name for name, node in self.nodes.items() if node.member.is_ready)

    async def all_have(self, texts: list[str]) -> None:
        await until(lambda: all(self.texts(name) == texts for name in self.nodes))


@asynccontextmanager
async def group(folder: Path, *, waits_for_flush: bool = False) -> AsyncIterator[LedgerNodes]:
    nodes = LedgerNodes(folder, waits_for_flush=waits_for_flush)
    try:
        for name in NAMES:
            await nodes.start(name)
        yield nodes
    finally:
        for name in list(nodes.nodes):
            await nodes.stop(name)


@pytest.mark.parametrize("waits_for_flush", [False, True])
async def test_a_group_survives_a_member_and_takes_it_back(tmp_path: Path, waits_for_flush: bool) -> None:
    """What was committed stays; the member that returns gets the rest; the files are equal."""
    async with group(tmp_path, waits_for_flush=waits_for_flush) as nodes:
        first = await nodes.leader()
        for text in ("a", "b"):
            nodes.send(first, text)
        await nodes.all_have(["a", "b"])
        await nodes.stop(first)
        second = await nodes.leader()
        assert second != first
        nodes.send(second, "c")
        await nodes.all_have(["a", "b", "c"])
        await nodes.start(first)
        await nodes.all_have(["a", "b", "c"])
        ends = {node.ledger.end_position for node in nodes.nodes.values()}
        data = {(tmp_path / name / f"dledger-{name}/data/{0:020}").read_bytes() for name in NAMES}
        assert (len(ends), len(data)) == (1, 1)


async def test_a_full_disk_at_a_checkpoint_stops_no_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is durable without the note. The member goes on, and the next checkpoint tries again."""
    monkeypatch.setattr(ledger_node, "CHECKPOINT_S", 0.1)
    async with group(tmp_path) as nodes:
        leader = await nodes.leader()
        node = nodes.nodes[leader]
        tried = []

        def full(committed_index: int, end_index: int) -> None:
            tried.append(end_index)
            raise StoreFull("found no space, expected some")

        with monkeypatch.context() as patch:
            patch.setattr(node.ledger.state, "note_checkpoint", full)
            await until(lambda: len(tried) >= 3)
        await until(lambda: node.ledger.state.read_committed() == node.ledger.committed_index)
        assert node.failure is None


async def test_strangers_are_answered(tmp_path: Path) -> None:
    """A member of another group, a code that no member serves, a body that is no request; a second one on the port."""
    async with group(tmp_path) as nodes:
        leader = await nodes.leader()
        pool = ConnectionPool()

        async def ask(code: int, body: bytes) -> RemotingCommand:
            return await pool.request(nodes.addresses["n1"], RemotingCommand(code, body=body), 5_000)

        beat = LedgerHeartbeat(group="broker-b", remote_id="n1", local_id="n0", leader_id="n0", term=9)
        found = await ask(LedgerCode.HEART_BEAT, beat.encode())
        reply = decode_ledger_reply(LedgerCode.HEART_BEAT, found.body)
        assert isinstance(reply, LedgerHeartbeatReply)
        assert (found.code, reply.code) == (200, LedgerStatus.UNKNOWN_GROUP)
        assert (await ask(LedgerCode.APPEND, b"{}")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert (await ask(LedgerCode.PUSH, b"[]")).code == ResponseCode.SYSTEM_ERROR
        await pool.close()
        log = LedgerLog(RealDisk(tmp_path / "other"), "n1", segment_size=64 * 1024, index_units=10)
        with pytest.raises(BindError):
            await LedgerNode(nodes.nodes["n1"].config, nodes.addresses, log, FIRST).start()
        log.abandon()
        assert await nodes.leader() == leader


async def test_a_second_process_with_the_id_of_a_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine its port is free. It does not join, and one that runs already stops: both could lead."""
    address, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = LedgerConfig(self_id="n0", members=NAMES, group="broker-a")

    def node(name: str, at: str) -> LedgerNode:
        log = LedgerLog(RealDisk(tmp_path / name), "n0", segment_size=64 * 1024, index_units=1_000)
        found = LedgerNode(config, {"n0": address, "n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}, log, FIRST)
        found.port = int(at.rpartition(":")[2])
        return found

    first, second = node("first", address), node("second", other)
    monkeypatch.setattr(ledger_node, "IDENTITY_S", 0.05)
    await second.start()
    await first.start()
    async with asyncio.timeout(30):
        await second.failed.wait()
    assert f"another process at {address} that is member n0 of group broker-a" in str(second.failure)
    await first._check_own_address()
    await second.stop()
    again = LedgerNode(config, second._addresses, second.ledger, FIRST)
    again.port = second.port
    with pytest.raises(InvalidParameter, match="expected this one"):
        await again.start()
    await first.stop()
    for one in (first, second):
        one.ledger.abandon()
