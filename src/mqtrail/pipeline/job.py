"""The job: from a cluster to a lake. With its parts, the only place of the pipeline that reads and writes.

    once    sample the cluster → read trace and messages to their ends → bronze, silver → judge as of the sample → gold
    run     the same in a loop, with compaction and retention

The sample comes first and is the instant of judgement: what it says was stored or consumed by then is in what is read
after it. Nothing is written to the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from types import TracebackType
from typing import Self

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.lake import Lake, arrow_rows, compact, connect, expire, lake_errors, relation_of, sweep
from mqtrail.pipeline.config import HOUR_MS, JobConfig, JobReport
from mqtrail.pipeline.files import Committer
from mqtrail.pipeline.hours import JudgedHours
from mqtrail.pipeline.ingest import CHECKPOINTS, Ingest, now_ms
from mqtrail.pipeline.judging import Judge
from mqtrail.pipeline.offsets import QueueOffsets
from mqtrail.pipeline.sampling import Sample, Topology, behind, sample, survey
from mqtrail.pipeline.session import spark_session
from mqtrail.pipeline.source import RocketMQDataSource
from mqtrail.pipeline.tasks import SparkTasks
from mqtrail.wire import MQError

Say = Callable[[str], None]


class Job:
    """A pipeline over one cluster and one lake. Entering starts Spark. One caller at a time, of any thread."""

    source: type[RocketMQDataSource] = RocketMQDataSource  # what it reads with; tests read something else

    def __init__(self, config: JobConfig, progress: Say = lambda text: None) -> None:
        self.config = config
        self._say = progress
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._lake: Lake | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._lake = Lake.create(self.config.lake)
            stack.enter_context(self._lake.writing())  # a second pipeline is refused until this one has ended
            self.use(stack.enter_context(spark_session(self.config.session)))
            self._stack = stack.pop_all()
        return self

    def use(self, spark: SparkSession) -> Self:
        """Work with a session that is there already, whose end is its owner's business. Instead of entering."""
        self._lake = self._lake or Lake.create(self.config.lake)
        self._spark = spark
        committer = Committer(self._lake)
        judged = JudgedHours(self.config.lake / CHECKPOINTS / "hours.json", self._lake[trail.ATTEMPTS.name].hours)
        if judged.is_rebuilt:
            self._say("the list of hours to judge is damaged: every hour of the lake is judged again")
        self._ingest = Ingest(spark, committer, judged, self.config, self.source, self._say)
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
        assert self._spark is not None, "use the job within `with Job(...)`"
        return self._spark

    @property
    def lake(self) -> Lake:
        """The lake, while the job is entered."""
        assert self._lake is not None, "use the job within `with Job(...)`"
        return self._lake

    # -- what a user calls -----------------------------------------------------------------------------------------

    def sample(self) -> list[str]:
        """Sample who reads what and how far, now; return what could not be queried. MQError: no cluster."""
        with self.lake.writing():
            with SyncAdmin(self.config.namesrv, config=self.config.instance) as admin:
                found, _ = self._look(admin)
            self._keep(found, self._ingest.offsets())
        return found.problems

    def once(self, as_of_ms: int | None = None) -> JobReport:
        """One cycle. as_of_ms: the instant to judge at; that of the sample it begins with, where None."""
        with self.lake.writing():
            return self._cycle(as_of_ms, fail_on_data_loss=self.config.fail_on_data_loss)

    def run(self, interval_ms: int, stop: Event) -> None:
        """Cycle until stop is set, every interval_ms. Gaps are recorded, files compacted and expired; a cycle that
        fails is told of and tried again at the next turn. LakeBusy: another pipeline has the lake."""
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
                # Who stops a group of processes (a service manager does) has ended Spark's JVM as well.
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
        self._say("reading trace records and messages")
        counts = self._ingest.run(
            self.config.cluster or topology.cluster,
            topology.trace_topics,
            topology.evidence,
            topology.delays_ms,
            fail_on_data_loss=fail_on_data_loss,
        )
        reached = self._ingest.offsets()
        found.problems += behind(found, reached)
        self._keep(found, reached)
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
        """Tell of a damaged file, which only looked sound, where Spark or DuckDB failed on it. LakeError."""
        try:
            with lake_errors(self.lake.path):
                yield
        except (PySparkException, Py4JJavaError):
            self.lake.probe()
            raise

    def _look(self, admin: SyncAdmin) -> tuple[Sample, Topology]:
        topology = survey(admin, self.config.trace_topic, self.config.topics)
        cluster = self.config.cluster or topology.cluster
        return sample(admin, topology, cluster, now_ms(), self._known_groups(cluster)), topology

    def _known_groups(self, cluster: str) -> list[str]:
        """Groups that earlier samples saw: one whose consumers have gone may be known nowhere else."""
        table = self.lake[trail.CLIENTS.name]
        table.refresh()
        query = f"SELECT DISTINCT group_name FROM ({relation_of(table)}) WHERE cluster = ?"
        with lake_errors(table.path):
            return [name for (name,) in connect(threads=1).execute(query, [cluster]).fetchall()]

    def _keep(self, found: Sample, reached: QueueOffsets) -> None:
        """Write a sample's rows; how far the pipeline itself has read is known only now."""
        for name, rows in found.with_read_offsets(reached).items():
            table = self.lake[name]
            file = table.path / f"batch=sample-{found.sampled_ms}" / "part-0.parquet"
            if not table.is_committed("sample", found.sampled_ms):
                with lake_errors(table.path):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    pq.write_table(arrow_rows(table.table.relation, rows), file, compression="zstd")
                table.commit([file], app="sample", batch=found.sampled_ms)

    def _maintain(self, at_ms: int) -> None:
        """Compact closed hours, forget what is older than retention, remove files that nobody names."""
        with lake_errors(self.lake.path):
            compact(self.lake, closed_before_hour=at_ms // HOUR_MS - 1, now_ms=at_ms)
            expire(self.lake, at_ms - self.config.retention_ms, now_ms=at_ms)
            sweep(self.lake, now_ms=at_ms)
