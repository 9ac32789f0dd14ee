"""The comparison finds what was planted, and nothing else; with our broker and a Kafka in memory."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import Admin, ProducerConfig, SyncAdmin, SyncProducer
from mqtrail.clock import now_ms
from mqtrail.migrate import (
    Bridge,
    BridgeConfig,
    BridgeState,
    CompareSides,
    Comparison,
    KafkaConfig,
    MigrateError,
    compare,
)
from mqtrail.migrate.comparing import KeyJudge, KeySorter, Row
from mqtrail.migrate.state import save_bridge
from mqtrail.testing import Embedded, embedded
from mqtrail.trail import ProofResult
from mqtrail.wire import Message, TopicConfig

from .fake_kafka import FakeKafka

KAFKA = KafkaConfig("kafka:9092")
Change = Callable[[list[Row], list[Row]], None]


@pytest.fixture(scope="module")
def broker() -> Iterator[Embedded]:
    with embedded() as running:
        yield running


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """Two partitions with three records each."""
    kafka = FakeKafka()
    for number in range(6):
        kafka.put("orders", number % 2, b"k%d" % (number % 2), b'{"id":%d}' % number)
    monkeypatch.setattr("mqtrail.migrate.bridge.KafkaTopic", kafka.connect)
    monkeypatch.setattr("mqtrail.migrate.comparing.KafkaTopic", kafka.connect)
    return kafka


@pytest.fixture
def target(request: pytest.FixtureRequest, broker: Embedded) -> str:
    """A topic of two queues named as the test."""
    name: str = request.node.originalname
    with SyncAdmin(broker.namesrv_address) as admin:
        assert admin.create_topic(TopicConfig(name, 2, 2)).complete
    return name


def bridge(target: str, folder: Path, broker: Embedded) -> None:
    """Bridge all that is there."""
    config = BridgeConfig(kafka=KAFKA, topic="orders", target=target, folder=folder, is_once=True, may_be_used=True)
    asyncio.run(Bridge(config, broker.namesrv_address, ProducerConfig()).run())


def compared(config: CompareSides, broker: Embedded) -> Comparison:
    """Compare."""

    async def run() -> Comparison:
        async with Admin(broker.namesrv_address) as admin:
            return await compare(config, admin)

    return asyncio.run(run())


def test_bridged(target: str, kafka: FakeKafka, broker: Embedded, tmp_path: Path) -> None:
    """Equal after the bridge; then a changed value, records to come, repeats, and a range of time."""
    config = CompareSides(kafka=KAFKA, topic="orders", target=target, folder=tmp_path)
    bridge(target, tmp_path, broker)
    found = compared(config, broker)
    assert (found.outcome, found.matched, found.keys) == (ProofResult.NONE, 6, 2)
    assert (tmp_path / "compare.json").exists()
    kafka.put("orders", 0, b"k0", None)
    assert compared(config, broker).pending == 1
    alone = replace(config, folder=tmp_path / "none")
    assert compared(alone, broker).counts["missing"] == 1, "without the state of the bridge its age decides"
    assert compared(replace(alone, until_ms=1_002), broker).matched == 4
    kafka.change(0, 1, value=b"x")
    found = compared(config, broker)
    assert (found.outcome, found.counts["different"]) == (ProofResult.FOUND, 1)
    assert found.examples == {"different": ["k0: Kafka 0/1 and broker-a/0 at 1"]}
    bridge(target, tmp_path / "again", broker)
    found = compared(replace(config, accepted=frozenset({"double", "different"})), broker)
    assert (found.outcome, found.counts["double"]) == (ProofResult.NONE, 6)
    kafka.firsts[1] = 2
    found = compared(replace(config, accepted=frozenset({"double", "different"})), broker)
    assert found.outcome is ProofResult.CANNOT_TELL
    assert found.gaps == {"records of Kafka that expired or were compacted away": 4}
    with pytest.raises(MigrateError, match="expected one from 'other'"):
        compared(replace(config, topic="other"), broker)


def test_sent_to_both(target: str, kafka: FakeKafka, broker: Embedded, tmp_path: Path) -> None:
    """Messages of producers that send to both sides, by a field of the value; two of them swapped, one too many."""
    config = CompareSides(kafka=KAFKA, topic="orders", target=target, folder=tmp_path, grace_ms=0)
    for offset in range(len(kafka.partitions[0])):
        kafka.change(0, offset, key=b"k0")
    with SyncAdmin(broker.namesrv_address) as admin, SyncProducer("p", broker.namesrv_address) as producer:
        queues = sorted(admin.queues(target), key=lambda one: one.queue_id)
        for number in (0, 4, 2, 1, 3, 5, 5):
            body = b'{"id":%d}' % number
            producer.send(Message(target, body, keys=f"k{number % 2}"), queue=queues[number % 2])
    found = compared(config, broker)
    assert (found.matched, found.counts["order"], found.counts["double"]) == (6, 1, 1)
    assert sum(found.counts.values()) == 2
    assert found.examples["order"] == ["k0: broker-a/0 at 2 is after that of Kafka 0/2"]
    young = compared(replace(config, grace_ms=3_600_000), broker)
    assert (young.matched, young.counts["double"], young.pending) == (6, 0, 1), "its record may come"
    by_id = compared(replace(config, key="json:id"), broker)
    assert (by_id.keys, by_id.counts["double"], by_id.counts["order"]) == (6, 1, 0)
    late = compared(replace(config, late_ms=1), broker)
    assert late.counts["late"] == 6
    with pytest.raises(MigrateError, match="expected kafka, header:NAME"):
        compared(replace(config, key="id"), broker)


def test_headers_as_keys(target: str, kafka: FakeKafka, broker: Embedded, tmp_path: Path) -> None:
    """Also of headers that do not fit properties."""
    headers = ((("id", b"\xff"),), (("id", b"1"), ("id", b"2")), (("id", None),), (("id", b"3"), ("KEYS", b"4")))
    kafka.partitions.clear()
    for one in headers:
        kafka.put("orders", 0, b"k", b"v", headers=one)
    bridge(target, tmp_path, broker)
    for name in ("id", "KEYS"):
        found = compared(
            CompareSides(kafka=KAFKA, topic="orders", target=target, folder=tmp_path, key=f"header:{name}"), broker
        )
        assert (found.outcome, found.matched, sum(found.counts.values())) == (ProofResult.NONE, 4, 0)


def test_compacted(target: str, kafka: FakeKafka, broker: Embedded, tmp_path: Path) -> None:
    """A record that Kafka compacted away after it was bridged cannot be compared; its message is not too many."""
    bridge(target, tmp_path, broker)
    kafka.partitions[0][1] = kafka.partitions[0][0]  # its reader passes the gap
    config = CompareSides(kafka=KAFKA, topic="orders", target=target, folder=tmp_path, accepted=frozenset({"extra"}))
    assert compared(config, broker).counts["extra"] == 1
    kafka.policy = "compact"
    found = compared(config, broker)
    assert (found.outcome, found.counts["extra"]) == (ProofResult.CANNOT_TELL, 0)
    assert found.gaps == {"records of Kafka that expired or were compacted away": 1}


def test_nothing_compared(target: str, kafka: FakeKafka, broker: Embedded, tmp_path: Path) -> None:
    """It says so. What the bridge has sent must be there, whatever time its record has."""
    state = BridgeState(cluster="cluster-1", topic="orders", target=target, order="key", headers="encode", queues=[])
    save_bridge(tmp_path, state)
    config = CompareSides(kafka=KAFKA, topic="orders", target=target, folder=tmp_path)
    found = compared(config, broker)
    assert (found.outcome, found.matched, found.pending) == (ProofResult.CANNOT_TELL, 0, 6)
    kafka.change(0, 0, timestamp_ms=now_ms() + 1_000_000)
    state.next_offsets = {"0": 1}
    save_bridge(tmp_path, state)
    found = compared(config, broker)
    assert (found.outcome, found.counts["missing"], found.pending) == (ProofResult.FOUND, 1, 5)


def rows(chance: random.Random) -> tuple[list[Row], list[Row]]:
    """Records and their messages: 20 keys, each value once."""
    records, messages = [], []
    for number in range(200):
        key = b"%d" % chance.randrange(20)
        lane = int(key) % 3
        place, digest = f"t:{lane}:{number}", b"%d" % number
        records.append(Row(key, 1, 0, number, lane, place, f"K{number}", digest, 0, 0))
        messages.append(Row(key, 1, 1, number, lane, place, f"R{number}", digest, 10, 0))
    return records, messages


def lose(records: list[Row], messages: list[Row]) -> None:
    messages.pop(77)


def invent(records: list[Row], messages: list[Row]) -> None:
    messages.append(messages[-1]._replace(place="", digest=b"new", seq=999))


def change(records: list[Row], messages: list[Row]) -> None:
    messages[50] = messages[50]._replace(digest=b"new")


def swap(records: list[Row], messages: list[Row]) -> None:
    first, second = [i for i, row in enumerate(messages) if row.key == messages[9].key and i >= 9][:2]
    messages[first], messages[second] = (
        messages[first]._replace(seq=messages[second].seq),
        messages[second]._replace(seq=messages[first].seq),
    )


def repeat(records: list[Row], messages: list[Row]) -> None:
    messages.append(messages[60]._replace(seq=999))


def delay(records: list[Row], messages: list[Row]) -> None:
    messages[3] = messages[3]._replace(time_ms=5_000)


@pytest.mark.parametrize("is_bridged", [True, False])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (lambda records, messages: None, None),
        (lose, "missing"),
        (invent, "extra"),
        (change, "different"),
        (swap, "order"),
        (repeat, "double"),
        (delay, "late"),
    ],
)
def test_each_fault(fault: Change, kind: str | None, is_bridged: bool, tmp_path: Path) -> None:
    """It is found as what it is, and once."""
    records, messages = rows(random.Random(3))
    fault(records, messages)
    if not is_bridged:
        messages = [one._replace(place="") for one in messages]
    found = Comparison("t", "t")
    judge = KeyJudge(found, late_ms=1_000)
    sorter = KeySorter(str(tmp_path))
    sorter.add([*messages, *records])
    for key, group in sorter.groups():
        assert group is not None
        judge.judge(key, group)
    sorter.close()
    assert {one: count for one, count in found.counts.items() if count} == ({kind: 1} if kind else {})


@pytest.mark.parametrize("is_bridged", [True, False])
def test_order_in_each_partition(is_bridged: bool) -> None:
    """A key of several partitions has an order in each; an equal body in both does not tell which one it is of."""
    found = Comparison("t", "t")
    judge = KeyJudge(found)
    lanes = ((0, b"a"), (0, b"b"), (0, b"c"), (1, b"x"), (0, b"x"))
    records = [Row(b"k", 1, 0, n, lane, f"t:{lane}:{n}", f"K{n}", body, 0, 0) for n, (lane, body) in enumerate(lanes)]
    messages = [
        row._replace(side=1, seq=9 - row.seq if row.lane == 0 else row.seq, place=row.place if is_bridged else "")
        for row in records
    ]
    judge.judge(b"k", [*records, *sorted(messages, key=lambda row: row.seq)])
    assert {one: count for one, count in found.counts.items() if count} == {"order": 1}


def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is an error with a remedy, wherever it is noticed."""
    expected = "expected space for about .* set TMPDIR"
    with pytest.raises(MigrateError, match=expected):
        KeySorter(str(tmp_path / "none"))
    connect = sqlite3.connect

    def small(*args: Any, **more: Any) -> sqlite3.Connection:
        base: sqlite3.Connection = connect(*args, **more)
        base.execute("PRAGMA max_page_count=4")
        return base

    monkeypatch.setattr("mqtrail.migrate.comparing.sqlite3.connect", small)
    sorter = KeySorter(str(tmp_path))
    row = Row(b"a" * 1_000, 1, 0, 0, 0, "", "", b"", 0, 0)
    with pytest.raises(MigrateError, match=f"database or disk is full.*{expected}"):
        sorter.add([row] * 100)
    sorter.close()
    with pytest.raises(MigrateError, match=expected):
        list(sorter.groups())


def test_a_key_with_too_many_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not kept in memory; the next key is."""
    monkeypatch.setattr("mqtrail.migrate.comparing.KEY_COUNT_MAX", 3)
    sorter = KeySorter(str(tmp_path))
    row = Row(b"a", 1, 0, 0, 0, "", "", b"", 0, 0)
    sorter.add([row] * 4 + [row._replace(key=b"b")] * 3)
    assert [(key, group and len(group)) for key, group in sorter.groups()] == [(b"a", None), (b"b", 3)]
    sorter.close()
