"""The journal: what it keeps over restarts, torn tails, damage, files of others."""

import random

import pytest

from mqtrail.raft import Journal, LogEntry, RaftConfig, RaftDamaged, RaftIdentityError
from mqtrail.store import MemoryDisk, MemoryFile
from tests.store.hard_disk import HardDisk, HardFile, PowerCut

CONFIG = RaftConfig(self_id="n0", members=("n0", "n1", "n2"))


def opened(disk: MemoryDisk, config: RaftConfig = CONFIG, file_size: int = 4096) -> Journal:
    return Journal(config, disk, file_size=file_size)


def entries(first: int, end: int, term: int = 1) -> list[LogEntry]:
    return [LogEntry(index, term, f"{term}.{index}".encode()) for index in range(first, end)]


def current(disk: MemoryDisk) -> MemoryFile:
    return disk.files[f"raft/journal-{int(disk.small['raft/current']):010d}"]


def state(journal: Journal) -> tuple[object, ...]:
    first = journal.snapshot_index + 1
    return (
        journal.term,
        journal.voted,
        journal.snapshot_index,
        journal.snapshot,
        journal.entries(first, journal.last_index + 1),
    )


def test_a_restart_keeps_everything() -> None:
    """Term, vote, snapshot, replaced entries; small files are followed by further ones."""
    disk = MemoryDisk()
    journal = opened(disk, file_size=300)
    journal.set_term(3, "n2")
    journal.append(entries(1, 40))
    journal.append(entries(30, 35, term=2))
    journal.compact(20, b"twenty")
    journal.append(entries(35, 36, term=3))
    journal.sync()
    again = opened(disk, file_size=300)
    assert state(again) == state(journal)
    assert state(again) == (3, "n2", 20, b"twenty", [*entries(21, 30), *entries(30, 35, 2), *entries(35, 36, 3)])
    assert again.sequence == journal.sequence
    assert again.entries_size == journal.entries_size
    assert len(disk.files) == 1


def test_a_snapshot_keeps_the_entries_behind_it_only_if_they_belong_to_it() -> None:
    """install: the entry at its index decides."""
    journal = opened(MemoryDisk())
    journal.append(entries(1, 10))
    journal.install(5, 1, b"five")
    assert journal.entries(6, 10) == entries(6, 10)
    journal.install(7, 2, b"seven")
    assert (journal.last_index, journal.last_term, journal.term_at(7), journal.term_at(6)) == (7, 2, 2, None)


def test_a_snapshot_is_written_in_slices_while_the_log_goes_on() -> None:
    """Each slice has its maximum; what is behind the snapshot comes last; a new file in between ends the slices."""
    disk = MemoryDisk()
    journal = Journal(CONFIG, disk, file_size=4_096, slice_size=100)
    journal.append(entries(1, 10))
    slices = journal.prepare(5, 1, (data := bytes(950)))
    slice_count = 0
    for _ in slices:
        slice_count += 1
        journal.append(entries(journal.last_index + 1, journal.last_index + 2))
        journal.set_term(journal.term + 1, "n2")
        journal.sync()
    assert slice_count == 9
    journal.install(5, 1, data)
    assert [*disk.files] == [f"raft/journal-{2:010d}"]
    assert state(opened(disk)) == state(journal) == (9, "n2", 5, data, entries(6, 19))
    assert opened(disk).sequence == journal.sequence

    rolled = Journal(CONFIG, disk, file_size=4_096, slice_size=100)
    slices = rolled.prepare(7, 1, data)
    next(slices)
    rolled.compact(6, b"six")
    with pytest.raises(StopIteration) as end:
        next(slices)
    assert end.value.value is False
    rolled.install(7, 1, data)
    assert state(opened(disk)) == state(rolled)
    assert len(disk.files) == 1


@pytest.mark.parametrize("seed", range(24))
def test_power_loss_while_a_snapshot_is_written_loses_nothing(seed: int) -> None:
    """Whichever call is the last one: the journal has the state before or behind it."""
    disk = HardDisk(random.Random(seed))
    journal = Journal(CONFIG, disk, file_size=4_096, slice_size=100)
    journal.append(entries(1, 10))
    journal.sync()
    before = state(journal)
    disk.power_cut_at = disk.calls + 1 + seed
    data = bytes(range(256)) * 2
    try:
        assert [*journal.prepare(5, 1, data)]
        journal.compact(5, data)
    except PowerCut:
        pass
    disk.power_cut_at = -1
    disk.stop(power=True)
    assert state(opened(disk)) in (before, (0, None, 5, data, entries(6, 10)))


@pytest.mark.parametrize("seed", range(30))
def test_power_loss_keeps_what_was_synced(seed: int) -> None:
    """Behind the last sync each write survives whole, torn or not at all; the log never has a gap."""
    disk = HardDisk(random.Random(seed))
    journal = opened(disk)
    journal.set_term(1, "n1")
    journal.append(entries(1, 6))
    journal.sync()
    journal.append(entries(6, 12))
    disk.stop(power=True)
    again = opened(disk)
    assert (again.term, again.voted) == (1, "n1")
    assert 5 <= again.last_index <= 11
    assert again.entries(1, again.last_index + 1) == entries(1, again.last_index + 1)


def test_a_torn_tail_never_comes_back() -> None:
    """Whole records behind a torn one are left out for good."""
    disk = HardDisk(random.Random(0))
    journal = opened(disk)
    journal.append(entries(1, 4))
    journal.sync()
    at = bytes(current(disk).data).rstrip(b"\0")
    journal.append(entries(4, 7))
    file = current(disk)
    assert isinstance(file, HardFile)
    file.data[len(at) + 20] ^= 0xFF
    torn = opened(disk)
    assert torn.last_index == 3
    assert torn.dropped_size > 0
    torn.append(entries(4, 5, term=2))
    torn.sync()
    assert opened(disk).entries(1, 5) == [*entries(1, 4), *entries(4, 5, 2)]


def test_damage_below_the_synced_end_is_refused() -> None:
    """A member that lost what it acknowledged must not go on."""
    disk = MemoryDisk()
    journal = opened(disk)
    for index in range(1, 4):
        journal.append(entries(index, index + 1))
        journal.sync()
    place = bytes(current(disk).data).index(b"1.2")
    current(disk).data[place] ^= 1
    with pytest.raises(RaftDamaged, match="acknowledged entries may be missing"):
        opened(disk)


def test_missing_and_foreign_files_are_refused() -> None:
    """Two nodes with one folder, another list of members, a lost file: found, expected, remedy."""
    disk = MemoryDisk()
    opened(disk)
    others = ("n0", "n1", "n3")
    for config in (
        RaftConfig(self_id="n1", members=CONFIG.members),
        RaftConfig(self_id="n0", members=others),
        RaftConfig(self_id="n0", members=CONFIG.members, group="others"),
    ):
        with pytest.raises(RaftIdentityError, match="correct the own id and the list of peers"):
            opened(disk, config)
    reordered = RaftConfig(self_id="n0", members=("n2", "n1", "n0"))
    assert opened(disk, reordered).last_index == 0
    disk.files.clear()
    with pytest.raises(RaftDamaged, match="found no file"):
        opened(disk)


def test_unsynced_entries_do_not_count_as_durable() -> None:
    """durable_index follows sync, and falls with a replaced entry."""
    journal = opened(MemoryDisk())
    journal.append(entries(1, 4))
    assert journal.durable_index == 0
    journal.sync()
    assert journal.durable_index == 3
    journal.append(entries(2, 3, term=2))
    assert journal.durable_index == 1


def test_groups_have_one_three_or_five_members() -> None:
    """Other sizes, doubled ids and an own id outside the list are refused."""
    for self_id, members in (("a", ("a", "b")), ("a", ("a", "a", "b")), ("c", ("a",))):
        with pytest.raises(RaftIdentityError, match="correct"):
            RaftConfig(self_id=self_id, members=members)
