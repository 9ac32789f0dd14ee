"""Copies of a tee: how each side is written, and the files of copies that failed.

    {"version": 1, "topic": "orders", "target": "orders", "to": "rocketmq", "headers": "encode"}
    {"p": 3, "k": 170, "t": 1764311541000, "key": "…", "value": "…", "headers": [], "q": "broker-a/3",
     "o": -1, "error": "…"}

Each tee has a file of its own, copies-PROCESS-RANDOM.jsonl, from its first failed copy on, with a lock on it while it
runs. Bytes are Base64. k, t: -1 if Kafka does not have the record. q, o: the message's queue and offset; o is -1 if
RocketMQ does not have the message.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from mqtrail.client import Admin, InvalidMessage, Producer, ReadFailed
from mqtrail.clock import now_ms
from mqtrail.net import hold_lock, is_lock_held, replace_file, sync_folder
from mqtrail.wire import MessageQueue, MQError, Refusal

from .kafka_writer import KafkaWriter
from .messages import HeaderRule, RecordEncoder, outbound_of
from .model import KafkaRecord, MigrateError
from .state import FILES, VERSION

FILE_SIZE_MAX: Final = 256 * 1024 * 1024  # bytes of failed copies of a tee; further ones are lost, and counted
RETRY_S: Final = 0.1  # delay after a failed copy; doubles
RETRY_MAX_S: Final = 5.0
ERRORS_SHOWN: Final = 3  # of a file
PATTERN: Final = "copies-*.jsonl"


class TeeSide(StrEnum):
    """One of the two sides of a tee."""

    KAFKA = "kafka"
    ROCKETMQ = "rocketmq"


class TeeCopy(NamedTuple):
    """A record on its way to the other side.

    record: offset and timestamp_ms are -1 if Kafka does not have it. queue: of the message. queue_offset: -1 if
    RocketMQ does not have it. number: in the journal.
    """

    record: KafkaRecord
    queue: MessageQueue
    queue_offset: int = -1
    number: int = 0

    @property
    def place(self) -> str:
        """Where the deciding side has it, for people."""
        record = self.record
        if record.offset >= 0:
            return f"Kafka {record.partition}/{record.offset}"
        return f"{self.queue.place} at {self.queue_offset}"


class ToRocketMQ:
    """Writes copies as messages, exactly as the bridge does."""

    batch_count: Final = 64  # copies of one send

    def __init__(self, producer: Producer, target: str, headers: HeaderRule) -> None:
        self._producer = producer
        self._target = target
        self._headers = headers
        self._encoder = RecordEncoder(target, headers)

    async def write(self, copies: Sequence[TeeCopy]) -> None:
        """Send copies for the same queue, in order, all or none. MigrateError, MQError."""
        queue = copies[0].queue
        if len(copies) > 1:
            items = [self._encoder.encode(one.record) for one in copies]
            await self._producer.send_encoded(self._target, items, queue=queue)
        else:
            message = outbound_of(copies[0].record, self._target, self._headers).message
            await self._producer.send(message, queue=queue)


class ToKafka:
    """Writes copies as records whose timestamp is the store time of their message."""

    batch_count: Final = 1  # the order of a partition is kept also when one fails

    def __init__(self, writer: KafkaWriter, admin: Admin) -> None:
        self._writer = writer
        self._admin = admin

    async def write(self, copies: Sequence[TeeCopy]) -> None:
        """Write copies in order. MigrateError, KafkaAway, MQError."""
        for one in copies:
            record = one.record._replace(timestamp_ms=await self._store_ms(one))
            await self._writer.stored(await self._writer.begin(record))

    async def _store_ms(self, copy: TeeCopy) -> int:
        queue, offset = copy.queue, copy.queue_offset
        found = next((await self._admin.pull(queue, offset, 1)).open(queue, offset), None)
        if found is not None and found.queue_offset == offset:
            return found.store_timestamp_ms
        if offset < await self._admin.min_offset(queue):
            return now_ms()  # it has expired, so no group goes back to it
        raise ReadFailed(f"found no message at offset {offset} of {queue.place} yet, expected the one that is copied")


CopyWriter = ToRocketMQ | ToKafka


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyHead:
    """What the copies of a file are: from which topic of Kafka, to or from which of RocketMQ, to which side."""

    topic: str
    target: str
    to: TeeSide
    headers: HeaderRule


class CopyFile:
    """Keeps failed copies. kill -9 of the process loses none that was added; a power cut may."""

    def __init__(self, folder: Path, head: CopyHead) -> None:
        self.name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self.path = folder / f"copies-{self.name}.jsonl"
        self._head = head
        self._file: BinaryIO | None = None
        self._stack = ExitStack()

    def add(self, copy: TeeCopy, error: str) -> None:
        """Keep a copy. OSError: it is not kept."""
        if self._file is None:
            self._file = self._open()
            self._file.write(head_line(self._head))
            sync_folder(self.path.parent)
        line = _line(copy, error)
        if self._file.tell() + len(line) > FILE_SIZE_MAX:
            raise OSError(f"found {self._file.tell()} bytes in {self.path}, expected at most {FILE_SIZE_MAX}")
        self._file.write(line)
        self._file.flush()

    def read(self) -> list[tuple[TeeCopy, str]]:
        """Return the copies with their errors. OSError."""
        return [] if self._file is None else read_copies(self.path)[1]

    def replace(self, copies: Sequence[tuple[TeeCopy, str]]) -> None:
        """Keep only these. OSError."""
        if self._file is not None:
            self._stack.close()
            self._file = None
            replace_copies(self.path, self._head, copies)
            if copies:
                self._file = self._open()

    def _open(self) -> BinaryIO:
        with ExitStack() as stack:
            stack.enter_context(alone_with(self.path))
            file = stack.enter_context(self.path.open("ab"))
            self._stack = stack.pop_all()
        return file

    def close(self) -> None:
        """Make it durable, and let others have it. OSError."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        self._stack.close()
        self._file = None


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Have a file of failed copies alone. MigrateError: a tee has it. OSError."""
    taken = MigrateError(
        f"found {str(path)!r} in use, expected a tee that was closed: `TeeProducer.resend` sends its copies"
    )
    lock = path.with_suffix(".lock")
    with hold_lock(lock, taken):
        yield
        lock.unlink(missing_ok=True)


async def patiently(act: Callable[[], Awaitable[None]], retry_ms: int) -> None:
    """Do it; if the other side is away, again, for retry_ms. Raises what it failed with."""
    deadline_s, pause_s = time.monotonic() + retry_ms / 1000, RETRY_S
    while True:
        try:
            return await act()
        except (InvalidMessage, Refusal, MigrateError):
            raise
        except MQError:
            if time.monotonic() + pause_s > deadline_s:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_MAX_S)


class SentAgain(NamedTuple):
    """What came of copies. kept: refused, and those after error, which is why the rest was not sent."""

    sent: int
    kept: list[tuple[TeeCopy, str]]
    error: MQError | None = None


async def send_again(copies: Sequence[tuple[TeeCopy, str]], writer: CopyWriter, retry_ms: int) -> SentAgain:
    """Send failed copies in order. One that is refused is kept; if the other side is away, so are all from there on."""
    kept = list[tuple[TeeCopy, str]]()
    for number, (copy, _) in enumerate(copies):
        try:
            await patiently(partial(writer.write, [copy]), retry_ms)
        except (InvalidMessage, Refusal, MigrateError) as error:
            kept.append((copy, str(error)))
        except MQError as error:
            rest = [(copy, str(error)), *copies[number + 1 :]]
            return SentAgain(number - len(kept), [*kept, *rest], error)
    return SentAgain(len(copies) - len(kept), kept)


def head_line(head: CopyHead) -> bytes:
    """Return the first line of a file of copies."""
    fields = {"topic": head.topic, "target": head.target, "to": head.to, "headers": head.headers}
    return json.dumps({"version": VERSION} | fields).encode() + b"\n"


def _line(copy: TeeCopy, error: str) -> bytes:
    return json.dumps(fields_of(copy) | {"error": error}).encode() + b"\n"


def fields_of(copy: TeeCopy) -> dict[str, Any]:
    """Return a copy as JSON has it."""
    of = copy.record
    return {
        "p": of.partition,
        "k": of.offset,
        "t": of.timestamp_ms,
        "key": _text(of.key),
        "value": _text(of.value),
        "headers": [(name, _text(value)) for name, value in of.headers],
        "q": copy.queue.place,
        "o": copy.queue_offset,
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def copy_files(folder: Path) -> list[Path]:
    """Return the files of failed copies, oldest first."""
    return sorted(folder.glob(PATTERN), key=lambda path: (path.stat().st_mtime_ns, path.name))


def read_copies(path: Path) -> tuple[CopyHead, list[tuple[TeeCopy, str]]]:
    """Return what the copies of a file are, and each one with its error. MigrateError: it is damaged. OSError."""
    whole, _, _ = path.read_text("utf-8", "replace").rpartition("\n")  # the rest of a line was cut by a crash
    lines = whole.split("\n")
    with FILES.content_of(path, "`mqtrail.migrate.TeeProducer`"):
        of = head_of(lines[0])
        return of, [copy_of(json.loads(line), of) for line in lines[1:]]


def head_of(line: str) -> CopyHead:
    """Return what the copies of a file are, by its first line. ValueError, LookupError, TypeError: it is damaged."""
    head = json.loads(line)
    if head["version"] != VERSION:
        raise ValueError(head["version"])
    return CopyHead(
        topic=str(head["topic"]),
        target=str(head["target"]),
        to=TeeSide(head["to"]),
        headers=HeaderRule(head["headers"]),
    )


def copy_of(fields: dict[str, Any], head: CopyHead) -> tuple[TeeCopy, str]:
    """Return the copy of a line, and its error. ValueError, LookupError, TypeError: it is damaged."""
    record = KafkaRecord(
        head.topic,
        int(fields["p"]),
        int(fields["k"]),
        int(fields["t"]),
        _bytes(fields["key"]),
        _bytes(fields["value"]),
        tuple((str(name), _bytes(value)) for name, value in fields["headers"]),
    )
    return TeeCopy(record, MessageQueue.at(head.target, fields["q"]), int(fields["o"])), str(fields.get("error", ""))


def replace_copies(path: Path, head: CopyHead, copies: Sequence[tuple[TeeCopy, str]]) -> None:
    """Leave only these copies in a file, which keeps its time and so its order; without any, it goes. OSError."""
    if copies:
        times = path.stat() if path.exists() else None
        replace_file(path, head_line(head) + b"".join(_line(copy, error) for copy, error in copies), 0o600)
        if times is not None:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class FailedFile:
    """A file of failed copies. is_open: a tee has it. errors: of its first copies. sent: now, of those that it had."""

    path: str
    to: TeeSide
    count: int
    is_open: bool
    errors: list[str]
    sent: int = 0
    error: str = ""


def failed_files(folder: Path) -> list[FailedFile]:
    """Return the files of failed copies, oldest first; those of running tees, too. MigrateError, OSError."""
    found = []
    for path in copy_files(folder):
        head, copies = read_copies(path)
        is_open = is_lock_held(path.with_suffix(".lock"))
        found.append(FailedFile(str(path), head.to, len(copies), is_open, errors_of(copies)))
    return found


def errors_of(copies: Sequence[tuple[TeeCopy, str]]) -> list[str]:
    """Return the errors of the first copies, for people."""
    return [f"{copy.place}: {error}" for copy, error in copies[:ERRORS_SHOWN]]


async def resend_file(
    path: Path, writer_of: Callable[[CopyHead], Awaitable[CopyWriter]], retry_ms: int
) -> tuple[FailedFile, MQError | None]:
    """Send the copies of a file that no tee has again, in order; what is refused stays. MQError, OSError.

    Return what is left, and the error because of which not all were sent.
    """
    with alone_with(path):
        head, copies = read_copies(path)
        done = await send_again(copies, await writer_of(head), retry_ms)
        replace_copies(path, head, done.kept)
    error = "" if done.error is None else str(done.error)
    left = FailedFile(str(path), head.to, len(done.kept), False, errors_of(done.kept), done.sent, error)
    return left, done.error
