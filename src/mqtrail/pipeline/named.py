"""Messages that a broker's record names by queue and offset, without their ids: they are read once more.

Op records name half messages (`oprecords`), check points and acknowledgements name popped ones (`poprecords`). A queue
that was deleted or lost and began again has other messages at these offsets: they were stored after the record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from mqtrail.wire import PROPERTY_UNIQ_KEY, MessageQueue

from .cluster import Cluster, Retrying, all_queues
from .columns import STORED_COLUMNS
from .offsets import QueueRange
from .options import SourceOptions
from .reading import read_ranges

HOLE_MAX: Final = 32  # offsets between two messages that are read, too, instead of asking twice
_COLUMNS: Final = (
    "topic",
    "broker_name",
    "queue_id",
    "queue_offset",
    "lost_until",
    "offset_msg_id",
    "own_unique_key",
    "store_timestamp_ms",
    "reconsume_times",
    "properties",
)

Place = tuple[MessageQueue, int]
"""A queue and a queue offset."""
Row = Mapping[str, Any]


def read_at(cluster: Cluster, places: Collection[Place], options: SourceOptions) -> dict[Place, Row]:
    """Return columns of each message that its broker still has, unless it has no id."""
    retrying = Retrying(options.retry_timeout_ms)
    known = all_queues(cluster, sorted({queue.topic for queue, _ in places}), retrying)
    bounds = {
        queue: retrying(f"bounds of {queue}", partial(cluster.bounds, queue))
        for queue in {queue for queue, _ in places}.intersection(known)
    }
    kept = sorted(
        (queue, offset) for queue, offset in places if queue in bounds and bounds[queue][0] <= offset < bounds[queue][1]
    )
    found: dict[Place, Row] = {}
    for batch in read_ranges(cluster, _ranges(kept), _COLUMNS, replace(options, fail_on_data_loss=False)):
        for row in batch.to_pylist():
            place = MessageQueue(row["topic"], row["broker_name"], row["queue_id"]), row["queue_offset"]
            if row["lost_until"] is None and row["own_unique_key"]:
                found[place] = row
    return found


def is_named(message: Row | None, record_ms: int | None) -> bool:
    """Return whether a record that was stored at record_ms can name this message. None: it is gone."""
    return message is not None and record_ms is not None and bool(message["store_timestamp_ms"] <= record_ms)


def filled(
    records: pa.Table, found: Sequence[tuple[int, Mapping[str, str]]], more: Mapping[str, Sequence[int]] | None = None
) -> pa.Table:
    """Return a row of STORED_COLUMNS for each found message: the record of this number with other properties, and with
    the message's id. more: further columns.
    """
    rows = records.select(list(STORED_COLUMNS)).take([number for number, _ in found])
    columns: dict[str, Sequence[Any]] = {
        "own_unique_key": [properties[PROPERTY_UNIQ_KEY] for _, properties in found],
        "properties": [list(properties.items()) for _, properties in found],
        **(more or {}),
    }
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, pa.array(values, rows.schema.field(name).type))
    return rows


def _ranges(places: Iterable[Place]) -> list[QueueRange]:
    """Return the ranges of sorted places, those near each other in one."""
    ranges: list[QueueRange] = []
    for queue, offset in places:
        last = ranges[-1] if ranges else None
        if last is not None and last.queue == queue and offset <= last.end + HOLE_MAX:
            ranges[-1] = replace(last, end=max(last.end, offset + 1))
        else:
            ranges.append(QueueRange(queue, offset, offset + 1))
    return ranges
