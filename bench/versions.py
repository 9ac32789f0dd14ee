"""Compare the broker of this checkout with that of another one, in one run.

    git worktree add ../before COMMIT
    python -m bench.versions ../before

Each line: median and range here and there, and the ratio of the medians; kept in bench/results/versions/. Exit code 1:
a figure is worse than the other checkout's by more than WORSE_MAX. Both run `mqtrail up` with the packages of this
interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from interop.probe import wait_until

from bench.apache import anonymous_bytes, cpu_seconds, create_topic, send_one
from bench.load import BATCH, DEEP, ONE64, PULL, SYNC64, Shape, run_load
from bench.machine import ROOT, busy_cores, commit, machine
from bench.rows import Json
from bench.session import two_cores
from bench.table import RESULTS

SHAPES: Final = (SYNC64, ONE64, DEEP, BATCH)  # PULL is measured first, on messages that are new
WORSE_MAX: Final = 0.05
TOPIC: Final = "BenchTopic"
MIB: Final = 1 << 20
START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 20.0
SETTLE_S_MAX: Final = 30.0
SETTLE_STEP_S: Final = 0.2
IDLE_SHARE: Final = 0.05  # of a core
PREPARE_S: Final = 2.0


@dataclass
class Figure:
    """The values of both checkouts, round by round."""

    name: str
    unit: str
    here: list[float] = field(default_factory=list)
    there: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median here divided by median there."""
        return statistics.median(self.here) / statistics.median(self.there)

    @property
    def is_worse(self) -> bool:
        return self.ratio > 1 + WORSE_MAX

    def to_json(self) -> Json:
        """Return the figure as it is kept."""
        rounds = {"here": self.here, "there": self.there}
        return {"figure": self.name, "unit": self.unit, "ratio": round(self.ratio, 4), **rounds}

    def __str__(self) -> str:
        texts = [f"{statistics.median(of):.4g} [{min(of):.4g}-{max(of):.4g}]" for of in (self.here, self.there)]
        verdict = "worse" if self.is_worse else "ok"
        return f"{self.name:24} {self.unit:7} here {texts[0]:28} there {texts[1]:28} ratio {self.ratio:.3f} {verdict}"


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a checkout's server. It keeps compiled modules, as an installed package has them: a
    start that compiles its modules holds a MiB more."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONPATH": str(tree / "src")}


class TreeServer:
    """Name server and broker of one checkout: `mqtrail up` with its defaults."""

    def __init__(self, tree: Path, folder: Path, cpu: int | None = None) -> None:
        pinned = [] if cpu is None else ["taskset", "-c", str(cpu)]
        up = [sys.executable, "-m", "mqtrail", "up", "--data", str(folder), "--json"]
        self.began_s = time.monotonic()
        self._process = subprocess.Popen(
            [*pinned, *up, "--namesrv-port", "0", "--broker-port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tree,
            env=environment(tree),
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"mqtrail up of {tree} ended with {self._process.wait()} before it was ready")
        [self.address] = json.loads(line)["brokers"].values()
        wait_until(lambda: send_one(self.address) == 0, "the first stored send", START_S_MAX, 0.005)
        self.first_send_s = time.monotonic() - self.began_s
        create_topic(self.address)

    @property
    def pid(self) -> int:
        return self._process.pid  # taskset becomes the command: one process

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Let it run inside the block only."""
        os.kill(self.pid, signal.SIGCONT)
        try:
            yield self
        finally:
            os.kill(self.pid, signal.SIGSTOP)

    def settle(self) -> None:
        """Wait until it does no more than an idle one, for SETTLE_S_MAX at most."""
        before_s, over_s = cpu_seconds(self.pid), time.monotonic() + SETTLE_S_MAX
        while time.monotonic() < over_s:
            time.sleep(SETTLE_STEP_S)
            now_s = cpu_seconds(self.pid)
            if now_s - before_s < IDLE_SHARE * SETTLE_STEP_S:
                return
            before_s = now_s

    def close(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._process.terminate()
        self._process.communicate(timeout=STOP_S_MAX)


def loads(trees: Sequence[Path], folder: Path, rounds: int, seconds: float) -> Iterator[Figure]:
    """CPU of the server a message, of pulls, sends and batches: the server on one core, the load on another.

    CPU, because a rate says more about what else the machine does.
    """
    server_cpu, load_cpu = two_cores()
    with ExitStack() as stack:
        servers = [
            stack.enter_context(closing(TreeServer(tree, folder / str(number), server_cpu)))
            for number, tree in enumerate(trees)
        ]

        def cpu_us(server: TreeServer, shape: Shape, seconds: float) -> float:
            before_s = cpu_seconds(server.pid)
            load = run_load(server.address, shape, seconds=seconds, warmup=0, cpus=[load_cpu])
            used_s = cpu_seconds(server.pid) - before_s
            accepted = load.message_rate * load.seconds
            if not accepted:
                raise RuntimeError(f"{shape.name}: nothing was accepted: {load.error or 'no reply'}")
            return used_s / accepted * 1e6

        for server in servers:
            os.kill(server.pid, signal.SIGSTOP)
        for server in servers:
            with server.running():
                cpu_us(server, DEEP, PREPARE_S)
                server.settle()
        for shape in (PULL, *SHAPES):
            figure = Figure(shape.name, "CPU µs")

            def one(side: int, shape: Shape = shape) -> float:
                with servers[side].running() as server:
                    return cpu_us(server, shape, seconds)

            in_turns(figure, rounds, one)
            yield figure


def starts(trees: Sequence[Path], folder: Path, rounds: int, seconds: float) -> Iterator[Figure]:
    """First start: time to the first stored send, anonymous memory then and after load."""
    fresh, loaded = Figure("memory", "MiB"), Figure("memory-loaded", "MiB")
    serial = iter(range(2 * rounds))

    def one(side: int) -> float:
        with closing(TreeServer(trees[side], folder / f"start-{next(serial)}")) as server:
            (fresh.there if side else fresh.here).append(anonymous_bytes(server.pid) / MIB)
            for shape in (SYNC64, DEEP):
                run_load(server.address, shape, seconds=seconds, warmup=0)
            (loaded.there if side else loaded.here).append(anonymous_bytes(server.pid) / MIB)
            return server.first_send_s

    first_send = Figure("first-send", "s")
    in_turns(first_send, rounds, one)
    yield from (first_send, fresh, loaded)


def in_turns(figure: Figure, rounds: int, one: Callable[[int], float]) -> None:
    """Measure both sides in each round; every other round begins with the other checkout."""
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            (figure.there if side else figure.here).append(one(side))


def keep(figure: Figure, there: Path) -> None:
    """Add a figure to the results of today."""
    when = datetime.now(UTC)
    commits = {"commit": commit(), "commit_there": commit(there)}
    row = {**figure.to_json(), **commits, "machine": machine(), "load_average": busy_cores()}
    folder = RESULTS / "versions"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{when:%Y-%m-%d}.jsonl").open("a") as file:
        file.write(json.dumps({**row, "when": when.isoformat(timespec="seconds")}) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the broker of this checkout with that of another one."""
    parser = argparse.ArgumentParser(prog="python -m bench.versions", description=main.__doc__)
    parser.add_argument("tree", type=Path, metavar="TREE", help="the other checkout")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds of each figure (default 7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a load (default 2)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".build", help="where servers keep their files")
    arguments = parser.parse_args(argv)
    if not (arguments.tree / "src" / "mqtrail").is_dir():
        parser.error(f"found no src/mqtrail in {arguments.tree}, expected a checkout of mqtrail")
    trees = (ROOT, arguments.tree.resolve())
    worse = False
    with tempfile.TemporaryDirectory(prefix="versions-", dir=arguments.folder) as folder:
        for measure in (loads, starts):
            for figure in measure(trees, Path(folder), arguments.rounds, arguments.seconds):
                print(figure, flush=True)
                keep(figure, trees[1])
                worse = worse or figure.is_worse
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
