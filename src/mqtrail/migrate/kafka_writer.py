"""Writes records to a topic of Kafka, each to the partition that is named."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Self

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.structs import RecordMetadata

from .kafka import KafkaConfig, answers, connecting
from .model import KafkaRecord, MigrateError

TOO_LARGE: Final = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordTooLargeError,
    kafka_errors.RecordListTooLargeError,
)
REQUEST_SIZE_MAX: Final = 64 * 1024 * 1024  # bytes: Kafka's own limits decide
_CHOOSE: Final = DefaultPartitioner()


def partition_for(key: bytes | None, count: int) -> int:
    """Return the partition that Kafka's clients choose for a key, of so many; a random one without key."""
    partitions = list(range(count))
    return int(_CHOOSE(key, partitions, partitions))


class KafkaWriter:
    """Writes to one topic. Use it with `async with`. Concurrent writes to a partition are stored in the order of begin.

    is_idempotent: a write that the library repeats is stored once.
    """

    def __init__(self, config: KafkaConfig, topic: str, *, is_idempotent: bool = False) -> None:
        self._config = config
        self._topic = topic
        self._what = f"topic {topic!r}"
        self._is_idempotent = is_idempotent
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs each failure that it also raises

    async def __aenter__(self) -> Self:
        options: dict[str, Any] = {**self._config.options(), "max_request_size": REQUEST_SIZE_MAX}
        async with connecting(self._config, self._what):
            self._producer = AIOKafkaProducer(**options, acks="all", enable_idempotence=self._is_idempotent)
            try:
                await self._producer.start()
            except BaseException:
                await self._producer.stop()
                raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._producer.stop()

    async def partition_of(self, key: bytes | None) -> int:
        """Return the partition that Kafka's clients choose for a key; a random one without key. KafkaAway."""
        with answers(self._what, _forbidden):
            partitions = sorted(await self._producer.partitions_for(self._topic))
        return int(_CHOOSE(key, partitions, partitions))

    async def begin(self, record: KafkaRecord) -> asyncio.Future[RecordMetadata]:
        """Begin to write a record with key or value; timestamp_ms -1: now. KafkaAway, MigrateError; so the future."""
        with answers(self._what, _forbidden):
            future: asyncio.Future[RecordMetadata] = await self._producer.send(
                self._topic,
                record.value,
                key=record.key,
                partition=record.partition,
                timestamp_ms=None if record.timestamp_ms < 0 else record.timestamp_ms,
                headers=list(record.headers),
            )
        return future

    async def stored(self, future: asyncio.Future[RecordMetadata]) -> RecordMetadata:
        """Wait until Kafka has acknowledged a record. KafkaAway: it may be stored, too. MigrateError: it is refused."""
        with answers(self._what, _forbidden):
            try:
                return await future
            except TOO_LARGE as error:
                raise MigrateError(
                    f"Kafka refused a record for the {self._what}: it is too large: raise max.message.bytes of the "
                    "topic"
                ) from error


def _forbidden(what: str) -> MigrateError:
    return MigrateError(
        f"found no right to write to the {what} in Kafka, expected the operations Write and Describe on it: grant them "
        "to this user with kafka-acls.sh"
    )
