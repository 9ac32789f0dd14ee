"""`mqtrail migrate` with a real Kafka and our broker, verified by reading the topic back."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from interop.kafka import KafkaServer
from tests.waiting import wait_until

from mqtrail.client import Admin, MessageExt, ProducerConfig, SyncAdmin
from mqtrail.migrate import (
    Bridge,
    BridgeConfig,
    BridgeState,
    CompareSides,
    Comparison,
    GroupReturn,
    KafkaConfig,
    KafkaTopic,
    MigrateError,
    OrderBy,
    TeeConfig,
    TeeCounts,
    TeeProducer,
    TeeSide,
    compare,
    move_group,
    read_bridge,
    resend_files,
    return_group,
    waiting_files,
)
from mqtrail.migrate.copies import TeeCopy, ToKafka, ToRocketMQ
from mqtrail.migrate.messages import key_of, value_of
from mqtrail.testing import Embedded, embedded
from mqtrail.trail import ProofResult
from mqtrail.wire import SubscriptionGroupConfig, TopicConfig

pytestmark = pytest.mark.interop

PARTITIONS = 3
TOPIC_S = 60.0  # until Kafka has created a topic, or deleted one
Sent = list[tuple[bytes | None, bytes | None]]
"""Key and value of records."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
def admin(broker: Embedded) -> Iterator[SyncAdmin]:
    with SyncAdmin(broker.namesrv_address) as one:
        yield one


@pytest.fixture
def config(request: pytest.FixtureRequest, kafka: KafkaServer, admin: SyncAdmin, tmp_path: Path) -> BridgeConfig:
    """Bridges a topic named as the test, to its end."""
    topic: str = re.sub(r"\W", "_", request.node.name.removeprefix("test_"))
    asyncio.run(create(kafka, NewTopic(topic, PARTITIONS, 1)))
    assert admin.create_topic(TopicConfig(topic, PARTITIONS, PARTITIONS)).complete
    return BridgeConfig(
        kafka=KafkaConfig(kafka.address), topic=topic, target=topic, folder=tmp_path / "migration", is_once=True
    )


async def create(kafka: KafkaServer, topic: NewTopic) -> None:
    """Create a topic of Kafka; wait until its partitions have leaders."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.address)
    await admin.start()
    try:
        await admin.create_topics([topic])
        async with asyncio.timeout(TOPIC_S):
            while True:
                (found,) = await admin.describe_topics([topic.name])
                if not found["error_code"] and all(not one["error_code"] for one in found["partitions"]):
                    return
    finally:
        await admin.close()


async def put(
    kafka: KafkaServer, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], **more: Any
) -> None:
    """Send records to Kafka, compressed."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.address, compression_type="zstd", linger_ms=5) as producer:
        await asyncio.gather(*[await producer.send(topic, value, key=key, **more) for key, value in records])


def some(chance: random.Random, first: int, count: int) -> Sent:
    """Records of 40 keys, a few without a value, each value unique."""
    return [
        (b"k%d" % chance.randrange(40), None if chance.random() < 0.05 else b"v%d" % number)
        for number in range(first, first + count)
    ]


def run(config: BridgeConfig, broker: Embedded) -> BridgeState:
    """Run it to its end."""
    return asyncio.run(Bridge(config, broker.namesrv_address, ProducerConfig()).run())


def read(admin: SyncAdmin, topic: str) -> list[list[MessageExt]]:
    """All messages, by queue."""
    return [list(admin.messages_of_queue(queue, 0, admin.max_offset(queue))) for queue in admin.queues(topic)]


def by_key(queues: list[list[MessageExt]]) -> tuple[dict[bytes | None, list[bytes | None]], int]:
    """The values of each key, in order, without repeats; and how many repeats there were."""
    values: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    places: dict[int, tuple[int, int]] = {}  # partition -> queue, last offset
    repeats = 0
    for number, queue in enumerate(queues):
        seen: dict[int, int] = {}
        for message in queue:
            partition, offset = int(message.properties["KAFKA_PARTITION"]), int(message.properties["KAFKA_OFFSET"])
            assert places.setdefault(partition, (number, 0))[0] == number, "a partition has one queue"
            if offset <= seen.get(partition, -1):
                repeats += 1
                continue
            seen[partition] = offset
            values[key_of(message.properties)].append(value_of(message.body, message.properties))
    return values, repeats


def expected(sent: Sent) -> dict[bytes | None, list[bytes | None]]:
    """The values of each key, in order."""
    values: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for key, value in sent:
        values[key].append(value)
    return values


def test_records_of_every_kind(config: BridgeConfig, kafka: KafkaServer, broker: Embedded, admin: SyncAdmin) -> None:
    """Keys, tombstones, headers, times; not those of an aborted transaction, whose marks do not stop the end."""

    async def fill() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id="t") as producer:
            async with producer.transaction():
                headers = [("trace", b"1"), ("raw", b"\xff"), ("TAGS", b"x")]
                await producer.send(config.topic, b"a", key=b"k 1", headers=headers, partition=0, timestamp_ms=1_000)
                await producer.send(config.topic, None, key=b"k 1", partition=0)
                await producer.send(config.topic, b"", partition=1, headers=[("ok", "é".encode())])
            await producer.begin_transaction()
            await producer.send(config.topic, b"never", partition=1)
            await producer.abort_transaction()

    asyncio.run(fill())
    state = run(config, broker)
    assert state.counts == {"value": 1, "tombstone": 1, "empty": 1}
    assert state.lag() is not None
    (a, tombstone), (empty,), _ = read(admin, config.topic)
    assert (a.body, a.properties["KAFKA_TIMESTAMP"], a.properties["trace"]) == (b"a", "1000", "1")
    assert a.keys == ("k%201", f"{config.topic}:0:0")
    assert a.properties["KAFKA_HEADERS"] == '[["trace","MQ=="],["raw","/w=="],["TAGS","eA=="]]'
    assert value_of(tombstone.body, tombstone.properties) is None
    assert value_of(empty.body, empty.properties) == b""
    assert empty.properties["ok"] == "é"
    assert run(config, broker).counts == state.counts, "nothing is sent twice"


def bridging(config: BridgeConfig, broker: Embedded) -> subprocess.Popen[bytes]:
    """`mqtrail migrate bridge` in a process of its own."""
    command = [sys.executable, "-m", "mqtrail", "migrate", "bridge", config.topic, "--kafka", config.kafka.bootstrap]
    command += ["--folder", str(config.folder)]
    environment = os.environ | {"NAMESRV_ADDR": broker.namesrv_address}
    return subprocess.Popen(command, env=environment, cwd=config.folder.parent, stderr=subprocess.PIPE)


def sent_count(config: BridgeConfig) -> int:
    """How many records the state file says are acknowledged."""
    state = read_bridge(config.folder)
    return 0 if state is None else sum(state.counts.values())


def test_killed_and_continued(config: BridgeConfig, kafka: KafkaServer, broker: Embedded, admin: SyncAdmin) -> None:
    """kill -9 while it sends, then SIGTERM: each record once or more, in order by key; a group misses none."""
    chance = random.Random(7)
    sent = some(chance, 0, 12_000)
    asyncio.run(put(kafka, config.topic, sent))

    def has_sent(running: subprocess.Popen[bytes], before: int) -> bool:
        return running.poll() is not None or sent_count(config) > before

    for last in (signal.SIGKILL, signal.SIGTERM):
        before = sent_count(config)
        running = bridging(config, broker)
        wait_until(partial(has_sent, running, before))
        assert running.poll() is None, running.communicate()[1].decode()
        more = some(chance, len(sent), 500)
        asyncio.run(put(kafka, config.topic, more))
        sent += more
        running.send_signal(last)
        running.communicate(timeout=60)
        assert running.returncode == (0 if last is signal.SIGTERM else -signal.SIGKILL)
    state = run(config, broker)
    assert state.lag() == 0
    queues = read(admin, config.topic)
    found, repeats = by_key(queues)
    assert found == expected(sent)
    assert repeats <= 2 * 4_096, "at most what was in flight, and what was acknowledged since the last save"
    same = asyncio.run(compared(config, broker))
    assert (same.outcome, same.matched, same.counts["double"]) == (ProofResult.NONE, len(sent), repeats)
    asyncio.run(commit(kafka, config.topic, "billing", {0: 1_000, 1: 3_000, 2: state.next_offsets["2"]}))
    check_translated(config, broker, admin, queues)


async def compared(config: BridgeConfig, broker: Embedded) -> Comparison:
    """Compare both sides; repeats are expected."""
    async with Admin(broker.namesrv_address) as admin:
        wanted = CompareSides(kafka=config.kafka, topic=config.topic, target=config.target, folder=config.folder)
        return await compare(replace(wanted, accepted=frozenset({"double"})), admin)


async def commit(kafka: KafkaServer, topic: str, group: str, offsets: dict[int, int]) -> None:
    """Commit offsets of a Kafka group."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.address, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        places = {TopicPartition(topic, one): offset for one, offset in offsets.items()}
        consumer.assign(list(places))
        await consumer.commit(places)
    finally:
        await consumer.stop()


def check_translated(config: BridgeConfig, broker: Embedded, admin: SyncAdmin, queues: list[list[MessageExt]]) -> None:
    """A group of RocketMQ gets all that the Kafka group has not committed."""

    async def move(is_applied: bool, **more: bool) -> Any:
        async with Admin(broker.namesrv_address) as one:
            groups = ("billing", "billing_rmq")
            return await move_group(config.folder, config.kafka, one, groups, is_applied=is_applied, **more)

    planned = asyncio.run(move(False))
    assert [one.before for one in planned.queues] == [None] * PARTITIONS
    with pytest.raises(MigrateError, match="mqtrail group create billing_rmq"):
        asyncio.run(move(True))
    assert admin.create_group(SubscriptionGroupConfig("billing_rmq")).complete
    applied = asyncio.run(move(True))
    assert applied.is_complete
    assert [one.after for one in applied.queues] == [one.after for one in planned.queues]
    begins = [admin.consumer_offset("billing_rmq", queue) for queue in admin.queues(config.topic)]
    assert begins == [one.after for one in applied.queues]
    assert begins[2] == len(queues[2]), "what is committed to the end is known exactly"
    for partition, (begin, committed) in enumerate(zip(begins, (1_000, 3_000), strict=False)):
        assert begin is not None
        got = {int(one.properties["KAFKA_OFFSET"]) for one in queues[partition][begin:]}
        kept = {int(one.properties["KAFKA_OFFSET"]) for one in queues[partition]}
        assert {one for one in kept if one >= committed} <= got
    assert all(one.is_kept for one in asyncio.run(move(True)).queues), "it can be repeated"


def test_by_key_to_other_queues(config: BridgeConfig, kafka: KafkaServer, broker: Embedded, admin: SyncAdmin) -> None:
    """With --order key, a key has the queue that by_hash of the clients chooses; also from new partitions."""
    config = replace(config, order=OrderBy.KEY)
    sent = some(random.Random(1), 0, 200)
    asyncio.run(put(kafka, config.topic, sent))
    run(config, broker)
    values: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for queue in read(admin, config.topic):
        for message in queue:
            values[key_of(message.properties)].append(value_of(message.body, message.properties))
    assert values == expected(sent)


def refused(config: BridgeConfig, broker: Embedded) -> str:
    """Run it; return the error."""
    with pytest.raises(MigrateError) as raised:
        run(config, broker)
    return str(raised.value)


def test_refused(config: BridgeConfig, kafka: KafkaServer, broker: Embedded, admin: SyncAdmin) -> None:
    """Each with what was found, what was expected, and a remedy; after it, the same folder goes on."""
    asyncio.run(create(kafka, NewTopic("compacted", 1, 1, topic_configs={"cleanup.policy": "compact,delete"})))
    assert "--compacted" in refused(replace(config, topic="compacted"), broker)
    assert "found no topic 'none' in Kafka" in refused(replace(config, topic="none"), broker)
    away = replace(config, kafka=KafkaConfig("127.0.0.1:1"), retry_ms=0)
    assert "check that Kafka runs at 127.0.0.1:1" in refused(away, broker)
    assert "mqtrail topic create none" in refused(replace(config, target="none"), broker)
    large = [(b"k", b"a"), (b"k", b"x" * 700_000), (b"k", b"b")]
    asyncio.run(put(kafka, config.topic, large))

    def small() -> BridgeState:
        producer = ProducerConfig(body_size_max=500_000)
        return asyncio.run(Bridge(config, broker.namesrv_address, producer).run())

    with pytest.raises(MigrateError) as raised:
        small()
    (place,) = re.findall(r"--skip-record (\S+);", str(raised.value))
    config = replace(config, skip=frozenset({place}))
    state = small()
    assert (state.skipped, state.counts) == ([place], {"value": 2})
    assert [one.body for queue in read(admin, config.topic) for one in queue] == [b"a", b"b"]
    assert "--into-used-topic" in refused(replace(config, folder=config.folder.with_name("other")), broker)


def test_recreated_topics(config: BridgeConfig, kafka: KafkaServer, broker: Embedded, admin: SyncAdmin) -> None:
    """A source behind the state, or a target behind the map, is refused."""
    asyncio.run(put(kafka, config.topic, some(random.Random(1), 0, 30)))
    run(config, broker)

    async def delete() -> None:
        one = AIOKafkaAdminClient(bootstrap_servers=kafka.address)
        await one.start()
        await one.delete_topics([config.topic])
        async with asyncio.timeout(TOPIC_S):
            while not (await one.describe_topics([config.topic]))[0]["error_code"]:
                pass
        await one.close()

    asyncio.run(delete())
    asyncio.run(create(kafka, NewTopic(config.topic, PARTITIONS, 1)))
    assert "the target is ahead of its source" in refused(config, broker)
    assert admin.delete_topic(config.topic).complete
    assert admin.create_topic(TopicConfig(config.topic, PARTITIONS, PARTITIONS)).complete
    assert "which the bridge has sent" in refused(config, broker)


@pytest.mark.parametrize("decides", TeeSide)
def test_tee(
    decides: TeeSide, config: BridgeConfig, kafka: KafkaServer, broker: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a bridge, records written by the tee are equal on both sides, in order by key; a dropped copy is found."""
    asyncio.run(put(kafka, config.topic, some(random.Random(1), 0, 50)))
    run(config, broker)
    sent = some(random.Random(2), 50, 400)
    wanted = TeeConfig(
        kafka=config.kafka, topic=config.topic, target=config.target, folder=config.folder, decides=decides
    )

    async def write(records: Sent) -> TeeCounts:
        async with TeeProducer(wanted, broker.namesrv_address) as tee:
            await asyncio.gather(*[tee.send(value, key=key) for key, value in records])
            await tee.send(b"no key", headers=[("trace", b"1"), ("raw", b"\xff")])
            return await tee.drain()

    async def same() -> Comparison:
        async with Admin(broker.namesrv_address) as admin:
            sides = CompareSides(kafka=config.kafka, topic=config.topic, target=config.target, folder=config.folder)
            return await compare(replace(sides, grace_ms=0), admin)

    counts = asyncio.run(write(sent))
    assert (counts.sent, counts.copied, counts.failed, counts.lost) == (401, 401, 0, 0)
    found = asyncio.run(same())
    assert (found.outcome, found.matched, found.pending) == (ProofResult.NONE, 451, 0)
    writer = ToRocketMQ if decides is TeeSide.KAFKA else ToKafka
    original = writer.write

    async def forgetful(self: Any, copies: Sequence[TeeCopy]) -> None:
        if kept := [one for one in copies if one.record.value != b"v500"]:
            await original(self, kept)

    monkeypatch.setattr(writer, "write", forgetful)
    asyncio.run(write([(b"k1", b"v%d" % number) for number in range(490, 510)]))
    found = asyncio.run(same())
    kind = "missing" if decides is TeeSide.KAFKA else "extra"
    assert {one: count for one, count in found.counts.items() if count} == {kind: 1}


TEEING = """
import asyncio, sys
from pathlib import Path
from mqtrail.migrate import KafkaConfig, TeeConfig, TeeProducer, TeeSide

async def main(kafka, namesrv, topic, folder, decides):
    config = TeeConfig(
        kafka=KafkaConfig(kafka), topic=topic, target=topic, folder=Path(folder), decides=TeeSide(decides)
    )
    async with TeeProducer(config, namesrv) as tee:
        async def sender(number):
            for count in range(1_000_000):
                value = b"%d-%d" % (number, count)
                await tee.send(value, key=b"k%d" % number)
                sys.stdout.buffer.write(value + b"\\n")
        await asyncio.gather(*map(sender, range(20)))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("decides", TeeSide)
def test_a_killed_tee(decides: TeeSide, config: BridgeConfig, kafka: KafkaServer, broker: Embedded) -> None:
    """kill -9 under load: what was answered is on both sides after `copies --send`; the rest is named by compare."""
    arguments = [kafka.address, broker.namesrv_address, config.topic, str(config.folder), str(decides)]
    answers = config.folder.parent / "answers"
    with answers.open("wb") as file:
        running = subprocess.Popen([sys.executable, "-u", "-c", TEEING, *arguments], stdout=file)
        try:
            wait_until(lambda: running.poll() is not None or answers.read_bytes().count(b"\n") > 2_000)
        finally:
            running.kill()
            running.wait(60)
    answered = set(answers.read_bytes().rpartition(b"\n")[0].split())
    assert len(answered) > 1_900, "it ran under load"

    async def find() -> tuple[int, int, Comparison]:
        waiting = sum(one.count for one in waiting_files(config.folder))
        sent = await resend_files(config.folder, config.kafka, broker.namesrv_address, ProducerConfig(), 10_000)
        async with Admin(broker.namesrv_address) as admin:
            sides = CompareSides(
                kafka=config.kafka,
                topic=config.topic,
                target=config.target,
                folder=config.folder,
                grace_ms=0,
                examples=100,
                accepted=frozenset({"double"}),
            )
            return waiting, sum(one.sent for one in sent), await compare(sides, admin)

    waiting, sent, found = asyncio.run(find())
    print(len(answered), "answered,", waiting, "on their way,", found.counts)
    assert (waiting_files(config.folder), sent) == ([], waiting)
    one_sided = "missing" if decides is TeeSide.KAFKA else "extra"
    repeats = "double" if decides is TeeSide.KAFKA else "missing"  # what a copy is that was stored twice
    assert {kind for kind, n in found.counts.items() if n} <= {one_sided, repeats}
    if decides is TeeSide.ROCKETMQ:
        assert found.counts[repeats] <= PARTITIONS, "one copy of a partition is sent at a time"
    assert found.counts[one_sided] <= 20, "a record of each sender may be without an answer"
    assert found.matched >= len(answered)


def test_back(config: BridgeConfig, kafka: KafkaServer, broker: Embedded, admin: SyncAdmin) -> None:
    """A group that goes back gets all that it has not consumed in RocketMQ; not while its members run."""
    topic, group = config.topic, "returning"
    asyncio.run(put(kafka, topic, some(random.Random(1), 0, 600)))
    run(config, broker)
    asyncio.run(commit(kafka, topic, group, dict.fromkeys(range(PARTITIONS), 10)))
    assert admin.create_group(SubscriptionGroupConfig(group)).complete

    async def back(**more: bool) -> GroupReturn:
        async with Admin(broker.namesrv_address) as one:
            return await return_group(config.folder, config.kafka, one, (group, group), is_applied=True, **more)

    async def forth() -> None:
        async with Admin(broker.namesrv_address) as one:
            assert (await move_group(config.folder, config.kafka, one, (group, group), is_applied=True)).is_complete

    async def back_beside_a_member() -> None:
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka.address, group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            with pytest.raises(MigrateError, match="found 1 running members of group 'returning' in Kafka"):
                await back()
        finally:
            await consumer.stop()

    async def committed() -> dict[int, int]:
        async with KafkaTopic(config.kafka, topic) as one:
            return await one.committed(group)

    asyncio.run(forth())
    queues = admin.queues(topic)
    ends = [admin.max_offset(queue) for queue in queues]
    for queue, offset in zip(queues, (ends[0], ends[1], 30), strict=True):
        admin.set_offset(group, queue, offset)
    asyncio.run(back_beside_a_member())
    places = asyncio.run(committed())
    assert places == dict.fromkeys(range(PARTITIONS), 10)
    found = asyncio.run(back())
    assert (asyncio.run(committed()), found.unread) == ({0: ends[0], 1: ends[1], 2: 10}, ends[2] - 30)

    async def write() -> None:
        wanted = TeeConfig(
            kafka=config.kafka, topic=topic, target=topic, folder=config.folder, decides=TeeSide.ROCKETMQ
        )
        async with TeeProducer(wanted, broker.namesrv_address) as tee:
            await asyncio.gather(*[tee.send(b"t%d" % number, key=b"k%d" % (number % 9)) for number in range(100)])

    asyncio.run(write())
    with pytest.raises(MigrateError, match="expected nothing: whether each message of the tee has its record"):
        asyncio.run(back())
    same = asyncio.run(compared(config, broker))
    assert (same.outcome, same.matched) == (ProofResult.NONE, 700)
    for queue, end in zip(queues, ends, strict=True):
        admin.set_offset(group, queue, end + 5)
    found = asyncio.run(back())
    assert (found.unknown, found.lost, found.unread) == ([], 0, 85)
    assert asyncio.run(committed()) == {0: ends[0], 1: ends[1], 2: ends[2]}, "all of the tee is of the last minute"
