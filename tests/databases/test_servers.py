"""What the store on tables promises on database servers: order, one writer, broken connections, refusals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, text

from mqtrail.node.in_time import InTime
from mqtrail.store import MemoryDisk, StoreAway, StoreBroken, StoreError
from mqtrail.store.sql import SqlStore, look_at
from mqtrail.wire import InvalidParameter, tags_code
from tests.ports import free_ports
from tests.store.kinds import CONFIG
from tests.store.test_contract import NOW_MS, bodies, record

from .relay import Cut, Relay
from .servers import DatabaseServer, server

pytestmark = pytest.mark.databases

EVERYTHING = 1 << 20
JOIN_S = 60.0
LOCK = "SELECT writer FROM mqtrail_store FOR UPDATE"


def opened(url: str) -> SqlStore:
    return SqlStore(MemoryDisk(), url, CONFIG)


@pytest.fixture
def url(database: DatabaseServer) -> str:
    return database.new_database()


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    made = opened(url)
    yield made
    made.abandon()


def ids(database: DatabaseServer, url: str, table: str = "message_0001") -> list[int]:
    """Return the ids that another program sees in a table."""
    found = database.sql(lambda connection: connection.execute(text(f"SELECT id FROM {table} ORDER BY id")).all(), url)
    return [number for (number,) in found]


class Thread(threading.Thread):
    """A thread whose `result` is what its function returned."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._result: Any = None
        self.start()

    def run(self) -> None:
        """Call the function."""
        try:
            self._result = self._act()
        except Exception as error:
            self._result = error

    def result(self) -> Any:
        """Wait for it."""
        self.join(JOIN_S)
        assert not self.is_alive()
        return self._result


def flush_until_back(store: SqlStore) -> int:
    """Flush as the broker's flusher does, until the database is back; return how often it was away."""
    deadline_s, away = time.monotonic() + JOIN_S, 0
    while time.monotonic() < deadline_s:
        try:
            store.begin_flush()()
            return away
        except StoreAway:
            away += 1
            time.sleep(0.05)
    raise AssertionError(f"the database is still away: {store.away}")


def waits_for_lock(database: DatabaseServer) -> None:
    """Wait until a statement of a store waits for a lock.

    InnoDB fills its table of transactions anew only if it was not read for 100 ms: asked more often, it never changes.
    """
    deadline_s = time.monotonic() + JOIN_S
    while not database.sql(lambda connection: connection.execute(text(database.lock_waits)).scalar_one()):
        assert time.monotonic() < deadline_s
        time.sleep(0.15)


def test_a_transaction_held_open_shows_no_row_and_loses_no_order(
    database: DatabaseServer, url: str, store: SqlStore
) -> None:
    """While a transaction has not ended, no reader sees a later row; afterwards all are there, in order."""
    store.append([record(b"0")], NOW_MS)
    store.flush()

    def hold(connection: Any) -> None:
        with database.begin(connection):
            connection.execute(text(LOCK))
            for number in range(1, 4):
                store.append([record(b"%d" % number)], NOW_MS)
            thread.append(Thread(store.begin_flush()))
            waits_for_lock(database)
            store.append([record(b"4")], NOW_MS)
            assert ids(database, url) == [0]
            assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2", b"3", b"4"]
            assert store.flushed_offset < store.end_offset

    thread: list[Thread] = []
    database.sql(hold, url)
    thread[0].result()
    assert ids(database, url) == [0, 1, 2, 3]
    assert store.flush() == store.end_offset
    assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("commits", [False, True])
def test_a_new_writer_waits_for_the_transaction_of_the_old_one(
    database: DatabaseServer, url: str, store: SqlStore, commits: bool
) -> None:
    """A start while the earlier process is in the middle of a commit knows what became of it: no row twice, none
    passed over."""
    store.append([record(b"0")], NOW_MS)
    store.flush()
    late: list[Thread] = []
    with pytest.raises(_Undone) if not commits else nullcontext(), store._database.transaction() as connection:
        end = store.end_offset + 100
        connection.execute(text(f"UPDATE mqtrail_store SET end_offset = {end}"))
        late.append(Thread(lambda: opened(url)))
        waits_for_lock(database)
        if not commits:
            raise _Undone
    with closing(late[0].result()) as second:
        assert second.end_offset == (end if commits else store.end_offset)
        store.append([record(b"never")], NOW_MS)
        with pytest.raises(StoreBroken, match="another process opened the database"):
            store.flush()
        second.append([record(b"1")], NOW_MS)
        second.flush()
        assert ids(database, url) == [0, 1]


class _Undone(Exception):
    pass


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_a_connection_lost_in_a_commit_neither_loses_nor_doubles(database: DatabaseServer, url: str, cut: Cut) -> None:
    """The database tells whether the COMMIT arrived: the rows are there once, and are acknowledged only then."""
    with Relay(database.port) as relay:
        store = opened(url.replace(f":{database.port}/", f":{relay.port}/"))
        try:
            store.append([record(b"0")], NOW_MS)
            store.flush()
            relay.cut = cut
            for number in range(1, 4):  # the last of them needs a new table
                store.append([record(b"%d" % number, queue_id=number // 3, KEYS="k")], NOW_MS)
            with pytest.raises(StoreAway):
                store.begin_flush()()
            assert relay.cut is Cut.NEVER
            assert store.flushed_offset < store.end_offset
            with pytest.raises(StoreAway):
                store.read_at(0)
            store.append([record(b"4")], NOW_MS)
            flush_until_back(store)
            assert store.flushed_offset == store.end_offset
            assert ids(database, url) == [0, 1, 2, 3]
            assert ids(database, url, "message_0002") == [0]
            assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2", b"4"]
            assert len(store.query("orders", "k", 9, 0, 1 << 62).records) == 3
        finally:
            store.abandon()
    with closing(opened(url)) as store:
        assert [store.max_offset("orders", queue_id) for queue_id in (0, 1)] == [4, 1]


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_a_server_that_ends_and_comes_back(database: DatabaseServer, url: str, store: SqlStore, ends: str) -> None:
    """What was acknowledged is there; what waited is committed when the server is back; nothing is there twice."""
    store.append([record(b"0")], NOW_MS)
    store.flush()
    getattr(database, ends)()
    try:
        store.append([record(b"1"), record(b"2")], NOW_MS)
        with pytest.raises(StoreAway):
            store.begin_flush()()
        assert store.fault is None
    finally:
        database.start()
    store.append([record(b"3")], NOW_MS)
    flush_until_back(store)
    assert ids(database, url) == [0, 1, 2, 3]
    assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0", b"1", b"2", b"3"]


def test_a_server_that_hangs_stops_reads_only_once(database: DatabaseServer, url: str) -> None:
    """A read gives up after a time; later ones fail at once until a flush has found the server again."""
    store = SqlStore(MemoryDisk(), url, CONFIG, InTime(0.5))
    try:
        store.append([record(b"0")], NOW_MS)
        store.flush()
        assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0"]
        database.pause()
        try:
            for _ in range(200):  # far more than could wait 0.5 s each
                with pytest.raises(StoreAway):
                    store.read("orders", 0, 0, 9, EVERYTHING)
        finally:
            database.resume()
        flush_until_back(store)
        assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [b"0"]
    finally:
        store.abandon()


def test_a_silent_server_does_not_hold_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's library would wait for ever; the connection is given up, and the next one commits once."""
    monkeypatch.setattr("mqtrail.store.sql.engines.SILENCE_S", 0.5)
    database = server("postgresql")
    url = database.new_database()
    store = opened(url)
    try:
        store.append([record(b"0")], NOW_MS)
        store.flush()
        store.append([record(b"1")], NOW_MS)
        database.pause()
        try:
            with pytest.raises(StoreAway, match=r"silent for 0.5 s"):
                store.begin_flush()()
        finally:
            database.resume()
        flush_until_back(store)
        assert ids(database, url) == [0, 1]
    finally:
        store.abandon()


def test_a_database_that_lost_commits_is_not_continued(database: DatabaseServer, url: str, store: SqlStore) -> None:
    """After a fail-over to a replica that lags, the store stops: acknowledged rows are missing there."""
    store.append([record(b"0")], NOW_MS)
    store.flush()
    store.append([record(b"1")], NOW_MS)
    database.sql(lambda connection: connection.execute(text("UPDATE mqtrail_store SET end_offset = 0")), url)
    with pytest.raises(StoreBroken, match="commits are lost"):
        store.flush()
    assert store.fault is not None


def test_unusable_servers_are_refused(database: DatabaseServer, url: str) -> None:
    """Each with found, expected, remedy; none is changed, and no password is shown."""
    name = url.rpartition("/")[2]
    for wrong, found in (
        (database.url(name, password="wrong"), "authentication failed|Access denied"),
        (database.url("missing"), "does not exist|Unknown database"),
        (url.replace(f":{database.port}/", f":{free_ports(1)[0]}/"), "refused"),
        (url.replace("127.0.0.1", "no.such.host.invalid"), "resolve|not known|getaddrinfo"),
    ):
        with pytest.raises(StoreError, match=found) as caught:
            opened(wrong)
        assert "start it; check host, port, user and password" in str(caught.value)
        assert "secret" not in str(caught.value)
    for wrong, found in (
        (database.url(""), "without a database"),
        (f"{url}?charset=latin1", "found the option charset"),
        (url.replace("://", "+other://"), "expected sqlite:///"),
    ):
        with pytest.raises(InvalidParameter, match=found) as refused:
            opened(wrong)
        assert "secret" not in str(refused.value)


def test_a_user_without_rights_is_refused(database: DatabaseServer, url: str) -> None:
    """It may connect, but not create tables."""
    database.sql(partial(database.weak_user, "visitor"), url)
    with pytest.raises(StoreError, match=r"denied.*may create tables"):
        opened(database.url(url.rpartition("/")[2], "visitor"))
    with closing(opened(url)) as store:
        assert store.recovery.first_start


def test_tables_of_another_shape_or_version_are_refused(database: DatabaseServer, url: str) -> None:
    """Nothing is changed: another program or another version owns them."""
    opened(url).close()
    for statement, found in (
        ("UPDATE mqtrail_store SET version = 99", "found tables of version 99"),
        ("ALTER TABLE mqtrail_place ADD COLUMN mine INTEGER", "found the columns mine, "),
        ("DROP TABLE mqtrail_key", "found a database without the table mqtrail_key"),
    ):
        database.sql(partial(Connection.execute, statement=text(statement)), url)
        with pytest.raises(StoreError, match=found):
            opened(url)


def test_a_first_start_that_was_interrupted_is_completed(database: DatabaseServer, url: str) -> None:
    """Where a server commits each CREATE TABLE, some of the tables may be there."""
    opened(url).close()
    database.sql(lambda connection: connection.execute(text("DROP TABLE mqtrail_store")), url)
    with closing(opened(url)) as store:
        store.append([record(b"0")], NOW_MS)
        store.flush()
        assert store.recovery.first_start


def test_a_database_that_cannot_keep_any_text_is_refused() -> None:
    """PostgreSQL: its encoding belongs to the database. MySQL's belongs to our tables."""
    url = server("postgresql").new_database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreError, match=r"found a database with the encoding LATIN1, expected UTF8: .*ENCODING"):
        opened(url)


@pytest.mark.parametrize("tags", [None, frozenset({tags_code("A")}), frozenset({tags_code("none")})])
def test_what_is_fetched_ahead_is_what_is_read(url: str, tags: frozenset[int] | None) -> None:
    """A reader whose rows another thread fetches walks through the same records, committed or not."""
    with closing(SqlStore(MemoryDisk(), url, CONFIG, lambda act: act())) as store:
        for number in range(40):
            store.append([record(b"%d" % number, tag="A" if number % 3 else "B")], NOW_MS)
            if number == 30:
                store.flush()
        plain = store.read("orders", 0, 0, 100, EVERYTHING, tags).records
        walked, place, fetches = list[Any](), 0, 0
        while place < 40:
            fetch = store.begin_fetch("orders", 0, place, 7, tags)
            if fetch is not None:
                fetch()
                fetches += 1
            found = store.read("orders", 0, place, 7, EVERYTHING, tags)
            assert found.next_queue_offset > place
            walked += found.records
            place = found.next_queue_offset
        assert bodies(walked) == bodies(plain)
        assert fetches > 0
        assert store.begin_fetch("orders", 0, 31, 7, tags) is None, "it is in memory"
        assert store.begin_fetch("orders", 0, 99, 7, tags) is None


def test_a_queue_goes_on_without_its_table(database: DatabaseServer, url: str, store: SqlStore) -> None:
    """Its table is free again, and its next message has the next offset, also after a restart."""
    for number in range(3):
        store.append([record(b"%d" % number)], NOW_MS)
    store.flush()
    saved = store.release_table("orders", 0, 3)
    for _ in range(3):
        store.flush()
        store.begin_flush()()
        store.write_queues()
    assert saved()
    assert ids(database, url) == []
    store.close()
    with closing(opened(url)) as again:
        assert (again.min_offset("orders", 0), again.max_offset("orders", 0)) == (3, 3)
        again.append([record(b"3")], NOW_MS)
        again.flush()
        (used,) = (one for one in look_at(url, queues=True).queues or () if one.state == "used")
        assert (used.first, used.next, ids(database, url, used.table)) == (3, 4, [3])


def test_bytes_and_names_of_any_kind(store: SqlStore) -> None:
    """Bodies, tags and topics come back as they were, also what no text column takes."""
    sent = record(bytes(range(256)) * 40, topic="Ünïcode-訂單", tag="標籤\U0001f600", KEYS="k\0ey 'quoted' \\ %s :p")
    (ticket,) = store.append([sent], NOW_MS)
    before = bytes(store.read_at(ticket.physical_offset))
    store.flush()
    assert store.read_at(ticket.physical_offset) == before
    large = record(bytes(range(256)) * 100)
    store.append([large], NOW_MS)
    store.flush()
    assert bodies(store.read("orders", 0, 0, 9, EVERYTHING).records) == [large.body]


def test_facts_for_operators(store: SqlStore, url: str) -> None:
    """Server, sizes, connections and tables, beside the writer; the password is not shown."""
    store.append([record(b"red"), record(b"green", queue_id=1)], NOW_MS)
    store.flush()
    found = look_at(url, queues=True, sizes=True)
    assert found.queues is not None
    used = [one for one in found.queues if one.state == "used"]
    assert [(one.queue, one.next, one.last_stored_ms) for one in used] == [(0, 1, NOW_MS), (1, 1, NOW_MS)]
    assert all(one.size for one in used)
    assert found.size is not None
    assert found.connections is not None
    assert found.connections_max is not None
    assert (found.size > 0, 0 < found.connections <= found.connections_max) == (True, True)
    assert abs(found.clock_ms - time.time() * 1000) < 600_000
    assert "secret" not in found.database
    assert [one.writer for one in found.writers] == [found.writer]
    assert abs(found.writers[0].started_ms - found.clock_ms) < 600_000
