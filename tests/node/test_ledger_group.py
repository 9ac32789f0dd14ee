"""`mqtrail up --ha 3 --mode dledger`: brokers are killed under load; nothing that was acknowledged is lost, and no
queue ever has an entry of a message that is taken back."""

import shutil
import signal
from pathlib import Path

import pytest

from mqtrail.client import Admin, ClientError
from mqtrail.net import ConnectionPool
from mqtrail.node import GroupMode, GroupNode
from mqtrail.store import RealDisk
from mqtrail.store.dledger import LedgerStore
from mqtrail.wire import InvalidParameter, RemotingCommand, RequestCode, TopicRouteData
from tests.waiting import until

from .helpers import read_all
from .test_failover import NAME, QUEUES, TOPIC, Load
from .test_group_node import config_of, is_back, kill, running

Entries = dict[int, list[tuple[int, int, int]]]


async def master_of(node: GroupNode, pool: ConnectionPool) -> str:
    """Return the address that name servers show as master, "" if there is none."""
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    reply = await pool.request(node.namesrv_address, command, 10_000)
    if reply.code:
        return ""
    (group,) = TopicRouteData.decode(reply.body).broker_datas
    return group.broker_addrs.get(0, "")


def entries_of(folder: Path, number: int) -> Entries:
    """Return the queue entries in a member's folder, as its next start finds them."""
    store = LedgerStore(RealDisk(folder), config_of(folder).store, self_id=f"n{number}", group=NAME)
    try:
        return {queue_id: store.entries(TOPIC, queue_id, 0, 1 << 20) for queue_id in QUEUES}
    finally:
        store.close()


def written_entries(folder: Path) -> Entries:
    """Return the queue entries that are on disk in a copy of the queues alone."""
    found: Entries = {}
    for queue_id in QUEUES:
        data = b"".join(one.read_bytes() for one in sorted((folder / TOPIC / str(queue_id)).glob("*")))
        parts = [data[at : at + 20] for at in range(0, len(data), 20)]
        found[queue_id] = [
            (int.from_bytes(part[:8]), int.from_bytes(part[8:12]), int.from_bytes(part[12:], signed=True))
            for part in parts
            if any(part[8:12])
        ]
    return found


async def hand_over(node: GroupNode, pool: ConnectionPool, load: Load) -> None:
    """Have another broker lead, then a chosen one; the report of the group follows."""
    async with Admin(node.namesrv_address) as admin:
        before = await admin.replica_group(NAME)
        failures = list(load.failures)
        after = await admin.set_master(NAME)
        assert after.master_address == await master_of(node, pool) != before.master_address
        await load.more()
        third = ({1, 2, 3} - {before.master_broker_id, after.master_broker_id}).pop()
        assert (await admin.set_master(NAME, third)).master_broker_id == third
        await load.more()
        assert load.failures == failures
        report = await admin.replicas()
        rows = report.replicas
        assert sorted((one.is_master, one.error) for one in rows) == [(False, None), (False, None), (True, None)]
        ledger = report.ledgers[NAME]
        assert (ledger.leader, ledger.group) == (f"n{third - 1}", NAME)
        assert ledger.term is not None
        assert ledger.term >= 3
        assert all((one.committed_position or 0) > 0 and one.error is None for one in ledger.members)
        with pytest.raises(ClientError, match="found broker 7 to take over"):
            await admin.set_master(NAME, 7)


@pytest.mark.timeout(600)
@pytest.mark.slow
async def test_leaders_may_be_killed(tmp_path: Path) -> None:
    """kill -9 of the master under load, twice, and SIGTERM; before that a hand-over, in which no send fails."""
    copies: list[Path] = []
    async with running(config_of(tmp_path, GroupMode.DLEDGER)) as (node, pool):
        assert set(node.process_ids) == {"namesrv", f"{NAME}-1", f"{NAME}-2", f"{NAME}-3"}
        by_address = {report.address: name for name, report in node.reports.items()}
        async with Load(node.namesrv_address) as load:
            await load.more()
            await hand_over(node, pool, load)
            for number, sent in enumerate((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)):
                await load.more()
                member = by_address[await master_of(node, pool)]
                old = await kill(node, member, sent)
                copies.append(tmp_path / f"copy-{number}")
                if (queues := tmp_path / member / "consumequeue").exists():  # they are written every second
                    shutil.copytree(queues, copies[-1])
                await load.more()
                await is_back(node, member, old)
            await load.more()
        await until(lambda: len(node.process_ids) == 4)
        stored = {one.body for one in await read_all(pool, await master_of(node, pool), TOPIC, QUEUES)}
        assert not set(load.acknowledged) - stored

    found = [entries_of(tmp_path / f"{NAME}-{number + 1}", number) for number in range(3)]
    longest = {queue_id: max((one[queue_id] for one in found), key=len) for queue_id in QUEUES}
    for entries in (*found, *map(written_entries, copies)):
        for queue_id in QUEUES:
            assert entries[queue_id] == longest[queue_id][: len(entries[queue_id])]
    assert len(set(load.acknowledged)) <= sum(map(len, longest.values()))


async def test_a_folder_keeps_its_mode(tmp_path: Path) -> None:
    """A group of another mode, and one that has no majority of its own, are refused before anything starts."""
    (tmp_path / "mqtrail.json").write_text('{"format": 1}')
    (tmp_path / f"{NAME}-1" / "dledger-n0").mkdir(parents=True)
    with pytest.raises(InvalidParameter, match="found brokers of dledger mode"):
        await GroupNode(config_of(tmp_path)).start()
    config = config_of(tmp_path / "other", GroupMode.DLEDGER)
    assert config.group is not None
    object.__setattr__(config.group, "size", 2)
    with pytest.raises(InvalidParameter, match="DLedger group of 2 brokers, expected 3 or 5"):
        await GroupNode(config).start()
