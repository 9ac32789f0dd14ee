"""Metrics: table lists them with their meaning, samples computes values, waiting those of timers, POP and
transactions."""

from .samples import Sample, samples
from .table import ABSENT, METRICS, Metric

__all__ = [
    "ABSENT",
    "METRICS",
    "Metric",
    "Sample",
    "samples",
]
