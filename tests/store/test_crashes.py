"""Starts after single crashes: torn tails, damage, entries past the end."""

import random

import pytest

from mqtrail.store import CommitLogStore, StoreError
from tests.store.crash_disk import CrashDisk, CrashFile
from tests.store.hard_life import CONFIG, pending


def test_a_stale_record_does_not_come_back() -> None:
    """Bytes behind a torn record are wiped: otherwise a new record of its size would restore a stale one."""
    disk = CrashDisk()
    store = CommitLogStore(disk, CONFIG)
    first, second, third = (store.append([pending(n, "orders", 0, 50)], 1)[0] for n in range(3))
    store.abandon()
    log = disk.files["commitlog/" + "0" * 20]
    log.data[second.physical_offset + 100] ^= 1  # the body: the CRC detects it
    disk.close()
    store = CommitLogStore(disk, CONFIG)
    assert store.recovery.wiped_size > 0
    assert store.max_offset("orders", 0) == 1
    store.append([pending(7, "orders", 0, 50)], 1)
    store.abandon()
    store = CommitLogStore(disk, CONFIG)
    assert store.max_offset("orders", 0) == 2
    assert first.end_offset == second.physical_offset < third.physical_offset


def test_damage_below_the_mark_refuses_to_start() -> None:
    """Damage in flushed bytes is not a torn tail: the error names the position and the remedies."""
    disk = CrashDisk()
    store = CommitLogStore(disk, CONFIG)
    second = store.append([pending(n, "orders", 0, 50) for n in range(3)], 1)[1]
    store.flush()
    store.abandon()
    disk.files["commitlog/" + "0" * 20].data[second.physical_offset + 100] ^= 1
    disk.close()
    with pytest.raises(StoreError, match=rf"damage in the CommitLog at physical offset {second.physical_offset}"):
        CommitLogStore(disk, CONFIG)


def test_entries_past_the_end_are_counted() -> None:
    """Queue entries that were synced before their records are dropped, and the report has their number."""
    disk = CrashDisk()
    store = CommitLogStore(disk, CONFIG)
    store.append([pending(n, "orders", 0, 50) for n in range(2)], 1)
    store.flush()
    store.append([pending(n, "orders", 0, 50) for n in range(2, 5)], 1)
    store.write_queues()
    for path, file in disk.files.items():
        assert isinstance(file, CrashFile)
        if path.startswith("consumequeue"):
            file.sync()
    store.abandon()
    log = disk.files["commitlog/" + "0" * 20]
    assert isinstance(log, CrashFile)
    for offset, before, _ in reversed(log.unsynced):
        log.data[offset : offset + len(before)] = before
    disk.close()
    store = CommitLogStore(disk, CONFIG)
    assert store.recovery.dangling_entries == 3
    assert store.max_offset("orders", 0) == 2
    assert "3 queue entries pointed past the end" in str(store.recovery)


def test_the_crash_disk_can_lose() -> None:
    """The disk of these tests does lose data: otherwise they could not fail."""
    disk = CrashDisk()
    file = disk.open("f", 64)
    file.write_at(0, b"kept")
    file.sync()
    outcomes = set()
    for seed in range(50):
        file.write_at(8, b"unsynced")
        disk.crash(random.Random(seed))
        outcomes.add(bytes(file.data[8:16]))
        file.data[8:16] = bytes(8)
        assert file.data[:4].tobytes() == b"kept"
    assert len(outcomes) > 2
