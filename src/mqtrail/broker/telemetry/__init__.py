"""Telemetry of messages: statistics per minute, hour and day, histograms, trace records."""

from .events import BrokerEvents
from .histogram import Histogram
from .statistics import Counter, Statistics, Window
from .trace import BrokerTrace
from .trace_messages import TraceMessages

__all__ = [
    "BrokerEvents",
    "BrokerTrace",
    "Counter",
    "Histogram",
    "Statistics",
    "TraceMessages",
    "Window",
]
