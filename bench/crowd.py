"""Benchmarks of idle state: connections, held pulls, topics, delayed messages.
One round each, ours and Apache's in turn, each alone, because building the state takes longer than the measurement.
Memory is anonymous memory of name server and broker. Idle CPU is their share of a core. Start is the time from the fork
to the first stored send, with the data of the previous run.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

from bench.apache import JVM_LEAN, ApachePeer, cpu_seconds, create_topic, send_one
from bench.broker import PEER
from bench.load import Shape, run_load
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Row
from bench.session import APACHE_VERSION, Session

MIB = 1 << 20
CONNECTIONS, CONNECTIONS_QUICK = 10_000, 200
HELD, HELD_QUICK = 1_000, 50
TOPICS, TOPICS_QUICK, QUEUES = 1_000, 20, 8
DELAYED, DELAYED_QUICK = 1_000_000, 5_000
DELAY_S = 200_000  # within timerMaxDelaySec, and later than this run
IDLE_S = 4.0
SETTLE_S_MAX = 60.0
FILES_SPARE = 500
PULL_MESSAGE = 11
HOLD_MS = 60_000
LIMIT = 1 / 4
BUILDING = Shape("building", 16, 8, body_size=100)


@dataclass
class Found:
    """Results of one side, by state: MiB of memory, share of a core, seconds to start."""

    memory: dict[str, float] = field(default_factory=dict)
    idle: dict[str, float] = field(default_factory=dict)
    start: dict[str, float] = field(default_factory=dict)


@figure("crowd", "10 000 idle connections, 1 000 held pulls, 1 000 topics, 1 000 000 delayed messages", seconds=280)
def crowd(session: Session) -> Iterator[Row]:
    session.alone()
    count = CONNECTIONS_QUICK if session.quick else CONNECTIONS
    if getrlimit(RLIMIT_NOFILE)[0] < count + FILES_SPARE:
        raise CannotMeasure(
            f"found a limit of {getrlimit(RLIMIT_NOFILE)[0]} open files, expected {count + FILES_SPARE}: ulimit -n"
        )
    found = {who: watch(session, who) for who in ("ours", "apache")}
    peer = f"{PEER}, {' '.join(JVM_LEAN)}"
    for kind, what, unit in (
        ("memory", "anonymous memory", "MiB"),
        ("idle", "CPU at idle", "of a core"),
        ("start", "time to the first stored send", "s"),
    ):
        ours, apache = getattr(found["ours"], kind), getattr(found["apache"], kind)
        for state in ours:
            full = f"{what} with {state}"
            name = f"crowd/{kind}/{state.replace(' ', '-')}"
            yield Row(name, full, unit, [ours[state]], [apache[state]], peer, Bar("<=", LIMIT))


def watch(session: Session, who: str) -> Found:
    """Build each state on one side and measure it."""
    found, folder = Found(), session.fresh_folder(who)
    server = start(who, folder, found, "nothing")
    measure_idle(server, found, "nothing")
    count = CONNECTIONS_QUICK if session.quick else CONNECTIONS
    with ExitStack() as open_sockets:
        for _ in range(count):
            open_sockets.enter_context(socket.create_connection(split(server.broker_address)))
        measure_idle(server, found, f"{count} idle connections")
    count = HELD_QUICK if session.quick else HELD
    with ExitStack() as open_sockets:
        for number in range(count):
            connection = open_sockets.enter_context(socket.create_connection(split(server.broker_address)))
            connection.sendall(held_pull(number))
        measure_idle(server, found, f"{count} held pulls")
    count = TOPICS_QUICK if session.quick else TOPICS
    for number in range(count):
        create_topic(server.broker_address, f"Crowd{number}", QUEUES)
        send_one(server.broker_address, f"Crowd{number}")
    state = f"{count} topics of {QUEUES} queues"
    measure_idle(server, found, state)
    server = restart(who, server, folder, found, state)
    count, sent = DELAYED_QUICK if session.quick else DELAYED, 0
    while sent < count:
        load = run_load(
            server.broker_address,
            replace(BUILDING, property=f"TIMER_DELAY_SEC={DELAY_S}"),
            seconds=1,
            warmup=0,
        )
        taken = load.requests - load.errors  # a cold JVM refuses some because they waited in its queue
        if taken <= 0:
            raise RuntimeError(f"{who}: none of {load.requests} delayed messages was accepted: {load.error}")
        sent += taken
    state = f"{count} delayed messages"
    measure_idle(server, found, state)
    server = restart(who, server, folder, found, state)
    server.__exit__(None, None, None)
    return found


Server = OurPeer | ApachePeer


def start(who: str, folder: Path, found: Found, state: str) -> Server:
    server: Server
    if who == "ours":
        server = OurPeer(folder)
    else:
        server = ApachePeer(APACHE_VERSION, folder, jvm=JVM_LEAN, properties={"timerWheelEnable": "true"})
    found.start[state] = server.start()
    return server


def restart(who: str, server: Server, folder: Path, found: Found, state: str) -> Server:
    """Stop it cleanly and start it again on its files."""
    if isinstance(server, ApachePeer):
        server.broker.stop()
        server.namesrv.kill()
    else:
        server.__exit__(None, None, None)
    return start(who, folder, found, state)


def measure_idle(server: Server, found: Found, state: str) -> None:
    """Wait until it is idle, at most a minute, then measure memory and CPU."""
    pids = [server.pid] if isinstance(server, OurPeer) else [server.broker.pid, server.namesrv.pid]
    deadline_s = time.monotonic() + SETTLE_S_MAX
    share = 1.0
    while share > 0.1 and time.monotonic() < deadline_s:
        share = usage(pids, 1.0)
    found.idle[state] = usage(pids, IDLE_S)
    found.memory[state] = server.anonymous_bytes() / MIB


def usage(pids: list[int], seconds: float) -> float:
    """Return the share of a core that the processes use in this many seconds."""
    before_s, began_s = sum(map(cpu_seconds, pids)), time.monotonic()
    time.sleep(seconds)
    return (sum(map(cpu_seconds, pids)) - before_s) / (time.monotonic() - began_s)


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def held_pull(number: int) -> bytes:
    """Return the frame of a pull at the end of a queue that waits a minute."""
    ext = {
        "consumerGroup": "BenchHeld",
        "topic": "BenchTopic",
        "queueId": str(8 + number % 8),  # the first queues have the messages sent at starts
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(HOLD_MS),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    header = json.dumps(
        {"code": PULL_MESSAGE, "language": "OTHER", "version": 479, "opaque": number, "flag": 0, "extFields": ext}
    ).encode()
    return struct.pack(">ii", 4 + len(header), len(header)) + header
