"""The move: two clusters on this machine, orders, a group that bills them, and the commands that move both.

place -> east: bill -> export, import -> mirror (killed once) -> mirror offsets -> west: bill
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mqtrail.client import (
    ConsumeFromWhere,
    ConsumerConfig,
    Message,
    MessageQueue,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from mqtrail.mirror import read_mirror
from mqtrail.testing import embedded
from mqtrail.wire import MQError, SubscriptionGroupConfig, TopicConfig

from .check import Outcome, misplaced_queues, outcome

TOPIC, GROUP, QUEUES = "orders", "billing", 4
BILLING = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, rebalance_ms=100)
STEP_S, QUIET_MS, POLL_S = 60.0, 2_000, 0.05


class Plant(StrEnum):
    """A mistake of the operator, which the check must find."""

    NO_OFFSETS = "no-offsets"  # the group starts in the target without its offsets: it bills again
    LATE_START = "late-start"  # the mirror begins at the end of the topic: what was not billed yet is lost


class MoveError(MQError):
    """The move cannot go on."""


@dataclass(frozen=True)
class Clusters:
    """Addresses of the name servers. folder: with the export, the state of the mirror, and its log."""

    east: str
    west: str
    folder: Path

    def mqtrail(self, *arguments: str) -> str:
        """Run a command, as an operator does; return its output. MoveError."""
        print("$ mqtrail", *arguments)
        done = subprocess.run([sys.executable, "-m", "mqtrail", *arguments], capture_output=True, text=True)
        if done.returncode:
            raise MoveError(f"found exit code {done.returncode} of mqtrail {arguments[0]}, expected 0: {done.stderr}")
        return done.stdout


@contextlib.contextmanager
def clusters(folder: Path) -> Iterator[Clusters]:
    """Two clusters that end with the block. The old one has the topic and the group; the new one has nothing."""
    with embedded(folder / "east") as east, embedded(folder / "west") as west:
        with SyncAdmin(east.namesrv_address) as admin:
            admin.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))
            admin.create_group(SubscriptionGroupConfig(GROUP))
        yield Clusters(east.namesrv_address, west.namesrv_address, folder)


def place(namesrv: str, first: int, count: int) -> None:
    """Send the orders first, first + 1, …: order N to queue N modulo QUEUES, so that their place can be checked."""
    with SyncProducer("shop", namesrv) as producer:
        for number in range(first, first + count):
            queue = MessageQueue(TOPIC, "broker-a", number % QUEUES)
            producer.send(Message(TOPIC, b"%d" % number, keys=f"order-{number}"), queue=queue)


def bill(namesrv: str, count: int | None = None) -> list[int]:
    """Consume orders as the group, and return them: so many, or until none comes for QUIET_MS."""
    billed: list[int] = []
    with SyncConsumer(GROUP, namesrv, {TOPIC: "*"}, config=BILLING) as consumer:
        while count is None or len(billed) < count:
            delivery = consumer.receive(QUIET_MS if count is None else int(1000 * STEP_S))
            if delivery is None:
                break
            billed.append(int(delivery.body))
            delivery.ack()
    return billed


class RunningMirror:
    """`mqtrail mirror run` as a process."""

    def __init__(self, found: Clusters, *options: str) -> None:
        self._folder = found.folder / "mirror"
        arguments = ["mirror", "run", TOPIC, "--source", found.east, "--namesrv", found.west, *options]
        arguments += ["--source-name", "east", "--target-name", "west", "--folder", str(self._folder)]
        print("$ mqtrail", *arguments, "&")
        self._log = found.folder / "mirror.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mqtrail", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """kill -9."""
        print("kill -9 the mirror")
        self._process.kill()
        self._process.wait(STEP_S)

    def stop(self) -> None:
        """Stop it in order."""
        self._process.terminate()
        self._process.wait(STEP_S)

    def wait(self, copied: int) -> None:
        """Wait until the target has so many copies, and the state says that the mirror is at the end. MoveError."""
        end_s = time.monotonic() + STEP_S
        while True:
            state = read_mirror(self._folder)
            counts = {} if state is None else state.counts
            if state is not None and counts.get("copied", 0) + counts.get("found", 0) >= copied and not state.lag():
                return
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise MoveError(f"found a mirror that copied {counts}, expected {copied}: read {self._log}")
            time.sleep(POLL_S)


def move(folder: Path, orders: int, plant: Plant | None = None) -> Outcome:
    """Move the group with orders before, during and after the copy; return what became of them. MoveError, MQError."""
    third = orders // 3
    folder.mkdir(parents=True, exist_ok=True)
    with clusters(folder) as found:
        place(found.east, 0, third)
        billed = bill(found.east, third // 2)  # the others wait

        (folder / "east.json").write_text(found.mqtrail("cluster", "export", "--namesrv", found.east))
        found.mqtrail("cluster", "import", str(folder / "east.json"), "--namesrv", found.west, "--apply")

        late = ("--start", "end") if plant is Plant.LATE_START else ()
        before = 0 if plant is Plant.LATE_START else third
        mirror = RunningMirror(found, *late)
        mirror.wait(before)
        place(found.east, third, third)
        mirror.kill()
        mirror = RunningMirror(found)
        mirror.wait(before + third)

        billed += bill(found.east, third // 2)  # the last ones that are billed in the old cluster
        if plant is not Plant.NO_OFFSETS:
            options = ("--accept-loss",) if plant is Plant.LATE_START else ()
            own = ("--source", found.east, "--namesrv", found.west, "--folder", str(folder / "mirror"), *options)
            print(found.mqtrail("mirror", "offsets", GROUP, *own))
            found.mqtrail("mirror", "offsets", GROUP, *own, "--apply")

        place(found.east, 2 * third, orders - 2 * third)  # producers move last
        mirror.wait(before + orders - third)
        mirror.stop()
        billed += bill(found.west)
        misplaced = misplaced_queues(found.east, found.west, TOPIC, "east") if plant is None else []
        return outcome(orders, billed, misplaced)
