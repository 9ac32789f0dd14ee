"""A full index file is made durable by the next two checkpoints, in slices, whatever happens in between."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mqtrail.store import CommitLogStore, MemoryDisk, MemoryFile
from mqtrail.store.commitlog import index, index_file
from mqtrail.store.commitlog.index_file import HEADER, IndexDamaged
from mqtrail.wire import SystemBusy, decode_record
from tests.store import hard_life
from tests.store.hard_disk import HardDisk, PowerCut
from tests.store.hard_life import number_of, pending

CONFIG = replace(hard_life.CONFIG, index_slots=3_000)  # three pages of slots
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "PAGES_A_SLICE", 1)


class LoggedFile(MemoryFile):
    def __init__(self, path: str, size: int, calls: list[tuple[str, str, int]]) -> None:
        super().__init__(size)
        self._path, self._calls = path, calls

    def write_at(self, offset: int, data: bytes) -> None:
        self._calls.append(("write", self._path, len(data)))
        super().write_at(offset, data)

    def sync(self) -> None:
        self._calls.append(("sync", self._path, 0))


class LoggedDisk(MemoryDisk):
    """Records the calls on files of the index: which call, which file, how many bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, int]] = []

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        if path not in self.files and path.startswith("index/"):
            self.files[path] = LoggedFile(path, size, self.calls)
        return super().open(path, size, reserve=reserve)

    def replace(self, path: str, data: bytes) -> None:
        if path.startswith("mqtrail-index/"):
            self.calls.append(("replace", path, len(data)))
        super().replace(path, data)

    def take(self) -> list[tuple[str, str, int]]:
        calls = self.calls[:]
        self.calls.clear()
        return calls


def append(store: CommitLogStore, first: int, count: int) -> None:
    """Append messages, all in one millisecond: so times do not show which of them are on the disk."""
    for number in range(first, first + count):
        store.append([pending(number, "orders", 0, 20)], NOW_MS)
    while store.dispatch_index(10):
        pass


def missing(store: CommitLogStore, count: int) -> list[int]:
    """Return which of the first messages are not found by their key."""

    def finds(number: int) -> bool:
        while True:
            try:
                found = store.query("orders", f"key{number}", 64, 0, 1 << 62).records
            except SystemBusy:
                continue  # damage was found, and the index is built again
            return number in [number_of(decode_record(record)[0].body) for record in found]

    return [number for number in range(count) if not finds(number)]


def headers(disk: MemoryDisk) -> list[tuple[int, ...]]:
    return [HEADER.unpack(disk.files[path].read_at(0, 40)) for path in sorted(disk.files) if path.startswith("index/")]


def test_a_full_file_is_closed_in_slices() -> None:
    """Neither indexing nor a slice of a checkpoint syncs or writes more than a page; syncs are left to the thread."""
    disk = LoggedDisk()
    store = CommitLogStore(disk, CONFIG)
    append(store, 0, 60)
    full = [path for path in sorted(disk.files) if path.startswith("index/")][:-1]
    assert len(full) == 2
    assert {(what, size % 20) for what, _, size in disk.take()} == {("write", 0)}, "entries alone"
    for expected in ("sums", "headers", "nothing"):
        slices = 0
        work = store.begin_checkpoint_in_slices()
        while True:
            try:
                next(work)
            except StopIteration as end:
                sync: Callable[[], None] = end.value
                break
            slices += 1
            written = disk.take()
            assert all(what == "write" for what, _, _ in written)
            assert sum(size for _, _, size in written) <= 1024 * 4 + HEADER.size
        assert all(what == "write" for what, _, _ in disk.calls)
        headed = [path for _, path, size in disk.take() if size == HEADER.size and path in full]
        sync()
        done = disk.take()
        assert not any(what == "write" for what, _, _ in done)
        noted = [path for what, path, _ in done if what == "replace"]
        assert headed == (full if expected == "headers" else [])
        assert noted == ([f"mqtrail-{path}" for path in full] if expected == "sums" else [])
        assert {path for what, path, _ in done if what == "sync"} >= set(full if expected != "nothing" else [])
        assert slices >= 3 if expected == "sums" else slices <= 3
    assert store.is_index_saved
    assert missing(store, 60) == []
    store.close()


def life(store: CommitLogStore) -> Iterator[None]:
    """Fill files of the index, and make checkpoints in slices while more is indexed; yield between the steps."""
    count = 0
    for _ in range(3):
        append(store, count, 22)
        count += 22
        yield
        work = store.begin_checkpoint_in_slices()
        while True:
            try:
                next(work)
            except StopIteration as end:
                sync: Callable[[], None] = end.value
                break
            append(store, count, 1)
            count += 1
            yield
        yield
        sync()
        yield


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_a_crash_in_any_call_loses_no_key(*, power: bool) -> None:
    """In each call to the disk in turn, and between any two: the messages that are left are all found."""
    kept = 0
    cut_at = 0
    while True:
        cut_at += 1
        disk = HardDisk(random.Random(cut_at))
        store = CommitLogStore(disk, CONFIG)
        disk.power_cut_at = disk.calls + cut_at
        try:
            for _ in life(store):
                pass
            ended = True
        except PowerCut:
            ended = False
        store.abandon()
        disk.stop(power=power)
        disk.power_cut_at = -1
        store = CommitLogStore(disk, CONFIG)
        kept += len(store._index.files)
        assert missing(store, store.max_offset("orders", 0)) == [], f"{cut_at=}"
        store.close()
        store = CommitLogStore(disk, CONFIG)
        assert store.recovery.rebuilt == (), f"{cut_at=}"
        store.close()
        if ended:
            assert kept > 0, "what was durable is not built again"
            return


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))])
def test_a_power_cut_between_any_two_steps_loses_no_key(seed: int) -> None:
    """Unsynced writes survive whole, torn or not at all."""
    step = 0
    ended = False
    while not ended:
        step += 1
        disk = HardDisk(random.Random(1_000 * seed + step))
        store = CommitLogStore(disk, CONFIG)
        steps = life(store)
        for _ in range(step):
            ended = next(steps, "ended") == "ended"
        store.abandon()
        disk.stop(power=True)
        store = CommitLogStore(disk, CONFIG)
        assert missing(store, store.max_offset("orders", 0)) == [], f"{step=}"
        store.abandon()
        disk.stop(power=False)


def test_two_checkpoints_make_full_files_durable() -> None:
    """A crash after them costs the unfinished file alone; one after the first costs the full files too."""
    disk = HardDisk(random.Random(1))
    store = CommitLogStore(disk, CONFIG)
    append(store, 0, 60)
    kept = []
    for _ in range(2):
        store.begin_checkpoint()()
        copy = HardDisk(random.Random(2))
        copy.small = dict(disk.small)
        for path, file in disk.files.items():
            copy.open(path, len(file.data)).data[:] = file.data
        again = CommitLogStore(copy, CONFIG)
        kept.append((len(again._index.files), again.recovery.rebuilt))
        assert missing(again, 60) == []
        again.close()
    assert kept == [(0, ()), (2, ())]
    store.close()


def test_files_that_are_built_again_are_not_taken_for_those_before() -> None:
    """The checkpoint says up to when the index was on the disk, also after a file of it was found damaged."""
    for seed in range(30):
        disk = HardDisk(random.Random(seed))
        CommitLogStore(disk, CONFIG).close()
        store = CommitLogStore(disk, CONFIG)
        append(store, 0, 80)
        store.append([pending(80, "orders", 0, 20)], NOW_MS + 10_000)
        while store.dispatch_index(10):
            pass
        for _ in range(2):
            store.begin_checkpoint()()
        assert [header[-1] for header in headers(disk)[:-1]] == [64, 64, 64]
        store._index.drop_damaged(store._index.files[0], IndexDamaged("found a test"))
        store._indexer.restart()
        while store.dispatch_index(10):
            pass
        work = store.begin_checkpoint_in_slices()
        for _ in work:
            pass
        store.abandon()
        disk.stop(power=True)
        store = CommitLogStore(disk, CONFIG)
        assert missing(store, 81) == [], f"{seed=}"
        store.close()


def test_a_full_file_whose_sync_fails_is_built_again() -> None:
    """The kernel may have dropped the data; no checkpoint follows, and the next start reads the log."""

    class Failing(HardDisk):
        is_failing = False

        def sync_fault(self, path: str) -> PowerCut | OSError | None:
            return OSError(errno.EIO, "no sync") if self.is_failing and path.startswith("index/") else None

    disk = Failing(random.Random(3))
    store = CommitLogStore(disk, CONFIG)
    append(store, 0, 60)
    disk.is_failing = True
    with pytest.raises(OSError, match="no sync"):
        store.begin_checkpoint()()
    disk.is_failing = False
    store.begin_checkpoint()()
    assert not store.is_index_saved
    assert missing(store, 60) == []
    store.close()
    disk.stop(power=True)
    store = CommitLogStore(disk, CONFIG)
    assert store._index.files == []
    assert missing(store, 60) == []
    store.close()


def test_without_checkpoints_few_full_files_keep_slots_in_memory() -> None:
    """One more full file is written at once."""
    store = CommitLogStore(MemoryDisk(), CONFIG)
    append(store, 0, 300)
    assert len(store._index.files) == 15
    assert sum(file.has_slots for file in store._index.files) == index.CLOSING_MAX
    assert missing(store, 300) == []
    store.close()


def test_a_file_that_expires_while_it_is_closed_leaves_no_checksums() -> None:
    """Checksums without a file would mean that the file is missing."""
    disk = MemoryDisk()
    store = CommitLogStore(disk, CONFIG)
    append(store, 0, 60)
    sync = store.begin_checkpoint()
    first = store._index.files[0]
    noted = f"mqtrail-index/{first.name}"
    store._index.expire(first.end_offset + 1)
    sync()
    assert noted not in disk.small
    store.close()
    assert len([path for path in disk.small if path.startswith("mqtrail-index/")]) == 2
