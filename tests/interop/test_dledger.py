"""A log of ours as member of a DLedger group of Apache's brokers: it follows, votes, leads and hands over."""

import asyncio
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from interop.apache import ApacheLedgerBroker, ApacheNameServer, free_port
from interop.probe import request, wait_until
from tests.sim.ledger_group import propose, record

from mqtrail.broker import BrokerConfig
from mqtrail.client import ProducerConfig
from mqtrail.client.sync import SyncProducer
from mqtrail.node import LedgerNode, NodeConfig
from mqtrail.node.ledger_broker import LedgerBroker
from mqtrail.raft.dledger import LedgerConfig
from mqtrail.store import CommitLogConfig, RealDisk
from mqtrail.store.dledger import LedgerLog, LedgerStore
from mqtrail.wire import (
    ClusterInfo,
    LedgerCode,
    LedgerTransfer,
    LedgerTransferReply,
    Message,
    MessageSysFlag,
    RequestCode,
    check_record,
    decode_ledger_reply,
    decode_records,
)

from .replicating import killed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(500)]

SEGMENT_SIZE = 64 << 10
TOPIC = "LedgerTopic"
GROUP = "broker-a"
WAIT_S = 120.0
Probe = Callable[[], bool]


async def until(condition: Probe, what: str) -> None:
    """Wait for a condition without stopping our member."""
    await asyncio.to_thread(wait_until, condition, what, WAIT_S)


def leader_of(namesrv: str) -> str:
    """Return the address of the broker that leads, as the routes say; empty: there is none."""
    table = ClusterInfo.decode(request(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)[1]).broker_addr_table
    return table[GROUP].broker_addrs.get(0, "") if GROUP in table else ""


def brokers_of(namesrv: str) -> set[str]:
    table = ClusterInfo.decode(request(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)[1]).broker_addr_table
    return set(table[GROUP].broker_addrs.values()) if GROUP in table else set()


def send(namesrv: str, first: int, count: int, size: int = 2_000) -> None:
    with SyncProducer("LedgerProducer", namesrv, config=ProducerConfig(send_timeout_ms=60_000)) as producer:
        for number in range(first, first + count):
            producer.send(Message(TOPIC, f"{number}-".encode() + b"x" * size))


def data_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "data").iterdir()))


def texts_of(log: LedgerLog) -> set[str]:
    """The numbers of all messages of the topic in the log."""
    found = set()
    for index in range(log.end_index + 1):
        entry = log.entry(index)
        assert entry is not None
        head = check_record(entry.body)
        if head.topic == TOPIC:
            body = entry.body[head.body_start : head.body_end]
            text = zlib.decompress(body) if head.sys_flag & MessageSysFlag.COMPRESSED else body
            found.add(text.partition(b"-")[0].decode())
    return found


class Mixed:
    """Two of Apache's members, n0 and n1, and ours, n2."""

    def __init__(self, folder: Path, version: str) -> None:
        self.namesrv = ApacheNameServer(version, folder / "namesrv").start()
        self.ports = {name: free_port() for name in ("n0", "n1", "n2")}
        self.addresses = addresses = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        self.properties = properties = {"mappedFileSizeCommitLog": str(SEGMENT_SIZE)}
        self.brokers = {
            name: ApacheLedgerBroker(
                version, folder / name, self.namesrv.address, name, addresses, properties=properties
            )
            for name in ("n0", "n1")
        }
        self.folder = folder / "ours" / "dledger-n2"
        self.log = self.open_log()

    def open_log(self) -> LedgerLog:
        """Open our member's log, and make the member."""
        log = LedgerLog(RealDisk(self.folder.parent), "n2", segment_size=SEGMENT_SIZE)
        config = LedgerConfig(self_id="n2", members=tuple(self.addresses), group=GROUP)
        self._ours = LedgerNode(config, self.addresses, log, lambda at: record(at, ""))
        return log

    @property
    def ours(self) -> LedgerNode:
        """Our member."""
        return self._ours

    def in_our_place(self) -> ApacheLedgerBroker:
        """Return Apache's member n2, on the folder of ours."""
        return ApacheLedgerBroker(
            self.namesrv.version,
            self.folder.parents[1] / "n2",
            self.namesrv.address,
            "n2",
            self.addresses,
            properties=self.properties,
            store=self.folder.parent,
        )

    def name_of(self, address: str) -> str:
        return next((name for name, broker in self.brokers.items() if broker.address == address), "")

    async def apache_leads(self, *, but: str = "") -> str:
        """Wait until a broker leads; ours hands over if it was elected."""
        found = ""

        def leads() -> bool:
            nonlocal found
            found = self.name_of(leader_of(self.namesrv.address))
            return found not in ("", but) or self.ours.member.is_ready

        while found in ("", but):
            await until(leads, "a leader")
            if self.ours.member.is_ready and found in ("", but):
                await self.hand_over("n2", "n1" if but == "n0" else "n0")
        return found

    async def hand_over(self, leader: str, target: str) -> None:
        """Ask the leader as an operator does."""

        def ask() -> bool:
            transfer = LedgerTransfer(
                group=GROUP, remote_id=leader, transfer_id=leader, transferee_id=target, term=self.ours.member.term
            )
            address = f"127.0.0.1:{self.ports[leader]}"
            _, body = request(address, LedgerCode.LEADERSHIP_TRANSFER, body=transfer.encode(), timeout_s=10)
            reply = decode_ledger_reply(LedgerCode.LEADERSHIP_TRANSFER, body)
            assert isinstance(reply, LedgerTransferReply)
            return reply.code == 200 or self.ours.member.leader == target

        await until(ask, f"{target} leads instead of {leader}")

    async def equal(self, *names: str) -> None:
        """Wait until all that ours has is committed, and these brokers have the same bytes."""

        def is_equal() -> bool:
            end = self.log.end_position
            mine = data_of(self.folder)[:end]
            return self.log.committed_index == self.log.end_index and all(
                data_of(self.brokers[name].ledger)[:end] == mine for name in names
            )

        await until(is_equal, "equal bytes")


class MixedBrokers(Mixed):
    """The same with a whole broker of ours."""

    def open_log(self) -> LedgerLog:
        peers = ";".join(f"{name}-{address}" for name, address in self.addresses.items())
        config = NodeConfig(
            broker=BrokerConfig(ledger_mode=True, ledger_peers=peers, ledger_self_id="n2", ledger_group=GROUP),
            store=CommitLogConfig(segment_size=SEGMENT_SIZE, message_size_max=8 * 1024),
            fast_port=False,
        )
        self.failures: list[BaseException] = []
        self.broker = LedgerBroker(GROUP, self.folder.parent, config, self.failures.append)
        self.broker.bind("127.0.0.1", free_port(), "127.0.0.1")
        return self.store.ledger

    @property
    def ours(self) -> LedgerNode:
        return self.broker.member

    @property
    def store(self) -> LedgerStore:
        store = self.broker.store
        assert isinstance(store, LedgerStore)
        return store

    def shown(self) -> list[str]:
        """The numbers of the messages in our queues, each as often as it is there."""
        found: list[str] = []
        for queue_id in self.store.queue_ids(TOPIC):
            at = 0
            while at < self.store.max_offset(TOPIC, queue_id):
                result = self.store.read(TOPIC, queue_id, at, 32, 1 << 20)
                bodies = [one.body for one in decode_records(b"".join(result.records))]
                found += [body.partition(b"-")[0].decode() for body in bodies]
                at = result.next_queue_offset
        return sorted(found, key=int)


@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
async def test_our_member_in_a_group_of_apaches(tmp_path: Path, version: str) -> None:
    """It follows; elects when the leader is killed; leads Apache's members after a hand-over; hands back."""
    mixed = Mixed(tmp_path, version)
    namesrv = mixed.namesrv.address
    with killed(*mixed.brokers.values(), mixed.namesrv):
        try:
            for broker in mixed.brokers.values():
                broker.launch()
            await mixed.ours.start()
            first = await mixed.apache_leads()
            await asyncio.to_thread(send, namesrv, 0, 40)
            await mixed.equal("n0", "n1")
            assert len(list((mixed.folder / "data").iterdir())) >= 1

            mixed.brokers[first].kill()
            second = await mixed.apache_leads(but=first)
            await asyncio.to_thread(send, namesrv, 40, 20)
            await mixed.equal(second)
            mixed.brokers[first].launch()
            await mixed.equal("n0", "n1")

            await mixed.hand_over(second, "n2")
            await until(lambda: mixed.ours.member.is_ready, "our member leads")
            for number in range(60, 80):
                propose(mixed.ours.member, partial(record, text=f"{number}-", topic=TOPIC))
            mixed.ours.advance()
            await mixed.equal("n0", "n1")

            await mixed.hand_over("n2", first)
            assert await mixed.apache_leads() == first
            await asyncio.to_thread(send, namesrv, 80, 5)
            await mixed.equal("n0", "n1")
        finally:
            await mixed.ours.stop()
            mixed.log.close(mixed.log.committed_index)

        third = mixed.in_our_place()
        with killed(third):
            third.launch()
            await until(
                lambda: data_of(third.ledger) == data_of(mixed.brokers[first].ledger), "Apache's member on our log"
            )
            await until(lambda: third.address in brokers_of(namesrv), "the third broker")
            await asyncio.to_thread(send, namesrv, 85, 5)
            await until(lambda: data_of(third.ledger) == data_of(mixed.brokers[first].ledger), "equal bytes")
        log = LedgerLog(RealDisk(tmp_path / "ours"), "n2", segment_size=SEGMENT_SIZE)
        assert texts_of(log) == {str(number) for number in range(90)}
        log.abandon()


async def test_a_killed_member_of_5_3_3_leads(tmp_path: Path) -> None:
    """It lacks queue entries and gives their queue offsets again; our broker shows every message."""
    mixed = MixedBrokers(tmp_path, "5.3.3")
    namesrv = mixed.namesrv.address
    with killed(*mixed.brokers.values(), mixed.namesrv):
        try:
            for broker in mixed.brokers.values():
                broker.launch()
            await mixed.broker.start([namesrv])
            first = await mixed.apache_leads()
            await asyncio.to_thread(send, namesrv, 0, 100, 10)
            await mixed.equal("n0", "n1")
            note = f"committedIndex={mixed.log.committed_index}"
            checkpoint = mixed.brokers[first].ledger / "checkpoint"
            await until(lambda: note in checkpoint.read_text().split(), "the leader's checkpoint")
            mixed.brokers[first].kill()
            second = await mixed.apache_leads(but=first)
            mixed.brokers[first].launch()
            await mixed.equal("n0", "n1")
            await mixed.hand_over(second, first)
            assert await mixed.apache_leads(but=second) == first
            await asyncio.to_thread(send, namesrv, 100, 40, 10)
            await mixed.equal("n0", "n1")
            await mixed.hand_over(first, "n2")
            await until(lambda: leader_of(namesrv) == mixed.broker.address, "our broker in the route as master")
            await asyncio.to_thread(send, namesrv, 140, 10, 10)
            assert set(mixed.shown()) == {str(number) for number in range(150)}
            assert mixed.failures == []
        finally:
            await mixed.broker.stop()


async def test_our_broker_in_a_group_of_apaches(tmp_path: Path) -> None:
    """Its queues have what Apache's leaders commit, also one that is killed; it leads, serves sends, and hands back."""
    mixed = MixedBrokers(tmp_path, "5.3.3")
    namesrv = mixed.namesrv.address
    with killed(*mixed.brokers.values(), mixed.namesrv):
        try:
            for broker in mixed.brokers.values():
                broker.launch()
            await mixed.broker.start([namesrv])
            first = await mixed.apache_leads()
            await asyncio.to_thread(send, namesrv, 0, 20)
            await until(lambda: mixed.shown() == [str(number) for number in range(20)], "our queues")

            mixed.brokers[first].kill()
            second = await mixed.apache_leads(but=first)
            await asyncio.to_thread(send, namesrv, 20, 10)
            await until(lambda: mixed.shown() == [str(number) for number in range(30)], "our queues")
            mixed.brokers[first].launch()
            await mixed.equal("n0", "n1")

            await mixed.hand_over(second, "n2")
            await until(lambda: leader_of(namesrv) == mixed.broker.address, "our broker in the route as master")
            await asyncio.to_thread(send, namesrv, 30, 10)
            assert mixed.shown() == [str(number) for number in range(40)]
            await mixed.hand_over("n2", first)
            assert await mixed.apache_leads() == first
            await asyncio.to_thread(send, namesrv, 40, 5)
            await until(lambda: mixed.shown() == [str(number) for number in range(45)], "our queues")
            await mixed.equal("n0", "n1")
            assert mixed.failures == []
        finally:
            await mixed.broker.stop()
