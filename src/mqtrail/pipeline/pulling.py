"""One task of the ingest: pull ranges of queues, decode them, write bronze and silver, return the files.

    ranges ─pull─▶ records ─decompress─▶ Arrow ─lake.EvidenceWriter─▶ Parquet files below <table>/batch=<app>-<number>/

A small amount is one task in the driver, a large one is spread over Spark's executors, which retry a failed task. Each
attempt of a task writes to folders of its own, and only files that a returned attempt names are committed. Memory: a
task holds CHUNK_SIZE_MAX of bodies, the pulls under way, and DuckDB's limit; what needs more goes to files.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from mqtrail import trail
from mqtrail.lake import EvidencePlan, EvidenceWriter, connect, place_of
from mqtrail.wire import OP_HALF_TOPIC, TIMER_TOPIC, MessageQueue

from .attempt import new_run_id, this_attempt
from .cluster import Cluster
from .columns import STORED_COLUMNS, TRACE_COLUMNS
from .offsets import QueueRange
from .on_spark import OnSpark
from .oprecords import OP_COLUMNS, ended_half_messages
from .options import parse_options
from .poprecords import POP_COLUMNS, popped_messages
from .positions import LastRecords, later
from .reading import read_ranges
from .source import RocketMQDataSource

CHUNK_SIZE_MAX = 32 * 1024 * 1024  # bytes of Arrow columns that are decoded at once
TABLES = (
    trail.TRACE_EVENTS,
    trail.TRACE_REJECTS,
    trail.BROKER_EVENTS,
    trail.MESSAGE_META,
    trail.GAPS,
    trail.ATTEMPTS,
    *trail.INDEXES,
)
"""The tables that a task can write."""
_FILE_SCHEMA = "relation string, path string, row_count bigint"


class PulledFile(NamedTuple):
    """A file written by a task, or one of its other results.

    relation TRACE_MESSAGES: row_count is the number of trace messages read. relation LAST_RECORD: the last record that
    was read of a queue; path is [topic, broker, queue id, offset] as JSON, row_count the record's store time.
    """

    relation: str
    path: str
    row_count: int


TRACE_MESSAGES = "trace_messages"
LAST_RECORD = "last_record"


def files_of(results: Iterable[PulledFile]) -> list[PulledFile]:
    """The results that are files."""
    return [each for each in results if each.relation not in {TRACE_MESSAGES, LAST_RECORD}]


def last_records(results: Iterable[PulledFile]) -> LastRecords:
    """The last record that tasks read of each queue."""
    last: LastRecords = {}
    for each in results:
        if each.relation == LAST_RECORD:
            topic, broker_name, queue_id, offset = json.loads(each.path)
            last = later(last, {MessageQueue(topic, broker_name, queue_id): (offset, each.row_count)})
    return last


@dataclass(frozen=True, slots=True, kw_only=True)
class PullWork:
    """The work that all tasks of a batch share. folders: of the tables of TABLES, for this batch."""

    source: type[RocketMQDataSource]
    options: Mapping[str, str]
    trace_topics: frozenset[str]
    message_topics: tuple[str, ...]  # those that are read up to their ends together
    cluster: str
    delay_levels_ms: tuple[int, ...]
    sql_topics: frozenset[str]
    read_ms: int
    folders: Mapping[str, str]
    memory_limit: str
    read_rate_max: float | None  # messages per second of one task


class PullTasks(Protocol):
    """Runs tasks side by side."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    def run(self, work: PullWork, pieces: Sequence[Sequence[QueueRange]]) -> list[PulledFile]:
        """Run a task for each of the pieces; return the files that the tasks wrote."""


class SparkPulls(OnSpark):
    """Tasks of Spark."""

    def run(self, work: PullWork, pieces: Sequence[Sequence[QueueRange]]) -> list[PulledFile]:
        """See PullTasks."""
        count = len(pieces)
        rows = self._spark.range(0, count, 1, count).mapInArrow(_task(work, pieces), _FILE_SCHEMA).collect()
        return sorted(PulledFile(*row) for row in rows)


def _task(
    work: PullWork, pieces: Sequence[Sequence[QueueRange]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow. Its input rows are not used: each partition is a task."""
    run_id = new_run_id()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        attempt = this_attempt(run_id)
        files = pull(work, pieces[attempt.number], attempt.name, attempt.scratch)
        columns: dict[str, pa.DataType] = {"relation": pa.string(), "path": pa.string(), "row_count": pa.int64()}
        yield pa.RecordBatch.from_pylist([file._asdict() for file in files], schema=pa.schema(columns))

    return run


def pull(work: PullWork, ranges: Sequence[QueueRange], attempt: str, scratch: str | None = None) -> list[PulledFile]:
    """Pull ranges into files. attempt: a unique name within the batch. scratch: folder for DuckDB's temporary files."""
    options = parse_options(work.options)
    folders = {name: str(place_of(folder) / attempt) for name, folder in work.folders.items()}
    with tempfile.TemporaryDirectory(prefix="mqtrail-pull-", dir=scratch) as spill:
        duck = connect(threads=1, memory_limit=work.memory_limit)
        cluster = work.source(dict(work.options)).connect(options, work.read_rate_max)
        try:
            duck.execute("SET temp_directory = ?", [spill])
            duck.execute("SET preserve_insertion_order = false")
            writer = EvidenceWriter(
                duck,
                EvidencePlan(
                    cluster=work.cluster,
                    folders=folders,
                    delay_levels_ms=work.delay_levels_ms,
                    read_ms=work.read_ms,
                    sql_topics=work.sql_topics,
                    topics=work.message_topics,
                ),
            )
            return list(_pull(work, ranges, cluster, writer))
        finally:
            cluster.close()
            duck.close()


def _pull(
    work: PullWork, ranges: Sequence[QueueRange], cluster: Cluster, writer: EvidenceWriter
) -> Iterator[PulledFile]:
    options = parse_options(work.options)
    of_trace = [each for each in ranges if each.queue.topic in work.trace_topics]
    of_ops = [each for each in ranges if each.queue.topic == OP_HALF_TOPIC]
    of_timers = [each for each in ranges if each.queue.topic == TIMER_TOPIC]
    others = {*work.trace_topics, OP_HALF_TOPIC, TIMER_TOPIC}
    of_messages = [each for each in ranges if each.queue.topic not in others]

    def write_ends(ops: pa.Table) -> None:
        for ended in ended_half_messages(cluster, ops, options):
            writer.stored(ended)

    def write_timers(timers: pa.Table) -> None:
        for stored in popped_messages(cluster, timers, options):
            writer.stored(stored)

    trace_messages = 0
    last: LastRecords = {}
    for some, columns, write in (
        (of_trace, TRACE_COLUMNS, writer.trace),
        (of_messages, STORED_COLUMNS, writer.stored),
        (of_ops, OP_COLUMNS, write_ends),
        (of_timers, POP_COLUMNS, write_timers),
    ):
        gaps: list[dict[str, Any]] = []
        for chunk in chunks(_messages(read_ranges(cluster, some, columns, options, last), work, gaps)):
            write(chunk)
            trace_messages += len(chunk) if columns is TRACE_COLUMNS else 0
        writer.gaps(gaps)
    writer.finish()
    yield PulledFile(TRACE_MESSAGES, "", trace_messages)
    for queue, (offset, store_ms) in last.items():
        yield PulledFile(LAST_RECORD, json.dumps([queue.topic, queue.broker_name, queue.queue_id, offset]), store_ms)
    for name, path, row_count in writer.files():
        yield PulledFile(name, str(path), row_count)


def _messages(
    batches: Iterable[pa.RecordBatch], work: PullWork, gaps: list[dict[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of messages. Rows about losses, which are separate batches, are added to `gaps`."""
    for batch in batches:
        if batch["lost_until"].null_count == len(batch):
            yield batch
        else:
            gaps += (_gap(row, work) for row in batch.to_pylist())


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches joined to tables of about CHUNK_SIZE_MAX bytes."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= CHUNK_SIZE_MAX:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _gap(row: Mapping[str, Any], work: PullWork) -> dict[str, Any]:
    """The row of trail.GAPS of a lost range."""
    return {
        "cluster": work.cluster,
        "broker_name": row["broker_name"],
        "topic": row["topic"],
        "queue_id": row["queue_id"],
        "first_offset": row["queue_offset"],
        "end_offset": row["lost_until"],
        "to_ms": work.read_ms if row["store_timestamp_ms"] is None else row["store_timestamp_ms"],
        "detected_ms": work.read_ms,
        "reason": row["lost_reason"],
    }
