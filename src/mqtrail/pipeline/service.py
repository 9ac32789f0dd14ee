"""The loop of `mqtrail pipeline run`: cycles of clusters, upkeep of the lake between them, and reports of both.

The clusters take turns, because a lake has one writer: of those that are due, the one that waited longest. Each is
asked in a thread of its own, so that one that does not answer holds up no other. While another one waits, a cycle reads
less, so that a cluster with much to read holds up no other for long. A failed cycle is reported and retried
after a pause that doubles up to PAUSE_MS_MAX. Failures of Spark itself, as on a busy machine, are retried up to
FAULTS_MAX times in a row; after that the run ends with the error, so that the process's supervisor restarts it. A stop
ends the run after the commit in progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from mqtrail.clock import now_ms
from mqtrail.lake import Lake, LakeLost, LakePath
from mqtrail.net import MetricsPort
from mqtrail.wire import MQError

from .answered import NOTHING, answered
from .config import JobFailed, JobReport
from .freshness import Freshness
from .masters import spark_cause
from .status import ClusterStatus, PipelineStatus, StatusFile, exposition

PAUSE_MS_MAX: Final = 60_000  # between two cycles that fail
FAULTS_MAX: Final = 3  # faults of Spark in a row before the run ends
REPORT_MS: Final = 10_000  # interval at which a long cycle prints its current step
COUNT_MS: Final = 60_000  # interval of counting what the lake says, if there is a port for metrics
IDLE_REPORT_MS: Final = 60_000  # interval of lines about cycles that found nothing
PORT_TIMEOUT_S: Final = 10.0  # for the port of the metrics to open, and to close
STOP_POLL_S: Final = 0.2  # interval of looking for a stop while clusters are asked
ASKED_END_S_MAX: Final = 10.0  # how long the end of the run waits for clusters that are being asked

PrintLine = Callable[[str], None]


class UpkeepWork(Protocol):
    """Work on the lake between cycles."""

    def slice(self, at_ms: int) -> dict[str, int]:
        """Do a bounded part of the work; return the number of files by kind of work."""

    def end(self) -> None:
        """Stop work in progress."""


class ClusterCycles(Protocol):
    """The cycles of one cluster."""

    freshness: Freshness
    step: PrintLine
    """Called with each step of a cycle."""
    is_shared: bool
    """Whether another cluster waits for its turn, or is due within an interval: then a cycle reads less."""

    @property
    def name(self) -> str:
        """The cluster's name in the lake; '': not known yet."""

    def begin(self) -> Callable[[], JobReport]:
        """Ask the cluster how far it is, and return the rest of a cycle. Runs in a thread of its own. MQError."""


class _Turns:
    """The turns of one cluster: it is due, then it is asked, then its cycle runs."""

    def __init__(self, cycles: ClusterCycles, status: ClusterStatus, answered: Event) -> None:
        """answered: set when the cluster has answered, or failed to."""
        self.cycles = cycles
        self._answered = answered
        self.status = status
        self.due_s = 0.0  # time.monotonic
        self.begun_s = 0.0
        self.reported_s = 0.0  # when the last line about a cycle was printed
        self._asking: Thread | None = None
        self._found: Callable[[], JobReport] | BaseException | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the cluster is being asked, or has answered."""
        return self._asking is not None

    @property
    def is_ready(self) -> bool:
        """Whether it has answered, or failed to."""
        return self._found is not None

    def ask(self) -> None:
        """Begin to ask the cluster."""
        self.begun_s = time.monotonic()
        self._asking = Thread(target=self._ask, name="mqtrail-asking", daemon=True)
        self._asking.start()

    def _ask(self) -> None:
        try:
            self._found = self.cycles.begin()
        except BaseException as error:  # it is raised in the thread of the cycles
            self._found = error
        self._answered.set()

    def run(self) -> JobReport:
        """Run the rest of the cycle; raise what asking the cluster has raised."""
        found, self._found, self._asking = self._found, None, None
        assert found is not None, "the cluster has not answered yet"
        if isinstance(found, BaseException):
            raise found
        return found()

    def end(self, timeout_s: float) -> None:
        """Wait until the thread that asks the cluster has ended, at most so long."""
        if self._asking is not None:
            self._asking.join(max(timeout_s, 0))


class Service:
    """Runs cycles until it is stopped. One call of `run` at a time."""

    def __init__(
        self,
        lake: LakePath,
        clusters: Sequence[ClusterCycles],
        upkeep: UpkeepWork,
        say: PrintLine,
        show: Callable[[JobReport], None] = lambda report: None,
    ) -> None:
        """show: called with the report of each successful cycle."""
        self._file = StatusFile(lake)
        self._lake = lake
        self._upkeep = upkeep
        self._say = say
        self._show = show
        before = self._file.read()
        known = {} if before is None else {one.cluster: one.freshness for one in before.clusters}
        self.status = PipelineStatus(started_ms=now_ms())
        self._answered = Event()
        self._turns = [_Turns(one, ClusterStatus(one.name), self._answered) for one in clusters]
        for turns in self._turns:
            name = turns.status.cluster or (next(iter(known)) if len(known) == 1 else "")
            newest = {source: found.newest_ms for source, found in known.get(name, {}).items()}
            turns.cycles.freshness = Freshness({source: at for source, at in newest.items() if at is not None})
            turns.cycles.step = self._doing(turns)
            self.status.clusters.append(turns.status)
        self._answers = NOTHING
        self._faults = 0
        self._begun_s = 0.0  # of the cycle that runs

    def _doing(self, turns: _Turns) -> PrintLine:
        """A function that notes the current step of a cycle; it is printed if the cycle takes long."""

        def doing(text: str) -> None:
            self.status.doing = self.status.named(turns.status.cluster, text)

        return doing

    def run(self, interval_ms: int, stop: Event, metrics: tuple[str, int] | None = None) -> None:
        """Run a cycle of each cluster every interval_ms until stop is set.

        metrics: host and port to serve them on. BindError.
        """
        self.status.interval_ms = interval_ms
        with ExitStack() as stack:
            if metrics is not None:
                stack.enter_context(self._counting())
                address = stack.enter_context(served(self._exposition, *metrics))
                self._say(f"metrics at http://{address}/metrics")
            stack.callback(self._ended)
            stack.callback(self._upkeep.end)
            stack.callback(self._end_asking)
            stack.enter_context(self._reporting())
            while not stop.is_set():
                turns = self._next(stop)
                if turns is not None:
                    pause_ms = self._turn(turns, interval_ms, stop)
                    turns.due_s = time.monotonic() + pause_ms / 1000

    def _next(self, stop: Event) -> _Turns | None:
        """Ask the clusters that are due; return the one that answered and waited longest. None: wait on, or stopped."""
        now_s = time.monotonic()
        self._answered.clear()
        for turns in self._turns:
            if not turns.is_asked and turns.due_s <= now_s:
                turns.ask()
        ready = [turns for turns in self._turns if turns.is_ready]
        if ready:
            return min(ready, key=lambda turns: turns.due_s)
        pause_s = min((turns.due_s - now_s for turns in self._turns if not turns.is_asked), default=STOP_POLL_S)
        if any(turns.is_asked for turns in self._turns):
            self._answered.wait(min(pause_s, STOP_POLL_S))
        else:
            stop.wait(pause_s)
        return None

    def _turn(self, turns: _Turns, interval_ms: int, stop: Event) -> float:
        """Run one cycle and a slice of upkeep; return the milliseconds to wait before the cluster's next one."""
        self._begun_s = turns.begun_s
        turns.cycles.is_shared = self._waits_other(turns, interval_ms)
        try:
            report = turns.run()
        except LakeLost:
            raise
        except MQError as error:
            return self._failed(turns, str(error), interval_ms)
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
            return self._failed(turns, f"Spark failed: {spark_cause(str(error))}", interval_ms)
        finally:
            self.status.doing = ""
        self._faults = 0
        self._note(turns, report)
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
        return 0 if report.behind else max(0, interval_ms - (time.monotonic() - turns.begun_s) * 1000)

    def _waits_other(self, turns: _Turns, interval_ms: int) -> bool:
        """Whether another cluster has answered, or is due within an interval. A silent one does not wait."""
        until_s = time.monotonic() + interval_ms / 1000
        others = [one for one in self._turns if one is not turns]
        return any(one.is_ready or (not one.is_asked and one.due_s <= until_s) for one in others)

    def _failed(self, turns: _Turns, error: str, interval_ms: int) -> float:
        turns.status.note_failure(error)
        pause_ms: int = min(interval_ms * 2 ** min(turns.status.failed_in_row - 1, 16), PAUSE_MS_MAX)
        text = f"this cycle failed: {error}; the next one is in {pause_ms / 1000:.0f} s"
        self._say(self.status.named(turns.status.cluster, text))
        self._write()
        return pause_ms

    def _note(self, turns: _Turns, report: JobReport) -> None:
        at_ms, status = now_ms(), turns.status
        status.note_cycle(report, at_ms)
        status.freshness = turns.cycles.freshness.of()
        new, gone = status.note_problems(report.problems, at_ms)
        lines = [f"problem: {problem}" for problem in new] + [f"no longer a problem: {problem}" for problem in gone]
        self._show(report)
        is_idle = not (report.trace_messages or report.messages or report.gaps or report.trajectories)
        if not is_idle or new or gone or time.monotonic() - turns.reported_s >= IDLE_REPORT_MS / 1000:
            turns.reported_s = time.monotonic()
            lines.append(summary(report, status))
        for line in lines:
            self._say(self.status.named(status.cluster, line))

    # -- the status file, and lines about long cycles --------------------------------------------------------------

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Write the status, and print the step of a long cycle, every REPORT_MS while the block runs."""

        def report(ended: Event) -> None:
            while not ended.wait(REPORT_MS / 1000):
                taken_s = time.monotonic() - self._begun_s
                doing = self.status.doing
                if doing and taken_s >= REPORT_MS / 1000:
                    self._say(f"{doing} (this cycle: {taken_s:.0f} s)")
                self._write()

        self._write()
        with _beside("mqtrail-status", report):
            yield

    # -- what Prometheus reads -------------------------------------------------------------------------------------

    def _exposition(self) -> bytes:
        return exposition(self.status, str(self._lake), self._answers)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count the rows of the lake every COUNT_MS while the block runs; after a failure the counts are unknown."""

        def count(ended: Event) -> None:
            lake = None
            while True:
                try:
                    lake = lake or Lake.open(self._lake)
                    self._answers = answered(lake, now_ms())
                except MQError:  # a cycle that fails for the same reason reports it
                    self._answers = NOTHING
                if ended.wait(COUNT_MS / 1000):
                    return

        with _beside("mqtrail-counting", count):
            yield

    def _end_asking(self) -> None:
        end_s = time.monotonic() + ASKED_END_S_MAX
        for turns in self._turns:
            turns.end(end_s - time.monotonic())

    def _ended(self) -> None:
        self.status.is_running = False
        self._write()

    def _write(self) -> None:
        try:
            self._file.write(self.status)
        except OSError as error:
            self._say(f"the status was not written to {self._file.path}: {error.strerror or error}")


@contextmanager
def _beside(name: str, work: Callable[[Event], None]) -> Iterator[None]:
    """Run work in a thread of this name while the block runs; work returns soon after the event is set."""
    ended = Event()
    thread = Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PORT_TIMEOUT_S)


def summary(report: JobReport, status: ClusterStatus) -> str:
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
