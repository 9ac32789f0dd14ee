"""Op records of transactions: which half messages a broker no longer needs, with the ids of these messages.

An op record has the queue offsets of half messages that were committed or rolled back, one (4.9) or several (5.x), but
no id. So the half messages are read again at these offsets.
Source: TransactionalMessageServiceImpl, TransactionalMessageBridge, apache/rocketmq broker/.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import pyarrow as pa

from mqtrail.wire import (
    HALF_TOPIC,
    OP_TAG,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    MessageQueue,
    ended_offsets,
)

from .cluster import Cluster
from .columns import STORED_COLUMNS
from .named import Place, Row, filled, is_named, read_at
from .options import SourceOptions

OP_COLUMNS: Final = (*STORED_COLUMNS, "body_text")
ENDS_MAX: Final = 20_000  # half messages that are read at once


def ended_half_messages(cluster: Cluster, ops: pa.Table, options: SourceOptions) -> Iterator[pa.Table]:
    """Yield a row for each half message that op records ended: columns of STORED_COLUMNS, for trail.message_meta_sql.

    ops: op records with OP_COLUMNS. A row has the place and times of the op record, and of the half message the id, the
    topic that it is meant for, and as ORIGIN_MESSAGE_ID its offset id. A half message that is gone has no row.
    """
    ends, stored_ms = _ends(ops), ops["store_timestamp_ms"].to_pylist()
    while some := list(islice(ends, ENDS_MAX)):
        half_messages = read_at(cluster, {half for _, half in some}, options)
        found = [
            (number, _properties(half_messages[half]))
            for number, half in some
            if is_named(half_messages.get(half), stored_ms[number])
        ]
        if found:
            yield filled(ops, found)


def _ends(ops: pa.Table) -> Iterator[tuple[int, Place]]:
    """Yield (row, half message) for the offsets in the bodies. Anything else in a body is ignored, as in Java."""
    columns = ("broker_name", "queue_id", "properties", "body_text")
    for number, row in enumerate(ops.select(columns).to_pylist()):
        if dict(row["properties"]).get(PROPERTY_TAGS) != OP_TAG:
            continue
        queue = MessageQueue(HALF_TOPIC, row["broker_name"], row["queue_id"])
        for queue_offset in ended_offsets((row["body_text"] or "").encode()):
            yield number, (queue, queue_offset)


def _properties(half: Row) -> dict[str, str]:
    return {
        PROPERTY_UNIQ_KEY: half["own_unique_key"],
        PROPERTY_REAL_TOPIC: dict(half["properties"]).get(PROPERTY_REAL_TOPIC, ""),
        PROPERTY_ORIGIN_MESSAGE_ID: half["offset_msg_id"],
    }
