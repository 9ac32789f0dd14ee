"""What is written for a group, and what is not: with a folder, a Kafka and a RocketMQ in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqtrail.client import Admin
from mqtrail.migrate import BridgeState, GroupMove, KafkaConfig, MigrateError, OffsetMap, move_group
from mqtrail.migrate.groups import group_file
from mqtrail.migrate.offsetmap import MapEntry, MapFile
from mqtrail.migrate.state import MAP, save_bridge
from mqtrail.wire import MessageQueue

from .fake_kafka import FakeKafka

QUEUE = MessageQueue("t", "b", 0)


@dataclass
class FakeAdmin:
    """A group of a topic with one queue. refused: no offset can be written. members: how many run."""

    first: int = 0
    end: int = 0
    offset: int | None = None
    refused: bool = False
    members: int = 0
    writes: list[int] = field(default_factory=list)

    async def min_offset(self, queue: MessageQueue) -> int:
        return self.first

    async def max_offset(self, queue: MessageQueue) -> int:
        return self.end

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self.offset

    async def group_config(self, group: str) -> Any:
        return SimpleNamespace(found={"b": object()})

    async def group_connections(self, group: str) -> Any:
        members = [SimpleNamespace(client_id=str(number)) for number in range(self.members)]
        return SimpleNamespace(found={"b": SimpleNamespace(connection_set=members)}, failures={})

    async def set_offsets(self, group: str, wanted: Mapping[MessageQueue, int]) -> Any:
        if self.refused:
            return {}, dict.fromkeys(wanted, "no permission")
        for self.offset in wanted.values():
            self.writes.append(self.offset)
        return wanted, {}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    kafka = FakeKafka()
    monkeypatch.setattr("mqtrail.migrate.groups.KafkaTopic", kafka.connect)
    return kafka


def world(kafka: FakeKafka, folder: Path, *, start: int, end: int, committed: int, entries: range) -> FakeAdmin:
    """A partition that is bridged from start to end, and a group that has committed that; entries: in the map."""
    for number in range(end):
        kafka.put("t", 0, None, b"%d" % number)
    kafka.groups["g"] = {0: committed}
    state = BridgeState(cluster=kafka.cluster, topic="t", target="t", order="key", headers="encode", queues=["b/0"])
    state.starts, state.next_offsets = {"0": start}, {"0": end}
    save_bridge(folder, state)
    file = MapFile(folder / MAP, OffsetMap("t", "t"))
    for offset in entries:
        file.append({(0, "b/0"): [MapEntry(offset, offset - start, 0)]})
    return FakeAdmin(end=end - start)


def moved(folder: Path, admin: FakeAdmin, **more: bool) -> GroupMove:
    """Apply it, unless told."""
    options = {"is_applied": True, **more}
    return asyncio.run(move_group(folder, KafkaConfig("h:1"), cast(Admin, admin), ("g", "g"), **options))


def test_before_the_start(kafka: FakeKafka, tmp_path: Path) -> None:
    """Records that the group lacks and that were never bridged are counted, and refused until that is accepted."""
    admin = world(kafka, tmp_path, start=1_000, end=1_000, committed=500, entries=range(0))
    assert moved(tmp_path, admin, is_applied=False).before_start == 500
    with pytest.raises(MigrateError, match=r"found 500 offsets before .* expected none: .*--accept-loss"):
        moved(tmp_path, admin)
    assert (admin.writes, group_file(tmp_path, "g").exists()) == ([], False)
    found = moved(tmp_path, admin, may_lose=True)
    assert (found.is_complete, found.before_start, admin.writes) == (True, 500, [0])
    kafka.firsts[0] = 800
    assert moved(tmp_path, admin, is_applied=False).before_start == 200, "Kafka does not have the others either"
    kafka.groups["g"] = {}
    assert moved(tmp_path, admin, is_applied=False).before_start == 200
    kafka.groups["g"] = {0: 1_000}
    assert moved(tmp_path, admin).before_start == 0


def test_expired(kafka: FakeKafka, tmp_path: Path) -> None:
    """Messages that the group lacks and RocketMQ has no longer count too; not those that others sent."""
    admin = world(kafka, tmp_path, start=0, end=100, committed=10, entries=range(100))
    admin.first = 30
    assert moved(tmp_path, admin, is_applied=False).expired == 20
    with pytest.raises(MigrateError, match="up to 20 messages that RocketMQ no longer has"):
        moved(tmp_path, admin)
    assert moved(tmp_path, admin, may_lose=True).queues[0].after == 30
    kafka.groups["g"] = {0: 30}
    assert moved(tmp_path, admin).expired == 0
    others = world(kafka, tmp_path, start=0, end=0, committed=0, entries=range(0))
    others.first = others.end = 50
    assert moved(tmp_path, others).expired == 0, "the bridge has sent nothing to the queue"


def test_further_already(kafka: FakeKafka, tmp_path: Path) -> None:
    """A group that ran before its offsets were written has skipped records: an error, until it is moved back."""
    admin = world(kafka, tmp_path, start=0, end=9, committed=5, entries=range(9))
    admin.offset = 9
    for _ in range(2):
        found = moved(tmp_path, admin)
        assert (found.is_complete, admin.writes) == (False, [])
        assert found.queues[0].error == "the group is at 9 already, not by an apply: --rewind moves it to 5"
    assert moved(tmp_path, admin, may_rewind=True).is_complete
    assert admin.writes == [5]
    admin.offset, admin.first = 9, 7
    for _ in range(2):
        found = moved(tmp_path, admin)
        assert (found.is_complete, found.queues[0].is_kept, found.expired) == (True, True, 0), "it has consumed them"
    kafka.groups["g"], admin.first = {0: 4}, 0
    assert not moved(tmp_path, admin).is_complete, "it began at 5"


def test_written_after_an_error(kafka: FakeKafka, tmp_path: Path) -> None:
    """An apply that fails does not count as one; the one before it still does."""
    admin = world(kafka, tmp_path, start=0, end=9, committed=5, entries=range(9))
    admin.refused = True
    assert moved(tmp_path, admin).queues[0].written is None
    admin.refused = False
    assert moved(tmp_path, admin).is_complete
    kafka.groups["g"], admin.refused = {0: 7}, True
    found = moved(tmp_path, admin)
    assert (found.is_complete, found.queues[0].written) == (False, 5)
    admin.offset = 9
    assert moved(tmp_path, admin).is_complete


def test_members(kafka: FakeKafka, tmp_path: Path) -> None:
    """They stop a write, but not an apply that has nothing to write: it may be repeated while they run."""
    admin = world(kafka, tmp_path, start=0, end=9, committed=5, entries=range(9))
    admin.members = 2
    with pytest.raises(MigrateError, match="found 2 running members of group 'g', expected none"):
        moved(tmp_path, admin)
    admin.members = 0
    assert moved(tmp_path, admin).is_complete
    admin.members, admin.offset = 2, 8
    assert (moved(tmp_path, admin).is_complete, admin.writes) == (True, [5])
    with pytest.raises(MigrateError, match="found 2 running members"):
        moved(tmp_path, admin, may_rewind=True)
