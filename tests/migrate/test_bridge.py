"""The bridge and its groups with our broker and a Kafka in memory: what it refuses, and how it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import Admin, ProducerConfig, SyncAdmin
from mqtrail.migrate import (
    Bridge,
    BridgeConfig,
    BridgeState,
    GroupMove,
    KafkaAway,
    KafkaConfig,
    KafkaRecord,
    MigrateError,
    move_group,
)
from mqtrail.migrate.offsetmap import MapEntry, MapFile, Pair, read_map
from mqtrail.migrate.state import MAP, read_bridge
from mqtrail.testing import Embedded, embedded
from mqtrail.wire import SubscriptionGroupConfig, TopicConfig

from .fake_kafka import FakeKafka, FakeTopic


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
def admin(broker: Embedded) -> Iterator[SyncAdmin]:
    with SyncAdmin(broker.namesrv_address) as one:
        yield one


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """Two partitions with three records each."""
    kafka = FakeKafka()
    for number in range(6):
        kafka.put("orders", number % 2, b"k%d" % (number % 2), b"v%d" % number)
    monkeypatch.setattr("mqtrail.migrate.bridge.KafkaTopic", kafka.connect)
    monkeypatch.setattr("mqtrail.migrate.groups.KafkaTopic", kafka.connect)
    monkeypatch.setattr("mqtrail.feed.run.RETRY_S", 0.001)
    return kafka


@pytest.fixture
def config(request: pytest.FixtureRequest, admin: SyncAdmin, tmp_path: Path) -> BridgeConfig:
    """To a topic of two queues named as the test, to the end of Kafka's."""
    target: str = request.node.originalname
    assert admin.create_topic(TopicConfig(target, 2, 2)).complete
    return BridgeConfig(
        kafka=KafkaConfig("kafka:9092"), topic="orders", target=target, folder=tmp_path / "migration", is_once=True
    )


def run(config: BridgeConfig, broker: Embedded) -> BridgeState:
    """Run it to its end."""
    return asyncio.run(Bridge(config, broker.namesrv_address, ProducerConfig()).run())


def refused(config: BridgeConfig, broker: Embedded) -> str:
    """Run it; return the error."""
    with pytest.raises(MigrateError) as raised:
        run(config, broker)
    return str(raised.value)


def bodies(admin: SyncAdmin, topic: str) -> list[list[bytes]]:
    """Of each queue."""
    return [
        [one.body for one in admin.messages_of_queue(queue, 0, admin.max_offset(queue))]
        for queue in admin.queues(topic)
    ]


def test_goes_on(config: BridgeConfig, kafka: FakeKafka, broker: Embedded, admin: SyncAdmin) -> None:
    """After its end, after Kafka was away, and with a partition that is new; nothing is sent twice."""
    kafka.away = 2
    assert run(config, broker).counts == {"value": 6}
    kafka.put("orders", 0, b"k0", None)
    kafka.put("orders", 2, b"k2", b"new")
    state = run(config, broker)
    assert state.counts == {"value": 7, "tombstone": 1}
    assert state.next_offsets == {"0": 4, "1": 3, "2": 1}
    assert bodies(admin, config.target) == [[b"v0", b"v2", b"v4", b"\0", b"new"], [b"v1", b"v3", b"v5"]]


@pytest.mark.parametrize(("start", "count"), [("first", 6), ("end", 0), (1_002, 2)])
def test_start(
    start: str | int, count: int, kafka: FakeKafka, broker: Embedded, admin: SyncAdmin, tmp_path: Path
) -> None:
    """At the first record, at the end, or by time."""
    target = f"start-{start}"
    assert admin.create_topic(TopicConfig(target, 2, 2)).complete
    where = KafkaConfig("kafka:9092")
    config = BridgeConfig(kafka=where, topic="orders", target=target, folder=tmp_path, start=start, is_once=True)
    run(config, broker)
    assert sum(map(len, bodies(admin, target))) == count


def test_lost_records(config: BridgeConfig, kafka: FakeKafka, broker: Embedded) -> None:
    """Records that Kafka deleted before they were read stop it, until that is accepted; their number is kept."""
    run(config, broker)
    for number in range(4):
        kafka.put("orders", 1, b"k1", b"w%d" % number)
    kafka.firsts[1] = 5
    text = refused(config, broker)
    assert "found 5 as the first offset of partition 1" in text
    assert "expected 3, which is next: Kafka deleted 2 records" in text
    state = run(replace(config, may_lose=True), broker)
    assert (state.lost, state.counts) == ({"1": 2}, {"value": 8})
    kafka.put("orders", 2, b"k2", b"deleted")
    kafka.put("orders", 2, b"k2", b"new")
    kafka.firsts[2] = 1
    assert "found 1 as the first offset of partition 2" in refused(config, broker)
    state = run(replace(config, may_lose=True), broker)
    assert (state.lost, state.counts) == ({"1": 2, "2": 1}, {"value": 9})
    assert run(config, broker).lost == {"1": 2, "2": 1}


def test_marks_of_transactions(config: BridgeConfig, kafka: FakeKafka, broker: Embedded) -> None:
    """They leave no lag, and are no loss when Kafka deletes them."""
    kafka.partitions[0] += [None, None]
    state = run(config, broker)
    assert (state.next_offsets, state.lag()) == ({"0": 5, "1": 3}, 0)
    kafka.firsts[0] = 5
    assert run(config, broker).lost == {}


def test_reads_that_fail_each_time(
    config: BridgeConfig, kafka: FakeKafka, broker: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That Kafka answers other questions is no progress."""

    async def read(self: FakeTopic, count_max: int, wait_ms: int) -> list[KafkaRecord]:
        raise KafkaAway("a read failed")

    async def ended() -> None:
        async with asyncio.timeout(5):
            await Bridge(replace(config, retry_ms=50), broker.namesrv_address, ProducerConfig()).run()

    monkeypatch.setattr(FakeTopic, "read", read)
    with pytest.raises(MigrateError, match="a read failed; no progress for 0 s"):
        asyncio.run(ended())


def test_refused(config: BridgeConfig, kafka: FakeKafka, broker: Embedded, admin: SyncAdmin) -> None:
    """Each with what was found, what was expected, and a remedy; the folder then goes on."""
    kafka.policy = "compact,delete"
    assert "--compacted" in refused(config, broker)
    assert run(replace(config, may_be_compacted=True), broker).counts == {"value": 6}
    kafka.policy = "delete"
    kafka.cluster = "cluster-2"
    assert "found the Kafka cluster cluster-2, expected cluster-1" in refused(config, broker)
    kafka.cluster = "cluster-1"
    assert "found {'topic': 'other'" in refused(replace(config, topic="other"), broker)
    assert "expected an empty topic" in refused(replace(config, folder=config.folder / "new"), broker)
    kafka.away = 99
    assert "no progress for 0 s" in refused(replace(config, retry_ms=0), broker)
    kafka.away = 0
    removed = kafka.partitions[0].pop()
    assert "the target is ahead of its source" in refused(config, broker)
    kafka.partitions[0].append(removed)
    assert admin.create_topic(TopicConfig(config.target, 3, 3)).complete
    assert "--new-queues" in refused(config, broker)
    assert run(replace(config, takes_new_queues=True), broker).counts == {"value": 6}
    whole = (config.folder / MAP).read_text()
    (config.folder / MAP).write_text(whole.replace('"o": 2', '"o": 9'))
    assert "expected 10 or more, which the bridge has sent" in refused(config, broker)
    (config.folder / MAP).unlink()
    assert "found no offset map" in refused(config, broker)


@pytest.mark.parametrize("away", [0, 10_000])
def test_a_failed_send_ends_an_idle_bridge(
    away: int, config: BridgeConfig, kafka: FakeKafka, broker: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although no further record comes, or Kafka is away."""
    kafka.put("orders", 0, b"k0", b"x" * 2_000)
    is_read = asyncio.Event()

    async def read(self: FakeTopic, count_max: int, wait_ms: int) -> list[KafkaRecord]:
        if is_read.is_set() and away:
            kafka.away = away
            raise KafkaAway("Kafka did not answer")
        is_read.set()
        return await plain(self, count_max, wait_ms)

    plain = FakeTopic.read
    monkeypatch.setattr(FakeTopic, "read", read)
    config = replace(config, is_once=False, may_be_used=True)
    bridge = Bridge(config, broker.namesrv_address, ProducerConfig(body_size_max=1_000))

    async def ended() -> None:
        async with asyncio.timeout(5):
            await bridge.run()

    with pytest.raises(MigrateError, match="--skip-record orders:0:3"):
        asyncio.run(ended())


def test_a_full_disk(config: BridgeConfig, kafka: FakeKafka, broker: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that is saved is never ahead of the map."""
    appended = MapFile.append

    def append(file: MapFile, entries: dict[Pair, list[MapEntry]]) -> None:
        if len(failures) < 1:
            failures.append(OSError("No space left on device"))
            raise failures[0]
        appended(file, entries)

    failures: list[OSError] = []
    monkeypatch.setattr(MapFile, "append", append)
    monkeypatch.setattr("mqtrail.feed.run.SAVE_S", 0.001)

    async def failed() -> None:
        async with asyncio.timeout(5):
            await Bridge(replace(config, is_once=False), broker.namesrv_address, ProducerConfig()).run()

    with pytest.raises(OSError, match="No space"):
        asyncio.run(failed())
    state, known = read_bridge(config.folder), read_map(config.folder / MAP)
    assert state is not None
    assert known is not None
    bridged = {one: offset - 1 for one, offset in state.next_offsets.items() if offset}
    assert bridged == {str(one): entries[-1].kafka_offset for (one, _), entries in known.entries.items()}


def test_groups(config: BridgeConfig, kafka: FakeKafka, broker: Embedded, admin: SyncAdmin) -> None:
    """Shown first, then written; a group that is further is kept, unless told; a bridge that is behind is told."""
    groups = ("billing", "billing")

    def move(*, is_applied: bool = False, **more: Any) -> GroupMove:
        async def moved() -> GroupMove:
            async with Admin(broker.namesrv_address) as one:
                return await move_group(config.folder, config.kafka, one, groups, is_applied=is_applied, **more)

        return asyncio.run(moved())

    with pytest.raises(MigrateError, match="found no bridge"):
        move()
    run(config, broker)
    kafka.groups["billing"] = {0: 5, 1: 0}
    planned = move()
    assert [(one.before, one.after) for one in planned.queues] == [(None, 3), (None, 0)]
    assert (planned.behind, planned.is_complete) == (2, False)
    with pytest.raises(MigrateError, match="mqtrail group create billing"):
        move(is_applied=True)
    assert admin.create_group(SubscriptionGroupConfig("billing")).complete
    assert move(is_applied=True).is_complete
    kafka.groups["billing"] = {1: 3}
    assert [(one.before, one.after, one.is_kept) for one in move().queues] == [(3, 3, True), (0, 3, False)]
    rewound = move(is_applied=True, may_rewind=True)
    assert [(one.before, one.after, one.is_kept) for one in rewound.queues] == [(3, 0, False), (0, 3, False)]
    kafka.cluster = "cluster-2"
    with pytest.raises(MigrateError, match="cluster-2"):
        move()
