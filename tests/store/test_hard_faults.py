"""A few lives of a store on a faulty disk (`make sim` runs thousands), and regression tests from such lives."""

import errno
import random
from collections.abc import Callable

import pytest

from mqtrail.store import CommitLogStore, StoreBroken
from mqtrail.store.commitlog.mark import WIPING_FILE
from tests.store.hard_disk import HardDisk, HardFile, PowerCut
from tests.store.hard_life import CONFIG, HardLife, pending

LOG = "commitlog/" + "0" * 20


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 80))])
def test_promises_hold(seed: int) -> None:
    """With any disk faults no acknowledged message is lost, no rejected one appears, and the index is complete."""
    life = HardLife(seed)
    life.live(60)
    life.check_index()


class ChosenDisk(HardDisk):
    """A disk whose next sync of the log, or write to it, fails on demand. A power cut removes all unsynced bytes."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.failing_syncs = 0
        self.failing_writes = 0
        self.during_sync: Callable[[], None] | None = None  # called during the next sync of the log

    def sync_fault(self, path: str) -> PowerCut | OSError | None:
        if path == LOG and (act := self.during_sync) is not None:
            self.during_sync = None
            act()
        if path == LOG and self.failing_syncs:
            self.failing_syncs -= 1
            return OSError(errno.EIO, "no sync")
        return None

    def write_fault(self) -> OSError | None:
        if self.failing_writes:
            self.failing_writes -= 1
            return OSError(errno.EIO, "no write")
        return None

    def cut_power(self) -> None:
        for file in self.files.values():
            assert isinstance(file, HardFile)
            for offset, before, _ in reversed(file._dropped + file._unsynced):
                file.data[offset : offset + len(before)] = before
            file._dropped.clear()
            file._unsynced.clear()
        self.close()


def _log(disk: ChosenDisk) -> HardFile:
    file = disk.files[LOG]
    assert isinstance(file, HardFile)
    return file


def test_zeros_that_could_not_be_synced_are_written_again() -> None:
    """The kernel shows zeros where the disk still has a record: it must not come back behind a later one."""
    disk = ChosenDisk()
    store = CommitLogStore(disk, CONFIG)
    store.append([pending(0, "orders", 0, 20)], 1_000)
    store.flush()
    (stale,) = store.append([pending(1, "orders", 1, 20)], 1_000)
    store.abandon()
    disk.stop(power=False)
    file = _log(disk)
    file._unsynced.clear()  # the kernel has written the record to the disk,
    file.data[stale.end_offset - 1] = 0  # but for its last byte
    torn = bytes(file.data)

    disk.failing_syncs = 1
    with pytest.raises(OSError, match="no sync"):
        CommitLogStore(disk, CONFIG)  # wipes the torn record
    disk.stop(power=False)
    assert file.data[stale.physical_offset : stale.end_offset] == bytes(stale.end_offset - stale.physical_offset)
    store = CommitLogStore(disk, CONFIG)
    assert store.end_offset == stale.physical_offset
    store.flush()
    assert disk.read(WIPING_FILE) is None
    store.abandon()
    disk.cut_power()
    assert bytes(file.data) != torn
    assert file.data[stale.physical_offset : stale.end_offset] == bytes(stale.end_offset - stale.physical_offset)


def test_a_flush_beside_a_failed_take_back_promises_nothing() -> None:
    """The kernel reports a failed sync to one caller only: a concurrent flush must not trust its own success."""
    disk = ChosenDisk()
    store = CommitLogStore(disk, CONFIG)
    store.append([pending(0, "orders", 0, 20)], 1_000)
    flush: Callable[[], int] = store.begin_flush()
    disk.failing_writes, disk.failing_syncs = 1, 1
    with pytest.raises(StoreBroken, match="could not be undone"):
        store.append([pending(1, "orders", 0, 20)], 1_000)
    with pytest.raises(StoreBroken, match="could not be undone"):
        flush()
    assert store.flushed_offset == 0


def test_a_flush_beside_a_take_back_is_done_again() -> None:
    """It cannot know whether zeros that were synced meanwhile took its failure along."""
    disk = ChosenDisk()
    store = CommitLogStore(disk, CONFIG)
    store.append([pending(0, "orders", 0, 20)], 1_000)
    end = store.end_offset

    def append() -> None:
        disk.failing_writes = 1
        with pytest.raises(OSError, match="no write"):
            store.append([pending(1, "orders", 0, 20)], 1_000)

    disk.during_sync = append
    assert store.flush() == 0
    assert store.fault is None
    disk.during_sync = append
    store.write_queues(sync=True)
    assert store.flushed_offset == 0
    assert disk.read("mqtrail-queues") is None
    assert store.flush() == end
    store.append([pending(2, "orders", 0, 20)], 1_000)
    store.close()
    assert CommitLogStore(disk, CONFIG).max_offset("orders", 0) == 2


def test_an_append_that_was_taken_back_leaves_no_note() -> None:
    """The note written before the zeros is removed when the zeros are durable."""
    disk = ChosenDisk()
    store = CommitLogStore(disk, CONFIG)
    store.append([pending(0, "orders", 0, 20)], 1_000)
    disk.failing_writes = 1
    with pytest.raises(OSError, match="no write"):
        store.append([pending(1, "orders", 0, 20)], 1_000)
    assert store.fault is None
    assert disk.read(WIPING_FILE) is None
    store.append([pending(2, "orders", 0, 20)], 1_000)
    assert store.flush() == store.end_offset


def test_what_a_failed_sync_dropped_is_written_again() -> None:
    """Data that failed syncs of several segments dropped, and reads still show, is on disk after the next flush."""
    disk = HardDisk(random.Random(1))
    store = CommitLogStore(disk, CONFIG)
    for number in range(60):
        store.append([pending(number, "orders", 0, 5_000)], 1_700_000_000_000)
    assert store.end_offset > 4 * CONFIG.segment_size
    for file in disk.files.values():
        if isinstance(file, HardFile):
            file._dropped, file._unsynced = file._dropped + file._unsynced, []
    store.abandon()
    disk.stop(power=False)
    store = CommitLogStore(disk, CONFIG)
    end_offset = store.flush()
    store.abandon()
    disk.stop(power=True)
    assert CommitLogStore(disk, CONFIG).end_offset == end_offset
