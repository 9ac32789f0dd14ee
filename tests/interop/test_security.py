"""Access control and TLS with real peers: the official clients and mqadmin at our broker, our client at Apache's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from interop.apache import JVM_SMALL, ApacheCluster
from interop.driver import JavaClient, JavaError
from interop.mqadmin import MqAdmin
from interop.ours import OurServer
from interop.probe import wait_until

from mqtrail.client import (
    Credentials,
    InstanceConfig,
    ProducerConfig,
    QueueReader,
    ReaderConfig,
    SyncAdmin,
    SyncProducer,
    TlsClientConfig,
)
from mqtrail.wire import Message, MQError, TopicConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: operator1, admin: true}
- {accessKey: trader1, secretKey: trader123, topicPerms: [orders=PUB|SUB], groupPerms: [bills=SUB, pg=SUB]}
"""
ROOT = '{"username":"root","password":"rootpass"}'


def signing(who: str, secret: str) -> tuple[str, ...]:
    return (f"-Dmqtrail.accessKey={who}", f"-Dmqtrail.secretKey={secret}")


def instance(who: str, secret: str, tls: TlsClientConfig | None = None) -> InstanceConfig:
    return InstanceConfig(
        credentials=Credentials(access_key=who, secret_key=secret), tls=tls or TlsClientConfig(), route_refresh_ms=500
    )


@dataclass(frozen=True)
class PemFiles:
    """PEM files of an authority, a server and a client; keys as PKCS#8, which Netty takes."""

    ca: Path
    cert: Path
    key: Path

    def client(self) -> TlsClientConfig:
        return TlsClientConfig(enable=True, trust_path=self.ca, cert_path=self.cert, key_path=self.key)


@pytest.fixture(scope="module")
def pem_files(tmp_path_factory: pytest.TempPathFactory) -> PemFiles:
    folder = tmp_path_factory.mktemp("pem_files")
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    made = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
    pem_files = PemFiles(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    authority.cert_pem.write_to_path(pem_files.ca)
    made.cert_chain_pems[0].write_to_path(pem_files.cert)
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    pem_files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pem_files


def sends_and_receives(java: JavaClient) -> None:
    """A traced send arrives at a traced push consumer, in orders."""
    java.producer("p", group="pg", trace=True)
    [sent] = java.send("p", [{"topic": "orders", "body": "hello", "keys": "k1"}])
    assert sent.get("status") == "SEND_OK", sent
    java.consumer("c", group="bills", topics={"orders": "*"}, trace=True)
    java.wait(lambda events: any(event.get("msgId") == sent["msgId"] for event in events), "consumed", timeout_s=60)


def refused(java: JavaClient, code: int, words: str) -> None:
    """A send to a topic that the client may not write is refused; one to a chosen queue shows the broker's remark."""
    [reported] = java.send("p", [{"topic": "secret", "body": "x"}], "ordered", orderKey="k")
    assert reported["code"] == code
    assert words in reported["message"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServer]:
    """Our broker with ACL files and the topics of the tests."""
    server = OurServer(tmp_path_factory.mktemp("guarded"), broker={"acl": True})
    (server.store / "conf").mkdir(parents=True)
    (server.store / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    with server:
        with SyncAdmin(server.namesrv_address, config=instance("operator", "operator1")) as admin:
            for topic in ("orders", "secret"):
                assert admin.create_topic(TopicConfig(topic, 2, 2)).complete
        yield server


@pytest.mark.parametrize("version", ["5.3.3", "4.9.8"])
def test_official_client_signs_for_our_acl_files(guarded: OurServer, tmp_path: Path, version: str) -> None:
    """AclClientRPCHook of both lines: allowed requests are served, others are refused with code 1 and 4.9's remark."""
    jvm = (*JVM_SMALL, *signing("trader1", "trader123"))
    with JavaClient(version, tmp_path, guarded.namesrv_address, jvm=jvm) as java:
        sends_and_receives(java)
        refused(java, 1, "No default permission for topic:secret")


def test_mqadmin_of_4_manages_accounts(guarded: OurServer, tmp_path: Path) -> None:
    """updateAclConfig, deleteAclConfig, clusterAclConfigVersion and updateGlobalWhiteAddr of mqadmin 4.9.8."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: operator\nsecretKey: operator1\n")
    file = guarded.store / "conf" / "plain_acl.yml"
    with MqAdmin("4.9.8", tmp_path, guarded.namesrv_address) as mqadmin:

        def run(*arguments: str) -> str:
            return mqadmin.run(*arguments, "-b", guarded.broker_address)

        assert "success" in run(
            "updateAclConfig", "-a", "newcomer", "-s", "newcomer1", "-t", "orders=PUB", "-i", "DENY"
        )
        assert "newcomer" in file.read_text()
        shown = run("clusterAclConfigVersion")
        assert "plain_acl.yml" in shown
        assert "broker-a" in shown
        assert "success" in run("updateGlobalWhiteAddr", "-g", "10.10.103.*")
        assert "10.10.103.*" in file.read_text()
        config = ProducerConfig(instance=instance("newcomer", "newcomer1"))
        with SyncProducer("pg", guarded.namesrv_address, config=config) as producer:
            assert producer.send(Message("orders", b"x")).msg_id
        assert "success" in run("deleteAclConfig", "-a", "newcomer")
        assert "success" not in run("deleteAclConfig", "-a", "newcomer")
        assert "newcomer" not in file.read_text()


def test_mqadmin_manages_users_and_policies(tmp_path: Path) -> None:
    """createUser to listAcl of mqadmin 5.3.3 on our broker; the official client has exactly the granted permissions."""
    broker = {"authentication": True, "authorization": True, "init_user": ROOT}
    with ExitStack() as stack:
        server = stack.enter_context(OurServer(tmp_path / "ours", broker=broker))
        with SyncAdmin(server.namesrv_address, config=instance("root", "rootpass")) as admin:
            for topic in ("orders", "secret"):
                assert admin.create_topic(TopicConfig(topic, 2, 2)).complete
        (tmp_path / "tools" / "conf").mkdir(parents=True)
        (tmp_path / "tools" / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: rootpass\n")
        mqadmin = stack.enter_context(MqAdmin("5.3.3", tmp_path / "tools", server.namesrv_address))

        def run(*arguments: str) -> str:
            return mqadmin.run(*arguments, "-b", server.broker_address)

        def allow(resource: str, actions: str, decision: str = "Allow") -> str:
            return run("createAcl", "-s", "User:trader", "-r", resource, "-a", actions, "-d", decision)

        assert "success" in run("createUser", "-u", "trader", "-p", "traderpass", "-t", "Normal")
        assert "existed" in run("createUser", "-u", "trader", "-p", "traderpass", "-t", "Normal")
        assert "success" in allow("Topic:orders,Group:bills", "Pub,Sub")
        assert "success" in allow("Topic:RMQ_SYS_TRACE_TOPIC", "Pub")
        shown = run("getUser", "-u", "trader")
        assert "trader" in shown
        assert "Normal" in shown
        assert "trader" in run("listUser")
        assert "root" in run("listUser")
        for command in (("getAcl", "-s", "User:trader"), ("listAcl",)):
            assert "Topic:orders" in run(*command)
            assert "Group:bills" in run(*command)
        jvm = (*JVM_SMALL, *signing("trader", "traderpass"))
        with JavaClient("5.3.3", tmp_path / "java", server.namesrv_address, jvm=jvm) as java:
            sends_and_receives(java)
            refused(java, 16, "User:trader has no permission to access Topic:secret")
            assert "success" in run("updateAcl", "-s", "User:trader", "-r", "Topic:secret", "-a", "Pub", "-d", "Allow")
            [sent] = java.send("p", [{"topic": "secret", "body": "x"}])
            assert sent.get("status") == "SEND_OK", sent
            assert "success" in run("deleteAcl", "-s", "User:trader", "-r", "Topic:secret")
            refused(java, 16, "no matched policies")
            assert "success" in run("updateUser", "-u", "trader", "-s", "disable")
            refused(java, 16, "User:trader is disabled")
        assert "success" in run("deleteUser", "-u", "trader")
        assert "trader" not in run("listUser")


SMALLEST = """
accounts:
- {accessKey: operator, secretKey: operator1, admin: true}
- {accessKey: trader1, secretKey: trader123, topicPerms: [orders=PUB|SUB, DefaultCluster_REPLY_TOPIC=PUB],
   groupPerms: [bills=SUB, queues=SUB]}
"""


@pytest.mark.parametrize("kind", ["files", "users"])
def test_the_smallest_grants_are_enough_for_the_official_client(tmp_path: Path, kind: str) -> None:
    """Retries, dead letters, ordered messages, checked transactions and replies work with only Pub and Sub."""
    switches: dict[str, object] = {"acl": True}
    if kind == "users":
        switches = {"authentication": True, "authorization": True, "init_user": ROOT.replace("root", "operator")}
    broker = {**switches, "transaction_timeout_ms": 500, "transaction_check_ms": 500}
    who, secret = ("operator", "operator1") if kind == "files" else ("operator", "operatorpass")
    server = OurServer(tmp_path / "ours", broker=broker)
    if kind == "files":
        (server.store / "conf").mkdir(parents=True)
        (server.store / "conf" / "plain_acl.yml").write_text(SMALLEST)
    with server:
        with SyncAdmin(server.namesrv_address, config=instance(who, secret)) as admin:
            assert admin.create_topic(TopicConfig("orders", 2, 2)).complete
            if kind == "users":
                assert admin.create_user("trader1", "trader123").complete
                for resource, actions in (
                    ("Topic:orders", ("Pub", "Sub")),
                    ("Topic:DefaultCluster_REPLY_TOPIC", ("Pub",)),
                    ("Group:bills", ("Sub",)),
                    ("Group:queues", ("Sub",)),
                ):
                    assert admin.create_acl("User:trader1", (resource,), actions).complete
        jvm = (*JVM_SMALL, *signing("trader1", "trader123"))
        with JavaClient("5.3.3", tmp_path / "java", server.namesrv_address, jvm=jvm) as java:
            java.producer("p", group="pg")
            java.consumer("c", group="bills", topics={"orders": "*"}, replier="p", maxReconsume=1)
            java.consumer("o", group="queues", topics={"orders": "*"}, orderly=True)
            java.producer("t", group="tg", transactions=True)

            def handled(consumer: str, label: str) -> list[int]:
                return [
                    event["reconsumeTimes"]
                    for event in java.events("ended")
                    if event["consumer"].endswith(consumer) and event["properties"].get("label") == label
                ]

            def send(label: str, mode: str = "sync", **properties: str) -> None:
                message = {"topic": "orders", "body": label, "properties": {"label": label, **properties}}
                assert java.send("p" if mode == "sync" else "t", [message], mode)[0]["status"] == "SEND_OK"

            send("again", behave="fail:1")
            send("asked", "transaction", local="unknown", check="commit")
            java.wait(lambda events: handled("c", "again") == [0, 1], "a retry", 120)
            java.wait(lambda events: handled("c", "asked") != [], "a commit after a question", 120)
            java.wait(lambda events: handled("o", "asked") != [], "in order", 120)
            message = {"topic": "orders", "body": "hi", "properties": {"behave": "reply", "label": "hi"}}
            deadline = time.monotonic() + 60
            answer: dict[str, object] = {}
            while "body" not in answer and time.monotonic() < deadline:
                with suppress(JavaError):  # the broker knows the requester from its first heartbeat on
                    answer = java.call("request", name="p", message=message, timeoutMs=4_000, callback=True)
            assert answer["body"] == "re: hi"


def test_official_client_speaks_tls(pem_files: PemFiles, tmp_path: Path) -> None:
    """5.3.3 and 4.9.8 with tls.properties, at a port that requires TLS and a client certificate."""
    tls = {
        "mode": "ENFORCING",
        "client_auth": "REQUIRE",
        "cert_path": str(pem_files.cert),
        "key_path": str(pem_files.key),
        "trust_path": str(pem_files.ca),
    }
    properties = tmp_path / "tls.properties"
    properties.write_text(
        "tls.test.mode.enable=false\ntls.client.authServer=true\n"
        f"tls.client.trustCertPath={pem_files.ca}\ntls.client.certPath={pem_files.cert}\ntls.client.keyPath={pem_files.key}\n"
    )
    jvm = (*JVM_SMALL, "-Dtls.enable=true", f"-Dtls.config.file={properties}")
    with OurServer(tmp_path / "ours", tls=tls) as server:
        for version in ("5.3.3", "4.9.8"):
            with JavaClient(version, tmp_path / version, server.namesrv_address, jvm=jvm) as java:
                sends_and_receives(java)
        with JavaClient("5.3.3", tmp_path / "plain", server.namesrv_address) as java:
            java.producer("p", group="pg")
            [reported] = java.send("p", [{"topic": "orders", "body": "x"}])
            assert "error" in reported


@pytest.mark.parametrize("version", ["5.3.3", "4.9.8"])
def test_official_client_takes_our_self_signed_certificate(tmp_path: Path, version: str) -> None:
    """A Java client needs only -Dtls.enable=true at a port that requires TLS; our client trusts the CA file."""
    with OurServer(tmp_path / "ours", tls={"mode": "ENFORCING", "self_signed": "true"}) as server:
        jvm = (*JVM_SMALL, "-Dtls.enable=true")
        with JavaClient(version, tmp_path / "java", server.namesrv_address, jvm=jvm) as java:
            sends_and_receives(java)
        trusting = TlsClientConfig(enable=True, verify_host=True, trust_path=server.data / "tls" / "certificate.pem")
        with SyncAdmin(server.namesrv_address, config=InstanceConfig(tls=trusting)) as admin:
            assert admin.create_topic(TopicConfig("more", 1, 1)).complete


def acl_of_4(folder: Path) -> dict[str, str]:
    (folder / "broker-a" / "conf").mkdir(parents=True)
    (folder / "broker-a" / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    return {"aclEnable": "true"}


def users_of_5(folder: Path) -> dict[str, str]:
    place = "org.apache.rocketmq.auth"
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{place}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{place}.authentication.provider.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": '{"username":"operator","password":"operator1"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"operator","secretKey":"operator1"}',
        "authorizationEnabled": "true",
        "authorizationProvider": f"{place}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{place}.authorization.provider.LocalAuthorizationMetadataProvider",
    }


@pytest.mark.parametrize(
    ("version", "settings", "words"),
    [("4.9.7", acl_of_4, "No accessKey is configured"), ("5.3.3", users_of_5, "username cannot be null")],
)
def test_our_client_signs_for_apache(
    pem_files: PemFiles, tmp_path: Path, version: str, settings: Callable[[Path], dict[str, str]], words: str
) -> None:
    """Producer, admin, query by key and the blocking reader, signed, over TLS, at both lines; unsigned is refused."""
    properties = tmp_path / "tls.properties"
    properties.write_text(
        "tls.test.mode.enable=false\ntls.server.mode=permissive\ntls.server.need.client.auth=optional\n"
        f"tls.server.authClient=true\ntls.server.certPath={pem_files.cert}\ntls.server.keyPath={pem_files.key}\n"
        f"tls.server.trustCertPath={pem_files.ca}\n"
    )
    jvm = (*JVM_SMALL, "-Dtls.server.mode=permissive", f"-Dtls.config.file={properties}")
    cluster = ApacheCluster(version, tmp_path, properties=settings(tmp_path), jvm=jvm)
    cluster.namesrv.jvm = jvm
    with cluster:
        ours = instance("operator", "operator1", pem_files.client())
        with SyncAdmin(cluster.namesrv_address, config=ours) as admin:
            assert admin.create_topic(TopicConfig("orders", 1, 1)).complete
            config = ProducerConfig(instance=ours)
            with SyncProducer("pg", cluster.namesrv_address, config=config, trace=True) as producer:
                sent = producer.send(Message("orders", b"hello", keys="k1"))
            # Apache's broker indexes a message after it has answered the send.
            wait_until(lambda: bool(admin.query("orders", "k1").messages), "k1 is not indexed", 30)
            [found] = admin.query("orders", "k1").messages
            assert found.msg_id == sent.msg_id
            [found] = admin.query("orders", sent.msg_id, unique=True).messages
            assert found.body == b"hello"
        reading = ReaderConfig(namesrv=cluster.namesrv_address, credentials=ours.credentials, tls=ours.tls)
        with QueueReader(reading) as reader:
            (queue,) = reader.queues("orders")
            assert reader.read(queue, 0).records
        with SyncProducer("pg", cluster.namesrv_address) as producer, pytest.raises(MQError, match=words):
            producer.send(Message("orders", b"x"))
