"""Access control of a node's name server: its brokers register, and others change nothing."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mqtrail.broker import BrokerConfig
from mqtrail.client import Admin
from mqtrail.namesrv import NameServerConfig
from mqtrail.net import ConnectionPool
from mqtrail.node import Node, NodeConfig, ProcessNode
from mqtrail.node.namesrv_access import SavedKeys
from mqtrail.node.table_writer import TableWriter
from mqtrail.store import CommitLogConfig, ConfigFileStore, RealDisk
from mqtrail.wire import (
    Credentials,
    InvalidParameter,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    RemotingCommand,
    RequestCode,
    TopicConfig,
    TopicConfigTable,
    sign,
)

from .helpers import running
from .test_node import route
from .test_security import instance, rules

USERS: dict[str, Any] = {
    "authentication": True,
    "authorization": True,
    "init_user": '{"username":"root","password":"rootpass"}',
}
INNER = '{"accessKey":"inner-broker","secretKey":"inner-secret"}'
OPEN_TO_OTHERS = {"host": "0.0.0.0", "advertise": "127.0.0.1"}


async def ask(pool: ConnectionPool, node: Node | ProcessNode, command: RemotingCommand, *keys: str) -> int:
    if keys:
        sign(command, Credentials(access_key=keys[0], secret_key=keys[1]))
    return (await pool.request(node.namesrv_address, command, 30_000)).code


def foreign_registration() -> RemotingCommand:
    header = RegisterBrokerHeader("evil", "6.6.6.6:10911", "DefaultCluster", "6.6.6.6:10912", 0)
    table = TopicConfigTable({name: TopicConfig(name, 1, 1) for name in ("orders", "TBW102")})
    return RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext(), RegisterBrokerBody(table).encode())


def put(value: str) -> RemotingCommand:
    return RemotingCommand(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": value})


async def test_a_node_with_acl_checks_on_both_servers(tmp_path: Path) -> None:
    """With ACL files, its own broker registers without any setting; strangers and plain accounts change nothing."""
    rules(tmp_path)
    async with running(acl_home=tmp_path, broker=BrokerConfig(acl=True)) as (node, pool):
        assert await ask(pool, node, foreign_registration()) == 16
        assert await ask(pool, node, foreign_registration(), "seller1", "seller123") == 16
        assert await ask(pool, node, put("x")) == 16
        assert await ask(pool, node, put("x"), "operator", "wrong-one") == 16
        assert await ask(pool, node, put("x"), "operator", "operator1") == 0
        async with Admin(node.namesrv_address, config=instance("operator")) as admin:
            assert (await admin.create_topic(TopicConfig("orders", 1, 1))).complete
        reply = await route(pool, node.namesrv_address, "orders")
        assert reply.code == 0
        assert b"6.6.6.6" not in reply.body


async def test_users_of_the_broker_are_users_of_the_name_server() -> None:
    """Super users may change routes as soon as they are created, until they are deleted or disabled."""
    async with running(broker=BrokerConfig(**USERS), namesrv=NameServerConfig(protect_routes=True)) as (node, pool):
        assert await ask(pool, node, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)) == 16
        async with Admin(node.namesrv_address, config=instance("root")) as admin:
            assert (await admin.create_user("second", "second-pass", user_type="Super")).complete
            assert (await admin.create_user("normal", "normal-pass", user_type="Normal")).complete
            assert await ask(pool, node, put("x"), "second", "second-pass") == 0
            assert await ask(pool, node, put("x"), "normal", "normal-pass") == 16
            cluster = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert await ask(pool, node, cluster, "normal", "normal-pass") == 0
            assert (await admin.update_user("second", user_status="disable")).complete
            assert await ask(pool, node, put("x"), "second", "second-pass") == 16


async def test_first_users_are_saved_before_requests_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that reads the file when the node is ready finds them, however slow the table writer is."""
    monkeypatch.setattr(TableWriter, "save_changes", lambda _: None)
    async with running(data=tmp_path, broker=BrokerConfig(**USERS)):
        (file,) = tmp_path.rglob("users.json")
        assert b'"root"' in file.read_bytes()


def test_a_damaged_file_of_users_takes_no_key_away(tmp_path: Path) -> None:
    """The first look-up uses the .bak; later the keys stay that were known. Both are logged."""
    files = ConfigFileStore(RealDisk(tmp_path))
    for password in ("pass-1", "pass-2", "pass-3"):
        files.save("users.json", {"userTable": {"root": {"username": "root", "password": password}}})
    path = tmp_path / "config" / "users.json"
    good = path.read_bytes()
    path.write_bytes(b"{}")
    keys = SavedKeys(NodeConfig(data=tmp_path, broker=BrokerConfig(**USERS)), [tmp_path])
    with capture_logs() as logs:
        assert [key.secret_key for key in keys("root")] == [b"pass-2"]
        path.write_bytes(good)
        assert [key.secret_key for key in keys("root")] == [b"pass-3"]
        path.write_bytes(b"{ }")
        assert [key.secret_key for key in keys("root")] == [b"pass-3"]
    assert [line["event"] for line in logs] == ["tables.recovered", "namesrv.accounts_not_loaded"]
    assert all("users.json.bak" in str(line) for line in logs)


@pytest.mark.slow
async def test_brokers_in_processes_of_their_own(tmp_path: Path) -> None:
    """The keys come from the brokers' files; a user is known once a broker has saved it."""
    names = ("broker-a", "broker-b")
    config = NodeConfig(
        data=tmp_path,
        store=CommitLogConfig(segment_size=1 << 24),
        broker=BrokerConfig(**USERS),
        broker_names=names,
        namesrv_port=0,
        broker_port=0,
    )
    node, pool = ProcessNode(config), ConnectionPool()
    await node.start()
    try:
        reply = await pool.request(node.namesrv_address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), 5_000)
        assert all(name.encode() in reply.body for name in names)
        assert await ask(pool, node, foreign_registration()) == 16
        assert await ask(pool, node, put("x"), "root", "rootpass") == 0
        async with Admin(node.namesrv_address, config=instance("root")) as admin:
            assert (await admin.create_user("second", "second-pass", user_type="Super")).complete
            assert await ask(pool, node, put("x"), "second", "second-pass") == 0
            assert (await admin.delete_user("second")).complete
            assert await ask(pool, node, put("x"), "second", "second-pass") == 16
    finally:
        await pool.close()
        await node.stop()


@pytest.mark.parametrize(("secret", "joins"), [("inner-secret", True), ("another-one", False)])
async def test_brokers_that_join_sign_with_inner_credentials(secret: str, joins: bool) -> None:
    """A broker of another node registers with the same inner_credentials; with others the log names the setting."""
    async with running(broker=BrokerConfig(inner_credentials=INNER, **USERS)) as (node, pool):
        theirs = BrokerConfig(inner_credentials=INNER.replace("inner-secret", secret))
        with capture_logs() as logs:
            async with running(
                namesrv_port=None,
                namesrv_addresses=(node.namesrv_address,),
                broker_names=("joined",),
                broker=theirs,
            ):
                command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
                reply = await pool.request(node.namesrv_address, command, 30_000)
                assert (b"joined" in reply.body) is joins
        refused = [line for line in logs if line["event"] == "broker.not_registered"]
        assert bool(refused) is not joins
        if refused:
            assert "inner_credentials" in refused[0]["remedy"]
        assert secret not in str(logs)


def test_half_credentials_end_the_start() -> None:
    """The error names the missing part and shows no secret."""
    with pytest.raises(InvalidParameter, match="access_key") as error:
        Node(NodeConfig(broker=BrokerConfig(inner_credentials='{"secretKey":"inner-secret"}')))
    assert "inner-secret" not in str(error.value)


@pytest.mark.parametrize(
    ("broker", "namesrv", "servers"),
    [
        ({}, {}, ["brokers", "name server"]),
        ({"acl": True}, {}, []),
        (USERS, {}, []),
        ({"acl": True}, {"acl": False}, ["name server"]),
        ({}, {"acl": True}, ["brokers"]),
    ],
)
async def test_open_servers_are_warned_of(
    tmp_path: Path, broker: dict[str, Any], namesrv: dict[str, Any], servers: list[str]
) -> None:
    """A warning names each port without authentication; there is none if both check."""
    rules(tmp_path)
    settings = {"broker": BrokerConfig(**broker), "namesrv": NameServerConfig(**namesrv), "acl_home": tmp_path}
    with capture_logs() as logs:
        async with running(**OPEN_TO_OTHERS, **settings) as (node, _):
            assert node.open_servers == servers
            assert node.is_open_to_others is bool(servers)
    assert [line["open"] for line in logs if line["event"] == "node.open_to_others"] == ([servers] if servers else [])
