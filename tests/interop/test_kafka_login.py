"""Bridge and tee with a Kafka that asks for TLS, user and password, and that gives a stranger no right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from cryptography.hazmat.primitives import serialization
from interop.kafka import KafkaLogin, KafkaServer

from mqtrail.client import Admin, ProducerConfig, SyncAdmin
from mqtrail.migrate import (
    Bridge,
    BridgeConfig,
    CompareSides,
    KafkaAway,
    KafkaConfig,
    MigrateError,
    TeeConfig,
    TeeProducer,
    TeeSide,
    compare,
    kafka_settings,
    return_group,
)
from mqtrail.migrate.kafka import MECHANISMS, KafkaTopic
from mqtrail.migrate.kafka_writer import KafkaWriter
from mqtrail.migrate.model import KafkaRecord
from mqtrail.testing import Embedded, embedded
from mqtrail.trail import ProofResult
from mqtrail.wire import TopicConfig

pytestmark = pytest.mark.interop

TOPIC, COUNT = "orders", 50


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def login(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> KafkaLogin:
    """With a certificate for 127.0.0.1; ca.pem is beside it."""
    folder = tmp_path_factory.mktemp("certificates")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    made = authority.issue_cert("127.0.0.1")
    key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None)
    pkcs8 = serialization.PrivateFormat.PKCS8
    parts = [key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption())]
    store = folder / "server.pem"
    store.write_bytes(b"".join([*parts, *(one.bytes() for one in made.cert_chain_pems)]))
    return KafkaLogin(store)


@pytest.fixture(scope="module")
def kafka(login: KafkaLogin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka"), login=login) as server:
        yield server


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running, SyncAdmin(running.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig(TOPIC, 2, 2)).complete
        yield running


def config(kafka: KafkaServer, login: KafkaLogin, mechanism: str, **changes: str) -> KafkaConfig:
    """As a file of --kafka-settings has it."""
    names = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": login.user,
        "sasl.password": login.password,
        "ssl.ca.location": str(login.key_store.with_name("ca.pem")),
    }
    names |= {name.replace("_", "."): value for name, value in changes.items()}
    return KafkaConfig(kafka.address, kafka_settings("".join(f"{name}={value}\n" for name, value in names.items())))


async def create(where: KafkaConfig, topic: str) -> None:
    """Create a topic with two partitions; wait until they can be read."""
    admin = AIOKafkaAdminClient(**where.options())
    await admin.start()
    await admin.create_topics([NewTopic(topic, 2, 1)])
    await admin.close()
    async with asyncio.timeout(60):
        while True:
            try:
                async with KafkaTopic(where, topic) as found:
                    await found.ends(await found.partitions())
                    return
            except (KafkaAway, MigrateError):
                await asyncio.sleep(0.1)


def test_bridge_tee_and_back(kafka: KafkaServer, login: KafkaLogin, broker: Embedded, tmp_path: Path) -> None:
    """With PLAIN and with SCRAM: records are written, bridged, sent to both sides, compared, and a group goes back."""
    plain, scram = config(kafka, login, "PLAIN"), config(kafka, login, "SCRAM-SHA-512")

    async def run() -> None:
        await create(scram, TOPIC)
        async with KafkaWriter(plain, TOPIC) as writer:
            for number in range(COUNT):
                record = KafkaRecord(TOPIC, number % 2, -1, -1, b"k%d" % (number % 2), b"v%d" % number)
                await writer.stored(await writer.begin(record))
        bridge = BridgeConfig(kafka=scram, topic=TOPIC, target=TOPIC, folder=tmp_path, is_once=True)
        await Bridge(bridge, broker.namesrv_address, ProducerConfig()).run()
        for decides, where in zip(TeeSide, (plain, scram), strict=True):
            tee = TeeConfig(kafka=where, topic=TOPIC, target=TOPIC, folder=tmp_path, decides=decides)
            async with TeeProducer(tee, broker.namesrv_address) as producer:
                await asyncio.gather(*[producer.send(b"%s-%d" % (decides.encode(), n), key=b"k") for n in range(COUNT)])
        async with Admin(broker.namesrv_address) as admin:
            sides = CompareSides(kafka=plain, topic=TOPIC, target=TOPIC, folder=tmp_path, grace_ms=0)
            same = await compare(sides, admin)
            assert (same.outcome, same.matched) == (ProofResult.NONE, 3 * COUNT)
            await return_group(tmp_path, scram, admin, ("g", "g"), is_applied=True)
        async with KafkaTopic(plain, TOPIC) as topic:
            assert await topic.committed("g") == {0: 0, 1: 0}, "the group has consumed nothing"

    asyncio.run(run())


@pytest.mark.parametrize("mechanism", [one for one in MECHANISMS if one != "SCRAM-SHA-256"])
def test_refused(mechanism: str, kafka: KafkaServer, login: KafkaLogin, tmp_path: Path) -> None:
    """A wrong password and another authority: an error with what to do, and not a wait until the retries are over."""
    wrong = config(kafka, login, mechanism, sasl_password="wrong")
    with pytest.raises(MigrateError, match=r"Kafka refused the log-in: .*correct --kafka-settings"):
        asyncio.run(create_only(wrong))
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    with pytest.raises(MigrateError, match=r"found no TLS connection to Kafka at .*certificate verify failed"):
        asyncio.run(create_only(config(kafka, login, mechanism, ssl_ca_location=str(other))))


async def create_only(where: KafkaConfig) -> None:
    """Connect, and ask for the topic."""
    async with KafkaTopic(where, TOPIC) as topic:
        await topic.partitions()


def test_without_rights(kafka: KafkaServer, login: KafkaLogin) -> None:
    """A user without rights may neither read nor write; the errors name the operations."""
    where = config(kafka, login, "PLAIN", sasl_username=login.stranger)

    async def run() -> None:
        await create(config(kafka, login, "PLAIN"), "secret")
        with pytest.raises(MigrateError, match=r"found no right to read the topic 'secret' .*Read, Describe"):
            async with KafkaTopic(where, "secret") as topic:
                await topic.partitions()
        with pytest.raises(MigrateError, match=r"found no right to write to the topic 'secret'"):
            async with KafkaWriter(where, "secret") as writer:
                await writer.stored(await writer.begin(KafkaRecord("secret", 0, -1, -1, b"k", b"v")))

    asyncio.run(run())
