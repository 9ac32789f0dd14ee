"""A batch has the bytes that an append of its records has, wherever segments end; and it is stored whole or not."""

import pytest

from mqtrail.store import CommitLogConfig, CommitLogStore, MemoryDisk, MemoryFile, PendingRecord, StoreFull
from mqtrail.wire import Host, MessageIllegal, tags_code

CONFIG = CommitLogConfig(
    segment_size=64 * 1024, queue_entries=70, index_slots=100, index_entries=500, message_size_max=32 * 1024
)
NOW_MS = 1_700_000_000_000


def records(first: int, count: int, host: str = "127.0.0.1") -> list[PendingRecord]:
    born_host = Host(host, 50_000).packed()
    return [
        PendingRecord(
            "orders", 1, b"%d" % number + bytes(number * 7 % 900), b"KEYS\x01k%d\x02TAGS\x01T\x02" % number,
            tags_code("T"), NOW_MS - 9, born_host, number, 0x10, 2, 5,
        )
        for number in range(first, first + count)
    ]  # fmt: skip


def content(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: bytes(file.data) for path, file in disk.files.items() if "/" in path}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("count", [1, 2, 129, 500])
def test_a_batch_has_the_bytes_of_an_append(count: int, host: str) -> None:
    """Log, queue and index, for batches that end in the same segment and in later ones."""
    contents = []
    for is_batch in (False, True):
        disk = MemoryDisk()
        store = CommitLogStore(disk, CONFIG)
        store.append(records(1_000, 3, host), NOW_MS)
        if is_batch:
            batch = store.begin_batch("orders", 1)
            for first in range(0, count, 100):
                batch.add(records(first, min(100, count - first), host))
            places = batch.append(NOW_MS + 1)
            tickets = [places.ticket(number) for number in range(count)]
        else:
            tickets = store.append(records(0, count, host), NOW_MS + 1)
        more = store.append(records(2_000, 3, host), NOW_MS + 2)
        while store.dispatch_index(100):
            pass
        store.close()
        contents.append((tickets, more, content(disk)))
    assert contents[0] == contents[1]
    assert len([path for path in contents[0][2] if path.startswith("commitlog/")]) > (1 if count > 130 else 0)


def test_others_append_while_a_batch_is_prepared() -> None:
    """Their messages come before it; it takes its places and its time when it is appended."""
    store = CommitLogStore(MemoryDisk(), CONFIG)
    batch = store.begin_batch("orders", 1)
    for part in range(3):
        batch.add(records(10 * part, 10))
        assert store.append(records(1_000 + part, 1), NOW_MS + part)[0].queue_offset == part
        assert store.max_offset("orders", 1) == part + 1
    assert batch.append(NOW_MS + 9).queue_offset == 3
    assert {store.store_time("orders", 1, at) for at in range(3, 33)} == {NOW_MS + 9}
    store.close()


class FullFile(MemoryFile):
    """A file that accepts only zeros."""

    def write_at(self, offset: int, data: bytes) -> None:
        if any(data):
            raise StoreFull("the test's disk is full")
        super().write_at(offset, data)


class FullDisk(MemoryDisk):
    """A disk with room for one segment of the log."""

    def open(self, path: str, size: int, *, reserve: bool = False) -> MemoryFile:
        if path == f"commitlog/{CONFIG.segment_size:020}" and path not in self.files:
            self.files[path] = FullFile(size)
        return super().open(path, size, reserve=reserve)


def test_a_batch_is_stored_whole_or_not() -> None:
    """The disk is full in the last segment: log and queue are as before, and the next append takes its place."""
    disk = FullDisk()
    store = CommitLogStore(disk, CONFIG)
    store.append(records(1_000, 3), NOW_MS)
    before, end = content(disk), store.end_offset
    batch = store.begin_batch("orders", 1)
    batch.add(records(0, 200))
    with pytest.raises(StoreFull):
        batch.append(NOW_MS)
    assert (store.end_offset, store.max_offset("orders", 1)) == (end, 3)
    after = content(disk)
    assert {path: after[path] for path in before} == before
    assert store.append(records(5, 1), NOW_MS)[0].queue_offset == 3
    store.close()
    assert CommitLogStore(disk, CONFIG).max_offset("orders", 1) == 4


def test_numbers_out_of_range_are_refused() -> None:
    """Before anything of the batch is stored."""
    store = CommitLogStore(MemoryDisk(), CONFIG)
    batch = store.begin_batch("orders", 1)
    with pytest.raises(MessageIllegal, match="out of its field's range"):
        batch.add([records(0, 1)[0]._replace(flag=1 << 40)])
    with pytest.raises(MessageIllegal, match="expected at most 32767"):
        batch.add([records(0, 1)[0]._replace(properties=bytes(40_000))])
    store.close()
