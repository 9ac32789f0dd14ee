"""Where the first read of a cluster begins if it does not begin at the first message."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from .bounds import Bounds
from .cluster import Cluster, Retrying
from .offsets import QueueOffsets

if TYPE_CHECKING:
    from .ingest import ReadCluster

MESSAGES_LEAD_MS: Final = 600_000
"""Stored messages are read from so much earlier than the trace, so that the first trace records find their copies."""
BORDER_MS: Final = 60_000
"""Store times of a queue step back by at most so much with the clock of a broker, which finds an offset by time as if
they did not. Versions differ in which of two neighbours they return."""


def begin_latest(
    connection: Cluster, cluster: ReadCluster, bounds: Bounds, at_ms: int, retry_timeout_ms: int
) -> QueueOffsets:
    """Return where to begin in each queue: in trace topics at the end, in others MESSAGES_LEAD_MS before."""
    retrying = Retrying(retry_timeout_ms)
    offsets: QueueOffsets = {}
    for queue, (first, end) in bounds.items():
        found = end
        if queue.topic not in cluster.trace_topics and end > first:
            ask = partial(connection.offset_by_time, queue, at_ms - MESSAGES_LEAD_MS)
            found = retrying(f"offset of {queue} by time", ask)
        offsets[queue] = min(max(found, first), end)
    return offsets
