"""Delayed messages: delay levels and timers.

    delays           the 18 delay levels of SCHEDULE_TOPIC_XXXX
    timers           any other delivery time
    records, slots   data of the timers
    counts           number of waiting messages
    requests         the request codes

Design and effects of a crash: docs/design/timers.md.
"""

from .delays import DelayedMessages
from .records import recall_ms, recalls
from .requests import TimerRequests
from .timers import SNAPSHOT_BOUNDS_S, Timers

__all__ = [
    "SNAPSHOT_BOUNDS_S",
    "DelayedMessages",
    "TimerRequests",
    "Timers",
    "recall_ms",
    "recalls",
]
