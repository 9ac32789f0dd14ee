"""Delayed messages: delay levels and timers.

delays has the 18 delay levels of SCHEDULE_TOPIC_XXXX, timers any other time: records and slots are their data, counts
the number of waiting messages, requests the request codes. Design and effects of a crash: docs/design/timers.md.
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
