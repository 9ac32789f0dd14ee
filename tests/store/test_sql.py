"""What the store on tables promises beyond the contract: tables for people, order of commits, one writer, clean-up."""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pytest
from sqlalchemy import Connection, Engine, event

from mqtrail.store import LogDiffers, MemoryDisk, PendingRecord, RealDisk, Retention, StoreBroken, StoreError, StoreFull
from mqtrail.store.sql import SqlStore, look_at
from mqtrail.store.sql.engines import addresses_of, parse, shown_url
from mqtrail.store.sql.queues import Allotment, TableQueue
from mqtrail.wire import InvalidParameter, QueryNotFound, decode_record

from .kinds import CONFIG, sqlite_url
from .test_contract import NOW_MS, bodies, record

EVERYTHING = 1 << 20
JOIN_S = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(opened(tmp_path)) as made:
        yield made


def opened(folder: Path) -> SqlStore:
    return SqlStore(RealDisk(folder), sqlite_url(folder), CONFIG)


def crashed(store: SqlStore, folder: Path) -> SqlStore:
    store.abandon()
    return opened(folder)


@pytest.fixture
def sql(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection to the database."""
    with closing(sqlite3.connect(tmp_path / "messages.db", isolation_level=None)) as connection:
        yield connection


def count(sql: sqlite3.Connection, table: str) -> int:
    (number,) = sql.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(number)


def test_a_queue_is_a_table_that_people_can_read(store: SqlStore, sql: sqlite3.Connection) -> None:
    """Its rows have the queue offset as id, and the fields of a message as columns."""
    store.append([record(b"red", tag="A", KEYS="k1 k2", UNIQ_KEY="ID1"), record(b"blue")], NOW_MS)
    store.append([record(b"green", queue_id=1)], NOW_MS)
    store.flush()
    tables = dict(sql.execute("SELECT queue_id, table_name FROM mqtrail_queue WHERE topic = 'orders'"))
    rows = sql.execute(f"SELECT id, msg_id, tag, msg_keys, CAST(body AS TEXT), store_ms FROM {tables[0]}").fetchall()
    assert rows == [(0, "ID1", "A", "k1 k2", "red", NOW_MS), (1, None, None, None, "blue", NOW_MS)]
    assert sql.execute(f"SELECT CAST(body AS TEXT) FROM {tables[1]}").fetchall() == [("green",)]


def test_one_commit_serves_all_appends_before_it(store: SqlStore, sql: sqlite3.Connection) -> None:
    """Group commit: SQLite counts one change of the database for appends to several queues."""
    for number in range(3):
        store.append([record(queue_id=number)], NOW_MS)  # makes the tables
    store.flush()
    (before,) = sql.execute("PRAGMA data_version").fetchone()
    tickets = [store.append([record(b"%d" % n, queue_id=n % 3)], NOW_MS)[0] for n in range(30)]
    job = store.begin_flush()
    (later,) = store.append([record(b"later")], NOW_MS)
    assert job() == tickets[-1].end_offset == store.flushed_offset < later.end_offset
    (after,) = sql.execute("PRAGMA data_version").fetchone()
    assert (count(sql, "mqtrail_place"), after) == (33, before + 1)


def test_a_commit_notes_the_ends_of_its_queues_together(store: SqlStore, sql: sqlite3.Connection) -> None:
    """Not with a statement for each queue, of which a batch of senders may reach hundreds."""
    queues, statements = range(70), list[str]()

    def note(connection: object, cursor: object, statement: str, *others: object) -> None:
        statements.append(statement)

    for _ in range(2):  # the first commit makes the tables
        statements.clear()
        store.append([record(b"x", queue_id=number) for number in queues for _ in range(number % 3 + 1)], NOW_MS)
        event.listen(Engine, "before_cursor_execute", note)
        try:
            store.flush()
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert sum(one.startswith("UPDATE mqtrail_queue") for one in statements) == 2, "64 queues each"
    assert len(statements) < len(queues) + 10
    found = sql.execute("SELECT queue_id, next_offset FROM mqtrail_queue WHERE topic = 'orders'").fetchall()
    assert dict(found) == {number: 2 * (number % 3 + 1) for number in queues}


def test_a_commit_that_is_held_up_shows_no_row_and_loses_no_order(store: SqlStore, sql: sqlite3.Connection) -> None:
    """While a transaction waits, appends go on, and readers elsewhere see none of them; then all, in order."""
    store.append([record(b"0")], NOW_MS)
    store.flush()
    sql.execute("BEGIN IMMEDIATE")
    for number in range(1, 4):
        store.append([record(b"%d" % number)], NOW_MS)
    job = store.begin_flush()
    thread = threading.Thread(target=job)
    thread.start()
    store.append([record(b"4")], NOW_MS)
    assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2", b"3", b"4"]
    assert store.flushed_offset < store.end_offset
    assert count(sql, "message_0001") == 1
    sql.execute("ROLLBACK")
    thread.join(JOIN_S)
    assert [place for (place,) in sql.execute("SELECT id FROM message_0001 ORDER BY id")] == [0, 1, 2, 3]
    assert store.flush() == store.end_offset
    assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_job_that_runs_late_commits_nothing_twice(store: SqlStore, sql: sqlite3.Connection) -> None:
    """A flush by the caller commits what an earlier job was to commit, in order; the job then finds nothing."""
    store.append([record(b"0")], NOW_MS)
    job = store.begin_flush()
    store.append([record(b"1")], NOW_MS)
    assert store.flush() == store.end_offset == job()
    assert count(sql, "message_0001") == 2


def test_reads_during_commits_miss_nothing(store: SqlStore) -> None:
    """Records move from memory to a table without a moment in which a read has none or two of them."""
    jobs: SimpleQueue[Callable[[], int] | None] = SimpleQueue()

    def commit() -> None:
        while (job := jobs.get()) is not None:
            job()

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        for number in range(150):
            store.append([record(b"%d" % number)], NOW_MS)
            if jobs.empty():
                jobs.put(store.begin_flush())
            first = max(0, number - 20)
            found = bodies(store.read("orders", 0, first, 50, EVERYTHING).records)
            assert found == [b"%d" % each for each in range(first, number + 1)]
    finally:
        jobs.put(None)
        thread.join(JOIN_S)


def test_a_crash_loses_what_was_not_committed_and_nothing_else(tmp_path: Path) -> None:
    """Places that were never committed are given again; the store says that its stop was not clean."""
    store = opened(tmp_path)
    (kept,) = store.append([record(b"kept", UNIQ_KEY="K")], NOW_MS)
    store.flush()
    store.append([record(b"lost", UNIQ_KEY="L"), record(b"lost", topic="new")], NOW_MS)
    store = crashed(store, tmp_path)
    with closing(store):
        assert (store.recovery.unclean, store.recovery.first_start) == (True, False)
        assert store.end_offset == store.flushed_offset == kept.end_offset
        assert store.topics() == ["orders"]
        assert not store.query("orders", "L", 9, 0, 1 << 62).records
        (ticket,) = store.append([record(b"next")], NOW_MS - 1)
        assert (ticket.queue_offset, ticket.physical_offset) == (1, kept.end_offset)
        assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"kept", b"next"]
        assert store.store_time("orders", 0, 1) == NOW_MS
    with closing(opened(tmp_path)) as store:
        assert not store.recovery.unclean


def test_only_its_owner_can_read_the_database(tmp_path: Path) -> None:
    """Its file and those beside it, in a folder that others can enter; a mode that an operator chose stays."""
    before = os.umask(0o022)
    try:
        with closing(opened(tmp_path)) as store:
            store.append([record(b"one")], NOW_MS)
            store.flush()
            files = list(tmp_path.glob("messages.db*"))
            assert [file.name for file in files if file.stat().st_mode & 0o077] == []
            assert files
        (tmp_path / "messages.db").chmod(0o640)
        with closing(opened(tmp_path)) as store:
            assert store.end_offset
        assert (tmp_path / "messages.db").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_a_second_writer_ends_the_first(tmp_path: Path) -> None:
    """A process that opens the database later takes it over: nothing of the earlier one is committed any more."""
    with closing(opened(tmp_path)) as first:
        first.append([record(b"first")], NOW_MS)
        first.flush()
        late = first.begin_flush()
        with closing(SqlStore(MemoryDisk(), sqlite_url(tmp_path), CONFIG)) as second:
            first.append([record(b"never")], NOW_MS)
            with pytest.raises(StoreBroken, match="another process opened the database"):
                first.flush()
            late()
            for refused in (first.begin_flush, lambda: first.append([record()], NOW_MS)):
                with pytest.raises(StoreBroken):
                    refused()
            second.append([record(b"second")], NOW_MS)
            second.flush()
            assert bodies(second.read("orders", 0, 0, 9, EVERYTHING).records) == [b"first", b"second"]


@pytest.mark.parametrize("crashes", [False, True])
def test_tables_of_a_deleted_topic_are_emptied_and_used_again(
    tmp_path: Path, sql: sqlite3.Connection, crashes: bool
) -> None:
    """A deletion is durable with the next commit; rows, keys and places go, also after a crash in between."""
    store = opened(tmp_path)
    (ticket,) = store.append([record(UNIQ_KEY="ID")], NOW_MS)
    store.flush()
    store.append([record(b"waits", UNIQ_KEY="ID2")], NOW_MS)
    store.delete_topic("orders")
    store.write_queues()
    assert count(sql, "message_0001") == 1, "its last record is not committed, so the table waits"
    (after,) = store.append([record(b"again")], NOW_MS)
    assert after.queue_offset == 0
    store.flush()
    if crashes:
        store = crashed(store, tmp_path)
    with closing(store):
        with pytest.raises(QueryNotFound):
            store.read_at(ticket.physical_offset)
        store.write_queues()
        assert [count(sql, name) for name in ("message_0001", "mqtrail_key", "mqtrail_place")] == [0, 0, 1]
        assert sql.execute("SELECT state, topic FROM mqtrail_queue WHERE id = 1").fetchall() == [("free", None)]
        assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"again"]
        for number in range(15):
            store.append([record(topic=f"t{number}")], NOW_MS)
        store.flush()
        assert count(sql, "mqtrail_queue") == 16, "the emptied table was used before new ones were made"


def test_a_table_that_was_emptied_before_the_deletion_was_committed_is_its_next_queues(tmp_path: Path) -> None:
    """The commit that records a deletion does not release the table again that another queue has by then."""
    with closing(opened(tmp_path)) as store:
        store.append([record(b"old")], NOW_MS)
        store.flush()
        store.delete_topic("orders")
        store.write_queues()
        for number in range(16):  # the tables that were made at first, and at last the emptied one
            store.append([record(b"new", topic=f"t{number}")], NOW_MS)
        store.flush()
    with closing(opened(tmp_path)) as store:
        found = [bodies(store.read(f"t{number}", 0, 0, 9, EVERYTHING).records) for number in range(16)]
        assert found == [[b"new"]] * 16


def test_a_table_that_becomes_free_during_a_commit(tmp_path: Path, sql: sqlite3.Connection) -> None:
    """The commit chose its tables before, and takes just these; the next new queue gets the one that was freed."""
    with closing(opened(tmp_path)) as store:
        store.append([record()], NOW_MS)
        store.flush()
        store._nodes.home.queues.free.clear()  # as if all tables were used
        store.append([record(b"new", topic="new")], NOW_MS)
        job = store.begin_flush()
        choose = store._nodes.home.queues.allot

        def and_free_one(connection: Connection, queues: Sequence[TableQueue]) -> Allotment:
            chosen = choose(connection, queues)
            store._nodes.home.queues.free.append(4)  # as `write_queues` does when its transaction has ended
            return chosen

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store._nodes.home.queues, "allot", and_free_one)
            job()
        store.append([record(b"next", topic="next")], NOW_MS)
        store.flush()
        assert dict(sql.execute("SELECT topic, id FROM mqtrail_queue WHERE topic IN ('new', 'next')")) == {
            "new": 17,
            "next": 4,
        }


def test_records_of_a_deleted_topic_that_wait_for_their_first_table(tmp_path: Path) -> None:
    """They are committed, and their table is emptied: the topic does not come back."""
    with closing(opened(tmp_path)) as store:
        (ticket,) = store.append([record(b"gone")], NOW_MS)
        store.delete_topic("orders")
        (after,) = store.append([record(b"kept")], NOW_MS)
        store.flush()
        store.write_queues()
        assert (ticket.queue_offset, after.queue_offset) == (0, 0)
    with closing(opened(tmp_path)) as store:
        assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"kept"]
        with pytest.raises(QueryNotFound):
            store.read_at(ticket.physical_offset)


def test_what_waits_for_a_commit_is_bounded(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is away does not fill the memory."""
    monkeypatch.setattr("mqtrail.store.sql.appending.WAITING_SIZE_MAX", 1_000)
    store.append([record(bytes(2_000))], NOW_MS)
    with pytest.raises(StoreFull, match="wait for a commit"):
        store.append([record()], NOW_MS)
    store.flush()
    store.append([record()], NOW_MS)


def test_a_query_finds_committed_records_behind_many_that_wait(store: SqlStore) -> None:
    """A request that is repeated while the database is slow is found by its key, so that it is not stored twice."""
    store.append([record(b"committed", KEYS="k")], NOW_MS)
    store.flush()
    store.append([record(b"waits", KEYS="k")], NOW_MS)
    for _ in range(10):
        store.append([record(b"x", KEYS="another k1")] * 500, NOW_MS)
    slices = store.query_in_slices("orders", "k", 64, 0, NOW_MS + 1)
    pauses = 0
    try:
        while True:
            next(slices)
            pauses += 1
    except StopIteration as end:
        found = end.value
    assert bodies(found.records) == [b"committed", b"waits"]
    assert pauses > 2


def test_expired_messages_leave_their_tables(tmp_path: Path, sql: sqlite3.Connection) -> None:
    """Rows older than the retention go with their keys and places; what is not committed stays."""
    with closing(opened(tmp_path)) as store:
        store.retention = Retention(retention_ms=1_000)
        store.append([record(b"old", UNIQ_KEY="OLD")], NOW_MS)
        store.append([record(b"prepared")._replace(sys_flag=4)], NOW_MS)
        store.append([record(b"new", UNIQ_KEY="NEW")], NOW_MS + 5_000)
        assert store.expire(NOW_MS + 5_500, at_any_hour=True) == 0, "nothing is committed yet"
        store.flush()
        assert store.expire(NOW_MS + 5_500, at_any_hour=True) > 0
        assert store.min_physical_offset == store.entries("orders", 0, 1, 1)[0][0]
    with closing(opened(tmp_path)) as store:
        assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (1, 2)
        assert store.read("orders", 0, 0, 9, EVERYTHING).status == "OFFSET_TOO_SMALL"
        assert bodies(store.read("orders", 0, 1, 9, EVERYTHING).records) == [b"new"]
        assert [len(store.query("orders", key, 9, 0, 1 << 62).records) for key in ("OLD", "NEW")] == [0, 1]
    names = ("message_0001", "mqtrail_key", "mqtrail_place", "mqtrail_unqueued")
    assert [count(sql, name) for name in names] == [1, 1, 1, 0]


def test_retention_waits_for_its_hours(store: SqlStore) -> None:
    """Outside of delete_hours nothing expires as long as the disk has space."""
    store.retention = Retention(retention_ms=0, delete_hours=(), expire_ratio=1.0)
    store.append([record()], NOW_MS)
    store.flush()
    assert store.expire(NOW_MS + 5_000) == 0
    assert store.expire(NOW_MS + 5_000, at_any_hour=True) > 0


def test_a_row_removed_by_hand_is_skipped(store: SqlStore, sql: sqlite3.Connection) -> None:
    """A gap does not stop a reader: the next row follows."""
    for number in range(3):
        store.append([record(b"%d" % number)], NOW_MS)
    store.flush()
    sql.execute("DELETE FROM message_0001 WHERE id < 2")
    found = store.read("orders", 0, 0, 1, EVERYTHING)
    assert (bodies(found.records), found.next_queue_offset) == ([b"2"], 3)
    assert store.store_time("orders", 0, 0) == -1


def test_reads_end_at_a_position_of_the_log(store: SqlStore) -> None:
    """end_offset hides later records, committed or not."""
    tickets = [store.append([record(b"%d" % number)], NOW_MS)[0] for number in range(3)]
    store.flush()
    tickets += store.append([record(b"3")], NOW_MS)
    for visible in range(5):
        end = tickets[visible - 1].end_offset if visible else 0
        found = store.read("orders", 0, 0, 9, EVERYTHING, end_offset=end)
        assert (len(found.records), found.max_offset) == (visible, visible)


def test_a_body_of_any_bytes_and_ipv6_hosts_come_back_as_they_were(store: SqlStore) -> None:
    """Rows give the same record byte for byte, whatever it holds."""
    sent = PendingRecord(
        "orders", 3, bytes(range(256)) * 4, b"TAGS\x01\xff\xfe\x02odd", -5, 7, bytes(20), -1, 0x30 | 0x8, 2, 99
    )
    (ticket,) = store.append([sent], NOW_MS)
    before = store.read_at(ticket.physical_offset)
    store.flush()
    assert store.read_at(ticket.physical_offset) == before
    assert decode_record(before)[0].body == sent.body


def test_a_copy_of_the_log_is_refused(store: SqlStore) -> None:
    """There is no CommitLog that a slave could follow."""
    for call in (lambda: store.log_bytes(0, 1), lambda: store.append_copy(0, b""), lambda: store.truncate(0)):
        with pytest.raises(LogDiffers, match="replicate the database"):
            call()


@pytest.mark.parametrize(
    "url", ["", "orders.db", "sqlite://", "sqlite:///:memory:", "sqlite:///x?mode=ro", "oracle://host/db", "a b://"]
)
def test_unusable_urls_are_refused(url: str) -> None:
    """Each with what is expected."""
    with pytest.raises(InvalidParameter, match="expected"):
        SqlStore(MemoryDisk(), url)


def test_unusable_databases_are_refused(tmp_path: Path) -> None:
    """A file that is no database, a missing folder, other tables, another version: each in words, none changed."""
    (tmp_path / "no.db").write_bytes(b"not a database at all" * 100)
    for url in (f"sqlite:///{tmp_path}/no.db", f"sqlite:///{tmp_path}/missing/x.db"):
        with pytest.raises(StoreError, match="cannot be opened"):
            SqlStore(MemoryDisk(), url)
    opened(tmp_path).close()
    for statement, found in (
        ("UPDATE mqtrail_store SET version = 99", "found tables of version 99"),
        ("ALTER TABLE mqtrail_place ADD COLUMN mine INTEGER", "found the columns mine, "),
        ("DROP TABLE mqtrail_key", "found a database without the table mqtrail_key"),
    ):
        with closing(sqlite3.connect(tmp_path / "messages.db")) as other:
            other.execute(statement)
            other.commit()
        with pytest.raises(StoreError, match=found):
            opened(tmp_path)


def test_facts_for_operators(tmp_path: Path) -> None:
    """Looking takes over nothing, makes no file, and shows what is committed, beside a broker and without one."""
    url = sqlite_url(tmp_path)
    with pytest.raises(StoreError, match="cannot be read"):
        look_at(url)
    assert not (tmp_path / "messages.db").exists()
    with closing(opened(tmp_path)) as store:
        store.append([record(b"red"), record(b"blue"), record(b"green", queue_id=1)], NOW_MS)
        store.flush()
        store.append([record(b"not committed")], NOW_MS)
        found = look_at(url, queues=True, sizes=True)
        assert found.queues is not None
        used = {one.queue: one for one in found.queues if one.state == "used"}
        assert [(one.topic, one.first, one.next, one.last_stored_ms) for one in used.values()] == [
            ("orders", 0, 2, NOW_MS),
            ("orders", 0, 1, NOW_MS),
        ]
        assert all(one.size is None or one.size > 0 for one in found.queues)
        assert (found.dialect, found.writer, found.tables_by_state) == (
            "sqlite",
            1,
            {"free": 14, "used": 2, "released": 0},
        )
        store.flush()  # it is still the writer
    assert look_at(url).committed_size > found.committed_size


def test_facts_of_other_databases(tmp_path: Path) -> None:
    """A database without messages, or with tables of another version, is refused."""
    path = tmp_path / "messages.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE others (id INTEGER)")
        with pytest.raises(StoreError, match="found no messages of mqtrail"):
            look_at(sqlite_url(tmp_path))
        connection.execute("DROP TABLE others")
    with closing(opened(tmp_path)):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE mqtrail_store SET version = 99")
    with pytest.raises(StoreError, match="found tables of version 99"):
        look_at(sqlite_url(tmp_path))


def test_who_the_writer_is(tmp_path: Path, sql: sqlite3.Connection) -> None:
    """Each start is noted with the clock of the database; a database of an earlier version gets the table."""
    with closing(opened(tmp_path)):
        pass
    sql.execute("DROP TABLE mqtrail_writer")
    assert look_at(sqlite_url(tmp_path)).writers == ()
    for _ in range(2):
        with closing(opened(tmp_path)):
            pass
    found = look_at(sqlite_url(tmp_path))
    assert [one.writer for one in found.writers] == [3, 2]
    assert (found.writer, found.writers[0].pid, found.writers[0].host) == (3, os.getpid(), os.uname().nodename)
    assert found.writers[1].started_ms <= found.writers[0].started_ms <= found.clock_ms
    sql.execute("UPDATE mqtrail_store SET writer = 500")
    with closing(opened(tmp_path)):
        pass
    assert [one.writer for one in look_at(sqlite_url(tmp_path)).writers] == [501]


def test_a_url_may_have_several_addresses() -> None:
    """As in the URLs of libpq: parted by commas. The password is not shown, and an address must be one."""
    found = parse("postgresql://u:p%40s,x@h1:5432,h2,[::1]:7/orders?sslmode=require")
    assert addresses_of(found) == [("h1", 5432), ("h2", None), ("::1", 7)]
    assert shown_url(found) == "postgresql://u:***@h1:5432,h2,[::1]:7/orders?sslmode=require"
    assert addresses_of(parse("mysql://u@h1/orders")) == [("h1", None)]
    assert parse("sqlite:////tmp/a,b.db").database == "/tmp/a,b.db"
    for wrong in ("h 2", "h2:port", "", "[h2"):
        with pytest.raises(InvalidParameter, match=r"found the address .* expected host or host:port"):
            parse(f"mysql://u:secret@h1,{wrong}/orders")
