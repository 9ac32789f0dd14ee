"""How far the clusters of a lake were read: the next offset of each queue, and ranges below it that were left out.

The notes of each batch of the ingest have this as JSON, by cluster:

    {"clusters": {cluster: {"offsets": {topic: {broker: {queueId: offset}}},
                            "unread": {topic: {broker: {queueId: [[start, end], …]}}},
                            "last": {topic: {broker: {queueId: [offset, storeTimestamp]}}},
                            "brokers": {broker: address}}}}

A range is left out if the first batch of a cluster began behind it: the broker no longer had it, or `starting_offsets`
is `latest`. A backfill takes from it what it reads. So each message is read once, whoever reads it.

`last` is the last record that was read of each queue. If the queue has another record at this offset, it was
recreated, or its broker lost its last messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mqtrail.wire import MessageQueue

from .offsets import QueueOffsets, QueueRange, offsets_from_json, offsets_to_json

T = TypeVar("T")
APP: Final = "ingest"
"""App of the batches that have these notes."""
Unread = dict[MessageQueue, list[tuple[int, int]]]
"""Ranges [start, end) of each queue, ascending, that do not touch."""
LastRecords = dict[MessageQueue, tuple[int, int]]
"""Queue offset and store time of the last record that was read of each queue."""
Windows = Mapping[MessageQueue, tuple[int, int]]
UNNAMED = ""
"""Cluster of a position that an earlier version noted without a name, in a lake that has no samples yet."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position in one cluster. brokers: addresses of its masters by name, as they were when it was last read."""

    offsets: QueueOffsets = field(default_factory=dict)
    unread: Unread = field(default_factory=dict)
    brokers: Mapping[str, str] = field(default_factory=dict)
    last: LastRecords = field(default_factory=dict)


def positions_to_json(positions: Mapping[str, Position]) -> dict[str, Any]:
    """The notes of a batch."""
    return {
        "clusters": {
            cluster: {
                "offsets": offsets_to_json(one.offsets),
                "unread": _nested({queue: ranges for queue, ranges in one.unread.items() if ranges}),
                "last": _nested(one.last),
                "brokers": dict(one.brokers),
            }
            for cluster, one in sorted(positions.items())
        }
    }


def positions_from_json(notes: Mapping[str, Any]) -> dict[str, Position]:
    """Read the notes of a batch. ValueError names the part that has another shape."""
    if "clusters" not in notes:
        return {UNNAMED: Position(offsets_from_json(notes.get("offsets")))}
    try:
        return {
            cluster: Position(
                offsets_from_json(one["offsets"]),
                {queue: _pairs(ranges) for queue, ranges in _by_queue(one["unread"])},
                dict(one.get("brokers", {})),
                {queue: (int(offset), int(store_ms)) for queue, (offset, store_ms) in _by_queue(one.get("last", {}))},
            )
            for cluster, one in notes["clusters"].items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"found no position ({error!r}), expected offsets and unread ranges of each cluster") from None


def _nested(values: Mapping[MessageQueue, T]) -> dict[str, dict[str, dict[str, T]]]:
    nested: dict[str, dict[str, dict[str, T]]] = {}
    for queue in sorted(values):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = values[queue]
    return nested


def _by_queue(nested: Any) -> Iterator[tuple[MessageQueue, Any]]:
    for topic, brokers in nested.items():
        for broker, queues in brokers.items():
            for queue_id, value in queues.items():
                yield MessageQueue(topic, broker, int(queue_id)), value


def _pairs(ranges: Any) -> list[tuple[int, int]]:
    return [(int(start), int(end)) for start, end in ranges]


def later(last: LastRecords, more: LastRecords) -> LastRecords:
    """Return the last record of each queue in either."""
    return last | {queue: max(record, last.get(queue, record)) for queue, record in more.items()}


def unread_in(unread: Unread, windows: Windows) -> list[QueueRange]:
    """Return the unread ranges within a window of each queue, ordered by queue and offset."""
    cut = (
        QueueRange(queue, max(start, windows[queue][0]), min(end, windows[queue][1]))
        for queue in sorted(set(unread) & set(windows))
        for start, end in unread[queue]
    )
    return [each for each in cut if each.count]


def without(unread: Unread, taken: Iterable[QueueRange]) -> Unread:
    """Return the unread ranges that are left after `taken` was read."""
    left = dict(unread)
    for each in taken:
        rest: list[tuple[int, int]] = []
        for start, end in left.get(each.queue, ()):
            pieces = (start, min(end, each.start)), (max(start, each.end), end)
            rest += [piece for piece in pieces if piece[0] < piece[1]]
        left[each.queue] = rest
    return {queue: ranges for queue, ranges in left.items() if ranges}
