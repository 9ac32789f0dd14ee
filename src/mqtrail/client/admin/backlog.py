"""Backlog: what groups still have to read, computed from offsets, ranges of queues and store times. No requests.

    QueueReading, age of the first waiting message -> QueueLag -> LagSum, Trend -> GroupLag -> ClusterLag

An unknown value is None and has a reason; it is never 0. The rules for one queue:

    offset        range [min, max)    what waits
    within it                         [offset, max)
    below min                         [min, max); the messages below min expired unread and are counted apart
    above max                         unknown: the queue lost messages, or was deleted and created again
    none          min = max           nothing
    none          otherwise           [min, max) if the group starts at the first message, otherwise unknown

Messages that the group's filter rejects are counted: only the broker can tell them apart, when the group reads them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from mqtrail.wire import RETRY_PREFIX

NO_OFFSET: Final = "the group has no committed offset in this queue"
PAST_END: Final = "the committed offset is past the queue's end: the queue lost messages or was created again"


class TrendState(StrEnum):
    """What happens to the waiting messages of a queue or group between two readings."""

    UNKNOWN = "UNKNOWN"  # one reading only, or a value of one of the two is unknown
    EMPTY = "EMPTY"  # nothing waits
    DRAINS = "DRAINS"  # more is consumed than produced
    GROWS = "GROWS"  # more is produced than consumed
    STEADY = "STEADY"  # as much is consumed as produced, and messages wait


@dataclass(frozen=True, slots=True)
class Trend:
    """Messages per second between two readings. drain_s: seconds until nothing waits at these rates; None: never."""

    state: TrendState = TrendState.UNKNOWN
    consumed_per_s: float | None = None
    produced_per_s: float | None = None
    drain_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueReading:
    """A group's place in one queue. None: unknown, and `why` has the reason; a consumer_offset can also be missing.

    offset_ms, range_ms: when offset and range were read, on one clock. starts_at_first: where the group starts in a
    queue without an offset; None: unknown.
    """

    topic: str
    broker_name: str
    queue_id: int
    consumer_offset: int | None = None
    min_offset: int | None = None
    max_offset: int | None = None
    offset_ms: float = 0
    range_ms: float = 0
    starts_at_first: bool = False
    why: str = ""

    @property
    def place(self) -> tuple[str, str, int]:
        """The queue, as (topic, broker name, queue id)."""
        return self.topic, self.broker_name, self.queue_id


@dataclass(frozen=True, slots=True)
class QueueLag:
    """What a group still has to read in one queue.

    next_offset: the first waiting message. lag_ms: how long it has waited since it was stored; 0: nothing waits.
    expired_count: messages that expired before the group read them. why: the reason of an unknown value, or ''.
    """

    topic: str
    broker_name: str
    queue_id: int
    consumer_offset: int | None
    min_offset: int | None
    max_offset: int | None
    next_offset: int | None
    lag_count: int | None
    lag_ms: int | None
    expired_count: int = 0
    why: str = ""
    trend: Trend = Trend()

    @property
    def waits(self) -> bool:
        """Whether messages wait."""
        return bool(self.lag_count)

    @property
    def is_unknown(self) -> bool:
        """Whether it is unknown how many messages wait, or for how long."""
        return self.lag_count is None or self.lag_ms is None


@dataclass(frozen=True, slots=True)
class LagSum:
    """The sum over queues. Without the unknown ones, so with unknown_count > 0 the values are lower bounds.

    lag_count, lag_ms: None if they are unknown in all queues. unknown_count: queues with an unknown count or time.
    """

    queue_count: int
    lag_count: int | None
    lag_ms: int | None
    unknown_count: int
    expired_count: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """What a group still has to read.

    retry: its retry topics. delayed_count: copies for it that wait for their next attempt in the broker's delay topics.
    member_count: live members; None: unknown. why: what is unknown or left out, and the reasons. queues: first those of
    its topics, then those of its retry topics.
    """

    group_name: str
    member_count: int | None
    topics: LagSum
    retry: LagSum
    delayed_count: int | None
    trend: Trend
    why: tuple[str, ...] = ()
    queues: tuple[QueueLag, ...] = ()

    @property
    def lag_ms(self) -> int | None:
        """The longest known wait in its topics and retry topics; a lower bound if is_unknown; None: unknown."""
        longest = max(self.topics.lag_ms or 0, self.retry.lag_ms or 0)
        return None if self.is_unknown and not longest else longest

    @property
    def is_unknown(self) -> bool:
        """Whether anything in its topics or retry topics is unknown."""
        return bool(self.topics.unknown_count or self.retry.unknown_count)

    @property
    def waits(self) -> bool:
        """Whether messages wait for it."""
        return bool(self.topics.lag_count or self.retry.lag_count or self.delayed_count)


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that a group has not read. is_accepted: by its tag; None: the filter is unknown, or not by tag."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    keys: str
    store_ms: int
    lag_ms: int
    is_accepted: bool | None


@dataclass(frozen=True, slots=True)
class ClusterLag:
    """The groups of a cluster, the longest lag first. problems: what was asked and not answered, with the reason.

    over_ms: time between the two readings of the trend; None: there was one only. oldest: of one group, the messages
    that have waited longest; looked_at_count: messages that were read to find them.
    """

    as_of_ms: int
    groups: tuple[GroupLag, ...]
    problems: tuple[str, ...] = ()
    over_ms: int | None = None
    idle_groups: tuple[str, ...] = ()  # configured, but with neither offsets nor members
    oldest: tuple[WaitingMessage, ...] = field(default=())
    looked_at_count: int = 0


def queue_lag(reading: QueueReading) -> QueueLag:
    """Return the lag of a queue in messages. Its lag_ms is 0 if nothing waits, otherwise None: see `with_age`."""
    offset, first, end = reading.consumer_offset, reading.min_offset, reading.max_offset
    known = (*reading.place, offset, first, end)
    if first is None or end is None:
        return QueueLag(*known, None, None, None, why=reading.why or "the range of the queue is unknown")
    if offset is None and reading.why and first < end:
        return QueueLag(*known, None, None, None, why=reading.why)
    if offset is None and first < end and not reading.starts_at_first:
        return QueueLag(*known, None, None, None, why=NO_OFFSET)
    if offset is not None and offset > end:
        return QueueLag(*known, None, None, None, why=PAST_END)
    start = first if offset is None else max(offset, first)
    expired_count = 0 if offset is None else min(first, end) - min(offset, first)
    count = max(end - start, 0)
    return QueueLag(*known, start, count, None if count else 0, expired_count)


def with_age(lag: QueueLag, lag_ms: int | None, why: str = "") -> QueueLag:
    """Return the lag with the time that its first message has waited; None: unknown, for the reason why."""
    assert lag.waits, "only waiting messages have an age"
    return QueueLag(  # a third of the time of `replace`, for every queue of a cluster
        lag.topic,
        lag.broker_name,
        lag.queue_id,
        lag.consumer_offset,
        lag.min_offset,
        lag.max_offset,
        lag.next_offset,
        lag.lag_count,
        lag_ms,
        lag.expired_count,
        why if lag_ms is None else "",
        lag.trend,
    )


def trend_of(pairs: Iterable[tuple[QueueReading | None, QueueReading]]) -> Trend:
    """Return the trend of queues, each with an earlier and a later reading; None: there was no earlier one."""
    consumed = produced = 0.0
    waiting = 0
    for before, after in pairs:
        count = queue_lag(after).lag_count
        rates = None if before is None else _rates(before, after)
        if count is None or rates is None:
            return Trend()
        waiting += count
        consumed += rates[0]
        produced += rates[1]
    if not waiting:
        return Trend(TrendState.EMPTY, consumed, produced, 0.0)
    if consumed > produced:
        return Trend(TrendState.DRAINS, consumed, produced, waiting / (consumed - produced))
    return Trend(TrendState.GROWS if produced > consumed else TrendState.STEADY, consumed, produced)


def _rates(before: QueueReading, after: QueueReading) -> tuple[float, float] | None:
    """Return messages consumed and produced per second; None: unknown, also after a reset to an earlier offset."""
    if before.max_offset is None or after.max_offset is None or before.max_offset > after.max_offset:
        return None
    if before.consumer_offset is None or after.consumer_offset is None:
        # Without an offset nothing was consumed; only an empty queue, or a known start, makes the number certain.
        if before.consumer_offset is not after.consumer_offset:
            return None
        consumed = 0
    else:
        consumed = after.consumer_offset - before.consumer_offset
    offset_s, range_s = (after.offset_ms - before.offset_ms) / 1000, (after.range_ms - before.range_ms) / 1000
    if consumed < 0 or offset_s <= 0 or range_s <= 0:
        return None
    return consumed / offset_s, (after.max_offset - before.max_offset) / range_s


def sum_of(lags: Sequence[QueueLag]) -> LagSum:
    """Return the sum over queues. Without queues nothing waits."""
    counts = [lag.lag_count for lag in lags if lag.lag_count is not None]
    ages = [lag.lag_ms for lag in lags if lag.lag_ms is not None]
    waiting_ages = [lag.lag_ms for lag in lags if lag.waits and lag.lag_ms is not None]
    unknown_count = sum(lag.is_unknown for lag in lags)
    return LagSum(
        len(lags),
        sum(counts) if counts or not lags else None,
        # A queue that is empty says nothing about an unknown one: 0 only if all are known.
        max(waiting_ages, default=None if unknown_count else max(ages, default=0)),
        unknown_count,
        sum(lag.expired_count for lag in lags),
    )


def group_lag(
    group_name: str,
    lags: Sequence[QueueLag],
    readings: Sequence[QueueReading],
    earlier: Mapping[tuple[str, str, int], QueueReading] | None = None,
    *,
    member_count: int | None = None,
    delayed_count: int | None = None,
    why: Iterable[str] = (),
) -> GroupLag:
    """Return the lag of a group. lags, readings: of the same queues. earlier: readings by place; None: no trend."""
    before = earlier or {}
    if earlier is not None:
        pairs = zip(lags, readings, strict=True)
        lags = [replace(lag, trend=trend_of([(before.get(one.place), one)])) for lag, one in pairs]
    return GroupLag(
        group_name,
        member_count,
        sum_of([lag for lag in lags if not lag.topic.startswith(RETRY_PREFIX)]),
        sum_of([lag for lag in lags if lag.topic.startswith(RETRY_PREFIX)]),
        delayed_count,
        trend_of((before.get(one.place), one) for one in readings if not one.topic.startswith(RETRY_PREFIX)),
        tuple(why),
        tuple(lags),
    )


def reasons_of(lags: Sequence[QueueLag]) -> Iterator[str]:
    """Yield a sentence for each reason of unknown queues, and one for messages that expired."""
    for why, count in Counter(lag.why for lag in lags if lag.why).items():
        yield f"{count} of {len(lags)} queues unknown: {why}"
    expired = sum(lag.expired_count for lag in lags)
    if expired:
        yield f"{expired} messages expired before the group read them; they are not counted as waiting"


def ranked_lags(groups: Iterable[GroupLag]) -> list[GroupLag]:
    """Return the groups, the longest wait first, then those with unknown lag, then those without lag."""

    def rank(group: GroupLag) -> tuple[int, int, int, str]:
        waits = group.lag_ms or 0
        place = 0 if waits or group.waits else 1 if group.is_unknown else 2
        return place, -waits, -((group.topics.lag_count or 0) + (group.retry.lag_count or 0)), group.group_name

    return sorted(groups, key=rank)
