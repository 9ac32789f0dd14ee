"""Where a read of queues starts and ends: pure arithmetic over {queue: queue offset}.

As JSON, in Spark's checkpoint and in the options alike, `{topic: {broker: {queueId: offset}}}`: no separator that a
name could hold. Offsets are exclusive at the end: [start, end).
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
        """How many offsets lie in it; 0 for a range that runs backwards."""
        return max(self.end - self.start, 0)


def offsets_to_json(offsets: Mapping[MessageQueue, int]) -> OffsetsJson:
    """Nest offsets by topic, broker and queue id, sorted, so that equal offsets are equal text."""
    nested: OffsetsJson = {}
    for queue in sorted(offsets):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return nested


def offsets_from_json(value: Any) -> QueueOffsets:
    """Read what offsets_to_json wrote. ValueError for any other shape, with the place in it."""
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


def advance(
    start: Mapping[MessageQueue, int], target: Mapping[MessageQueue, int], count_max: int | None
) -> QueueOffsets:
    """Return how far one micro-batch goes: from start towards target, by at most count_max messages in all.

    Each queue gets its share of count_max by its backlog, at least one message where there is any, so that none
    starves. Never backwards: a target below start, or absent, leaves the queue where it is; Spark itself would commit
    it.
    """
    backlog = {queue: max(target.get(queue, at) - at, 0) for queue, at in start.items()}
    total = sum(backlog.values())
    if count_max is None or total <= count_max:
        return {queue: at + backlog[queue] for queue, at in start.items()}
    ends: QueueOffsets = {}
    left = count_max
    # Small backlogs first: what rounding gives them never exceeds what is left for the large ones.
    for queue in sorted(start, key=lambda queue: (backlog[queue], queue)):
        share = min(backlog[queue], max(count_max * backlog[queue] // total, 1), left)
        left -= share
        ends[queue] = start[queue] + share
    return ends


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the ranges that hold anything, in the order of their queues. A queue that start lacks is read from its
    end: it was only just discovered, and its first offset is what end says."""
    ranges = (QueueRange(queue, start.get(queue, end[queue]), end[queue]) for queue in sorted(end))
    return [each for each in ranges if each.count]


def split_ranges(ranges: list[QueueRange], partitions_min: int) -> list[QueueRange]:
    """Cut the ranges into at least partitions_min pieces, as near to equal as whole offsets allow.

    Each range gets its share of partitions_min by its size; fewer pieces only when there are fewer messages.
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
    """Deal the ranges out to at most partitions_max hands of nearly equal size, the large ones first."""
    if partitions_max is None or len(ranges) <= partitions_max:
        return [(each,) for each in ranges]
    hands: list[list[QueueRange]] = [[] for _ in range(partitions_max)]
    sizes = [0] * partitions_max
    for each in sorted(ranges, key=lambda each: (-each.count, each)):
        smallest = sizes.index(min(sizes))
        hands[smallest].append(each)
        sizes[smallest] += each.count
    return [tuple(sorted(hand)) for hand in hands]
