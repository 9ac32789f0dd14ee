"""A slave's store: the same bytes as its master's, with its own queues and index."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mqtrail.store import (
    CommitLogStore,
    LogDiffers,
    MemoryDisk,
    MemoryFile,
    MemoryStore,
    MessageStore,
    PendingRecord,
    RealDisk,
    StoreFull,
)
from mqtrail.wire import Host, MessageSysFlag, tags_code

from .kinds import CONFIG
from .test_contract import BORN_HOST, NOW_MS, bodies, record


class SmallDisk(MemoryDisk):
    """A disk with room for some files of the log."""

    log_files_max = 1

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        """StoreFull if the log has as many files as there is room for."""
        is_new = path.startswith("commitlog/") and self.size(path) is None
        if is_new and len(self.list("commitlog")) >= self.log_files_max:
            raise StoreFull("the test's disk is full")
        return super().open(path, size, reserve=reserve)


@pytest.fixture
def master() -> Iterator[MemoryStore]:
    store = MemoryStore(CONFIG)
    yield store
    store.close()


def log_of(store: MessageStore, first: int = 0) -> bytes:
    """Return the whole log from a physical offset on, padding included."""
    found = b""
    while part := store.log_bytes(first + len(found), 10_000):
        found += part
    return found


def copy_all(master: MessageStore, slave: MessageStore, chunk: int = 1_000, first: int | None = None) -> None:
    """Copy what the slave lacks, in chunks of random size."""
    start = slave.end_offset if first is None else first
    tail = b""
    while part := master.log_bytes(start + len(tail), chunk):
        tail += part
        stored = slave.append_copy(start, tail)
        start, tail = start + stored, tail[stored:]
    assert tail == b""


def fill(master: MessageStore, count: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    for number in range(count):
        one = record(
            rng.randbytes(rng.randrange(1, 3_000)),
            topic=rng.choice(("orders", "x" * 200, "half")),
            queue_id=rng.randrange(3),
            tag=rng.choice(("", "paid")),
            KEYS=f"k{number}",
        )
        if one.topic == "half":
            one = one._replace(sys_flag=int(MessageSysFlag.TRANSACTION_PREPARED))
        if rng.random() < 0.1:
            one = one._replace(born_host=Host("2001:db8::1", 1).packed())
        master.append([one], NOW_MS + number)


@pytest.mark.parametrize("chunk", [1, 7, 1_000, 1 << 20])
def test_a_copy_is_equal(master: MemoryStore, chunk: int) -> None:
    """Bytes, queues, index and store times are equal for any pieces, over several files with padding."""
    fill(master, 20 if chunk < 10 else 200)
    slave = MemoryStore(CONFIG)
    copy_all(master, slave, chunk)
    assert slave.end_offset == master.end_offset
    assert log_of(slave) == log_of(master)
    for topic in ("orders", "x" * 200, "half"):
        for queue_id in range(3):
            ends = slave.min_offset(topic, queue_id), slave.max_offset(topic, queue_id)
            assert ends == (0, master.max_offset(topic, queue_id))
            assert slave.entries(topic, queue_id, 0, 999) == master.entries(topic, queue_id, 0, 999)
    for number in range(0, 200, 10):
        found = [store.query("orders", f"k{number}", 9, 0, 1 << 62).records for store in (master, slave)]
        assert list(map(bytes, found[0])) == list(map(bytes, found[1]))
    slave.close()


def test_a_copy_survives_a_kill(master: MemoryStore, tmp_path: Path) -> None:
    """After kill -9 the copy continues at its end, and has every record once."""
    for turn in range(4):
        fill(master, 40, turn)
        slave = CommitLogStore(RealDisk(tmp_path), CONFIG)
        copy_all(master, slave)
        if turn % 2:
            slave.flush()
        slave.abandon()
    with_all = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert log_of(with_all) == log_of(master)
    for queue_id in range(3):
        assert with_all.entries("orders", queue_id, 0, 999) == master.entries("orders", queue_id, 0, 999)
    with_all.close()


def test_an_empty_copy_begins_at_a_later_file(master: MemoryStore, tmp_path: Path) -> None:
    """Apache's master sends an empty slave its last file first. A start does not report the earlier bytes as lost."""
    fill(master, 200)
    first = master.end_offset - master.end_offset % CONFIG.segment_size
    assert first > 0
    slave = CommitLogStore(RealDisk(tmp_path), CONFIG)
    copy_all(master, slave, first=first)
    assert (slave.min_physical_offset, slave.end_offset) == (first, master.end_offset)
    first_queue_offset = slave.min_offset("orders", 0)
    assert first_queue_offset > 0
    assert slave.entries("orders", 0, first_queue_offset, 99) == master.entries("orders", 0, first_queue_offset, 99)
    slave.abandon()
    again = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert again.recovery.lost == ()
    assert (again.min_physical_offset, again.min_offset("orders", 0)) == (first, first_queue_offset)
    fill(master, 10, 2)
    copy_all(master, again)
    assert log_of(again, first) == log_of(master, first)
    again.close()


def test_bytes_of_another_log_are_refused(master: MemoryStore) -> None:
    """A gap, bytes that are no record, a record of another position and other file sizes are errors, and nothing is
    stored."""
    fill(master, 20)
    whole = log_of(master)
    slave = MemoryStore(CONFIG)
    copy_all(master, slave)
    with pytest.raises(LogDiffers, match="found bytes for physical offset 7, expected"):
        slave.append_copy(7, whole[7:])
    end = slave.end_offset
    for data in (b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(100), whole[:end]):
        with pytest.raises(LogDiffers, match="not a copy of that one"):
            slave.append_copy(end, data)
        assert slave.end_offset == end
        assert log_of(slave) == whole
    empty = MemoryStore(CONFIG)
    with pytest.raises(LogDiffers, match="mappedFileSizeCommitLog"):
        empty.append_copy(CONFIG.segment_size // 2, whole)
    assert empty.end_offset == 0
    other = MemoryStore(replace(CONFIG, segment_size=97 * 1024))
    fill(master, 200, 3)
    with pytest.raises(LogDiffers, match="mappedFileSizeCommitLog"):
        copy_all(master, other)


def test_records_before_a_damaged_one_stay(master: MemoryStore) -> None:
    """A body with another CRC is not stored; the bytes after it are wiped, and the right bytes continue the log."""
    places = master.append([record(b"a" * 100), record(b"b" * 100), record(b"c" * 100)], NOW_MS)
    whole = bytearray(log_of(master))
    whole[places[1].physical_offset + 95] ^= 1
    slave = MemoryStore(CONFIG)
    with pytest.raises(LogDiffers):
        slave.append_copy(0, whole)
    assert slave.end_offset == places[0].end_offset
    assert slave.max_offset("orders", 0) == 1
    copy_all(master, slave)
    assert bodies(slave.read("orders", 0, 0, 9, 1 << 20).records) == [b"a" * 100, b"b" * 100, b"c" * 100]


def test_a_full_disk_loses_nothing(master: MemoryStore) -> None:
    """The copy is unchanged, and continues when there is room."""
    fill(master, 200)
    disk = SmallDisk()
    slave = CommitLogStore(disk, CONFIG)
    with pytest.raises(StoreFull):
        copy_all(master, slave)
    assert 0 < slave.end_offset < master.end_offset
    assert log_of(slave) == log_of(master)[: slave.end_offset]
    disk.log_files_max = 99
    copy_all(master, slave)
    assert log_of(slave) == log_of(master)


def test_a_topic_that_was_made_again_begins_again(master: MemoryStore) -> None:
    """The master deleted the topic: its new records have queue offsets from 0 on."""
    master.append([record(b"old")] * 5, NOW_MS)
    slave = MemoryStore(CONFIG)
    copy_all(master, slave)
    master.delete_topic("orders")
    master.append([record(b"new"), record(b"newer")], NOW_MS)
    copy_all(master, slave)
    assert bodies(slave.read("orders", 0, 0, 9, 1 << 20).records) == [b"new", b"newer"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_queue_that_apaches_master_forgot_begins_again(master: MemoryStore, is_killed: bool) -> None:
    """All its records expired there and here: the other queues of its topic keep their entries."""
    master.append([record(b"old", queue_id=5)] * 5, NOW_MS)
    fill(master, 300)
    slave = CommitLogStore(disk := MemoryDisk(), CONFIG)
    copy_all(master, slave)
    slave.write_queues(sync=True)
    for store in (master, slave):
        store.flush()
        assert store.expire(NOW_MS + 1_000 * 3_600_000, at_any_hour=True) > 0
        for _ in store.clean_queues():
            pass
    kept = slave.max_offset("orders", 1)
    assert slave.min_offset("orders", 1) < kept
    master._by_key["orders", 5].set_back(0)
    master.append([record(b"new", queue_id=5), record(b"newer", queue_id=5)], NOW_MS)
    copy_all(master, slave)
    for _ in range(2):
        assert bodies(slave.read("orders", 5, 0, 9, 1 << 20).records) == [b"new", b"newer"]
        assert (slave.max_offset("orders", 5), slave.max_offset("orders", 1)) == (2, kept)
        if is_killed:
            slave.abandon()
        else:
            slave.close()
        slave = CommitLogStore(disk, CONFIG)
    slave.close()


def test_a_copy_can_be_written(master: MemoryStore, tmp_path: Path) -> None:
    """A slave that is started as master continues its queues and its log."""
    fill(master, 50)
    slave = CommitLogStore(RealDisk(tmp_path), CONFIG)
    copy_all(master, slave)
    slave.close()
    promoted = CommitLogStore(RealDisk(tmp_path), CONFIG)
    more = PendingRecord("orders", 0, b"more", b"", tags_code(""), NOW_MS, BORN_HOST)
    for store in (master, promoted):
        store.append([more], NOW_MS + 1_000)
    assert log_of(promoted) == log_of(master)
    promoted.close()


def test_log_bytes_outside_the_log(master: MemoryStore) -> None:
    """A read at the end returns nothing; one beyond it or before the first byte is an error."""
    fill(master, 2)
    assert master.log_bytes(master.end_offset, 100) == b""
    for place in (-1, master.end_offset + 1):
        with pytest.raises(LogDiffers, match="what this log has"):
            master.log_bytes(place, 100)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue_id", -1),
        ("queue_id", -(1 << 31)),
        ("queue_offset", -1),
        ("queue_offset", -(1 << 63)),
        ("queue_offset", (1 << 63) - 1),
        ("queue_offset", 1 << 59),
        ("queue_offset", 3),
        ("queue_offset", 10**12),
    ],
)
def test_a_record_in_an_impossible_place(
    master: MemoryStore, tmp_path: Path, number: int, field: str, value: int
) -> None:
    """No checksum covers the place. It is refused: the store opens again, and no gap of that size is made."""
    for body in (b"first", b"second", b"third"):
        master.append([record(body, topic="orders", queue_id=0)], NOW_MS)
    data = bytearray(log_of(master))
    size = int.from_bytes(data[:4])
    at, length = {"queue_id": (12, 4), "queue_offset": (20, 8)}[field]
    start = number * size + at
    data[start : start + length] = value.to_bytes(length, signed=True)
    can_begin = number == 0 and value in (3, 10**12)  # a queue may begin anywhere
    with closing(CommitLogStore(RealDisk(tmp_path), CONFIG)) as slave:
        if can_begin:
            slave.append_copy(0, data[:size])
        else:
            with pytest.raises(LogDiffers, match=str(value)):
                slave.append_copy(0, data)
        assert slave.end_offset == (size if can_begin else number * size)
    with closing(CommitLogStore(RealDisk(tmp_path), CONFIG)) as again:
        assert again.end_offset == (size if can_begin else number * size)
        if number:
            assert bodies(again.read("orders", 0, 0, 32, 10_000).records) == [b"first"]
