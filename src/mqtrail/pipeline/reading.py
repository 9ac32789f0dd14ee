"""Reading ranges of queues to their ends, in an executor's Python worker: pulls, losses, speed.

While one answer becomes Arrow columns the next pull is on its way. A range is read to its end or not at all: when
messages in it are gone, either DataLoss ends the read or a row tells of the loss, never nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyspark.sql.types import StructType

from mqtrail.pipeline.cluster import Cluster, Pulled, Retrying
from mqtrail.pipeline.columns import BatchBuilder
from mqtrail.pipeline.offsets import QueueRange
from mqtrail.pipeline.options import SourceOptions
from mqtrail.wire import MessageExt, MQError

PULL_COUNT_MAX = 1_024  # a broker gives what its own limits allow, 32 where they stand as they come
EMPTY_PULLS_MAX = 5  # how often a broker may answer with nothing at a place that it said it has
EMPTY_PULL_WAIT_S = 0.2
OFFSET_MAX = 2**63 - 1


class DataLoss(MQError):
    """Messages that were due are gone from the cluster, and failOnDataLoss is true."""


def read_ranges(
    cluster: Cluster,
    ranges: Sequence[QueueRange],
    schema: StructType,
    options: SourceOptions,
    read_rate_max: float | None,
) -> Iterator[pa.RecordBatch]:
    """Yield all messages of the ranges, in order, as batches of schema.

    Raises DataLoss under failOnDataLoss, BrokerUnreachable when a pull fails for retry_timeout_ms.
    """
    builder = BatchBuilder(schema)
    pace = _Pace(read_rate_max)
    with ThreadPoolExecutor(1, thread_name_prefix="mqtrail-pull") as executor:
        for each in ranges:
            yield from _read_range(cluster, each, builder, options, pace, executor)
    yield from builder.flush()


def _read_range(
    cluster: Cluster,
    wanted: QueueRange,
    builder: BatchBuilder,
    options: SourceOptions,
    pace: _Pace,
    executor: ThreadPoolExecutor,
) -> Iterator[pa.RecordBatch]:
    queue = wanted.queue
    retrying = Retrying(options.retry_timeout_ms)

    def pull(queue_offset: int) -> Pulled:
        pace.wait()
        count_max = min(pace.count_max, wanted.end - queue_offset)
        pulled = retrying(f"pull of {queue} at {queue_offset}", lambda: cluster.pull(queue, queue_offset, count_max))
        pace.took(len(pulled.messages))
        return pulled

    at = wanted.start
    empty_pulls = 0
    answer = executor.submit(pull, at)
    while at < wanted.end:
        pulled = answer.result()
        messages = [message for message in pulled.messages if at <= message.queue_offset < wanted.end]
        empty_pulls = 0 if messages else empty_pulls + 1
        lost_until = _lost_until(pulled, messages, at, patient=empty_pulls < EMPTY_PULLS_MAX)
        lost = QueueRange(queue, at, min(lost_until, wanted.end))
        at = messages[-1].queue_offset + 1 if messages else lost.end
        if at < wanted.end:
            answer = executor.submit(pull, at)
        if lost.count:
            if options.fail_on_data_loss:
                raise DataLoss(_loss_text(lost, pulled))
            yield from builder.loss(lost)
        yield from builder.add(queue, messages)
        if not messages and not lost.count:
            time.sleep(EMPTY_PULL_WAIT_S)


def _lost_until(pulled: Pulled, messages: Sequence[MessageExt], at: int, *, patient: bool) -> int:
    """Return up to where the messages from at on are gone; at when none is.

    An answer that has nothing and names no later place may pass: a broker that just started, a slave that lags. Only when
    it stays like that is everything up to the end of the range given up.
    """
    if messages:
        return messages[0].queue_offset
    later = max(pulled.first, pulled.next_offset)
    if later > at:
        return later
    return at if patient else OFFSET_MAX


def _loss_text(lost: QueueRange, pulled: Pulled) -> str:
    return (
        f"{lost.queue}: messages [{lost.start}, {lost.end}) are due and gone, the broker has [{pulled.first}, "
        f"{pulled.end}). Retention removed them before they were read, or the topic was made again. "
        "Set failOnDataLoss to false to go on without them"
    )


class _Pace:
    """Keeps a partition below a rate of messages a second: each pull waits until the ones before it are paid for."""

    def __init__(self, rate_max: float | None) -> None:
        self._rate_max = rate_max
        self._due_s = time.monotonic()
        # At most a second's worth at once.
        self.count_max = PULL_COUNT_MAX if rate_max is None else max(min(PULL_COUNT_MAX, int(rate_max)), 1)

    def wait(self) -> None:
        """Wait until the messages that came have had their time."""
        time.sleep(max(self._due_s - time.monotonic(), 0.0))

    def took(self, count: int) -> None:
        """Count messages that came."""
        if self._rate_max is not None:
            self._due_s = max(self._due_s, time.monotonic()) + count / self._rate_max
