"""Benchmarks of a start after kill -9: time to the first stored send, beside Apache's broker on the same files.

Our broker fills a store under load and is killed meanwhile. Each start works on a copy of those files: segments that
are no longer written are hard links; the last two and all derived files are copied. Apache's name server runs already;
ours starts together with our broker.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from interop.apache import ApacheBroker, ApacheNameServer
from interop.probe import wait_until

from bench.apache import BENCH_PROPERTIES, JVM_BENCH, create_topic, send_one
from bench.broker import PEER
from bench.load import DEEP, run_load
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import APACHE_VERSION, Session

GIB = 1 << 30
STORE_SIZE, STORE_QUICK_SIZE = 10 * GIB, 1 * GIB
LOAD_S = 5.0  # between two checks of the size
KILL_AFTER_S = 2.0  # of load
SEGMENTS_COPIED = 2  # the last ones: a start wipes their tail and continues to write there
START_TIMEOUT_S = 600.0
POLL_S = 0.005
ROUNDS_MAX = 3  # each takes the time of two starts and two copies
BROKER = "broker-a"


@dataclass
class Recoveries:
    """The times of each side, round by round."""

    ours_s: list[float] = field(default_factory=list)
    apache_s: list[float] = field(default_factory=list)


@figure("recovery", "start after kill -9 of a store of 10 GB beside Apache on the same files", seconds=600)
def recovery(session: Session) -> Iterator[Row]:
    """Both start from the page cache, as the copy leaves it, in turns."""
    session.alone()
    size = STORE_QUICK_SIZE if session.quick else STORE_SIZE
    killed = session.fresh_folder("recovery")
    if shutil.disk_usage(killed).free < 2 * size:
        raise CannotMeasure(f"found less than {2 * size >> 30} GiB free in {session.folder}, expected that much")
    fill_and_kill(killed, size)
    found = Recoveries()
    rounds = min(session.rounds, ROUNDS_MAX)
    for number in range(rounds):
        for name in session.order(number, ("ours", "apache")):
            folder = session.fresh_folder(name)
            copy_store(killed, folder)
            if name == "ours":
                found.ours_s.append(start_ours(folder))
            else:
                found.apache_s.append(start_apache(folder))
            shutil.rmtree(folder)
    yield Row(
        "recovery/first-send",
        f"time to the first stored send after kill -9, a store of {size >> 30} GiB",
        "s",
        found.ours_s,
        found.apache_s,
        PEER,
        Bar("<=", 1.0),
        more={"store_gib": size / GIB},
    )


def fill_and_kill(folder: Path, size: int) -> None:
    """Let our broker store this many bytes, and kill it under load."""
    peer = OurPeer(folder)
    peer.start()
    while stored(folder) < size:
        run_load(peer.broker_address, DEEP, seconds=LOAD_S, warmup=0)
    load = threading.Thread(target=_load_until_killed, args=(peer.broker_address,))
    load.start()
    time.sleep(KILL_AFTER_S)
    assert peer.process is not None
    peer.process.kill()
    peer.process.wait()
    load.join()


def _load_until_killed(address: str) -> None:
    with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):  # its connections are closed
        run_load(address, DEEP, seconds=4 * KILL_AFTER_S, warmup=0)


def stored(folder: Path) -> int:
    """Return the bytes of the CommitLog's segments, including the whole last one."""
    return sum(file.stat().st_size for file in (folder / BROKER / "commitlog").iterdir())


def copy_store(source: Path, target: Path) -> None:
    """Copy a data folder; use hard links for segments that are no longer written."""
    log = source / BROKER / "commitlog"
    kept = sorted(file.name for file in log.iterdir())[:-SEGMENTS_COPIED]
    for path, folders, files in os.walk(source):
        to = target / Path(path).relative_to(source)
        to.mkdir(mode=0o700, exist_ok=True)
        folders.sort()
        for name in files:
            file = Path(path) / name
            if Path(path) == log and name in kept:
                os.link(file, to / name)
            else:
                subprocess.run(["cp", "--sparse=always", "-p", str(file), str(to / name)], check=True)


def start_ours(folder: Path) -> float:
    """Return the seconds from the fork to the first stored send."""
    peer = OurPeer(folder)
    try:
        return peer.start()
    finally:
        if peer.process is not None:
            peer.process.kill()
            peer.process.wait()


def start_apache(folder: Path) -> float:
    """Return the seconds from the fork of the broker's JVM to the first stored send."""
    namesrv = ApacheNameServer(APACHE_VERSION, folder / "apache-namesrv").start()
    broker = ApacheBroker(
        APACHE_VERSION,
        folder / "apache",
        namesrv.address,
        name=BROKER,
        store=folder / BROKER,
        jvm=JVM_BENCH,
        properties=BENCH_PROPERTIES,
    )
    try:
        began_s = time.monotonic()
        broker.launch()
        wait_until(lambda: send_one(broker.address) == 0, "the first stored send", START_TIMEOUT_S, POLL_S)
        took_s = time.monotonic() - began_s
        create_topic(broker.address)  # it serves any request by now
        return took_s
    finally:
        broker.kill()
        namesrv.kill()
