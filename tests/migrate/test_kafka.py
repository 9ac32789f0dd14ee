"""What the library for Kafka returns and raises, as records and errors of a migration."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from mqtrail.migrate import KafkaConfig, KafkaTopic, MigrateError
from mqtrail.migrate.kafka import TURN_COUNT


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
