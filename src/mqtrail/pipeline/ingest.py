"""From queues to bronze and silver: two streams that run up to what the queues hold now, side by side.

    trace topics      → trace_events, trace_rejects, gaps   ┐
    stored messages   → message_meta, gaps                  ┴→ attempts

Each micro-batch is written and committed table by table, each commit with an app transaction of the checkpoint's id and
the batch's number. Spark runs a batch again that it did not see end; what of it is committed is passed over. The commit
of attempts is the last one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqtrail import trail
from mqtrail.lake import Lake
from mqtrail.pipeline import decode, meta
from mqtrail.pipeline.checkpoint import Checkpoint
from mqtrail.pipeline.config import JobConfig, JobFailed
from mqtrail.pipeline.files import batch_folder, commit_once, parquet_files, read_table, write_hours, write_rows
from mqtrail.pipeline.offsets import QueueOffsets
from mqtrail.pipeline.pending import PendingHours
from mqtrail.pipeline.source import RocketMQDataSource

CHECKPOINTS = "_checkpoints"
TRACE, MESSAGES = "trace", "messages"


@dataclass(slots=True)
class Counts:
    """Rows that the streams of one cycle committed, by table; and trace messages read."""

    rows: dict[str, int] = field(default_factory=dict)
    trace_messages: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, table: str, count: int) -> None:
        """Count rows of a table; the streams do so from their own threads."""
        with self._lock:
            self.rows[table] = self.rows.get(table, 0) + count


class Ingest:
    """Reads a cluster into bronze and silver."""

    def __init__(
        self, spark: SparkSession, lake: Lake, pending: PendingHours, config: JobConfig, say: Callable[[str], None]
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._pending = pending
        self._config = config
        self._say = say
        self.checkpoints = {name: Checkpoint(config.lake / CHECKPOINTS / name) for name in (TRACE, MESSAGES)}

    def offsets(self) -> QueueOffsets:
        """Where both streams go on."""
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
        """Read both to where their queues end now. JobFailed: what was committed stays."""
        counts = Counts()
        queries: list[StreamingQuery] = []
        try:
            if trace_topics:
                take = lambda rows, batch: self._take_trace(rows, batch, cluster, counts)  # noqa: E731
                queries.append(self._start(TRACE, trace_topics, decode.TRACE_SCHEMA, fail_on_data_loss, take))
            if message_topics:
                take = lambda rows, batch: self._take_messages(rows, batch, cluster, delay_levels_ms, counts)  # noqa: E731
                queries.append(self._start(MESSAGES, message_topics, meta.META_SCHEMA, fail_on_data_loss, take))
            for query in queries:
                query.awaitTermination()
                if query.name == TRACE:
                    counts.trace_messages = sum(progress.numInputRows for progress in query.recentProgress)
        except StreamingQueryException as error:
            raise JobFailed(_cause(str(error))) from error
        finally:
            for query in queries:
                query.stop()
        return counts

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
        rows = self._spark.readStream.format(self._format()).schema(schema).options(**options).load()
        return (
            rows.writeStream.queryName(name)
            .foreachBatch(take)
            .option("checkpointLocation", str(checkpoint.spark))
            .trigger(availableNow=True)
            .start()
        )

    def _format(self) -> str:
        return RocketMQDataSource.name()

    # -- a micro-batch ---------------------------------------------------------------------------------------------

    def _take_trace(self, rows: DataFrame, batch: int, cluster: str, counts: Counts) -> None:
        app = self.checkpoints[TRACE].id()
        events = self._lake[trail.TRACE_EVENTS.name]
        if self._lake[trail.ATTEMPTS.name].is_committed(app, batch):
            return
        folder = batch_folder(events, app, batch)
        kinds = {kind: folder / f"{decode.HOLDS}={kind}" for kind in (decode.EVENTS, decode.SUSPECTS, decode.GAPS)}
        if not events.is_committed(app, batch):
            decode.decoded(rows, cluster).write.mode("overwrite").partitionBy(decode.HOLDS).parquet(str(folder))
            suspects = self._kept(kinds[decode.SUSPECTS])
            late = folder / "late"
            if suspects is not None:
                write_rows(decode.suspected_events(suspects).coalesce(1), late)
                self._few(trail.TRACE_REJECTS, app, batch, decode.rejects(suspects), counts)
            lost = self._kept(kinds[decode.GAPS])
            if lost is not None:
                self._few(trail.GAPS, app, batch, decode.gaps(lost, _now_ms()), counts)
            events.commit(parquet_files(kinds[decode.EVENTS]) + parquet_files(late), app=app, batch=batch)
        files = parquet_files(kinds[decode.EVENTS]) + parquet_files(folder / "late")
        found = read_table(self._spark, trail.TRACE_EVENTS, [str(file) for file in files])
        none = read_table(self._spark, trail.MESSAGE_META, [])
        counts.add(trail.TRACE_EVENTS.name, self._silver(found, none, app, batch))

    def _take_messages(
        self, rows: DataFrame, batch: int, cluster: str, delay_levels_ms: tuple[int, ...], counts: Counts
    ) -> None:
        app = self.checkpoints[MESSAGES].id()
        table = self._lake[trail.MESSAGE_META.name]
        if self._lake[trail.ATTEMPTS.name].is_committed(app, batch):
            return
        folder = batch_folder(table, app, batch)
        kept = folder / f"{meta.HOLDS}={meta.MESSAGES}"
        if not table.is_committed(app, batch):
            found = meta.message_meta(rows, cluster, delay_levels_ms, _now_ms())
            found.write.mode("overwrite").partitionBy(meta.HOLDS).parquet(str(folder))
            lost = self._kept(folder / f"{meta.HOLDS}={meta.GAPS}")
            if lost is not None:
                self._few(trail.GAPS, app, batch, meta.gaps(lost, _now_ms()), counts)
            table.commit(parquet_files(kept), app=app, batch=batch)
        stored = read_table(self._spark, trail.MESSAGE_META, [str(file) for file in parquet_files(kept)])
        none = read_table(self._spark, trail.TRACE_EVENTS, [])
        counts.add(trail.MESSAGE_META.name, self._silver(none, stored, app, batch))

    def _kept(self, folder: Path) -> DataFrame | None:
        """The rows of one kind that a batch holds, None without any."""
        return self._spark.read.parquet(str(folder)) if parquet_files(folder) else None

    def _few(self, relation: trail.Relation, app: str, batch: int, rows: DataFrame, counts: Counts) -> None:
        """Write and commit the few rows of a side table."""
        table = self._lake[relation.name]
        commit_once(table, app, batch, lambda folder: write_rows(rows.coalesce(1), folder))
        counts.add(relation.name, rows.count())

    def _silver(self, events: DataFrame, stored: DataFrame, app: str, batch: int) -> int:
        """Append the attempts that a batch of evidence tells of; return how many rows of evidence it had.

        The hours they fall into are noted as pending before the commit: a crash in between costs a needless judgement.
        """
        suffix = re.sub(r"\W", "_", app)
        events.createOrReplaceTempView(f"events_{suffix}")
        stored.createOrReplaceTempView(f"stored_{suffix}")
        rows = self._spark.sql(trail.attempts_sql(f"events_{suffix}", f"stored_{suffix}"))
        table = self._lake[trail.ATTEMPTS.name]

        def write(folder: Path) -> None:
            write_hours(rows.select(*trail.ATTEMPTS.names), table, folder)
            self._pending.add(hours_of(parquet_files(folder)))

        commit_once(table, app, batch, write)
        return 0


def hours_of(files: list[Path]) -> set[int]:
    """The publish hours of files that write_hours wrote, by their folders."""
    return {int(file.parent.name.partition("=")[2]) for file in files}


def _cause(text: str) -> str:
    """What a failed query has to say to a user: the last error of ours in Spark's report, else its first line."""
    own = re.findall(r"^\s*(?:E\s+)?mqtrail\.[\w.]+: (.+)$", text, re.MULTILINE)
    return own[-1] if own else text.splitlines()[0]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
