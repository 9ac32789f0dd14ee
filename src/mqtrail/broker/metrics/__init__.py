"""Metrics: table has each metric with its meaning, samples computes their values, waiting those of what waits."""

from .samples import Sample, samples
from .table import ABSENT, METRICS, Metric

__all__ = [
    "ABSENT",
    "METRICS",
    "Metric",
    "Sample",
    "samples",
]
