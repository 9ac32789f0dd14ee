"""The job: from a cluster to a lake. Only this module and its parts read and write.

    once    sample the cluster → read trace and messages to their ends → bronze, silver → judge as of the sample → gold
    run     the same in a loop, with compaction and retention; a sampler beside it takes the samples

What is read comes after the instant of judgement, so that everything that was stored or consumed before it is there:
`once` judges as of its sample, a cycle of `run` as of its beginning, with the latest sample that there is. What claims
that something is missing waits for the samples and times that show it; everything else is judged as soon as it is read.
Without a new sample and new records nothing is judged. Nothing is written to the cluster.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from types import TracebackType
from typing import Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.lake import JUDGED_APP, Lake, lake_errors

from .backfilling import Backfiller
from .backfills import Backfill
from .clock import now_ms
from .config import NOT_RUNNING, JobConfig, JobFailed, JobReport
from .executors import check_executors
from .files import Committer
from .freshness import Freshness
from .ingest import Counts, Ingest, Limit, ReadCluster
from .judging import Judge
from .masters import is_local, spark_cause
from .problems import ProblemLog
from .pulling import SparkPulls
from .recording import Recorders
from .sampler import Sampler, traced_groups
from .sampling import ClusterSample, Topology, sample, survey
from .service import Service
from .session import spark_session
from .source import RocketMQDataSource
from .spool import SampleSpool
from .tasks import SparkTasks
from .upkeep import LakeUpkeep

Progress = Callable[[str], None]
BACKFILL_PAUSE_S = 60.0  # after a piece that had a problem, as a broker that does not answer takes time
FIRST_SAMPLE_MS_MAX = 10_000  # how long the first cycle of a new lake waits for its sample
FIRST_SAMPLE_POLL_MS = 100
SAMPLER_END_MS_MAX = 10_000  # how long the end of `run` waits for the request that the sampler is in


class PipelineJob:
    """A pipeline from one cluster to one lake. Entering it starts Spark. One call at a time, from any thread."""

    source: type[RocketMQDataSource] = RocketMQDataSource  # tests replace it

    def __init__(self, config: JobConfig, progress: Progress = lambda text: None) -> None:
        self.config = config
        self._say = progress
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._lake: Lake | None = None
        self._step = progress  # called with each step of a cycle; `run` prints it only if the cycle takes long
        self._freshness = Freshness()
        self._sample_problems: list[str] = []  # of the latest sample
        self._is_judged = False  # whether there was a judgement since something was read
        self._read_cluster: ReadCluster | None = None  # of the latest cycle
        self._backfill_due_s = 0.0  # time.monotonic
        self._backfill_told: tuple[str, ...] = ()  # problem of the latest piece

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._lake = Lake.create(self.config.lake)
            stack.enter_context(self._lake.writing())  # a second pipeline is refused until this one has ended
            spark = stack.enter_context(spark_session(self.config.session, self.config.task_memory))
            master = spark.sparkContext.master or ""
            if not is_local(master):
                self._say(f"waiting for executors of {master}")
                check_executors(spark, self._lake.path, self.config.session.executor_timeout_ms)
            self.use(spark)
            self._stack = stack.pop_all()
        return self

    def use(self, spark: SparkSession) -> Self:
        """Use a running Spark session, instead of entering the job. The caller stops the session."""
        self._lake = self._lake or Lake.create(self.config.lake)
        self._spark = spark
        self._spool = SampleSpool(self.config.lake)
        self._recorders = Recorders(self._lake, self.config.retention_ms)
        self._problems = ProblemLog(self._lake)
        committer = Committer(self._lake)
        tasks = SparkTasks(spark)
        self._ingest = Ingest(SparkPulls(spark), self._lake, self.config, self.source, self._say)
        self._backfiller = Backfiller(self._ingest, self._lake, self.config)
        self._judge = Judge(
            tasks,
            self._lake,
            committer,
            self.config.judged_with,
            self.config.task_memory,
            self._say,
            self.config.driver_attempts_max,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._spark = None

    @property
    def spark(self) -> SparkSession:
        """The session, while the job is entered."""
        assert self._spark is not None, "use the job within `with PipelineJob(...)`"
        return self._spark

    @property
    def lake(self) -> Lake:
        """The lake, while the job is entered."""
        assert self._lake is not None, "use the job within `with PipelineJob(...)`"
        return self._lake

    # -- public methods --------------------------------------------------------------------------------------------

    def sample(self) -> list[str]:
        """Sample groups, offsets and clients now; return what could not be queried. MQError: no cluster."""
        with self.lake.writing(), SyncAdmin(self.config.namesrv, config=self.config.instance) as admin:
            topology, cluster = self._survey(admin)
            return self._look(admin, topology, cluster.name).problems

    def once(self, as_of_ms: int | None = None) -> JobReport:
        """Run one cycle. as_of_ms: the instant of judgement; None: the instant of the sample. JobFailed."""
        with self.lake.writing():
            try:
                report = self._cycle(as_of_ms, fail_on_data_loss=self.config.fail_on_data_loss)
            except Py4JJavaError as error:  # of Spark itself: executors were lost, memory ended
                raise JobFailed(
                    f"Spark failed ({spark_cause(str(error))}), expected tasks that end: committed data is kept. Look "
                    "at the logs of the executors, and run it again"
                ) from error
            self._problems.note(report.cluster, report.problems, now_ms())
            return report

    def run(
        self,
        interval_ms: int,
        stop: Event,
        *,
        metrics: tuple[str, int] | None = None,
        show: Callable[[JobReport], None] = lambda report: None,
    ) -> None:
        """Run a cycle every interval_ms until stop is set, which ends it after the commit under way.

        metrics: host and port to serve Prometheus on. show: called with the report of each successful cycle. Between
        cycles the lake is compacted and expired rows are removed. A gap is recorded and does not end the run. A failed
        cycle is reported and retried. LakeBusy: another pipeline uses the lake. BindError. JobFailed: Spark fails.
        """
        upkeep = LakeUpkeep(self.lake, self.config.retention_ms, self.config.task_memory)
        limit = Limit(self.config.messages_per_cycle_max, stop.is_set)
        service = Service(self.config.lake, lambda: self._run_cycle(service, limit), upkeep, self._say, show)
        with self.lake.writing(), self.sampling():
            service.run(interval_ms, stop, metrics)

    def _run_cycle(self, service: Service, limit: Limit) -> JobReport:
        """One cycle of `run`."""
        self._step, self._freshness = service.doing, service.freshness
        self._ingest.progress = service.doing
        report = self._cycle(None, fail_on_data_loss=False, is_sampled=True, limit=limit)
        if not report.behind and not limit.is_over():
            report = dataclasses.replace(report, problems=(*report.problems, *self._backfill_problem()))
        self._problems.note(report.cluster, report.problems, now_ms())
        return report

    def _backfill_problem(self) -> tuple[str, ...]:
        """Read a piece for a backfill; return its problem, if it has one. After that the next piece waits a while."""
        if time.monotonic() >= self._backfill_due_s:
            self._step("reading for a backfill")
            worked = self._backfilled(self.config.backfill_messages_max)
            self._backfill_told = (f"backfill {worked.id}: {worked.problem}",) if worked and worked.problem else ()
            if self._backfill_told:
                self._backfill_due_s = time.monotonic() + BACKFILL_PAUSE_S
        return self._backfill_told

    def backfill(self, stop: Event, show: Callable[[Backfill], None] = lambda one: None) -> list[Backfill]:
        """Work on all open backfills until they have ended or have a problem, or stop is set. Return the open ones.

        show: called after each piece. For a lake without a pipeline that runs: reads and judges its cluster, too.
        """
        files = self._backfiller.files
        with self.lake.writing():
            self._cycle(None, fail_on_data_loss=False)
            is_working = True
            while is_working and not stop.is_set():
                left = self.config.messages_per_cycle_max
                while left > 0 and is_working and not stop.is_set():
                    worked = self._backfilled(min(left, self.config.offsets_per_batch_max))
                    left -= self.config.offsets_per_batch_max
                    is_working = worked is not None and worked.is_open and not worked.problem
                    if worked is not None:
                        show(worked)
                if not stop.is_set():
                    self._cycle(None, fail_on_data_loss=False)
        return [one for one in files.all() if one.is_open]

    def _backfilled(self, count_max: int) -> Backfill | None:
        """Read a piece for a backfill; None: there is none. A cluster that does not answer becomes its problem."""
        if self._read_cluster is None:
            return None
        worked = self._backfiller.piece(self._read_cluster, count_max)
        self._is_judged = self._is_judged and worked is None
        return worked

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Run a sampler with separate connections in a thread while the block runs; the next cycle records its samples.

        Without one, nothing shows which groups there were between two calls of `once`.
        """
        ended = Event()
        thread = Thread(target=Sampler(self.config, self._say).run, args=(ended,), name="mqtrail-sampler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(SAMPLER_END_MS_MAX / 1000)

    # -- one cycle -------------------------------------------------------------------------------------------------

    def _cycle(
        self, as_of_ms: int | None, *, fail_on_data_loss: bool, is_sampled: bool = False, limit: Limit | None = None
    ) -> JobReport:
        """Run one cycle. is_sampled: a sampler takes the samples; otherwise the cycle takes one.

        At limit.messages_max the cycle stops reading and judges what was read; once limit.is_over(), it starts no step.
        """
        limit = limit or Limit()
        begun = time.monotonic()
        self.lake.check()
        self._step("sampling consumer groups, offsets and clients")
        with SyncAdmin(self.config.namesrv, config=self.config.instance) as admin:
            topology, cluster = self._survey(admin)
            found = self._latest(cluster.name) if is_sampled else self._look(admin, topology, cluster.name)
        cluster = dataclasses.replace(cluster, sql_topics=self._recorders.of(cluster.name).sql_topics)
        begun_ms = now_ms()
        problems = list(topology.problems)
        if not topology.trace_topics:
            problems.append(f"the cluster has no topic {self.config.trace_topic}: nothing is traced")
        self._step("reading trace records and messages")
        counts = self._ingest.run(cluster, fail_on_data_loss=fail_on_data_loss, limit=limit)
        self._read_cluster = cluster
        self._freshness.read(counts.files)
        self._is_judged = self._is_judged and trail.ATTEMPTS.name not in counts.files
        if found is not None and not limit.is_over():
            reached = self._ingest.offsets()
            self._sample_problems = [*found.problems, *found.behind(reached)]
            self._recorders.of(cluster.name).read_up_to(found.sampled_ms, found.read_topics(reached))
        judged, instant = 0, as_of_ms or self._instant(found, counts, begun_ms if is_sampled else None)
        if instant is not None and not limit.is_over():
            judged = self._judged(cluster.name, instant, found, only_until=as_of_ms is not None)
        problems += self._sample_problems
        return JobReport(
            cluster=cluster.name,
            as_of_ms=instant or 0,
            trace_messages=counts.trace_messages,
            trace_records=counts.of(trail.TRACE_EVENTS),
            rejects=counts.of(trail.TRACE_REJECTS),
            messages=counts.of(trail.MESSAGE_META),
            gaps=counts.of(trail.GAPS),
            trajectories=judged,
            seconds=time.monotonic() - begun,
            problems=tuple(problems),
            behind=counts.behind,
        )

    def _instant(self, found: ClusterSample | None, counts: Counts, begun_ms: int | None) -> int | None:
        """The instant to judge as of; None: it would say nothing new. begun_ms: of a cycle beside a sampler."""
        if found is None and self._is_judged:
            return None
        # What was left behind can be older than this cycle. The sample has the ranges that tell what is missing.
        at_ms = found.sampled_ms if found and (counts.behind or begun_ms is None) else begun_ms
        if at_ms is None or (found is None and counts.behind):
            return None
        # It is later if a clock was set back. It ascends over all clusters, so that who follows a lake misses none.
        last = self.lake.batches.last(JUDGED_APP)
        return at_ms if last is None else max(at_ms, last.number + 1)

    def _judged(self, cluster: str, instant: int, found: ClusterSample | None, *, only_until: bool) -> int:
        """Judge as of an instant, and add the lag of a new sample; return the number of messages."""
        self._step(f"judging as of {instant}")
        with self._reading_lake():
            judged = self._judge.run(cluster, instant, only_until=only_until)
            self._is_judged = True
            self._freshness.answered(now_ms())
            if found is not None:
                self._judge.lag(cluster, found.sampled_ms)
        return judged

    @contextmanager
    def _reading_lake(self) -> Iterator[None]:
        """Turn a failure of Spark or DuckDB into LakeError if a file of the lake is damaged."""
        try:
            with lake_errors(self.lake.path):
                yield
        except (PySparkException, Py4JJavaError):
            self.lake.probe()
            raise

    def _survey(self, admin: SyncAdmin) -> tuple[Topology, ReadCluster]:
        """Look at the cluster, before anything of it is recorded. JobFailed: its name is that of another one."""
        found = survey(admin, self.config.trace_topic, self.config.topics)
        name = self.config.cluster or found.cluster
        cluster = ReadCluster(name, found.trace_topics, found.evidence, found.delays_ms, found.masters)
        self._ingest.check_name(cluster)
        return found, cluster

    def _look(self, admin: SyncAdmin, topology: Topology, cluster: str) -> ClusterSample:
        """Take a sample now and record it, after those that wait in the spool."""
        self._recorders.record_spool(self._spool)
        recorder = self._recorders.of(cluster)
        groups = traced_groups(self.lake, cluster).union(recorder.groups)
        found = sample(admin, topology, cluster, max(now_ms(), (recorder.sampled_ms or 0) + 1), groups)
        last_ms = recorder.sampled_ms
        if last_ms is None or found.sampled_ms - last_ms > self.config.judged_with.sample_pause_ms_max:
            found.gap = NOT_RUNNING
        recorder.record([found])
        return found

    def _latest(self, cluster: str) -> ClusterSample | None:
        """Record the sampler's samples and return the latest; None if there is none since the last call.

        Waits for the first sample of a lake, which is being taken when a pipeline starts.
        """
        end = time.monotonic() + FIRST_SAMPLE_MS_MAX / 1000
        while True:
            found = self._recorders.record_spool(self._spool).get(cluster)
            if found is not None or self._recorders.of(cluster).sampled_ms is not None or time.monotonic() > end:
                return found
            time.sleep(FIRST_SAMPLE_POLL_MS / 1000)
