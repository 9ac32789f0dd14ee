"""Op records of transactions: which half messages a broker no longer needs, with the ids of these messages.

An op record has the queue offsets of half messages that were committed or rolled back, one (4.9) or several (5.x), but
no id. So the half messages are read again at these offsets.
Source: TransactionalMessageServiceImpl, TransactionalMessageBridge, apache/rocketmq broker/.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from mqtrail.wire import (
    HALF_TOPIC,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    MessageQueue,
)

from .cluster import Cluster, Retrying
from .columns import STORED_COLUMNS
from .offsets import QueueRange
from .options import SourceOptions
from .reading import read_ranges

OP_COLUMNS: Final = (*STORED_COLUMNS, "body_text")
ENDS_MAX: Final = 20_000  # half messages that are read at once
HOLE_MAX: Final = 32  # offsets between two half messages that are read, too, instead of asking twice
_HALF_COLUMNS: Final = (
    "broker_name",
    "queue_id",
    "queue_offset",
    "lost_until",
    "offset_msg_id",
    "own_unique_key",
    "properties",
)
_OFFSET_DIGITS_MAX: Final = 18
_ENDED_TAG: Final = "d"

Half = tuple[MessageQueue, int]
"""A half message: its queue and its queue offset."""


def ended_halves(cluster: Cluster, ops: pa.Table, options: SourceOptions) -> Iterator[pa.Table]:
    """Yield a row for each half message that op records ended: columns of STORED_COLUMNS, for trail.message_meta_sql.

    ops: op records with OP_COLUMNS. A row has the place and times of the op record, and of the half message the id, the
    topic that it is meant for, and as ORIGIN_MESSAGE_ID its offset id. A half message that is gone has no row.
    """
    ends = _ends(ops)
    while some := list(islice(ends, ENDS_MAX)):
        halves = _read(cluster, {half for _, half in some}, options)
        found = [(number, halves[half]) for number, half in some if half in halves]
        if found:
            rows = ops.select(list(STORED_COLUMNS)).take([number for number, _ in found])
            for name, values in (
                ("own_unique_key", [half[PROPERTY_UNIQ_KEY] for _, half in found]),
                ("properties", [list(half.items()) for _, half in found]),
            ):
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, name, pa.array(values, rows.schema.field(name).type))
            yield rows


def _ends(ops: pa.Table) -> Iterator[tuple[int, Half]]:
    """Yield (row, half message) for the offsets in the bodies. Anything else in a body is ignored, as in Java."""
    columns = ("broker_name", "queue_id", "properties", "body_text")
    for number, row in enumerate(ops.select(columns).to_pylist()):
        if dict(row["properties"]).get(PROPERTY_TAGS) != _ENDED_TAG:
            continue
        queue = MessageQueue(HALF_TOPIC, row["broker_name"], row["queue_id"])
        for text in (row["body_text"] or "").split(","):
            if text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS_MAX:
                yield number, (queue, int(text))


def _read(cluster: Cluster, halves: Collection[Half], options: SourceOptions) -> dict[Half, Mapping[str, str]]:
    """Return the properties for the row of each half message that its broker still has."""
    retrying = Retrying(options.retry_timeout_ms)
    bounds = {
        queue: retrying(f"bounds of {queue}", partial(cluster.bounds, queue))
        for queue in {queue for queue, _ in halves}
    }
    kept = sorted((queue, offset) for queue, offset in halves if bounds[queue][0] <= offset < bounds[queue][1])
    found: dict[Half, Mapping[str, str]] = {}
    for batch in read_ranges(cluster, _ranges(kept), _HALF_COLUMNS, replace(options, fail_on_data_loss=False)):
        for row in batch.to_pylist():
            half = MessageQueue(HALF_TOPIC, row["broker_name"], row["queue_id"]), row["queue_offset"]
            if row["lost_until"] is None and row["own_unique_key"]:
                found[half] = _properties(row)
    return found


def _properties(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        PROPERTY_UNIQ_KEY: row["own_unique_key"],
        PROPERTY_REAL_TOPIC: dict(row["properties"]).get(PROPERTY_REAL_TOPIC, ""),
        PROPERTY_ORIGIN_MESSAGE_ID: row["offset_msg_id"],
    }


def _ranges(halves: Iterable[Half]) -> list[QueueRange]:
    """Return the ranges of sorted half messages, those near each other in one."""
    ranges: list[QueueRange] = []
    for queue, offset in halves:
        last = ranges[-1] if ranges else None
        if last is not None and last.queue == queue and offset <= last.end + HOLE_MAX:
            ranges[-1] = replace(last, end=max(last.end, offset + 1))
        else:
            ranges.append(QueueRange(queue, offset, offset + 1))
    return ranges
