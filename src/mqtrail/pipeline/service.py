"""The loop of `mqtrail pipeline run`: cycles, upkeep of the lake between them, and reports of both.

A failed cycle is reported and retried after a pause that doubles up to PAUSE_MS_MAX. Failures of Spark itself, as on a
busy machine, are retried up to FAULTS_MAX times in a row; after that the run ends with the error, so that the process's
supervisor restarts it. A stop ends the run after the commit in progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from mqtrail.lake import LakeLost, LakePath
from mqtrail.net import MetricsPort
from mqtrail.wire import MQError

from .clock import now_ms
from .config import JobFailed, JobReport
from .freshness import Freshness
from .masters import spark_cause
from .status import PipelineStatus, StatusFile, exposition

PAUSE_MS_MAX: Final = 60_000  # between two cycles that fail
FAULTS_MAX: Final = 3  # faults of Spark in a row before the run ends
TELL_MS: Final = 10_000  # interval at which a long cycle prints its current step
IDLE_TELL_MS: Final = 60_000  # interval of lines about cycles that found nothing
PORT_TIMEOUT_S: Final = 10.0  # for the port of the metrics to open, and to close

Say = Callable[[str], None]


class UpkeepWork(Protocol):
    """Work on the lake between cycles."""

    def slice(self, at_ms: int) -> dict[str, int]:
        """Do a bounded part of the work; return the number of files by kind of work."""

    def end(self) -> None:
        """Stop work in progress."""


class Service:
    """Runs cycles until it is stopped. One call of `run` at a time."""

    def __init__(
        self,
        lake: LakePath,
        cycle: Callable[[], JobReport],
        upkeep: UpkeepWork,
        say: Say,
        show: Callable[[JobReport], None] = lambda report: None,
    ) -> None:
        """show: called with the report of each successful cycle."""
        self._file = StatusFile(lake)
        self._lake = lake
        self._cycle = cycle
        self._upkeep = upkeep
        self._say = say
        self._show = show
        before = self._file.read()
        newest = {} if before is None else {name: found.newest_ms for name, found in before.freshness.items()}
        self.freshness = Freshness({name: at_ms for name, at_ms in newest.items() if at_ms is not None})
        self.status = PipelineStatus(started_ms=now_ms())
        self._faults = 0
        self._told_s = 0.0  # when the last line about a cycle was printed
        self._begun_s = 0.0

    def doing(self, text: str) -> None:
        """Note the current step of the cycle; it is printed if the cycle takes long."""
        self.status.doing = text

    def run(self, interval_ms: int, stop: Event, metrics: tuple[str, int] | None = None) -> None:
        """Run a cycle every interval_ms until stop is set. metrics: host and port to serve them on. BindError."""
        self.status.interval_ms = interval_ms
        with ExitStack() as stack:
            if metrics is not None:
                address = stack.enter_context(served(lambda: exposition(self.status, str(self._lake)), *metrics))
                self._say(f"metrics at http://{address}/metrics")
            stack.callback(self._ended)
            stack.callback(self._upkeep.end)
            stack.enter_context(self._telling())
            while not stop.is_set():
                pause_ms = self._turn(interval_ms, stop)
                stop.wait(pause_ms / 1000)

    def _turn(self, interval_ms: int, stop: Event) -> float:
        """Run one cycle and a slice of upkeep; return the milliseconds to wait before the next."""
        self._begun_s = time.monotonic()
        try:
            report = self._cycle()
        except LakeLost:
            raise
        except MQError as error:
            return self._failed(str(error), interval_ms)
        except Exception as error:
            if stop.is_set():
                # A signal to the process group, as a service manager sends it, ends Spark's JVM too.
                self._say("stopped within a cycle: committed data is kept, and the next run continues from there")
                return 0
            if not isinstance(error, (PySparkException, Py4JJavaError)):
                raise
            self._faults += 1
            if self._faults >= FAULTS_MAX:
                raise JobFailed(
                    f"Spark failed {FAULTS_MAX} times in a row ({spark_cause(str(error))}), expected cycles that end: "
                    "committed data is kept. Give the machine more memory or time (--master, --spark-conf, "
                    "[spark] driver_memory) and start the pipeline again"
                ) from error
            return self._failed(f"Spark failed: {spark_cause(str(error))}", interval_ms)
        self._faults = 0
        self._note(report)
        if stop.is_set():
            return 0
        try:
            for work, count in self._upkeep.slice(now_ms()).items():
                self.status.upkeep[work] = self.status.upkeep.get(work, 0) + count
        except LakeLost:
            raise
        except MQError as error:
            self._say(f"the upkeep of the lake failed and will be retried: {error}")
        self._write()
        return 0 if report.behind else max(0, interval_ms - (time.monotonic() - self._begun_s) * 1000)

    def _failed(self, error: str, interval_ms: int) -> float:
        self.status.note_failure(error)
        pause_ms: int = min(interval_ms * 2 ** min(self.status.failed_in_row - 1, 16), PAUSE_MS_MAX)
        self._say(f"this cycle failed: {error}; the next one is in {pause_ms / 1000:.0f} s")
        self._write()
        return pause_ms

    def _note(self, report: JobReport) -> None:
        at_ms = now_ms()
        self.status.note_cycle(report, at_ms)
        self.status.doing = ""
        self.status.freshness = self.freshness.of()
        new, gone = self.status.note_problems(report.problems, at_ms)
        for problem in new:
            self._say(f"problem: {problem}")
        for problem in gone:
            self._say(f"no longer a problem: {problem}")
        self._show(report)
        is_idle = not (report.trace_messages or report.messages or report.gaps or report.trajectories)
        if not is_idle or new or gone or time.monotonic() - self._told_s >= IDLE_TELL_MS / 1000:
            self._told_s = time.monotonic()
            self._say(summary(report, self.status))

    # -- the status file, and lines about long cycles --------------------------------------------------------------

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Write the status, and print the step of a long cycle, every TELL_MS while the block runs."""
        ended = Event()

        def tell() -> None:
            while not ended.wait(TELL_MS / 1000):
                taken_s = time.monotonic() - self._begun_s
                if self.status.doing and taken_s >= TELL_MS / 1000:
                    self._say(f"{self.status.doing} (this cycle: {taken_s:.0f} s)")
                self._write()

        self._write()
        thread = Thread(target=tell, name="mqtrail-status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(PORT_TIMEOUT_S)

    def _ended(self) -> None:
        self.status.is_running = False
        self._write()

    def _write(self) -> None:
        try:
            self._file.write(self.status)
        except OSError as error:
            self._say(f"the status was not written to {self._file.path}: {error.strerror or error}")


def summary(report: JobReport, status: PipelineStatus) -> str:
    """Return a cycle in one line."""
    fresh = "".join(
        f"; {source} fresh within {found.p50_ms / 1000:.1f} s (p50), {found.p95_ms / 1000:.1f} s (p95)"
        for source, found in status.freshness.items()
        if found.p50_ms is not None and found.p95_ms is not None
    )
    behind = f"; {report.behind} messages behind" if report.behind else ""
    problems = f"; {len(status.problems)} problems" if status.problems else ""
    return (
        f"read {report.trace_messages} trace messages ({report.trace_records} records, {report.rejects} did not decode)"
        f" and {report.messages} messages, {report.gaps} gaps; {report.trajectories} judged{fresh}{behind}{problems}; "
        f"{report.seconds:.1f} s"
    )


@contextmanager
def served(text: Callable[[], bytes], host: str, port: int) -> Iterator[str]:
    """Serve a text for Prometheus from a thread while the block runs; yield host:port. BindError."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="mqtrail-metrics", daemon=True)
    thread.start()
    door = MetricsPort(lambda: asyncio.to_thread(text))
    try:
        asyncio.run_coroutine_threadsafe(door.start(host, port), loop).result(PORT_TIMEOUT_S)
        try:
            yield door.address
        finally:
            asyncio.run_coroutine_threadsafe(door.stop(), loop).result(PORT_TIMEOUT_S)
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(PORT_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PORT_TIMEOUT_S)
        loop.close()
