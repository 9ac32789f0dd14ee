"""The job: from a cluster to a lake. The only place of the pipeline that reads and writes.

    once    ingest the trace and the messages to their ends -> bronze, silver; sample the cluster; judge -> gold
    run     the same in a loop, with compaction and retention

Each stream has a checkpoint in the lake; its files lie under a path named by the checkpoint's id and the batch, and a
Delta commit with that id makes them count: a batch that is run again after a crash finds itself committed and does
nothing. Nothing is written to the cluster.

    <lake>/_checkpoints/<stream>/     Spark's own, and `id`: what the stream's commits are known by
    <lake>/<table>/batch=<id>-<n>/    files of one commit
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.lake import Lake, arrow_rows, compact, expire, sweep
from mqtrail.pipeline.decode import (
    EVENTS,
    GAPS,
    HOLDS,
    SUSPECTS,
    TRACE_SCHEMA,
    decoded,
    gaps,
    rejects,
    suspected_events,
)
from mqtrail.pipeline.engine import SparkEngine, read_files
from mqtrail.pipeline.meta import META_SCHEMA, message_meta
from mqtrail.pipeline.sampling import Topology, sample, survey
from mqtrail.pipeline.session import SessionConfig, spark_session
from mqtrail.pipeline.source import RocketMQDataSource
from mqtrail.wire import TRACE_TOPIC, MessageQueue, MQError

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STAGING = "_staging"
CHECKPOINTS = "_checkpoints"
EVENTS_A_PARTITION = 500_000  # rows of one shuffle partition of the judgement
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What to read and where to keep it. Times are ms."""

    namesrv: str
    lake: Path
    cluster: str = ""  # its name in the lake; the name server's where empty
    topics: tuple[str, ...] | None = None  # business topics to read as evidence; None: all
    trace_topic: str = TRACE_TOPIC
    settings: trail.Settings = field(default_factory=trail.Settings)
    session: SessionConfig = field(default_factory=SessionConfig)
    read_rate_max: int = 0  # messages a second; 0: no limit
    fail_on_data_loss: bool = True  # `run` records a gap and goes on
    offsets_per_batch_max: int = 200_000  # messages of one micro-batch
    retention_ms: int = 90 * DAY_MS  # what the lake keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What one cycle did. problems: samples that could not be had, each a sentence."""

    as_of_ms: int
    trace_events: int
    rejects: int
    stored_messages: int
    gaps: int
    trajectories: int
    seconds: float
    problems: tuple[str, ...] = ()


class Job:
    """A pipeline over one cluster and one lake. Entering starts Spark; all methods are called from one thread."""

    def __init__(self, config: JobConfig, progress: Say = lambda text: None) -> None:
        self.config = config
        self._say = progress
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._lake: Lake | None = None
        self._counts: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._lake = Lake.create(self.config.lake)
        shutil.rmtree(self.config.lake / STAGING, ignore_errors=True)
        self._spark = self._stack.enter_context(spark_session(self.config.session))
        self._spark.dataSource.register(RocketMQDataSource)
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
        """Sample who reads what and how far, now; return what could not be asked. MQError: the cluster is not there."""
        with SyncAdmin(self.config.namesrv) as admin:
            topology = survey(admin, self.config.trace_topic, self.config.topics)
            return self._sample(admin, topology, _now_ms())

    def once(self, as_of_ms: int | None = None) -> JobReport:
        """One cycle. as_of_ms: the instant to judge at; the time of the sample, right after reading, where None."""
        return self._cycle(as_of_ms, fail_on_data_loss=self.config.fail_on_data_loss)

    def run(self, interval_ms: int, stop: Event) -> None:
        """Cycle until stop is set, every interval_ms; gaps are recorded, files compacted and expired."""
        while not stop.is_set():
            begun_ms = _now_ms()
            report = self._cycle(None, fail_on_data_loss=False)
            self._maintain(_now_ms())
            self._say(f"as of {report.as_of_ms}: {report.trajectories} trajectories in {report.seconds:.1f} s")
            stop.wait(max(0, interval_ms - (_now_ms() - begun_ms)) / 1000)

    # -- one cycle -------------------------------------------------------------------------------------------------

    def _cycle(self, as_of_ms: int | None, *, fail_on_data_loss: bool) -> JobReport:
        begun = time.monotonic()
        self._counts = {}
        with SyncAdmin(self.config.namesrv) as admin:
            topology = survey(admin, self.config.trace_topic, self.config.topics)
            cluster = self.config.cluster or topology.cluster
            problems = []
            if topology.has_trace_topic:
                self._ingest("trace", (self.config.trace_topic,), TRACE_SCHEMA, cluster, topology, fail_on_data_loss)
            else:
                problems.append(f"the cluster has no trace topic {self.config.trace_topic}: nothing is traced there")
            if topology.evidence:
                self._ingest("messages", topology.evidence, META_SCHEMA, cluster, topology, fail_on_data_loss)
            judged_ms = _now_ms() if as_of_ms is None else as_of_ms
            problems += self._sample(admin, topology, judged_ms)
        trajectories = self._judge(judged_ms)
        return JobReport(
            as_of_ms=judged_ms,
            trace_events=self._counts.get(trail.TRACE_EVENTS.name, 0),
            rejects=self._counts.get(trail.TRACE_REJECTS.name, 0),
            stored_messages=self._counts.get(trail.MESSAGE_META.name, 0),
            gaps=self._counts.get(trail.GAPS.name, 0),
            trajectories=trajectories,
            seconds=time.monotonic() - begun,
            problems=tuple(problems),
        )

    def _ingest(
        self,
        name: str,
        topics: tuple[str, ...],
        schema: str,
        cluster: str,
        topology: Topology,
        fail_on_data_loss: bool,
    ) -> None:
        """Read topics to their ends, batch by batch."""
        checkpoint = self.config.lake / CHECKPOINTS / name
        app = _id_of(checkpoint)
        reader = (
            self.spark.readStream.format("rocketmq")
            .schema(schema)
            .option("nameServer", self.config.namesrv)
            .option("topic", ",".join(topics))
            .option("maxOffsetsPerTrigger", self.config.offsets_per_batch_max)
            .option("maxPartitions", max(2, self.spark.sparkContext.defaultParallelism))
            .option("failOnDataLoss", str(fail_on_data_loss).lower())
        )
        if self.config.read_rate_max:
            reader = reader.option("readRateMax", self.config.read_rate_max)

        def take(rows: DataFrame, batch: int) -> None:
            if name == "trace":
                self._take_trace(rows, app, batch, cluster)
            else:
                self._take_messages(rows, app, batch, cluster, topology)

        query = (
            reader.load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _take_trace(self, rows: DataFrame, app: str, batch: int, cluster: str) -> None:
        if self.lake[trail.ATTEMPTS.name].is_committed(app, batch):
            return
        staging = self._stage(app, batch)
        decoded(rows, cluster).write.partitionBy(HOLDS).mode("overwrite").parquet(str(staging))
        events = self._move(staging / f"{HOLDS}={EVENTS}", trail.TRACE_EVENTS, app, batch)
        suspects = staging / f"{HOLDS}={SUSPECTS}"
        events += self._few(suspects, trail.TRACE_EVENTS, f"{app}-late", batch, suspected_events)
        self._take_few(suspects, trail.TRACE_REJECTS, app, batch, rejects)
        self._take_few(staging / f"{HOLDS}={GAPS}", trail.GAPS, app, batch, lambda kept: gaps(kept, _now_ms()))
        self._commit(trail.TRACE_EVENTS, events, app, batch)
        shutil.rmtree(staging, ignore_errors=True)
        self._silver(app, batch, events, [])

    def _take_messages(self, rows: DataFrame, app: str, batch: int, cluster: str, topology: Topology) -> None:
        if self.lake[trail.ATTEMPTS.name].is_committed(app, batch):
            return
        staging = self._stage(app, batch)
        message_meta(rows, cluster, topology.delays_ms, _now_ms()).write.mode("overwrite").parquet(str(staging))
        files = self._move(staging, trail.MESSAGE_META, app, batch)
        self._commit(trail.MESSAGE_META, files, app, batch)
        shutil.rmtree(staging, ignore_errors=True)
        self._silver(app, batch, [], files)

    def _take_few(
        self, folder: Path, relation: trail.Relation, app: str, batch: int, stage: Callable[[DataFrame], DataFrame]
    ) -> None:
        """Write and commit the few rows of a side table, if there are any."""
        self._commit(relation, self._few(folder, relation, app, batch, stage), app, batch)

    def _few(
        self, folder: Path, relation: trail.Relation, app: str, batch: int, stage: Callable[[DataFrame], DataFrame]
    ) -> list[Path]:
        if not folder.is_dir():
            return []
        staging = self._stage(f"{app}-{relation.name}", batch)
        stage(self.spark.read.parquet(str(folder))).coalesce(1).write.mode("overwrite").parquet(str(staging))
        files = self._move(staging, relation, app, batch)
        shutil.rmtree(staging, ignore_errors=True)
        return files

    def _silver(self, app: str, batch: int, events: Iterable[Path], messages: Iterable[Path]) -> None:
        """Append the attempts that a batch of evidence tells of; the last commit of a batch: it makes it done."""
        read_files(self.spark, trail.TRACE_EVENTS, [str(file) for file in events]).createOrReplaceTempView("new_events")
        read_files(self.spark, trail.MESSAGE_META, [str(file) for file in messages]).createOrReplaceTempView("new_meta")
        rows = self.spark.sql(trail.attempts_sql("new_events", "new_meta"))
        files = self._write_hours(rows, trail.ATTEMPTS, app, batch)
        self._commit(trail.ATTEMPTS, files, app, batch)

    # -- gold ------------------------------------------------------------------------------------------------------

    def _judge(self, as_of_ms: int) -> int:
        """Judge every message of the lake as of as_of_ms and replace gold; return the number of trajectories."""
        engine = SparkEngine(self.spark)
        try:
            attempts = read_files(self.spark, trail.ATTEMPTS, self.lake[trail.ATTEMPTS.name].paths())
            count = max(2, sum(f.row_count for f in self.lake[trail.ATTEMPTS.name].files()) // EVENTS_A_PARTITION)
            self.spark.conf.set("spark.sql.shuffle.partitions", str(count))
            attempts.createOrReplaceTempView(trail.ATTEMPTS.name)
            for relation in (
                trail.TRACE_EVENTS,
                trail.GROUP_OFFSETS,
                trail.CLIENTS,
                trail.SUBSCRIPTIONS,
                trail.QUEUE_RANGES,
                trail.GAPS,
                trail.MESSAGE_META,
            ):
                rows = read_files(self.spark, relation, self.lake[relation.name].paths())
                rows.createOrReplaceTempView(relation.name)
            trail.run(engine, trail.judge(as_of_ms, trail.SPARK, self.config.settings))
            app, batch = "gold", as_of_ms
            for relation in (trail.TRAJECTORIES, trail.VERDICTS, trail.LATENCY_MINUTE, trail.KEY_INDEX):
                table = self.lake[relation.name]
                files = self._write_hours(self.spark.table(relation.name), relation, app, batch)
                table.commit(files, app=app, batch=batch, replace_hours=table.hours(), now_ms=as_of_ms)
            return sum(f.row_count for f in self.lake[trail.TRAJECTORIES.name].files())
        finally:
            engine.close()

    # -- samples ---------------------------------------------------------------------------------------------------

    def _sample(self, admin: SyncAdmin, topology: Topology, sampled_ms: int) -> list[str]:
        cluster = self.config.cluster or topology.cluster
        found = sample(admin, topology, cluster, sampled_ms, self._read_offsets())
        for name, rows in found.rows.items():
            relation = self.lake[name].table.relation
            folder = self.config.lake / name / f"batch=sample-{sampled_ms}"
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(arrow_rows(relation, rows), folder / "part-0.parquet", compression="zstd")
            self.lake[name].commit([folder / "part-0.parquet"], app="sample", batch=sampled_ms, now_ms=sampled_ms)
        return found.problems

    def _read_offsets(self) -> Mapping[MessageQueue, int]:
        """Where the streams will go on, by their checkpoints' last committed offsets."""
        offsets: dict[MessageQueue, int] = {}
        for name in ("trace", "messages"):
            offsets |= _checkpoint_offsets(self.config.lake / CHECKPOINTS / name / "spark" / "offsets")
        return offsets

    # -- files -----------------------------------------------------------------------------------------------------

    def _stage(self, app: str, batch: int) -> Path:
        return self.config.lake / STAGING / f"{app}-{batch}"

    def _move(self, staging: Path, relation: trail.Relation, app: str, batch: int) -> list[Path]:
        """Move written files to their table's folder, anew if a crash left some there."""
        target = self.config.lake / relation.name / f"batch={app}-{batch}"
        shutil.rmtree(target, ignore_errors=True)
        if not staging.is_dir():
            return []
        target.mkdir(parents=True)
        moved = []
        for number, file in enumerate(sorted(staging.rglob("*.parquet"))):
            moved.append(file.rename(target / f"part-{number}.parquet"))
        return moved

    def _write_hours(self, rows: DataFrame, relation: trail.Relation, app: str, batch: int) -> list[Path]:
        """Write rows so that each file holds one publish hour."""
        staging = self._stage(f"{app}-{relation.name}", batch)
        (
            rows.select(*relation.names)
            .selectExpr("*", "publish_hour AS hour_of_file")
            .write.partitionBy("hour_of_file")
            .mode("overwrite")
            .parquet(str(staging))
        )
        files = self._move(staging, relation, app, batch)
        shutil.rmtree(staging, ignore_errors=True)
        return files

    def _commit(self, relation: trail.Relation, files: list[Path], app: str, batch: int) -> None:
        table = self.lake[relation.name]
        before = sum(f.row_count for f in table.files())
        if table.commit(files, app=app, batch=batch, now_ms=_now_ms()):
            self._counts[relation.name] = (
                self._counts.get(relation.name, 0) + sum(f.row_count for f in table.files()) - before
            )

    def _maintain(self, now_ms: int) -> None:
        """Compact closed hours, forget what is older than retention, remove files nobody names."""
        compact(self.lake, closed_before_hour=now_ms // HOUR_MS - 1, now_ms=now_ms)
        expire(self.lake, now_ms - self.config.retention_ms, now_ms=now_ms)
        sweep(self.lake, now_ms=now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _id_of(checkpoint: Path) -> str:
    """Return what a checkpoint's commits are known by: a new checkpoint begins its batches at 0 again."""
    file = checkpoint / "id"
    if not file.exists():
        checkpoint.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{checkpoint.name}-{uuid.uuid4().hex[:12]}")
    return file.read_text()


def _checkpoint_offsets(folder: Path) -> dict[MessageQueue, int]:
    """Return the end offsets of a checkpoint's last batch: {topic: {broker: {queue id: offset}}} in its last line."""
    batches = (
        sorted((int(file.name), file) for file in folder.glob("*") if file.name.isdigit()) if folder.is_dir() else []
    )
    if not batches:
        return {}
    value: Any = json.loads(batches[-1][1].read_text().splitlines()[-1])
    found: dict[MessageQueue, int] = {}
    try:
        for topic, brokers in value.items():
            for broker, queues in brokers.items():
                for queue_id, offset in queues.items():
                    found[MessageQueue(topic, broker, int(queue_id))] = int(offset)
    except (AttributeError, TypeError, ValueError) as error:
        raise MQError(f"found {str(value)[:200]} as offsets in {batches[-1][1]}: another version wrote them") from error
    return found
