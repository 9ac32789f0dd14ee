"""The store of a member of a DLedger group: what is not committed is neither readable nor in a queue, and comes back to
nobody; what is committed stays, through crashes and changes of the leader.

The contract that it shares with other stores: test_contract.py.
"""

import random
from dataclasses import replace

import pytest

from mqtrail.store import CommitLogConfig, GetStatus, MemoryDisk, PendingRecord, StoreError
from mqtrail.store.dledger import FIRST_TOPIC, LedgerStore
from mqtrail.store.dledger.store import PUSHED_SIZE_MAX
from mqtrail.wire import (
    FRAME_SIZE_MAX,
    LedgerEntry,
    LedgerPush,
    MessageIllegal,
    MessageSysFlag,
    QueryNotFound,
    RecordError,
    RemotingCommand,
    ServiceNotAvailable,
    SystemBusy,
    decode_record,
    encode_command,
    tags_code,
)

from .test_contract import BORN_HOST, NOW_MS, bodies, record

CONFIG = CommitLogConfig(
    segment_size=64 * 1024, queue_entries=20, index_slots=8, index_entries=50, message_size_max=8 * 1024
)
ORDERS = ("orders", 0)
FIRST_RECORD = PendingRecord(
    FIRST_TOPIC, 0, b"-", b"", 0, NOW_MS, BORN_HOST, sys_flag=int(MessageSysFlag.TRANSACTION_ROLLBACK)
)


class Open:
    """A gate that lets everything pass and commits nothing."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.appended_count = 0

    def check(self, count: int) -> None:
        if self.refusal is not None:
            raise self.refusal

    def appended(self) -> None:
        self.appended_count += 1


def opened(disk: MemoryDisk, self_id: str = "n0") -> LedgerStore:
    return LedgerStore(disk, CONFIG, self_id=self_id, group="broker-a", index_units=20)


def leader(disk: MemoryDisk | None = None, self_id: str = "n0", term: int = 1) -> LedgerStore:
    store = opened(disk or MemoryDisk(), self_id)
    store.ledger.set_term(term, self_id)
    store.lead(Open())
    return store


def commit(store: LedgerStore, index: int | None = None) -> None:
    """Commit up to an entry; None: all that is written."""
    store.ledger.committed_index = store.ledger.end_index if index is None else index
    while not store.is_current:
        before = store.committed_offset
        store.advance()
        if store.committed_offset == before:
            return  # it stepped down


def copy(source: LedgerStore, target: LedgerStore) -> None:
    """Give a follower the entries that it lacks."""
    if target.ledger.term < source.ledger.term:
        target.ledger.set_term(source.ledger.term, None)
    first = target.ledger.end_index + 1
    target.ledger.append(source.ledger.entries(first, 10_000, 1 << 30))


def texts(store: LedgerStore, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    at = store.min_offset(topic, queue_id)
    while at < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, at, 32, 1 << 20)
        found += bodies(result.records)
        at = result.next_queue_offset
    return found


def test_nothing_uncommitted_can_be_read() -> None:
    """Not by queue, place, key or time; the queue's end does not count it; nothing counts as flushed."""
    store = leader()
    first, second = store.append([record(b"a", KEYS="k"), record(b"b", KEYS="k")], NOW_MS)
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert (store.max_offset(*ORDERS), store.flush(), store.end_offset) == (0, 0, second.end_offset)
    assert store.read(*ORDERS, 0, 9, 1 << 20).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.query("orders", "k", 9, 0, 1 << 62).records == []
    assert store.store_time(*ORDERS, 0) == -1
    with pytest.raises(QueryNotFound):
        store.read_at(first.physical_offset)
    store.write_queues(sync=True)
    assert store.entries(*ORDERS, 0, 9) == []
    store.ledger.committed_index = 0
    assert store.advance() == [ORDERS]
    assert (texts(store), store.max_offset(*ORDERS), store.flushed_offset) == ([b"a"], 1, first.end_offset)
    assert bodies(store.query("orders", "k", 9, 0, 1 << 62).records) == [b"a"]
    with pytest.raises(QueryNotFound):
        store.read_at(second.physical_offset)
    commit(store)
    assert bodies([store.read_at(second.physical_offset)]) == [b"b"]
    assert store.append([record(b"c")], NOW_MS)[0].queue_offset == 2
    store.close()


def test_what_was_rolled_back_was_never_there() -> None:
    """A deposed leader's tail is replaced: its places never count as flushed, and its queue offsets are given again."""
    old, new = leader(self_id="n0"), opened(MemoryDisk(), "n1")
    old.append([record(b"kept")], NOW_MS)
    commit(old)
    copy(old, new)
    commit(new)
    (lost,) = old.append([record(b"lost")], NOW_MS)
    new.ledger.set_term(2, "n1")
    new.lead(Open())
    (other,) = new.append([record(b"seen", tag="T")], NOW_MS + 1)
    assert (other.queue_offset, other.physical_offset) == (lost.queue_offset, lost.physical_offset)
    commit(new)

    old.step_down()
    with pytest.raises(ServiceNotAvailable, match="does not lead"):
        old.append([record(b"late")], NOW_MS)
    old.ledger.truncate(0)
    copy(new, old)
    commit(old)
    assert old.ledger.committed_index == 1
    assert (texts(old), old.flushed_offset < lost.end_offset) == ([b"kept"], True)
    old.follow()
    commit(old)
    assert texts(old) == texts(new) == [b"kept", b"seen"]
    assert old.flushed_offset == other.end_offset
    old.ledger.set_term(3, "n0")
    old.lead(Open())
    assert old.append([record(b"next")], NOW_MS + 2)[0].queue_offset == 2
    for store in (old, new):
        store.close()


def test_a_refused_append_takes_no_place() -> None:
    """Consensus refuses, or a record cannot be stored: the next one gets the same place."""
    store = leader()
    gate = Open()
    store.lead(gate)
    gate.refusal = SystemBusy("found too many")
    with pytest.raises(SystemBusy):
        store.append([record(b"a")], NOW_MS)
    gate.refusal = None
    with pytest.raises(MessageIllegal, match="out of its field's range"):
        store.append([record(b"a"), record(b"b")._replace(flag=1 << 40)], NOW_MS)
    assert (store.append([record(b"a")], NOW_MS)[0].queue_offset, gate.appended_count) == (0, 1)
    store.close()


def test_an_entry_fits_a_request_to_a_member() -> None:
    """It carries entries in base64: a larger record is refused, whatever the settings allow."""
    config = replace(CONFIG, segment_size=1 << 26, message_size_max=1 << 25)
    store = LedgerStore(MemoryDisk(), config, self_id="n0")
    batch = store.begin_batch(*ORDERS)
    with pytest.raises(MessageIllegal, match=f"{PUSHED_SIZE_MAX}"):
        batch.add([record(bytes(PUSHED_SIZE_MAX))])
    entry = LedgerEntry(1 << 60, 1 << 60, 1 << 60, bytes(PUSHED_SIZE_MAX))
    push = LedgerPush(group="g" * 255, remote_id="n9999", local_id="n9999", leader_id="n9999", entries=(entry,))
    command = RemotingCommand(push.request_code, body=push.encode())
    assert len(encode_command(command)) <= FRAME_SIZE_MAX
    store.close()


def test_half_messages_and_first_entries_are_in_no_queue() -> None:
    """Prepared and rolled back records have a place in the log alone."""
    store = leader()
    half, plain = store.append([record(b"half")._replace(sys_flag=4), record(b"plain")], NOW_MS)
    commit(store)
    assert (half.queue_offset, plain.queue_offset, texts(store)) == (0, 0, [b"plain"])
    store.close()


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_restart_shows_what_the_checkpoint_knows_and_the_rest_later(is_killed: bool) -> None:
    """After kill -9 entries behind the noted commit may be replaced: their queue entries, though on disk, are gone."""
    disk = MemoryDisk()
    store = leader(disk)
    store.append([record(b"a")], NOW_MS)
    commit(store)
    store.ledger.begin_checkpoint(store.ledger.committed_index)()
    store.append([record(b"b"), record(b"c")], NOW_MS)
    commit(store, 1)
    store.write_queues(sync=True)
    store.flush()
    if is_killed:
        store.abandon()
    else:
        store.close()
    again = opened(disk)
    assert (again.ledger.committed_index, texts(again)) == ((0, [b"a"]) if is_killed else (1, [b"a", b"b"]))
    assert str(again.recovery).endswith("nothing was wiped" if is_killed else f"ends at {again.committed_offset}")
    commit(again)
    assert texts(again) == [b"a", b"b", b"c"]
    assert [entry[0] for entry in again.entries(*ORDERS, 0, 9)] == sorted(
        {entry[0] for entry in again.entries(*ORDERS, 0, 9)}
    )
    again.close()
    assert texts(opened(disk)) == [b"a", b"b", b"c"]


def test_a_killed_member_takes_over_another_tail() -> None:
    """Its queues had entries of its own tail only if that was committed: what replaces the tail takes their places."""
    disk = MemoryDisk()
    store = leader(disk)
    store.append([record(b"a")], NOW_MS)
    commit(store)
    store.append([record(b"lost"), record(b"lost too")], NOW_MS)
    store.write_queues(sync=True)
    store.ledger.begin_checkpoint(store.ledger.committed_index)()
    store.abandon()
    other = leader(self_id="n1")
    again = opened(disk)
    other.ledger.append(again.ledger.entries(0, 1, 1 << 20))
    commit(other)
    other.step_down()
    other.ledger.set_term(2, "n1")
    other.follow()
    other.lead(Open())
    other.append([record(b"b")], NOW_MS)
    commit(other)
    again.ledger.truncate(0)
    copy(other, again)
    commit(again)
    assert texts(again) == texts(other) == [b"a", b"b"]
    again.close()


def test_a_member_far_behind_begins_anew() -> None:
    """Its leader has removed what follows its log: the old messages are gone as after expiry, the queue goes on."""
    ahead, behind = leader(), opened(MemoryDisk(), "n1")
    ahead.append([record(b"old", KEYS="k")], NOW_MS)
    commit(ahead)
    copy(ahead, behind)
    commit(behind)
    while ahead.ledger.end_position < 2 * CONFIG.segment_size:
        ahead.append([record(bytes(4_000))], NOW_MS)
    commit(ahead)
    ahead.ledger.begin_flush()()
    assert ahead.expire(NOW_MS + 1_000 * 3_600_000, at_any_hour=True) > 0
    begin = ahead.ledger.begin_index
    entry = ahead.ledger.entry(begin)
    assert begin > 0
    assert entry is not None
    assert behind.is_current
    behind.ledger.restart_at(entry)
    assert not behind.is_current
    disk = behind._disk
    files = disk.list("dledger-n1/data")
    with pytest.raises(RecordError, match="no file with position 0"):
        behind._log.scan(0, crc=False)
    assert disk.list("dledger-n1/data") == files
    behind.advance()
    assert (behind.is_current, texts(behind)) == (True, [])
    copy(ahead, behind)
    commit(behind)
    assert behind.min_physical_offset == ahead.min_physical_offset > 0
    assert texts(behind) == texts(ahead)
    for _ in behind.clean_queues():
        pass
    assert (behind.min_offset(*ORDERS), behind.max_offset(*ORDERS)) == (begin, ahead.max_offset(*ORDERS))
    assert behind.query("orders", "k", 9, 0, 1 << 62).records == []
    behind.close()
    ahead.close()


def test_a_topic_that_is_deleted_and_made_again() -> None:
    """The leader's queue begins at 0 again; a follower that did not hear of it drops the old entries too."""
    first, second = leader(), opened(MemoryDisk(), "n1")
    first.append([FIRST_RECORD], NOW_MS)
    first.append([record(b"a"), record(b"b"), record(b"other", queue_id=1)], NOW_MS)
    commit(first)
    first.delete_topic("orders")
    assert first.append([record(b"c")], NOW_MS)[0].queue_offset == 0
    commit(first)
    copy(first, second)
    commit(second)
    assert texts(first) == texts(second) == [b"c"]
    assert second.queue_ids("orders") == [0]
    disk = second._disk
    second.close()
    assert isinstance(disk, MemoryDisk)
    assert texts(opened(disk, "n1")) == [b"c"]
    first.close()


@pytest.mark.parametrize("again", [0, 1, 4])
@pytest.mark.parametrize("start", ["clean", "unclean", "without queues"])
def test_a_queue_offset_that_apaches_leader_gives_twice(again: int, start: str) -> None:
    """Its queue lacks entries, as after a kill of 5.3.3's. Here no entry is lost, and readers see offsets that rise."""
    apaches, ours = leader(), opened(disk := MemoryDisk(), "n1")
    old = [b"a", b"b", b"c", b"d", b"e"]
    apaches.append([record(body) for body in old], NOW_MS)
    apaches.append([record(b"other", queue_id=1)], NOW_MS)
    commit(apaches)
    apaches._next[ORDERS] = again
    places = apaches.append([record(b"new"), record(b"newer")], NOW_MS)
    assert [place.queue_offset for place in places] == [again, again + 1]
    copy(apaches, ours)
    commit(ours)
    for _ in range(2):
        assert texts(ours) == [*old, b"new", b"newer"]
        assert texts(ours, queue_id=1) == [b"other"]
        records = ours.read(*ORDERS, 0, 32, 1 << 20).records
        assert [decode_record(bytes(one))[0].queue_offset for one in records] == list(range(7))
        assert decode_record(ours.read_at(places[1].physical_offset))[0].body == b"newer"
        if start == "clean":
            ours.close()
        else:
            ours.abandon()
        if start == "without queues":
            disk.remove("consumequeue")
        ours = opened(disk, "n1")
        commit(ours)
    apaches.close()


def test_a_queue_that_apaches_leader_forgot() -> None:
    """All records of one queue expired, and it begins at 0 again: the other queues of its topic keep their entries."""
    apaches, ours = leader(), opened(disk := MemoryDisk(), "n1")
    apaches.append([FIRST_RECORD, record(b"old"), record(b"older")], NOW_MS)
    while apaches.ledger.end_position < 2 * CONFIG.segment_size:
        apaches.append([record(bytes(4_000), queue_id=1)], NOW_MS)
    commit(apaches)
    copy(apaches, ours)
    commit(ours)
    for store in (apaches, ours):
        store.ledger.begin_flush()()
        assert store.expire(NOW_MS + 1_000 * 3_600_000, at_any_hour=True) > 0
        assert texts(store) == []
    kept = texts(ours, queue_id=1)
    assert kept
    apaches._next[ORDERS] = 0
    apaches.append([record(b"new"), record(b"newer")], NOW_MS)
    copy(apaches, ours)
    commit(ours)
    for _ in range(2):
        assert (ours.min_offset(*ORDERS), ours.max_offset(*ORDERS)) == (0, 2)
        assert texts(ours) == [b"new", b"newer"]
        assert texts(ours, queue_id=1) == kept
        ours.close()
        ours = opened(disk, "n1")
    apaches.close()


def test_the_majority_decides_what_is_flushed() -> None:
    """A flush of the store waits for nobody, and returns what is committed and visible."""
    store = leader()
    (ticket,) = store.append([record(b"a")], NOW_MS)
    flush = store.begin_flush()
    assert flush() == 0
    commit(store)
    assert flush() == ticket.end_offset
    store.close()


def test_folders_of_others_are_refused() -> None:
    """A plain CommitLog, another member, another group; and a plain store refuses a member's folder."""
    disk = MemoryDisk()
    disk.replace("commitlog/00000000000000000000", b"x")
    with pytest.raises(StoreError, match="plain CommitLog in front"):
        opened(disk)
    disk = MemoryDisk()
    store = leader(disk)
    store.append([record(b"a")], NOW_MS)
    store.close()
    with pytest.raises(StoreError, match="correct dLegerSelfId"):
        opened(disk, "n1")
    with pytest.raises(StoreError, match="correct dLegerGroup"):
        LedgerStore(disk, CONFIG, self_id="n0", group="broker-b")


class TwoMembers:
    """Two members whose leader changes, and that crash. committed: the bodies; written: those and the leader's tail."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disks = {"n0": MemoryDisk(), "n1": MemoryDisk()}
        self.stores = {name: opened(disk, name) for name, disk in self.disks.items()}
        self.committed: list[bytes] = []
        self.written: list[bytes] = []
        self.term = 0
        self.leads = "n0"

    @property
    def follower(self) -> str:
        return "n1" if self.leads == "n0" else "n0"

    def elect(self) -> None:
        """Begin a term; what is not committed is cut."""
        self.term += 1
        self.leads = self.chance.choice(sorted(self.stores))
        for store in self.stores.values():
            store.step_down()
            store.follow()
            if store.ledger.end_index >= len(self.committed) > 0:
                store.ledger.truncate(len(self.committed) - 1)
            store.ledger.set_term(self.term, self.leads)
            commit(store, len(self.committed) - 1)
        self.written = self.committed[:]
        self.stores[self.leads].lead(Open())

    def append(self, step: int) -> None:
        count = self.chance.randrange(1, 4)
        new = [b"%d-%d-%d" % (self.term, step, one) + bytes(self.chance.randrange(2_000)) for one in range(count)]
        self.stores[self.leads].append([record(body, tag=self.chance.choice("AB")) for body in new], NOW_MS + step)
        self.written += new

    def replicate(self) -> None:
        """Give all to the follower; commit some of it, as far as both, one or none know."""
        copy(self.stores[self.leads], self.stores[self.follower])
        self.committed = self.written[: self.chance.randrange(len(self.committed), len(self.written) + 1)]
        for name in self.chance.sample(sorted(self.stores), self.chance.randrange(3)):
            commit(self.stores[name], len(self.committed) - 1)

    def write(self) -> None:
        store = self.stores[self.chance.choice(sorted(self.stores))]
        store.write_queues(sync=self.chance.random() < 0.5)
        store.ledger.begin_flush()()

    def restart(self) -> None:
        name = self.chance.choice(sorted(self.stores))
        if self.chance.random() < 0.5:
            self.stores[name].abandon()
        else:
            self.stores[name].close()
        self.stores[name] = opened(self.disks[name], name)
        self.check()
        self.elect()

    def check(self) -> None:
        for name, store in self.stores.items():
            found = texts(store)
            assert found == self.committed[: len(found)], name


@pytest.mark.parametrize("seed", range(12))
def test_any_history_equals_a_list(seed: int) -> None:
    """Changes of the leader with tails that are cut, crashes and clean stops at any place: each member shows exactly a
    beginning of what was committed, and once it knows of the rest, all of it."""
    members = TwoMembers(seed)
    members.elect()
    for step in range(60):
        kind = members.chance.random()
        if kind < 0.5:
            members.append(step)
        elif kind < 0.75:
            members.replicate()
        elif kind < 0.85:
            members.write()
        elif members.committed:
            members.restart()
        members.check()
    members.replicate()
    members.elect()
    for store in members.stores.values():
        assert texts(store) == members.committed
        store.close()


def test_a_large_commit_is_shown_in_parts() -> None:
    """So that a member that was away does not hold up its heartbeats."""
    store = leader()
    store.append([record(b"%d" % number) for number in range(30)], NOW_MS)
    store.ledger.committed_index = 29
    shown = []
    while not store.is_current:
        store.advance(7)
        shown.append(store.max_offset(*ORDERS))
    assert shown == [7, 14, 21, 28, 30]
    store.close()


def test_records_are_what_apache_would_write() -> None:
    """The record's own place is behind the entry's head, as DLedgerCommitLog has it."""
    store = leader()
    (ticket,) = store.append(
        [PendingRecord("orders", 3, b"body", b"TAGS\x01A\x02", tags_code("A"), NOW_MS, BORN_HOST)], NOW_MS
    )
    commit(store)
    message, _ = decode_record(store.read_at(ticket.physical_offset))
    entry = store.ledger.entry(0)
    assert entry is not None
    assert (entry.position + 48, entry.end) == (message.physical_offset, ticket.end_offset)
    assert store.entries("orders", 3, 0, 1) == [(48, ticket.size, tags_code("A"))]
    store.close()
