"""From queues to bronze and silver: two streams, side by side, that read up to the ends of their queues.

    trace topics      → trace_events, trace_rejects, gaps   ┐
    stored messages   → message_meta, gaps                  ┴→ attempts

Each micro-batch is written and committed table by table, each commit with an app transaction of the checkpoint's id and
the batch's number. Spark repeats a batch whose end it did not record; tables that are already committed are skipped.
The commit of attempts is the last one.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqtrail import trail

from . import decode, meta
from .checkpoint import Checkpoint
from .config import JobConfig, JobFailed
from .files import Committer, parquet_files, row_count, write_rows
from .hours import JudgedHours
from .offsets import QueueOffsets
from .options import security_options
from .shares import WORK, Shares
from .source import RocketMQDataSource
from .tasks import SparkTasks

CHECKPOINTS = "_checkpoints"
TRACE, MESSAGES = "trace", "messages"
WORKER_STARTS_MAX = 4
"""How often the streams are started if Spark's Python workers do not connect within its 10 s (`early_worker`)."""
_WORKER_LATE = re.compile("Python worker (failed )?to connect back")


@dataclass(slots=True)
class Counts:
    """Rows that the streams of one cycle committed, by table; and trace messages read."""

    rows: dict[tuple[str, str, int], int] = field(default_factory=dict)  # by table, app and batch
    trace_messages: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, relation: trail.Relation, app: str, batch: int, count: int) -> None:
        """Count rows of a batch of a table. A batch can be repeated. Both streams call this from their threads."""
        with self._lock:
            self.rows[relation.name, app, batch] = count

    def of(self, relation: trail.Relation) -> int:
        """The number of rows of a table."""
        with self._lock:
            return sum(count for (name, _, _), count in self.rows.items() if name == relation.name)


class Ingest:
    """Reads a cluster into bronze and silver."""

    def __init__(
        self,
        spark: SparkSession,
        committer: Committer,
        judged: JudgedHours,
        config: JobConfig,
        source: type[RocketMQDataSource] = RocketMQDataSource,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._say = say
        self._sources = {name: own_source(source, name) for name in (TRACE, MESSAGES)}
        for own in self._sources.values():
            spark.dataSource.register(own)
        self._spark = spark
        self._committer = committer
        self._judged = judged
        self._config = config
        self._shares = Shares(SparkTasks(spark), config.lake / WORK, config.task_memory)
        self.checkpoints = {name: Checkpoint(config.lake / CHECKPOINTS / name) for name in (TRACE, MESSAGES)}

    def offsets(self) -> QueueOffsets:
        """Where both streams continue."""
        return self.checkpoints[TRACE].offsets() | self.checkpoints[MESSAGES].offsets()

    def run(
        self,
        cluster: str,
        trace_topics: tuple[str, ...],
        message_topics: tuple[str, ...],
        delay_levels_ms: tuple[int, ...],
        *,
        fail_on_data_loss: bool,
    ) -> Counts:
        """Read both streams to the present ends of their queues. JobFailed: committed data stays."""
        counts = Counts()
        starts: list[Callable[[], StreamingQuery]] = []
        if trace_topics:
            trace = partial(self.take_trace, cluster=cluster, counts=counts)
            starts.append(
                partial(self._start, TRACE, trace_topics, decode.TRACE_SCHEMA, fail_on_data_loss, trace),
            )
        if message_topics:
            stored = partial(self._take_messages, cluster=cluster, delay_levels_ms=delay_levels_ms, counts=counts)
            starts.append(
                partial(self._start, MESSAGES, message_topics, meta.META_SCHEMA, fail_on_data_loss, stored),
            )
        for attempt in range(1, WORKER_STARTS_MAX + 1):
            try:
                self._read_to_the_end(starts, counts)
                break
            except PySparkException as error:
                if not _WORKER_LATE.search(str(error)):
                    raise JobFailed(_cause(str(error))) from error
                if attempt == WORKER_STARTS_MAX:
                    raise JobFailed(
                        f"found no Python worker of Spark that started within Spark's 10 s, in {attempt} attempts: the "
                        "machine is too busy. Run it again when there is less to do, or with fewer cores "
                        "(--master 'local[1,4]'): committed data is kept"
                    ) from error
                self._say(f"Python workers did not start in time: attempt {attempt} of {WORKER_STARTS_MAX}")
        return counts

    def _read_to_the_end(self, starts: Sequence[Callable[[], StreamingQuery]], counts: Counts) -> None:
        queries: list[StreamingQuery] = []
        try:
            for start in starts:
                queries.append(start())  # one by one, so that the running ones are stopped if the next does not start
            for query in queries:
                query.awaitTermination()
        finally:
            for query in queries:
                query.stop()
                if query.name == TRACE:
                    counts.trace_messages += sum(progress.numInputRows for progress in query.recentProgress)

    def _start(
        self,
        name: str,
        topics: tuple[str, ...],
        schema: str,
        fail_on_data_loss: bool,
        take: Callable[[DataFrame, int], None],
    ) -> StreamingQuery:
        checkpoint = self.checkpoints[name]
        checkpoint.id()
        partitions = max(2, self._spark.sparkContext.defaultParallelism)
        options = {
            "nameServer": self._config.namesrv,
            "topic": ",".join(topics),
            "maxOffsetsPerTrigger": str(self._config.offsets_per_batch_max),
            "minPartitions": str(partitions),
            "maxPartitions": str(partitions),
            "failOnDataLoss": str(fail_on_data_loss).lower(),
            "onUnreachable": "hold",
            "retryTimeoutMs": str(self._config.retry_timeout_ms),
        }
        if self._config.read_rate_max:
            options["readRateMax"] = str(self._config.read_rate_max)
        if name == TRACE:
            options["bodySizeMax"] = str(trail.TRACE_BODY_SIZE_MAX)
        options |= security_options(self._config.instance)
        rows = self._spark.readStream.format(self._sources[name].name()).schema(schema).options(**options).load()
        return (
            rows.writeStream.queryName(name)
            .foreachBatch(take)
            .option("checkpointLocation", str(checkpoint.spark))
            .trigger(availableNow=True)
            .start()
        )

    # -- a micro-batch ---------------------------------------------------------------------------------------------

    def take_trace(self, rows: DataFrame, batch: int, cluster: str, counts: Counts) -> None:
        """Commit one batch of trace messages, rows of decode.TRACE_SCHEMA, unless it is committed."""
        app = self.checkpoints[TRACE].id()
        if self._committer.is_committed(trail.ATTEMPTS, app, batch):
            return
        folder = self._committer.folder(trail.TRACE_EVENTS, app, batch)
        kinds = {kind: folder / f"{decode.HOLDS}={kind}" for kind in (decode.EVENTS, decode.SUSPECTS, decode.GAPS)}
        late = folder / "late"
        if not self._committer.is_committed(trail.TRACE_EVENTS, app, batch):
            decode.decoded(rows, cluster).write.mode("overwrite").partitionBy(decode.HOLDS).parquet(str(folder))
            if (suspects := self._kept(kinds[decode.SUSPECTS])) is not None:
                write_rows(decode.suspected_events(suspects).coalesce(1), late)
                self._few(trail.TRACE_REJECTS, app, batch, decode.rejects(suspects), counts)
            if (lost := self._kept(kinds[decode.GAPS])) is not None:
                self._few(trail.GAPS, app, batch, decode.gaps(lost, now_ms()), counts)
            files = parquet_files(kinds[decode.EVENTS]) + parquet_files(late)
            self._committer.commit(trail.TRACE_EVENTS, files, app, batch)
        files = parquet_files(kinds[decode.EVENTS]) + parquet_files(late)
        counts.add(trail.TRACE_EVENTS, app, batch, row_count(files))
        self._silver(trail.TRACE_EVENTS, files, app, batch)

    def _take_messages(
        self, rows: DataFrame, batch: int, cluster: str, delay_levels_ms: tuple[int, ...], counts: Counts
    ) -> None:
        app = self.checkpoints[MESSAGES].id()
        if self._committer.is_committed(trail.ATTEMPTS, app, batch):
            return
        folder = self._committer.folder(trail.MESSAGE_META, app, batch)
        kept = folder / f"{meta.HOLDS}={meta.MESSAGES}"
        if not self._committer.is_committed(trail.MESSAGE_META, app, batch):
            found = meta.message_meta(rows, cluster, delay_levels_ms, now_ms())
            found.write.mode("overwrite").partitionBy(meta.HOLDS).parquet(str(folder))
            if (lost := self._kept(folder / f"{meta.HOLDS}={meta.GAPS}")) is not None:
                self._few(trail.GAPS, app, batch, meta.gaps(lost, now_ms()), counts)
            self._committer.commit(trail.MESSAGE_META, parquet_files(kept), app, batch)
        files = parquet_files(kept)
        counts.add(trail.MESSAGE_META, app, batch, row_count(files))
        self._silver(trail.MESSAGE_META, files, app, batch)

    def _kept(self, folder: Path) -> DataFrame | None:
        """The rows of one kind that a batch holds, None without any."""
        return self._spark.read.parquet(str(folder)) if parquet_files(folder) else None

    def _few(self, relation: trail.Relation, app: str, batch: int, rows: DataFrame, counts: Counts) -> None:
        """Write and commit the few rows of a side table."""
        files = self._committer.write_once(relation, app, batch, lambda folder: write_rows(rows.coalesce(1), folder))
        counts.add(relation, app, batch, row_count(files))

    def _silver(self, of: trail.Relation, files: list[Path], app: str, batch: int) -> None:
        """Append the attempts of a batch of evidence.

        Their hours are noted before the commit: a crash in between causes one needless judgement.
        """
        relation = trail.ATTEMPTS
        if self._committer.is_committed(relation, app, batch):
            return
        folder = self._committer.folder(relation, app, batch)
        shutil.rmtree(folder, ignore_errors=True)
        made = self._shares.each_file(trail.attempts_stage(), of, files, folder)
        self._judged.add_pending(hours_of(made))
        self._committer.commit(relation, made, app, batch)


def own_source(source: type[RocketMQDataSource], stream: str) -> type[RocketMQDataSource]:
    """The source under a separate name for one stream.

    Spark keeps one map of environment variables for each registered source, and changes it at each request of a stream
    to its Python process. If it serializes the tasks of another stream with the same map at that moment, the tasks
    cannot be deserialized (java.io.OptionalDataException). So streams that run side by side need separate
    registrations.
    """
    return type(
        f"{source.__name__}_{stream}", (source,), {"name": classmethod(lambda cls: f"{source.name()}-{stream}")}
    )


def hours_of(files: list[Path]) -> set[int]:
    """The publish hours of files that hold one hour each, from the names of their folders."""
    return {int(file.parent.name.partition("=")[2]) for file in files}


def _cause(text: str) -> str:
    """The cause of a failed query for users: the last mqtrail error in Spark's report, otherwise its first line."""
    own = re.findall(r"^\s*(?:E\s+)?mqtrail\.[\w.]+: (.+)$", text, re.MULTILINE)
    return own[-1] if own else text.splitlines()[0]


def now_ms() -> int:
    """The time, epoch ms."""
    return time.time_ns() // 1_000_000
