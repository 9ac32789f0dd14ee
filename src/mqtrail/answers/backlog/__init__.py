"""Backlog of a group: who is slow, since when, how long it takes to drain, and what each way out gives.

    lag, members -> TopicBacklog (facts) -> Advice (verdict, ways)

Facts come from a live cluster and change nothing there; only `perform_skip` does. An unknown value is None, never 0.
"""

from .advice import Advice, BacklogCause, ScaleEstimate, Way, WayOut, advise, scale_estimate
from .model import BacklogAnswer, BacklogMember, QueueBacklog, TopicBacklog, member_of, topic_backlog
from .reading import read_backlog
from .skip import (
    RecordUnreadable,
    SkipOutcome,
    SkippedQueue,
    SkipPlan,
    SkipRefused,
    add_outcomes,
    is_forward,
    perform_skip,
    plan_skip,
    read_record,
    skipped_messages,
    write_record,
)

__all__ = [
    "Advice",
    "BacklogAnswer",
    "BacklogCause",
    "BacklogMember",
    "QueueBacklog",
    "RecordUnreadable",
    "ScaleEstimate",
    "SkipOutcome",
    "SkipPlan",
    "SkipRefused",
    "SkippedQueue",
    "TopicBacklog",
    "Way",
    "WayOut",
    "add_outcomes",
    "advise",
    "is_forward",
    "member_of",
    "perform_skip",
    "plan_skip",
    "read_backlog",
    "read_record",
    "scale_estimate",
    "skipped_messages",
    "topic_backlog",
    "write_record",
]
