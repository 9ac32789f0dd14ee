"""A real Redis server in a throw-away folder on a free port, from Debian's package (scripts/databases.sh).

The package redis-tools has the program of the server under another name, and starts no server when it is installed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ports import free_ports

from .servers import END_S, NOBODY, READY_S


class RedisServer:
    """One server without persistence. `start` after `kill` is an empty one on the same port."""

    def __init__(self) -> None:
        [self.port] = free_ports(1)
        self.folder = Path(tempfile.mkdtemp(prefix="mqtrail-redis-"))
        if os.getuid() == 0:
            os.chown(self.folder, 65534, 65534)
        self._as = NOBODY if os.getuid() == 0 else ("setpriv", "--pdeathsig=KILL")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        assert program is not None, "found no Redis server, expected Debian's package: run scripts/databases.sh"
        link = self.folder / "redis-server"
        if not link.is_symlink():
            link.symlink_to(program)
        flags = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as, str(link), *flags, "--dir", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline_s = time.monotonic() + READY_S
        while not self._answers():
            text = (self.folder / "log").read_text("utf-8", "replace")
            assert self._process.poll() is None, text
            assert time.monotonic() < deadline_s, text
            time.sleep(0.02)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"+PONG\r\n"
        return False

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(END_S)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A server that ends with the block."""
    server = RedisServer()
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
