"""Deleting a topic costs one small write; a start after a crash does not restore any part of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator

import pytest

from mqtrail.store import CommitLogConfig, CommitLogStore, MemoryDisk, MemoryFile, PendingRecord, StoreFull
from mqtrail.store.commitlog import checkpoint, deleted
from mqtrail.store.commitlog.deleted import DELETED_FILE
from mqtrail.wire import decode_record

from .crash_disk import CrashDisk

CONFIG = CommitLogConfig(
    segment_size=128 * 1024, queue_entries=20, index_slots=32, index_entries=500, message_size_max=32 * 1024
)
NOW_MS = 1_700_000_000_000


def record(body: bytes, topic: str = "T", queue_id: int = 0) -> PendingRecord:
    return PendingRecord(topic, queue_id, body, b"", 0, 1, b"\x7f\0\0\x01\0\0\x2a\x9f")


def put(store: CommitLogStore, count: int, name: str, topic: str = "T") -> None:
    for number in range(count):
        store.append([record(b"%s%d" % (name.encode(), number), topic)], NOW_MS)


def bodies(store: CommitLogStore, topic: str = "T") -> list[bytes]:
    found: list[bytes] = []
    at = store.min_offset(topic, 0)
    while at < store.max_offset(topic, 0):
        part = store.read(topic, 0, at, 99, 1 << 20)
        found += [decode_record(bytes(one))[0].body for one in part.records]
        at = part.next_queue_offset
    return found


def killed(store: CommitLogStore, disk: MemoryDisk) -> CommitLogStore:
    """Open the store as after kill -9: written data exists, data that was only in memory does not."""
    store.abandon()
    return CommitLogStore(disk, CONFIG)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.mark.parametrize("checkpointed", [0, 5, 10, 15])
def test_a_new_topic_keeps_its_messages_after_a_kill(disk: MemoryDisk, checkpointed: int) -> None:
    """The start reads records of the old and of the new topic: only those of the new one are in its queue."""
    store = CommitLogStore(disk, CONFIG)
    put(store, 1, "kept", "other")
    put(store, checkpointed, "old")
    store.write_queues(sync=True)
    store.flush()
    put(store, 10, "old")
    store.delete_topic("T")
    put(store, 3, "new")
    for life in range(2):
        store = killed(store, disk)
        assert store.max_offset("T", 0) == 3 + life
        assert bodies(store) == [b"new0", b"new1", b"new2", b"more0"][: 3 + life]
        put(store, 1, "more")
    store.close()


@pytest.mark.parametrize("removed", [False, True])
def test_a_deleted_topic_stays_away_after_a_kill(disk: MemoryDisk, removed: bool) -> None:
    """Whether or not its files were removed in time; a checkpoint had noted how many entries its queues have."""
    store = CommitLogStore(disk, CONFIG)
    put(store, 30, "old")
    put(store, 30, "kept", "other")
    store.write_queues(sync=True)
    put(store, 5, "old")
    store.delete_topic("T")
    if removed:
        store.write_queues()
    store = killed(store, disk)
    assert store.topics() == ["other"]
    assert store.recovery.rebuilt == ()
    assert store.max_offset("other", 0) == 30
    store.write_queues()
    assert disk.list("consumequeue") == ["other"]
    store.close()


class CountingFile(MemoryFile):
    syncs = 0

    def sync(self) -> None:
        CountingFile.syncs += 1


class CountingDisk(MemoryDisk):
    """Counts what reaches the disk; `fails`: removing anything under this folder does not work."""

    fails = ""

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        return self.files.setdefault(path, CountingFile(size))

    def replace(self, path: str, data: bytes) -> None:
        CountingFile.syncs += 1
        super().replace(path, data)

    def remove(self, path: str) -> None:
        if self.fails and path.startswith(self.fails):
            raise OSError(5, "Input/output error")
        super().remove(path)


def test_a_deletion_syncs_nothing_and_leaves_other_queues_alone() -> None:
    """It is noted with one write, which the next flush makes durable; other topics' entries stay in memory."""
    disk = CountingDisk()
    store = CommitLogStore(disk, CONFIG)
    for number in range(50):
        put(store, 1, "x", f"other{number}")
    put(store, 3, "old")
    before = CountingFile.syncs
    files = len(disk.files)
    store.delete_topic("T")
    assert CountingFile.syncs == before
    assert len(disk.files) == files + 1, "the note alone"
    store.flush()
    assert CountingFile.syncs - before == 2, "the note and the log"
    store.close()


def test_files_go_in_slices_and_not_those_of_a_new_topic(disk: MemoryDisk) -> None:
    """A queue that is written between two slices is the new topic's."""
    store = CommitLogStore(disk, CONFIG)
    store.append([record(b"old", queue_id=queue_id) for queue_id in range(100)], NOW_MS)
    store.write_queues()
    store.delete_topic("T")
    assert store.queue_ids("T") == []
    slices = store.write_queues_in_slices()
    next(slices)
    assert 50 < len(disk.list("consumequeue/T")) < 100
    store.append([record(b"new", queue_id=99), record(b"new", queue_id=0)], NOW_MS)
    store.write_queues()
    for _ in slices:
        pass
    assert disk.list("consumequeue/T") == ["0", "99"]
    store.close()
    store = CommitLogStore(disk, CONFIG)
    assert [store.max_offset("T", queue_id) for queue_id in (0, 1, 99)] == [1, 0, 1]
    store.close()


def test_what_cannot_be_removed_is_removed_later() -> None:
    """The topic is gone at once; the upkeep gets the error and tries again."""
    disk = CountingDisk()
    store = CommitLogStore(disk, CONFIG)
    put(store, 3, "old")
    store.write_queues()
    disk.fails = "consumequeue/T"
    store.delete_topic("T")
    assert store.topics() == []
    with pytest.raises(OSError, match="Input/output"):
        store.write_queues()
    with pytest.raises(OSError, match="Input/output"):
        put(store, 1, "new")  # its files would be mistaken for the old ones
    assert store.topics() == []
    disk.fails = ""
    store.write_queues()
    assert disk.list("consumequeue") == []
    put(store, 1, "new")
    assert bodies(store) == [b"new0"]
    store.close()


def test_more_deletions_than_slots_wait_for_a_checkpoint(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic whose deletion is not noted yet cannot be created again; after the checkpoint there is room."""
    monkeypatch.setattr(deleted, "SLOTS", 2)
    store = CommitLogStore(disk, CONFIG)
    for name in "ABC":
        put(store, 2, name, name)
    for name in "ABC":
        store.delete_topic(name)
    assert store.topics() == []
    with pytest.raises(StoreFull, match="2 topics deleted"):
        put(store, 1, "c", "C")
    put(store, 1, "a", "A")
    with pytest.raises(StoreFull):
        store.write_queues(sync=True)
    store = killed(store, disk)
    assert store.max_offset("A", 0) == 1
    store.close()


def power_cut(store: CommitLogStore, disk: CrashDisk, chance: random.Random) -> CommitLogStore:
    store.abandon()
    disk.crash(chance)
    return CommitLogStore(disk, CONFIG)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 100))])
def test_acknowledged_messages_of_new_topics_survive_power_cuts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any order of appends, deletions, flushes and slices of checkpoints: a flushed message of the topic as it is now
    stays, and none of an older topic with the name comes back."""
    monkeypatch.setattr(checkpoint, "QUEUES_A_SLICE", 1)
    chance = random.Random(seed)
    disk = CrashDisk()
    store = CommitLogStore(disk, CONFIG)
    now: list[bytes] = []
    flushed = number = generation = 0
    slices: Generator[None, None, Callable[[], None]] | None = None  # of a checkpoint
    for _ in range(80):
        match chance.choice(["append"] * 6 + ["slice"] * 4 + ["delete", "flush", "checkpoint", "write", "cut", "kill"]):
            case "append":
                now.append(b"%d:%d" % (generation, number))
                store.append([record(b"x", "other"), record(now[-1])], NOW_MS)
                number += 1
            case "slice":
                slices = slices or store.begin_checkpoint_in_slices()
                try:
                    next(slices)
                except StopIteration as end:
                    end.value()
                    slices, flushed = None, len(now)
            case "delete":
                store.delete_topic("T")
                store.flush()
                now, flushed = [], 0
                generation += 1
            case "flush":
                store.flush()
                flushed = len(now)
            case "checkpoint":
                store.write_queues(sync=True)
                flushed = len(now)
            case "write":
                store.write_queues()
            case "kill":
                slices = None
                store = killed(store, disk)
                assert bodies(store) == now, f"{seed=}"
            case "cut":
                slices = None
                store = power_cut(store, disk, chance)
                found = bodies(store)
                assert found == now[: len(found)], f"{seed=}"
                assert len(found) >= flushed, f"{seed=}"
                now, flushed = found, 0
    store.close()
    store = CommitLogStore(disk, CONFIG)
    assert bodies(store) == now, f"{seed=}"
    store.close()


def test_the_note_is_small(disk: MemoryDisk) -> None:
    """A folder in which no topic was deleted has no such file."""
    store = CommitLogStore(disk, CONFIG)
    put(store, 3, "x")
    store.close()
    assert disk.size(DELETED_FILE) is None
