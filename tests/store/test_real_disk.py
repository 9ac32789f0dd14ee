"""The operating system's disk: locks between processes, a full disk, files of other programs."""

import contextlib
import errno
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtrail.store import CommitLogConfig, CommitLogStore, GetStatus, PendingRecord, RealDisk, StoreError, StoreFull
from mqtrail.store.disk import FREED_APART_SIZE
from mqtrail.store.segments import Segments, used_size
from mqtrail.wire import Host, ServiceNotAvailable, decode_record

MIB = 1024 * 1024
CONFIG = CommitLogConfig(segment_size=MIB, queue_entries=1_000, index_slots=100, index_entries=10_000)
BORN_HOST = Host("127.0.0.1", 1).packed()

WRITER = """
import sys
from pathlib import Path
from mqtrail.store import CommitLogStore, RealDisk
from tests.store.test_real_disk import CONFIG, record
store = CommitLogStore(RealDisk(Path(sys.argv[1])), CONFIG)
number = int(sys.argv[2])
while True:
    store.append([record(number + place) for place in range(7)], 1_700_000_000_000 + number)
    number += 7
    if number % 5 == 0:
        store.flush()
    if number % 11 == 0:
        store.dispatch_index(50)
    if number % 13 == 0:
        store.write_queues(sync=number % 2 == 0)
    print(number, flush=True)
"""


def record(number: int, topic: str = "orders") -> PendingRecord:
    """A message whose body names its number; every third in another queue."""
    properties = f"UNIQ_KEY\x01ID{number}\x02".encode()
    return PendingRecord(topic, number % 3, b"%d:" % number + bytes(300), properties, 0, 1, BORN_HOST)


def numbers(store: CommitLogStore) -> list[int]:
    """Return the numbers of all messages, by queue offset."""
    found: list[int] = []
    for queue_id in store.queue_ids("orders"):
        at = 0
        while (result := store.read("orders", queue_id, at, 100, MIB)).status is GetStatus.FOUND:
            found += [int(decode_record(bytes(one))[0].body.split(b":")[0]) for one in result.records]
            at = result.next_queue_offset
    return sorted(found)


@pytest.mark.slow
def test_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After kill -9 at any moment, several times, each appended message exists once, and the index finds it."""
    acknowledged = 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(acknowledged)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert writer.stdout is not None
        for _ in range(30):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        store = CommitLogStore(RealDisk(tmp_path), CONFIG)
        assert store.recovery.unclean
        there = numbers(store)
        assert there == list(range(len(there)))
        assert len(there) >= acknowledged
        while store.dispatch_index(1_000):
            pass
        for number in range(0, len(there), 17):
            assert len(store.query("orders", f"ID{number}", 64, 0, 2**62).records) == 1
        acknowledged = len(there)
        store.close()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """Two brokers would destroy the folder: the second one is refused, in the same process and in another."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    with pytest.raises(StoreError, match="in use by another"):
        CommitLogStore(RealDisk(tmp_path), CONFIG)
    second = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), "0"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert second.returncode != 0
    assert "in use by another process" in second.stderr
    store.append([record(0)], 1)
    store.close()
    CommitLogStore(RealDisk(tmp_path), CONFIG).close()


def test_only_the_log_takes_room(tmp_path: Path) -> None:
    """Segments are reserved before use; queues and index stay sparse, so that a thousand queues cost little."""
    store = CommitLogStore(RealDisk(tmp_path), CommitLogConfig(segment_size=MIB))
    store.append([record(0), record(1)], 1)
    store.dispatch_index(10)
    store.close()
    (segment,) = (tmp_path / "commitlog").iterdir()
    assert segment.stat().st_blocks * 512 >= MIB
    for folder, size in (("consumequeue/orders/0", 6_000_000), ("index", 420_000_040)):
        (file,) = (tmp_path / folder).iterdir()
        assert file.stat().st_size == size
        assert file.stat().st_blocks * 512 < 256 * 1024


@pytest.mark.slow
def test_many_queues_need_few_descriptors(tmp_path: Path) -> None:
    """The usual limit is 1024 descriptors a process; queues must not use one each."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(600):
        store.append([record(0, topic=f"t{number}")], 1)
    store.write_queues(sync=True)
    for number in range(600):
        assert store.read(f"t{number}", 0, 0, 1, 1).status is GetStatus.FOUND
    assert len(os.listdir("/proc/self/fd")) - before < 350
    store.close()
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert store.max_offset("t599", 0) == 1
    assert len(os.listdir("/proc/self/fd")) - before < 350
    store.close()


def test_disk_full_on_a_new_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space for the next segment no record of the call is stored and reads work; with space appends work
    again."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    count = 0
    monkeypatch.setattr(os, "posix_fallocate", _no_room)
    with pytest.raises(StoreFull, match=r"found no space.*nothing of this request was stored.*free") as refusal:
        store.append([record(0)], 1)
    assert isinstance(refusal.value, ServiceNotAvailable)
    monkeypatch.undo()
    while store.end_offset < MIB - 5_000:
        store.append([record(count)], 1)
        count += 1
    monkeypatch.setattr(os, "posix_fallocate", _no_room)
    end = store.end_offset
    with pytest.raises(StoreFull):
        store.append([record(count + place) for place in range(50)], 1)
    assert store.end_offset == end
    assert numbers(store) == list(range(count))
    monkeypatch.undo()
    store.append([record(count + place) for place in range(50)], 1)
    assert numbers(store) == list(range(count + 50))
    store.close()


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_short_write_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that stops half-way returns its offsets, and none of its records appears later."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    store.append([record(0)], 1)
    real_pwrite = os.pwrite
    calls = 0

    def stops(fd: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real_pwrite(fd, bytes(data)[: len(data) * 2 // 3], offset)
        if calls == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", stops)
    with pytest.raises(StoreFull):
        store.append([record(100 + place) for place in range(30)], 1)
    monkeypatch.undo()
    assert calls >= 2
    store.append([record(3)], 1)
    store.abandon()
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert numbers(store) == [0, 3]
    store.close()


def test_a_failed_sync_ends_the_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fdatasync the kernel may have dropped the pages: the store confirms and accepts nothing more."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    store.append([record(0)], 1)

    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        store.flush()
    monkeypatch.undo()
    assert store.flushed_offset == 0
    with pytest.raises(ServiceNotAvailable, match=r"sync.*restart"):
        store.append([record(1)], 1)
    assert store.read("orders", 0, 0, 1, 1).status is GetStatus.FOUND
    store.abandon()


def test_short_reads_are_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read may return fewer bytes than requested: a start and a reader read the rest."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    store.append([record(number) for number in range(50)], 1)
    store.abandon()
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, max(1, size // 3), offset))
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert numbers(store) == list(range(50))
    store.close()


def test_stale_bytes_are_found_behind_holes(tmp_path: Path) -> None:
    """Wiping reads a file only where it has data; space that was never written is not read."""
    disk = RealDisk(tmp_path)
    for reserve in (False, True):
        file = disk.open(f"file-{reserve}", 64 * MIB, reserve=reserve)
        assert used_size(file, 0, 64 * MIB) == 0
        file.write_at(40 * MIB + 5, b"stale")
        assert used_size(file, 0, 64 * MIB) == 40 * MIB + 10
        assert used_size(file, 40 * MIB + 7, 64 * MIB) == 3
        assert used_size(file, 40 * MIB + 10, 64 * MIB) == 0
        assert used_size(file, 0, 40 * MIB) == 0
        file.close()
    disk.close()


FOREIGN = {
    "BatchCQ topics": ("batchconsumequeue/t/0/00000000000000000000", b"\0" * 46, "BatchCQ"),
    "static topics": (
        "config/topicQueueMapping.json",
        json.dumps({"topicQueueMappingInfoMap": {"t": {"totalQueues": 8}}}).encode(),
        "static topics",
    ),
    "queues in RocksDB": ("consumequeue_rocksdb/CURRENT", b"MANIFEST", "RocksDB"),
    "a DLedger log": ("dledger-n0/data/00000000000000000000", b"\0" * 64, "DLedger"),
    "extended queues": ("consumequeue_ext/t/0/00000000000000000000", b"\0" * 64, "enableConsumeQueueExt"),
    "a stray file in the log": ("commitlog/readme.txt", b"hello", "readme.txt"),
    "another segment size": ("commitlog/00000000000000000000", b"record" + b"\0" * 4090, "4096"),
    "another queue size": ("consumequeue/t/0/00000000000000000000", b"entry" * 12, "60"),
    "another index size": ("index/20260101000000000", b"\0" * 60, "60"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_known_is_refused(tmp_path: Path, name: str) -> None:
    """Files of another version or broker are never truncated: the start fails, reports them and changes nothing."""
    path, content, message = FOREIGN[name]
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with pytest.raises(StoreError, match=message):
        CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert file.read_bytes() == content
    assert not (tmp_path / "abort").exists()


def test_a_refused_folder_is_free_again(tmp_path: Path) -> None:
    """A refused start releases the lock: the next try in the same process may succeed."""
    stray = tmp_path / "commitlog" / "stray"
    stray.parent.mkdir(parents=True)
    stray.touch()
    with pytest.raises(StoreError):
        CommitLogStore(RealDisk(tmp_path), CONFIG)
    stray.unlink()
    CommitLogStore(RealDisk(tmp_path), CONFIG).close()


@pytest.mark.parametrize("flushed", [True, False])
def test_a_record_of_an_unknown_magic_is_refused(tmp_path: Path, flushed: bool) -> None:
    """A record of a later version is no torn tail, also above the mark: the start fails and leaves it unchanged."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    store.append([record(0)], 1)
    (ticket,) = store.append([record(1)], 1)
    if flushed:
        store.flush()
    store.abandon()
    segment = tmp_path / "commitlog" / "00000000000000000000"
    with segment.open("r+b") as file:
        file.seek(ticket.physical_offset + 4)
        file.write(struct.pack(">I", 0xDAA320AF))
    before = segment.read_bytes()
    with pytest.raises(StoreError, match=rf"0xdaa320af.*{ticket.physical_offset}"):
        CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert segment.read_bytes() == before


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    """A missing segment is damage, not the log's end."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    for number in range(0, 9_000, 100):
        store.append([record(number + place) for place in range(100)], 1)
    store.close()
    segments = sorted((tmp_path / "commitlog").iterdir())
    assert len(segments) >= 3
    segments[1].unlink()
    with pytest.raises(StoreError, match="restore"):
        CommitLogStore(RealDisk(tmp_path), CONFIG)


def test_lost_segments_at_the_end_are_noticed(tmp_path: Path) -> None:
    """Missing segments that were flushed are a reported loss, not a shorter log."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    for number in range(0, 9_000, 100):
        store.append([record(number + place) for place in range(100)], 1)
    store.close()
    sorted((tmp_path / "commitlog").iterdir())[-1].unlink()
    with pytest.raises(StoreError, match="flushed"):
        CommitLogStore(RealDisk(tmp_path), CONFIG)


def test_derived_files_are_built_again(tmp_path: Path) -> None:
    """consumequeue/ and index/ may be deleted by hand: they are rebuilt from the log."""
    import shutil

    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    for number in range(0, 5_000, 100):
        store.append([record(number + place) for place in range(100)], 1)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert numbers(store) == list(range(5_000))
    while store.dispatch_index(1_000):
        pass
    assert len(store.query("orders", "ID4321", 64, 0, 2**62).records) == 1
    store.close()


def test_a_kept_file_is_what_the_other_was(tmp_path: Path) -> None:
    """The second name keeps its content when the first gets another one, time after time."""
    disk = RealDisk(tmp_path)
    disk.keep("config/t.json", "config/t.json.bak")
    assert disk.read("config/t.json.bak") is None
    for number in range(3):
        disk.replace("config/t.json", b"%d" % number)
        disk.keep("config/t.json", "config/t.json.bak")
        disk.replace("config/t.json", b"%d" % (number + 1))
        assert (disk.read("config/t.json.bak"), disk.read("config/t.json")) == (b"%d" % number, b"%d" % (number + 1))
    assert disk.list("config") == ["t.json", "t.json.bak"]


def test_a_file_system_without_links_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is as durable and costs two more syncs."""

    def refuse(*_: object) -> None:
        raise OSError("no links here")

    disk = RealDisk(tmp_path)
    disk.replace("t.json", b"1")
    monkeypatch.setattr("os.link", refuse)
    disk.keep("t.json", "t.json.bak")
    disk.replace("t.json", b"2")
    assert (disk.read("t.json.bak"), disk.list("")) == (b"1", ["t.json", "t.json.bak"])


def held(path: Path) -> int:
    """Return the number of descriptors of this process that refer to a removed file."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return links.count(f"{path} (deleted)")


@pytest.mark.parametrize("reserve", [True, False])
def test_a_large_removed_file_is_freed_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reserve: bool) -> None:
    """The name is removed at once and the space counts as free; another thread closes the file and frees the space."""
    usual = os.statvfs(tmp_path)
    full = os.statvfs_result((4096, 4096, 10_240, 0, 0, *usual[5:]))  # 40 MiB, all of them used
    apart: list[tuple[int, Callable[[], None]]] = []
    first = tmp_path / "commitlog" / f"{0:020}"
    disk = RealDisk(tmp_path, apart=lambda free: apart.append((held(first), free)))
    size = FREED_APART_SIZE
    segments = Segments(disk, "commitlog", size, reserve=reserve)
    for start in range(0, 2 * size, size):
        segments.make(start).write_at(0, bytes(size))
        segments.file(start).view(0, 1)
    small = Segments(disk, "consumequeue/orders/0", 4_096, reserve=False)
    small.make(0).write_at(0, b"x")
    segments.drop_first()
    small.drop_first()
    assert [path.name for path in (tmp_path / "commitlog").iterdir()] == [f"{size:020}"]
    ((count, free),) = apart
    assert count == held(first) == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: full)
        assert disk.usage() == pytest.approx(24 / 40, abs=0.01)
        free()
        assert disk.usage() == 1.0
    assert held(first) == 0


def test_files_of_messages_are_their_owners_alone(tmp_path: Path) -> None:
    """Mode 600 whatever the umask."""
    disk = RealDisk(tmp_path)
    before = os.umask(0)
    try:
        disk.open("commitlog/0", 4_096, reserve=True)
        disk.open("consumequeue/0", 4_096)
    finally:
        os.umask(before)
    for name in ("commitlog/0", "consumequeue/0"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_tables_are_their_owners_alone(tmp_path: Path) -> None:
    """Mode 600 whatever the umask, and whatever a crash or a copy left: users.json holds passwords."""
    disk = RealDisk(tmp_path)
    (tmp_path / "config").mkdir()
    for name in ("users.json", "users.json.tmp"):
        (tmp_path / "config" / name).write_text("{}")
        (tmp_path / "config" / name).chmod(0o644)
    before = os.umask(0)
    try:
        for name in ("users.json", "new.json"):
            disk.replace(f"config/{name}", b"{}")
            assert (tmp_path / "config" / name).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_save_that_fails_leaves_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The written part must not take the space that the next save on a full disk needs."""
    disk = RealDisk(tmp_path)
    disk.replace("config/topics.json", b"{}")
    disk.keep("config/topics.json", "config/topics.json.bak")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreFull, match="free space on that disk"):
            disk.replace("config/topics.json", b"[]")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StoreFull):
            disk.replace("config/topics.json", b"[]")
        with pytest.raises(OSError, match="No space left"):
            disk.keep("config/topics.json", "config/topics.json.bak")
    assert sorted(os.listdir(tmp_path / "config")) == ["topics.json", "topics.json.bak"]
    assert disk.read("config/topics.json") == b"{}"
    disk.close()
