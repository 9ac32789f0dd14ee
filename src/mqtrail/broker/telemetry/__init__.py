"""Telemetry of messages: statistics per minute, hour and day, histograms, trace records."""

from .histogram import Histogram
from .statistics import Counter, Statistics, Window
from .trace import BrokerTrace

__all__ = [
    "BrokerTrace",
    "Counter",
    "Histogram",
    "Statistics",
    "Window",
]
