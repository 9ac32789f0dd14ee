"""A whole run on this machine: a replicated group of brokers, sender and worker, kills, the lake, the proof."""

import asyncio
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from mqtrail.client import Admin
from mqtrail.pipeline import SHORT_SESSION, JobConfig, PipelineJob, SessionConfig
from mqtrail.wire import MQError, TopicConfig

from .jobs import Jobs, RunError, accept
from .verify import report, verify

READY_S, STEP_S, END_S = 240.0, 240.0, 60.0
POLL_S = 0.1
QUIET_S = 10.0  # nothing has changed for so long, and the group has read all: the run is over
RESTARTS_MAX = 50
UP = ("up", "--ha", "3", "--flush", "sync", "--segment-size", "64MiB", "--controller-port", "0")
FREE = ("--namesrv-port", "0", "--broker-port", "0")

Say = Callable[[str], None]


class Brokers:
    """Three brokers of one group under three controllers. A send is acknowledged when all in sync have it on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.namesrv = ""

    def __enter__(self) -> "Brokers":
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "mqtrail", *UP, *FREE, "--data", str(self._folder / "data"), "--json"]
        with (self._folder / "brokers.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(READY_S) else b""
        if not line:
            self.__exit__()
            raise RunError(f"found brokers that do not start, expected three: read {self._folder / 'brokers.log'}")
        ready = json.loads(line)
        self.namesrv = ready["namesrv"]
        self.addresses: dict[str, str] = ready["brokers"]
        self._processes: dict[str, int] = ready["processes"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    async def kill_master(self) -> str | None:
        """kill -9 the master of the group; return its name. `mqtrail up` starts it again, as a slave.

        None: the group has no master at this moment.
        """
        async with Admin(self.namesrv) as admin:
            masters = set((await admin.masters()).values())
        name = next((name for name, at in self.addresses.items() if at in masters), None)
        if name is None:
            return None
        if (process := self._processes.pop(name, None)) is not None:  # once: later it is another process
            os.kill(process, signal.SIGKILL)
        return name


class Part:
    """The sender or the worker, in a process of its own."""

    def __init__(self, name: str, jobs: Jobs) -> None:
        options = ["--folder", str(jobs.folder), "--name", jobs.name, "--namesrv", jobs.namesrv]
        options += ["--plant", "early-ack"] if jobs.early_ack else []
        self.name = name
        self._command = [sys.executable, "-m", "examples.zero_loss", name, *options]
        self._log = jobs.folder / f"{name}.log"
        self._restarts = 0
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9. `keep` starts it again."""
        self._process.kill()
        self._process.wait(END_S)

    def keep(self) -> None:
        """Start it again if it has ended, as a supervisor does."""
        if self._process.poll() is not None:
            self._restarts += 1
            if self._restarts > RESTARTS_MAX:
                raise RunError(f"found that {self.name} ends again and again, expected that it runs: read {self._log}")
            self._start()

    def stop(self) -> None:
        """End it in order, or kill it."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def parts(jobs: Jobs) -> Iterator[tuple[Part, Part]]:
    """The sender and the worker, running."""
    with contextlib.ExitStack() as stack:
        running = []
        for name in ("send", "work"):
            running.append(Part(name, jobs))
            stack.callback(running[-1].stop)
        yield running[0], running[1]


async def until(running: tuple[Part, Part], condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a step of the run. RunError: it takes longer than STEP_S."""
    end_s = time.monotonic() + STEP_S
    while not await condition():
        for part in running:
            part.keep()
        if time.monotonic() > end_s:
            raise RunError(f"found no progress within {STEP_S:.0f} s, expected some: read the logs of the parts")
        await asyncio.sleep(POLL_S)


def sent_and_done(jobs: Jobs) -> tuple[int, int, int]:
    """Return how many jobs are sent and done, and how many messages about it are sent."""
    sent = "SELECT count(*) FROM mqtrail_outbox WHERE sent_ms > 0"
    with jobs.accepted() as accepted, jobs.work() as work:
        [(jobs_sent,)] = accepted.execute(sent).fetchall()
        [(done,)] = work.execute("SELECT count(*) FROM done").fetchall()
        [(done_sent,)] = work.execute(sent).fetchall()
    return jobs_sent, done, done_sent


async def offsets(jobs: Jobs) -> tuple[int, int]:
    """Return how many jobs the group has passed, and how many there are; (0, -1) while brokers change."""
    with contextlib.suppress(MQError, OSError):
        async with Admin(jobs.namesrv) as admin:
            stats = await admin.consume_stats(jobs.group, jobs.topic)
        queues = [queue for broker in stats.found.values() for queue in broker.offset_table.values()]
        if queues and not stats.failures:
            return sum(max(0, q.consumer_offset) for q in queues), sum(q.broker_offset for q in queues)
    return 0, -1


async def is_known(jobs: Jobs, addresses: Iterable[str]) -> bool:
    """Return whether each broker has the topics. A replica copies the table of topics every ten seconds."""
    with contextlib.suppress(MQError, OSError):
        async with Admin(jobs.namesrv) as admin:
            for address in addresses:
                for topic in (jobs.topic, jobs.done_topic):
                    await admin.broker_topic_stats(address, topic)
        return True
    return False


async def carry_out(jobs: Jobs, brokers: Brokers, say: Say) -> None:
    """Accept, send and do half of the jobs, and kill -9 worker, sender and master on the way; then the other half."""
    jobs.folder.mkdir(parents=True, exist_ok=True)
    async with Admin(jobs.namesrv) as admin:
        for topic in (jobs.topic, jobs.done_topic):
            await admin.create_topic(TopicConfig(topic, 2, 2))
    half = jobs.count // 2
    accept(jobs, range(half))
    before, since_s = (0, 0, 0), time.monotonic()
    killed: str | None = None

    async def has_acknowledged() -> bool:
        return (await offsets(jobs))[0] > 0

    async def has_passed_half() -> bool:
        passed, end = await offsets(jobs)
        return passed == end >= half

    async def is_everywhere() -> bool:
        return await is_known(jobs, brokers.addresses.values())

    async def has_killed() -> bool:
        nonlocal killed
        killed = await brokers.kill_master()
        return killed is not None

    async def has_all() -> bool:
        nonlocal before, since_s
        now = sent_and_done(jobs)
        if now != before:
            before, since_s = now, time.monotonic()
        passed, end = await offsets(jobs)
        is_still = now[0] == jobs.count and now[1] == now[2] and passed == end
        return is_still and (now[1] >= jobs.count or time.monotonic() - since_s > QUIET_S)

    with parts(jobs) as running:
        sender, worker = running
        await until(running, has_acknowledged)
        say("kill -9 the worker, after its first acknowledgement")
        worker.kill()
        say("kill -9 the sender")
        sender.kill()
        await until(running, is_everywhere)
        await until(running, has_killed)
        say(f"kill -9 the master, {killed}")
        await until(running, has_passed_half)
        accept(jobs, range(half, jobs.count))
        await until(running, has_all)
    say("{} jobs sent, {} done, {} messages about it".format(*before))


def make_lake(namesrv: str, lake: Path) -> None:
    """Make a lake from the trace with Spark."""
    session = SessionConfig(master="local[2]", driver_memory="1g", java_options=SHORT_SESSION)
    with PipelineJob(JobConfig(namesrv=namesrv, lake=lake, session=session)) as job:
        job.once()


def run(jobs: Jobs, say: Say = print) -> int:
    """Run with brokers of our own, and verify; return the exit code."""
    with Brokers(jobs.folder) as brokers:
        jobs = replace(jobs, namesrv=brokers.namesrv)
        asyncio.run(carry_out(jobs, brokers, say))
        say("reading the trace with Spark")
        make_lake(jobs.namesrv, jobs.folder / "lake")
    proof = verify(jobs.folder / "lake", jobs.name, jobs.count)
    say(report(proof, jobs.count))
    return proof.exit_code
