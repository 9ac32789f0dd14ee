"""Faults of database servers: deadlocks, full disks, no connections left, wrong clocks, a turn that is taken."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from mqtrail.node.in_time import InTime
from mqtrail.store import MemoryDisk, StoreAway, StoreBusy
from mqtrail.store.sql import NodeDatabase, SqlStore, look_at
from mqtrail.store.sql.engines import CLOCKS
from tests.store.kinds import CONFIG
from tests.store.test_contract import NOW_MS, bodies, record

from .servers import DatabaseServer, MariaDB, PostgreSQL
from .test_servers import EVERYTHING, Thread, flush_until_back, ids, opened, waits_for_lock

pytestmark = pytest.mark.databases

HOUR_MS = 3_600_000


@pytest.fixture
def url(database: DatabaseServer) -> str:
    return database.new_database()


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    made = opened(url)
    yield made
    made.abandon()


def send(store: SqlStore, *messages: bytes) -> None:
    store.append([record(body) for body in messages], NOW_MS)


def everything(store: SqlStore) -> list[bytes]:
    return bodies(store.read("orders", 0, 0, 999, EVERYTHING).records)


def test_a_deadlock_is_repeated(database: DatabaseServer, url: str, store: SqlStore) -> None:
    """The server ends one of two transactions that wait for each other: ours is done again, once."""
    send(store, b"0")
    store.flush()

    def lock(connection: Any) -> None:
        connection.execute(text("CREATE TABLE scratch (number INTEGER)"))
        if database.scheme == "postgresql":
            connection.execute(text("SET deadlock_timeout = '1h'"))  # the other one looks for the deadlock, and ends
        with database.begin(connection):
            for _ in range(200):  # InnoDB ends the transaction that changed less
                connection.execute(text("INSERT INTO scratch VALUES (1), (2), (3), (4)"))
            connection.execute(text("UPDATE mqtrail_queue SET first_offset = first_offset + 0 WHERE id = 1"))
            connection.execute(text("SELECT id FROM mqtrail_queue WHERE id = 1 FOR UPDATE"))
            send(store, b"1")
            thread = Thread(store.begin_flush())
            waits_for_lock(database)
            connection.execute(text("SELECT writer FROM mqtrail_store FOR UPDATE"))
            found = thread.result()
        assert isinstance(found, StoreAway), found
        assert "deadlock" in str(found).lower()

    database.sql(lock, url)
    send(store, b"2")
    flush_until_back(store)
    assert (ids(database, url), everything(store)) == ([0, 1, 2], [b"0", b"1", b"2"])


def test_a_server_without_a_connection_left(database: DatabaseServer, url: str) -> None:
    """Sends wait, as for a server that is away; when there is a connection again, all of them are stored once."""
    limited = _limited_user(database, url)
    store = opened(limited)
    try:
        send(store, b"0")
        store.flush()
        _limit(database, connections=1)
        send(store, b"1")
        for _ in range(3):  # the first one finds that its connection was closed
            with pytest.raises(StoreAway):
                store.begin_flush()()
        assert re.search("(?i)too many connections|max_user_connections", store.away or ""), store.away
        assert store.fault is None
        _limit(database, connections=50)
        send(store, b"2")
        flush_until_back(store)
        assert everything(store) == [b"0", b"1", b"2"]
    finally:
        store.abandon()


def _limited_user(database: DatabaseServer, url: str) -> str:
    """Return the URL with a user whose connections can be limited."""
    statements = {
        "postgresql": ("CREATE USER limited PASSWORD 'p'", "GRANT ALL ON SCHEMA public TO limited"),
        "mysql": ("CREATE OR REPLACE USER limited@'%' IDENTIFIED BY 'p'", "GRANT ALL ON `orders%`.* TO limited@'%'"),
    }[database.scheme]

    def act(connection: Any) -> None:
        for statement in statements:
            connection.execute(text(statement))

    database.sql(act, url)
    return f"{database.scheme}://limited:p@127.0.0.1:{database.port}/{url.rpartition('/')[2]}"


def _limit(database: DatabaseServer, *, connections: int) -> None:
    """Limit the connections of that user, and close those that it has."""

    def act(connection: Any) -> None:
        if database.scheme == "postgresql":
            connection.execute(text(f"ALTER USER limited CONNECTION LIMIT {connections}"))
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'limited'"
            connection.execute(text(query))
        else:
            connection.execute(text(f"ALTER USER limited@'%' WITH MAX_USER_CONNECTIONS {connections}"))
            connection.execute(text("KILL USER limited"))

    database.sql(act)


def test_a_turn_that_another_transaction_has_is_not_an_outage(
    database: DatabaseServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long commit holds the only connection for changes: upkeep comes again later, and reads go on."""
    monkeypatch.setattr("mqtrail.store.sql.engines.TURN_S", 0.1)
    store = SqlStore(MemoryDisk(), url, CONFIG, InTime())
    try:
        send(store, b"0")
        store.flush()
        with store._database.transaction():
            with pytest.raises(StoreBusy, match="another commit to the database takes long"):
                store._database.change(lambda connection: None)
            assert store.away is None
            assert everything(store) == [b"0"]
        store._database.change(lambda connection: None)
    finally:
        store.abandon()


def test_clocks_of_nodes_may_differ_by_an_hour(
    database: DatabaseServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of messages are the broker's: order, look-up by time and retention are the same on all nodes."""
    for name, clock in CLOCKS.items():
        if name != "sqlite":
            monkeypatch.setitem(CLOCKS, name, f"SELECT ({clock}) + {HOUR_MS}")  # what a wrong clock answers
    home = f"sqlite:///{tmp_path}/home.db"
    with closing(SqlStore(MemoryDisk(), home, CONFIG, nodes=[NodeDatabase("n1", url)])) as store:
        for number in range(4):
            for queue_id in range(2):
                store.append([record(b"%d" % number, queue_id=queue_id)], NOW_MS + number)
        store.flush()
        assert {queue.node for queue in store._queues.values()} == {0, 1}
        for queue_id in range(2):
            assert store.offset_by_time("orders", queue_id, NOW_MS + 2) == 2
        store.expire(NOW_MS + 2 + store.retention_ms, at_any_hour=True)
        assert [store.min_offset("orders", queue_id) for queue_id in range(2)] == [2, 2]
    ahead_ms = look_at(url).clock_ms - look_at(home).clock_ms
    assert abs(ahead_ms - HOUR_MS) < 60_000


class SmallMariaDB(MariaDB):
    """All tables are in one file that cannot grow. (On a disk that is really full, InnoDB ends its server.)"""

    size_mib = 24

    def command(self) -> list[str]:
        """With a limit for the file."""
        return [
            *super().command(),
            "--innodb-file-per-table=0",
            f"--innodb-data-file-path=ibdata1:12M:autoextend:max:{self.size_mib}M",
        ]

    def enlarge(self) -> None:
        """Give it more space, which needs a restart."""
        self.stop()
        self.size_mib = 200
        self.start()


class SmallPostgreSQL(PostgreSQL):
    """Its tables are on a small disk: a tmpfs in a mount namespace of its own, which needs root."""

    size_mib = 48

    def launch(self) -> None:
        """Start it on the small disk, with what is there."""
        base, kept = self.folder / "data" / "base", self.folder / "kept"
        script = (
            f"cp -a {base} {kept} && mount -t tmpfs -o mode=700,size={self.size_mib}M tmpfs {base} && "
            f'chown --reference={kept} {base} && cp -a {kept}/. {base} && exec "$@"'
        )
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script, "sh", *self._as, *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def enlarge(self) -> None:
        """Give it more space, as an operator does while it runs."""
        assert self._process is not None
        words = ("mount", "-o", "remount,size=400M", f"{self.folder}/data/base")
        subprocess.run(["nsenter", f"--target={self._process.pid}", "--mount", *words], check=True)


@pytest.mark.parametrize("kind", [SmallMariaDB, SmallPostgreSQL])
def test_a_full_disk_of_the_server(kind: type[SmallMariaDB] | type[SmallPostgreSQL]) -> None:
    """Sends wait with the server's reason; when there is space, each message is stored once."""
    database = kind()
    try:
        url = database.new_database()
        store = opened(url)
        try:
            sent = _send_until_full(store)
            assert store.fault is None
            database.enlarge()
            flush_until_back(store)
            send(store, b"last")
            store.flush()
            assert ids(database, url) == list(range(sent + 1))
            found = [store.read("orders", 0, number, 1, EVERYTHING).records for number in (0, sent - 1, sent)]
            assert [body[:8] for some in found for body in bodies(some)] == [b"00000000", b"%08d" % (sent - 1), b"last"]
        finally:
            store.abandon()
    finally:
        database.remove()


def _send_until_full(store: SqlStore) -> int:
    """Commit messages until the server refuses one; return how many were appended."""
    for number in range(1_000):
        send(store, b"%08d" % number + os.urandom(80_000))
        try:
            store.begin_flush()()
        except StoreAway:
            break
    assert re.search("(?i)full|no space", store.away or ""), (number, store.away)
    return number + 1
