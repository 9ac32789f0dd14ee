"""Background jobs of a store leave the event loop free in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mqtrail.node import upkeep
from mqtrail.node.flusher import Flusher
from mqtrail.node.upkeep import Upkeep
from mqtrail.store import CommitLogConfig, CommitLogStore, PendingRecord, RealDisk
from mqtrail.wire import Host, SystemBusy

QUEUES = 100
CONFIG = CommitLogConfig(segment_size=256 * 1024, index=False)
BORN_HOST = Host("127.0.0.1", 1).packed()


class CountedStore(CommitLogStore):
    """Counts the slices in which its queue files are written."""

    slices = 0

    def begin_checkpoint_in_slices(self, *, index: bool = True) -> Generator[None, None, Callable[[], None]]:
        slices = super().begin_checkpoint_in_slices(index=index)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                job: Callable[[], None] = end.value
                return job
            self.slices += 1
            yield


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


async def test_damage_of_the_index_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the finding, and the index is rebuilt without another append."""
    monkeypatch.setattr(upkeep, "QUEUES_WRITE_S", 0.01)
    config = replace(CONFIG, index=True, index_slots=100, index_entries=1_000)
    CommitLogStore(RealDisk(tmp_path), config).close()  # the folder is known to be ours
    store = CommitLogStore(RealDisk(tmp_path), config)
    store.append([PendingRecord("T", 0, b"body", b"KEYS\x01k\x02", 0, 1, BORN_HOST)], 1_000)
    while store.dispatch_index(10):
        pass
    store.write_queues(sync=True)
    [file] = (tmp_path / "index").iterdir()
    with file.open("r+b") as opened:
        opened.seek(40 + 4 * 100 + 20)
        opened.write(b"\xff" * 20)
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    times = upkeep.UpkeepTimes(flush_ms=3_600_000, expire_ms=3_600_000, index_ms=1, slice_ms=10)
    jobs = Upkeep(store, flusher, times)
    with pytest.raises(SystemBusy, match="built again"):
        store.query("T", "k", 9, 0, 1 << 62)
    with capture_logs() as logs:
        jobs.start()
        async with asyncio.timeout(60):
            while not any(line["event"] == "store.index_damaged" for line in logs) or store.behind_size:
                await asyncio.sleep(0.01)
    jobs.stop()
    [damage] = [line for line in logs if line["event"] != "loop.stalled"]  # the machine may be busy
    assert damage["event"] == "store.index_damaged"
    assert f"index/{file.name}: found entries" in damage["found"]
    assert store.index_damage[0] == 1
    assert len(store.query("T", "k", 9, 0, 1 << 62).records) == 1
    await flusher.stop()
    store.close()


async def test_an_index_is_saved_without_further_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full file needs two checkpoints; entries that were built after the last one need another."""
    monkeypatch.setattr(upkeep, "CHECKPOINT_S", 0.01)
    config = replace(CONFIG, index=True, index_slots=100, index_entries=20)
    store = CommitLogStore(RealDisk(tmp_path), config)
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    jobs = Upkeep(store, flusher, upkeep.UpkeepTimes(flush_ms=1, expire_ms=3_600_000, index_ms=1, slice_ms=1))
    jobs.start()
    for number in range(50):
        store.append([PendingRecord("T", 0, b"body", b"KEYS\x01k%d\x02" % number, 0, 1, BORN_HOST)], 1_000)
    jobs.appended()
    async with asyncio.timeout(60):
        while not store.is_index_saved or store.behind_size:
            await asyncio.sleep(0.01)
    jobs.stop()
    await flusher.stop()
    store.abandon()
    again = CommitLogStore(RealDisk(tmp_path), config)
    assert len(again._index.files) == 2, "full files are not built again after a crash"
    again.abandon()


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


async def test_what_expired_is_cleaned_in_strokes(tmp_path: Path) -> None:
    """The loop serves between slices, and a second removal does not begin before the first has ended."""
    steps: list[str] = []

    class Expiring(CommitLogStore):
        def expire_in_slices(self, now_ms: int, *, at_any_hour: bool = False) -> Generator[None, None, int]:
            steps.append("begun")
            for _ in range(3):
                yield
                steps.append("slice")
            return 0

    store = Expiring(RealDisk(tmp_path), CONFIG)
    flusher = Flusher(store, lambda error: pytest.fail(str(error)))
    jobs = Upkeep(store, flusher, upkeep.UpkeepTimes(flush_ms=3_600_000, expire_ms=1, index_ms=1, slice_ms=0))
    jobs.start()
    turns: list[int] = []
    async with asyncio.timeout(60):
        while steps.count("begun") < 3:
            turns.append(len(steps))
            await asyncio.sleep(0)
    assert steps[:8] == ["begun", "slice", "slice", "slice"] * 2
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 2
    jobs.stop()
    await flusher.stop()
    store.close()
