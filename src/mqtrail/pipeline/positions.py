"""How far the clusters of a lake were read: the next offset of each queue, and ranges below it that were left out.

The notes of each batch of the ingest have this as JSON, by cluster:

    {"clusters": {cluster: {"offsets": {topic: {broker: {queueId: offset}}},
                            "unread": {topic: {broker: {queueId: [[start, end], …]}}},
                            "brokers": {broker: address}}}}

A range is left out if the first batch of a cluster began behind it: the broker no longer had it, or `starting_offsets`
is `latest`. A backfill takes from it what it reads. So each message is read once, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqtrail.wire import MessageQueue

from .offsets import QueueOffsets, QueueRange, offsets_from_json, offsets_to_json

APP: Final = "ingest"
"""App of the batches that have these notes."""
Unread = dict[MessageQueue, list[tuple[int, int]]]
"""Ranges [start, end) of each queue, ascending, that do not touch."""
Windows = Mapping[MessageQueue, tuple[int, int]]
UNNAMED = ""
"""Cluster of a position that an earlier version noted without a name, in a lake that has no samples yet."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position in one cluster. brokers: addresses of its masters by name, as they were when it was last read."""

    offsets: QueueOffsets = field(default_factory=dict)
    unread: Unread = field(default_factory=dict)
    brokers: Mapping[str, str] = field(default_factory=dict)


def positions_to_json(positions: Mapping[str, Position]) -> dict[str, Any]:
    """The notes of a batch."""
    return {
        "clusters": {
            cluster: {
                "offsets": offsets_to_json(one.offsets),
                "unread": _unread_to_json(one.unread),
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
                offsets_from_json(one["offsets"]), _unread_from_json(one["unread"]), dict(one.get("brokers", {}))
            )
            for cluster, one in notes["clusters"].items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"found no position ({error!r}), expected offsets and unread ranges of each cluster") from None


def _unread_to_json(unread: Unread) -> dict[str, dict[str, dict[str, list[tuple[int, int]]]]]:
    nested: dict[str, dict[str, dict[str, list[tuple[int, int]]]]] = {}
    for queue in sorted(queue for queue, ranges in unread.items() if ranges):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = unread[queue]
    return nested


def _unread_from_json(nested: Any) -> Unread:
    return {
        MessageQueue(topic, broker, int(queue_id)): [(int(start), int(end)) for start, end in ranges]
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue_id, ranges in queues.items()
    }


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
