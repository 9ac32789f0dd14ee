"""A topic of Kafka in memory, in place of `KafkaTopic` and `KafkaWriter`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

from mqtrail.clock import now_ms
from mqtrail.migrate import KafkaAway, KafkaConfig, KafkaRecord


@dataclass
class FakeKafka:
    """Records by partition, from firsts on; None: a mark of a transaction.

    away: how many of the next connections fail. groups: committed offsets. members: of all groups. errors: of the next
    writes.
    """

    partitions: dict[int, list[KafkaRecord | None]] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)
    cluster: str = "cluster-1"
    policy: str = "delete"
    away: int = 0
    groups: dict[str, dict[int, int]] = field(default_factory=dict)
    members: int = 0
    errors: list[Exception] = field(default_factory=list)

    def put(self, topic: str, partition: int, key: bytes | None, value: bytes | None, **more: Any) -> None:
        """Append a record."""
        records = self.partitions.setdefault(partition, [])
        records.append(KafkaRecord(topic, partition, len(records), 1_000 + len(records), key, value, **more))

    def change(self, partition: int, offset: int, **changes: Any) -> None:
        """Change a record."""
        record = self.partitions[partition][offset]
        assert record is not None
        self.partitions[partition][offset] = record._replace(**changes)

    def connect(self, config: KafkaConfig, topic: str) -> FakeTopic:
        """As the class KafkaTopic."""
        return FakeTopic(self)

    def write(self, config: KafkaConfig, topic: str, *, is_idempotent: bool = False) -> FakeWriter:
        """As the class KafkaWriter."""
        return FakeWriter(self)


class FakeTopic:
    """A connection."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._at: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        if self._kafka.away:
            self._kafka.away -= 1
            raise KafkaAway("Kafka did not answer")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def cluster_id(self) -> str:
        return self._kafka.cluster

    async def partitions(self) -> list[int]:
        return sorted(self._kafka.partitions)

    async def cleanup_policy(self) -> str:
        return self._kafka.policy

    async def firsts(self, partitions: Iterable[int]) -> dict[int, int]:
        return {one: self._kafka.firsts.get(one, 0) for one in partitions}

    async def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        return {one: len(self._kafka.partitions[one]) for one in partitions}

    async def at_time(self, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        found = {}
        for one in partitions:
            records = self._kafka.partitions[one]
            found[one] = next((r.offset for r in records if r and r.timestamp_ms >= time_ms), len(records))
        return found

    async def committed(self, group: str, *, may_be_none: bool = False) -> dict[int, int]:
        return dict(self._kafka.groups.get(group, {}) if may_be_none else self._kafka.groups[group])

    async def member_count(self, group: str) -> int:
        return self._kafka.members

    async def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        self._kafka.groups.setdefault(group, {}).update(offsets)

    def begin(self, offsets: Mapping[int, int]) -> None:
        self._at = dict(offsets)

    async def read(self, count_max: int, wait_ms: int) -> list[KafkaRecord]:
        found: list[KafkaRecord] = []
        for partition, at in self._at.items():
            records = self._kafka.partitions[partition][at : at + count_max - len(found)]
            self._at[partition] = at + len(records)
            found += [one for one in records if one is not None]
        await asyncio.sleep(0 if found else 0.001)  # as Kafka lets a read wait for wait_ms
        return found

    async def position(self, partition: int) -> int:
        return self._at[partition]


class FakeWriter:
    """A connection that writes."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def partition_of(self, key: bytes | None) -> int:
        return sum(key or b"") % len(self._kafka.partitions)

    async def begin(self, record: KafkaRecord) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._kafka.errors:
            future.set_exception(self._kafka.errors.pop(0))
            return future
        records = self._kafka.partitions[record.partition]
        time_ms = record.timestamp_ms if record.timestamp_ms >= 0 else now_ms()
        records.append(record._replace(offset=len(records), timestamp_ms=time_ms))
        place = SimpleNamespace(partition=record.partition, offset=len(records) - 1, timestamp=time_ms)
        asyncio.get_running_loop().call_soon(future.set_result, place)
        return future

    async def stored(self, future: asyncio.Future[Any]) -> Any:
        return await future
