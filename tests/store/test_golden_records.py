"""The bytes on disk, compared with the references' vectors and layouts."""

import struct
from pathlib import Path

import pytest

from mqtrail.store import CommitLogConfig, CommitLogStore, PendingRecord, RealDisk
from mqtrail.wire import Host, index_key_hash, tags_code

KIB = 1024
CONFIG = CommitLogConfig(
    store_host=Host("192.168.0.1", 10911),
    segment_size=64 * KIB,
    queue_entries=100,
    index_slots=1_000_000,
    index_entries=2_000_000,
    message_size_max=32 * KIB,
)
# store.md §2.5, with the record at physical offset 1024 and queue offset 7.
VECTOR = """
    0000007d daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000400 00000000
    0000018bcfe56800 c0a80009 0000c350 0000018bcfe5687b c0a80001 00002a9f 00000000
    0000000000000000 00000005 68656c6c6f 09 546f70696354657374 0014 4b455953016b657931025441475301 5461674102
"""
SAMPLE = PendingRecord(
    "TopicTest",
    3,
    b"hello",
    b"KEYS\x01key1\x02TAGS\x01TagA\x02",
    tags_code("TagA"),
    1_700_000_000_000,
    Host("192.168.0.9", 50000).packed(),
)
STORED_MS = 1_700_000_000_123
SAMPLE_SIZE = 125


def filler(size: int, queue_id: int = 3) -> PendingRecord:
    """A record of exactly size bytes on disk."""
    return SAMPLE._replace(queue_id=queue_id, body=b"\xff" * (size - SAMPLE_SIZE + 5))


@pytest.fixture
def store(tmp_path: Path) -> CommitLogStore:
    return CommitLogStore(RealDisk(tmp_path), CONFIG)


def test_record(store: CommitLogStore, tmp_path: Path) -> None:
    """The reference's worked example, byte for byte, appended last of eight."""
    store.append([filler(144)] + [filler(146)] * 4 + [filler(148)] * 2, STORED_MS)
    (ticket,) = store.append([SAMPLE], STORED_MS)
    assert (ticket.physical_offset, ticket.queue_offset) == (1024, 7)
    store.close()
    log = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
    assert len(log) == 64 * KIB
    assert log[1024 : 1024 + SAMPLE_SIZE] == bytes.fromhex(VECTOR)
    assert not any(log[1024 + SAMPLE_SIZE :])


@pytest.mark.parametrize("count", [1, 12])
def test_both_paths_write_the_same(tmp_path: Path, count: int) -> None:
    """Few records and many take different ways to the file; the bytes are equal."""
    logs = []
    for name, step in (("one", 1), ("all", count)):
        store = CommitLogStore(RealDisk(tmp_path / name), CONFIG)
        for _ in range(0, count, step):
            store.append([SAMPLE] * step, STORED_MS)
        store.close()
        logs.append((tmp_path / name / "commitlog" / "00000000000000000000").read_bytes())
    assert logs[0] == logs[1]


def test_ipv6_hosts_grow_the_record(tmp_path: Path) -> None:
    """Each IPv6 host adds 12 bytes and sets its bit: 0x10 born, 0x20 store."""
    config = CommitLogConfig(store_host=Host("fd00::2", 10911), segment_size=64 * KIB, index=False)
    store = CommitLogStore(RealDisk(tmp_path), config)
    first, second = store.append([SAMPLE, SAMPLE._replace(born_host=Host("fd00::1", 1).packed())], STORED_MS)
    assert (first.size, second.size) == (SAMPLE_SIZE + 12, SAMPLE_SIZE + 24)
    flags = [struct.unpack_from(">i", store.read_at(ticket.physical_offset), 36)[0] for ticket in (first, second)]
    assert flags == [0x20, 0x30]
    store.close()


def test_segment_end(store: CommitLogStore, tmp_path: Path) -> None:
    """A record that leaves fewer than 8 bytes goes to the next segment; padding has the size of the rest."""
    store.append([filler(32 * KIB - 4), filler(32 * KIB - 4 - 8)], STORED_MS)  # leaves 16
    (next_one,) = store.append([SAMPLE], STORED_MS)
    assert next_one.physical_offset == 64 * KIB
    assert next_one.queue_offset == 2
    store.close()
    log = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
    assert log[-16:-8].hex() == "00000010cbd43194"
    assert (tmp_path / "commitlog" / "00000000000000065536").stat().st_size == 64 * KIB


def test_a_record_may_leave_exactly_eight_bytes(store: CommitLogStore, tmp_path: Path) -> None:
    """The test is len + 8 > left: with exactly 8 left it still fits, and the next finds room for padding alone."""
    store.append([filler(32 * KIB), filler(32 * KIB - 8)], STORED_MS)
    assert store.end_offset == 64 * KIB - 8
    (next_one,) = store.append([SAMPLE], STORED_MS)
    assert next_one.physical_offset == 64 * KIB
    store.close()
    log = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
    assert log[-8:].hex() == "00000008cbd43194"


def test_a_call_may_cross_segments(store: CommitLogStore) -> None:
    """One call's records continue in the next segment, and are read back whole."""
    tickets = store.append([filler(10_000) for _ in range(20)], STORED_MS)
    assert [ticket.queue_offset for ticket in tickets] == list(range(20))
    assert store.end_offset == tickets[-1].end_offset > 3 * 64 * KIB
    for ticket in tickets:
        assert len(store.read_at(ticket.physical_offset)) == 10_000
    store.close()


def test_consume_queue(store: CommitLogStore, tmp_path: Path) -> None:
    """20 bytes an entry: place, size of the whole record, tags code."""
    first, second = store.append([SAMPLE, SAMPLE._replace(tags_code=-5)], STORED_MS)
    store.close()
    entries = (tmp_path / "consumequeue" / "TopicTest" / "3" / "00000000000000000000").read_bytes()
    assert len(entries) == 100 * 20
    assert entries[:20] == struct.pack(">qiq", first.physical_offset, SAMPLE_SIZE, 2598919)
    assert entries[20:40] == struct.pack(">qiq", second.physical_offset, SAMPLE_SIZE, -5)
    assert not any(entries[40:])


def test_index_file(store: CommitLogStore, tmp_path: Path) -> None:
    """Header, slot and entry of one key: TopicTest#key1 hashes to 1655984460 (store.md §6)."""
    store.append([filler(1000)], STORED_MS - 2_500)
    store.append([SAMPLE], STORED_MS)
    store.dispatch_index(100)
    store.close()
    (path,) = (tmp_path / "index").iterdir()
    assert len(path.name) == 17
    assert path.name.isdigit()
    with path.open("rb") as file:
        header = struct.unpack(">qqqqii", file.read(40))
        assert header == (STORED_MS - 2_500, STORED_MS, 0, 1000, 1, 3)
        key_hash = index_key_hash("TopicTest", "key1")
        assert key_hash == 1655984460
        file.seek(40 + key_hash % 1_000_000 * 4)
        assert struct.unpack(">i", file.read(4)) == (2,)
        file.seek(40 + 4_000_000 + 20)
        assert struct.unpack(">iqii", file.read(20)) == (key_hash, 0, 0, 0)
        assert struct.unpack(">iqii", file.read(20)) == (key_hash, 1000, 2, 1)
    assert path.stat().st_blocks * 512 < 1_000_000, "an IndexFile stays sparse"


def test_checkpoint_abort_and_lock(store: CommitLogStore, tmp_path: Path) -> None:
    """The small files are where Apache's broker expects them."""
    store.append([SAMPLE], STORED_MS)
    assert (tmp_path / "abort").exists()
    store.dispatch_index(100)
    store.close()
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "lock").exists()
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    assert len(checkpoint) == 4096
    assert struct.unpack_from(">qqq", checkpoint) == (STORED_MS, STORED_MS, STORED_MS)
    assert {path.name for path in (tmp_path / "commitlog").iterdir()} == {"00000000000000000000"}
