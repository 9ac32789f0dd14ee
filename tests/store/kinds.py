"""Stores that differ in all that the contract leaves open: where files are, how large, when they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from mqtrail.store import (
    Appended,
    CommitLogConfig,
    CommitLogStore,
    MemoryStore,
    MessageStore,
    PendingRecord,
    RealDisk,
)

CONFIG = CommitLogConfig(
    segment_size=128 * 1024, queue_entries=60, index_slots=32, index_entries=500, message_size_max=32 * 1024
)
SMALLEST = CommitLogConfig(
    segment_size=97 * 1024, queue_entries=1, index_slots=1, index_entries=2, message_size_max=32 * 1024
)


class SyncedStore(CommitLogStore):
    """Each append is durable, indexed and noted when it returns, as under SYNC_FLUSH with the shortest intervals."""

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Append, and at once do all work that is usually done later."""
        tickets = super().append(records, now_ms)
        self.flush()
        while self.dispatch_index(1_000):
            pass
        self.write_queues(sync=True)
        return tickets


class ReopenedStore:
    """A store that is closed and opened again after each append: it knows only what its files contain."""

    def __init__(self, folder: Path, leave: Callable[[CommitLogStore], None]) -> None:
        self._folder, self._leave = folder, leave
        self._store = CommitLogStore(RealDisk(folder), CONFIG)

    def append(self, records: Sequence[PendingRecord], now_ms: int) -> list[Appended]:
        """Append, then open the store again."""
        tickets = self._store.append(records, now_ms)
        self._leave(self._store)
        self._store = CommitLogStore(RealDisk(self._folder), CONFIG)
        return tickets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _crash(store: CommitLogStore) -> None:
    """End as a killed process does: the kernel keeps what was written, and the queue entries in memory are gone."""
    store.flush()
    store.abandon()


KINDS: dict[str, Callable[[Path], MessageStore]] = {
    "memory": lambda folder: MemoryStore(CONFIG),
    "disk": lambda folder: CommitLogStore(RealDisk(folder), CONFIG),
    "smallest files": lambda folder: CommitLogStore(RealDisk(folder), SMALLEST),
    "synced": lambda folder: SyncedStore(RealDisk(folder), CONFIG),
    "reopened": lambda folder: cast(MessageStore, ReopenedStore(folder, CommitLogStore.close)),
    "killed": lambda folder: cast(MessageStore, ReopenedStore(folder, _crash)),
}
