"""Backlog of a group: who is slow, since when, how long it takes to drain, and the effect of each remedy.

    lag, members -> TopicBacklog (facts) -> Advice (verdict, ways)

Facts come from a live cluster and change nothing there; only `perform_skip`, `begin_reshard` and `ReshardRun` do. An
unknown value is None, never 0.
"""

from .advice import Advice, BacklogCause, ScaleEstimate, Way, WayOut, advise, scale_estimate
from .model import BacklogAnswer, BacklogMember, QueueBacklog, TopicBacklog, member_of, topic_backlog
from .reading import read_backlog
from .reshard import (
    COPIED_FROM,
    KeyCounts,
    ReshardPlan,
    ReshardProgress,
    ReshardRefused,
    ReshardRun,
    ReshardSource,
    ReshardWish,
    begin_reshard,
    order_key,
    plan_reshard,
    read_progress,
    target_queue,
)
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
    "COPIED_FROM",
    "Advice",
    "BacklogAnswer",
    "BacklogCause",
    "BacklogMember",
    "KeyCounts",
    "QueueBacklog",
    "RecordUnreadable",
    "ReshardPlan",
    "ReshardProgress",
    "ReshardRefused",
    "ReshardRun",
    "ReshardSource",
    "ReshardWish",
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
    "begin_reshard",
    "is_forward",
    "member_of",
    "order_key",
    "perform_skip",
    "plan_reshard",
    "plan_skip",
    "read_backlog",
    "read_progress",
    "read_record",
    "scale_estimate",
    "skipped_messages",
    "target_queue",
    "topic_backlog",
    "write_record",
]
