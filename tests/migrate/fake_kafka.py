"""A topic of Kafka in memory, in place of `KafkaTopic`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from mqtrail.migrate import KafkaAway, KafkaConfig, KafkaRecord


@dataclass
class FakeKafka:
    """Records by partition, from firsts on; None: a mark of a transaction.

    away: how many of the next connections fail. groups: committed offsets.
    """

    partitions: dict[int, list[KafkaRecord | None]] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)
    cluster: str = "cluster-1"
    policy: str = "delete"
    away: int = 0
    groups: dict[str, dict[int, int]] = field(default_factory=dict)

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

    async def committed(self, group: str) -> dict[int, int]:
        return self._kafka.groups[group]

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
