"""A master and its slave on real sockets."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.client import Admin, Credentials, InstanceConfig
from mqtrail.net import ConnectionPool
from mqtrail.node import Node, NodeConfig
from mqtrail.store import CommitLogConfig, MessageStore
from mqtrail.wire import (
    TRACE_TOPIC,
    BrokerEvent,
    InvalidParameter,
    PullHeader,
    PullSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    TopicConfig,
    decode_record,
    decode_records,
    decode_trace,
)
from tests.waiting import until

from .helpers import broker_of

STORE = CommitLogConfig(segment_size=1 << 20, message_size_max=100_000)
MASTER = NodeConfig(
    namesrv_port=0,
    broker_port=0,
    broker=BrokerConfig(broker_role="ASYNC_MASTER", broker_events=False),  # tests count the bytes of the log
    store=STORE,
    ha_port=0,
)
DEADLINE_S = 60.0


def slave_of(namesrv: str, broker_id: int = 1, **broker: Any) -> NodeConfig:
    config = BrokerConfig(
        broker_role="SLAVE", broker_id=broker_id, register_ms=200, **{"broker_events": False, **broker}
    )
    return replace(MASTER, namesrv_port=None, namesrv_addresses=(namesrv,), broker=config)


@asynccontextmanager
async def running(config: NodeConfig) -> AsyncIterator[Node]:
    node = Node(config)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def store_of(node: Node) -> MessageStore:
    store = node.brokers["broker-a"].store
    assert store is not None
    return store


async def send(address: str, count: int, body: bytes = b"hello", properties: str = "") -> list[int]:
    """Send messages; return the codes of the answers."""
    pool = ConnectionPool()
    header = SendMessageHeader("producers", "orders", "TBW102", 4, 0, 0, 1, 0, properties)
    try:
        replies = [
            await pool.request(address, RemotingCommand(RequestCode.SEND_MESSAGE, header.to_ext(), body), 5_000)
            for _ in range(count)
        ]
    finally:
        await pool.close()
    return [reply.code for reply in replies]


def log_of(store: MessageStore) -> bytes:
    found, at = b"", store.min_physical_offset
    while part := store.log_bytes(at + len(found), 1 << 20):
        found += part
    return found


async def test_a_slave_follows(tmp_path: Path) -> None:
    """It learns the master from the name server, has the same bytes and queues, and goes on after a restart."""
    async with running(MASTER) as master:
        address = master.broker_addresses[0]
        assert await send(address, 3) == [0, 0, 0]
        for turn in range(2):
            config = replace(slave_of(master.namesrv_address), data=tmp_path)
            async with running(config) as slave:
                await send(address, 100, bytes(20_000))
                await until(lambda: store_of(slave).end_offset == store_of(master).end_offset)
                assert log_of(store_of(slave)) == log_of(store_of(master))
                assert store_of(slave).max_offset("orders", 0) == 3 + 100 * (turn + 1)
                core = master.brokers["broker-a"].core
                assert core is not None
                assert len(core.replicas) == 1


async def test_a_slave_stores_nothing_itself() -> None:
    """Sends and, without slaveReadEnable, pulls are refused with the code of 5.3.3."""
    async with running(MASTER) as master, running(slave_of(master.namesrv_address)) as slave:
        assert await send(slave.broker_addresses[0], 1) == [ResponseCode.SYSTEM_BUSY]
        assert store_of(slave).end_offset == 0
        pool = ConnectionPool()
        reply = await pool.request(slave.broker_addresses[0], RemotingCommand(RequestCode.PULL_MESSAGE), 5_000)
        assert (reply.code, "slaveReadEnable" in (reply.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
        await pool.close()


def events_in(store: MessageStore) -> list[tuple[str | None, str | None, str | None]]:
    """Event, broker id and address of each BrokerEvent in the log."""
    found = []
    for message in decode_records(log_of(store)):
        if message.topic == TRACE_TOPIC:
            records, rejects = decode_trace(message.body)
            assert rejects == []
            found += [(one.event, one.broker_id, one.address) for one in records if isinstance(one, BrokerEvent)]
    return found


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_slave_sends_its_events_to_its_master(is_guarded: bool) -> None:
    """Both are in the trace topic of the master, also where brokers sign their requests to each other."""
    accounts: dict[str, Any] = {"broker_events": True}
    if is_guarded:
        accounts |= {
            "authentication": True,
            "authorization": True,
            "init_user": '{"username":"root","password":"rootpass"}',
            "inner_credentials": '{"accessKey":"inner-broker","secretKey":"inner-secret"}',
        }
    config = replace(MASTER, broker=replace(MASTER.broker, **accounts))
    async with running(config) as master, running(slave_of(master.namesrv_address, **accounts)) as slave:
        await until(lambda: len(events_in(store_of(master))) == 4)
        first, second = master.broker_addresses[0], slave.broker_addresses[0]
        assert events_in(store_of(master)) == [
            ("STARTED", "0", first),
            ("BECAME_MASTER", "0", first),
            ("STARTED", "1", second),
            ("BECAME_SLAVE", "1", second),
        ]
        await until(lambda: store_of(slave).end_offset == store_of(master).end_offset)
        core = slave.brokers["broker-a"].core
        assert core is not None
        assert core.events is not None
        assert len(core.events) == 0


async def test_users_are_changed_on_slaves_too() -> None:
    """A slave does not copy users from its master: a deleted user could still read there."""
    accounts: dict[str, Any] = {
        "authentication": True,
        "authorization": True,
        "init_user": '{"username":"root","password":"rootpass"}',
        "inner_credentials": '{"accessKey":"inner-broker","secretKey":"inner-secret"}',
    }
    root = InstanceConfig(credentials=Credentials(access_key="root", secret_key="rootpass"))
    guarded = replace(MASTER, broker=replace(MASTER.broker, **accounts))
    async with (
        running(guarded) as master,
        running(slave_of(master.namesrv_address, **accounts)) as slave,
        Admin(master.namesrv_address, config=root) as admin,
    ):
        tables = [core.access.auth for node in (master, slave) if (core := broker_of(node).core) is not None]
        name = f"broker-a ({slave.broker_addresses[0]})"
        assert set((await admin.create_user("ann", "first-pass")).found) == {"broker-a", name}
        assert (await admin.create_acl("User:ann", ["Topic:orders"], ["Sub"], broker="broker-a")).complete
        assert ["User:ann" in table.acls for table in tables] == [True, True]
        only = await admin.update_user("ann", password="second-pass", broker=slave.broker_addresses[0])
        assert tuple(only.found) == slave.broker_addresses
        assert [table.users["ann"].password for table in tables] == ["first-pass", "second-pass"]
        assert (await admin.delete_user("ann")).complete
        assert not any("ann" in table.users for table in tables)


async def test_two_slaves_with_one_id() -> None:
    """The second one does not start: they would replace each other in the routes."""
    async with running(MASTER) as master, running(slave_of(master.namesrv_address)):
        with pytest.raises(InvalidParameter, match=r"with id 1 .*brokerId"):
            async with running(slave_of(master.namesrv_address)):
                pass
        async with running(slave_of(master.namesrv_address, broker_id=2)):
            pass


async def test_a_slave_with_more_than_its_master(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The master refuses it and says why; the slave keeps what it has."""
    async with running(replace(MASTER, data=tmp_path)) as other:
        await send(other.broker_addresses[0], 10)
        end_offset = store_of(other).end_offset
    async with running(MASTER) as master:
        await send(master.broker_addresses[0], 1)
        async with running(replace(slave_of(master.namesrv_address), data=tmp_path)) as slave:
            errors = ""

            def is_refused() -> bool:
                nonlocal errors
                errors += capsys.readouterr().err
                return "slave_refused" in errors and "not_following" in errors

            await until(is_refused)
            assert f"physical offset {end_offset}" in errors
            assert store_of(slave).end_offset == end_offset


async def test_the_ha_port_is_spoken_to_by_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    """It gets nothing, and the log shows its first bytes."""
    async with running(MASTER) as master:
        await send(master.broker_addresses[0], 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker_of(master).ha_port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        assert "GET / HTTP" in capsys.readouterr().err


async def test_a_broker_without_a_role_has_no_ha_port() -> None:
    """Its log cannot be copied: the port would have no access control."""
    async with running(replace(MASTER, broker=BrokerConfig(), ha_port=None)) as master:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", broker_of(master).ha_port)


def sync_master(**broker: Any) -> NodeConfig:
    return replace(MASTER, broker=BrokerConfig(broker_role="SYNC_MASTER", **broker))


async def test_a_sync_master_without_a_slave() -> None:
    """By 4.9's rule the message is stored and the answer is 11 at once; by that of 5.x it is 12 after slaveTimeout."""
    async with running(sync_master()) as master:
        assert await send(master.broker_addresses[0], 2) == [ResponseCode.SLAVE_NOT_AVAILABLE] * 2
        assert store_of(master).max_offset("orders", 0) == 2
    async with running(sync_master(in_sync_replicas=2, slave_timeout_ms=50)) as master:
        assert await send(master.broker_addresses[0], 1) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    async with running(sync_master(in_sync_replicas=1)) as master:
        assert await send(master.broker_addresses[0], 1) == [ResponseCode.SUCCESS]


@pytest.mark.parametrize("sync_flush", [False, True])
async def test_a_sync_master_acknowledges_what_its_slave_has(sync_flush: bool) -> None:
    """When the answer of a send arrives, its record is in the slave's log, with SYNC_FLUSH on its disk."""
    async with running(sync_master(sync_flush=sync_flush)) as master:
        core = master.brokers["broker-a"].core
        assert core is not None
        async with running(slave_of(master.namesrv_address, sync_flush=sync_flush)) as slave:
            await until(lambda: not core.replicas.is_missing)
            for _ in range(20):
                assert await send(master.broker_addresses[0], 1) == [ResponseCode.SUCCESS]
                assert store_of(slave).end_offset == store_of(master).end_offset
                if sync_flush:
                    assert store_of(slave).flushed_offset == store_of(master).end_offset
        await until(lambda: core.replicas.is_missing)
        assert await send(master.broker_addresses[0], 1) == [ResponseCode.SLAVE_NOT_AVAILABLE]


async def ask(address: str, code: RequestCode, body: bytes = b"", **ext: object) -> RemotingCommand:
    pool = ConnectionPool()
    try:
        fields = {name: str(value) for name, value in ext.items()}
        reply = await pool.request(address, RemotingCommand(code, fields, body), 5_000)
    finally:
        await pool.close()
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return reply


def core_of(node: Node) -> Broker:
    core = node.brokers["broker-a"].core
    assert core is not None
    return core


async def commit(address: str, offset: int) -> None:
    await ask(
        address, RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="buyers", topic="orders", queueId=0,
        commitOffset=offset,
    )  # fmt: skip


async def test_a_slave_has_the_masters_tables(tmp_path: Path) -> None:
    """Topics, groups, request modes, offsets; what the master deletes goes, and all survives a restart alone."""
    config = replace(MASTER, broker=replace(MASTER.broker, auto_create_group=True))
    async with running(config) as master:
        address = master.broker_addresses[0]
        await send(address, 5)
        group = b'{"groupName":"buyers","retryMaxTimes":7}'
        await ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
        mode = b'{"topic":"orders","consumerGroup":"buyers","mode":"POP","popShareQueueNum":3}'
        await ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, mode)
        await commit(address, 3)
        namesrv = master.namesrv_address
        slave_config = replace(slave_of(namesrv), data=tmp_path)
        async with running(slave_config) as slave:
            core, origin = core_of(slave), core_of(master)
            await until(lambda: core.offsets.get("buyers", "orders", 0) == 3)
            assert core.topics.all() == origin.topics.all()
            assert core.topics.data_version == origin.topics.data_version
            assert core.groups.all() == origin.groups.all()
            assert core.pop.assignments.mode("orders", "buyers").pop_share_queue_num == 3
            await ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
            copier = broker_of(slave).table_copier
            assert copier is not None
            await copier.copy()
            assert core.topics.get("orders") is None
    promoted = replace(MASTER, data=tmp_path)
    async with running(promoted) as alone:
        group_config = core_of(alone).groups.get("buyers")
        assert group_config is not None
        assert group_config.retry_max_times == 7


async def test_offsets_committed_at_the_slave_stay(tmp_path: Path) -> None:
    """Until the master's own offset changes: consumers went on at the slave while the master was gone."""
    async with running(MASTER) as master:
        await send(master.broker_addresses[0], 9)
        await ask(
            master.broker_addresses[0], RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"buyers"}'
        )
        await commit(master.broker_addresses[0], 3)
        async with running(slave_of(master.namesrv_address)) as slave:
            core, copier = core_of(slave), broker_of(slave).table_copier
            assert copier is not None
            await until(lambda: core.offsets.get("buyers", "orders", 0) == 3)
            await commit(slave.broker_addresses[0], 8)
            await copier.copy()
            assert core.offsets.get("buyers", "orders", 0) == 8
            await commit(master.broker_addresses[0], 5)
            await copier.copy()
            assert core.offsets.get("buyers", "orders", 0) == 5


@pytest.mark.slow
async def test_a_promoted_slave_delivers_what_waited_and_nothing_twice(tmp_path: Path) -> None:
    """Delay levels and timers: what the master delivered before stays delivered, the rest is delivered by the slave."""
    delays = replace(MASTER.broker, message_delay_level="1s 3s")
    soon = ("DELAY\x011\x02", "TIMER_DELAY_MS\x011000\x02")
    later = ("DELAY\x012\x02", "TIMER_DELAY_MS\x013000\x02")
    async with running(replace(MASTER, broker=delays)) as master:
        address = master.broker_addresses[0]
        for number, properties in enumerate(soon):
            assert await send(address, 1, b"delivered %d" % number, properties) == [0]
        await until(lambda: store_of(master).max_offset("orders", 0) == 2)
        for number, properties in enumerate(later):
            assert await send(address, 1, b"waiting %d" % number, properties) == [0]
        config = slave_of(master.namesrv_address, message_delay_level="1s 3s")
        async with running(replace(config, data=tmp_path)) as slave:
            core = core_of(slave)
            await until(lambda: bool(core.delays.offsets().offset_table))
            await until(lambda: core.store.timers.checkpoint is not None)
            assert store_of(slave).max_offset("orders", 0) == 2
    async with running(replace(MASTER, broker=delays, data=tmp_path)) as promoted:
        await until(lambda: store_of(promoted).max_offset("orders", 0) >= 4)
        for number, properties in enumerate(soon):
            assert await send(promoted.broker_addresses[0], 1, b"new %d" % number, properties) == [0]
        await until(lambda: store_of(promoted).max_offset("orders", 0) >= 6)
        found = store_of(promoted).read("orders", 0, 0, 32, 1 << 20).records
        kinds = ("delivered", "waiting", "new")
        assert sorted(decode_record(bytes(one))[0].body for one in found) == sorted(
            f"{kind} {number}".encode() for kind in kinds for number in range(2)
        )


PULLED = PullSysFlag.SUBSCRIPTION


async def pull(address: str, offset: int, *, hold_ms: int = 0) -> RemotingCommand:
    flags = PULLED | (PullSysFlag.SUSPEND if hold_ms else 0)
    header = PullHeader("buyers", "orders", 0, offset, 32, flags, 0, hold_ms, "*", 0, "TAG")
    pool = ConnectionPool()
    try:
        return await pool.request(address, RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext()), 10_000)
    finally:
        await pool.close()


def place(reply: RemotingCommand) -> tuple[int, str, str]:
    return reply.code, reply.ext["nextBeginOffset"], reply.ext["suggestWhichBrokerId"]


async def test_pulls_of_a_slave() -> None:
    """With slaveReadEnable it serves what it has. It never moves a reader: what it lacks, the master may have."""
    retry, found = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.SUCCESS
    master = Node(MASTER)
    await master.start()
    try:
        await send(master.broker_addresses[0], 3)
        namesrv = NodeConfig(namesrv_port=0, broker_names=())
        async with running(namesrv) as routes:
            config = replace(slave_of(routes.namesrv_address, slave_read=True), ha_master=ha_address(master))
            async with running(config) as slave:
                address, core = slave.broker_addresses[0], core_of(slave)
                core.topics.update(TopicConfig("orders", 4, 4, 6), 0)
                await until(lambda: store_of(slave).max_offset("orders", 0) == 3)
                assert place(await pull(address, 0)) == (found, "3", "0")
                assert place(await pull(address, 3, hold_ms=5_000)) == (retry, "3", "0"), "the master may have more"
                assert place(await pull(address, 9)) == (retry, "9", "0")
                await master.stop()
                await until(lambda: not core.replicas.following.is_connected)
                not_found = ResponseCode.PULL_NOT_FOUND
                assert place(await pull(address, 3, hold_ms=20)) == (not_found, "3", "0")
                assert place(await pull(address, 9, hold_ms=20)) == (not_found, "9", "0"), "it lags; nothing is skipped"
    finally:
        await master.stop()


def ha_address(node: Node) -> str:
    return f"127.0.0.1:{broker_of(node).ha_port}"


async def test_a_held_pull_at_a_slave_is_woken() -> None:
    """By what the master sends. The slave of a master that it does not see holds pulls."""
    async with running(MASTER) as master:
        await send(master.broker_addresses[0], 1)
        config = slave_of(master.namesrv_address, slave_read=True)
        async with running(config) as slave:
            core = core_of(slave)
            await until(lambda: core.topics.get("orders") is not None and core.replicas.following.is_connected)
            core.replicas.following.is_connected = False
            held = asyncio.create_task(pull(slave.broker_addresses[0], 1, hold_ms=30_000))
            await until(lambda: len(core.held) == 1)
            await send(master.broker_addresses[0], 1)
            assert place(await held) == (ResponseCode.SUCCESS, "2", "0")


async def test_far_readers_are_sent_to_a_slave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master suggests the slave of the group's settings to a reader that is far behind, and itself to others."""
    config = BrokerConfig(broker_role="ASYNC_MASTER", slave_read=True)
    async with running(replace(MASTER, broker=config)) as master:
        address, core = master.broker_addresses[0], core_of(master)
        await send(address, 200, bytes(10_000))
        assert place(await pull(address, 0))[2] == "0", "the log is smaller than 40 % of the memory"
    monkeypatch.setattr("mqtrail.node.broker_node.os.sysconf", lambda name: 1_000)
    async with running(replace(MASTER, broker=config)) as master:
        address, core = master.broker_addresses[0], core_of(master)
        assert core.config.far_size == 400_000
        await send(address, 200, bytes(10_000))
        assert place(await pull(address, 0))[2] == "1"
        assert place(await pull(address, 190)) == (ResponseCode.SUCCESS, "200", "0")


async def test_offsets_are_handed_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A group went on at the slave while the master was gone: the master continues where it is."""
    async with running(NodeConfig(namesrv_port=0, broker_names=())) as routes:
        config = replace(MASTER, namesrv_port=None, namesrv_addresses=(routes.namesrv_address,), data=tmp_path)
        async with running(config) as master:
            await send(master.broker_addresses[0], 9)
            await ask(
                master.broker_addresses[0], RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"buyers"}'
            )
            await commit(master.broker_addresses[0], 3)
            slave = Node(slave_of(routes.namesrv_address, slave_read=True))
            await slave.start()
            core = core_of(slave)
            await until(lambda: core.offsets.get("buyers", "orders", 0) == 3)
        try:
            await commit(slave.broker_addresses[0], 7)
            core.save(int(time.time() * 1000) + 1_000)
            async with running(config) as master:
                assert core_of(master).offsets.get("buyers", "orders", 0) == 7
        finally:
            await slave.stop()
    assert "offsets_handed_back" in capsys.readouterr().err


async def test_the_state_of_replication() -> None:
    """907 lists the slaves of a master with their positions, and names the master of a slave."""
    async with running(MASTER) as master, running(slave_of(master.namesrv_address)) as slave:
        await send(master.broker_addresses[0], 3)
        end = store_of(master).end_offset

        async def acked() -> int:
            reply = await ask(master.broker_addresses[0], RequestCode.GET_BROKER_HA_STATUS)
            status = json.loads(reply.body)
            rows = status["haConnectionInfo"]
            assert (status["master"], status["masterCommitLogMaxOffset"]) == (True, end)
            assert [row["inSync"] for row in rows] == [True] * status["inSyncSlaveNums"]
            return rows[0]["slaveAckOffset"] if rows else -1

        async with asyncio.timeout(DEADLINE_S):
            while await acked() != end:
                await asyncio.sleep(0.01)
        status = json.loads((await ask(slave.broker_addresses[0], RequestCode.GET_BROKER_HA_STATUS)).body)
        assert status["master"] is False
        assert status["haClientRuntimeInfo"]["masterAddr"] == ha_address(master)
        assert status["haClientRuntimeInfo"]["maxOffset"] == end
        assert status["haClientRuntimeInfo"]["lastReadTimestamp"] > 0


async def test_a_log_of_another_cluster_is_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its records end where those of the master do, so only a comparison shows the difference."""
    async with running(replace(MASTER, data=tmp_path)) as other:
        await send(other.broker_addresses[0], 3, b"there")
        end_offset = store_of(other).end_offset
    async with running(MASTER) as master:
        await send(master.broker_addresses[0], 5, b"here!")
        assert store_of(master).read_at(0)
        config = slave_of(master.namesrv_address, broker_name="broker-a")
        async with running(replace(config, data=tmp_path)) as slave:
            errors = ""

            def is_refused() -> bool:
                nonlocal errors
                errors += capsys.readouterr().err
                return "not_following" in errors

            await until(is_refused)
            assert "logs of different brokers" in errors
            assert store_of(slave).end_offset == end_offset


async def test_a_full_slave_continues_when_there_is_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, keeps what it has, and the master goes on."""
    full = replace(STORE, full_ratio=1e-9, force_ratio=1.0)
    async with running(MASTER) as master:
        await send(master.broker_addresses[0], 3)
        config = replace(slave_of(master.namesrv_address), data=tmp_path, store=full, expire_interval_ms=20)
        async with running(config) as slave:
            await until(lambda: store_of(slave).is_full)
            errors = ""

            def is_refused() -> bool:
                nonlocal errors
                errors += capsys.readouterr().err
                return "not_following" in errors

            await send(master.broker_addresses[0], 3)
            await until(is_refused)
            assert "free space" in errors
            assert store_of(slave).end_offset < store_of(master).end_offset
            store_of(slave).retention = replace(store_of(slave).retention, full_ratio=1.0)
            await until(lambda: store_of(slave).end_offset == store_of(master).end_offset)
            assert log_of(store_of(slave)) == log_of(store_of(master))
