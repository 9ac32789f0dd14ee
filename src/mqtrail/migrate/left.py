"""Copies that ended tees left in a folder: which keys they hold, and sending them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from mqtrail.client import Admin, Producer, ProducerConfig
from mqtrail.net import is_lock_held

from .copies import (
    CopyHead,
    CopyWriter,
    FailedFile,
    TeeSide,
    ToKafka,
    ToRocketMQ,
    copy_files,
    read_copies,
    resend_file,
)
from .journal import adopt_journals
from .kafka import KafkaConfig
from .kafka_writer import KafkaWriter
from .model import MigrateError


def left_files(folder: Path) -> list[Path]:
    """Return the files of failed copies that no tee has, oldest first. OSError."""
    return [path for path in copy_files(folder) if not is_lock_held(path.with_suffix(".lock"))]


def left_keys(folder: Path, head: CopyHead) -> tuple[set[bytes], int]:
    """Return the keys of copies to the same place that ended tees left, and how many copies. MigrateError, OSError."""
    adopt_journals(folder)
    keys, count = set[bytes](), 0
    for path in left_files(folder):
        of, copies = read_copies(path)
        if (of.target, of.topic, of.to) == (head.target, head.topic, head.to):
            count += len(copies)
            keys.update(one.record.key for one, _ in copies if one.record.key is not None)
    return keys, count


async def resend_left(folder: Path, head: CopyHead, writer: CopyWriter, retry_ms: int) -> int:
    """Send what ended tees left for the same place again, oldest first; return how many. Raises what a send fails with.

    MQError, OSError.
    """

    async def same(_: CopyHead) -> CopyWriter:
        return writer

    count = 0
    for path in left_files(folder):
        if read_copies(path)[0] == head:
            found, error = await resend_file(path, same, retry_ms)
            count += found.sent
            if error is not None:
                raise error
    return count


async def resend_files(
    folder: Path, kafka: KafkaConfig | None, namesrv: str, config: ProducerConfig, retry_ms: int
) -> list[FailedFile]:
    """Send the copies of all files that no tee has again, in order; what is refused stays. MQError, OSError.

    kafka: needed for copies to Kafka.
    """
    adopt_journals(folder)
    found = []
    for path in left_files(folder):
        async with AsyncExitStack() as stack:
            one, _ = await resend_file(path, _writer(stack, path, kafka, namesrv, config), retry_ms)
            found.append(one)
    return found


def _writer(
    stack: AsyncExitStack, path: Path, kafka: KafkaConfig | None, namesrv: str, config: ProducerConfig
) -> Callable[[CopyHead], Awaitable[CopyWriter]]:
    async def of(head: CopyHead) -> CopyWriter:
        if head.to is TeeSide.ROCKETMQ:
            producer = Producer("mqtrail-tee", namesrv, config=replace(config, degrade=False, auto_batch=False))
            return ToRocketMQ(await stack.enter_async_context(producer), head.target, head.headers)
        if kafka is None:
            raise MigrateError(f"found copies to Kafka in {str(path)!r}, expected its address: pass --kafka")
        admin = await stack.enter_async_context(Admin(namesrv, config=config.instance))
        return ToKafka(await stack.enter_async_context(KafkaWriter(kafka, head.topic)), admin)

    return of
