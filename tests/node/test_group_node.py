"""A group on one machine, `mqtrail up --ha`: any member is killed, sends go on, the member is started again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mqtrail.broker import IDENTITY_FILE, BrokerConfig
from mqtrail.client import Admin, ClientError, Credentials, InstanceConfig
from mqtrail.net import ConnectionPool, NetError
from mqtrail.node import GroupConfig, GroupMode, GroupNode, NodeConfig, WorkerEnded
from mqtrail.node.group_node import RESTART_MAX_S, RESTART_S, STEADY_S, LocalMember
from mqtrail.node.worker_process import WorkerProcess
from mqtrail.store import CommitLogConfig
from mqtrail.wire import ElectMasterHeader, InvalidParameter, RemotingCommand, RequestCode, ResponseCode
from tests.waiting import until

from .helpers import read_all, send_command
from .test_failover import DEADLINE_S, QUEUES, TOPIC, Load, whole

GROUP = pytest.mark.timeout(600)


def config_of(folder: Path, mode: GroupMode = GroupMode.CONTROLLER) -> NodeConfig:
    group = GroupConfig(size=3, mode=mode, controller_port=0)
    ports: dict[str, Any] = {"namesrv_port": 0, "broker_port": 0}
    store = CommitLogConfig(segment_size=1 << 24)
    return NodeConfig(data=folder, group=group, store=store, broker=BrokerConfig(all_in_sync=True), **ports)


@asynccontextmanager
async def running(config: NodeConfig) -> AsyncIterator[tuple[GroupNode, ConnectionPool]]:
    node, pool = GroupNode(config), ConnectionPool()
    await node.start()
    try:
        yield node, pool
    finally:
        await pool.close()
        await node.stop()


async def kill(node: GroupNode, member: str, number: signal.Signals = signal.SIGKILL) -> int:
    """Kill a member and wait until its process is gone; return its process id."""
    process_id = node.process_ids[member]
    os.kill(process_id, number)
    await until(lambda: node.process_ids.get(member) != process_id)
    return process_id


async def is_back(node: GroupNode, member: str, old: int) -> None:
    """Wait until another process of the member runs."""
    await until(lambda: node.process_ids.get(member, old) != old)


async def leader(node: GroupNode, pool: ConnectionPool) -> str:
    """Return the member that is the leading controller."""
    command = RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for address in node.controller_addresses:
                with suppress(NetError):
                    reply = await pool.request(address, command, 10_000)
                    if (found := reply.ext.get("controllerLeaderId")) is not None:
                        return f"controller-{found}"
            await asyncio.sleep(0.05)


async def stored_bodies(node: GroupNode, pool: ConnectionPool) -> set[bytes]:
    """Return what the master has. The controllers may know the last start's address at first."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            master = await whole(pool, node.controller_addresses)
            if master in node.broker_addresses:
                with suppress(NetError):  # the broker became master just now
                    return {one.body for one in await read_all(pool, master, TOPIC, QUEUES)}
            await asyncio.sleep(0.05)


async def hand_over(node: GroupNode, pool: ConnectionPool, load: Load) -> None:
    """Change the master twice, the second time to a chosen one: no send fails."""
    async with Admin(node.namesrv_address) as admin:
        master = await whole(pool, node.controller_addresses)
        failures = list(load.failures)
        found = await admin.set_master("broker-a")
        assert found.master_address != master
        await load.more()
        assert found.master_broker_id is not None
        other = found.master_broker_id % 3 + 1
        assert (await admin.set_master("broker-a", other)).master_broker_id == other
        await load.more()
        assert load.failures == failures
        with pytest.raises(ClientError, match=f"found broker {other} to take over"):
            await admin.set_master("broker-a", other)


@GROUP
@pytest.mark.slow
async def test_any_member_may_be_killed(tmp_path: Path) -> None:
    """Master, slave, leading controller, name server: sends go on, and no acknowledged message is missing, also after
    hand-overs, and a stop and a start of all."""
    async with running(config_of(tmp_path)) as (node, pool):
        members = node.process_ids
        assert len({*members.values(), os.getpid()}) == 1 + 3 + 3 + 1
        by_address = {report.address: name for name, report in node.reports.items()}
        async with Load(node.namesrv_address) as load:
            await load.more()
            await hand_over(node, pool, load)
            for choose in ("master", "slave", "controller", "namesrv"):
                await load.more()
                master = by_address[await whole(pool, node.controller_addresses)]
                member = {
                    "master": master,
                    "slave": next(name for name in node.reports if name != master),
                    "controller": await leader(node, pool),
                    "namesrv": "namesrv",
                }[choose]
                old = await kill(node, member)
                await load.more()
                await is_back(node, member, old)
        assert {report.address: name for name, report in node.reports.items()} == by_address
        assert node.failure is None
    async with running(config_of(tmp_path)) as (node, pool):
        assert not set(load.acknowledged) - await stored_bodies(node, pool)


@GROUP
@pytest.mark.slow
async def test_a_group_with_access_control(tmp_path: Path) -> None:
    """Brokers and controllers know each other without a setting; strangers change nothing, an operator does."""
    plain = config_of(tmp_path)
    broker = replace(
        plain.broker, authentication=True, authorization=True, init_user='{"username":"root","password":"rootpass"}'
    )
    async with running(replace(plain, broker=broker)) as (node, stranger):
        master = await whole(stranger, node.controller_addresses)
        addresses = node.controller_addresses
        header = ElectMasterHeader("DefaultCluster", "broker-a", 2, True).to_ext()
        for address in addresses:
            reply = await stranger.request(
                address, RemotingCommand(RequestCode.CONTROLLER_ELECT_MASTER, header), 10_000
            )
            assert reply.code == ResponseCode.NO_PERMISSION
        root = InstanceConfig(credentials=Credentials(access_key="root", secret_key="rootpass"))
        async with Admin(node.namesrv_address, config=root) as admin:
            assert (await admin.set_master("broker-a")).master_address != master


@GROUP
@pytest.mark.slow
async def test_classic_mode_waits_for_its_master(tmp_path: Path) -> None:
    """Sends go on without a slave; without the master they wait until it is started again, and nothing is missing."""
    async with running(config_of(tmp_path, GroupMode.CLASSIC)) as (node, pool):
        assert node.controller_addresses == ()
        async with Load(node.namesrv_address) as load:
            for member in ("broker-a-2", "broker-a-1"):
                await load.more()
                old = await kill(node, member)
                await is_back(node, member, old)
                await load.more()
        stored = {one.body for one in await read_all(pool, node.broker_addresses[0], TOPIC, QUEUES)}
        assert not set(load.acknowledged) - stored


@GROUP
@pytest.mark.slow
async def test_a_member_that_fails_is_left(tmp_path: Path) -> None:
    """Its folder became that of another broker: a person must mend that. The others go on; a stopped one is started."""
    with capture_logs() as logs:
        async with running(config_of(tmp_path)) as (node, pool):
            master = await whole(pool, node.controller_addresses)
            assert node.reports["broker-a-1"].address == master
            (tmp_path / "broker-a-3" / IDENTITY_FILE).write_text("other#broker-a#3")
            await kill(node, "broker-a-3")
            await until(lambda: node.failure is not None)
            old = await kill(node, "broker-a-2", signal.SIGTERM)
            await is_back(node, "broker-a-2", old)
            async with asyncio.timeout(DEADLINE_S):
                while (await pool.request(master, send_command(TOPIC, b"x"), 30_000)).code != 0:
                    await asyncio.sleep(0.1)
            assert isinstance(node.failure, WorkerEnded)
            assert "broker-a-3" not in node.process_ids
            assert not node.failed.is_set()
    (failed,) = [entry for entry in logs if entry["event"] == "member.failed"]
    assert failed["member"] == "broker-a-3"
    assert "found the identity of broker-a of other" in failed["found"]


async def test_pauses_grow_while_a_member_ends_soon() -> None:
    """Twice as long each time, up to a limit; one that ran for long starts soon."""
    member = LocalMember(WorkerProcess("broker x"), lambda: pytest.fail("it is not started"))
    pauses = [member.next_pause_s(1.0) for _ in range(8)]
    assert pauses[:3] == [RESTART_S, 2 * RESTART_S, 4 * RESTART_S]
    assert pauses[-1] == RESTART_MAX_S
    assert member.next_pause_s(STEADY_S) == RESTART_S


@pytest.mark.parametrize("found", list(GroupMode))
async def test_a_group_keeps_its_mode(found: GroupMode, tmp_path: Path) -> None:
    """The logs of the modes may differ at their ends: the start names both, and changes nothing."""
    log = "dledger-n0" if found is GroupMode.DLEDGER else "commitlog"
    (tmp_path / "broker-a-1" / log).mkdir(parents=True)
    if found is GroupMode.CONTROLLER:
        (tmp_path / "broker-a-1" / IDENTITY_FILE).write_text("DefaultCluster#broker-a#1")
    for other in set(GroupMode) - {found}:
        with pytest.raises(InvalidParameter, match=f"found brokers of {found.value} mode .* pass --mode {found.value}"):
            await GroupNode(config_of(tmp_path, other)).start()


async def test_a_group_needs_a_folder_and_one_name() -> None:
    """In memory there is no identity to keep, and a group has one name."""
    group = GroupConfig(size=3)
    for wrong in (NodeConfig(group=group), NodeConfig(data=Path("x"), broker_names=("a", "b"), group=group)):
        with pytest.raises(InvalidParameter, match="found no group"):
            GroupNode(wrong)
