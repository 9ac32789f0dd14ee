"""Expiry: by age in the hours of deleteWhen, on a full disk at once; queues and index follow."""

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from mqtrail.store import CommitLogConfig, CommitLogStore, GetStatus, PendingRecord, RealDisk, StoreFull
from mqtrail.store.commitlog import queues
from mqtrail.wire import Host, InvalidParameter, QueryNotFound

HOUR_MS = 3_600_000
CONFIG = CommitLogConfig(
    segment_size=64 * 1024, queue_entries=20, index_slots=10, index_entries=40, message_size_max=32 * 1024
)
FOUR_AM_MS = int(datetime(2026, 11, 21, 4, 30).timestamp() * 1000)  # local time, as deleteWhen is
BORN_HOST = Host("127.0.0.1", 1).packed()
SEGMENT = 64 * 1024


class FillingDisk(RealDisk):
    """A disk whose usage the test sets; a removed file lowers it."""

    used = 0.5
    freed_by_removal = 0.0

    def usage(self) -> float:
        return self.used

    def remove(self, path: str) -> None:
        super().remove(path)
        if path.startswith("commitlog/"):
            self.used -= self.freed_by_removal


@pytest.fixture
def disk(tmp_path: Path) -> FillingDisk:
    return FillingDisk(tmp_path)


@pytest.fixture
def store(disk: FillingDisk) -> CommitLogStore:
    """Five segments of 50 messages in two queues, all flushed."""
    store = CommitLogStore(disk, CONFIG)
    for number in range(200):
        properties = b"UNIQ_KEY\x01ID%d\x02" % number
        store.append(
            [PendingRecord("orders", number % 2, bytes(1_400), properties, 0, 1, BORN_HOST)], FOUR_AM_MS - HOUR_MS
        )
    store.dispatch_index(1_000)
    store.write_queues(sync=True)
    store.flush()
    return store


def age(folder: Path, hours: float, count: int) -> None:
    """Set the last write of the oldest segments to hours before four o'clock."""
    at = FOUR_AM_MS / 1000 - hours * 3600
    for path in sorted((folder / "commitlog").iterdir())[:count]:
        os.utime(path, (at, at))


def segments(folder: Path) -> int:
    return len(list((folder / "commitlog").iterdir()))


def test_old_segments_go_at_four(store: CommitLogStore, tmp_path: Path) -> None:
    """In the hour of deleteWhen, segments last written 72 hours ago are removed; queues and index follow."""
    age(tmp_path, 1, 5)
    age(tmp_path, 73, 2)
    first_body = store.read("orders", 0, 0, 1, 1).records[0]
    assert store.expire(FOUR_AM_MS) == 2 * SEGMENT
    assert store.min_physical_offset == 2 * SEGMENT
    assert len(first_body) > 1_400, "a record being sent outlives its file"
    first = store.min_offset("orders", 0)
    assert 0 < first < store.max_offset("orders", 0)
    found = store.read("orders", 0, 0, 1, 1)
    assert (found.status, found.next_queue_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
    assert store.read("orders", 0, first, 1, 1).status is GetStatus.FOUND
    assert list(store.query("orders", "ID0", 64, 0, 2**62).records) == []
    assert len(store.query("orders", "ID199", 64, 0, 2**62).records) == 1
    with pytest.raises(QueryNotFound):
        store.read_at(0)
    queue_files = sorted(path.name for path in (tmp_path / "consumequeue" / "orders" / "0").iterdir())
    assert queue_files[0] != "00000000000000000000"
    store.close()
    store = CommitLogStore(FillingDisk(tmp_path), CONFIG)
    assert store.min_offset("orders", 0) == first
    assert store.max_offset("orders", 0) == 100
    store.close()


def test_nothing_goes_in_other_hours(store: CommitLogStore, tmp_path: Path) -> None:
    """Age alone removes nothing outside the hours of deleteWhen while there is room."""
    age(tmp_path, 100, 5)
    assert store.expire(FOUR_AM_MS + 2 * HOUR_MS) == 0
    store.close()


def test_a_filling_disk_brings_expiry_forward(store: CommitLogStore, disk: FillingDisk, tmp_path: Path) -> None:
    """Above 75 % expired segments go at any hour; younger ones stay."""
    age(tmp_path, 1, 5)
    age(tmp_path, 100, 1)
    disk.used = 0.80
    assert store.expire(FOUR_AM_MS + 2 * HOUR_MS) == SEGMENT
    store.close()


def test_a_fuller_disk_takes_the_young_ones(store: CommitLogStore, disk: FillingDisk, tmp_path: Path) -> None:
    """Above 85 % the oldest segments are removed at any age, until the disk is below that."""
    age(tmp_path, 1, 5)
    disk.used, disk.freed_by_removal = 0.88, 0.02
    before = segments(tmp_path)
    assert store.expire(FOUR_AM_MS + 2 * HOUR_MS) == 2 * SEGMENT
    assert segments(tmp_path) == before - 2
    store.close()


def test_a_full_disk_refuses_until_there_is_room(store: CommitLogStore, disk: FillingDisk, tmp_path: Path) -> None:
    """Above 90 % sends are refused, with the remedy; reads are served; space ends it; the last segment is never
    removed."""
    disk.used = 0.95
    store.expire(FOUR_AM_MS)
    assert segments(tmp_path) == 1
    one = PendingRecord("orders", 0, b"x", b"", 0, 1, BORN_HOST)
    with pytest.raises(StoreFull, match=r"more than 90% full.*free space.*nothing of this request was stored"):
        store.append([one], FOUR_AM_MS)
    assert store.read("orders", 0, store.min_offset("orders", 0), 1, 1).status is GetStatus.FOUND
    disk.used = 0.5
    store.expire(FOUR_AM_MS)
    store.append([one], FOUR_AM_MS)
    store.close()


def test_unflushed_segments_stay(disk: FillingDisk, tmp_path: Path) -> None:
    """A segment that is not durable yet is not expired at any time."""
    store = CommitLogStore(disk, CONFIG)
    for _ in range(200):
        store.append([PendingRecord("orders", 0, bytes(1_400), b"", 0, 1, BORN_HOST)], FOUR_AM_MS)
    age(tmp_path, 100, 5)
    assert store.expire(FOUR_AM_MS) == 0
    store.flush()
    assert store.expire(FOUR_AM_MS) > 0
    store.close()


def test_expiry_at_any_hour(store: CommitLogStore, tmp_path: Path) -> None:
    """A request of an administrator removes segments that are old enough, and no others."""
    age(tmp_path, 1, 5)
    age(tmp_path, 80, 2)
    noon_ms = FOUR_AM_MS + 8 * HOUR_MS
    assert store.expire(noon_ms) == 0
    assert store.expire(noon_ms, at_any_hour=True) == 2 * SEGMENT


def test_retention_that_changes(store: CommitLogStore, disk: FillingDisk, tmp_path: Path) -> None:
    """Changed hours, age and disk ratios apply at once; invalid ones are rejected and change nothing."""
    age(tmp_path, 1, 5)
    age(tmp_path, 30, 1)
    noon_ms = FOUR_AM_MS + 8 * HOUR_MS
    assert store.expire(FOUR_AM_MS) == 0
    store.retention = replace(store.retention, retention_ms=24 * HOUR_MS, delete_hours=(12,))
    assert store.expire(noon_ms) == SEGMENT
    disk.used = 0.5
    store.retention = replace(store.retention, full_ratio=0.4)
    store.expire(noon_ms)
    assert store.is_full
    store.retention = replace(store.retention, full_ratio=0.9)
    store.expire(noon_ms)
    assert not store.is_full
    with pytest.raises(InvalidParameter, match="retention_ms"):
        store.retention = replace(store.retention, retention_ms=-1)
    assert store.retention.retention_ms == 24 * HOUR_MS


def test_the_lower_of_two_ratios_makes_room(store: CommitLogStore, disk: FillingDisk, tmp_path: Path) -> None:
    """With expire_ratio above force_ratio, which broker.conf allows, files are removed before sends are refused."""
    age(tmp_path, 1, 5)
    disk.used = 0.8
    store.retention = replace(store.retention, expire_ratio=0.95, force_ratio=0.85)
    assert store.expire(FOUR_AM_MS + 8 * HOUR_MS) == 0
    disk.used = 0.88
    assert store.expire(FOUR_AM_MS + 8 * HOUR_MS) > 0


def test_a_retention_of_nothing(store: CommitLogStore, tmp_path: Path) -> None:
    """0 hours: all segments but the last one are removed in the hour, at any age."""
    age(tmp_path, 1, 1)
    store.retention = replace(store.retention, retention_ms=0)
    assert store.expire(FOUR_AM_MS + 8 * HOUR_MS) == 0
    assert store.expire(FOUR_AM_MS) > 0


def test_a_queue_without_messages_keeps_its_place(disk: FillingDisk, tmp_path: Path) -> None:
    """When all messages of a queue expired, the next one has the next offset, so that groups continue."""
    store = CommitLogStore(disk, CONFIG)
    store.append([PendingRecord("early", 0, b"x", b"", 0, 1, BORN_HOST)], FOUR_AM_MS)
    for _ in range(100):
        store.append([PendingRecord("orders", 0, bytes(1_400), b"", 0, 1, BORN_HOST)], FOUR_AM_MS)
    store.write_queues(sync=True)
    store.flush()
    age(tmp_path, 80, 1)
    assert store.expire(FOUR_AM_MS) == SEGMENT
    list(store.clean_queues())
    assert (store.min_offset("early", 0), store.max_offset("early", 0)) == (1, 1)
    store.close()
    store = CommitLogStore(FillingDisk(tmp_path), CONFIG)
    (ticket,) = store.append([PendingRecord("early", 0, b"y", b"", 0, 1, BORN_HOST)], FOUR_AM_MS)
    assert ticket.queue_offset == 1
    assert store.read("early", 0, 1, 1, 1).status is GetStatus.FOUND
    store.close()


def test_queues_are_cleaned_in_slices(store: CommitLogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be very many queues. First their files are removed, one per slice; reads of them report that
    meanwhile."""
    monkeypatch.setattr(queues, "QUEUES_A_SLICE", 1)
    age(tmp_path, 73, 2)
    expiring = store.expire_in_slices(FOUR_AM_MS)
    next(expiring)
    assert store.min_physical_offset == SEGMENT
    next(expiring)
    assert (store.min_physical_offset, store.min_offset("orders", 0)) == (2 * SEGMENT, 0)
    next(expiring)
    assert store.min_offset("orders", 0) > 0 == store.min_offset("orders", 1)
    assert store.read("orders", 1, 0, 1, 1).status is GetStatus.MESSAGE_WAS_REMOVING
    assert store.store_time("orders", 1, 0) == -1
    next(expiring)
    assert store.min_offset("orders", 1) > 0
    with pytest.raises(StopIteration) as end:
        next(expiring)
    assert end.value.value == 2 * SEGMENT
