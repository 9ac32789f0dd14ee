"""Benchmarks of pmq mode: the HTTP door on SQLite, PostgreSQL and MariaDB, and the RocketMQ door on SQLite.

The clients are processes of `bench.door_load`; the servers are those of the tests, with a disk that is flushed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx
from sqlalchemy import Connection, Engine, create_engine, select, text
from tests.databases.servers import SERVERS, DatabaseServer

from bench.apache import measured
from bench.door_load import (
    BODY,
    PULL_LEAST_S,
    PULL_MAX_S,
    PULL_STEP_S,
    consumed,
    idle_members,
    join_delay,
    latency,
    published,
)
from bench.load import SYNC64, Load, run_load
from bench.ours import OurPeer
from bench.registry import figure
from bench.rows import Bar, CannotMeasure, Json, Row
from bench.session import Session
from mqtrail.client import SyncAdmin
from mqtrail.store.sql import look_at
from mqtrail.store.sql.engines import make_engine, parse
from mqtrail.store.sql.inserting import insert_messages
from mqtrail.store.sql.schema import message_table
from mqtrail.wire import SubscriptionGroupConfig

CLIENTS: Final = 64
LIST: Final = 32  # messages of a request with a list
QUEUES: Final = 16
QUEUES_DEFAULT: Final = 4  # of a topic that is made over HTTP
WARM_S, WARM_QUICK_S = 0.5, 0.3
PUBLISH_S, PUBLISH_QUICK_S = 2.0, 1.0  # so that several commits of a full batch end in it
LIST_ROUNDS_MAX: Final = 3
BARE_TABLE: Final = "bare_messages"
KEPT, KEPT_QUICK = 20_000, 3_000  # messages to consume
PUT: Final = 500  # messages of a request that makes them
CONSUMERS: Final = (1, 4, 16)
PULLED: Final = 32  # rows of a bare read, as messages of a receive
PER_S: Final = 200
LATENCY_S, LATENCY_QUICK_S = 3.0, 1.5
WAYS: Final = {
    "events": "Server-Sent Events",
    "wake-ups": "pmq's wake-ups and pulls",
    "subscriber": "Publisher and Subscriber of mqtrail.pmq",
}
P50_BAR_MS, P99_BAR_MS = 20.0, 100.0
JOIN_PER_S: Final = 50
JOIN_S, JOIN_PMQ_S, JOIN_QUICK_S, JOIN_PMQ_QUICK_S = 5.0, 14.0, 2.0, 8.0  # between a join and the leave
JOIN_ROUNDS: Final = {"subscriber": 3, "pmq": 2}
JOIN_BAR_S: Final = 3.0
PMQ_STILL_S: Final = 31.0  # the least that was observed on pmq itself
IDLE: Final = 100  # consumers, and queues
IDLE_S, IDLE_QUICK_S = 10.0, 2.0
IDLE_BAR: Final = 0.1
START_S: Final = 60.0
DATABASES: Final = ("sqlite", *sorted(SERVERS))
NAMES: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Base:
    """A database. server: None: a file."""

    url: str
    server: DatabaseServer | None


@contextmanager
def database(session: Session, kind: str) -> Iterator[Base]:
    """Yield a new database, on a server of its own. CannotMeasure: the server is not installed."""
    if kind == "sqlite":
        yield Base(f"sqlite:///{session.fresh_folder('sqlite')}/messages.db", None)
        return
    try:
        server = SERVERS[kind]()
    except AssertionError as error:
        raise CannotMeasure(str(error)) from error
    try:
        yield Base(server.new_database(), server)
    finally:
        server.remove()


class DoorProcess:
    """A running `mqtrail pmq up` on a database."""

    def __init__(self, folder: Path, url: str) -> None:
        settings = folder / "settings.toml"
        settings.write_text("[node]\nhttp_wake_local = true\n")
        ports = ("--port", "0", "--namesrv-port", "0", "--broker-port", "0")
        files = ("--data", str(folder / "data"), "--config", str(settings))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mqtrail", "pmq", "up", *ports, *files, "--json"],
            env={**os.environ, "MQTRAIL_STORE_URL": url},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the door ended with {self._process.wait()} before it was ready; its log is above")
        ready = json.loads(line)
        self.url: str = ready["http"]
        self._namesrv: str = ready["namesrv"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def make_topic(self, queues: int = QUEUES) -> str:
        """Make a topic; return its name. The first message of a queue makes its table."""
        topic = f"orders-{next(_numbers)}"
        with httpx.Client(base_url=self.url, timeout=START_S, trust_env=False) as http:
            http.put(f"/v1/topics/{topic}", json={"queues": queues}).raise_for_status()
        return topic

    def put(self, topic: str, total: int, *, at_once: int = PUT) -> None:
        """Publish messages in lists."""
        with httpx.Client(base_url=self.url, timeout=START_S, trust_env=False) as http:
            for _ in range(total // at_once):
                http.post(f"/v1/topics/{topic}/messages", json=[{"body": BODY}] * at_once).raise_for_status()

    def make_group(self, group: str) -> None:
        """Make a group, so that pmq's clients may join it."""
        with SyncAdmin(self._namesrv) as admin:
            admin.create_group(SubscriptionGroupConfig(group))

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def door(session: Session, kind: str) -> Iterator[tuple[DoorProcess, Base]]:
    """Yield a door on a new database of a kind."""
    session.alone()
    with ExitStack() as stack:
        base = stack.enter_context(database(session, kind))
        yield stack.enter_context(closing(DoorProcess(session.fresh_folder(f"door-{kind}"), base.url))), base


# Publishing.


class BareInserts:
    """Inserts into a table of the same shape by the driver's executemany, without anything of ours around it."""

    def __init__(self, url: str) -> None:
        parsed = parse(url)
        if parsed.drivername == "sqlite":
            parsed = parsed.set(database=f"{parsed.database}-bare")  # a file has one writer
        self._engine: Engine = make_engine(parsed)
        self._next = 0
        with self._engine.begin() as connection:
            message_table(BARE_TABLE).create(connection)

    def close(self) -> None:
        self._engine.dispose()

    def per_s(self, rows: int, warm_s: float, seconds: float) -> float:
        """Insert so many rows a transaction; return rows a second."""
        begin_s = time.perf_counter() + warm_s
        while time.perf_counter() < begin_s:
            self._commit(rows)
        began_s, done = time.perf_counter(), 0
        while not done or time.perf_counter() < began_s + seconds:
            self._commit(rows)
            done += rows
        return done / (time.perf_counter() - began_s)

    def _commit(self, rows: int) -> None:
        with self._engine.begin() as connection:
            self._insert(connection, rows)

    def _insert(self, connection: Connection, rows: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        properties = b"UNIQ_KEY\x01C000020260928BEA44086873AA32021D\x02"
        row = {"size": 700, "store_ms": now_ms, "born_ms": now_ms, "tags_code": 0, "flag": 0, "sys_flag": 0}
        row |= {"reconsume_times": 0, "prepared_offset": 0}
        hosts = {"born_host": bytes(8), "store_host": bytes(8)}
        texts = {"msg_id": "C000020260928BEA44086873AA32021D", "tag": None, "msg_keys": None}
        content = {"properties": properties, "body": BODY.encode()}
        given: list[dict[str, Any]] = [
            {"id": number, "physical_offset": 700 * number, **row, **hosts, **texts, **content}
            for number in range(self._next, self._next + rows)
        ]
        insert_messages(connection, BARE_TABLE, given)
        self._next += rows


@figure("pmq-publish", "publishes over HTTP on three databases, beside bare inserts", seconds=150)
def publish(session: Session) -> Iterator[Row]:
    """Single messages and lists; door and bare inserts in turn."""
    for kind in DATABASES:
        with door(session, kind) as (process, base), closing(BareInserts(base.url)) as bare:
            topic = process.make_topic(QUEUES_DEFAULT)
            for _ in range(2 * QUEUES_DEFAULT):
                process.put(topic, 1, at_once=1)  # makes the tables
            yield _publish_row(session, process, bare, topic, kind, 1)
            yield _publish_row(session, process, bare, topic, kind, LIST)


def _publish_row(session: Session, process: DoorProcess, bare: BareInserts, topic: str, kind: str, each: int) -> Row:
    """A commit gathers at most what all clients have under way: as many rows are a transaction of the peer's."""
    warm_s, seconds = (WARM_QUICK_S, PUBLISH_QUICK_S) if session.quick else (WARM_S, PUBLISH_S)
    rounds = session.rounds if each == 1 else min(session.rounds, LIST_ROUNDS_MAX)
    ours, peer, found, cpu_us = list[float](), list[float](), list[Json](), list[float]()
    for number in range(rounds):
        for side in session.order(number, ("ours", "peer")):
            if side == "peer":
                peer.append(bare.per_s(CLIENTS * each, warm_s, seconds))
                continue
            order = {"topic": topic, "connections": CLIENTS, "count": each}
            with measured(process.pid) as usage:
                load = published(process.url, **order, warm_s=warm_s, seconds=seconds)
            ours.append(load["perS"])
            found.append(load)
            cpu_us.append(usage.cpu_s * 1e6 / max(1, load["perS"] * (seconds + warm_s)))
    what = "one message a request" if each == 1 else f"lists of {each}"
    return Row(
        f"pmq/publish/{kind}/{what.rpartition(' ')[2] if each > 1 else 'single'}",
        f"messages/s of 500 bytes over HTTP on {NAMES[kind]}, {CLIENTS} clients, {what}",
        "messages/s",
        ours,
        peer,
        f"bare inserts, {CLIENTS * each} rows a transaction",
        Bar(">=", 0.5),
        errors=(sum(load["errors"] for load in found), 0),
        more={"p50_ms": _all(found, "p50Ms"), "p99_ms": _all(found, "p99Ms"), "door_cpu_us": cpu_us},
    )


def _all(found: Sequence[Json], name: str) -> list[float]:
    return [one[name] for one in found]


@figure("pmq-remoting", "sends of the RocketMQ door on SQLite, beside the CommitLog", seconds=40)
def remoting(session: Session) -> Iterator[Row]:
    """Both with a flush before each reply, both cores shared."""
    session.alone()
    warm_s = WARM_QUICK_S if session.quick else 1.0
    found: dict[str, list[Load]] = {"tables": [], "log": []}
    folders = {side: session.fresh_folder(side) for side in found}
    url = f"sqlite:///{folders['tables']}/messages.db"
    on_tables = OurPeer(folders["tables"] / "data", sync_flush=True, store_url=url)
    with on_tables as tables, OurPeer(folders["log"] / "data", sync_flush=True) as log:
        servers = {"tables": tables, "log": log}
        for number in range(session.rounds):
            for side in session.order(number, tuple(found)):
                load = run_load(servers[side].broker_address, SYNC64, seconds=session.seconds, warmup=warm_s)
                found[side].append(load)
    ours, peer = found["tables"], found["log"]
    yield Row(
        "pmq/remoting/64x1",
        "sends/s of the RocketMQ door on SQLite, 64 × 1, JSON headers",
        "messages/s",
        [load.message_rate for load in ours],
        [load.message_rate for load in peer],
        "the same on CommitLog with SYNC_FLUSH",
        errors=(sum(load.errors for load in ours), sum(load.errors for load in peer)),
        more={"p99_us": {side: [load.p99_us for load in loads] for side, loads in found.items()}},
    )


# Consuming, on PostgreSQL.


@figure("pmq-consume", "consumers of a group, and publish → handler at 200/s, on PostgreSQL", seconds=120)
def consume(session: Session) -> Iterator[Row]:
    """Each round is a new group over the same messages."""
    with door(session, "postgresql") as (process, base):
        topic = process.make_topic()
        process.put(topic, KEPT_QUICK if session.quick else KEPT)
        tables = _tables_of(base.url, topic)
        warm_s = WARM_QUICK_S if session.quick else WARM_S
        peer = [_bare_reads_per_s(base.url, tables, session.seconds) for _ in range(session.rounds)]
        for consumers in CONSUMERS:
            orders = [{"group": f"billing-{next(_numbers)}", "consumers": consumers} for _ in range(session.rounds)]
            found = [
                consumed(process.url, topic=topic, **order, warm_s=warm_s, seconds=session.seconds)["perS"]
                for order in orders
            ]
            yield Row(
                f"pmq/consume/{consumers}",
                f"messages/s received in answers of {PULLED} and acknowledged, {consumers} consumers of a group, "
                f"PostgreSQL",
                "messages/s",
                found,
                peer,
                f"bare reads of {PULLED} rows of the same tables, one connection",
            )
        yield from _latencies(session, process)


def _tables_of(url: str, topic: str) -> list[str]:
    found = look_at(url, queues=True).queues or ()
    return [one.table for one in found if one.topic == topic]


def _bare_reads_per_s(url: str, tables: Sequence[str], seconds: float) -> float:
    """Read the tables from end to end, again and again; return rows a second."""
    engine, done = make_engine(parse(url), reads=True), 0
    began_s = time.perf_counter()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while time.perf_counter() < began_s + seconds:
            for table in map(message_table, tables):
                start = 0
                while rows := connection.execute(
                    select(table).where(table.c.id >= start).order_by(table.c.id).limit(PULLED)
                ).all():
                    start = rows[-1].id + 1
                    done += len(rows)
    took_s = time.perf_counter() - began_s
    engine.dispose()
    return done / took_s


def _latencies(session: Session, process: DoorProcess) -> Iterator[Row]:
    seconds = LATENCY_QUICK_S if session.quick else LATENCY_S
    for way, name in WAYS.items():
        found = []
        for _ in range(session.rounds):
            group = f"shipping-{next(_numbers)}"
            process.make_group(group)
            order = {"way": way, "topic": process.make_topic(QUEUES_DEFAULT), "group": group, "per_s": PER_S}
            found.append(latency(process.url, **order, warm_s=0.5, seconds=seconds))
        for part, limit in (("p50", P50_BAR_MS), ("p99", P99_BAR_MS)):
            yield Row(
                f"pmq/latency/{way}/{part}",
                f"publish → handler at {PER_S}/s by {name}, {part}, PostgreSQL",
                "ms",
                _all(found, f"{part}Ms"),
                bar=Bar("<=", limit, of="ours"),
            )


# Groups, on MariaDB.


@figure("pmq-groups", "the stand-still of a group at a join; statements of idle consumers, on MariaDB", seconds=150)
def groups(session: Session) -> Iterator[Row]:
    """MariaDB counts the statements that it executes."""
    with door(session, "mariadb") as (process, base):
        assert base.server is not None
        yield from _joins(session, process)
        yield from _idle(session, process, base.server)


def _joins(session: Session, process: DoorProcess) -> Iterator[Row]:
    lengths = {"subscriber": (JOIN_S, JOIN_QUICK_S), "pmq": (JOIN_PMQ_S, JOIN_PMQ_QUICK_S)}
    for way, (seconds, quick_s) in lengths.items():
        found, rounds = [], min(session.rounds, JOIN_ROUNDS[way])
        for _ in range(rounds):
            group = f"stock-{next(_numbers)}"
            process.make_group(group)
            order = {"way": way, "topic": process.make_topic(QUEUES_DEFAULT), "group": group, "per_s": JOIN_PER_S}
            found.append(join_delay(process.url, **order, warm_s=1.0, seconds=quick_s if session.quick else seconds))
        is_pmq = way == "pmq"
        who = "a client with pmq's protocol" if is_pmq else "a Subscriber of mqtrail.pmq"
        for act, done in (("join", "joins"), ("leave", "leaves")):
            yield Row(
                f"pmq/{act}/{way}",
                f"longest delay of a message, {JOIN_PER_S}/s, when {who} {done}",
                "s",
                _all(found, f"{act}S"),
                [PMQ_STILL_S] * rounds if is_pmq else (),
                "pmq's own broker, the least that was observed" if is_pmq else "",
                None if is_pmq else Bar("<=", JOIN_BAR_S, of="ours"),
            )


def _idle(session: Session, process: DoorProcess, server: DatabaseServer) -> Iterator[Row]:
    seconds = IDLE_QUICK_S if session.quick else IDLE_S
    with closing(Questions(server)) as questions:
        for way, name in (("pmq", "that pull as pmq's client does"), ("receive", "with a receive each that is held")):
            group = f"idle-{next(_numbers)}"
            process.make_group(group)
            with idle_members(process.url, way=way, topic=process.make_topic(IDLE), group=group, count=IDLE):
                before, began_s = questions.count(), time.monotonic()
                time.sleep(seconds)
                found = (questions.count() - before) / (time.monotonic() - began_s)
            yield Row(
                f"pmq/idle/{way}",
                f"statements/s on MariaDB by {IDLE} idle consumers on {IDLE} queues {name}",
                "statements/s",
                [found],
                [IDLE * pmq_pulls_per_s()],
                "pmq's pulls alone, computed from its pauses",
                Bar("<=", IDLE_BAR),
            )


class Questions:
    """How many statements a MariaDB has executed, without those that ask."""

    def __init__(self, server: DatabaseServer) -> None:
        url = server.url(server.admin_database).replace(f"{server.scheme}://", f"{server.driver}://")
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT")
        self._connection = self._engine.connect()
        self._asked = 0

    def count(self) -> int:
        """Return the number now."""
        found = self._connection.execute(text("SHOW GLOBAL STATUS LIKE 'Questions'")).one()
        self._asked += 1
        return int(found[1]) - self._asked

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()


def pmq_pulls_per_s() -> float:
    """Return the pulls of a queue without messages: pmq's client pauses longer each time, then begins anew."""
    pauses_s, pause_s = list[float](), PULL_LEAST_S
    while pause_s <= PULL_MAX_S:
        pauses_s.append(pause_s)
        pause_s += PULL_STEP_S
    return len(pauses_s) / sum(pauses_s)
