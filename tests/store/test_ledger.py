"""The log of a DLedger member: bytes, restarts, torn tails, damage, truncation, term and vote.

Crashes at any place: tests/sim/test_ledger.py.
"""

import random
import struct
from dataclasses import replace

import pytest

from mqtrail.store import LogDiffers, MemoryDisk, MemoryFile, StoreBroken, StoreError, StoreFull
from mqtrail.store.dledger import LedgerLog
from mqtrail.wire import LEDGER_HEAD_SIZE, LedgerEntry, encode_ledger_entry
from tests.sim.ledger_group import record

from .hard_disk import HardDisk

SEGMENT_SIZE = 1_024
UNITS = 4
DATA = "dledger-n0/data"


def opened(disk: MemoryDisk, *, segment_size: int = SEGMENT_SIZE) -> LedgerLog:
    return LedgerLog(disk, "n0", segment_size=segment_size, index_units=UNITS)


def add(ledger: LedgerLog, count: int, term: int = 1, text: str = "text") -> list[LedgerEntry]:
    """Append entries one by one, each where the log says."""
    if ledger.term < term:
        ledger.set_term(term, None)
    added = []
    for _ in range(count):
        index = ledger.end_index + 1
        body = f"{text}-{index}"
        position = ledger.place(LEDGER_HEAD_SIZE + len(record(0, body)))
        entry = LedgerEntry(index, term, position, record(position + LEDGER_HEAD_SIZE, body))
        ledger.append([entry])
        added.append(entry)
    return added


def state(ledger: LedgerLog) -> tuple[object, ...]:
    entries = [ledger.entry(index) for index in range(max(0, ledger.begin_index), ledger.end_index + 1)]
    return ledger.term, ledger.voted, ledger.begin_index, ledger.end_term, ledger.end_position, entries


def segment(disk: MemoryDisk, number: int) -> MemoryFile:
    return disk.files[f"{DATA}/{number * SEGMENT_SIZE:020}"]


def test_a_restart_keeps_everything() -> None:
    """Entries over several data and index files, term, vote, and what is committed."""
    disk = MemoryDisk()
    ledger = opened(disk)
    assert (ledger.begin_index, ledger.end_index, ledger.end_term, ledger.term) == (-1, -1, -1, 0)
    ledger.set_term(3, "n1")
    entries = add(ledger, 5, term=1) + add(ledger, 9, term=3)
    ledger.close(committed_index=11)
    assert len(disk.list(DATA)) == 3
    assert len(disk.list("dledger-n0/index")) == 4
    again = opened(disk)
    assert state(again) == state(ledger) == (3, "n1", 0, 3, ledger.end_position, entries)
    assert (again.committed_index, again.start.wiped_size, again.start.rebuilt_units) == (11, 0, 0)
    assert add(again, 1, term=3)[0].index == 14


def test_many_entries_at_once_are_written_as_one_by_one() -> None:
    """A follower gets lists; its files are the leader's, byte for byte, padding included."""
    leader, follower = MemoryDisk(), MemoryDisk()
    entries = add(opened(leader), 20)
    opened(follower).append(entries)
    assert {path: bytes(file.data) for path, file in leader.files.items()} == {
        path: bytes(file.data) for path, file in follower.files.items()
    }
    data = segment(leader, 0).data
    last = max(entry.end for entry in entries if entry.position < SEGMENT_SIZE)
    assert struct.unpack_from(">ii", data, last) == (-1, SEGMENT_SIZE - last)
    assert entries[-1].position >= SEGMENT_SIZE


def test_what_does_not_continue_the_log_is_refused_and_changes_nothing() -> None:
    """Another index, an earlier term, another position; in a list of entries the first ones too."""
    disk = MemoryDisk()
    ledger = opened(disk)
    add(ledger, 3, term=2)
    before = {path: bytes(file.data) for path, file in disk.files.items()}
    position = ledger.place(LEDGER_HEAD_SIZE + len(record(0, "x")))
    good = LedgerEntry(3, 2, position, record(position + LEDGER_HEAD_SIZE, "x"))
    for wrong in (replace(good, index=4), replace(good, term=1), replace(good, position=position + 8)):
        with pytest.raises(LogDiffers, match="mappedFileSizeCommitLog must be the same"):
            ledger.append([wrong])
        with pytest.raises(LogDiffers):
            ledger.append([good, replace(wrong, index=wrong.index + 1)])
    assert before == {path: bytes(file.data) for path, file in disk.files.items()}
    with pytest.raises(LogDiffers, match="magic 2, expected 1"):
        ledger.append([replace(good, magic=2)])
    with pytest.raises(LogDiffers, match="at most"):
        ledger.append([replace(good, body=bytes(SEGMENT_SIZE), position=SEGMENT_SIZE)])
    ledger.append([good])


def test_a_log_begins_where_a_file_does() -> None:
    """The first position may be that of a later file, as in a group that kept a plain CommitLog in front."""
    ledger = opened(MemoryDisk())
    with pytest.raises(LogDiffers, match="where a file begins"):
        ledger.append([LedgerEntry(0, 1, 8, b"x")])
    at = 3 * SEGMENT_SIZE
    ledger.append([LedgerEntry(0, 1, at, record(at + LEDGER_HEAD_SIZE, "x"))])
    assert (ledger.first_position, ledger.begin_index, ledger.end_index) == (at, 0, 0)


def test_a_torn_tail_is_wiped() -> None:
    """Above the durable mark the first bytes that are no whole entry end the log; nothing behind them comes back."""
    disk = MemoryDisk()
    ledger = opened(disk)
    entries = add(ledger, 3)
    ledger.begin_flush()()
    torn = add(ledger, 2)
    start = torn[0].position % SEGMENT_SIZE
    body = start + LEDGER_HEAD_SIZE + 90
    segment(disk, 0).data[body : body + 4] = b"\0" * 4
    again = opened(disk)
    assert again.end_index == 2
    assert again.start.wiped_size > LEDGER_HEAD_SIZE
    assert again.entry(2) == entries[2]
    assert not any(segment(disk, 0).data[start:])
    assert add(again, 1, text="else")[0].position == torn[0].position
    assert opened(disk).end_index == 3


def test_a_log_of_which_nothing_was_flushed_may_be_torn_at_its_start() -> None:
    """Then it is empty. In a folder of Apache's it is a log that begins inside its file, or damage."""
    disk = MemoryDisk()
    add(opened(disk), 3)
    segment(disk, 0).data[:8] = bytes(8)
    apaches = MemoryDisk()
    apaches.small = dict(disk.small)
    apaches.open(f"{DATA}/{0:020}", SEGMENT_SIZE).data[:] = segment(disk, 0).data
    with pytest.raises(StoreError, match="no entry at the start"):
        opened(apaches)
    again = opened(disk)
    assert (again.end_index, again.end_position) == (-1, 0)
    assert not any(segment(disk, 0).data)


@pytest.mark.parametrize("part", ["log", "index"])
def test_what_a_failed_sync_left_in_memory_is_written_once_more(part: str) -> None:
    """The kernel takes it for clean: no later sync would write it. The index too, and when nothing was ever flushed."""
    disk = HardDisk(random.Random(1))
    ledger = opened(disk)
    entries = add(ledger, 3)
    disk.rates.sync_error = 1.0
    with pytest.raises(OSError, match="fails to sync"):
        (ledger.begin_flush() if part == "log" else ledger.begin_checkpoint(-1))()
    ledger.abandon()
    disk.stop(power=False)
    disk.rates.sync_error = 0.0
    again = opened(disk)
    again.begin_checkpoint(-1)()
    again.begin_flush()()
    again.abandon()
    disk.stop(power=True)
    last = opened(disk)
    assert [last.entry(index) for index in range(3)] == entries


def test_damage_below_the_mark_refuses_the_start() -> None:
    """Acknowledged entries may be missing: the error names the position."""
    disk = MemoryDisk()
    ledger = opened(disk)
    entries = add(ledger, 3)
    ledger.begin_flush()()
    segment(disk, 0).data[entries[2].position + LEDGER_HEAD_SIZE + 90] ^= 1
    with pytest.raises(StoreError, match=f"position {entries[2].position}"):
        opened(disk)


def test_missing_files_refuse_the_start() -> None:
    """The last data file is gone, which the mark proves."""
    disk = MemoryDisk()
    add(opened(disk), 12)
    opened(disk).close(committed_index=-1)
    disk.remove(f"{DATA}/{SEGMENT_SIZE:020}")
    with pytest.raises(StoreError, match="which were flushed"):
        opened(disk)


def test_an_entry_of_a_later_version_refuses_the_start() -> None:
    """Later versions of DLedger have entries without a message: 2 and 3."""
    disk = MemoryDisk()
    entries = add(opened(disk), 3)
    segment(disk, 0).data[entries[1].position + 3] = 2
    with pytest.raises(StoreError, match="found an entry with magic 2"):
        opened(disk)


def test_the_index_is_built_again() -> None:
    """A missing index, a missing end of it, and a wrong unit."""
    disk = MemoryDisk()
    ledger = opened(disk)
    add(ledger, 14)
    ledger.close(committed_index=3)
    whole = state(ledger)
    disk.remove("dledger-n0/index")
    again = opened(disk)
    assert (state(again), again.start.rebuilt_units) == (whole, 14)
    disk.files[f"dledger-n0/index/{UNITS * 32:020}"].data[:64] = bytes(64)
    disk.remove("mqtrail-durable")
    again = opened(disk)
    assert (state(again), again.start.scanned_from) == (whole, 0)
    assert again.start.rebuilt_units == 2


def test_a_folder_without_a_mark_is_read_from_the_last_files() -> None:
    """As Apache's member reads it: from the third last file on, if the index has what is before."""
    disk = MemoryDisk()
    ledger = opened(disk)
    add(ledger, 30)
    ledger.close(committed_index=20)
    disk.remove("mqtrail-durable")
    again = opened(disk)
    files = len(disk.list(DATA))
    assert files > 3
    assert again.start.scanned_from == (files - 3) * SEGMENT_SIZE
    assert state(again) == state(ledger)


def test_truncation_keeps_what_it_cuts_off() -> None:
    """The tail is in a file; later files are gone; nothing comes back after a restart."""
    disk = MemoryDisk()
    ledger = opened(disk)
    entries = add(ledger, 14)
    ledger.begin_flush()()
    path = ledger.truncate(4)
    assert path is not None
    assert bytes(disk.files[path].data).startswith(encode_ledger_entry(entries[5]))
    assert ledger.truncate(4) is None
    assert (ledger.end_index, ledger.end_term, ledger.durable_index) == (4, 1, 4)
    assert opened(disk).end_index == 4
    added = add(ledger, 3, term=2)
    assert added[0].position == entries[4].end
    again = opened(disk)
    assert (again.end_index, again.end_term) == (7, 2)
    assert [again.term_at(index) for index in (4, 5, 7, 8)] == [1, 2, 2, None]


def test_an_unflushed_tail_is_cut_off_too() -> None:
    """The mark does not say that the rest is durable: it is, once it is flushed."""
    disk = MemoryDisk()
    ledger = opened(disk)
    add(ledger, 2)
    ledger.begin_flush()()
    add(ledger, 4)
    ledger.truncate(3)
    assert (ledger.end_index, ledger.durable_index) == (3, 1)
    ledger.begin_flush()()
    assert ledger.durable_index == 3


def test_a_tail_that_cannot_be_copied_leaves_no_file() -> None:
    """Its part would pass for what was cut off; the log stays as it was, and a later try works."""
    disk = HardDisk(random.Random(1))
    ledger = opened(disk)
    add(ledger, 4)
    disk.rates.sync_error = 1.0
    for _ in range(2):
        with pytest.raises(OSError, match="fails to sync"):
            ledger.truncate(1)
    assert (ledger.end_index, disk.list("truncated"), ledger.fault) == (3, [], None)
    disk.rates.sync_error = 0.0
    assert ledger.truncate(1) is not None
    assert (ledger.end_index, len(disk.list("truncated"))) == (1, 1)


def test_a_failed_cut_ends_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its bytes may be zero: nothing is appended or flushed before the next start, which wipes the rest."""
    disk = MemoryDisk()
    ledger = opened(disk)
    add(ledger, 4)
    ledger.begin_flush()()

    def fail(position: int) -> int:
        raise OSError(f"no zeros at {position}")

    monkeypatch.setattr(ledger.data, "wipe", fail)
    with pytest.raises(OSError, match="no zeros"):
        ledger.truncate(1)
    assert ledger.fault is not None
    assert "could not be cut off" in ledger.fault
    for attempt in (lambda: add(ledger, 1), ledger.begin_flush):
        with pytest.raises(StoreBroken):
            attempt()
    assert opened(disk).end_index == 3


def test_flushed_entries_are_not_remembered() -> None:
    """Also if nobody asks what is durable, as under ASYNC_FLUSH."""
    ledger = opened(MemoryDisk())
    for _ in range(9):
        add(ledger, 1)
        ledger.begin_flush()()
    for _ in range(9):
        add(ledger, 1)
        ledger.begin_checkpoint(-1)()
    assert len(ledger._pending) <= 1
    assert ledger.durable_index == 17


def test_a_checkpoint_needs_its_index_and_can_do_without_its_note() -> None:
    """A failed sync of the index is a fault; without space for the note everything is durable, and the log goes on."""
    disk = HardDisk(random.Random(1))
    ledger = opened(disk)
    add(ledger, 3)
    checkpoint = ledger.begin_checkpoint(-1)
    disk.rates.full = 1.0
    ledger.begin_flush()
    with pytest.raises(StoreFull):
        checkpoint()
    disk.rates.full = 0.0
    assert ledger.fault is None
    add(ledger, 1)
    ledger.begin_checkpoint(-1)()
    add(ledger, 1)
    checkpoint = ledger.begin_checkpoint(-1)
    disk.rates.sync_error = 1.0
    with pytest.raises(OSError, match="fails to sync"):
        checkpoint()
    assert ledger.fault is not None


def test_a_log_begins_anew() -> None:
    """A member that is too far behind: its leader's first entry replaces all that it had."""
    disk = MemoryDisk()
    ledger = opened(disk)
    add(ledger, 6)
    ledger.begin_flush()()
    at = 5 * SEGMENT_SIZE
    entry = LedgerEntry(40, 7, at, record(at + LEDGER_HEAD_SIZE, "new"))
    with pytest.raises(LogDiffers):
        ledger.restart_at(replace(entry, position=at + 8))
    ledger.restart_at(entry)
    more = add(ledger, 2, term=7)
    assert (ledger.begin_index, ledger.end_index, ledger.entry(40), ledger.entry(5)) == (40, 42, entry, None)
    ledger.begin_flush()()
    again = opened(disk)
    assert (again.begin_index, again.end_index, again.entry(42)) == (40, 42, more[1])


def test_the_oldest_files_are_removed() -> None:
    """Never the last one, and none with entries that are not committed."""
    disk = MemoryDisk()
    ledger = opened(disk)
    add(ledger, 14)
    assert ledger.expire_first(13) == 0  # not flushed
    ledger.begin_flush()()
    assert ledger.expire_first(2) == 0
    assert ledger.expire_first(13) == SEGMENT_SIZE
    begin = ledger.begin_index
    assert begin > 0
    assert (ledger.entry(begin - 1), ledger.first_position) == (None, SEGMENT_SIZE)
    assert len(disk.list("dledger-n0/index")) < 4
    assert opened(disk).begin_index == begin
    while ledger.expire_first(13):
        pass
    assert len(disk.list(DATA)) == 1


@pytest.mark.parametrize("left", [".bak", ".tmp"])
def test_a_vote_that_apache_was_replacing_is_found(left: str) -> None:
    """Its member removes the file before it renames the new one; a crash leaves only the others."""
    disk = MemoryDisk()
    add(opened(disk), 1, term=4)
    disk.remove("dledger-n0/currterm")
    disk.replace(f"dledger-n0/currterm{left}", b"voteLeader=n2\ncurrTerm=5\n")
    ledger = opened(disk)
    assert (ledger.term, ledger.voted) == (5, "n2")


def test_a_lost_vote_refuses_the_start() -> None:
    """Beside entries of a term; an operator may write a higher one."""
    disk = MemoryDisk()
    add(opened(disk), 1, term=4)
    disk.remove("dledger-n0/currterm")
    with pytest.raises(StoreError, match=r"restore the file; or write currTerm=N"):
        opened(disk)
    disk.replace("dledger-n0/currterm", b"currTerm=9")
    assert (opened(disk).term, opened(disk).voted) == (9, None)


@pytest.mark.parametrize(("term", "text"), [(0, None), (4, b"voteLeader=n2\ncurrTerm=3\n")])
def test_nobody_gets_a_vote_in_a_term_whose_vote_is_not_known(term: int, text: bytes | None) -> None:
    """Apache's member does not sync the file, and in term 0 it may write none."""
    disk = MemoryDisk()
    add(opened(disk), 1, term=term)
    if text is not None:
        disk.replace("dledger-n0/currterm", text)
    ledger = opened(disk)
    assert (ledger.term, ledger.voted) == (term, "-")


def test_a_folder_of_another_member_or_group_is_refused() -> None:
    """Another dLegerSelfId or dLegerGroup than last time, or the folder of another cluster."""
    disk = MemoryDisk()
    add(LedgerLog(disk, "n0", segment_size=SEGMENT_SIZE, index_units=UNITS, group="broker-a"), 1)
    with pytest.raises(StoreError, match=r"found dledger-n0, expected dledger-n1 or no log: correct dLegerSelfId"):
        LedgerLog(disk, "n1", segment_size=SEGMENT_SIZE)
    with pytest.raises(StoreError, match=r"found the log of group broker-a .* expected that of group broker-b"):
        LedgerLog(disk, "n0", segment_size=SEGMENT_SIZE, group="broker-b")
    assert LedgerLog(disk, "n0", segment_size=SEGMENT_SIZE, index_units=UNITS, group="broker-a").end_index == 0
    disk.remove("dledger-n0/mqtrail-group")  # as in a folder of Apache's
    assert LedgerLog(disk, "n0", segment_size=SEGMENT_SIZE, index_units=UNITS, group="broker-b").end_index == 0


def test_data_files_of_another_size_are_refused() -> None:
    """mappedFileSizeCommitLog was changed."""
    disk = MemoryDisk()
    add(opened(disk), 1)
    with pytest.raises(StoreError, match="expected 2048"):
        opened(disk, segment_size=2 * SEGMENT_SIZE)
