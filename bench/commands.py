"""Commands of mqtrail as processes of a figure, and the MariaDB that some of them read."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.databases.binlog_server import BinlogMariaDB
from tests.databases.servers import PASSWORD, USER

from bench.rows import CannotMeasure

STOP_S_MAX = 60.0
POLL_S = 0.1
COPY_POLL_S = 0.02  # between two looks at what is copied
COPY_S_MAX = 180.0
SHOWN_SIZE = 3_000  # characters of the end of a command's output, in an error


class BenchMariaDB(BinlogMariaDB):
    """The server of the tests, with the memory of a small real one. It does not wait for the disk at a commit."""

    def command(self) -> list[str]:
        """As that of the tests, with other sizes."""
        memory = ("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=512M", "--max-binlog-size=1G")
        return [*super().command(), *memory, "--innodb-flush-log-at-trx-commit=0"]

    @property
    def source(self) -> str:
        """Its URL for commands; `ENVIRON` has the password."""
        return f"mysql://{USER}@127.0.0.1:{self.port}"


ENVIRON = {"MQTRAIL_BINLOG_PASSWORD": PASSWORD}


@contextmanager
def mariadb() -> Iterator[BenchMariaDB]:
    """A server that ends with the block. CannotMeasure: there is none on this machine."""
    if not any(Path(folder, "mariadbd").exists() for folder in (*os.get_exec_path(), "/usr/sbin")):
        raise CannotMeasure("found no mariadbd, expected Debian's package: scripts/databases.sh installs it")
    with BenchMariaDB.running() as server:
        yield server


class Command:
    """A command that runs beside a figure. Its output is in a file."""

    def __init__(self, log: Path, arguments: Sequence[str], environ: Mapping[str, str], module: str) -> None:
        self._log = log
        self._name = f"{module} {' '.join(arguments[:2])}"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """RuntimeError: it has ended; the text has the end of its output."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._name} ended with {self._process.returncode}:\n{self._output()}")

    def suspend(self) -> None:
        """Stop it by SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Stop it as a user does. RuntimeError: it failed."""
        self.resume()
        self._process.send_signal(signal.SIGINT)
        if self._process.wait(STOP_S_MAX):
            raise RuntimeError(f"{self._name} ended with {self._process.returncode}:\n{self._output()}")

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()

    def _output(self) -> str:
        return self._log.read_text("utf-8", "replace")[-SHOWN_SIZE:]


@contextmanager
def running(
    log: Path, *arguments: str, environ: Mapping[str, str] = ENVIRON, module: str = "mqtrail"
) -> Iterator[Command]:
    """Run a command beside the block, and end it after that. RuntimeError: it failed."""
    command = Command(log, arguments, environ, module)
    try:
        yield command
        command.end()
    finally:
        command.kill()


def finished(*arguments: str, environ: Mapping[str, str] = ENVIRON) -> str:
    """Run a command to its end; return what it printed. RuntimeError: it failed."""
    run = subprocess.run(
        [sys.executable, "-m", "mqtrail", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environ},
    )
    if run.returncode:
        text = (run.stdout + run.stderr)[-SHOWN_SIZE:]
        raise RuntimeError(f"mqtrail {' '.join(arguments[:2])} ended with {run.returncode}:\n{text}")
    return run.stdout


def wait_for(holds: Callable[[], bool], seconds_max: float, what: str) -> float:
    """Poll until it holds; return the seconds it took. CannotMeasure: it did not in time."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > seconds_max:
            raise CannotMeasure(f"{what} did not happen in {seconds_max:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - began_s


async def rate_of(copied: Callable[[], Awaitable[int]], count: int) -> float:
    """Return the copies/s from the first ones that are seen to the last one. CannotMeasure: it takes too long."""
    end_s = time.monotonic() + COPY_S_MAX
    begun_s = begun = 0.0
    while (now := await copied()) < count:
        now_s = time.monotonic()
        if now and not begun:
            begun_s, begun = now_s, now
        if now_s > end_s:
            raise CannotMeasure(f"found {now} of {count} copies in the target after {COPY_S_MAX:.0f} s")
        await asyncio.sleep(COPY_POLL_S)
    if not begun:
        raise CannotMeasure(f"{count} were copied between two looks: take more")
    return (count - begun) / (time.monotonic() - begun_s)
