"""The demo's two brokers, each in its own process (`mqtrail up`), so that the demo can pause and kill one."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from .plan import DELAY_LEVELS, QUEUE_NUMS

READY_TIMEOUT_S = 60.0


class ClusterError(RuntimeError):
    """A broker of the demo did not start; the text contains the end of its log."""


def free_port() -> int:
    """Return a free TCP port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BrokerProcess:
    """One `mqtrail up`. The first also runs the name server, which the others join."""

    def __init__(self, name: str, folder: Path, namesrv_port: int, *, first: bool) -> None:
        self.name = name
        self._folder = folder / name
        self._log = folder / f"{name}.log"
        self._port = free_port()
        where = ["--namesrv-port", str(namesrv_port)] if first else ["--join", f"127.0.0.1:{namesrv_port}"]
        self._command = [
            *(sys.executable, "-m", "mqtrail", "up", "--data", str(self._folder), "--broker-name", name),
            *("--broker-port", str(self._port), *where, "--segment-size", str(64 << 20)),
            *("--set", f"message_delay_level={DELAY_LEVELS}", "--set", f"default_topic_queue_nums={QUEUE_NUMS}"),
            *("--broker-trace", "--json"),
        ]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process and wait until it reports that it is ready. ClusterError: it does not."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        log = self._log.open("a")
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                line = self._process.stdout.readline()
                if '"ready"' in line:
                    return
                if not line:
                    break
        self.kill()
        tail = self._log.read_text()[-2000:]
        raise ClusterError(f"broker {self.name} did not become ready; the end of its log:\n{tail}")

    def pause(self) -> None:
        """Pause the process (SIGSTOP): its connections stay open, but it answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the process cleanly, or kill it after 15 s."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()


class DemoCluster:
    """A name server and two brokers under a folder; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._namesrv_port = free_port()
        self.broker_a = BrokerProcess("broker-a", folder, self._namesrv_port, first=True)
        self.broker_b = BrokerProcess("broker-b", folder, self._namesrv_port, first=False)

    @property
    def namesrv(self) -> str:
        """The name server's address."""
        return f"127.0.0.1:{self._namesrv_port}"

    def __enter__(self) -> Self:
        try:
            self.broker_a.start()
            self.broker_b.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop both brokers."""
        self.broker_b.stop()
        self.broker_a.stop()
