"""What waits in a topic for a group, who has its queues, and how fast each member is. No requests.

The times and rates of a member are those of its own running info (request 307): averages of its last minute in one
topic. A member that does not answer, and a client without these numbers, has None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from mqtrail.client import LagSum, Member, QueueLag, Trend, TrendState
from mqtrail.wire import ALL_QUEUES, PROP_CONSUME_ORDERLY, PROP_THREADPOOL_CORE_SIZE, ConsumerRunningInfo, number_of

if TYPE_CHECKING:
    from .advice import Advice

THREADS_DIGITS_MAX: Final = 6
HOT_SHARE: Final = 0.5  # of the waiting messages in one queue, from which on the queue is hot
HOT_FACTOR: Final = 3  # and it has at least so many times the mean of the other queues
UNMEASURED: Final = "its client measured less than 1 ms, or nothing"
UNUSED: Final = "its client reports no handled message in the last minute"
SLOW_FACTOR: Final = 2  # a member is slow if its handler takes at least so many times the median of the others


@dataclass(frozen=True, slots=True)
class BacklogMember:
    """A live member and its work on one topic. queues: BROKER/QUEUE; None: unknown, with the reason in why.

    handler_ms: mean time of the handler for a message (Java clients: for a call). threads: handlers that it may run at
    once; concurrency: that it can run with its queues. capacity_per_s: messages per second if all of these always work;
    busy: the share of it that was used.
    """

    client_id: str
    address: str
    queues: tuple[str, ...] | None
    pops: bool = False
    is_ordered: bool | None = None
    cached_count: int | None = None
    handler_ms: float | None = None
    consumed_per_s: float | None = None
    failed_per_s: float | None = None
    threads: int | None = None
    concurrency: int | None = None
    capacity_per_s: float | None = None
    busy: float | None = None
    why: str = ""

    @property
    def is_idle(self) -> bool:
        """Whether the member is known to have no queue of the topic."""
        return self.queues == ()


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """What waits in one queue. since_ms: store time of the first waiting message. owners: ids of the members that have
    it. None: unknown; for owners because a member did not answer."""

    broker_name: str
    queue_id: int
    consumer_offset: int | None
    max_offset: int | None
    lag_count: int | None
    lag_ms: int | None
    since_ms: int | None
    trend: Trend
    owners: tuple[str, ...] | None
    why: str = ""

    @property
    def place(self) -> str:
        """BROKER/QUEUE."""
        return f"{self.broker_name}/{self.queue_id}"


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """A group's backlog in one topic. total, trend: over its queues, without those that are unknown.

    hot_queue: BROKER/QUEUE that holds most of what waits, or ''. slowest: the member with the longest handler time, or
    ''; is_slow: it takes much longer than the others. unowned: queues that no member has; None: unknown.
    """

    topic: str
    total: LagSum
    since_ms: int | None
    trend: Trend
    queues: tuple[QueueBacklog, ...]
    members: tuple[BacklogMember, ...] | None
    idle: tuple[str, ...] = ()
    unowned: tuple[str, ...] | None = None
    hot_queue: str = ""
    slowest: str = ""
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class BacklogAnswer:
    """The backlog of a group. advice: one for each topic. retry, delayed_count: of its retry topics.

    problems: what was asked and not answered. why: what else is unknown, with the reason.
    """

    as_of_ms: int
    group_name: str
    over_ms: int
    topics: tuple[TopicBacklog, ...]
    advice: tuple[Advice, ...]
    retry: LagSum | None = None
    delayed_count: int | None = None
    why: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def member_of(member: Member, topic: str) -> BacklogMember | None:
    """Return a member's work on a topic; None: it does not subscribe to it."""
    running = member.running
    if running is None:
        why = "it did not answer" if member.error is None else f"it did not answer: {member.error}"
        return BacklogMember(member.client_id, member.address, None, why=why)
    held = [queue for queue in running.mq_table if queue.topic == topic]
    popped = [queue for queue in running.mq_pop_table if queue.topic == topic]
    if not held and not popped and all(one.topic != topic for one in running.subscription_set):
        return None
    is_ordered = _flag(running.properties.get(PROP_CONSUME_ORDERLY))
    threads = _threads(running)
    concurrency = min(threads, max(1, len(held))) if threads and is_ordered else threads  # in order, a queue has one
    handler_ms, consumed, failed = _rates(running, topic)
    capacity = concurrency * 1_000 / handler_ms if concurrency and handler_ms else None
    done = None if consumed is None or failed is None else consumed + failed
    places = sorted({(one.broker_name, one.queue_id) for one in (*held, *popped)})
    return BacklogMember(
        member.client_id,
        member.address,
        tuple(f"{broker}/{'all' if number == ALL_QUEUES else number}" for broker, number in places),
        bool(popped),
        is_ordered,
        sum(running.mq_table[queue].cached_msg_count for queue in held) if held else 0 if not popped else None,
        handler_ms,
        consumed,
        failed,
        threads,
        concurrency,
        capacity,
        None if capacity is None or done is None else min(1.0, done / capacity),
        "" if handler_ms is not None else UNMEASURED if done else UNUSED,
    )


def _rates(running: ConsumerRunningInfo, topic: str) -> tuple[float | None, float | None, float | None]:
    """Return handler time in ms, and messages consumed and failed per second. A client writes 0 for no measurement."""
    status = running.status_table.get(topic)
    if status is None:
        return None, None, None
    is_measured = status.consume_rt > 0
    return (status.consume_rt if is_measured else None), status.consume_ok_tps, status.consume_failed_tps


def _threads(running: ConsumerRunningInfo) -> int | None:
    return number_of(running.properties.get(PROP_THREADPOOL_CORE_SIZE), THREADS_DIGITS_MAX) or None


def _flag(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get((text or "").lower())


def topic_backlog(
    topic: str, lags: Sequence[QueueLag], members: Iterable[BacklogMember] | None, total: LagSum, as_of_ms: int
) -> TopicBacklog:
    """Return the backlog of one topic. lags: of its queues. members: that subscribe to it; None: unknown."""
    known = None if members is None else tuple(sorted(members, key=lambda one: one.client_id))
    is_complete = known is not None and all(one.queues is not None for one in known)
    owners: dict[str, list[str]] = {}
    for one in known or ():
        for place in one.queues or ():
            owners.setdefault(place, []).append(one.client_id)
    queues = []
    for lag in lags:
        of_broker = owners.get(f"{lag.broker_name}/all", [])
        found = (*owners.get(f"{lag.broker_name}/{lag.queue_id}", ()), *of_broker)
        queues.append(_queue(lag, found if found or is_complete else None, as_of_ms))
    queues.sort(key=lambda one: (-(one.lag_count or 0), one.broker_name, one.queue_id))
    slowest, is_slow = _slowest(known or ())
    unknown = any(one.owners is None for one in queues)
    return TopicBacklog(
        topic,
        total,
        min((one.since_ms for one in queues if one.since_ms is not None), default=None),
        _trend(queues),
        tuple(queues),
        known,
        tuple(one.client_id for one in known or () if one.is_idle),
        None if unknown else tuple(one.place for one in queues if one.owners == ()),
        _hot(queues),
        slowest,
        is_slow,
    )


def _queue(lag: QueueLag, owners: tuple[str, ...] | None, as_of_ms: int) -> QueueBacklog:
    since_ms = as_of_ms - lag.lag_ms if lag.waits and lag.lag_ms is not None else None
    ends = lag.consumer_offset, lag.max_offset, lag.lag_count, lag.lag_ms
    return QueueBacklog(lag.broker_name, lag.queue_id, *ends, since_ms, lag.trend, owners, lag.why)


def _trend(queues: Sequence[QueueBacklog]) -> Trend:
    """Return the trend of all queues together; unknown if that of one is."""
    rates = [(one.trend.consumed_per_s, one.trend.produced_per_s, one.lag_count) for one in queues]
    consumed = produced = 0.0
    waiting = 0
    for out, into, count in rates:
        if out is None or into is None or count is None:
            return Trend()
        consumed, produced, waiting = consumed + out, produced + into, waiting + count
    if not waiting:
        return Trend(TrendState.EMPTY, consumed, produced, 0.0)
    if consumed > produced:
        return Trend(TrendState.DRAINS, consumed, produced, waiting / (consumed - produced))
    return Trend(TrendState.GROWS if produced > consumed else TrendState.STEADY, consumed, produced)


def _hot(queues: Sequence[QueueBacklog]) -> str:
    """Return the queue with most of what waits, of at least two queues that are all known; '' if there is none."""
    counts = [one.lag_count for one in queues if one.lag_count is not None]
    if len(queues) < 2 or len(counts) < len(queues) or not sum(counts):
        return ""
    first, others = counts[0], sum(counts[1:])
    mean = others / (len(counts) - 1)
    return queues[0].place if first >= HOT_SHARE * sum(counts) and first >= HOT_FACTOR * mean else ""


def _slowest(members: Sequence[BacklogMember]) -> tuple[str, bool]:
    """Return the member with the longest handler time, and whether it takes much longer than the others."""
    times = [(one.handler_ms, one.client_id) for one in members if one.handler_ms is not None]
    if not times:
        return "", False
    longest, client_id = max(times)
    others = [ms for ms, other in times if other != client_id]
    return client_id, bool(others) and longest >= SLOW_FACTOR * median(others)
