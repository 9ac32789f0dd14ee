"""What the library for Kafka raises, as errors of a migration."""

from __future__ import annotations

import pytest

from mqtrail.migrate import KafkaConfig, KafkaTopic, MigrateError


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
