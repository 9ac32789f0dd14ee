"""A cluster whose answers are changed on their way: admin, reader, look-up and samples raise documented errors only."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from mqtrail.answers import examine
from mqtrail.client import Admin, QueueReader, ReaderConfig, SyncAdmin, SyncProducer
from mqtrail.client.sync.blocking import BlockingConnection
from mqtrail.net import ConnectionPool
from mqtrail.pipeline.sampling import sample, survey
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import Message, MessageQueue, MQError, RemotingCommand, SubscriptionGroupConfig
from tests.fuzz.lies import Liar, questions

NOW_MS: Final = 1_700_000_000_000
PULLS_MAX: Final = 200  # of a range of ten messages: a reader that gets nowhere ends


@pytest.fixture(scope="module")
def cluster() -> Iterator[Embedded]:
    with embedded() as broker:
        with SyncProducer("pg", broker.namesrv_address, trace=True) as producer:
            for number in range(10):
                producer.send(Message("orders", b"x", keys=f"k{number}", tags="a"))
        with SyncAdmin(broker.namesrv_address) as admin:
            assert admin.create_group(SubscriptionGroupConfig("cg")).complete
            admin.set_offset("cg", MessageQueue("orders", "broker-a", 0), 0)
        yield broker


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    liar = Liar(request.param)
    ask, ask_blocking = ConnectionPool.request, BlockingConnection.request

    async def asked(pool: ConnectionPool, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        return liar.altered(await ask(pool, address, command, timeout_ms))

    def asked_blocking(connection: BlockingConnection, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        return liar.altered(ask_blocking(connection, command, timeout_ms))

    monkeypatch.setattr(ConnectionPool, "request", asked)
    monkeypatch.setattr(BlockingConnection, "request", asked_blocking)


@pytest.mark.slow
@pytest.mark.parametrize("lies", range(3), indirect=True)
@pytest.mark.usefixtures("lies")
async def test_admin(cluster: Embedded) -> None:
    """Each question ends with an answer or an MQError."""
    for _ in range(6):
        async with Admin(cluster.namesrv_address) as admin:
            for question in questions(admin, cluster.broker_addresses[0]):
                try:
                    async with asyncio.timeout(60):
                        await question()
                except (MQError, ConnectionError):
                    continue


def ended(act: Callable[[], object]) -> None:
    """Let something end with a result or an MQError."""
    try:
        act()
    except MQError:
        return


@pytest.mark.slow
@pytest.mark.parametrize("lies", range(3), indirect=True)
@pytest.mark.usefixtures("lies")
def test_reader(cluster: Embedded) -> None:
    """The pipeline's reader ends: it neither spins nor raises anything else."""
    queue = MessageQueue("orders", "broker-a", 0)
    for _ in range(20):
        with QueueReader(ReaderConfig(namesrv=cluster.namesrv_address, retry_count=1, retry_ms=1)) as reader:
            ended(lambda: reader.queues("orders"))
            ended(lambda: reader.range(queue))
            ended(lambda: reader.ranges("orders", "broker-a"))
            ended(lambda: reader.offset_by_time(queue, 0))
            ended(lambda: read_all(reader, queue))


def read_all(reader: QueueReader, queue: MessageQueue) -> None:
    for count, _ in enumerate(reader.read_range(queue, 0, 10)):
        assert count < PULLS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("lies", range(3), indirect=True)
@pytest.mark.usefixtures("lies")
def test_samples_and_doctor(cluster: Embedded) -> None:
    """A sample of the pipeline and the doctor's diagnosis are made of what is readable, or end with an MQError."""

    def sampled() -> None:
        with SyncAdmin(cluster.namesrv_address) as admin:
            topology = survey(admin, "RMQ_SYS_TRACE_TOPIC", ("*",))
            found = sample(admin, topology, "c", NOW_MS)
            assert not found.behind({}) or found.rows

    for _ in range(6):
        ended(sampled)
        ended(lambda: examine(cluster.namesrv_address, NOW_MS))
