"""Background jobs of a store leave the event loop free in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtrail.node import upkeep
from mqtrail.node.flusher import Flusher
from mqtrail.node.upkeep import Upkeep
from mqtrail.store import CommitLogConfig, CommitLogStore, PendingRecord, RealDisk
from mqtrail.wire import Host

QUEUES = 100
CONFIG = CommitLogConfig(segment_size=256 * 1024, index=False)
BORN_HOST = Host("127.0.0.1", 1).packed()


class CountedStore(CommitLogStore):
    """Counts slices and finished passes of writing queue files."""

    slices = passes = 0

    def write_queues_in_slices(self) -> Iterator[None]:
        for _ in super().write_queues_in_slices():
            self.slices += 1
            yield
        self.passes += 1


def put_one_into_each(store: CommitLogStore) -> None:
    for number in range(QUEUES):
        store.append([PendingRecord(f"T{number:03}", 0, b"body", b"", 0, 1, BORN_HOST)], 1_000)


def queue_files(folder: Path) -> set[str]:
    return {path.parent.parent.name for path in (folder / "consumequeue").glob("*/*/*")}


async def test_many_new_queues_are_written_in_strokes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first entry of a queue creates its file.

    The loop serves between slices, and the checkpoint waits for all files.
    """
    monkeypatch.setattr(upkeep, "QUEUES_WRITE_S", 3600.0)
    monkeypatch.setattr(upkeep, "CHECKPOINT_S", 0.01)
    store = CountedStore(RealDisk(tmp_path), CONFIG)
    put_one_into_each(store)
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    times = upkeep.UpkeepTimes(flush_ms=3_600_000, expire_ms=3_600_000, index_ms=1, slice_ms=0)
    jobs = Upkeep(store, flusher, times)
    jobs.start()
    store.append([PendingRecord("T000", 0, b"later", b"", 0, 1, BORN_HOST)], 1_000)
    seen = set()
    async with asyncio.timeout(60):
        while store.flushed_offset < store.end_offset:
            seen.add(store.slices)
            await asyncio.sleep(0)
    assert len(seen - {0}) >= QUEUES // 10, "the loop was free between slices"
    assert len(queue_files(tmp_path)) == QUEUES
    jobs.stop()
    await flusher.stop()
    store.close()


def test_a_topic_that_is_deleted_between_slices_leaves_no_files(tmp_path: Path) -> None:
    """Entries appended meanwhile to a queue that is already written are not lost."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    put_one_into_each(store)
    slices = store.write_queues_in_slices()
    next(slices)
    assert 0 < len(queue_files(tmp_path)) < QUEUES
    gone = f"T{QUEUES - 1:03}"
    store.delete_topic(gone)
    store.append([PendingRecord("T000", 0, b"later", b"", 0, 1, BORN_HOST)], 1_000)
    for _ in slices:
        pass
    assert gone not in queue_files(tmp_path)
    assert store.max_offset("T000", 0) == 2
    store.close()
    again = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert [again.max_offset(f"T{number:03}", 0) for number in range(QUEUES)] == [2] + [1] * (QUEUES - 2) + [0]
    again.close()
