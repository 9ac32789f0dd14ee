"""Benchmarks of a first start: `mqtrail up` beside Apache's name server and broker, time and anonymous memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from interop.probe import wait_until

from bench.apache import JVM_LEAN, ApachePeer, anonymous_bytes, create_topic, send_one
from bench.broker import PEER
from bench.load import DEEP, SYNC64, run_load
from bench.registry import figure
from bench.rows import Bar, Row
from bench.session import APACHE_VERSION, Session

MIB = 1 << 20
START_TIMEOUT_S = 60.0
POLL_S = 0.005
LOAD_S = 2.0  # of each of two shapes


@dataclass
class Starts:
    """The results of one side, round by round."""

    first_send_s: list[float] = field(default_factory=list)
    fresh_mib: list[float] = field(default_factory=list)
    loaded_mib: list[float] = field(default_factory=list)


@figure("start", "mqtrail up beside Apache: time to the first stored send, anonymous memory", seconds=90)
def start(session: Session) -> Iterator[Row]:
    """Both JVMs of Apache start at once with a small heap: the smallest that works well."""
    session.alone()
    found = {"ours": Starts(), "apache": Starts()}
    for number in range(session.rounds):
        for name in session.order(number, ("ours", "apache")):
            folder = session.fresh_folder(name)
            (start_ours if name == "ours" else start_apache)(folder, found[name])
    ours, apache = found["ours"], found["apache"]
    peer = f"{PEER}, {' '.join(JVM_LEAN)}"
    for name, what, unit, mine, theirs, limit in (
        ("first-send", "time to the first stored send", "s", ours.first_send_s, apache.first_send_s, 1 / 5),
        ("memory", "anonymous memory after the first send", "MiB", ours.fresh_mib, apache.fresh_mib, 1 / 8),
        ("memory-loaded", "anonymous memory after load", "MiB", ours.loaded_mib, apache.loaded_mib, 1 / 5),
    ):
        yield Row(f"start/{name}", f"{what}, name server and broker", unit, mine, theirs, peer, Bar("<=", limit))


def start_ours(folder: Path, starts: Starts) -> None:
    """Run the command, measured from the fork of its interpreter."""
    command = [sys.executable, "-m", "mqtrail", "up", "--data", str(folder / "data"), "--json"]
    began_s = time.monotonic()
    process = subprocess.Popen(
        [*command, "--namesrv-port", "0", "--broker-port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"mqtrail up ended with {process.wait()} before it was ready; its message is above")
        [address] = json.loads(line)["brokers"].values()
        measure_from(began_s, address, [process.pid], starts)
    finally:
        process.terminate()
        process.communicate(timeout=START_TIMEOUT_S)


def start_apache(folder: Path, starts: Starts) -> None:
    peer = ApachePeer(APACHE_VERSION, folder, jvm=JVM_LEAN)
    began_s = time.monotonic()
    try:
        peer.namesrv.launch()
        peer.broker.launch()
        measure_from(began_s, peer.broker_address, [peer.namesrv.pid, peer.broker.pid], starts)
    finally:
        peer.broker.kill()
        peer.namesrv.kill()


def measure_from(began_s: float, address: str, pids: list[int], starts: Starts) -> None:
    """Record the time of the first stored send, the memory then, and the memory after load."""
    wait_until(lambda: send_one(address) == 0, "the first stored send", START_TIMEOUT_S, POLL_S)
    starts.first_send_s.append(time.monotonic() - began_s)
    starts.fresh_mib.append(sum(map(anonymous_bytes, pids)) / MIB)
    create_topic(address)
    for shape in (SYNC64, DEEP):
        run_load(address, shape, seconds=LOAD_S, warmup=0)
    starts.loaded_mib.append(sum(map(anonymous_bytes, pids)) / MIB)
