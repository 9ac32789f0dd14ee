"""What the library for Kafka returns and raises, as records and errors of a migration."""

from __future__ import annotations

import asyncio
import ssl
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from mqtrail.migrate import KafkaAway, KafkaConfig, KafkaRecord, KafkaTopic, MigrateError
from mqtrail.migrate.kafka import TURN_COUNT, connecting
from mqtrail.migrate.kafka_writer import KafkaWriter
from mqtrail.wire import MQError


async def test_a_record_that_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where the bridge is."""
    topic = KafkaTopic(KafkaConfig("h:1"), "orders")

    class Consumer:
        def assign(self, places: object) -> None:
            pass

        def seek(self, place: object, offset: int) -> None:
            pass

        async def getmany(self, **options: int) -> None:
            b"\xff".decode()

    monkeypatch.setattr(topic, "_consumer", Consumer(), raising=False)
    topic.begin({3: 17})
    with pytest.raises(MigrateError, match=r"topic 'orders' \(next offsets by partition: \{3: 17\}\).*UTF-8"):
        await topic.read(1, 1)


async def test_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library returns one partition after the other; then few queues would be sent to at once."""
    topic = KafkaTopic(KafkaConfig("h:1"), "orders")
    counts = {0: TURN_COUNT + 3, 1: 2, 2: 2 * TURN_COUNT}

    class Consumer:
        async def getmany(self, **options: int) -> dict[TopicPartition, list[Any]]:
            return {
                TopicPartition("orders", one): [
                    SimpleNamespace(offset=offset, timestamp=7, key=b"k", value=b"v", headers=(("h", b"x"),))
                    for offset in range(count)
                ]
                for one, count in counts.items()
            }

    monkeypatch.setattr(topic, "_consumer", Consumer(), raising=False)
    records = await topic.read(1_000, 1)
    assert [one for one, _ in groupby(record.partition for record in records)] == [0, 1, 2, 0, 2]
    assert {one: [record.offset for record in records if record.partition == one] for one in counts} == {
        one: list(range(count)) for one, count in counts.items()
    }
    assert records[0].headers == (("h", b"x"),)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (kafka_errors.SaslAuthenticationFailed("no such user"), "Kafka refused the log-in: .*no such user"),
        (ssl.SSLError("certificate verify failed"), "found no TLS connection to Kafka at h:1: .*ssl.ca.location"),
        (OSError("refused"), "Kafka did not answer a request for the topic 'orders': .*Unable to bootstrap"),
        (None, "Unable to bootstrap"),
    ],
)
async def test_why_it_cannot_connect(error: Exception | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library says only that it cannot; another connection tells whether a retry is of use."""

    async def connect(host: str, port: int, **options: Any) -> Any:
        assert (host, port, options["sasl_mechanism"]) == ("h", 1, "PLAIN")
        if error is not None:
            raise error
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr("mqtrail.migrate.kafka.create_conn", connect)
    with pytest.raises(MQError, match=found) as raised:
        async with connecting(KafkaConfig("h:1"), "topic 'orders'"):
            raise kafka_errors.KafkaConnectionError("Unable to bootstrap")
    is_final = isinstance(error, ssl.SSLError | kafka_errors.SaslAuthenticationFailed)
    assert isinstance(raised.value, MigrateError if is_final else KafkaAway)


async def test_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets and members, of a coordinator that is not there at once; offsets are committed without a member."""
    topic = KafkaTopic(KafkaConfig("h:1"), "orders")
    tries = 0

    class KafkaAdmin:
        async def list_consumer_group_offsets(self, group: str) -> dict[TopicPartition, Any]:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise kafka_errors.GroupCoordinatorNotAvailableError
            places = {("orders", 0): 5, ("orders", 1): -1, ("other", 0): 7}
            return {TopicPartition(*place): SimpleNamespace(offset=at) for place, at in places.items()}

        async def describe_consumer_groups(self, groups: list[str]) -> list[Any]:
            code = 0 if groups == ["g"] else kafka_errors.GroupAuthorizationFailedError.errno
            return [SimpleNamespace(groups=[(code, "g", "Stable", "consumer", "range", ["a", "b"])])]

    class Consumer:
        def __init__(self, **options: Any) -> None:
            assert (options["group_id"], options["enable_auto_commit"]) == ("g", False)

        async def start(self) -> None:
            pass

        async def stop(self) -> None:
            pass

        def assign(self, places: list[TopicPartition]) -> None:
            pass

        async def commit(self, places: dict[TopicPartition, int]) -> None:
            if TopicPartition("orders", 1) in places:
                raise kafka_errors.CommitFailedError

    monkeypatch.setattr("mqtrail.migrate.kafka.FIND_COORDINATOR_S", 0.001)
    monkeypatch.setattr("mqtrail.migrate.kafka.AIOKafkaConsumer", Consumer)
    monkeypatch.setattr(topic, "_admin", KafkaAdmin(), raising=False)
    assert await topic.committed("g") == {0: 5}
    assert await topic.member_count("g") == 2
    with pytest.raises(MigrateError, match="found no right to read the members of group 'none'"):
        await topic.member_count("none")
    await topic.commit("g", {0: 7})
    with pytest.raises(MigrateError, match="found running members of group 'g' in Kafka"):
        await topic.commit("g", {1: 7})


class Library:
    """The library's producer: what was sent, and what comes of it."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.options: dict[str, Any] = {}

    def __call__(self, **options: Any) -> Library:
        self.options = options
        return self

    async def start(self) -> None:
        if self.error is not None:
            raise self.error

    async def stop(self) -> None:
        self.sent.append(("stopped",))

    async def partitions_for(self, topic: str) -> set[int]:
        return {2, 0, 1}

    async def send(self, topic: str, value: bytes | None, **more: Any) -> asyncio.Future[Any]:
        self.sent.append((topic, value, *more.values()))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.error is None:
            future.set_result(SimpleNamespace(partition=more["partition"], offset=7, timestamp=1))
        else:
            future.set_exception(self.error)
        return future


async def test_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records go to their partition; what Kafka refuses is told from what it does not answer."""
    library = Library()
    monkeypatch.setattr("mqtrail.migrate.kafka_writer.AIOKafkaProducer", library)
    record = KafkaRecord("orders", 1, -1, -1, b"k", b"v", (("h", None),))
    async with KafkaWriter(KafkaConfig("h:1"), "orders", is_idempotent=True) as writer:
        assert {await writer.partition_of(b"k%d" % number) for number in range(50)} == {0, 1, 2}
        assert await writer.partition_of(b"k") == await writer.partition_of(b"k")
        assert (await writer.stored(await writer.begin(record))).offset == 7
        await writer.begin(record._replace(timestamp_ms=5))
        for error, kind, found in (
            (kafka_errors.MessageSizeTooLargeError(), MigrateError, "raise max.message.bytes"),
            (kafka_errors.TopicAuthorizationFailedError(), MigrateError, "no right to write to the topic 'orders'"),
            (kafka_errors.KafkaTimeoutError(), KafkaAway, "did not answer"),
        ):
            library.error = error
            with pytest.raises(kind, match=found):
                await writer.stored(await writer.begin(record))
    assert library.options["enable_idempotence"]
    assert library.sent[:2] == [("orders", b"v", b"k", 1, at, [("h", None)]) for at in (None, 5)]
    with pytest.raises(KafkaAway, match="did not answer"):
        async with KafkaWriter(KafkaConfig("h:1"), "orders"):
            pass
    assert library.sent[-1] == ("stopped",)
