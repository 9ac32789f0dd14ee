"""The job: from a cluster to a lake. Only this module and its parts read and write.

    once    sample the cluster → read trace and messages to their ends → bronze, silver → judge as of the sample → gold
    run     the same in a loop, with compaction and retention

The sample comes first and is the instant of judgement, so that everything that was stored or consumed before it is read
after it. Nothing is written to the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from types import TracebackType
from typing import Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.lake import Lake, compact, connect, expire, lake_errors, relation_of, sweep
from mqtrail.wire import MQError, is_business_group

from .checkpoint import CHECKPOINTS
from .config import HOUR_MS, JobConfig, JobReport
from .files import Committer
from .hours import JudgedHours
from .ingest import Ingest, now_ms
from .judging import Judge
from .pulling import SparkPulls
from .recording import Recorder
from .sampling import ClusterSample, Topology, sample, survey
from .session import spark_session
from .source import RocketMQDataSource
from .tasks import SparkTasks

Progress = Callable[[str], None]
TRACED_HOURS = 2  # latest publish hours whose verdicts are searched for groups that the brokers may not know


class PipelineJob:
    """A pipeline from one cluster to one lake. Entering it starts Spark. One call at a time, from any thread."""

    source: type[RocketMQDataSource] = RocketMQDataSource  # tests replace it

    def __init__(self, config: JobConfig, progress: Progress = lambda text: None) -> None:
        self.config = config
        self._say = progress
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._lake: Lake | None = None
        self._recorders: dict[str, Recorder] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._lake = Lake.create(self.config.lake)
            stack.enter_context(self._lake.writing())  # a second pipeline is refused until this one has ended
            self.use(stack.enter_context(spark_session(self.config.session)))
            self._stack = stack.pop_all()
        return self

    def use(self, spark: SparkSession) -> Self:
        """Use a Spark session that runs already, instead of entering the job. The caller stops the session."""
        self._lake = self._lake or Lake.create(self.config.lake)
        self._spark = spark
        committer = Committer(self._lake)
        judged = JudgedHours(self.config.lake / CHECKPOINTS / "hours.json", self._lake[trail.ATTEMPTS.name].hours)
        if judged.is_rebuilt:
            self._say("the list of hours to judge is damaged: judging every hour of the lake again")
        self._ingest = Ingest(SparkPulls(spark), self._lake, judged, self.config, self.source, self._say)
        self._judge = Judge(
            SparkTasks(spark), self._lake, committer, judged, self.config.settings, self.config.task_memory
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

    # -- what a user calls -----------------------------------------------------------------------------------------

    def sample(self) -> list[str]:
        """Sample groups, offsets and clients now; return what could not be queried. MQError: no cluster."""
        with self.lake.writing():
            with SyncAdmin(self.config.namesrv, config=self.config.instance) as admin:
                found, topology = self._look(admin)
            self._recorder(self.config.cluster or topology.cluster).record([found])
        return found.problems

    def once(self, as_of_ms: int | None = None) -> JobReport:
        """Run one cycle. as_of_ms: the instant of judgement; None: the instant of the sample."""
        with self.lake.writing():
            return self._cycle(as_of_ms, fail_on_data_loss=self.config.fail_on_data_loss)

    def run(self, interval_ms: int, stop: Event) -> None:
        """Run a cycle every interval_ms until stop is set; compact files and remove expired ones after each.

        A gap is recorded and does not end the run. A cycle that fails is reported, and the next one tries again.
        LakeBusy: another pipeline uses the lake.
        """
        with self.lake.writing():
            self._run(interval_ms, stop)

    def _run(self, interval_ms: int, stop: Event) -> None:
        while not stop.is_set():
            begun_ms = now_ms()
            try:
                report = self._cycle(None, fail_on_data_loss=False)
                self._maintain(now_ms())
                self._say(
                    f"{report.trace_records} trace records, {report.messages} messages, {report.trajectories} judged"
                )
            except MQError as error:
                self._say(f"this cycle failed: {error}")
            except Exception:
                if not stop.is_set():
                    raise
                # A signal to the process group, as a service manager sends it, ends Spark's JVM too.
                self._say("stopped within a cycle: committed data is kept, and the next run continues from there")
            stop.wait(max(0, interval_ms - (now_ms() - begun_ms)) / 1000)

    # -- one cycle -------------------------------------------------------------------------------------------------

    def _cycle(self, as_of_ms: int | None, *, fail_on_data_loss: bool) -> JobReport:
        begun = time.monotonic()
        self.lake.check()
        self._say("sampling consumer groups, offsets and clients")
        with SyncAdmin(self.config.namesrv, config=self.config.instance) as admin:
            found, topology = self._look(admin)
        found.problems += topology.problems
        if not topology.trace_topics:
            found.problems.append(f"the cluster has no topic {self.config.trace_topic}: nothing is traced")
        cluster = self.config.cluster or topology.cluster
        self._recorder(cluster).record([found])
        self._say("reading trace records and messages")
        counts = self._ingest.run(
            cluster,
            topology.trace_topics,
            topology.evidence,
            topology.delays_ms,
            fail_on_data_loss=fail_on_data_loss,
        )
        reached = self._ingest.offsets()
        found.problems += found.behind(reached)
        self._recorder(cluster).read_up_to(found.sampled_ms, found.read_topics(reached))
        self._say(f"judging as of {found.sampled_ms if as_of_ms is None else as_of_ms}")
        with self._reading_lake():
            judged = self._judge.run(
                found.sampled_ms if as_of_ms is None else as_of_ms, only_until=as_of_ms is not None
            )
            self._judge.lag(found.sampled_ms)
        return JobReport(
            as_of_ms=found.sampled_ms if as_of_ms is None else as_of_ms,
            trace_messages=counts.trace_messages,
            trace_records=counts.of(trail.TRACE_EVENTS),
            rejects=counts.of(trail.TRACE_REJECTS),
            messages=counts.of(trail.MESSAGE_META),
            gaps=counts.of(trail.GAPS),
            trajectories=judged,
            seconds=time.monotonic() - begun,
            problems=tuple(found.problems),
        )

    @contextmanager
    def _reading_lake(self) -> Iterator[None]:
        """Turn a failure of Spark or DuckDB into LakeError if a file of the lake is damaged."""
        try:
            with lake_errors(self.lake.path):
                yield
        except (PySparkException, Py4JJavaError):
            self.lake.probe()
            raise

    def _look(self, admin: SyncAdmin) -> tuple[ClusterSample, Topology]:
        topology = survey(admin, self.config.trace_topic, self.config.topics)
        cluster = self.config.cluster or topology.cluster
        return sample(admin, topology, cluster, now_ms(), self._known_groups(cluster)), topology

    def _recorder(self, cluster: str) -> Recorder:
        if cluster not in self._recorders:
            self._recorders[cluster] = Recorder(self.lake, cluster, self.config.retention_ms)
        return self._recorders[cluster]

    def _known_groups(self, cluster: str) -> list[str]:
        """Groups of earlier samples and of recent verdicts. A group whose consumers are gone may be known nowhere
        else, and one that the brokers do not know may have traced its deliveries."""
        verdicts = self.lake[trail.VERDICTS.name]
        verdicts.refresh()
        recent = relation_of(verdicts, verdicts.files(verdicts.hours()[-TRACED_HOURS:]))
        query = f"SELECT DISTINCT group_name FROM ({recent}) AS recent WHERE cluster = ?"
        with lake_errors(self.lake.path):
            traced = {name for (name,) in connect(threads=1).execute(query, [cluster]).fetchall()}
        return sorted(name for name in traced.union(self._recorder(cluster).groups) if is_business_group(name))

    def _maintain(self, at_ms: int) -> None:
        """Compact closed hours, remove rows older than the retention, delete files that no commit names."""
        with lake_errors(self.lake.path):
            compact(self.lake, closed_before_hour=at_ms // HOUR_MS - 1, now_ms=at_ms)
            expire(self.lake, at_ms - self.config.retention_ms, now_ms=at_ms)
            sweep(self.lake, now_ms=at_ms)
