"""Damaged files: the recovery of each at a start, and its report."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtrail.store import CommitLogStore, ConfigFileStore, MemoryDisk, RealDisk, StoreError
from mqtrail.store.memory import MemoryFile
from mqtrail.wire import SystemBusy, decode_record
from tests.store.hard_life import CONFIG, number_of, pending

COUNT = 300  # records: two segments, and several files of each queue
SKIPPING = {"skip_damaged": True}
LOG = "commitlog/" + "0" * 20
QUEUE = "consumequeue/orders/0/"


def filled(*, killed: bool = False) -> tuple[MemoryDisk, list[int]]:
    """A disk with a store of COUNT messages, flushed and closed; where each record begins."""
    disk = MemoryDisk()
    store = CommitLogStore(disk, CONFIG)
    places = [store.append([pending(n, "orders", n % 2, 200)], 1_000 + n)[0].physical_offset for n in range(COUNT)]
    if killed:
        store.flush()
        store.abandon()
    else:
        store.close()
    return disk, places


def opened(disk: MemoryDisk, **settings: bool) -> CommitLogStore:
    return CommitLogStore(disk, type(CONFIG)(**{**_settings(), **settings}))


def _settings() -> dict[str, Any]:
    return {name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__}


def numbers(store: CommitLogStore, queue_id: int) -> list[int]:
    """The records that a reader of the queue gets if it continues behind lost ones."""
    found: list[int] = []
    at = 0
    while at < store.max_offset("orders", queue_id):
        result = store.read("orders", queue_id, at, 32, 1 << 20)
        assert result.next_queue_offset > at, result.status
        found += [number_of(decode_record(record)[0].body) for record in result.records]
        at = result.next_queue_offset
    return found


def everything(store: CommitLogStore) -> list[int]:
    return sorted(numbers(store, 0) + numbers(store, 1))


DAMAGE: dict[str, Callable[[memoryview, int], None]] = {
    "a bit of a body": lambda data, at: data.__setitem__(at + 90, data[at + 90] ^ 1),
    "a record's size": lambda data, at: data.__setitem__(at + 2, 0x7F),
    "a magic": lambda data, at: data.__setitem__(at + 4, 0x11),
    "a sector of zeros": lambda data, at: data.__setitem__(slice(at + 10, at + 522), bytes(512)),
    "noise over several records": lambda data, at: data.__setitem__(slice(at, at + 900), bytes(range(150)) * 6),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_in_the_log_is_named_and_skipped_if_configured(name: str) -> None:
    """Without the option the start fails and names position, file and option; with it all other messages are read."""
    disk, places = filled(killed=True)
    DAMAGE[name](disk.files[LOG].data, places[60])
    with pytest.raises(StoreError, match=rf"physical offset {places[60]}") as refusal:
        opened(disk)
    assert LOG in str(refusal.value)
    store = opened(disk, **SKIPPING)
    assert [damage.first for damage in store.recovery.damage] == [places[60]]
    assert str(places[60]) in str(store.recovery)
    end = store.recovery.damage[0].end
    gone = {n for n in range(COUNT) if places[60] <= places[n] < end}
    assert 1 <= len(gone) <= 6
    assert everything(store) == sorted(set(range(COUNT)) - gone)
    store.append([pending(COUNT, "orders", 0, 10)], 9_000)
    store.close()
    again = opened(disk)  # the log can be walked again, also from its start
    assert everything(again) == sorted(set(range(COUNT + 1)) - gone)
    again.abandon()
    disk.close()
    del disk.small["mqtrail-queues"]
    disk.remove("consumequeue")
    disk.remove("mqtrail-durable")
    rebuilt = opened(disk)
    assert everything(rebuilt) == sorted(set(range(COUNT + 1)) - gone)
    rebuilt.abandon()


def test_damage_that_a_start_does_not_read_is_named_by_who_reads_it() -> None:
    """After a clean stop a start does not read the log: a read reports the damaged record, or skips it if
    configured."""
    disk, places = filled()
    disk.files[LOG].data[places[60] + 90] ^= 1
    store = opened(disk)
    assert store.read("orders", 0, 20, 32, 1 << 20).next_queue_offset == 30, "those before it are good"
    with pytest.raises(StoreError, match=rf"damage in the CommitLog at physical offset {places[60]}.*orders/0"):
        store.read("orders", 0, 30, 32, 1 << 20)
    with pytest.raises(StoreError, match="damage in the CommitLog"):
        store.read_at(places[60])
    store.abandon()
    disk.close()
    store = opened(disk, **SKIPPING)
    assert everything(store) == [n for n in range(COUNT) if n != 60]
    store.abandon()


QUEUE_DAMAGE: dict[str, Callable[[MemoryDisk], None]] = {
    "a file cut short": lambda disk: disk.files.update({QUEUE + f"{1000:020}": MemoryFile(500)}),
    "a file of zeros": lambda disk: disk.files[QUEUE + f"{2000:020}"].write_at(0, bytes(1000)),
    "the last file gone": lambda disk: disk.remove(QUEUE + f"{2000:020}"),
    "the first file gone": lambda disk: disk.remove(QUEUE + f"{0:020}"),
    "a file between gone": lambda disk: disk.remove(QUEUE + f"{1000:020}"),
    "the queue gone": lambda disk: disk.remove("consumequeue/orders/0"),
    "all queues gone": lambda disk: disk.remove("consumequeue"),
    "an end that names other records": lambda disk: disk.files[QUEUE + f"{2000:020}"].write_at(
        980, disk.files[QUEUE + f"{2000:020}"].read_at(0, 20)
    ),
}


@pytest.mark.parametrize("killed", [False, True], ids=["clean stop", "killed"])
@pytest.mark.parametrize("name", QUEUE_DAMAGE)
def test_damaged_queues_are_built_again(name: str, killed: bool) -> None:
    """All messages are at their offsets, new ones get new offsets, and the start reports the damage."""
    disk, _ = filled()
    if killed:
        disk.replace("abort", b"")
    QUEUE_DAMAGE[name](disk)
    store = opened(disk)
    assert numbers(store, 0) == list(range(0, COUNT, 2))
    assert numbers(store, 1) == list(range(1, COUNT, 2))
    assert any(text.startswith("consumequeue/orders/0: found") for text in store.recovery.rebuilt)
    assert "built again from the CommitLog" in str(store.recovery)
    assert store.append([pending(COUNT, "orders", 0, 10)], 9_000)[0].queue_offset == COUNT // 2
    store.close()
    again = opened(disk)
    assert again.recovery.rebuilt == ()
    assert numbers(again, 0) == [*range(0, COUNT, 2), COUNT]
    again.abandon()


NOTES_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "cut in its first line": lambda data: data[:5],
    "a changed digit": lambda data: data[:-12] + b"7" + data[-11:],
    "other bytes": lambda data: b"\0" * len(data),
}


@pytest.mark.parametrize("killed", [False, True], ids=["clean stop", "killed"])
@pytest.mark.parametrize("name", NOTES_DAMAGE)
def test_damaged_notes_of_queues_have_all_queues_built_again(name: str, killed: bool) -> None:
    """Without them the loss of a queue's last file would not be noticed, and its offsets would be assigned again."""
    disk, _ = filled()
    if killed:
        store = opened(disk)
        store.abandon()
        disk.close()
    disk.small["mqtrail-queues"] = NOTES_DAMAGE[name](disk.small["mqtrail-queues"])
    disk.remove(QUEUE + f"{2000:020}")
    store = opened(disk)
    assert "mqtrail-queues: found" in str(store.recovery)
    assert not store.recovery.is_plain
    assert everything(store) == list(range(COUNT))
    assert store.max_offset("orders", 0) == COUNT // 2
    store.close()
    again = opened(disk)
    assert again.recovery.rebuilt == ()
    again.abandon()


def test_a_damaged_entry_is_named_by_who_reads_it() -> None:
    """An entry that names another record, or none, never leads to a wrong message; its remedy works."""
    for entry in (bytes(20), (10**15).to_bytes(8, "big") + bytes(3) + b"\x50" + bytes(8)):
        disk, _ = filled()
        disk.files[QUEUE + "0" * 20].write_at(5 * 20, entry)
        store = opened(disk)
        with pytest.raises(StoreError, match=r"remove consumequeue/orders/0: it is built again"):
            store.read("orders", 0, 5, 1, 1 << 20)
        store.close()
        disk.remove("consumequeue/orders/0")
        store = opened(disk)
        assert numbers(store, 0) == list(range(0, COUNT, 2))
        store.abandon()


INDEX_DAMAGE: dict[str, Callable[[MemoryDisk, str], None]] = {
    "cut short": lambda disk, path: disk.files.update({path: MemoryFile(100)}),
    "of noise": lambda disk, path: disk.files[path].write_at(0, bytes(range(200, 240))),
    "with a plausible other time": lambda disk, path: disk.files[path].write_at(8, b"\x01"),
    "with a number past its end": lambda disk, path: disk.files[path].write_at(36, (1 << 20).to_bytes(4, "big")),
}


@pytest.mark.parametrize("name", INDEX_DAMAGE)
def test_a_damaged_index_is_built_again(name: str) -> None:
    """Every message is found by its key, and the start reports the damage."""
    disk, _ = filled()
    INDEX_DAMAGE[name](disk, sorted(path for path in disk.files if path.startswith("index/"))[1])
    store = opened(disk)
    assert any(text.startswith("index/") for text in store.recovery.rebuilt)
    for number in range(0, COUNT, 7):
        found = store.query("orders", f"key{number}", 64, 0, 1 << 60).records
        assert number in [number_of(decode_record(record)[0].body) for record in found]
    store.abandon()


def test_an_unreadable_mark_is_reported() -> None:
    """Without the mark it is unknown what was durable: the whole log is read, and the start reports it."""
    disk, _ = filled(killed=True)
    mark = disk.files["mqtrail-durable"]
    mark.data[:] = bytes(b ^ 0x55 if b else 0 for b in mark.data)
    store = opened(disk)
    assert everything(store) == list(range(COUNT))
    assert "mqtrail-durable: found no readable mark" in str(store.recovery)
    store.abandon()


def test_what_was_never_finished_is_made_anew() -> None:
    """A power cut while files were made leaves short and empty ones: they are not damage."""
    disk, _ = filled(killed=True)
    end = max(int(path.split("/")[1]) for path in disk.files if path.startswith("commitlog/"))
    for path, size in (
        (f"commitlog/{end + CONFIG.segment_size:020}", CONFIG.segment_size // 2),
        (QUEUE + f"{100_000 * 20:020}", 0),
        ("index/99991231235959999", 0),
    ):
        disk.open(path, size)
    store = opened(disk)
    assert everything(store) == list(range(COUNT))
    store.close()


def test_a_damaged_table_is_taken_from_its_bak() -> None:
    """A broken table is replaced by the previous one, and this is reported; without that the start is refused."""
    disk = MemoryDisk()
    files = ConfigFileStore(disk)
    files.save("consumerOffset.json", {"offsetTable": {"T@g": {0: 1}}})
    files.save("consumerOffset.json", {"offsetTable": {"T@g": {0: 2}}})
    disk.replace("config/consumerOffset.json", b'{"offsetTab')
    assert files.load("consumerOffset.json") == {"offsetTable": {"T@g": {0: 1}}}
    assert "using config/consumerOffset.json.bak" in files.report[0]
    disk.replace("config/consumerOffset.json.bak", b"\0" * 40)
    with pytest.raises(StoreError, match="repair one of them by hand, or remove both"):
        files.load("consumerOffset.json")


def test_a_first_start_differs_from_a_clean_stop() -> None:
    """A first start is not reported as a start after a clean stop."""
    disk = MemoryDisk()
    for reported in ("first start; the log ends at 0", "after a clean stop; the log ends at 0"):
        store = CommitLogStore(disk, CONFIG)
        assert str(store.recovery) == reported
        assert store.recovery.is_plain
        store.close()


def test_an_emptied_mark_is_lost_not_new(tmp_path: Path) -> None:
    """With a mark of 0 bytes the whole log is read, and this is reported."""
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    store.append([pending(0, "orders", 0, 200), pending(1, "orders", 0, 200)], 1_000)
    store.close()
    os.truncate(tmp_path / "mqtrail-durable", 0)
    store = CommitLogStore(RealDisk(tmp_path), CONFIG)
    assert "mqtrail-durable: found no readable mark" in str(store.recovery)
    assert store.max_offset("orders", 0) == 2
    store.close()


@pytest.mark.parametrize("note", [b"", b" ", b"12x"])
def test_a_damaged_note_of_wiping_has_the_rest_of_the_file_wiped(note: bytes) -> None:
    """It shows that zeros may not be on the disk, but not how far: then everything behind the end is zeroed."""
    disk, _ = filled()
    data = disk.files[f"commitlog/{max(name for name in disk.files if name.startswith('commitlog/'))[-20:]}"].data
    store = opened(disk)
    end = store.end_offset % CONFIG.segment_size
    store.close()
    data[end + 5_000 : end + 5_003] = b"old"
    disk.replace("mqtrail-wiping", note)
    opened(disk).close()
    assert not any(data[end:])
    assert disk.read("mqtrail-wiping") is None


def test_an_index_reports_damage_and_does_not_prevent_a_stop() -> None:
    """Records to index again are read from the log: damage there is reported or skipped; the stop is clean."""
    disk, places = filled()
    disk.remove("index")
    DAMAGE["a record's size"](disk.files[LOG].data, places[60])
    store = opened(disk)
    with pytest.raises(StoreError, match=rf"damage in the CommitLog at physical offset {places[60]}"):
        store.query("orders", "key200", 64, 0, 1 << 60)
    store.close()
    assert disk.size("abort") is None
    store = opened(disk, **SKIPPING)
    assert len(store.query("orders", "key200", 64, 0, 1 << 60).records) == 1
    store.close()


def _lookups(disk: MemoryDisk) -> list[str]:
    """Open a store, query every key until it answers, and return the reported damage. No key is missed."""
    store = opened(disk)
    reports = list(store.recovery.rebuilt)
    for number in range(COUNT):
        for _ in range(20):
            try:
                found = store.query("orders", f"key{number}", 64, 0, 1 << 60).records
                break
            except SystemBusy as error:
                reports.append(error.remark)
        else:
            raise AssertionError(f"key{number} is still being indexed")
        assert number in [number_of(decode_record(record)[0].body) for record in found], f"key{number}, {reports=}"
    store.close()
    return reports


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 40))])
def test_a_changed_byte_of_the_index_hides_nothing(seed: int) -> None:
    """For any damaged byte of an index file in use, each message is found, and the damage is reported."""
    disk, _ = filled()
    rng = random.Random(seed)
    path = rng.choice(sorted(path for path in disk.files if path.startswith("index/")))
    file = disk.files[path]
    entries_end = 40 + CONFIG.index_slots * 4 + int.from_bytes(file.data[36:40], "big") * 20
    at = rng.choice([rng.randrange(40), rng.randrange(40, 40 + CONFIG.index_slots * 4), rng.randrange(40, entries_end)])
    old = file.read_at(at, 1)[0]
    file.write_at(at, bytes([rng.choice([old ^ 1 << rng.randrange(8), 255 if old == 0 else 0])]))
    reports = _lookups(disk)
    assert not reports or all(text.startswith(path) for text in reports if "behind" not in text)
    assert _lookups(disk) == []


@pytest.mark.parametrize("which", [0, 1, -1])
def test_an_index_file_that_is_gone_is_built_again(which: int) -> None:
    """The loss of the first one is noticed as well, only by its checksums."""
    disk, _ = filled()
    path = sorted(path for path in disk.files if path.startswith("index/"))[which]
    disk.remove(path)
    assert any(text.startswith(f"{path}: found no such file") for text in _lookups(disk))
    assert _lookups(disk) == []


@pytest.mark.parametrize("which", [0, 1])
def test_an_index_file_that_is_gone_with_its_checksums_is_built_again(which: int) -> None:
    """The file after it has the offset at which it ended."""
    disk, _ = filled()
    paths = sorted(path for path in disk.files if path.startswith("index/"))
    disk.remove(paths[which])
    disk.remove(f"mqtrail-{paths[which]}")
    found = "found that the files before it end at physical offset"
    assert any(text.startswith(f"{paths[which + 1]}: {found}") for text in _lookups(disk))
    assert _lookups(disk) == []


def test_a_second_copy_of_an_index_file_hides_nothing() -> None:
    """A copy under an earlier name, as of a restored backup, is removed: the files after it do not continue it."""
    disk, _ = filled()
    paths = sorted(path for path in disk.files if path.startswith("index/"))
    size = len(disk.files[paths[0]].data)
    disk.open("index/19600101000000000", size).write_at(0, bytes(disk.files[paths[-1]].data))
    assert any(text.startswith("index/19600101000000000: found its end at") for text in _lookups(disk))
    assert _lookups(disk) == []


def test_an_index_without_checksums_is_taken_as_it_is() -> None:
    """Apache's broker and older versions have none: impossible chains are damage, all else is trusted."""
    disk, _ = filled()
    disk.remove("mqtrail-index")
    assert _lookups(disk) == []
    disk.remove("mqtrail-index")
    path = min(path for path in disk.files if path.startswith("index/"))
    for slot in range(CONFIG.index_slots):
        disk.files[path].write_at(40 + slot * 4, (1 << 30).to_bytes(4, "big"))
    assert any("as the newest entry of slot" in text for text in _lookups(disk))


def test_a_beginning_of_the_log_that_somebody_removed() -> None:
    """The loss is reported once, with its size; what retention removed is not reported."""
    disk, _ = filled()
    disk.remove(LOG)
    store = opened(disk)
    first = CONFIG.segment_size
    assert store.min_physical_offset == first
    [loss] = store.recovery.lost
    assert loss.startswith(
        f"commitlog/ begins at physical offset {first}, expected 0: {first} bytes with their messages are missing"
    )
    assert not store.recovery.is_plain
    assert loss in str(store.recovery)
    store.close()
    again = opened(disk)
    assert again.recovery.lost == ()
    again.close()


@pytest.mark.parametrize("killed", [False, True], ids=["clean stop", "killed"])
def test_a_beginning_of_the_log_that_expired(killed: bool) -> None:
    """Retention notes what it removes first: a crash right after it reports no loss and rebuilds nothing."""
    disk, _ = filled()
    store = opened(disk)
    assert store.expire(1 << 45, at_any_hour=True) > 0
    if killed:
        store.abandon()
    else:
        store.close()
    store = opened(disk)
    assert store.min_physical_offset > 0
    assert (store.recovery.lost, store.recovery.rebuilt) == ((), ())
    store.abandon()
