"""Brokers of a DLedger group in one process: who leads is master; what is acknowledged stays; nothing else is seen."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mqtrail.broker import BrokerConfig, samples
from mqtrail.net import ConnectionPool, NetError
from mqtrail.node import LedgerNode, NodeConfig
from mqtrail.node.ledger_broker import LedgerBroker
from mqtrail.node.namesrv_node import NameServerNode
from mqtrail.raft.dledger import LedgerCommand, LedgerConfig
from mqtrail.store import CommitLogConfig, StoreFull
from mqtrail.store.commitlog.cutting import copy_tail
from mqtrail.store.dledger import LedgerStore
from mqtrail.store.dledger import ledger as ledger_module
from mqtrail.wire import (
    TRACE_TOPIC,
    BrokerEvent,
    InvalidParameter,
    RemotingCommand,
    ResponseCode,
    TopicRouteData,
    decode_records,
    decode_trace,
)
from tests.ports import free_ports
from tests.waiting import until

from .helpers import pull_once, read_all, send_command

pytestmark = pytest.mark.slow

NAME = "broker-a"
MEMBERS = ("n0", "n1", "n2")
TOPIC = "TestTopic"
TIMEOUT_MS = 30_000


class QuickBroker(LedgerBroker):
    """One that does not wait long for others."""

    def consensus(self) -> LedgerConfig:
        return replace(super().consensus(), heartbeat_ms=200, election_ms=1_500, commit_push_ms=10)


class LedgerBrokers:
    """A name server, and three brokers that can be stopped and started."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = settings
        ports = free_ports(6)
        self.ports = dict(zip(MEMBERS, ports[:3], strict=True))
        self.peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in zip(MEMBERS, ports[3:], strict=True))
        self.brokers: dict[str, LedgerBroker] = {}
        self.failures: list[BaseException] = []
        self.namesrv = NameServerNode()
        self.namesrv.bind("127.0.0.1", 0)
        self.pool = ConnectionPool()

    @property
    def namesrv_address(self) -> str:
        return f"127.0.0.1:{self.namesrv.port}"

    def config(self, name: str) -> NodeConfig:
        return NodeConfig(
            broker=BrokerConfig(
                ledger_mode=True, ledger_peers=self.peers, ledger_self_id=name, slave_read=True, **self.settings
            ),
            store=CommitLogConfig(segment_size=1 << 20, message_size_max=64 * 1024),
            fast_port=False,
        )

    async def start(self, name: str) -> None:
        broker = QuickBroker(NAME, self.folder / name, self.config(name), self.failures.append)
        broker.bind("127.0.0.1", self.ports[name], "127.0.0.1")
        self.brokers[name] = broker
        await broker.start([self.namesrv_address])

    async def start_all(self) -> None:
        await asyncio.gather(*map(self.start, MEMBERS))

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    async def leader(self, *, but: str = "") -> str:
        """Wait until a broker serves as master, another one than `but`; return its member."""
        await until(lambda: self._masters() - {but})
        return (self._masters() - {but}).pop()

    def _masters(self) -> set[str]:
        return {name for name, one in self.brokers.items() if self._is_master(one)}

    def _is_master(self, broker: LedgerBroker) -> bool:
        core = broker.core
        return core is not None and not core.config.is_slave and broker.member.member.is_ready

    def store(self, name: str) -> LedgerStore:
        store = self.brokers[name].store
        assert isinstance(store, LedgerStore)
        return store

    def metrics(self, name: str) -> dict[str, Any]:
        core = self.brokers[name].core
        assert core is not None
        return {sample.name: sample.value for sample in samples(core, 0) if sample is not None}

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    async def send(self, name: str, body: bytes) -> RemotingCommand:
        return await self.pool.request(self.address(name), send_command(TOPIC, body), TIMEOUT_MS)

    def bodies(self, name: str) -> list[bytes]:
        """Return what a member shows; also a slave that does not know the topic yet."""
        store = self.store(name)
        found = store.read(TOPIC, 0, 0, 1_000, 1 << 20)
        return [one.body for one in decode_records(b"".join(found.records))]

    async def all_show(self, bodies: list[bytes]) -> None:
        """Wait until each broker that runs shows exactly these."""
        for name in self.brokers:
            await until(partial(self._has, name, len(bodies)))
            assert self.bodies(name) == bodies

    def _has(self, name: str, count: int) -> bool:
        return self.store(name).max_offset(TOPIC, 0) >= count


@asynccontextmanager
async def group(folder: Path, **settings: Any) -> AsyncIterator[LedgerBrokers]:
    found = LedgerBrokers(folder, **settings)
    await found.namesrv.start()
    try:
        await found.start_all()
        yield found
        assert found.failures == []
    finally:
        for name in list(found.brokers):
            await found.stop(name)
        await found.pool.close()
        await found.namesrv.stop()


@pytest.mark.parametrize("sync_flush", [False, True])
async def test_another_member_takes_over(tmp_path: Path, sync_flush: bool) -> None:
    """The master stops: the next one has all messages, and the one that comes back gets what it missed."""
    async with group(tmp_path, sync_flush=sync_flush) as found:
        first = await found.leader()
        sent = [b"%d" % number for number in range(20)]
        for body in sent:
            assert (await found.send(first, body)).code == ResponseCode.SUCCESS
        await found.all_show(sent)
        cores = [core for one in found.brokers.values() if (core := one.core) is not None]
        await until(lambda: all(TOPIC in core.topics for core in cores), within_s=8)  # they copy tables each 10 s
        slave = next(name for name in MEMBERS if name != first)
        assert (await found.send(slave, b"to a slave")).code == ResponseCode.SYSTEM_BUSY

        await found.stop(first)
        second = await found.leader()
        assert second != first
        assert (await found.send(second, b"more")).code == ResponseCode.SUCCESS
        shown = found.metrics(second)
        assert (shown["mqtrail_master"], shown["mqtrail_role_changes_total"] >= 1) == (1, True)
        assert shown["mqtrail_ledger_elections_total"] >= 1
        assert shown["mqtrail_ledger_term"] == found.brokers[second].member.member.term
        assert shown["mqtrail_ledger_uncommitted_bytes"] == 0
        assert shown["rocketmq_storage_message_reserve_time_milliseconds"] == 0  # of the first record
        await found.start(first)
        shown = found.metrics(first)
        assert (shown["mqtrail_master"], shown["mqtrail_role_changes_total"]) == (0, 0)
        await found.all_show([*sent, b"more"])
        pulled = await read_all(found.pool, found.address(second), TOPIC, [0])
        assert [one.body for one in pulled] == [*sent, b"more"]
        assert len({found.store(name).committed_offset for name in MEMBERS}) == 1


async def test_without_a_majority_nothing_is_acknowledged_or_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader alone answers with code 1 and steps down; a later leader's messages take the places of what it had.

    What it had is cut off by another thread.
    """
    threads: list[int] = []

    def noted(*given: Any) -> str:
        threads.append(threading.get_ident())
        return copy_tail(*given)

    monkeypatch.setattr(ledger_module, "copy_tail", noted)
    async with group(tmp_path, ledger_timeout_ms=200) as found:
        first = await found.leader()
        assert (await found.send(first, b"kept")).code == ResponseCode.SUCCESS
        await found.all_show([b"kept"])
        others = [name for name in MEMBERS if name != first]
        for name in others:
            await found.brokers[name].member.stop()  # its broker does not know
        reply = await found.send(first, b"lost")
        assert reply.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
        store = found.store(first)
        assert store.max_offset(TOPIC, 0) == 1
        await until(lambda: not found.brokers[first].member.member.is_leader)
        await until(lambda: (core := found.brokers[first].core) is not None and core.config.is_slave)
        assert found.bodies(first) == [b"kept"]
        assert (await found.send(first, b"late")).code == ResponseCode.SYSTEM_BUSY
        written = store.ledger.end_index

        await found.stop(first)
        for name in others:
            await found.stop(name)
        await asyncio.gather(*map(found.start, others))
        second = await found.leader()
        for body in (b"b", b"c"):
            assert (await found.send(second, body)).code == ResponseCode.SUCCESS
        await found.start(first)
        await found.all_show([b"kept", b"b", b"c"])
        assert found.store(first).ledger.end_index >= written
        assert any((tmp_path / first / "truncated").iterdir())
        assert threads
        assert threading.get_ident() not in threads


def cut_off(node: LedgerNode) -> None:
    """Let a member that leads neither hear the others nor be heard, and go on to believe that it leads."""

    async def drop(call: LedgerCommand) -> None:
        await asyncio.sleep(0.01)
        node._core.replied(call.number, None, node.clock())

    node._ask = drop  # type: ignore[method-assign]
    node.admit(lambda ip: False)
    node.member.config = replace(node.member.config, election_ms=600_000)


def connect(node: LedgerNode) -> None:
    """End it."""
    del node._ask
    node.admit(lambda ip: True)
    node.member.config = replace(node.member.config, election_ms=1_500)


async def test_a_deposed_leader_acknowledges_nothing_more(tmp_path: Path) -> None:
    """A send waits at it while another leader's entries take the place of its own, and are committed there. Its broker
    does not stop until then: it may be busy."""
    async with group(tmp_path, ledger_timeout_ms=60_000) as found:
        first = await found.leader()
        assert (await found.send(first, b"kept")).code == ResponseCode.SUCCESS
        await found.all_show([b"kept"])
        node, ledger = found.brokers[first].member, found.store(first).ledger
        cut_off(node)
        waiting = asyncio.create_task(found.send(first, b"lost"))
        await until(lambda: ledger.end_index > ledger.committed_index)
        second = await found.leader(but=first)
        more = [b"%d" % number for number in range(9)]
        for body in more:
            assert (await found.send(second, body)).code == ResponseCode.SUCCESS
        async with found.brokers[first]._changing:
            connect(node)
            await until(lambda: ledger.committed_index == found.store(second).ledger.committed_index)
            assert found.bodies(first) == [b"kept"]
        await found.all_show([b"kept", *more])
        with suppress(NetError):
            assert (await waiting).code != ResponseCode.SUCCESS
        events = await events_of(found, second)
        term = found.brokers[second].member.member.term
        assert ("BECAME_MASTER", second, term, first, term - 1) in [
            (one.event, one.broker_id, one.epoch, one.before_id, one.before_epoch) for one in events
        ]
        (cut,) = [one for one in events if one.event == "TRUNCATED"]
        assert cut.broker_id == first
        assert cut.from_offset is not None
        assert cut.to_offset is not None
        assert cut.from_offset < cut.to_offset


async def events_of(found: LedgerBrokers, leader: str) -> list[BrokerEvent]:
    """Return the events in the trace topic, once the deposed leader has sent those of its log that was cut off."""
    async with asyncio.timeout(60):
        while True:
            messages = await read_all(found.pool, found.brokers[leader].address, TRACE_TOPIC, [0])
            records = [record for message in messages for record in decode_trace(message.body)[0]]
            events = [record for record in records if isinstance(record, BrokerEvent)]
            if any(one.event == "TRUNCATED" for one in events):
                return events
            await asyncio.sleep(0.05)


async def test_a_master_that_cannot_show_its_queues_steps_down(tmp_path: Path) -> None:
    """Another one leads; with no space at any, nobody does, and a stop does not wait for it."""

    def full() -> list[tuple[str, int]]:
        raise StoreFull("found no space, expected some")

    async with group(tmp_path, ledger_timeout_ms=60_000) as found:
        first = await found.leader()
        assert (await found.send(first, b"a")).code == ResponseCode.SUCCESS
        await found.all_show([b"a"])
        vars(found.store(first))["advance"] = full
        waiting = asyncio.create_task(found.send(first, b"b"))
        second = await found.leader(but=first)
        assert (await found.send(second, b"c")).code == ResponseCode.SUCCESS
        with suppress(NetError):
            await waiting
        del vars(found.store(first))["advance"]
        await until(partial(found._has, first, 3))
        for name in MEMBERS:
            vars(found.store(name))["advance"] = full
        await found.stop(second)
        members = [one.member.member for one in found.brokers.values()]
        before = [member._resigned_ms for member in members]
        await until(lambda: [member._resigned_ms for member in members] != before)
        async with asyncio.timeout(20):
            for name in list(found.brokers):
                await found.stop(name)


async def test_a_master_whose_disk_is_full_hands_over(tmp_path: Path) -> None:
    """Sends go on at a member with space. If another disk is full too, the master refuses sends and says why."""
    async with group(tmp_path) as found:
        first = await found.leader()
        assert (await found.send(first, b"a")).code == ResponseCode.SUCCESS
        await found.all_show([b"a"])
        found.store(first)._full = True
        second = await found.leader(but=first)
        assert (await found.send(second, b"b")).code == ResponseCode.SUCCESS
        await found.all_show([b"a", b"b"])
        found.store(first)._full = found.store(second)._full = True
        reply = await found.send(second, b"c")
        assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "full, expected less: free space" in (reply.remark or "")
        found.store(second)._full = False
        assert (await found.send(second, b"d")).code == ResponseCode.SUCCESS
        await found.all_show([b"a", b"b", b"d"])


async def test_held_pulls_and_delays_get_messages_when_they_are_committed(tmp_path: Path) -> None:
    """A pull that waits is answered, and a delayed message is delivered, although both looked before the commit."""
    async with group(tmp_path, message_delay_level="1s 2s") as found:
        first = await found.leader()
        assert (await found.send(first, b"a")).code == ResponseCode.SUCCESS
        waiting = asyncio.create_task(pull_once(found.pool, found.address(first), TOPIC, 0, 1, hold_ms=20_000))
        await until(lambda: (core := found.brokers[first].core) is not None and len(core.held) > 0)
        delayed = send_command(TOPIC, b"delayed")
        delayed.ext["i"] += "DELAY\x011\x02"
        assert (await found.pool.request(found.address(first), delayed, TIMEOUT_MS)).code == ResponseCode.SUCCESS
        reply = await waiting
        assert [one.body for one in decode_records(reply.body)] == [b"delayed"]


async def test_name_servers_know_who_is_master(tmp_path: Path) -> None:
    """The master has id 0, the member nK the id K + 1, and the route follows a change."""
    async with group(tmp_path) as found:
        first = await found.leader()
        await found.send(first, b"a")

        async def addresses() -> dict[int, str]:
            reply = await found.pool.request(found.namesrv_address, RemotingCommand(105, {"topic": TOPIC}), TIMEOUT_MS)
            return dict(TopicRouteData.decode(reply.body).broker_datas[0].broker_addrs) if reply.code == 0 else {}

        def expected(leader: str) -> dict[int, str]:
            slaves = {MEMBERS.index(name) + 1: found.address(name) for name in found.brokers if name != leader}
            return {0: found.address(leader), **slaves}

        async def shows(leader: str) -> None:
            async with asyncio.timeout(60):
                while await addresses() != expected(leader):
                    await asyncio.sleep(0.02)

        await shows(first)
        await found.stop(first)
        await shows(await found.leader())


def test_settings_of_a_member_are_checked(tmp_path: Path) -> None:
    """Each error names the key of broker.conf."""
    peers = "n0-h:1;n1-h:2;n2-h:3"
    right: dict[str, Any] = {"ledger_mode": True, "ledger_peers": peers, "ledger_self_id": "n0"}
    for wrong, text in (
        ({"ledger_self_id": "n7"}, "dLegerSelfId"),
        ({"ledger_peers": "n0-h:1;n1-h:2"}, "expected 1, 3 or 5 different"),
        ({"ledger_peers": "n0"}, "dLegerPeers"),
        ({"ledger_preferred": "n9"}, "preferredLeaderId"),
        ({"ledger_peers": "a-h:1", "ledger_self_id": "a"}, "expected n and a number"),
        ({"controller_mode": True, "controller_addresses": "c:1"}, "enableDLegerCommitLog"),
    ):
        with pytest.raises(InvalidParameter, match=text):
            BrokerConfig(**(right | wrong))
    with pytest.raises(InvalidParameter, match="without a data folder"):
        LedgerBroker(NAME, None, NodeConfig(broker=BrokerConfig(**right)), lambda error: None)
