"""Load: sends messages at set times, whatever the answers do, consumes them, and counts each one.

`LoadRun` runs a `LoadPlan` against any cluster and returns a `LoadReport`: latency from the intended time of each
message, what was late or not sent, what was lost, repeated or out of order, and what the processes used.
"""

from .histogram import LatencyHistogram
from .marks import SIZE_MIN
from .plan import Arrivals, InvalidPlan, LoadPlan
from .probing import LoadFailed, LoadUnready
from .report import LatencySummary, LoadCounts, LoadReason, LoadReport, LoadVerdict, decided
from .run import LoadRun, tag_of
from .sizes import Sizes
from .target import LoadTarget, TopicMissing, prepare_topic

__all__ = [
    "SIZE_MIN",
    "Arrivals",
    "InvalidPlan",
    "LatencyHistogram",
    "LatencySummary",
    "LoadCounts",
    "LoadFailed",
    "LoadPlan",
    "LoadReason",
    "LoadReport",
    "LoadRun",
    "LoadTarget",
    "LoadUnready",
    "LoadVerdict",
    "Sizes",
    "TopicMissing",
    "decided",
    "prepare_topic",
    "tag_of",
]
