"""The jobs: accepted in a database, sent until acknowledged, done once. The work shows in the trace, as a message."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mqtrail.client import (
    ConsumeFromWhere,
    Consumer,
    ConsumerConfig,
    Delivery,
    Inbox,
    Message,
    Outbox,
    OutboxRelay,
    Producer,
    ProducerConfig,
    RelayConfig,
)

OUTBOX = Outbox()
PRODUCER = ProducerConfig(send_timeout_ms=1_500)
RELAY = RelayConfig(lease_ms=3_000, retry_max_ms=2_000)  # sends again until the answer is SEND_OK
CONSUMER = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, offset_persist_ms=200)


class RunError(Exception):
    """The run cannot go on: found, expected, remedy."""


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """One run. folder: of its databases. early_ack: the planted defect, see `work`."""

    folder: Path
    name: str = "zero"
    namesrv: str = "127.0.0.1:9876"
    count: int = 100
    early_ack: bool = False

    @property
    def topic(self) -> str:
        """A job to do."""
        return f"{self.name}-jobs"

    @property
    def done_topic(self) -> str:
        """A job that was done. Written in the transaction of the work."""
        return f"{self.name}-done"

    @property
    def group(self) -> str:
        """The consumer group of the workers."""
        return f"{self.name}-workers"

    def open_accepted(self) -> sqlite3.Connection:
        """Connect to the database of the sender."""
        return sqlite3.connect(self.folder / "accepted.db", timeout=30)

    def open_work(self) -> sqlite3.Connection:
        """Connect to the database of the worker."""
        return sqlite3.connect(self.folder / "work.db", timeout=30)

    @contextlib.contextmanager
    def accepted(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the sender."""
        with contextlib.closing(self.open_accepted()) as connection, connection:
            yield connection

    @contextlib.contextmanager
    def work(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the worker."""
        with contextlib.closing(self.open_work()) as connection, connection:
            yield connection


def inbox_of(jobs: Jobs) -> Inbox:
    """Return the inbox of the workers. Its key is the job, not the message."""
    return Inbox(jobs.group, jobs.open_work, key=lambda m: m.keys[0])


def accept(jobs: Jobs, numbers: Iterable[int]) -> None:
    """Accept jobs: from here on none may get lost."""
    OUTBOX.create(jobs.open_accepted)
    OUTBOX.create(jobs.open_work)
    inbox_of(jobs).create()
    with jobs.work() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS done (job TEXT)")
    with jobs.accepted() as connection:
        for number in numbers:
            OUTBOX.add(connection, Message(jobs.topic, b"a job", keys=f"job-{number}"))


async def send(jobs: Jobs) -> None:
    """Send the accepted jobs, each again until a broker acknowledged it with SEND_OK."""
    async with Producer(f"{jobs.name}-sender", jobs.namesrv, trace=True, config=PRODUCER) as producer:
        await OutboxRelay(OUTBOX, jobs.open_accepted, producer, config=RELAY).run()


async def work(jobs: Jobs) -> None:
    """Do the jobs. A message is acknowledged when its handler has returned: after the work is committed.

    With early_ack the handler reads one job ahead: it keeps the new one, and does the one before it. What it keeps is
    acknowledged, and lost with the process. No client sees a failure.
    """
    ahead: Delivery | None = None

    @inbox_of(jobs)
    def do(m: Delivery, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO done VALUES (?)", (m.keys[0],))
        OUTBOX.add(connection, Message(jobs.done_topic, b"done", keys=m.keys[0]))

    async def do_the_one_before(m: Delivery) -> None:
        nonlocal ahead
        before, ahead = ahead, m
        if before is not None:
            await asyncio.to_thread(do, before)

    async with (
        Producer(jobs.group, jobs.namesrv, trace=True, config=PRODUCER) as producer,
        Consumer(jobs.group, jobs.namesrv, {jobs.topic: "*"}, trace=True, config=CONSUMER) as consumer,
    ):
        relay = OutboxRelay(OUTBOX, jobs.open_work, producer, config=RELAY)
        await asyncio.gather(relay.run(), consumer.run(do_the_one_before if jobs.early_ack else do))
