"""`python -m tests.crash.pipeline [--kills N] [--seed N] [--spark]`: kill -9 a running pipeline at random times.

Meanwhile clients send and consume with trace. At the end the lake must contain every stored message and every trace
message once, and a verdict for every message. The histograms must count each message once: a repeated judgement would
count it twice.

Such small cycles need no Spark tasks, so the killed processes start without Spark unless --spark is given. The last one
is `mqtrail pipeline run` as users start it; it must end with exit code 0 after SIGTERM.
"""

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import duckdb

from mqtrail import trail
from mqtrail.client import Consumer, Producer, SyncAdmin
from mqtrail.lake import Lake, parquet_of
from mqtrail.pipeline import StatusFile
from mqtrail.testing import embedded
from mqtrail.wire import TRACE_TOPIC, Message

KILLS = 50
TOPIC, GROUP = "orders", "points"
PAUSE_S = 0.05  # between two messages
START_S_MAX, CYCLE_S_MAX, END_S_MAX = 180.0, 240.0, 120.0
COMMITS = (1, 8)  # batches that a process commits before it is killed: about two cycles
KILL_S = (0.0, 0.5)  # after the last of these
EARLY = 0.1  # share of kills that do not wait for a commit
EARLY_S = (0.0, 8.0)  # time of these kills after the start of the process


PROGRAM = """
import signal, sys
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from mqtrail.pipeline import JobConfig, PipelineJob

stop = Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
config = JobConfig(namesrv=sys.argv[1], lake=Path(sys.argv[2]), sample_interval_ms=1_000, offsets_per_batch_max=500)
spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
PipelineJob(config, lambda text: print(text, flush=True)).use(spark).run(1_000, stop)
"""


class Clients:
    """A producer and a consumer, traced, in a thread of their own."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.sent: set[str] = set()
        self._consumed: set[str] = set()
        self._stop = Event()
        self._thread = Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Clients":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop sending; wait until all messages are consumed and traced."""
        self._stop.set()
        self._thread.join(END_S_MAX)

    async def _run(self) -> None:
        async def handler(delivery: Any) -> None:
            self._consumed.add(delivery.message.msg_id)

        async with (
            Producer("shop", self._namesrv, trace=True) as producer,
            Consumer(GROUP, self._namesrv, {TOPIC: "*"}, trace=True) as consumer,
        ):
            consuming = asyncio.create_task(consumer.run(handler))
            while not self._stop.is_set():
                result = await producer.send(Message(TOPIC, b"body", keys=f"order-{len(self.sent)}"))
                self.sent.add(result.msg_id)
                await asyncio.sleep(PAUSE_S)
            async with asyncio.timeout(END_S_MAX):
                while not self.sent <= self._consumed:
                    await asyncio.sleep(0.05)
            consuming.cancel()


class Pipeline:
    """`mqtrail pipeline run`, or its loop without Spark, in a process group of its own."""

    def __init__(self, namesrv: str, lake: Path, log: Path, *, spark: bool) -> None:
        words = ["-m", "mqtrail", "pipeline", "run", "--namesrv", namesrv, "--lake", str(lake), "--interval", "1s"]
        words += ["--sample-interval", "1s", "--master", "local[2,4]"]
        words = words if spark else ["-c", PROGRAM, namesrv, str(lake)]
        self._file = StatusFile(lake)
        self._lake = lake
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *words], stdout=output, stderr=output, start_new_session=True
            )

    def wait(self, what: Callable[[Any], bool], limit_s: float) -> None:
        """Wait until the status of this process fulfils a condition."""
        end = time.monotonic() + limit_s
        while True:
            status = self._file.read()
            if status is not None and status.pid == self.process.pid and what(status):
                return
            self.check(self.process.poll() is None and time.monotonic() < end)
            time.sleep(0.05)

    def wait_for_commits(self, count: int) -> None:
        """Wait until this process has committed so many batches."""
        self.wait(lambda status: True, START_S_MAX)
        end, wanted = time.monotonic() + CYCLE_S_MAX, self._commits() + count
        while self._commits() < wanted:
            self.check(self.process.poll() is None and time.monotonic() < end)
            time.sleep(0.01)

    def _commits(self) -> int:
        return max((int(path.stem) for path in (self._lake / "_batches" / "_delta_log").glob("*[0-9].json")), default=0)

    def check(self, is_well: bool) -> None:
        """Fail with the end of the process's log unless is_well."""
        assert is_well, f"{self.process.poll()=}; the log ends in\n{self._log.read_text()[-3000:]}"

    def kill(self, *, with_spark: bool) -> None:
        """Kill it, alone or with its JVM and Python workers, which otherwise end by themselves."""
        if with_spark:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(END_S_MAX)

    def stop(self) -> None:
        """End it as a service manager does: exit code 0."""
        self.process.terminate()
        self.check(self.process.wait(END_S_MAX) == 0)


def kill_pipeline(
    folder: Path, kills: int, seed: int, *, spark: bool = False, say: Callable[[str], None] = print
) -> list[str]:
    """Kill a pipeline this many times under load, let it finish its work; return the problems of its lake."""
    chance, lake, log = random.Random(seed), folder / "lake", folder / "pipeline.log"
    with embedded() as broker:
        with Clients(broker.namesrv_address) as clients:
            for number in range(1, kills + 1):
                running = Pipeline(broker.namesrv_address, lake, log, spark=spark)
                try:
                    if chance.random() < EARLY:
                        time.sleep(chance.uniform(*EARLY_S))
                    else:
                        running.wait_for_commits(chance.randint(*COMMITS))
                        time.sleep(chance.uniform(*KILL_S))
                    running.check(running.process.poll() is None)
                finally:
                    running.kill(with_spark=chance.random() < 0.5)
                if number % 5 == 0:
                    say(f"{number} kills, {len(clients.sent)} messages sent")
            running = Pipeline(broker.namesrv_address, lake, log, spark=True)
            try:
                clients.end()
                running.wait(lambda status: status.clusters[0].cycles >= 1, START_S_MAX + CYCLE_S_MAX)
                ends = ends_of(broker.namesrv_address)
                end = time.monotonic() + CYCLE_S_MAX
                while (found := problems_of(lake, clients.sent, ends)) and time.monotonic() < end:
                    time.sleep(0.5)
                running.stop()
            finally:
                if running.process.poll() is None:
                    running.kill(with_spark=True)
        say(f"{len(clients.sent)} messages sent, {len(found)} problems")
        return found


def ends_of(namesrv: str) -> dict[tuple[str, int], int]:
    """Return the end of each queue that is read, by topic and queue."""
    with SyncAdmin(namesrv) as admin:
        return {
            (topic, queue.queue_id): offsets.max_offset
            for topic in (TOPIC, TRACE_TOPIC)
            for stats in admin.topic_stats(topic).values()
            for queue, offsets in stats.offset_table.items()
        }


def problems_of(folder: Path, sent: set[str], ends: dict[tuple[str, int], int]) -> list[str]:
    """Return a sentence for each row that a lake lacks or has twice."""
    lake = Lake.open(folder)

    def rows(relation: trail.Relation, query: str) -> list[tuple[Any, ...]]:
        paths = lake[relation.name].paths()
        return duckdb.execute(query.replace("ROWS", parquet_of(paths))).fetchall() if paths else []

    found = []
    for relation, columns, topic in (
        (trail.MESSAGE_META, "topic, queue_id, queue_offset", TOPIC),
        (trail.TRACE_EVENTS, "trace_topic, queue_id, queue_offset, record_no, item_no", TRACE_TOPIC),
    ):
        name = columns.partition(",")[0]
        counts = rows(relation, f"SELECT queue_id, count(*), count(DISTINCT ({columns})), "
                      f"count(DISTINCT queue_offset) FROM ROWS WHERE {name} = '{topic}' GROUP BY ALL")  # fmt: skip
        offsets = {queue_id: distinct for queue_id, _, _, distinct in counts}
        wanted = {queue_id: end for (of, queue_id), end in ends.items() if of == topic and end}
        if offsets != wanted:
            found.append(f"{relation.name}: found {offsets} messages by queue, expected {wanted}")
        found += [f"{relation.name}: queue {each[0]} has {each[1]} rows, {each[2]} different"
                  for each in counts if each[1] != each[2]]  # fmt: skip
    judged = rows(trail.VERDICTS, f"SELECT msg_id, arg_max(state, as_of_ms), count(*), count(DISTINCT as_of_ms) "
                  f"FROM ROWS WHERE group_name = '{GROUP}' GROUP BY msg_id")  # fmt: skip
    states = {msg_id: state for msg_id, state, _, _ in judged}
    if states.keys() != sent:
        found.append(f"verdicts: {len(sent - states.keys())} messages are missing, {len(states.keys() - sent)} unknown")
    found += [f"verdicts: {msg_id} is {state}" for msg_id, state in states.items() if state != "CONSUMED"][:10]
    found += [f"verdicts: {each[0]} twice" for each in judged if each[2] != each[3]][:10]
    counted = rows(trail.LATENCY_MINUTE, f"SELECT coalesce(sum(message_count), 0) FROM ROWS "
                   f"WHERE segment = 'total' AND group_name = '{GROUP}'")  # fmt: skip
    if counted != [(len(sent),)]:
        found.append(f"latency_minute: {counted} messages, expected {len(sent)}")
    return found


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.pipeline", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help=f"[{KILLS}]")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the times of the kills [from the time]"
    )
    parser.add_argument("--spark", action="store_true", help="also start Spark in the processes that are killed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqtrail-kill-") as name:
        began_s = time.monotonic()
        found = kill_pipeline(Path(name), given.kills, given.seed, spark=given.spark)
        print("".join(f"    {problem}\n" for problem in found), end="")
        print(f"{given.kills} kills, seed {given.seed}, {len(found)} problems, {time.monotonic() - began_s:.0f} s")
        return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
