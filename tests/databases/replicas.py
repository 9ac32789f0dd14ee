"""A database server and its replica, by the replication of PostgreSQL and of MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from sqlalchemy import text

from tests.waiting import wait_until

from .servers import END_S, PASSWORD, USER, DatabaseServer, MariaDB, PostgreSQL


class Replicated:
    """A primary and a replica. Their URLs have the same database, user and password."""

    primary: DatabaseServer
    replica: DatabaseServer
    name: ClassVar[str]
    pausing: ClassVar[str]  # statements for the replica
    resuming: ClassVar[str]
    promoting: ClassVar[tuple[str, ...]]

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """Start both, and end them."""
        pair = cls()
        try:
            yield pair
        finally:
            for one in ("replica", "primary"):
                if (server := getattr(pair, one, None)) is not None:
                    server.remove()

    def on_replica(self, *statements: str) -> Any:
        """Run statements there; return what the last one found."""
        result: Any = None

        def act(connection: Any) -> None:
            nonlocal result
            for statement in statements:
                found = connection.execute(text(statement))
                result = found.fetchall() if found.returns_rows else None

        self.replica.sql(act)
        return result

    def pause(self) -> None:
        """Let the replica lag: it takes over no commit from now on."""
        self.on_replica(self.pausing)

    def resume(self) -> None:
        """End a pause."""
        self.on_replica(self.resuming)

    def promote(self) -> None:
        """Make the replica a server that takes changes."""
        self.on_replica(*self.promoting)

    def cut(self) -> None:
        """Let the replica get no further commit."""
        raise NotImplementedError

    def synchronous(self) -> None:
        """Let each commit wait for the replica."""
        raise NotImplementedError

    def of_application(self, url: str) -> str:
        """Return the URL with a user that is no administrator."""
        return url

    def demote(self, url: str) -> None:
        """Make the primary read-only once the replica has all commits. url: of a database on it."""
        raise NotImplementedError

    def urls(self) -> tuple[str, str, str]:
        """Return the URLs of a new database on the primary, on the replica, and with both addresses."""
        url = self.primary.new_database()
        replica = url.replace(f":{self.primary.port}/", f":{self.replica.port}/")
        both = url.replace(f":{self.primary.port}/", f":{self.primary.port},127.0.0.1:{self.replica.port}/")
        database = url.rpartition("/")[2]
        wait_until(lambda: database in self._databases(), END_S)
        return url, replica, both

    def _databases(self) -> list[str]:
        raise NotImplementedError


class Standby(PostgreSQL):
    """A standby of another server."""

    def __init__(self, primary: DatabaseServer) -> None:
        self._primary = primary
        super().__init__()

    def make(self) -> None:
        """Copy the primary."""
        conninfo = f"host=127.0.0.1 port={self._primary.port} user={USER} password='{PASSWORD}'"
        self.run(
            self._program("pg_basebackup"), "-R", "-c", "fast", "--no-sync", "-D", f"{self.folder}/data", "-d", conninfo
        )


class PostgreSQLPair(Replicated):
    name = "postgresql"
    pausing = "SELECT pg_wal_replay_pause()"
    resuming = "SELECT pg_wal_replay_resume()"
    promoting = ("SELECT pg_promote()",)

    def __init__(self) -> None:
        self.primary = PostgreSQL()
        self.replica = Standby(self.primary)

    def cut(self) -> None:
        """Without an address the replica asks for nothing."""
        self.on_replica("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        self.primary.sql(lambda connection: wait_until(lambda: not _one(connection, _STANDBYS), END_S))

    def synchronous(self) -> None:
        """The setting of the primary alone: the replica keeps its own."""

        def act(connection: Any) -> None:
            connection.execute(text("ALTER SYSTEM SET synchronous_standby_names = '*'"))
            connection.execute(text("SELECT pg_reload_conf()"))
            wait_until(lambda: _one(connection, f"{_STANDBYS} WHERE sync_state = 'sync'"), END_S)

        self.primary.sql(act)

    def demote(self, url: str) -> None:
        """New transactions of open sessions are read-only too."""

        def act(connection: Any) -> None:
            connection.execute(text("ALTER SYSTEM SET default_transaction_read_only = 'on'"))
            connection.execute(text("SELECT pg_reload_conf()"))
            wait_until(lambda: _one(connection, f"{_STANDBYS} WHERE replay_lsn = pg_current_wal_lsn()"), END_S)

        self.primary.sql(act)
        query = "SHOW default_transaction_read_only"
        self.primary.sql(lambda connection: wait_until(lambda: _one(connection, query) == "on", END_S), url)

    def pause(self) -> None:
        """It is paused only some time after it was asked."""
        super().pause()
        wait_until(lambda: self.on_replica("SELECT pg_get_wal_replay_pause_state()")[0][0] == "paused", END_S)

    def _databases(self) -> list[str]:
        return [name for (name,) in self.on_replica("SELECT datname FROM pg_database")]


class ReplicatedMariaDB(MariaDB):
    """One with a binlog. number: its id among the servers."""

    def __init__(self, number: int) -> None:
        self._number = number
        super().__init__()

    def command(self) -> list[str]:
        """With a binlog, and read-only if it is a replica."""
        more = [f"--server-id={self._number}", "--log-bin=binlog", "--binlog-format=ROW", "--log-slave-updates"]
        return [*super().command(), *more, *(["--read-only=1"] if self._number > 1 else [])]


class MariaDBPair(Replicated):
    name = "mariadb"
    pausing = "STOP SLAVE SQL_THREAD"
    resuming = "START SLAVE SQL_THREAD"
    promoting = ("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")

    def __init__(self) -> None:
        self.primary = ReplicatedMariaDB(1)
        self.replica = ReplicatedMariaDB(2)
        self.on_replica(
            f"CHANGE MASTER TO master_host='127.0.0.1', master_port={self.primary.port}, master_user='{USER}', "
            f"master_password='{PASSWORD}', master_use_gtid=slave_pos, master_connect_retry=1",
            "START SLAVE",
        )

    def cut(self) -> None:
        """Stop the thread that gets the binlog."""
        self.on_replica("STOP SLAVE IO_THREAD")

    def synchronous(self) -> None:
        """Semi-synchronous: a commit waits until the replica has it in its relay log."""
        self.on_replica("SET GLOBAL rpl_semi_sync_slave_enabled = 1", "STOP SLAVE IO_THREAD", "START SLAVE IO_THREAD")

        def act(connection: Any) -> None:
            connection.execute(text("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'"))
            connection.execute(text("SET GLOBAL rpl_semi_sync_master_timeout = 60000"))
            connection.execute(text("SET GLOBAL rpl_semi_sync_master_enabled = 1"))
            wait_until(lambda: _one(connection, _SEMI_SYNC, 1) != "0", END_S)

        self.primary.sql(act)

    def of_application(self, url: str) -> str:
        """A user with all rights on databases: administrators may change a server that is read-only."""

        def act(connection: Any) -> None:
            connection.execute(text(f"CREATE USER application@'%' IDENTIFIED BY '{PASSWORD}'"))
            connection.execute(text("GRANT ALL ON `orders%`.* TO application@'%'"))

        self.primary.sql(act)
        return url.replace(f"//{USER}:", "//application:")

    def demote(self, url: str) -> None:
        """Sessions of applications can change nothing any more."""
        self.primary.sql(lambda connection: connection.execute(text("SET GLOBAL read_only = 1")))

    def promote(self) -> None:
        """It first applies all that it got."""
        self.on_replica("STOP SLAVE IO_THREAD")
        status = self.on_replica("SHOW ALL SLAVES STATUS")[0]._mapping
        self.on_replica(f"SELECT MASTER_GTID_WAIT('{status['Gtid_IO_Pos']}', {END_S})")
        super().promote()

    def _databases(self) -> list[str]:
        return [name for (name,) in self.on_replica("SHOW DATABASES")]


_STANDBYS = "SELECT count(*) FROM pg_stat_replication"
_SEMI_SYNC = "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'"


def _one(connection: Any, query: str, column: int = 0) -> Any:
    """Return a value of the first row."""
    return connection.execute(text(query)).first()[column]


PAIRS: dict[str, type[Replicated]] = {pair.name: pair for pair in (MariaDBPair, PostgreSQLPair)}
