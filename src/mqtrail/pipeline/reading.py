"""Reading ranges of queues to their ends, in an executor's Python worker: pulls and losses.

The next pull runs while the previous answer is turned into Arrow columns. Every message of a range is read or reported:
if messages are gone, either DataLoss ends the read, or a row reports the loss.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from mqtrail.wire import MQError, RecordError, RecordHead, decode_head

from .cluster import Cluster, Pulled, Retrying
from .columns import BatchBuilder, Lost
from .offsets import QueueRange
from .options import SourceOptions
from .positions import LastRecords, later

PULL_COUNT_MAX = 1_024
EMPTY_PULLS_MAX = 5  # empty answers at an offset that the broker reported to have
EMPTY_PULL_WAIT_S = 0.2
OFFSET_MAX = 2**63 - 1


class DataLoss(MQError):
    """Messages that should be read are gone from the cluster, and failOnDataLoss is true."""


def read_ranges(
    cluster: Cluster,
    ranges: Sequence[QueueRange],
    columns: StructType | Sequence[str],
    options: SourceOptions,
    last: LastRecords | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield all messages of the ranges, in order, as batches of columns, with a loss row for each lost range.

    last: gets the last record that was read of each queue.
    Raises DataLoss under failOnDataLoss, BrokerUnreachable if a pull fails for retry_timeout_ms.
    """
    builder = BatchBuilder(columns, options.body_size_max)
    with ThreadPoolExecutor(1, thread_name_prefix="mqtrail-pull") as executor:
        for each in ranges:
            head: RecordHead | None = None
            for found in _read_range(cluster, each, Retrying(options.retry_timeout_ms), executor):
                if not isinstance(found, Lost):
                    head = found[1]
                    yield from builder.add(each.queue, *found)
                elif options.fail_on_data_loss:
                    raise DataLoss(_loss_text(found))
                else:
                    yield from builder.loss(found)
            if last is not None and head is not None:
                last |= later(last, {each.queue: (head.queue_offset, head.store_timestamp_ms)})
    yield from builder.flush()


def _read_range(
    cluster: Cluster, wanted: QueueRange, retrying: Retrying, executor: ThreadPoolExecutor
) -> Iterator[tuple[bytes, RecordHead] | Lost]:
    """Yield every record of the range, and each lost range just before the record that follows it, or at the end."""
    queue = wanted.queue

    def pull(queue_offset: int) -> Pulled:
        count_max = min(PULL_COUNT_MAX, wanted.end - queue_offset)
        return retrying(f"pull of {queue} at {queue_offset}", lambda: cluster.pull(queue, queue_offset, count_max))

    at = asked = wanted.start  # at: the next offset due; [at, asked) has been asked for
    losses: list[Lost] = []
    empty_pulls = 0
    answer = executor.submit(pull, at)
    while at < wanted.end:
        pulled = answer.result()
        empty_pulls = 0 if pulled.records else empty_pulls + 1
        asked = min(_next_offset(pulled, at, patient=empty_pulls < EMPTY_PULLS_MAX), wanted.end)
        if asked == at:
            time.sleep(EMPTY_PULL_WAIT_S)
        if asked < wanted.end:
            answer = executor.submit(pull, asked)
        for record in pulled.records:
            try:
                head = decode_head(record)
            except RecordError:
                losses.append(Lost(QueueRange(queue, at, at + 1), "UNREADABLE"))
                at += 1
                continue
            if not at <= head.queue_offset < wanted.end:
                continue
            if head.queue_offset > at:
                losses.append(Lost(QueueRange(queue, at, head.queue_offset), "EXPIRED"))
            at = head.queue_offset + 1
            for lost in losses:
                yield replace(lost, until_ms=head.store_timestamp_ms)
            losses.clear()
            yield record, head
        if at < asked:
            losses.append(Lost(QueueRange(queue, at, asked), "EXPIRED" if pulled.end > at else "RECREATED"))
            at = asked
    yield from losses


def _next_offset(pulled: Pulled, at: int, *, patient: bool) -> int:
    """Return the offset of the next pull after an answer to a pull at `at`; `at` itself: ask again.

    An empty answer without a later offset can be temporary: the broker has just started, or a slave lags. Only if it
    stays empty, the rest of the range counts as lost.
    """
    if pulled.records:
        return max(pulled.next_offset, at + 1)
    later = max(pulled.first, pulled.next_offset)
    if later > at:
        return later
    return at if patient else OFFSET_MAX


def _loss_text(lost: Lost) -> str:
    start, end = lost.range.start, lost.range.end
    found = f"{lost.range.queue}: messages [{start}, {end}) are missing: the broker "
    match lost.reason:
        case "EXPIRED":
            found += "no longer has them: its retention removed them before they were read"
        case "RECREATED":
            found += "ends below them: the topic was deleted and created again, or the broker lost its last messages"
        case "UNREADABLE":
            found += "sent bytes that are not a record"
    return f"{found}. Set failOnDataLoss to false to continue without them"
