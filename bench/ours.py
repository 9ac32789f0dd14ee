"""Our name server and broker as the subject of a benchmark: one process, pinned, weighed, paused like its peer.

with OurPeer(folder, cpus=[0], sync_flush=False) as peer:
    with peer.measured() as usage:
        run_load(peer.broker_address, SYNC64, cpus=[1])
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.apache import Usage, anonymous_bytes, create_topic, measured, send_one

STOP_TIMEOUT_S = 20.0


class OurPeer:
    """`start` returns the seconds from the fork to the first stored send. The process gets its settings as JSON."""

    def __init__(
        self,
        folder: Path | None,
        *,
        cpus: Sequence[int] | None = None,
        sync_flush: bool = False,
        index: bool = True,
        statistics: bool = True,
        broker_trace: bool = False,
        broker: Mapping[str, object] | None = None,
        tls: Mapping[str, str] | None = None,
        credentials: tuple[str, str] = ("", ""),
        loop: str = "uvloop",
        store_url: str = "",
    ) -> None:
        """folder None: in memory. store_url: of a database instead of a CommitLog.

        broker: further fields of BrokerConfig. tls: fields of TlsServerConfig. credentials: of the user that is
        allowed, and that creates the topic.
        """
        self._credentials = credentials
        self._settings = {
            "folder": None if folder is None else str(folder),
            "cpus": None if cpus is None else list(cpus),
            "index": index,
            "broker": {
                "broker_trace": broker_trace,
                "statistics": statistics,
                "sync_flush": sync_flush,
                **(broker or {}),
            },
            "tls": dict(tls or {}),
            "loop": loop,
            "store_url": store_url,
        }
        self.process: subprocess.Popen[str] | None = None
        self.namesrv_address = self.broker_address = ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> float:
        """Start it and create the benchmark's topic; return the seconds to the first stored send."""
        began_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.ours", json.dumps(self._settings)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker ended with {self.process.wait()} before it was ready; its log is above")
        found = json.loads(line)
        self.namesrv_address, self.broker_address = found["namesrv"], found["brokers"][0]
        code = send_one(self.broker_address, credentials=self._credentials)
        assert code == 0, f"the first send was answered {code}"
        first_send_s = time.monotonic() - began_s
        create_topic(self.broker_address, credentials=self._credentials)
        return first_send_s

    @contextmanager
    def measured(self) -> Iterator[Usage]:
        """Yield the process's CPU time inside the block."""
        with measured(self.pid) as usage:
            yield usage

    def anonymous_bytes(self) -> int:
        """Return the anonymous memory of name server and broker, which are one process."""
        return anonymous_bytes(self.pid)

    def suspend(self) -> None:
        """Stop it by SIGSTOP while another server is measured."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.resume()
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _serve(settings: dict[str, Any]) -> int:
    """Run a node with these settings in this process; print its addresses when it is ready."""
    cpus = settings["cpus"]
    if isinstance(cpus, list):
        os.sched_setaffinity(0, cpus)
    from mqtrail.cli.imports import collector_paused

    with collector_paused():  # as `mqtrail up` does
        from mqtrail.broker import BrokerConfig
        from mqtrail.cli.config import Config
        from mqtrail.net import ServerConfig
        from mqtrail.node import AnyNode, NodeConfig, run_up
        from mqtrail.store import CommitLogConfig

    folder = settings["folder"]
    config = NodeConfig(
        data=None if folder is None else Path(str(folder)),
        store_url=settings["store_url"],
        namesrv_port=0,
        broker_port=0,
        broker=BrokerConfig(**settings["broker"]),
        store=CommitLogConfig(index=settings["index"]),
        server=ServerConfig(tls=Config({"tls_server": settings["tls"]}).tls("server")),
    )

    def ready(node: AnyNode) -> None:
        print(json.dumps({"namesrv": node.namesrv_address, "brokers": list(node.broker_addresses)}), flush=True)

    return run_up(config, on_ready=ready, use_uvloop=settings["loop"] == "uvloop")


if __name__ == "__main__":
    sys.exit(_serve(json.loads(sys.argv[1])))
