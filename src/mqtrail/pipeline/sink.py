"""The Spark sink `rocketmq`: rows of a DataFrame as messages, in batch and as a stream.

    df.write.format("rocketmq").mode("append").option("nameServer", "host:9876").option("topic", "orders").save()

Spark makes a writer on the driver for each write (of a stream, for each micro-batch) and runs a pickled copy of it in
each task. A task sends its rows and returns counts; consumers see a row as soon as it is stored, before Spark commits.
What makes a task that runs again send no row twice is in `replay`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mqtrail.client import Admin, ClientInstance, InstanceConfig, Producer, ProducerConfig
from mqtrail.wire import MQError

from .cluster import Cluster, connect
from .options import SourceOptionError
from .rejects import RejectFile, commit_rejects, drop_rejects
from .replay import Replay
from .rowids import TaskIds
from .rows import BadRow, RowReader, check_schema
from .sending import RowSender
from .sinkoptions import SinkOptions

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"  # local properties that Spark sets for the tasks of a stream
BATCH_ID = "streaming.sql.batchId"


@dataclass
class TaskSent(WriterCommitMessage):
    """What a task did. found: rows that an earlier attempt had stored. reject_file: its rejected rows, if any."""

    partition: int
    sent: int
    found: int
    rejected: int
    reject_file: str | None


class BatchSink(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
        check_write(schema, options, overwrite=overwrite)
        self._options = options
        self._write = f"write {options.write_id}" if options.write_id else f"run {uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskSent:  # type: ignore[override]  # as pyspark does
        """Send the rows of one partition."""
        return send_task(iterator, self._options, self._write)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rejected rows visible."""
        commit_tasks(messages, self._options, self._write)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the rejected rows. Sent rows stay: messages cannot be taken back."""
        abort_tasks(messages, self._options)


class StreamSink(DataSourceStreamArrowWriter):
    """A micro-batch of a stream."""

    def __init__(self, schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
        check_write(schema, options, overwrite=overwrite)
        if options.write_id is not None:
            raise SourceOptionError(
                "option writeId applies to batch writes only, and this is a stream, whose checkpoint names its writes: "
                "remove it"
            )
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskSent:  # type: ignore[override]  # as pyspark does
        """Send the rows of one partition."""
        context = TaskContext.get()
        found = [context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID)] if context else [None]
        if None in found:
            raise MQError(
                f"found no {QUERY_ID} and {BATCH_ID} in the task, expected those that Spark sets for a stream"
            )
        return send_task(iterator, self._options, f"query {found[0]} batch {found[1]}")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make the rejected rows visible. Spark may repeat the micro-batch after this."""
        commit_tasks(messages, self._options, f"micro-batch {batchId}")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the rejected rows. Sent rows stay: the next attempt of the micro-batch finds them."""
        abort_tasks(messages, self._options)


def check_write(schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
    """Refuse a write that cannot be, on the driver and before any row is sent."""
    if overwrite:
        raise SourceOptionError(
            "found mode overwrite (or output mode complete), expected append: rows can only be appended to a topic"
        )
    check_schema(schema, options)


def send_task(batches: Iterable[pa.RecordBatch], options: SinkOptions, write: str) -> TaskSent:
    """Send the rows of one task. Raises SinkFailed, SinkRowError."""
    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
    ids = TaskIds(write, partition, by_column=options.id_column is not None)
    return asyncio.run(_send(batches, options, ids, again=attempt > 0))


async def _send(batches: Iterable[pa.RecordBatch], options: SinkOptions, ids: TaskIds, *, again: bool) -> TaskSent:
    instance = InstanceConfig(credentials=options.credentials, tls=options.tls)
    config = ProducerConfig(
        send_timeout_ms=options.send_timeout_ms,
        retry_count=0,  # a repeated send could store a row twice: RowSender looks it up first
        body_size_max=max(options.body_size_max, 2 * options.batch_size_max),
        instance=instance,
    )
    rejects = RejectFile(options.reject_path, ids)
    client = ClientInstance(options.name_server, instance)
    try:
        async with Producer(options.producer_group, config=config, client=client) as producer:
            admin = Admin(client=client)
            replay = Replay(options, ids, admin, lambda: _connected(options), again=again)
            sender = RowSender(options, ids, producer, replay, rejects.add)
            try:
                await _send_all(batches, RowReader(options, ids), sender, rejects)
            except BaseException:
                rejects.discard()
                raise
            finally:
                await sender.close()
    finally:
        await client.close()
    return TaskSent(ids.partition, sender.sent_count, sender.found_count, rejects.count, rejects.close())


async def _send_all(
    batches: Iterable[pa.RecordBatch], reader: RowReader, sender: RowSender, rejects: RejectFile
) -> None:
    """Send all rows. The next record batch is read while the rows of the last one are sent."""
    loop = asyncio.get_running_loop()
    upstream = iter(batches)
    with ThreadPoolExecutor(1, thread_name_prefix="mqtrail-rows") as executor:
        coming = loop.run_in_executor(executor, next, upstream, None)
        while (batch := await coming) is not None:
            coming = loop.run_in_executor(executor, next, upstream, None)
            for row in reader.rows(batch):
                if isinstance(row, BadRow):
                    rejects.add(row)
                else:
                    await sender.send(row)
        await sender.drain()


def commit_tasks(messages: Sequence[WriterCommitMessage | None], options: SinkOptions, write: str) -> None:
    """Make the rejected rows of these tasks visible, and report their number."""
    tasks = [message for message in messages if isinstance(message, TaskSent)]
    for task in tasks:
        if task.reject_file is not None and options.reject_path is not None:
            commit_rejects(options.reject_path, task.reject_file)
    if rejected := sum(task.rejected for task in tasks):
        sent = sum(task.sent + task.found for task in tasks)
        log.warning("%s: %d rows sent, %d rows rejected to %s", write, sent, rejected, options.reject_path)


def abort_tasks(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Delete what tasks of a failed write rejected."""
    for task in messages:
        if isinstance(task, TaskSent) and task.reject_file is not None and options.reject_path is not None:
            drop_rejects(options.reject_path, task.reject_file)


def _connected(options: SinkOptions) -> Cluster:
    return connect(options.name_server, None, options.credentials, options.tls)
