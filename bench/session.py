"""The shared state of a run of figures: number of rounds, folder, and the pair of servers that is up.

pair = session.pair(ONE_CORE)          # both warm and stopped; kept while the next figures ask for the same one
with pair.only("ours") as server:      # this one runs, all others are stopped by SIGSTOP
    run_load(server.broker_address, SYNC64, cpus=pair.load_cpus)
session.alone()                        # no server is up: for figures that start their own
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from bench.apache import ApachePeer, Usage, cpu_seconds
from bench.load import BATCH, DEEP, ONE64, PULL, SYNC64, Shape, run_load
from bench.ours import OurPeer
from bench.rows import CannotMeasure

APACHE_VERSION = "5.3.3"
WARM_S, WARM_QUICK_S = 36.0, 4.0
OURS_WARM_S = 3.0
PULL_TOPIC = "BenchPull"
SETTLE_S_MAX, SETTLE_STEP_S = 10.0, 0.25
IDLE_SHARE = 0.12  # of a core: an idle Apache uses 3 to 5 %, our busy index builder 30


class Server(Protocol):
    """The common part of the two peers."""

    namesrv_address: str
    broker_address: str

    def start(self) -> float: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def measured(self) -> AbstractContextManager[Usage]: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """How the servers of a pair run.
    server_cpus, load_cpus: None: all. variants: further servers of ours: name -> settings over those of "ours". apache,
    ours: further settings of one side. credentials: required by both.
    """

    name: str
    server_cpus: tuple[int, ...] | None = None
    load_cpus: tuple[int, ...] | None = None
    sync_flush: bool = False
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    apache: dict[str, str] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    credentials: tuple[str, str] = ("", "")


def two_cores() -> tuple[int, int]:
    """Return a core for the server and one for the load. CannotMeasure: there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise CannotMeasure("found one core, expected two: one for the server, one for the load generator")
    return cores[0], cores[1]


class Pair:
    """A warm Apache and our servers with one setup. Only one of them runs at a time."""

    def __init__(self, setting: Setting, folder: Path, *, warm_s: float) -> None:
        self.setting, self.folder, self._warm_s = setting, folder, warm_s
        self.load_cpus = setting.load_cpus
        flush = {"flushDiskType": "SYNC_FLUSH"} if setting.sync_flush else {}
        properties = {**flush, **setting.apache}
        self.apache = ApachePeer(
            APACHE_VERSION,
            folder / "apache",
            cpus=setting.server_cpus,
            properties=properties,
            credentials=setting.credentials,
        )
        self.ours = self._our_peer("ours", {})
        self._servers: dict[str, Any] = {}

    def start(self) -> None:
        """Start and warm up all, one after the other, and leave them stopped."""
        self._begin("apache", self.apache, self._warm_s)
        self._begin("ours", self.ours, min(OURS_WARM_S, self._warm_s))
        for name, settings in self.setting.variants.items():
            self._begin(name, self._our_peer(name, settings), 1.0)

    @contextmanager
    def only(self, name: str) -> Iterator[Server]:
        """Let one server run inside the block and stop it afterwards; the others stay stopped."""
        server: Server = self._servers[name]
        server.resume()
        try:
            yield server
        finally:
            server.suspend()

    def pid(self, name: str) -> int:
        """Return the process of a server's broker."""
        server = self._servers[name]
        return int(server.broker.pid if isinstance(server, ApachePeer) else server.pid)

    def settle(self, name: str) -> float:
        """Wait until a server that runs does no more than an idle one, index and queue entries written, or for
        SETTLE_S_MAX. Return the seconds it took."""
        began_s, pid = time.monotonic(), self.pid(name)
        before_s = cpu_seconds(pid)
        while (took_s := time.monotonic() - began_s) < SETTLE_S_MAX:
            time.sleep(SETTLE_STEP_S)
            now_s = cpu_seconds(pid)
            if now_s - before_s < IDLE_SHARE * SETTLE_STEP_S:
                return took_s
            before_s = now_s
        return took_s

    def close(self) -> None:
        """Stop all servers and delete their files."""
        for server in self._servers.values():
            server.__exit__(None, None, None)
        self._servers.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _our_peer(self, name: str, settings: dict[str, Any]) -> OurPeer:
        folder = self.folder / name
        return OurPeer(
            folder,
            cpus=self.setting.server_cpus,
            sync_flush=self.setting.sync_flush,
            credentials=self.setting.credentials,
            **{**self.setting.ours, **settings},
        )

    def _begin(self, name: str, server: ApachePeer | OurPeer, warm_s: float) -> None:
        self._servers[name] = server
        server.start()
        warm(server.broker_address, warm_s, self.load_cpus, self.setting.credentials)
        self.settle(name)
        server.suspend()


def warm(address: str, seconds: float, cpus: Sequence[int] | None, credentials: tuple[str, str] = ("", "")) -> None:
    """Put load of every measured shape on a broker, so that the JVM compiles those code paths."""
    shapes: list[Shape] = []
    for shape in (DEEP, SYNC64, ONE64):
        shapes += [shape, shape.with_binary(), shape.with_long_ids()]
    if credentials[0]:
        shapes = [replace(shape, credentials=credentials) for shape in shapes]
    for shape in (*shapes, *(() if credentials[0] else (BATCH, PULL))):
        run_load(address, shape, seconds=seconds / (len(shapes) + 2), warmup=0, cpus=cpus)


class Session:
    """One run. rounds and seconds (of each round) are for all figures that have rounds; quick: one short round."""

    def __init__(self, folder: Path, *, rounds: int = 5, seconds: float = 1.2, quick: bool = False) -> None:
        self.folder, self.quick = folder, quick
        self.rounds, self.seconds = (1, 0.5) if quick else (rounds, seconds)
        self._pair: Pair | None = None
        self._serial = 0

    def pair(self, setting: Setting) -> Pair:
        """Return the pair with this setup, the present one if it matches."""
        if self._pair is not None and self._pair.setting == setting:
            return self._pair
        self.alone()
        self._pair = Pair(setting, self.fresh_folder(setting.name), warm_s=WARM_QUICK_S if self.quick else WARM_S)
        self._pair.start()
        return self._pair

    def alone(self) -> None:
        """Stop the present pair."""
        if self._pair is not None:
            pair, self._pair = self._pair, None
            pair.close()

    def order(self, number: int, names: Sequence[str]) -> Sequence[str]:
        """Return the order of a round: every other round is reversed, so that drift affects all alike."""
        return names if number % 2 == 0 else names[::-1]

    def fresh_folder(self, name: str) -> Path:
        """Return a new empty folder on the measured disk."""
        self._serial += 1
        folder = self.folder / f"{self._serial}-{name}"
        folder.mkdir(parents=True)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.alone()
        shutil.rmtree(self.folder, ignore_errors=True)
