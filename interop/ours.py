"""Our name server and broker as a process, with the interface of Apache's in `apache`.

    with OurServer(folder) as server:
        connect(server.namesrv_address)

Run as a module, this is that process: it prints its addresses as one JSON line and serves until a signal.
"""

from __future__ import annotations

import atexit
import json
import select
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from interop.apache import free_port
from interop.jars import INTEROP, InteropError
from interop.story import SERVER_PROPERTIES

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0

_living: set[OurServer] = set()


class OurServer:
    """A name server and one broker named broker-a in DefaultCluster; its files lie below `folder`/data."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_size: int = 64 << 20,
        broker: dict[str, Any] | None = None,
        tls: dict[str, str] | None = None,
        join: str = "",
    ) -> None:
        """`broker` are fields of BrokerConfig, over short delay levels and a trace topic; `tls` of TlsServerConfig.

        join: address of the name server to use instead of an own one.
        """
        self.folder, self.data = folder, folder / "data"
        self.settings: dict[str, Any] = {
            "data": str(self.data),
            "namesrv_port": None if join else free_port(),
            "namesrv_addresses": [join] if join else [],
            "broker_port": free_port(),
            "store": {"segment_size": segment_size},
            "broker": {
                "message_delay_level": SERVER_PROPERTIES["messageDelayLevel"],
                "trace_topic_enable": True,
                **(broker or {}),
            },
            "tls": tls or {},
        }
        self.namesrv_address = self.broker_address = ""
        self.process: subprocess.Popen[str] | None = None

    @property
    def store(self) -> Path:
        """The broker's storePathRootDir."""
        return self.data / "broker-a"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None, "our server is not running"
        return self.process.pid

    def start(self) -> Self:
        """Start it and wait until it serves. InteropError, with the end of its log: it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "interop.ours", json.dumps(self.settings)]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self.folder / "server.log").open("ab") as errors:
            self.process = subprocess.Popen(
                command, cwd=INTEROP.parent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        _living.add(self)
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], START_TIMEOUT_S)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            self.kill()
            raise InteropError(f"our server did not start:\n{self.log_tail()}")
        ready = json.loads(line)
        self.namesrv_address, self.broker_address = ready["namesrv"], ready["broker"]
        return self

    def stop(self) -> None:
        """Stop it cleanly by SIGTERM."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        _living.discard(self)

    def log_tail(self, size: int = 3000) -> str:
        """Return the end of its log."""
        return (self.folder / "server.log").read_text(errors="replace")[-size:]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


@atexit.register
def _kill_the_living() -> None:
    for server in list(_living):
        server.kill()


def serve(settings: dict[str, Any]) -> int:
    """Run a node with the settings that OurServer writes, on free ports, in this process."""
    from mqtrail.broker import BrokerConfig
    from mqtrail.cli.config import Config
    from mqtrail.net import ServerConfig
    from mqtrail.node import AnyNode, NodeConfig, run_up
    from mqtrail.store import CommitLogConfig

    config = NodeConfig(
        data=Path(settings["data"]),
        namesrv_port=settings["namesrv_port"],
        namesrv_addresses=tuple(settings["namesrv_addresses"]),
        broker_port=settings["broker_port"],
        broker=BrokerConfig(**settings["broker"]),
        store=CommitLogConfig(**settings["store"]),
        server=ServerConfig(tls=Config({"tls_server": settings["tls"]}).tls("server")),
    )

    def print_addresses(node: AnyNode) -> None:
        print(json.dumps({"namesrv": node.namesrv_address, "broker": node.broker_addresses[0]}), flush=True)

    return run_up(config, on_ready=print_addresses)


if __name__ == "__main__":
    sys.exit(serve(json.loads(sys.argv[1])))
