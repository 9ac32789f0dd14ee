"""What is committed for a Kafka group that goes back: with a folder, a Kafka and a RocketMQ in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqtrail.client import Admin
from mqtrail.clock import now_ms
from mqtrail.migrate import BridgeState, GroupReturn, KafkaConfig, MigrateError, OffsetMap, TeeSide, return_group
from mqtrail.migrate.back import CLOCKS_MS
from mqtrail.migrate.groups import group_file
from mqtrail.migrate.offsetmap import MapEntry, MapFile
from mqtrail.migrate.state import COMPARE, MAP, TeeState, save_bridge, save_json, save_tee
from mqtrail.wire import MessageQueue

from .fake_kafka import FakeKafka


@dataclass
class FakeQueues:
    """A RocketMQ with a topic: offsets of the group by queue, ends, and store times of messages."""

    offsets: dict[int, int | None]
    ends: dict[int, int]
    firsts: dict[int, int] = field(default_factory=dict)
    times: dict[tuple[int, int], int] = field(default_factory=dict)
    members: int = 0

    async def queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, "b", one) for one in self.ends]

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self.offsets[queue.queue_id]

    async def min_offset(self, queue: MessageQueue) -> int:
        return self.firsts.get(queue.queue_id, 0)

    async def max_offset(self, queue: MessageQueue) -> int:
        return self.ends[queue.queue_id]

    async def message_at_offset(self, queue: MessageQueue, offset: int) -> Any:
        return SimpleNamespace(store_timestamp_ms=self.times.get((queue.queue_id, offset), 0))

    async def group_connections(self, group: str) -> Any:
        found = {"b": SimpleNamespace(connection_set=[SimpleNamespace(client_id=str(n)) for n in range(self.members)])}
        return SimpleNamespace(found=found, failures={})


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """Two partitions with 100 records each, one a second."""
    kafka = FakeKafka()
    for number in range(200):
        kafka.put("t", number % 2, None, b"%d" % number)
    monkeypatch.setattr("mqtrail.migrate.back.KafkaTopic", kafka.connect)
    return kafka


def bridged(folder: Path, entries: Mapping[tuple[int, int], list[tuple[int, int]]], next_offsets: list[int]) -> None:
    """A bridge: entries of the map by partition and queue; and an apply that moved the group to the beginning."""
    state = BridgeState(
        cluster="cluster-1", topic="t", target="t", order="key", headers="encode", queues=["b/0", "b/1"]
    )
    state.starts, state.next_offsets = {"0": 5, "1": 5}, {str(n): at for n, at in enumerate(next_offsets)}
    save_bridge(folder, state)
    file = MapFile(folder / MAP, OffsetMap("t", "t"))
    for (partition, queue), places in entries.items():
        for kafka_offset, queue_offset in places:
            file.append({(partition, f"b/{queue}"): [MapEntry(kafka_offset, queue_offset, 0)]})
    queues = [{"queue": f"b/{queue}", "written": 0} for queue in (0, 1)]
    save_json(group_file(folder, "g"), {"queues": queues})


def back(folder: Path, queues: FakeQueues, **more: bool) -> GroupReturn:
    """Apply it, unless told."""
    options = {"is_applied": True, **more}
    return asyncio.run(return_group(folder, KafkaConfig("h:1"), cast(Admin, queues), ("g", "g"), **options))


def test_by_the_map(kafka: FakeKafka, tmp_path: Path) -> None:
    """The minimum over the queues of a partition; all that was bridged, where the group has passed it."""
    bridged(tmp_path, {(0, 0): [(10, 4), (50, 40)], (0, 1): [(20, 9), (60, 30)], (1, 1): [(70, 35)]}, [80, 90])
    queues = FakeQueues({0: 41, 1: 31}, {0: 60, 1: 40})
    found = back(tmp_path, queues, is_applied=False)
    assert [one.after for one in found.partitions] == [80, 5], "partition 1 is not consumed on queue 1"
    assert kafka.groups == {}
    queues.offsets = {0: 40, 1: 36}
    assert [one.after for one in back(tmp_path, queues).partitions] == [11, 90]
    assert kafka.groups["g"] == {0: 11, 1: 90}
    queues.offsets = {0: 41, 1: 30}
    found = back(tmp_path, queues)
    assert [(one.after, one.is_kept) for one in found.partitions] == [(21, False), (90, True)]
    assert back(tmp_path, queues, may_rewind=True).partitions[1].after == 5
    assert kafka.groups["g"] == {0: 21, 1: 5}
    queues.offsets = {0: None, 1: 40}
    assert back(tmp_path, queues, may_rewind=True).partitions[0].after == 5, "no offset on queue 0"
    assert json.loads((tmp_path / "back-g.json").read_text())["is_applied"]


def test_counts(kafka: FakeKafka, tmp_path: Path) -> None:
    """What it reads: what it has not consumed, what was not bridged yet, and the rest again."""
    bridged(tmp_path, {(0, 0): [(10, 5), (79, 74)], (1, 1): [(89, 84)]}, [80, 90])
    queues = FakeQueues({0: 70, 1: 85}, {0: 75, 1: 85}, members=2)
    found = back(tmp_path, queues)
    assert [one.after for one in found.partitions] == [11, 90]
    assert (found.to_read, found.unread, found.repeated, found.members) == (99, 5, 99 - 5 - 30, 2)
    assert (found.unknown, found.lost) == ([], 0)


def test_refused(kafka: FakeKafka, tmp_path: Path) -> None:
    """Running members, what is not known, what Kafka has deleted, another Kafka, an empty folder."""
    with pytest.raises(MigrateError, match=r"found neither a bridge nor a tee"):
        back(tmp_path, FakeQueues({}, {}))
    bridged(tmp_path, {(0, 0): [(79, 74)], (1, 1): [(89, 84)]}, [80, 90])
    queues = FakeQueues({0: 75, 1: 85}, {0: 75, 1: 85})
    kafka.members = 1
    with pytest.raises(MigrateError, match=r"found 1 running members of group 'g' in Kafka"):
        back(tmp_path, queues)
    kafka.members = 0
    group_file(tmp_path, "g").unlink()
    with pytest.raises(
        MigrateError, match=r"expected nothing: what group 'g' has consumed of b/0, b/1: .*--accept-unknown"
    ):
        back(tmp_path, queues)
    kafka.firsts[0] = 85
    with pytest.raises(MigrateError, match=r"found up to 5 records .*--accept-loss"):
        back(tmp_path, queues, accepts_unknown=True)
    assert kafka.groups == {}
    back(tmp_path, queues, accepts_unknown=True, may_lose=True)
    assert kafka.groups == {"g": {0: 85, 1: 90}}
    kafka.partitions[1] = kafka.partitions[1][:50]
    with pytest.raises(MigrateError, match=r"found the end 50 of partition 1 .*expected 90 or more"):
        back(tmp_path, queues, is_applied=False)
    kafka.cluster = "other"
    with pytest.raises(MigrateError, match=r"found the Kafka cluster other"):
        back(tmp_path, queues, is_applied=False)


def compared(folder: Path, at_ms: int, **counts: int) -> None:
    """The file of a comparison."""
    none = dict.fromkeys(("missing", "extra", "different", "order", "double", "late"), 0)
    whole = {"since_ms": None, "until_ms": None, "pending": 0, "outcome": "FOUND" if counts else "NONE"}
    save_json(folder / COMPARE, {"at_ms": at_ms, "counts": none | counts, **whole})


def test_after_a_tee(kafka: FakeKafka, tmp_path: Path) -> None:
    """With RocketMQ deciding by time; after one with Kafka deciding, only if all is known to be there and consumed."""
    bridged(tmp_path, {(0, 0): [(39, 34)], (1, 1): [(39, 34)]}, [40, 40])
    queues = FakeQueues({0: 50, 1: 60}, {0: 60, 1: 60}, times={(0, 50): 200_000})
    for records in kafka.partitions.values():
        for record in tuple(records):
            assert record is not None
            records[record.offset] = record._replace(timestamp_ms=100_000 + 1_000 * record.offset)
    save_tee(tmp_path, TeeSide.ROCKETMQ, TeeState(topic="t", target="t", since_ms=130_000))
    with pytest.raises(
        MigrateError, match=r"expected nothing: whether each message of the tee has its record in Kafka"
    ):
        back(tmp_path, queues)
    compared(tmp_path, 135_000, missing=1)
    with pytest.raises(MigrateError, match=r"expected nothing: whether"):
        back(tmp_path, queues)
    compared(tmp_path, 135_000, order=1)
    found = back(tmp_path, queues)
    by_time = (200_000 - CLOCKS_MS - 100_000) // 1_000
    assert ([one.after for one in found.partitions], found.unknown) == ([max(40, by_time)] * 2, [])
    assert "by time" in found.partitions[0].reason
    queues.times[0, 50] = 205_000
    assert [one.after for one in back(tmp_path, queues).partitions] == [by_time + 5] * 2
    queues.offsets[1] = 30
    assert [one.after for one in back(tmp_path, queues, may_rewind=True).partitions] == [40, 5], "bridged ones wait"
    queues.offsets[1] = 60
    save_tee(tmp_path, TeeSide.KAFKA, TeeState(topic="t", target="t", since_ms=120_000))
    assert [one.after for one in back(tmp_path, queues, may_rewind=True).partitions] == [by_time + 5] * 2
    compared(tmp_path, 150_000)
    found = back(tmp_path, queues, may_rewind=True)
    assert [one.after for one in found.partitions] == [40] * 2
    assert "no comparison without differences is 60 s older than what waits" in found.partitions[0].reason


def test_without_a_bridge(kafka: FakeKafka, tmp_path: Path) -> None:
    """A tee with RocketMQ deciding is enough; at the ends of all queues nothing but the last minute is repeated."""
    save_tee(tmp_path, TeeSide.ROCKETMQ, TeeState(topic="t", target="t", since_ms=0))
    found = back(tmp_path, FakeQueues({0: 5}, {0: 5}), is_applied=False)
    assert [one.after for one in found.partitions] == [100, 100]
    kafka.change(1, 98, timestamp_ms=now_ms())
    found = back(tmp_path, FakeQueues({0: 5}, {0: 5}), is_applied=False)
    assert [one.after for one in found.partitions] == [100, 98]
    assert len(found.unknown) == 2
