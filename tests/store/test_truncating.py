"""Cutting off the log's end: what is left is a store that never had more."""

import random
from functools import cache
from pathlib import Path

import pytest

from mqtrail.store import (
    CommitLogStore,
    Disk,
    LogDiffers,
    MemoryDisk,
    MemoryFile,
    MemoryStore,
    RealDisk,
    StoreFull,
    TimerCheckpoint,
)

from .hard_disk import HardDisk, PowerCut
from .kinds import CONFIG
from .test_contract import NOW_MS, record
from .test_copying import fill, log_of

TOPICS = ("orders", "x" * 200, "half")
COUNT = 120  # messages; a few files


@cache
def ends(count: int = COUNT) -> list[int]:
    """Return where each record of a filled store ends, or the padding behind it."""
    store = MemoryStore(CONFIG)
    found = []
    for number in range(count):
        fill_one(store, number)
        found.append(store.end_offset)
    return found


def fill_one(store: CommitLogStore, number: int) -> None:
    fill(store, 1, seed=number)


def filled(disk: Disk, count: int = COUNT) -> CommitLogStore:
    store = CommitLogStore(disk, CONFIG)
    for number in range(count):
        fill_one(store, number)
    return store


def prefix(end: int) -> MemoryStore:
    """Return a store that has only the first bytes of the filled one."""
    source, store = filled(MemoryDisk()), MemoryStore(CONFIG)
    tail = source.log_bytes(0, 0)
    while store.end_offset + len(tail) < end:
        at = store.end_offset + len(tail)
        tail += source.log_bytes(at, end - at)
        tail = tail[store.append_copy(store.end_offset, tail) :]
    return store


def check_equal(found: CommitLogStore, expected: CommitLogStore) -> None:
    """Log, queues and index, now and after further messages."""
    for more in range(2):
        assert found.end_offset == expected.end_offset
        assert log_of(found) == log_of(expected)
        for topic in TOPICS:
            for queue_id in range(3):
                assert found.max_offset(topic, queue_id) == expected.max_offset(topic, queue_id)
                assert found.entries(topic, queue_id, 0, 999) == expected.entries(topic, queue_id, 0, 999)
        queries = [store.query("orders", "k0", COUNT, 0, 1 << 62).records for store in (found, expected)]
        assert list(map(bytes, queries[0])) == list(map(bytes, queries[1]))
        for store in (found, expected):
            store.append([record(b"later %d" % more, queue_id=number, KEYS="k0") for number in range(3)], NOW_MS * 2)


@pytest.mark.parametrize("kept", [0, 2, 90])
@pytest.mark.parametrize("is_saved", [False, True])
def test_what_is_left_is_as_if_there_had_been_no_more(kept: int, is_saved: bool, tmp_path: Path) -> None:
    """With queues and index in memory or on disk. What was cut off is in a file."""
    end = ends()[kept - 1] if kept else 0
    store = filled(RealDisk(tmp_path))
    if is_saved:
        store.close()
        store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    log = log_of(store)
    path = store.truncate(end)
    assert path == f"truncated/{end:020}-{len(log):020}"
    assert (tmp_path / path).read_bytes() == log[end:]
    store.close()
    again = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert not again.recovery.unclean
    assert again.flushed_offset == end
    check_equal(again, prefix(end))
    again.close()


def test_bytes_of_two_cuts_at_one_place_are_kept_both() -> None:
    store = MemoryStore(CONFIG)
    paths = []
    for body in (b"first", b"other"):
        store.append([record(body)], NOW_MS)
        paths.append(store.truncate(0))
    assert paths[1] == f"{paths[0]}-2"


def test_a_place_inside_a_record_is_refused() -> None:
    """Nothing is cut off: the other log differs somewhere before."""
    store = MemoryStore(CONFIG)
    (place,) = store.append([record()], NOW_MS)
    for end in (place.size - 1, 1):
        with pytest.raises(LogDiffers, match=f"ends at {place.size}, expected one that ends at {end}"):
            store.truncate(end)
    for end in (place.size, -1):
        with pytest.raises(LogDiffers, match=f"expected 0 to {place.size - 1}, what this log has"):
            store.truncate(end)
    assert store.max_offset("orders", 0) == 1


def test_a_full_disk_refuses_the_cut() -> None:
    """There is no room for the bytes that would be cut off."""

    class FullDisk(MemoryDisk):
        def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
            if path.startswith("truncated/"):
                raise StoreFull("the test's disk is full")
            return super().open(path, size, reserve=reserve)

    store = CommitLogStore(FullDisk(), CONFIG)
    store.append([record()], NOW_MS)
    with pytest.raises(StoreFull):
        store.truncate(0)
    assert store.max_offset("orders", 0) == 1


def test_timers_are_built_again() -> None:
    """Their log may name messages that are gone."""
    disk = MemoryDisk()
    store = filled(disk, 3)
    store.timers.save(TimerCheckpoint(NOW_MS, 0, 0), exact=True)
    store.truncate(ends(3)[1])
    assert store.timers.must_rebuild


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 40])
def test_a_power_cut_at_any_moment(kept: int) -> None:
    """The cut has not begun, or the next start completes it; a cut that has ended stays."""
    count = 45
    end = ends(count)[kept - 1] if kept else 0
    expected = {size: prefix(size) for size in (end, ends(count)[-1])}
    call, has_ended = 0, False
    outcomes = set()
    while not has_ended:
        call += 1
        disk = HardDisk(random.Random(call))
        store = filled(disk, count)
        store.write_queues(sync=call % 2 == 0)
        store.flush()
        disk.power_cut_at = disk.calls + call
        try:
            store.truncate(end)
            has_ended = True
        except PowerCut:
            pass
        disk.power_cut_at = -1
        disk.stop(power=True)
        again = CommitLogStore(disk, CONFIG)
        outcomes.add(again.end_offset)
        assert again.end_offset in expected
        if has_ended:
            assert again.end_offset == end
        assert log_of(again) == log_of(expected[again.end_offset])
        for topic in TOPICS:
            for queue_id in range(3):
                assert again.entries(topic, queue_id, 0, 999) == expected[again.end_offset].entries(
                    topic, queue_id, 0, 999
                )
    assert outcomes == set(expected)
    assert call > 10
