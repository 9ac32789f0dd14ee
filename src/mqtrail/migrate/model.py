"""What a migration reads from Kafka, and its errors."""

from __future__ import annotations

from typing import NamedTuple

from mqtrail.wire import MQError


class MigrateError(MQError):
    """Kafka, the target, the folder or a record is not what is needed. A retry would not change it."""


class KafkaAway(MQError):
    """Kafka does not answer. A retry may succeed."""


class SideAway(MQError):
    """The other side of a tee does not answer, or its topic has no broker. A retry may succeed."""


class KafkaRecord(NamedTuple):
    """A record of a Kafka topic. timestamp_ms: epoch, as Kafka has it (-1: none). value None: a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of what the record carries, about."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers
