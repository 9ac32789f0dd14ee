"""Metrics of what waits in a broker: timed messages.

Source: DefaultStoreMetricsManager, apache/rocketmq store/ of 5.3.3.
"""

from collections.abc import Iterator
from typing import Final

from .broker import Broker
from .histogram import Histogram
from .timers import SNAPSHOT_BOUNDS_S

STORAGE: Final = ("local", "disk")

_Sample = tuple[str, tuple[str, ...], float | Histogram]


def waiting_samples(broker: Broker, now_ms: int) -> Iterator[_Sample]:
    """Yield name, labels and value of each sample as of now."""
    yield from _timers(broker, now_ms)


def _timers(broker: Broker, now_ms: int) -> Iterator[_Sample]:
    lag = broker.timers.lag(now_ms)
    yield "rocketmq_timer_enqueue_lag", STORAGE, lag.in_count
    if lag.in_ms is not None:
        yield "rocketmq_timer_enqueue_latency_milliseconds", STORAGE, lag.in_ms
    yield "rocketmq_timer_dequeue_lag", STORAGE, lag.waiting
    yield "rocketmq_timer_dequeue_latency_milliseconds", STORAGE, lag.late_ms // 1_000
    for bound_s, count in zip(SNAPSHOT_BOUNDS_S, lag.ahead, strict=True):
        yield "rocketmq_timer_message_snapshot", (str(bound_s), *STORAGE), count
    counts = broker.timers.counts
    for topic, count in counts.waiting().items():
        yield "rocketmq_timing_messages", (topic, *STORAGE), count
    for topic, count in counts.taken_in.items():
        yield "rocketmq_timer_enqueue_total", (topic, *STORAGE), count
    for topic, count in counts.handed_out.items():
        yield "rocketmq_timer_dequeue_total", (topic, *STORAGE), count
    for topic, delays_s in counts.delays_s.items():
        yield "rocketmq_delay_message_latency_seconds", (topic, *STORAGE), delays_s
