"""Which ranges a group did not read before they were removed or passed: rows of trail.UNREAD_RANGES of a new sample.

In one sample, committed offsets are asked before the ranges of queues. So an offset below the minimum of its queue
shows that the messages between them were removed unread. Only samples of that time show it: when a consumer pulls
again, the offset jumps to the minimum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from mqtrail import trail
from mqtrail.wire import DLQ_PREFIX, RETRY_PREFIX, is_business_topic

from .sampling import ClusterSample, Question

Row = dict[str, Any]
Queue = tuple[str, str, int]
"""(topic, broker name, queue id)."""
GroupQueue = tuple[str, str, str, int]
"""(group, topic, broker name, queue id)."""
_COUNTED: Final = {"OK": 1, "OFFLINE": 0}  # status of a client's row -> clients; another status: unknown


@dataclass(frozen=True, slots=True)
class Before:
    """The sample before a new one."""

    offsets: Mapping[GroupQueue, int]
    ranges: Mapping[Queue, tuple[int, int]]
    """(min_offset, max_offset) of each queue."""
    clients: Sequence[tuple[str, str]]
    """(group, status) of each row about clients."""
    answered: Set[Question]
    left: Left | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """What is known of topics that the sample before lists and whose brokers did not have them any more: from the last
    sample that has their ranges. A sample takes a while, and name servers list a topic for a while after its brokers
    deleted it.
    """

    offsets: Mapping[GroupQueue, int]
    ranges: Mapping[Queue, tuple[int, int]]
    clients: Sequence[tuple[str, str]]
    """Those that were there at any time since."""


def unread_ranges(before: Before | None, found: ClusterSample) -> Iterator[Row]:
    """Yield the unread ranges that a sample shows and the one before does not. before None: it is the first one."""
    live = _LiveCounts(before, found)
    minimums = {
        (row["topic"], row["broker_name"], row["queue_id"]): row["min_offset"]
        for row in found.rows.get(trail.QUEUE_RANGES.name, ())
    }
    for row in found.rows.get(trail.GROUP_OFFSETS.name, ()):
        group, queue = row["group_name"], (row["topic"], row["broker_name"], row["queue_id"])
        offset, minimum = row["consumer_offset"], minimums.get(queue)
        last = None if before is None else before.offsets.get((group, *queue))
        if minimum is None or (before is not None and last is None):
            continue  # the first offset of a group: what was read before is unknown
        if offset < minimum:
            first = max(offset, last or 0, before.ranges.get(queue, (0, 0))[0] if before else 0)
            if first < minimum:
                yield _row("EXPIRED", group, queue, first, minimum, live.count(group))
        elif (
            last is not None
            and max(last, minimum) < offset
            and _follows(before, found, queue)
            and live.count(group) == 0
        ):
            yield _row("OFFSET_MOVED", group, queue, max(last, minimum), offset, 0)
    if before is not None:
        yield from _of_shorter_queues(before, found, live)
        if found.topics:
            yield from _of_deleted_topics(before, found, live)
            if before.left is not None:
                known = replace(before, clients=before.left.clients)
                asked = {("RANGES", broker, topic) for topic, broker, _ in before.left.ranges}
                known = replace(known, offsets=before.left.offsets, ranges=before.left.ranges, answered=asked)
                yield from _of_deleted_topics(known, found, _LiveCounts(known, found), _emptied_brokers(before, found))


def _follows(before: Before | None, found: ClusterSample, queue: Queue) -> bool:
    """Return whether the offsets of a broker are in both samples, with no gap between them."""
    return before is not None and not found.gap and ("OFFSETS", queue[1], "") in before.answered


def _of_shorter_queues(before: Before, found: ClusterSample, live: _LiveCounts) -> Iterator[Row]:
    """The end of each queue that the last sample has and this one does not."""
    ends = _ends(found)
    cut = {queue: ends[queue] for queue, (_, end) in before.ranges.items() if ends.get(queue, end) < end}
    for queue, end in cut.items():
        yield _row("SHORTENED", "", queue, end, before.ranges[queue][1], None)
    for (group, topic, broker, queue_id), offset in before.offsets.items():
        queue = (topic, broker, queue_id)
        if queue in cut and (first := max(offset, cut[queue])) < before.ranges[queue][1]:
            yield _row("SHORTENED", group, queue, first, before.ranges[queue][1], live.count(group))


def _ends(found: ClusterSample) -> dict[Queue, int]:
    """The end of each queue in a sample."""
    return {
        (row["topic"], row["broker_name"], row["queue_id"]): row["max_offset"]
        for row in found.rows.get(trail.QUEUE_RANGES.name, ())
    }


def _emptied_brokers(before: Before, found: ClusterSample) -> set[str]:
    """Brokers that no longer have any queue as long as before, not even of topics that no operator deletes: their store
    was lost, and with it their topics.
    """
    ends = _ends(found)
    filled = {queue: end for queue, (_, end) in before.ranges.items() if end > 0}
    kept = {queue[1] for queue, end in filled.items() if ends.get(queue, 0) >= end}
    return {queue[1] for queue in filled if not _is_deletable(queue[0])} - kept


def _is_deletable(topic: str) -> bool:
    return is_business_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _of_deleted_topics(
    before: Before, found: ClusterSample, live: _LiveCounts, emptied: set[str] | None = None
) -> Iterator[Row]:
    """The rest of each queue that the last sample has, whose topic no longer exists, and whose broker answers.

    emptied: brokers whose store was lost; None: by these samples.
    """
    topics = set(found.topics)
    deleted = {
        queue: bounds
        for queue, bounds in before.ranges.items()
        if queue[0] not in topics
        and ("RANGES", queue[1], queue[0]) in before.answered
        and found.answers.get(("GROUPS", queue[1], "")) == ""
    }
    if not deleted:
        return
    emptied = _emptied_brokers(before, found) if emptied is None else emptied
    kinds = {queue: "SHORTENED" if queue[1] in emptied else "TOPIC_DELETED" for queue in deleted}
    for queue, (minimum, _) in deleted.items():
        yield _row(kinds[queue], "", queue, minimum, None, None)
    for (group, topic, broker, queue_id), offset in before.offsets.items():
        queue = (topic, broker, queue_id)
        if queue in deleted:
            yield _row(kinds[queue], group, queue, max(offset, deleted[queue][0]), None, live.count(group))


def _row(kind: str, group: str, queue: Queue, first: int, end: int | None, live_count: int | None) -> Row:
    place = {"topic": queue[0], "broker_name": queue[1], "queue_id": queue[2]}
    own = {"kind": kind, "group_name": group, "first_offset": first, "end_offset": end, "live_count": live_count}
    return {**place, **own}


class _LiveCounts:
    """How many clients groups had in two samples; made when it is asked first."""

    def __init__(self, before: Before | None, found: ClusterSample) -> None:
        self._before = before
        self._found = found
        self._counts: dict[str, int | None] | None = None

    def count(self, group: str) -> int | None:
        """The greater number of clients of a group in the two samples; None: unknown in one of them."""
        if self._counts is None:
            self._counts = self._count()
        return self._counts.get(group)

    def _count(self) -> dict[str, int | None]:
        now = _counted((row["group_name"], row["status"]) for row in self._found.rows.get(trail.CLIENTS.name, ()))
        if self._before is None or self._found.gap:
            return now  # what was not read by now was not read in the time before either
        then = _counted(self._before.clients)
        counts: dict[str, int | None] = {}
        for group in now.keys() & then.keys():
            one, other = now[group], then[group]
            counts[group] = None if one is None or other is None else max(one, other)
        return counts


def _counted(rows: Iterator[tuple[str, str]] | Sequence[tuple[str, str]]) -> dict[str, int | None]:
    counts: dict[str, int | None] = {}
    for group, status in rows:
        before, own = counts.get(group, 0), _COUNTED.get(status)
        counts[group] = None if before is None or own is None else before + own
    return counts
