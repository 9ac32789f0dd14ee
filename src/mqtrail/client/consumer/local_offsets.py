"""Offsets of a broadcasting consumer: a file on this host, because each member reads every message.

    <folder>/<ip>@<name>/<group>/offsets.json        {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}
    <folder>/<ip>@<name>/<group>/offsets.json.bak    the previous file

Layout and format are the Java client's, so each client continues where the other stopped. Every save replaces the whole
file. If the file cannot be read, its predecessor is used, as in Java. If neither can be read, the consumer does not
start: without offsets it would skip or repeat messages. A second consumer with the same file is refused.
Source: LocalFileOffsetStore, MixAll.string2File, RocketMQ client and common.
"""

import asyncio
import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from mqtrail.net import Log
from mqtrail.wire import BodyError, MessageQueue, MQError, QueueOffsets, loads_file, part_file

from ..core import ClientError
from .noted_offsets import NotedOffsets

log = Log()


class LocalOffsets(NotedOffsets):
    """The offsets of one group in a file. folder None: ~/.mqtrail/offsets."""

    def __init__(self, folder: Path | None, client_name: str, group: str) -> None:
        super().__init__()
        folder = Path.home() / ".mqtrail" / "offsets" if folder is None else folder
        self._path = folder / client_name / group / "offsets.json"
        self._stored: dict[MessageQueue, int] = {}
        self._lock: int | None = None
        self._is_good = True  # the file is readable, so the next save keeps it as .bak
        self._saving = asyncio.Lock()
        self._writes: set[asyncio.Task[OSError | None]] = set()

    async def open(self) -> None:
        """Read the file. ClientError: it is damaged, in use by another consumer, or its folder cannot be used."""
        try:
            self._stored = await asyncio.to_thread(self._open)
        except BlockingIOError:
            raise ClientError(
                f"{self._path} is in use by another consumer of this group: give each consumer a different "
                "instance_name or offset_dir"
            ) from None
        except OSError as error:
            raise ClientError(f"cannot write offsets to {self._path}: {error}; choose another offset_dir") from error

    def _open(self) -> dict[MessageQueue, int]:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self._path.with_name("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._unlock()
            raise
        try:
            return self._load()
        except ClientError:
            self._unlock()
            raise

    async def close(self) -> None:
        """Release the file. Stored offsets stay; a write in progress ends first."""
        if self._writes:
            await asyncio.wait(self._writes)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def read(self, queue: MessageQueue) -> int | None:
        return self._stored.get(queue)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        noted = {queue: offset for queue in queues if (offset := self._memory.get(queue)) is not None}
        try:
            await self._write(noted)
        except OSError as error:
            log.warning("consumer.commit_failed", path=str(self._path), error=str(error))

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._memory.update(offsets)
        try:
            await self._write(offsets)
        except OSError as error:
            raise ClientError(f"cannot write offsets to {self._path}: {error}; make it writable") from error

    async def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write, even if the caller is cancelled: a write left running could overwrite the file of the next one."""
        write = asyncio.create_task(self._write_changed(offsets))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        error = await asyncio.shield(write)
        if error is not None:
            raise error

    async def _write_changed(self, offsets: Mapping[MessageQueue, int]) -> OSError | None:
        async with self._saving:
            changed = {queue: offset for queue, offset in offsets.items() if self._stored.get(queue) != offset}
            if not changed:
                return None
            merged = self._stored | changed
            try:
                await asyncio.to_thread(self._save, merged)
            except OSError as error:
                return error
            self._stored = merged
        return None

    def forget(self, queue: MessageQueue) -> None:
        self._memory.pop(queue, None)

    def _load(self) -> dict[MessageQueue, int]:
        failures = []
        for path in (self._path, self._path.with_name("offsets.json.bak")):
            try:
                found = _read(path)
            except FileNotFoundError:
                continue
            except (OSError, MQError) as error:
                log.warning("consumer.offsets_unreadable", path=str(path), error=str(error))
                failures.append(f"{path}: {error}")
            else:
                self._is_good = not failures
                return found
        if failures:
            raise ClientError(
                f"cannot read the offsets: {'; '.join(failures)}: repair one of these files, or remove both to start "
                "at consume_from"
            )
        return {}

    def _save(self, offsets: dict[MessageQueue, int]) -> None:
        """Write a temporary file, sync it, rename: a crash leaves the new file, the old one, or the old as `.bak`."""
        with part_file(self._path.with_name("offsets.json.tmp")) as new:
            with open(new, "wb") as file:
                file.write(QueueOffsets(offsets).encode(strict=False))
                file.flush()
                os.fsync(file.fileno())
            if self._is_good and self._path.exists():
                os.replace(self._path, self._path.with_name("offsets.json.bak"))
            os.replace(new, self._path)
        self._is_good = True


def _read(path: Path) -> dict[MessageQueue, int]:
    """Return the offsets of a file. OSError, BodyError: it holds none."""
    document = loads_file(path.read_bytes())
    if not isinstance(document, dict) or document.get("offsetTable") is None:
        raise BodyError("found no offsetTable, expected the one that every save writes")
    return dict(QueueOffsets.read(document).offset_table)
