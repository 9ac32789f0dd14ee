"""Gaps of what the first read of a queue left out and may read later: rows of GAPS with the reason NOT_READ.

As long as a range of a trace topic or of messages is not read, nothing is claimed about what it may hold. Reading does
not change the rows at once, because each change of the gaps makes messages due: the end of a backfill does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from mqtrail import trail
from mqtrail.lake import Change, Lake, LakePath, arrow_rows, parquet_source, write_parquet
from mqtrail.wire import MessageQueue

from .offsets import QueueRange
from .positions import Unread, unread_in

if TYPE_CHECKING:
    from .pulling import PullWork

NOT_READ: Final = "NOT_READ"
Row = dict[str, Any]


def added_gaps(
    folder: LakePath,
    work: PullWork,
    ranges: Iterable[QueueRange],
    reason: str = NOT_READ,
    until_ms: Mapping[MessageQueue, int] = MappingProxyType({}),
) -> Change:
    """Return the change of GAPS that adds ranges. until_ms: the time before which that of a queue was stored, by
    default that of the work."""
    rows = [
        {
            "cluster": work.cluster,
            "broker_name": each.queue.broker_name,
            "topic": each.queue.topic,
            "queue_id": each.queue.queue_id,
            "first_offset": each.start,
            "end_offset": each.end,
            "to_ms": until_ms.get(each.queue, work.read_ms),
            "detected_ms": work.read_ms,
            "reason": reason,
        }
        for each in ranges
    ]
    return Change([_written(folder, rows)] if rows else [])


def filled_gaps(lake: Lake, cluster: str, unread: Unread, folder: LakePath) -> Change:
    """Return the change of GAPS after which the rows of a cluster have only what is still unread."""
    table = lake[trail.GAPS.name]
    table.refresh()
    removed, kept = [], []
    for file in table.readable(table.files()):
        rows: list[Row] = pq.read_table(parquet_source(table.path / file.path), partitioning=None).to_pylist()
        left = list(_left(rows, cluster, unread))
        if left != rows:
            removed.append(file)
            kept += left
    return Change([_written(folder, kept)] if kept else [], removed)


def _left(rows: Sequence[Row], cluster: str, unread: Unread) -> Iterator[Row]:
    for row in rows:
        if row["reason"] != NOT_READ or row["cluster"] != cluster:
            yield row
            continue
        queue = MessageQueue(row["topic"], row["broker_name"], row["queue_id"])
        for each in unread_in(unread, {queue: (row["first_offset"], row["end_offset"])}):
            yield {**row, "first_offset": each.start, "end_offset": each.end}


def _written(folder: LakePath, rows: Sequence[Row]) -> LakePath:
    path = folder / "not-read" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(arrow_rows(trail.GAPS, rows), path)
    return path
