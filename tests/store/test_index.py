"""The index: equal however it is built; it rolls, catches up and waits for disk space."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtrail.store import (
    Appended,
    CommitLogConfig,
    CommitLogStore,
    IndexQueryResult,
    MemoryDisk,
    MemoryFile,
    PendingRecord,
    RealDisk,
    StoreFull,
)
from mqtrail.store.commitlog import index_file, indexer, lookup
from mqtrail.store.commitlog.index_file import IndexDamaged, IndexFile
from mqtrail.store.commitlog.indexer import Indexer
from mqtrail.store.commitlog.key_hashes import KeyHashes
from mqtrail.wire import Host, SystemBusy, decode_record, index_key_hash

CONFIG = CommitLogConfig(
    segment_size=128 * 1024, queue_entries=1_000, index_slots=3_000, index_entries=100, message_size_max=32 * 1024
)
BORN_HOST = Host("127.0.0.1", 1).packed()
NOW_MS = 1_700_000_000_000


def record(number: int, sys_flag: int = 0) -> PendingRecord:
    properties = f"UNIQ_KEY\x01C0A8010904D218B4AAC22F1C{number:08X}\x02KEYS\x01k{number % 7}  clé{number}\x02".encode()
    return PendingRecord("orders", 0, b"%d" % number, properties, 0, 1, BORN_HOST, sys_flag=sys_flag)


def found(store: CommitLogStore, key: str) -> list[int]:
    records = store.query("orders", key, 64, 0, 2**62).records
    return [int(decode_record(one)[0].body) for one in records]


def index_bytes(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: bytes(file.data) for path, file in disk.files.items() if path.startswith("index/")}


@settings(max_examples=60)
@given(topic=st.text(min_size=1, max_size=20), key=st.text(min_size=1, max_size=50))
def test_the_quick_hash_is_the_hash(topic: str, key: str) -> None:
    """Hashing the end of a key after its cached beginning gives Java's hash, for any text."""
    hashes = KeyHashes()
    for _ in range(2):
        assert hashes.of(topic, key.encode("utf-8", "surrogatepass")) == index_key_hash(topic, key)


def _take_nothing(
    self: Indexer, begin: int, records: Sequence[PendingRecord], tickets: list[Appended], store_ms: int
) -> None:
    """Replaces hand_over, so that all entries are read back from the log."""


PROPERTIES = (
    "UNIQ_KEY\x01C0A8010904D218B4AAC22F1C{0:08X}\x02KEYS\x01k{1}  clé{0}\x02",
    "UNIQ_KEY\x01C0A8010904D218B4AAC22F1C{0:08X}\x02WAIT\x01true\x02",
    "TAGS\x01a\x02UNIQ_KEY\x01C0A8010904D218B4AAC22F1C{0:08X}\x02",
    "UNIQ_KEY\x01{0}\x02",
    "UNIQ_KEY\x01C0A8010904D218B4AAC22F1C{0:08X}",
    "UNIQ_KEY\x01\x02KEYS\x01k{1}\x02",
    "UNIQ_KEY\x01clé-ключ-{0:08}\x02",
    "UNIQ_KEY\x01clé-ключ-kluč{0}ключ\x02",
    "UNIQ_KEY\x01{0:08X}\x02UNIQ_KEY\x01C0A8010904D218B4AAC22F1C{0:08X}\x02",
    "",
)


@pytest.mark.parametrize("waiting_max", [1, 7, 256])
def test_handed_over_and_read_back_are_the_same(monkeypatch: pytest.MonkeyPatch, waiting_max: int) -> None:
    """Entries handed over by appends and entries read from the log give the same files, byte for byte, across a
    roll."""
    monkeypatch.setattr(indexer, "WAITING_MAX", waiting_max)
    built = []
    for is_handed_over in (True, False):
        with monkeypatch.context() as patch:
            if not is_handed_over:
                patch.setattr(Indexer, "hand_over", _take_nothing)
            disk = MemoryDisk()
            store = CommitLogStore(disk, CONFIG)
            for number in range(0, 600, 10):
                records = []
                for one in range(number, number + 10):
                    text = PROPERTIES[one % len(PROPERTIES)].format(one, one % 7).encode()
                    topic = "orders" if one % 3 else "payments"
                    records.append(PendingRecord(topic, 0, b"%d" % one, text, 0, 1, BORN_HOST))
                store.append(records, NOW_MS + number // 20 * 1_500)
                if number % 50 == 0:
                    store.dispatch_index(15)
            while store.dispatch_index(100):
                pass
            assert store.behind_size == 0
            store.close()
            built.append(index_bytes(disk))
    assert len(built[0]) > 5
    assert built[0] == built[1]


def test_every_key_is_found_across_files_and_restarts() -> None:
    """Unique ids, words of KEYS, and keys beyond ASCII; the newest 64 of a key that has more."""
    disk = MemoryDisk()
    store = CommitLogStore(disk, CONFIG)
    for number in range(500):
        store.append([record(number)], NOW_MS + number)
    for _ in range(2):
        for number in (0, 1, 250, 499):
            assert found(store, f"C0A8010904D218B4AAC22F1C{number:08X}") == [number]
            assert found(store, f"clé{number}") == [number]
        assert found(store, "k3") == list(range(3, 500, 7))[-64:]
        assert found(store, "") == []
        store.close()
        store = CommitLogStore(disk, CONFIG)
    store.close()


@pytest.mark.parametrize("indexed", [0, 1, 30, 99])
def test_a_close_may_leave_records_to_the_index_of_the_next_start(indexed: int) -> None:
    """It does not read the rest of the log. The next start is clean, indexes the rest, and finds each key once."""
    disk = MemoryDisk()
    store = CommitLogStore(disk, CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Indexer, "hand_over", _take_nothing)
        store.append([record(number) for number in range(100)], NOW_MS)
        store.dispatch_index(indexed)
        behind_size = store.behind_size
        store.close(finishes_index=False)
    store = CommitLogStore(disk, CONFIG)
    assert store.recovery.unclean is False
    assert store.behind_size >= behind_size > 0
    while store.dispatch_index(10):
        pass
    assert [found(store, f"clé{number}") for number in range(100)] == [[number] for number in range(100)]
    store.close()


def test_rolled_back_messages_are_not_indexed() -> None:
    """Prepared and committed messages are indexed, rolled-back ones are not. Source: store.md §6 of the references."""
    store = CommitLogStore(MemoryDisk(), CONFIG)
    store.append([record(number, flag) for number, flag in enumerate((0x0, 0x4, 0x8, 0xC))], NOW_MS)
    assert [found(store, f"clé{number}") for number in range(4)] == [[0], [1], [2], []]
    store.close()


def test_a_query_never_answers_from_half_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the index is far behind, a query is refused, and each retry advances the index."""
    monkeypatch.setattr("mqtrail.store.commitlog.lookup.CATCH_UP_MAX", 100)
    monkeypatch.setattr(Indexer, "hand_over", _take_nothing)
    store = CommitLogStore(MemoryDisk(), CONFIG)
    for number in range(350):
        store.append([record(number)], NOW_MS)
    for _ in range(3):
        with pytest.raises(SystemBusy, match="behind"):
            found(store, "clé349")
    assert found(store, "clé349") == [349]
    store.close()


class FullFile(MemoryFile):
    """A file whose writes fail for a while."""

    is_full = False

    def write_at(self, offset: int, data: bytes) -> None:
        if FullFile.is_full:
            raise StoreFull("the test's disk is full")
        super().write_at(offset, data)


class FullDisk(MemoryDisk):
    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        if path not in self.files:
            self.files[path] = FullFile(size) if path.startswith("index/") else MemoryFile(size)
        return self.files[path]


def test_a_full_disk_delays_the_index_and_loses_nothing() -> None:
    """Entries wait in memory until there is room; queries find them meanwhile, and on disk afterwards."""
    disk = FullDisk()
    store = CommitLogStore(disk, CONFIG)
    store.append([record(0)], NOW_MS)
    store.dispatch_index(10)
    FullFile.is_full = True
    try:
        store.append([record(1)], NOW_MS)
        with pytest.raises(StoreFull):
            store.dispatch_index(10)
    finally:
        FullFile.is_full = False
    assert store.dispatch_index(10) == 0
    assert [found(store, f"clé{number}") for number in range(2)] == [[0], [1]]
    store.close()
    store = CommitLogStore(disk, CONFIG)
    assert [found(store, f"clé{number}") for number in range(2)] == [[0], [1]]
    store.close()


def test_files_are_named_by_local_time(tmp_path: Path) -> None:
    """The names have 17 digits and rise, also for files of one moment."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    store.append([record(number) for number in range(100)], NOW_MS)
    while store.dispatch_index(1_000):
        pass
    store.close()
    names = sorted(os.listdir(tmp_path / "index"))
    assert len(names) == 4
    assert all(len(name) == 17 and name.isdigit() for name in names)


ONE_CHAIN = CommitLogConfig(
    segment_size=4 * 1024 * 1024, queue_entries=10_000, index_slots=1, index_entries=10_000, message_size_max=32 * 1024
)


def keyed(key: str, body: bytes = b"x", topic: str = "orders") -> PendingRecord:
    return PendingRecord(topic, 0, body, f"KEYS\x01{key}\x02".encode(), 0, 1, BORN_HOST)


def slices_of(store: CommitLogStore, key: str, begin_ms: int = 0, end_ms: int = 2**62) -> tuple[int, IndexQueryResult]:
    """Query; return the number of slices and the result."""
    work = store.query_in_slices("orders", key, 64, begin_ms, end_ms)
    count = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: IndexQueryResult = end.value
            return count, result
        count += 1


@pytest.fixture
def chained() -> Iterator[CommitLogStore]:
    """4 000 keys in one chain of one index file, in a folder that is known to be ours."""
    disk = MemoryDisk()
    CommitLogStore(disk, ONE_CHAIN).close()
    store = CommitLogStore(disk, ONE_CHAIN)
    for number in range(4_000):
        store.append([keyed(f"key{number}")], NOW_MS + number)
    while store.dispatch_index(1_000):
        pass
    yield store
    store.close()


def test_a_long_chain_is_walked_in_slices(chained: CommitLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No slice reads more entries than its limit, and the oldest entry of a chain is still found."""
    looked: list[int] = []
    walk = IndexFile.walk

    def counted(self: IndexFile, *arguments: int) -> tuple[list[int], int, int]:
        found = walk(self, *arguments)
        looked.append(found[-1])
        return found

    monkeypatch.setattr(IndexFile, "walk", counted)
    count, result = slices_of(chained, "key0")
    assert [decode_record(one)[0].keys for one in result.records] == [("key0",)]
    assert not result.is_cut
    assert looked == [lookup.ENTRIES_A_SLICE] * 4
    assert count == 4


def test_a_query_that_ends_at_its_bound_says_so(chained: CommitLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result says that entries were not read; they do not count as missing."""
    monkeypatch.setattr(lookup, "ENTRIES_MAX", 1_500)
    _, newest = slices_of(chained, "key3900")
    assert (len(newest.records), newest.is_cut) == (1, True)
    _, oldest = slices_of(chained, "key10")
    assert (len(oldest.records), oldest.is_cut) == (0, True)
    _, between = slices_of(chained, "key3999", begin_ms=NOW_MS + 3_900)
    assert (len(between.records), between.is_cut) == (1, False), "the chain is left where it is too old"


def test_colliding_records_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aa and BB have one hash: records of the other key are read in slices of a limited number of bytes."""
    store = CommitLogStore(MemoryDisk(), ONE_CHAIN)
    store.append([keyed("Aa", b"wanted")], NOW_MS)
    for _ in range(100):
        store.append([keyed("BB", bytes(30_000))], NOW_MS)
    count, result = slices_of(store, "Aa")
    assert [decode_record(one)[0].body for one in result.records] == [b"wanted"]
    assert count >= 100 * 30_000 // lookup.SLICE_SIZE
    monkeypatch.setattr(lookup, "RECORDS_MAX", 50)
    _, result = slices_of(store, "Aa")
    assert (list(result.records), result.is_cut) == ([], True)
    store.close()


def test_a_query_during_which_the_index_is_damaged_is_refused(chained: CommitLogStore) -> None:
    """Otherwise the result would lack the lost file's entries. A retry returns all of them."""
    work = chained.query_in_slices("orders", "key0", 64, 0, 2**62)
    next(work)
    damaged = chained._index
    damaged.drop_damaged(damaged.files[-1], IndexDamaged("found a test"))
    chained._indexer.restart()
    assert chained.index_damage == (1, "found a test")
    with pytest.raises(SystemBusy, match="damaged during the query"):
        next(work)
    assert len(slices_of(chained, "key0")[1].records) == 1


def test_slots_are_written_in_slices_while_entries_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that change between two slices are written by the next checkpoint; a clean stop leaves all of them."""
    monkeypatch.setattr(index_file, "PAGES_A_SLICE", 1)
    config = replace(CONFIG, index_slots=50_000, index_entries=10_000)
    store = CommitLogStore(RealDisk(tmp_path), config)
    for number in range(3_000):
        store.append([record(number)], NOW_MS)
    while store.dispatch_index(1_000):
        pass
    slices = 0
    work = store.begin_checkpoint_in_slices()
    while True:
        try:
            next(work)
        except StopIteration as end:
            end.value()
            break
        slices += 1
        store.append([record(3_000 + slices)], NOW_MS)
        while store.dispatch_index(1_000):
            pass
    assert slices >= 5
    store.close()
    store = CommitLogStore(RealDisk(tmp_path), config)
    assert store.recovery.rebuilt == ()
    for number in (0, 1, 2_999, *range(3_001, 3_001 + slices)):
        assert found(store, f"clé{number}") == [number]
    store.close()
