"""The cycles of one cluster: ask for the ends of its queues, read new messages, judge.

Reading begins after the instant of judgement, so that everything that was stored or consumed before it is there:
`once` judges as of its sample, a cycle of `run` as of its beginning, with the latest sample. A verdict that
something is missing waits for the samples and times that show it; everything else is judged as soon as it is read.
Without a new sample and new records nothing is judged. Nothing is written to the cluster.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.clock import now_ms
from mqtrail.lake import JUDGED_APP, Lake, lake_errors

from .backfilling import Backfiller
from .backfills import Backfill
from .bounds import FoundBounds
from .config import NOT_RUNNING, JobConfig, JobReport
from .freshness import Freshness
from .ingest import Counts, Ingest, Limit, ReadCluster
from .judging import Judge
from .problems import ProblemLog
from .pulling import PullTasks
from .recording import Recorders
from .sampler import TracedGroups
from .sampling import ClusterSample, Topology, is_trace_topic, sample, survey
from .source import RocketMQDataSource
from .spool import SampleSpool
from .truncated import Truncated, rows_of_truncated

Progress = Callable[[str], None]
BACKFILL_PAUSE_S = 60.0  # after a piece that had a problem, as a broker that does not answer takes time
SHARED_MESSAGES_MAX = 10_000  # of a cycle while another cluster waits: at 40 records each, some 10 s of one core
FIRST_SAMPLE_MS_MAX = 10_000  # how long the first cycle of a new cluster waits for its sample
FIRST_SAMPLE_POLL_MS = 100


@dataclass(frozen=True, slots=True)
class LakeWork:
    """What the jobs of all clusters of a lake share. One call at a time."""

    lake: Lake
    judge: Judge
    pulls: PullTasks
    source: type[RocketMQDataSource]
    spool: SampleSpool
    recorders: Recorders
    problems: ProblemLog


@dataclass(frozen=True, slots=True)
class Asked:
    """What a cluster answered at the begin of a cycle. bounds: the ends of its queues after at_ms; None: not asked."""

    topology: Topology
    cluster: ReadCluster
    at_ms: int
    bounds: FoundBounds | None = None


class ClusterJob:
    """The cycles of one cluster. One call at a time, except of `ask` and `begin`."""

    def __init__(self, config: JobConfig, work: LakeWork, say: Progress) -> None:
        self.config = config
        self.name = config.cluster  # '': not known yet
        self.freshness = Freshness()
        self.step = say  # called with each step of a cycle; `run` prints it only if the cycle takes long
        self.limit = Limit()  # of the cycles of `run`
        self.is_shared = False  # whether another cluster waits for its turn
        self._work = work
        self._ingest = Ingest(work.pulls, work.lake, config, work.source, say)
        self._ingest.note_truncated = self._note_truncated
        self._backfiller = Backfiller(self._ingest, work.lake, config)
        self._traced = TracedGroups()
        self._sample_problems: list[str] = []  # of the latest sample
        self._is_judged = False  # whether there was a judgement since something was read
        self._read_cluster: ReadCluster | None = None  # of the latest cycle
        self._backfill_due_s = 0.0  # time.monotonic
        self._backfill_problem: tuple[str, ...] = ()  # problem of the latest piece

    # -- cycles ----------------------------------------------------------------------------------------------------

    def sample(self) -> list[str]:
        """Sample groups, offsets and clients now; return what could not be queried. MQError: no cluster."""
        with self._admin() as admin:
            asked = self._survey(admin)
            self._ingest.check_name(asked.cluster)
            return self._look(admin, asked).problems

    def once(self, as_of_ms: int | None = None, *, fail_on_data_loss: bool = False) -> JobReport:
        """Run a cycle with a sample of its own. as_of_ms: the instant of judgement; None: that of the sample."""
        begun_s = time.monotonic()
        self._work.lake.check()
        self.step("sampling consumer groups, offsets and clients")
        with self._admin() as admin:
            asked = self._survey(admin)
            self._ingest.check_name(asked.cluster)
            found = self._look(admin, asked)
        counts = self._read(asked, Limit(), fail_on_data_loss=fail_on_data_loss)
        instant = as_of_ms or self._instant(found, counts, None)
        self._note_read(asked, found, instant)
        judged = 0 if instant is None else self._judged(instant, found, only_until=as_of_ms is not None)
        return self._report(asked, counts, instant, judged, begun_s)

    def begin(self) -> Callable[[], JobReport]:
        """Ask the cluster, in any thread; return the rest of a cycle beside a sampler. MQError: it does not answer."""
        begun_s = time.monotonic()
        asked = self.ask()
        asked_s = time.monotonic() - begun_s
        return lambda: self._rest(asked, time.monotonic() - asked_s)

    def ask(self) -> Asked:
        """Ask for the cluster's topics, and then for the ends of their queues. MQError."""
        with self._admin() as admin:
            asked = self._survey(admin)
        if not asked.cluster.topics:
            return asked
        at_ms = now_ms()
        work = self._ingest.work(asked.cluster, fail_on_data_loss=False)
        with self._ingest.connected(work) as connection:
            bounds = self._ingest.bounds(connection, asked.cluster.topics)
        return dataclasses.replace(asked, at_ms=at_ms, bounds=bounds)

    def _rest(self, asked: Asked, begun_s: float) -> JobReport:
        """A cycle of `run`.

        At limit.messages_max it stops reading and judges what was read; once limit.is_over(), it starts no step.
        """
        limit = self.limit.shared(SHARED_MESSAGES_MAX) if self.is_shared else self.limit
        self._ingest.progress = self.step
        self._work.lake.check()
        self._ingest.check_name(asked.cluster)
        asked, found = self._latest(asked)
        counts = self._read(asked, limit, fail_on_data_loss=False)
        judged, instant = 0, self._instant(found, counts, asked.at_ms)
        if not limit.is_over():
            self._note_read(asked, found, instant)
            judged = 0 if instant is None else self._judged(instant, found)
        report = self._report(asked, counts, instant, judged, begun_s)
        if not report.behind and not limit.is_over():
            report = dataclasses.replace(report, problems=(*report.problems, *self.backfill_problem()))
        self._work.problems.note(report.cluster, report.problems, now_ms())
        return report

    def _read(self, asked: Asked, limit: Limit, *, fail_on_data_loss: bool) -> Counts:
        """Read to the ends of all queues, or to the limit."""
        recorder = self._work.recorders.of(self.name)
        cluster = dataclasses.replace(asked.cluster, sql_topics=recorder.sql_topics)
        self.step("reading trace records and messages")
        counts = self._ingest.run(cluster, fail_on_data_loss=fail_on_data_loss, limit=limit, bounds=asked.bounds)
        self._read_cluster = cluster
        self.freshness.read(counts.files)
        self._is_judged = self._is_judged and trail.ATTEMPTS.name not in counts.files
        return counts

    def _note_read(self, asked: Asked, found: ClusterSample | None, instant: int | None) -> None:
        """Note, before a judgement, whose trace was not read, and which topics were read up to the sample."""
        recorder = self._work.recorders.of(self.name)
        if instant is not None:
            recorder.trace_read(instant, self._trace_not_read(asked))
        if found is not None:
            reached = self._ingest.offsets()
            self._sample_problems = [*found.problems, *found.behind(reached)]
            silent = {queue.topic for queue in self._ingest.silent()}
            read = found.read_topics(reached, recorder.left_topics | silent).difference(asked.cluster.trace_topics)
            recorder.read_up_to(found.sampled_ms, read)

    def _note_truncated(self, gone: list[Truncated]) -> None:
        """Note which groups had not read messages that are gone."""
        self._work.recorders.of(self.name).add_unread(rows_of_truncated(self._work.lake, self.name, gone))

    def _trace_not_read(self, asked: Asked) -> dict[str, bool]:
        """The brokers whose trace topics were not read to their ends, and whether they are still there."""
        there, topics, trace_topic = asked.topology.masters, asked.topology.topics, self.config.trace_topic
        left = [queue for queue in self._ingest.left() if is_trace_topic(queue.topic, trace_topic)]
        return {
            broker: broker in there and any(each.topic in topics for each in left if each.broker_name == broker)
            for broker in {queue.broker_name for queue in left}
        }

    def _instant(self, found: ClusterSample | None, counts: Counts, begun_ms: int | None) -> int | None:
        """The instant to judge as of; None: it would say nothing new. begun_ms: of a cycle beside a sampler."""
        if found is None and self._is_judged:
            return None
        # What was left behind can be older than this cycle. The sample has the ranges that tell what is missing.
        at_ms = found.sampled_ms if found and (counts.behind or begun_ms is None) else begun_ms
        if at_ms is None or (found is None and counts.behind):
            return None
        # It is later if a clock was set back. It ascends over all clusters, so that who follows a lake misses none.
        last = self._work.lake.batches.last(JUDGED_APP)
        return at_ms if last is None else max(at_ms, last.number + 1)

    def _judged(self, instant: int, found: ClusterSample | None, *, only_until: bool = False) -> int:
        """Judge as of an instant, and add the lag of a new sample; return the number of messages."""
        self.step(f"judging as of {instant}")
        with self._reading_lake():
            judged = self._work.judge.run(self.name, instant, only_until=only_until)
            self._is_judged = True
            self.freshness.answered(now_ms())
            if found is not None and found.has_readers:
                self._work.judge.lag(self.name, found.sampled_ms)
        return judged

    def _report(self, asked: Asked, counts: Counts, instant: int | None, judged: int, begun_s: float) -> JobReport:
        problems = list(asked.topology.problems)
        if not asked.topology.trace_topics:
            problems.append(f"the cluster has no topic {self.config.trace_topic}: nothing is traced")
        return JobReport(
            cluster=self.name,
            as_of_ms=instant or 0,
            trace_messages=counts.trace_messages,
            trace_records=counts.of(trail.TRACE_EVENTS),
            rejects=counts.of(trail.TRACE_REJECTS),
            messages=counts.of(trail.MESSAGE_META),
            gaps=counts.of(trail.GAPS),
            trajectories=judged,
            seconds=time.monotonic() - begun_s,
            problems=(*problems, *self._sample_problems),
            behind=counts.behind,
        )

    @contextmanager
    def _reading_lake(self) -> Iterator[None]:
        """Turn a failure of Spark or DuckDB into LakeError if a file of the lake is damaged."""
        try:
            with lake_errors(self._work.lake.path):
                yield
        except (PySparkException, Py4JJavaError):
            self._work.lake.probe()
            raise

    # -- backfills -------------------------------------------------------------------------------------------------

    def backfill_problem(self) -> tuple[str, ...]:
        """Read a piece for a backfill; return its problem, if it has one. After that the next piece waits a while."""
        if time.monotonic() >= self._backfill_due_s:
            self.step("reading for a backfill")
            worked = self.backfilled(self.config.backfill_messages_max)
            self._backfill_problem = (f"backfill {worked.id}: {worked.problem}",) if worked and worked.problem else ()
            if self._backfill_problem:
                self._backfill_due_s = time.monotonic() + BACKFILL_PAUSE_S
        return self._backfill_problem

    def backfilled(self, count_max: int) -> Backfill | None:
        """Read a piece for a backfill; None: there is none. A cluster that does not answer becomes its problem."""
        if self._read_cluster is None:
            return None
        worked = self._backfiller.piece(self._read_cluster, count_max)
        self._is_judged = self._is_judged and worked is None
        return worked

    # -- the cluster and its samples -------------------------------------------------------------------------------

    def _admin(self) -> SyncAdmin:
        return SyncAdmin(self.config.namesrv, config=self.config.instance)

    def _survey(self, admin: SyncAdmin) -> Asked:
        found = survey(admin, self.config.trace_topic, self.config.topics)
        self.name = self.config.cluster or found.cluster
        cluster = ReadCluster(self.name, found.trace_topics, found.evidence, found.delays_ms, found.masters)
        return Asked(found, cluster, now_ms())

    def _look(self, admin: SyncAdmin, asked: Asked) -> ClusterSample:
        """Take a sample now and record it, after those that wait in the spool."""
        recorders = self._work.recorders
        recorders.record_spool(self._work.spool)
        recorder = recorders.of(self.name)
        groups = self._traced.of(self._work.lake, self.name).union(recorder.groups)
        last_ms = recorder.sampled_ms
        found = sample(admin, asked.topology, self.name, max(now_ms(), (last_ms or 0) + 1), groups)
        if last_ms is None or found.sampled_ms - last_ms > self.config.judged_with.sample_pause_ms_max:
            found.gap = NOT_RUNNING
        recorder.record([found])
        return found

    def _latest(self, asked: Asked) -> tuple[Asked, ClusterSample | None]:
        """Record the sampler's samples; return the latest one before the cluster was asked, None without a new one.

        Waits for the first sample of a cluster, which is being taken when a pipeline starts; then the ends of its
        queues have to be asked again.
        """
        recorders = self._work.recorders
        recorders.record_spool(self._work.spool)
        if recorders.of(self.name).sampled_ms is not None:
            return asked, recorders.take(self.name, asked.at_ms)
        self.step("waiting for the first sample")
        end_s = time.monotonic() + FIRST_SAMPLE_MS_MAX / 1000
        while recorders.of(self.name).sampled_ms is None and time.monotonic() <= end_s and not self.limit.is_over():
            time.sleep(FIRST_SAMPLE_POLL_MS / 1000)
            recorders.record_spool(self._work.spool)
        later = dataclasses.replace(asked, at_ms=now_ms(), bounds=None)
        return later, recorders.take(self.name, later.at_ms)
