"""The verdict about a backlog, and the effect of each remedy. No requests.

The ways: wait, start members, look at a member, scale (more members), re-shard (more queues), skip. Estimates use
measured handler times, and say what they assume.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final

from mqtrail.client import Trend, TrendState

from ..model import duration_text, number_text
from .model import BacklogMember, TopicBacklog

BUSY_MIN: Final = 0.5  # below this share of their time in use, handlers are not what limits a group


class BacklogCause(StrEnum):
    """Why messages wait, as far as offsets and members show it."""

    EMPTY = "EMPTY"  # nothing waits
    UNKNOWN = "UNKNOWN"  # the lag, the rates or the members are unknown
    NO_MEMBERS = "NO_MEMBERS"  # no member is online
    UNOWNED_QUEUE = "UNOWNED_QUEUE"  # messages wait in queues that no member has
    STUCK = "STUCK"  # members are online, and nothing was consumed between the two readings
    HOT_QUEUE = "HOT_QUEUE"  # most of it waits in one queue
    SLOW_MEMBER = "SLOW_MEMBER"  # one member is much slower than the others
    DRAINS = "DRAINS"  # more is consumed than arrives
    IDLE_HANDLERS = "IDLE_HANDLERS"  # it does not drain, although handlers have time left
    TOO_SLOW = "TOO_SLOW"  # as much or more arrives than the members consume


class WayOut(StrEnum):
    """The kinds of remedies."""

    WAIT = "wait"
    START = "start"
    LOOK = "look"
    SCALE = "scale"
    RESHARD = "reshard"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Way:
    """One remedy. text: what to do and what it gives. command: of mqtrail, or ()."""

    kind: WayOut
    text: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScaleEstimate:
    """What a number of members and queues would give. drains: None: unknown. drain_s: only if it drains."""

    member_count: int
    queue_count: int
    capacity_per_s: float | None
    drains: bool | None
    drain_s: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """The verdict about one topic. ways: the one that fits best first. assumptions: of the estimates."""

    topic: str
    cause: BacklogCause
    verdict: str
    ways: tuple[Way, ...] = ()
    estimates: tuple[ScaleEstimate, ...] = ()
    assumptions: tuple[str, ...] = ()


def advise(group: str, found: TopicBacklog) -> Advice:
    """Return the verdict, the remedies, and the estimates."""
    cause = _cause(found)
    if cause is BacklogCause.EMPTY:
        return Advice(found.topic, cause, _verdict(cause, found))
    estimates = _estimates(found)
    return Advice(
        found.topic,
        cause,
        _verdict(cause, found),
        tuple(_ways(cause, group, found, estimates)),
        estimates,
        _assumptions(found) if any(one.capacity_per_s is not None for one in estimates) else (),
    )


def _cause(found: TopicBacklog) -> BacklogCause:
    """Return the first cause that applies."""
    count, trend, members = found.total.lag_count, found.trend, found.members
    if not count:
        return BacklogCause.EMPTY if count == 0 and not found.total.unknown_count else BacklogCause.UNKNOWN
    if members == ():
        return BacklogCause.NO_MEMBERS
    if _unowned_count(found):
        return BacklogCause.UNOWNED_QUEUE
    if trend.consumed_per_s == 0:
        return BacklogCause.STUCK
    if found.hot_queue:
        return BacklogCause.HOT_QUEUE
    if found.is_slow:
        return BacklogCause.SLOW_MEMBER
    if trend.state is TrendState.DRAINS:
        return BacklogCause.DRAINS
    if trend.state is TrendState.UNKNOWN:
        return BacklogCause.UNKNOWN
    used = [one.busy for one in members or () if one.busy is not None]
    return BacklogCause.IDLE_HANDLERS if used and sum(used) / len(used) < BUSY_MIN else BacklogCause.TOO_SLOW


def _unowned_count(found: TopicBacklog) -> int:
    """Return how many messages wait in queues without a member."""
    return sum(one.lag_count or 0 for one in found.queues if one.owners == ())


def _verdict(cause: BacklogCause, found: TopicBacklog) -> str:
    count, trend = found.total.lag_count, found.trend
    bound = "at least " if found.total.unknown_count else ""
    waits = "an unknown number of messages" if count is None else f"{bound}{count} messages"
    match cause:
        case BacklogCause.EMPTY:
            return "nothing waits"
        case BacklogCause.UNKNOWN:
            return f"{waits} wait; {_unknown(found)}, so the cause is unknown"
        case BacklogCause.NO_MEMBERS:
            return f"{waits} wait and no member is online"
        case BacklogCause.UNOWNED_QUEUE:
            places = ", ".join(one.place for one in found.queues if one.owners == () and one.lag_count)
            return f"{_unowned_count(found)} messages wait in queues that no member has: {places}"
        case BacklogCause.STUCK:
            return f"{waits} wait, members are online, and nothing was consumed between the two readings"
        case BacklogCause.HOT_QUEUE:
            hot = found.queues[0]
            return f"{hot.lag_count} of {waits} wait in one queue, {hot.place}: {_drain(hot.trend)}"
        case BacklogCause.SLOW_MEMBER:
            return f"{waits} wait; member {found.slowest} is much slower than the others; {_drain(trend)}"
        case BacklogCause.DRAINS:
            return f"{waits} wait; {_drain(trend)}"
        case BacklogCause.IDLE_HANDLERS:
            return f"{waits} wait; {_drain(trend)}, although the handlers have time left: the limit is elsewhere"
        case BacklogCause.TOO_SLOW:
            return f"{waits} wait; {_drain(trend)}: the group is too slow"


def _unknown(found: TopicBacklog) -> str:
    if not found.total.lag_count:
        return f"{found.total.unknown_count} of {found.total.queue_count} queues are unknown"
    return "the rates are unknown"


def _drain(trend: Trend) -> str:
    if trend.state is TrendState.DRAINS and trend.drain_s is not None:
        return f"it drains in {duration_text(trend.drain_s * 1_000)} at the present rates"
    if trend.state is TrendState.GROWS:
        return "it never drains at the present rates, because more arrives than is consumed"
    if trend.state is TrendState.STEADY:
        return "it never drains at the present rates, because as much arrives as is consumed"
    return "the time to drain is unknown"


# -- estimates ---------------------------------------------------------------------------------------------------------


def scale_estimate(found: TopicBacklog, member_count: int, queue_count: int) -> ScaleEstimate:
    """Return what so many equal members and queues would consume, and how long they would need for what waits.

    A queue has one member at a time, so more members than queues add nothing, unless they pop. In order, a queue has
    one handler at a time.
    """
    measured = [one for one in found.members or () if one.handler_ms and one.threads and one.is_ordered is not None]
    produced, waiting = found.trend.produced_per_s, found.total.lag_count
    if not measured:
        return ScaleEstimate(member_count, queue_count, None, None, None)
    handler_ms = median(one.handler_ms for one in measured if one.handler_ms is not None)
    threads = median(one.threads for one in measured if one.threads is not None)
    working = member_count if any(one.pops for one in measured) else min(member_count, queue_count)
    handlers = working * threads
    if any(one.is_ordered for one in measured):
        handlers = min(handlers, queue_count)
    capacity = handlers * 1_000 / handler_ms
    if produced is None or waiting is None or found.total.unknown_count:
        return ScaleEstimate(member_count, queue_count, capacity, None, None)
    drains = capacity > produced
    return ScaleEstimate(
        member_count, queue_count, capacity, drains, waiting / (capacity - produced) if drains else None
    )


def _estimates(found: TopicBacklog) -> tuple[ScaleEstimate, ...]:
    """Return estimates for the members now, twice as many, one for each queue, and twice the queues."""
    queue_count, now = len(found.queues), len(found.members or ())
    if not now:
        return ()
    counts = sorted({now, min(2 * now, max(now, queue_count)), max(now, queue_count)})
    more = max(2 * queue_count, now)
    return (
        *(scale_estimate(found, count, queue_count) for count in counts),
        scale_estimate(found, more, more),
    )


def _assumptions(found: TopicBacklog) -> tuple[str, ...]:
    return (
        "every member has the median of the measured handler times and threads, and what the handler calls keeps up",
        "messages are spread evenly over queues, and arrive at the present rate",
        *(["messages of one queue are handled one after the other"] if _is_ordered(found.members or ()) else []),
    )


def _is_ordered(members: Sequence[BacklogMember]) -> bool:
    return any(one.is_ordered for one in members)


# -- ways --------------------------------------------------------------------------------------------------------------


def _ways(cause: BacklogCause, group: str, found: TopicBacklog, estimates: Sequence[ScaleEstimate]) -> Iterator[Way]:
    queue_count, now = len(found.queues), len(found.members or ())
    look = ("mqtrail", "group", "members", group, "--stacks")
    skip = ("mqtrail", "backlog", "skip", group, "--topic", found.topic, "--to", "end", "--dry-run")
    match cause:
        case BacklogCause.NO_MEMBERS:
            yield Way(WayOut.START, f"start members: up to {queue_count} have work, one for each queue")
        case BacklogCause.UNOWNED_QUEUE:
            text = "look at the members: all must subscribe to the same topics and divide queues in the same way"
            yield Way(WayOut.LOOK, text, look)
        case BacklogCause.STUCK:
            yield Way(WayOut.LOOK, "look where the handlers wait: their stacks show it", look)
        case BacklogCause.SLOW_MEMBER:
            yield Way(WayOut.LOOK, f"look at {found.slowest}: its host, its handler, what it calls", look)
        case BacklogCause.IDLE_HANDLERS:
            text = "look at limits of the members: pull interval, flow control, rate limits. More members may not help"
            yield Way(WayOut.LOOK, text, look)
        case BacklogCause.DRAINS:
            yield Way(WayOut.WAIT, _drain(found.trend))
        case BacklogCause.HOT_QUEUE:
            yield _reshard(
                group, found, "more members do not help: one queue has one member. If it holds several keys, "
            )
        case BacklogCause.UNKNOWN:
            text = "find out why it is unknown"
            yield Way(WayOut.LOOK, text, ("mqtrail", "lag", "show", group, "--over", "10s"))
        case BacklogCause.TOO_SLOW:
            pass
    if cause in (BacklogCause.TOO_SLOW, BacklogCause.DRAINS, BacklogCause.SLOW_MEMBER) and now:
        if now < queue_count:
            best = next((one for one in estimates if one.queue_count == queue_count and one.drains), None)
            best = best if best is not None and best.member_count > now else estimates[-2]
            yield Way(WayOut.SCALE, f"start more members: {_gives(best)}. More than {queue_count} would be idle")
        if cause is BacklogCause.TOO_SLOW:
            more = estimates[-1]
            why = f"{now} members have all {queue_count} queues, so more would be idle: " if now >= queue_count else ""
            yield _reshard(group, found, why, f" and start members: {_gives(more)}")
    if found.total.lag_count:
        yield Way(WayOut.SKIP, "skip the backlog if it has lost its value; a record lists what was skipped", skip)


def _reshard(group: str, found: TopicBacklog, why: str, what: str = "") -> Way:
    command = ("mqtrail", "backlog", "reshard", group, "--topic", found.topic, "--to", f"{found.topic}-more")
    brokers = max(1, len({one.broker_name for one in found.queues}))
    more = max(1, 2 * len(found.queues) // brokers)
    words = (*command, "--queues", str(more), "--dry-run")
    return Way(WayOut.RESHARD, f"{why}copy the backlog to a topic with more queues{what}", words)


def _gives(one: ScaleEstimate) -> str:
    who = f"{one.member_count} members on {one.queue_count} queues"
    if one.capacity_per_s is None:
        return f"what {who} give is unknown, because no handler time is known"
    if one.drains is None:
        return f"{who} consume {number_text(one.capacity_per_s)}/s, and the time to drain is unknown"
    if one.drain_s is None:
        return f"{who} consume {number_text(one.capacity_per_s)}/s, which is not enough"
    return f"{who} consume {number_text(one.capacity_per_s)}/s and drain it in {duration_text(one.drain_s * 1_000)}"
