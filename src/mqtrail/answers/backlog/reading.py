"""Reads the backlog of one group from a live cluster: its lag at two times, then its members. Changes nothing there."""

from __future__ import annotations

from typing import Final

from mqtrail.client import Member, QueueLag, SyncAdmin, group_lag
from mqtrail.wire import RETRY_PREFIX

from .advice import advise
from .model import BacklogAnswer, TopicBacklog, member_of, topic_backlog

OVER_MS: Final = 10_000  # between the readings: members commit every 5 s by default


def read_backlog(
    admin: SyncAdmin, group: str, topic: str | None = None, over_ms: int = OVER_MS
) -> BacklogAnswer | None:
    """Return the backlog of a group in its topics (topic: only in this one); None: the brokers know no such group.

    Retry topics are only read as a sum, unless topic names one.
    """
    lag = admin.lag(group, over_ms=over_ms)
    if not lag.groups:
        return None
    [found] = lag.groups
    gathered = admin.members(group)
    members = _once([one for of_broker in gathered.values() for one in of_broker])
    is_known = bool(members) or not gathered.failures
    queues: dict[str, list[QueueLag]] = {}
    for queue in found.queues:
        if queue.topic == topic if topic is not None else not queue.topic.startswith(RETRY_PREFIX):
            queues.setdefault(queue.topic, []).append(queue)
    topics = [_topic(name, lags, members if is_known else None, lag.as_of_ms) for name, lags in queues.items()]
    topics.sort(key=lambda one: (-(one.total.lag_count or 0), one.topic))
    return BacklogAnswer(
        lag.as_of_ms,
        group,
        over_ms,
        tuple(topics),
        tuple(advise(group, one) for one in topics),
        found.retry,
        found.delayed_count,
        found.why,
        (*lag.problems, *(f"members at {name}: {error}" for name, error in gathered.failures.items())),
    )


def _once(members: list[Member]) -> list[Member]:
    """Return each member once: every broker reports those that are connected to it, and one report is enough."""
    once: dict[str, Member] = {}
    for one in members:
        if one.client_id not in once or once[one.client_id].running is None:
            once[one.client_id] = one
    return list(once.values())


def _topic(topic: str, lags: list[QueueLag], members: list[Member] | None, as_of_ms: int) -> TopicBacklog:
    counted = group_lag(topic, lags, ())
    total = counted.retry if topic.startswith(RETRY_PREFIX) else counted.topics
    known = None
    if members is not None:
        known = [share for one in members if (share := member_of(one, topic)) is not None]
    return topic_backlog(topic, lags, known, total, as_of_ms)
