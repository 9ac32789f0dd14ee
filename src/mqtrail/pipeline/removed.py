"""When messages were stored that a broker had removed before their queue was first read.

A broker removes the oldest files of its CommitLog, for all queues at once. So each removed message was stored before
every message that the broker still has, of any queue. The queue itself may be empty now, so the others are asked, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Final

from mqtrail.wire import MessageQueue, RecordError, decode_head

from .begin import BORDER_MS
from .bounds import Bounds
from .cluster import Cluster, Retrying

ASKED_MAX: Final = 64
"""Queues of a broker whose first message is pulled, the longest ones: it is close to the first one of the broker."""


def removed_until(
    connection: Cluster, removed: Collection[MessageQueue], bounds: Bounds, read_ms: int, retry_timeout_ms: int
) -> dict[MessageQueue, int]:
    """Return the time before which the removed messages of each of these queues were stored, by its broker's clock.

    read_ms: the time of a broker that has no message at all.
    """
    retrying = Retrying(retry_timeout_ms)
    until_ms = {
        broker_name: min(_first_times(connection, broker_name, bounds, retrying), default=read_ms - BORDER_MS)
        for broker_name in {queue.broker_name for queue in removed}
    }
    return {queue: until_ms[queue.broker_name] + BORDER_MS for queue in removed}


def _first_times(connection: Cluster, broker_name: str, bounds: Bounds, retrying: Retrying) -> Iterable[int]:
    """The store times of the first messages of the longest queues of a broker."""
    counts = {
        queue: end - first for queue, (first, end) in bounds.items() if queue.broker_name == broker_name and end > first
    }
    for queue in sorted(counts, key=lambda queue: (-counts[queue], queue))[:ASKED_MAX]:
        first = bounds[queue][0]
        pulled = retrying(f"pull of {queue} at {first}", partial(connection.pull, queue, first, 1))
        try:
            yield decode_head(pulled.records[0]).store_timestamp_ms
        except (IndexError, RecordError):
            continue
