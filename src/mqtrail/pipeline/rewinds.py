"""Queues with other messages below the offset that was read: whether they were recreated, and where to continue.

A topic is deleted and created again, a broker is wiped, or its last messages were lost: then other messages get offsets
that the lake has read. Or a slave that lags answers for a while: then nothing is new. The records of the queue show
the difference: the lake has each record that it read with its store time. From the first record that the lake lacks on,
everything is new.

A queue that ends before the offset reached is compared with the lake. A recreated queue may be longer than the old one
when it is read again, so the last record that was read is compared with the queue's record at its offset as well:
before a queue is read on, and of some idle queues in each run, in turns. That is one pull of one record for each queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import duckdb

from mqtrail import trail
from mqtrail.lake import Lake, connect, lake_errors, of_cluster, rows_of
from mqtrail.wire import MessageQueue, RecordError, RecordHead, decode_head

from .bounds import Bounds
from .cluster import Cluster, Retrying
from .offsets import QueueOffsets, QueueRange
from .positions import Position, unread_in, without

CHECKED_MAX: Final = 64  # queues that one run compares with the lake; the others keep their offsets until a later one
IDLE_CHECKED_MAX: Final = 16  # queues without new messages whose last record one run compares
_PLACES: Final[Mapping[str, tuple[str, str]]] = {
    trail.TRACE_EVENTS.name: ("trace_topic", "trace_store_ms"),
    trail.TRACE_REJECTS.name: ("trace_topic", "trace_store_ms"),
    trail.BROKER_EVENTS.name: ("trace_topic", "trace_store_ms"),
    trail.MESSAGE_META.name: ("topic", "store_ms"),
}
"""Table -> its columns with the topic and the store time of a record."""


class Rewinds:
    """Finds where queues of one cluster differ from what a lake has read of them."""

    def __init__(self, lake: Lake, retry_timeout_ms: int) -> None:
        self._lake = lake
        self._retrying = Retrying(retry_timeout_ms)
        self._same: dict[MessageQueue, int] = {}  # queue -> its end when it had nothing new
        self._idle_checked: set[MessageQueue] = set()  # in this turn

    def replaced(self, connection: Cluster, position: Position, bounds: Bounds) -> list[MessageQueue]:
        """Return the queues that are not shorter than the offset reached, but whose last record is another one now."""
        reached = position.offsets
        kept = [queue for queue, (at, _) in sorted(position.last.items()) if _is_within(at, bounds.get(queue))]
        grown = [queue for queue in kept if bounds[queue][1] > reached[queue]]
        idle = [queue for queue in kept if bounds[queue][1] == reached[queue]]
        if self._idle_checked.issuperset(idle):
            self._idle_checked.clear()
        idle = [queue for queue in idle if queue not in self._idle_checked][:IDLE_CHECKED_MAX]
        self._idle_checked.update(idle)
        return [queue for queue in (*grown, *idle) if self._is_other(connection, queue, *position.last[queue])]

    def _is_other(self, connection: Cluster, queue: MessageQueue, offset: int, store_ms: int) -> bool:
        head = self._head(connection, queue, offset)
        return head is not None and head.store_timestamp_ms != store_ms

    def find(
        self,
        connection: Cluster,
        cluster: str,
        position: Position,
        bounds: Bounds,
        replaced: Sequence[MessageQueue] = (),
    ) -> QueueOffsets:
        """Return the offset to read from of each queue that was replaced, or ends before the offset reached and has
        other messages.
        """
        reached = position.offsets
        behind = sorted(queue for queue in set(reached) & set(bounds) if bounds[queue][1] < reached[queue])
        self._same = {queue: end for queue, end in self._same.items() if queue in behind}
        changed = [*replaced, *(queue for queue in behind if self._same.get(queue) != bounds[queue][1])]
        found: QueueOffsets = {}
        if not changed:
            return found
        duck = connect(threads=1)
        try:
            for queue in changed[:CHECKED_MAX]:
                first, end = bounds[queue]
                end = min(end, reached[queue])
                read_from = max((stop for _, stop in position.unread.get(queue, ())), default=0)
                low = first if end <= read_from else max(first, read_from)
                at = self._differs_at(duck, connection, cluster, queue, low, end)
                if at < end:
                    found[queue] = first if at == low else at
                else:
                    self._same[queue] = bounds[queue][1]
        finally:
            duck.close()
        return found

    def _differs_at(
        self,
        duck: duckdb.DuckDBPyConnection,
        connection: Cluster,
        cluster: str,
        queue: MessageQueue,
        low: int,
        end: int,
    ) -> int:
        """The first offset whose record the lake does not have. All records before one that it has are known, too."""
        if low < end and self._is_known(duck, connection, cluster, queue, end - 1):
            return end
        if low < end and not self._is_known(duck, connection, cluster, queue, low):  # of a queue that is all new
            return low
        high = end - 1  # not known, if there is one
        while low < high:
            middle = (low + high) // 2
            if self._is_known(duck, connection, cluster, queue, middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_known(
        self, duck: duckdb.DuckDBPyConnection, connection: Cluster, cluster: str, queue: MessageQueue, offset: int
    ) -> bool:
        head = self._head(connection, queue, offset)
        if head is None:
            return True  # nothing to read there, whatever the lake has
        return has_record(self._lake, duck, cluster, queue, offset, head.store_timestamp_ms)

    def _head(self, connection: Cluster, queue: MessageQueue, offset: int) -> RecordHead | None:
        """The head of the record at an offset; None: the broker has no readable one there."""
        pulled = self._retrying(f"pull of {queue} at {offset}", partial(connection.pull, queue, offset, 1))
        try:
            head = decode_head(pulled.records[0])
        except (IndexError, RecordError):
            return None
        return head if head.queue_offset == offset else None


def _is_within(offset: int, bounds: tuple[int, int] | None) -> bool:
    return bounds is not None and bounds[0] <= offset < bounds[1]


def replaced_text(replaced: Sequence[MessageQueue], position: Position) -> str:
    """The error of a reader that must not lose messages."""
    queue = replaced[0]
    return (
        f"{queue} has another record at offset {position.last[queue][0]} than the one that was read, as have "
        f"{len(replaced) - 1} other queues: the topic was deleted and created again, or the broker lost messages. "
        "Read into a new lake, or pass --no-fail-on-data-loss"
    )


def has_record(
    lake: Lake, duck: duckdb.DuckDBPyConnection, cluster: str, queue: MessageQueue, offset: int, store_ms: int
) -> bool:
    """Return whether a lake has a record of this place and time."""
    for name, (topic, stored) in _PLACES.items():
        table = lake[name]
        files = [file for file in of_cluster(table.files(), cluster) if file.may_hold(stored, store_ms)]
        rows = rows_of(table, table.readable(files), cluster)
        with lake_errors(table.path):
            found = duck.execute(
                f"SELECT 1 FROM ({rows}) AS rows WHERE {topic} = ? "
                f"AND broker_name = ? AND queue_id = ? AND queue_offset = ? AND {stored} = ? LIMIT 1",
                [queue.topic, queue.broker_name, queue.queue_id, offset, store_ms],
            ).fetchone()
        if found:
            return True
    return False


def rewound(position: Position, found: QueueOffsets) -> tuple[Position, list[QueueRange]]:
    """Return the position with these offsets, and the ranges that can no longer be read.

    Messages after the offset reached are one of them. Their number is unknown, so that range is empty.
    """
    lost = [QueueRange(queue, position.offsets[queue], position.offsets[queue]) for queue in sorted(found)]
    windows = {queue: (at, position.offsets[queue]) for queue, at in found.items()}
    gone = unread_in(position.unread, windows)
    now = replace(
        position,
        offsets=position.offsets | found,
        unread=without(position.unread, gone),
        last={queue: last for queue, last in position.last.items() if queue not in found},
    )
    return now, [*gone, *lost]
