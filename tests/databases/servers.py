"""Real database servers in throw-away folders on free ports, from Debian's packages (scripts/databases.sh).

Servers refuse to run as root, so root runs them as `nobody`. A server ends with the process that started it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.ports import free_ports
from tests.waiting import wait_until

READY_S = 60.0
END_S = 30.0
USER, PASSWORD = "mqtrail", "secret/of@tests"
QUOTED = "secret%2Fof%40tests"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL")


class DatabaseServer:
    """One server. `start` after `kill` or `stop` uses the same folder and port."""

    scheme: ClassVar[str]
    driver: ClassVar[str]
    admin_database: ClassVar[str]
    lock_waits: ClassVar[str]  # a query: how many statements wait for a lock

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"mqtrail-{self.scheme}-"))
        if os.getuid() == 0:
            os.chown(self.folder, 65534, 65534)
        (self.port,) = free_ports(1)
        self._numbers = count()
        self._process: subprocess.Popen[bytes] | None = None
        self._as = NOBODY if os.getuid() == 0 else ("setpriv", "--pdeathsig=KILL")
        self.make()
        self.start()

    def make(self) -> None:
        """Make the files of an empty server."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command that serves."""
        raise NotImplementedError

    def create(self, name: str) -> str:
        """Return the statement that makes a database."""
        raise NotImplementedError

    def weak_user(self, name: str, connection: Any) -> None:
        """Make a user with the common password that may only connect."""
        raise NotImplementedError

    @contextmanager
    def begin(self, connection: Any) -> Iterator[None]:
        """Run statements of a connection of `sql` in one transaction."""
        connection.execute(text("BEGIN"))
        try:
            yield
        finally:
            connection.execute(text("ROLLBACK"))

    def run(self, *command: str, given: bytes = b"") -> None:
        """Run a command as the server's user. AssertionError has its output."""
        done = subprocess.run([*self._as, *command], input=given, capture_output=True, cwd=self.folder, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode("utf-8", "replace")[-3000:]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start it. It ends with the *thread* that calls this (PR_SET_PDEATHSIG), so call it in one that stays."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as, *self.command()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def wait_ready(self) -> None:
        """Wait until a launched server answers. AssertionError: it ended, or did not in READY_S."""
        deadline_s = time.monotonic() + READY_S
        while True:
            try:
                self.sql(lambda connection: connection.execute(text("SELECT 1")))
                return
            except OperationalError as error:
                if self.has_ended or time.monotonic() > deadline_s:
                    found = (self.folder / "log").read_text("utf-8", "replace")[-3000:]
                    raise AssertionError(
                        f"{self.scheme} does not serve ({error.orig}); its log ends in\n{found}"
                    ) from error
                time.sleep(0.05)

    def end(self, number: int) -> None:
        """Send it a signal, and wait for its end."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(END_S)

    def kill(self) -> None:
        """End it as a crash does, with all its processes, and wait for the end of each.

        The first process is stopped before the others are looked up: it could start one more. PostgreSQL does not start
        again while an old process has its shared memory.
        """
        assert self._process is not None
        first = self._process.pid
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGSTOP)
        wait_until(lambda: self.has_ended or _is_stopped(first), END_S)
        processes = self._processes()
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait(END_S)
        wait_until(lambda: not any(map(_is_alive, processes)), END_S)

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """End it in order."""
        raise NotImplementedError

    def pause(self) -> None:
        """Let it answer nothing more, with its connections open."""
        self._signal_all(signal.SIGSTOP)
        wait_until(lambda: all(map(_is_stopped, self._processes())), END_S)  # a signal is not yet its effect

    def resume(self) -> None:
        """End a pause."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        for process in self._processes():
            with suppress(ProcessLookupError):  # PostgreSQL ends the process of a closed connection meanwhile
                os.kill(process, number)

    def _processes(self) -> list[int]:
        assert self._process is not None
        try:
            found = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        except FileNotFoundError:  # it has ended by itself
            return []
        return [self._process.pid, *map(int, found.split())]

    def remove(self) -> None:
        """End it and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, user: str = USER, password: str = QUOTED) -> str:
        """Return the URL of a database, as users write it."""
        return f"{self.scheme}://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, options: str = "") -> str:
        """Make a database; return its URL."""
        name = f"orders{next(self._numbers)}"
        self.sql(lambda connection: connection.execute(text(f"{self.create(name)} {options}")))
        return self.url(name)

    def sql(self, act: Callable[[Any], Any], url: str | None = None) -> Any:
        """Run act with another program's connection, of a server's administrator; statements commit by themselves."""
        parsed = (url or self.url(self.admin_database)).replace(f"{self.scheme}://", f"{self.driver}://")
        engine = create_engine(parsed, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            return act(connection)


def _is_stopped(process: int) -> bool:
    """Return whether no thread of a process runs: each is stopped, or a zombie whose stopped parent reaps nothing."""
    states = Path(f"/proc/{process}/task").glob("*/stat")
    return all(path.read_text().rpartition(")")[2].split()[0] in "TZ" for path in states)


def _is_alive(process: int) -> bool:
    """Return whether a process still has its memory: it is there, and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class PostgreSQL(DatabaseServer):
    scheme, driver, admin_database = "postgresql", "postgresql+psycopg", "postgres"
    lock_waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def _program(self, name: str) -> str:
        folders = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
        assert folders, (
            f"found no {name} below /usr/lib/postgresql, expected Debian's package: run scripts/databases.sh"
        )
        return str(folders[-1])

    def make(self) -> None:
        """initdb, with a password."""
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        files = (f"--pgdata={self.folder}/data", f"--pwfile={self.folder}/password", f"--username={USER}")
        self.run(
            self._program("initdb"), *files, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"
        )

    def command(self) -> list[str]:
        """Only local connections, and little memory."""
        settings = ("listen_addresses=127.0.0.1", "shared_buffers=32MB", f"unix_socket_directories={self.folder}")
        flags = [part for setting in settings for part in ("-c", setting)]
        return [self._program("postgres"), "-D", f"{self.folder}/data", "-p", str(self.port), *flags]

    def create(self, name: str) -> str:
        """A database of the same name."""
        return f"CREATE DATABASE {name}"

    def weak_user(self, name: str, connection: Any) -> None:
        """Since PostgreSQL 15 only the owner creates tables in the schema public."""
        connection.execute(text(f"CREATE USER {name} PASSWORD '{PASSWORD}'"))

    def stop(self) -> None:
        """A fast shutdown: connections are closed."""
        self.end(signal.SIGINT)


class MariaDB(DatabaseServer):
    scheme, driver, admin_database = "mysql", "mysql+pymysql", "mysql"
    lock_waits = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"

    def _mariadbd(self, *flags: str) -> list[str]:
        found = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
        assert found is not None, "found no mariadbd, expected Debian's package: run scripts/databases.sh"
        # A server that starts removes every temporary table in its folder for these, also those of another server.
        return [found, "--no-defaults", f"--datadir={self.folder}/data", f"--tmpdir={self.folder}", *flags]

    def make(self) -> None:
        """What mariadb-install-db does, which needs further packages."""
        share = Path("/usr/share/mysql")
        scripts = [share / f"mysql_{name}.sql" for name in ("system_tables", "system_tables_data")]
        begin = b"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL, @skip_auth_anonymous=1;\n"
        admin = (
            "FLUSH PRIVILEGES;\n"
            f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;\n"
        )
        self.run("mkdir", "data")
        text_of_all = begin + b"".join(path.read_bytes() for path in scripts) + admin.encode()
        self.run(*self._mariadbd("--bootstrap", "--skip-log-bin"), given=text_of_all)

    def command(self) -> list[str]:
        """Only local connections, and little memory."""
        local = ("--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self.folder}/socket")
        return self._mariadbd(
            *local, "--skip-name-resolve", "--innodb-buffer-pool-size=64M", f"--pid-file={self.folder}/pid"
        )

    def create(self, name: str) -> str:
        """A database whose own encoding has no Chinese."""
        return f"CREATE DATABASE {name} CHARACTER SET latin1"

    def weak_user(self, name: str, connection: Any) -> None:
        """It may look at the database."""
        connection.execute(text(f"CREATE USER {name}@'%' IDENTIFIED BY '{PASSWORD}'"))
        connection.execute(text(f"GRANT SELECT ON *.* TO {name}@'%'"))

    def stop(self) -> None:
        """An orderly shutdown."""
        self.end(signal.SIGTERM)


SERVERS: dict[str, type[DatabaseServer]] = {"mariadb": MariaDB, "postgresql": PostgreSQL}
_running: dict[str, DatabaseServer] = {}


def end_servers() -> None:
    """End all servers of this process."""
    while _running:
        _running.popitem()[1].remove()


def server(name: str) -> DatabaseServer:
    """Return this process's server of a kind. It is started once, and again if a failed test has left it dead."""
    if name not in _running:
        _running[name] = SERVERS[name]()
    elif _running[name].has_ended:
        _running[name].start()
    return _running[name]
