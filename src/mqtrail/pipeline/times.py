"""Where a read begins and ends, given as store times: option text in, a time for each queue out.

`startingTimestamp` is one time for all queues; `startingOffsetsByTimestamp` is JSON, one time for each topic
(`{topic: ms}`) or for each queue (`{topic: {broker: {queueId: ms}}}`). Times are epoch ms on the broker's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mqtrail.wire import MessageQueue, MQError

from .offsets import QueueOffsets, offsets_from_json

Strategy = Literal["error", "latest"]
"""What follows if a queue has no message at or after its starting time."""


class NothingLater(MQError):
    """A queue has no message at or after the time at which a read should start."""


@dataclass(frozen=True, slots=True)
class QueueTimes:
    """A time of each queue: its own, else its topic's, else that of all queues. Epoch ms."""

    all_ms: int | None = None
    topics: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[MessageQueue, int] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> int | None:
        """Return the queue's time; None: no time names it."""
        return self.queues.get(queue, self.topics.get(queue.topic, self.all_ms))


def times_from_json(value: Any) -> QueueTimes:
    """Read {topic: ms} or {topic: {broker: {queueId: ms}}}. ValueError names the part that has another shape."""
    if not isinstance(value, dict):
        raise ValueError(f"times are {value!r}, expected an object")
    topics = {topic: at for topic, at in value.items() if type(at) is int}
    queues = offsets_from_json({topic: brokers for topic, brokers in value.items() if topic not in topics})
    negative = [at for at in (*topics.values(), *queues.values()) if at < 0]
    if negative:
        raise ValueError(f"the time {negative[0]} is below 0, expected epoch ms")
    return QueueTimes(topics=topics, queues=queues)


def offsets_at(
    times: QueueTimes,
    bounds: Mapping[MessageQueue, tuple[int, int]],
    offset_by_time: Callable[[MessageQueue, int], int],
    strategy: Strategy = "latest",
) -> QueueOffsets:
    """Return the offset of the first message at or after each queue's time, within the queue's bounds.

    A queue without a time is left out. strategy: of a queue without such a message; `latest` is its end. Raises
    NothingLater for `error`.
    """
    offsets: QueueOffsets = {}
    for queue, (first, end) in bounds.items():
        at_ms = times.of(queue)
        if at_ms is None:
            continue
        offsets[queue] = min(max(offset_by_time(queue, at_ms), first), end)
        if offsets[queue] == end and strategy == "error":
            raise NothingLater(
                f"{queue} has no message stored at or after {at_ms}, where the read should start. Set an earlier "
                "time, or startingOffsetsByTimestampStrategy to latest to start at the end of such queues"
            )
    return offsets
