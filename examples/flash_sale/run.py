"""A whole sale on this machine: starts all parts, kills each with SIGKILL, makes the lake, and checks."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mqtrail.client import SyncAdmin
from mqtrail.pipeline import SHORT_SESSION, JobConfig, PipelineJob, SessionConfig
from mqtrail.wire import MQError, TopicConfig

from . import check, points
from .payment import Payment
from .sale import Sale, SaleError
from .stock import Stock, check_redis, connect

READY_S, STEP_S, END_S = 120.0, 240.0, 30.0
POLL_S = 0.1
RESTARTS_MAX, ROUNDS_MAX = 50, 5
QUIET_S = 10.0  # nothing has changed for so long: the sale is over, although something is missing
OWED_S = 60.0  # the same while a payment has no points, or an order no payment: a transaction may wait for its check
CALM_S = 1.0  # the same if nothing is missing
BROKER = (
    # A failed message comes again after a second, and a transaction without an end is asked about after two. The broker
    # counts its questions also while no payment worker is there, and gives up after 15: too early at this interval.
    *("--flush", "sync", "--set", "message_delay_level=" + " ".join(["1s"] * 18)),
    *("--set", "transaction_timeout_ms=2000", "--set", "transaction_check_ms=1000"),
    *("--set", "transaction_check_max=10000"),
)
PARTS = ("shop", "payment", "points", "sms")
KILLS = ("shop", "payment", "points", "redis", "broker")

Say = Callable[[str], None]


class Process:
    """A process that can be killed and started again."""

    def __init__(self, name: str, folder: Path, command: list[str], port: int | None = None) -> None:
        self.name = name
        self._command = command
        self._log = folder / f"{name}.log"
        self._port = port
        self._restarts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; if it has a port, wait until it listens. SaleError: it ended."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end_s = time.monotonic() + READY_S
        while self._port is not None and not listens(self._port):
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise SaleError(f"found no {self.name} that listens, expected one: read {self._log}")
            time.sleep(POLL_S)

    def keep(self) -> None:
        """Start it again if it has ended, as a supervisor does: a part that starts without its broker ends."""
        if self._process is not None and self._process.poll() is not None:
            self._restarts += 1
            if self._restarts > RESTARTS_MAX:
                raise SaleError(f"found that {self.name} ends again and again, expected that it runs: read {self._log}")
            self.start()

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(END_S)

    def stop(self) -> None:
        """End it in order, or kill it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()


def listens(port: int) -> bool:
    """Return whether a server listens on a port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Servers:
    """A Redis and a broker of our own, in a folder. `with` starts and stops them."""

    def __init__(self, folder: Path, port: Callable[[], int] = free_port) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise SaleError("found no redis-server, expected one on the PATH: apt install redis-server")
        (folder / "redis").mkdir(parents=True, exist_ok=True)
        redis, namesrv, broker = port(), port(), port()
        self.redis_url, self.namesrv = f"redis://127.0.0.1:{redis}", f"127.0.0.1:{namesrv}"
        flags = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(folder / "redis"))
        self.redis = Process("redis", folder, [program, "--bind", "127.0.0.1", "--port", str(redis), *flags], redis)
        up = [sys.executable, "-m", "mqtrail", "up", "--data", str(folder / "data"), *BROKER]
        self.broker = Process(
            "broker", folder, [*up, "--namesrv-port", str(namesrv), "--broker-port", str(broker)], broker
        )

    def __enter__(self) -> "Servers":
        with contextlib.ExitStack() as stack:
            for server in (self.redis, self.broker):
                server.start()
                stack.callback(server.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextlib.contextmanager
def parts(sale: Sale) -> Iterator[dict[str, Process]]:
    """The processes of a sale, running. At the end they finish what they work on, and commit their offsets."""
    options = ["--folder", str(sale.folder), "--name", sale.name, "--namesrv", sale.namesrv, "--redis", sale.redis]
    options += ["--stock", str(sale.stock), "--buyers", str(sale.buyers)]
    options += [word for plant in sorted(sale.plants) for word in ("--plant", plant)]
    command = [sys.executable, "-m", "examples.flash_sale", "serve"]
    running = {part: Process(part, sale.folder, [*command, part, *options]) for part in PARTS}
    try:
        for process in running.values():
            process.start()
        yield running
    finally:
        for process in running.values():
            process.stop()


async def prepare(sale: Sale) -> None:
    """Create topics and tables. SaleError: no Redis, or one that forgets."""
    await check_redis(sale)
    sale.folder.mkdir(parents=True, exist_ok=True)
    with SyncAdmin(sale.namesrv) as admin:
        for topic in sale.topics:
            admin.create_topic(TopicConfig(topic, 2, 2))
    Payment(sale).prepare()
    points.prepare(sale)


class Progress(NamedTuple):
    """How far a sale is."""

    taken: int
    unsent: int
    paid: int
    credited: int
    sms: int


async def progress(sale: Sale) -> Progress:
    """Look into the stores."""
    async with connect(sale) as client:
        stock = Stock(sale, client)
        taken, unsent = len(await stock.orders()), len(await stock.unsent(1))
    with sale.payments() as connection:
        [(paid,)] = connection.execute("SELECT count(*) FROM payments WHERE amount > 0").fetchall()
    with sale.points() as connection:
        [(credited,)] = connection.execute("SELECT count(*) FROM mqtrail_outbox WHERE sent_ms > 0").fetchall()
    return Progress(taken, unsent, paid, credited, len(sale.sms))


async def until(running: dict[str, Process], condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a step of the sale. SaleError: a part does not run, or it takes longer than STEP_S."""
    end_s = time.monotonic() + STEP_S
    while not await condition():
        for process in running.values():
            process.keep()
        if time.monotonic() > end_s:
            raise SaleError(f"found no progress within {STEP_S:.0f} s, expected some: read the logs of the parts")
        await asyncio.sleep(POLL_S)


async def kill_each(
    sale: Sale, servers: Servers, running: dict[str, Process], kills: Collection[str], say: Say
) -> None:
    """kill -9 the named parts in the middle of their work, and start each again."""
    victims: list[tuple[Process, Callable[[Progress], bool]]] = [
        (running["payment"], lambda now: now.paid > 0),
        (running["shop"], lambda now: now.taken >= sale.stock // 4),
        (running["points"], lambda now: now.credited > 0),
        (servers.redis, lambda now: now.taken >= sale.stock // 2),
        (servers.broker, lambda now: now.taken >= sale.stock * 3 // 4),
    ]
    for process, is_due in victims:
        if process.name not in kills:
            continue

        async def reached(is_due: Callable[[Progress], bool] = is_due) -> bool:
            return is_due(await progress(sale))

        await until(running, reached)
        say(f"kill -9 {process.name}")
        process.kill()
        process.start()


async def ended(sale: Sale, running: dict[str, Process]) -> None:
    """Wait until each unit has its payment, points and SMS, or all workers are there and nothing changes."""
    before, since_s = await progress(sale), time.monotonic()

    async def is_over() -> bool:
        nonlocal before, since_s
        now = await progress(sale)
        if now != before:
            before, since_s = now, time.monotonic()
        is_complete = not now.unsent and min(now.taken, now.paid, now.credited, now.sms) >= sale.stock
        is_owed = now.paid > now.credited or now.taken > now.paid > 0
        if time.monotonic() - since_s < (CALM_S if is_complete else OWED_S if is_owed else QUIET_S):
            return False
        since_s = time.monotonic()
        return all_there(sale)

    await until(running, is_over)


def all_there(sale: Sale) -> bool:
    """Return whether each consumer group has a member."""
    try:
        with SyncAdmin(sale.namesrv) as admin:
            found = [admin.group_connections(group).found.values() for group in sale.groups]
    except MQError:  # the broker is not there itself
        return False
    return all(any(broker.connection_set for broker in group) for group in found)


async def sell(sale: Sale, servers: Servers, *, kills: Collection[str], say: Say) -> None:
    """Run the sale to its end."""
    await prepare(sale)
    with parts(sale) as running:
        await kill_each(sale, servers, running, kills, say)
        await ended(sale, running)
    for _ in range(ROUNDS_MAX):  # some messages may have come again, and were not handled before the parts ended
        if not await check.unhandled(sale):
            break
        with parts(sale) as running:
            await ended(sale, running)
    say(f"the end: {await progress(sale)}")


def make_lake(namesrv: str, lake: Path) -> None:
    """Make a lake from the trace with Spark."""
    session = SessionConfig(master="local[2]", driver_memory="1g", java_options=SHORT_SESSION)
    with PipelineJob(JobConfig(namesrv=namesrv, lake=lake, session=session)) as job:
        job.once()


def run(sale: Sale, *, kills: Collection[str] = KILLS, say: Say = print) -> int:
    """Run a sale with servers of our own, and check it; return the exit code."""
    with Servers(sale.folder) as servers:
        sale = replace(sale, redis=servers.redis_url, namesrv=servers.namesrv)
        asyncio.run(sell(sale, servers, kills=kills, say=say))
        say("reading the trace with Spark")
        make_lake(sale.namesrv, sale.folder / "lake")
        verdict = asyncio.run(check.check(sale, sale.folder / "lake"))
    say(check.report(sale, verdict))
    return verdict.exit_code
