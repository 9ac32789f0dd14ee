"""Access control and TLS of a running node, as seen by clients: files, signatures, certificates."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from mqtrail.broker import BrokerConfig
from mqtrail.client import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Credentials,
    InstanceConfig,
    Producer,
    ProducerConfig,
    QueueReader,
    ReaderConfig,
    SendFailed,
)
from mqtrail.net import ClientAuth, ServerConfig, TlsClientConfig, TlsMode, TlsServerConfig
from mqtrail.node import Node
from mqtrail.wire import InvalidParameter, Message, MQError, RemotingCommand, SystemError_, TopicConfig, sign
from tests.loops import run

from .helpers import running

RULES = """
accounts:
- {accessKey: operator, secretKey: operator1, admin: true}
- {accessKey: seller1, secretKey: seller123, topicPerms: [orders=PUB], defaultGroupPerm: DENY}
- {accessKey: billing, secretKey: billing12, topicPerms: [orders=SUB], groupPerms: [bills=SUB]}
"""
KEYS = {
    "operator": "operator1",
    "seller1": "seller123",
    "billing": "billing12",
    "root": "rootpass",
    "lateone": "lateone1",
    "newcomer": "newcomer1",
}


def instance(who: str | None, tls: TlsClientConfig | None = None) -> InstanceConfig:
    credentials = None if who is None else Credentials(access_key=who, secret_key=KEYS[who])
    return InstanceConfig(credentials=credentials, tls=tls or TlsClientConfig(), route_refresh_ms=200)


async def send(node: Node, config: InstanceConfig, topic: str = "orders") -> None:
    producer = Producer("shop", node.namesrv_address, config=ProducerConfig(instance=config, retry_count=0))
    async with producer:
        await producer.send(Message(topic, b"hello", keys="k1"))


async def receive(node: Node, config: InstanceConfig) -> bytes:
    settings = ConsumerConfig(instance=config, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    async with Consumer("bills", node.namesrv_address, {"orders": "*"}, config=settings) as consumer:
        async with asyncio.timeout(60):
            delivery = await anext(consumer)
        async with delivery.process():
            return delivery.message.body


def rules(home: Path, text: str = RULES, name: str = "plain_acl.yml") -> Path:
    file = home / "conf" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o600)
    return file


def guarded(tmp_path: Path, **settings: Any) -> Any:
    return running(acl_home=tmp_path, broker=BrokerConfig(acl=True), **settings)


async def test_signed_clients_do_what_their_account_may(tmp_path: Path) -> None:
    """Producer, consumer, admin and reader work with an account of a file; without one, or beyond its permissions, they
    fail."""
    rules(tmp_path)

    async with guarded(tmp_path) as (node, _):
        async with Admin(node.namesrv_address, config=instance("operator")) as admin:
            done = await admin.create_topic(TopicConfig("orders", 1, 1))
            assert done.complete, done.failures
        await send(node, instance("seller1"))
        assert await receive(node, instance("billing")) == b"hello"
        with pytest.raises((SendFailed, SystemError_), match="No accessKey is configured"):
            await send(node, instance(None))
        with pytest.raises((SendFailed, SystemError_), match="No default permission for topic:orders"):
            await send(node, instance("billing"))
        async with Admin(node.namesrv_address, config=instance("seller1")) as admin:
            refused = await admin.create_topic(TopicConfig("mine", 1, 1))
            assert "Need admin permission" in str(refused.failures)
        await asyncio.to_thread(read_signed, node.namesrv_address)


def read_signed(namesrv: str) -> None:
    """The pipeline's reader with blocking sockets."""
    config = ReaderConfig(namesrv=namesrv, credentials=Credentials(access_key="operator", secret_key="operator1"))
    with QueueReader(config) as reader:
        (queue,) = reader.queues("orders")
        assert reader.read(queue, 0).records
    with QueueReader(ReaderConfig(namesrv=namesrv, retry_count=0)) as reader, pytest.raises(MQError):
        reader.read(queue, 0)


async def test_changed_files_count_and_broken_ones_do_not(tmp_path: Path) -> None:
    """A new account works after the next check of the files; a malformed file is logged and changes nothing."""
    file = rules(tmp_path)

    async with guarded(tmp_path) as (node, _):
        watch = node.brokers["broker-a"]._acl
        assert watch is not None
        rules(tmp_path, "accounts: [{accessKey: lateone, secretKey: lateone1, admin: true}]", "acl/more/late.yaml")
        with pytest.raises(MQError):
            await send(node, instance("lateone"))
        watch.reload_if_changed()
        await send(node, instance("lateone"))
        rules(tmp_path, "accounts: [{accessKey: lateone, secretKey: lateone1, colour: red}]", "acl/more/late.yaml")
        with capture_logs() as logs:
            watch.reload_if_changed()
        (ignored,) = [entry for entry in logs if entry["event"] == "acl.ignored"]
        assert "colour" in ignored["found"]
        file.write_text("accounts: [oops")
        with capture_logs() as logs:
            watch.reload_if_changed()
            watch.reload_if_changed()
        assert [entry["event"] for entry in logs] == ["acl.not_loaded"]
        assert str(file) in logs[0]["error"]
        await send(node, instance("seller1"))
        file.unlink()
        watch.reload_if_changed()
        with pytest.raises(MQError):
            await send(node, instance("seller1"))


async def test_a_broken_file_ends_the_start(tmp_path: Path) -> None:
    """The error names the file; everything is released then."""
    file = rules(tmp_path, "accounts: 3")

    with pytest.raises(InvalidParameter, match=str(file)):
        async with guarded(tmp_path, data=tmp_path / "data"):
            pass
    file.write_text(RULES)
    async with guarded(tmp_path, data=tmp_path / "data"):
        pass


async def test_requests_change_the_files(tmp_path: Path) -> None:
    """An account that an operator creates is in the file, readable only by its owner, and survives a restart."""
    rules(tmp_path)
    made = {"accessKey": "newcomer", "secretKey": "newcomer1", "topicPerms": "orders=PUB"}

    async with guarded(tmp_path) as (node, pool):
        command = RemotingCommand(50, made)
        sign(command, Credentials(access_key="operator", secret_key="operator1"))
        assert (await pool.request(node.broker_addresses[0], command, 30_000)).code == 0
    async with guarded(tmp_path) as (node, _):
        await send(node, instance("newcomer"))
    assert (tmp_path / "conf" / "plain_acl.yml").stat().st_mode & 0o077 == 0


async def test_users_of_5(tmp_path: Path) -> None:
    """A Super user created by the settings; a user without an account gets code 16."""
    config = BrokerConfig(
        authentication=True,
        authorization=True,
        init_user='{"username":"root","password":"rootpass"}',
        inner_credentials='{"accessKey":"inner","secretKey":"innerpass"}',
    )

    async with running(broker=config) as (node, _):
        await send(node, instance("root"))
        assert await receive(node, instance("root")) == b"hello"
        with pytest.raises(MQError, match="username cannot be null"):
            await send(node, instance(None))


async def test_an_operator_is_warned() -> None:
    """Settings that refuse everyone, or accept everyone, cause a warning at start."""

    async def reported(**settings: Any) -> str:
        with capture_logs() as logs:
            async with running(broker=BrokerConfig(**settings)):
                pass
        return " ".join(str(entry.get("found")) for entry in logs if entry["event"] == "access.open_question")

    assert "initAuthenticationUser" in await reported(authentication=True)
    assert "without authenticationEnabled" in await reported(authorization=True)
    assert "no ACL file has an account" in await reported(acl=True)
    assert await reported() == ""


@pytest.mark.parametrize("auth", [ClientAuth.NONE, ClientAuth.REQUIRE])
async def test_everything_over_tls(tmp_path: Path, auth: ClientAuth) -> None:
    """A port with TLS only: registration, routes, sends, pulls and the blocking reader work."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    pair: dict[str, Any] = {"cert_path": tmp_path / "cert.pem", "key_path": tmp_path / "key.pem"}
    server = TlsServerConfig(mode=TlsMode.ENFORCING, client_auth=auth, trust_path=tmp_path / "ca.pem", **pair)
    tls = TlsClientConfig(enable=True, trust_path=tmp_path / "ca.pem", **(pair if auth is ClientAuth.REQUIRE else {}))

    async with running(server=ServerConfig(tls=server)) as (node, _):
        core = node.brokers["broker-a"].core
        assert core is not None
        assert core.config.use_tls
        await send(node, instance(None, tls))
        assert await receive(node, instance(None, tls)) == b"hello"
        with pytest.raises(MQError):
            await send(node, instance(None))

        def blocking() -> None:
            with QueueReader(ReaderConfig(namesrv=node.namesrv_address, tls=tls)) as reader:
                assert any(reader.read(queue, 0).records for queue in reader.queues("orders"))
            wrong = TlsClientConfig(enable=True)
            untrusting = QueueReader(ReaderConfig(namesrv=node.namesrv_address, tls=wrong, retry_count=0))
            with untrusting, pytest.raises(MQError, match="is rejected"):
                untrusting.queues("orders")

        await asyncio.to_thread(blocking)


def test_files_of_accounts_that_others_can_read_are_warned_of(tmp_path: Path) -> None:
    """A warning for plain_acl.yml and for the server's key; none for a file that only its owner can read."""
    file = rules(tmp_path)

    async def warned(mode: int) -> bool:
        file.chmod(mode)
        with capture_logs() as logs:
            async with guarded(tmp_path):
                pass
        found = [line for line in logs if line["event"] == "secrets.open_to_others"]
        assert all(line["path"] == str(file) and "chmod 600" in line["remedy"] for line in found)
        return bool(found)

    assert run(warned(0o644))
    assert not run(warned(0o600))
