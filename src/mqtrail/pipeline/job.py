"""The job: from clusters to a lake. Only this module and its parts read and write.

    once    sample the cluster → read trace and messages to their ends → bronze, silver → judge as of the sample → gold
    run     the same in a loop, with compaction and retention; a sampler of each cluster beside it takes the samples

`clusterjob` has the cycles of one cluster. Nothing is written to a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from types import TracebackType
from typing import Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mqtrail.clock import now_ms
from mqtrail.lake import Lake

from .backfills import Backfill, BackfillFiles
from .clusterjob import ClusterJob, LakeWork, Progress
from .config import JobConfig, JobFailed, JobReport
from .executors import check_executors
from .files import Committer
from .ingest import Limit
from .judging import Judge
from .masters import is_local, spark_cause
from .problems import ProblemLog
from .pulling import SparkPulls
from .recording import Recorders
from .sampler import Sampler, named
from .service import Service
from .session import spark_session
from .source import RocketMQDataSource
from .spool import SampleSpool
from .tasks import SparkTasks
from .upkeep import LakeUpkeep

SAMPLER_END_S_MAX = 10.0  # how long `run` waits at its end for the samplers' open requests


class PipelineJob:
    """A pipeline from clusters to one lake. Entering it starts Spark. One call at a time, from any thread."""

    source: type[RocketMQDataSource] = RocketMQDataSource  # tests replace it

    def __init__(self, config: JobConfig, progress: Progress = lambda text: None) -> None:
        self.config = config
        self._say = progress
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._is_judged_again = False
        self._lake: Lake | None = None

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
        judge = Judge(
            SparkTasks(spark),
            self._lake,
            Committer(self._lake),
            self.config.judged_with,
            self.config.task_memory,
            self._say,
            self.config.driver_attempts_max,
        )
        work = LakeWork(
            lake=self._lake,
            judge=judge,
            pulls=SparkPulls(spark),
            source=self.source,
            spool=SampleSpool(self.config.lake),
            recorders=Recorders(self._lake, self.config.retention_ms),
            problems=ProblemLog(self._lake),
        )
        self._work = work
        self.jobs = [ClusterJob(one, work, named(self._say, one, self.config)) for one in self.config.each()]
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
        with self.lake.writing():
            return [problem for job in self.jobs for problem in job.sample()]

    def once(self, as_of_ms: int | None = None) -> JobReport:
        """Run one cycle of the only cluster, judged as of an instant; None: that of the sample. JobFailed."""
        [job] = self.jobs
        with self.lake.writing():
            try:
                report = job.once(as_of_ms, fail_on_data_loss=self.config.fail_on_data_loss)
            except Py4JJavaError as error:  # of Spark itself: executors were lost, memory ended
                raise JobFailed(
                    f"Spark failed ({spark_cause(str(error))}), expected tasks that end: committed data is kept. Look "
                    "at the logs of the executors, and run it again"
                ) from error
            self._work.problems.note(report.cluster, report.problems, now_ms())
            self._judge_again()
            return report

    def _judge_again(self) -> None:
        """Once, judge the clusters that a rebuild left without results and that this pipeline does not read."""
        if self._is_judged_again:
            return
        try:
            self._work.judge.judge_again({job.name for job in self.jobs})
        except (PySparkException, Py4JJavaError) as error:
            raise JobFailed(f"Spark failed ({spark_cause(str(error))}), while other clusters were judged") from error
        self._is_judged_again = True

    def run(
        self,
        interval_ms: int,
        stop: Event,
        *,
        metrics: tuple[str, int] | None = None,
        show: Callable[[JobReport], None] = lambda report: None,
    ) -> None:
        """Run a cycle of each cluster every interval_ms until stop is set, which ends it after the commit under way.

        metrics: host and port to serve Prometheus on. show: called with the report of each successful cycle. Between
        cycles the lake is compacted and expired rows are removed. A gap is recorded and does not end the run. A failed
        cycle is reported and retried. LakeBusy: another pipeline uses the lake. BindError. JobFailed: Spark fails.
        """
        upkeep = LakeUpkeep(self.lake, self.config.retention_ms, self.config.task_memory, self._judge_again)
        for job in self.jobs:
            job.limit = Limit(self.config.messages_per_cycle_max, stop.is_set)
        service = Service(self.config.lake, self.jobs, upkeep, self._say, show)
        with self.lake.writing(), self.sampling():
            service.run(interval_ms, stop, metrics)

    def backfill(self, stop: Event, show: Callable[[Backfill], None] = lambda one: None) -> list[Backfill]:
        """Work on the cluster's backfills until they have ended or have a problem, or stop is set; return open ones.

        show: called after each piece. For a lake without a pipeline that runs: reads and judges its cluster, too.
        """
        [job] = self.jobs
        with self.lake.writing():
            job.once()
            is_working = True
            while is_working and not stop.is_set():
                left = self.config.messages_per_cycle_max
                while left > 0 and is_working and not stop.is_set():
                    worked = job.backfilled(min(left, self.config.offsets_per_batch_max))
                    left -= self.config.offsets_per_batch_max
                    is_working = worked is not None and worked.is_open and not worked.problem
                    if worked is not None:
                        show(worked)
                if not stop.is_set():
                    job.once()
        return [one for one in BackfillFiles(self.config.lake).all() if one.is_open]

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Run a sampler of each cluster, with separate connections, in threads while the block runs.

        The next cycle of a cluster records its samples. Without them, nothing shows which groups there were between
        two calls of `once`.
        """
        ended = Event()
        samplers = [
            Sampler(one, named(self._say, one, self.config), spool=self._work.spool) for one in self.config.each()
        ]
        threads = [Thread(target=one.run, args=(ended,), name="mqtrail-sampler", daemon=True) for one in samplers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            end_s = time.monotonic() + SAMPLER_END_S_MAX
            for thread in threads:
                thread.join(max(end_s - time.monotonic(), 0))
