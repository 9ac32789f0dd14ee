"""Backlog of a group: who is slow, since when, how long it takes to drain, and what each way out gives.

    lag, members -> TopicBacklog (facts) -> Advice (verdict, ways)

Facts come from a live cluster and change nothing there. An unknown value is None, never 0.
"""

from .advice import Advice, BacklogCause, ScaleEstimate, Way, WayOut, advise, scale_estimate
from .model import BacklogAnswer, BacklogMember, QueueBacklog, TopicBacklog, member_of, topic_backlog
from .reading import read_backlog

__all__ = [
    "Advice",
    "BacklogAnswer",
    "BacklogCause",
    "BacklogMember",
    "QueueBacklog",
    "ScaleEstimate",
    "TopicBacklog",
    "Way",
    "WayOut",
    "advise",
    "member_of",
    "read_backlog",
    "scale_estimate",
    "topic_backlog",
]
