"""Messages for later: delay levels and timers.

delays has the 18 delay levels of SCHEDULE_TOPIC_XXXX, timers any other time: records and slots are their data, counts
how many wait, requests the codes about them. How it works and what a crash leaves: docs/design/timers.md.
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
