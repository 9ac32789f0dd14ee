"""Where a read of queues starts and ends: arithmetic over {queue: queue offset}, without I/O.

As JSON, in batches of the lake, Spark's checkpoints and the options: `{topic: {broker: {queueId: offset}}}`. Nested
objects need no separator, which could be part of a name. The end offset is exclusive: [start, end).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mqtrail.wire import MessageQueue

QueueOffsets = dict[MessageQueue, int]
OffsetsJson = dict[str, dict[str, dict[str, int]]]


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Messages [start, end) of one queue; queue offsets."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def count(self) -> int:
        """The number of offsets in it; 0 if the end is before the start."""
        return max(self.end - self.start, 0)


def offsets_to_json(offsets: Mapping[MessageQueue, int]) -> OffsetsJson:
    """Nest offsets by topic, broker and queue id, sorted, so that equal offsets are equal text."""
    nested: OffsetsJson = {}
    for queue in sorted(offsets):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return nested


def offsets_from_json(value: Any) -> QueueOffsets:
    """Read the result of offsets_to_json. ValueError names the part that has another shape."""
    offsets: QueueOffsets = {}
    for topic, brokers in _members(value, "offsets"):
        for broker, queues in _members(brokers, topic):
            for queue_id, offset in _members(queues, f"{topic}.{broker}"):
                if not queue_id.isdecimal() or type(offset) is not int:
                    raise ValueError(
                        f"{topic}.{broker} has {queue_id!r}: {offset!r}, expected a queue id and an offset"
                    )
                offsets[MessageQueue(topic, broker, int(queue_id))] = offset
    return offsets


def _members(value: Any, place: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"{place} is {value!r}, expected an object")
    return value.items()


def backlog_of(start: Mapping[MessageQueue, int], target: Mapping[MessageQueue, int]) -> int:
    """Return how many messages are between start and target, in the queues of start."""
    return sum(max(target.get(queue, at) - at, 0) for queue, at in start.items())


def advance(
    start: Mapping[MessageQueue, int], target: Mapping[MessageQueue, int], count_max: int | None
) -> QueueOffsets:
    """Return where one batch ends: from start towards target, with at most count_max messages in total.

    Each queue gets a part of count_max in proportion to its backlog, and at least one message if it has any, so that
    no queue starves. Offsets never decrease: if the target is below start or absent, the queue stays where it is.
    Spark does not check this.
    """
    backlog = {queue: max(target.get(queue, at) - at, 0) for queue, at in start.items()}
    total = sum(backlog.values())
    if count_max is None or total <= count_max:
        return {queue: at + backlog[queue] for queue, at in start.items()}
    ends: QueueOffsets = {}
    left = count_max
    # Small backlogs come first, so that rounding up never takes more than is left for the large ones.
    for queue in sorted(start, key=lambda queue: (backlog[queue], queue)):
        share = min(backlog[queue], max(count_max * backlog[queue] // total, 1), left)
        left -= share
        ends[queue] = start[queue] + share
    return ends


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the ranges that are not empty, ordered by queue.

    A queue that `start` lacks was just discovered: `end` has its first offset, so nothing of it is read yet.
    """
    ranges = (QueueRange(queue, start.get(queue, end[queue]), end[queue]) for queue in sorted(end))
    return [each for each in ranges if each.count]


def split_ranges(ranges: list[QueueRange], partitions_min: int) -> list[QueueRange]:
    """Cut the ranges into at least partitions_min pieces of nearly equal size.

    There are fewer pieces only if there are fewer messages.
    """
    total = sum(each.count for each in ranges)
    if len(ranges) >= partitions_min or not total:
        return ranges
    size_max = max(total // partitions_min, 1)
    pieces: list[QueueRange] = []
    for each in ranges:
        count = min(-(-each.count // size_max), each.count)
        cuts = [each.start + each.count * index // count for index in range(count + 1)]
        pieces += [QueueRange(each.queue, first, last) for first, last in pairwise(cuts)]
    return pieces


def pack_ranges(ranges: list[QueueRange], partitions_max: int | None) -> list[tuple[QueueRange, ...]]:
    """Group the ranges into at most partitions_max partitions of nearly equal size, the large ranges first."""
    if partitions_max is None or len(ranges) <= partitions_max:
        return [(each,) for each in ranges]
    partitions: list[list[QueueRange]] = [[] for _ in range(partitions_max)]
    sizes = [0] * partitions_max
    for each in sorted(ranges, key=lambda each: (-each.count, each)):
        smallest = sizes.index(min(sizes))
        partitions[smallest].append(each)
        sizes[smallest] += each.count
    return [tuple(sorted(partition)) for partition in partitions]
