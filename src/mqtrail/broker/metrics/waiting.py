"""Metrics of timed messages, popped messages and transactions.

Source: DefaultStoreMetricsManager, PopMetricsManager, PopReviveService, BrokerMetricsManager, EndTransactionProcessor,
apache/rocketmq store/ and broker/ of 5.3.3.
"""

from collections.abc import Iterator
from typing import Final

from ..broker import Broker
from ..telemetry import Histogram
from ..timing import SNAPSHOT_BOUNDS_S

STORAGE: Final = ("local", "disk")
PUT_OK: Final = "PUT_OK"  # messages that the store refuses are not counted

_Sample = tuple[str, tuple[str, ...], float | Histogram]


def waiting_samples(broker: Broker, now_ms: int) -> Iterator[_Sample]:
    """Yield name, labels and value of each sample."""
    yield from _timers(broker, now_ms)
    yield from _pop(broker, now_ms)
    yield from _transactions(broker)


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
    for topic, count in list(counts.waiting().items()):
        yield "rocketmq_timing_messages", (topic, *STORAGE), count
    for topic, count in list(counts.taken_in.items()):
        yield "rocketmq_timer_enqueue_total", (topic, *STORAGE), count
    for topic, count in list(counts.handed_out.items()):
        yield "rocketmq_timer_dequeue_total", (topic, *STORAGE), count
    for topic, delays_s in list(counts.delays_s.items()):
        yield "rocketmq_delay_message_latency_seconds", (topic, *STORAGE), delays_s


def _pop(broker: Broker, now_ms: int) -> Iterator[_Sample]:
    log, revive, store = broker.pop.revive_log, broker.pop.revive, broker.store
    for (group, topic, kind), count in list(log.put_counts.items()):
        yield "rocketmq_pop_revive_in_message_total", (group, topic, kind, PUT_OK), count
    for queue in revive.queues:
        queue_id = str(queue.queue_id)
        for (group, topic, kind), count in list(queue.got_counts.items()):
            yield "rocketmq_pop_revive_out_message_total", (group, topic, queue_id, kind), count
        first, count = queue.first_open()
        yield "rocketmq_pop_revive_lag_milliseconds", (queue_id,), count
        stored_ms = store.store_time(log.topic, queue.queue_id, first) if count else now_ms
        if stored_ms > 0:
            yield "rocketmq_pop_revive_latency_milliseconds", (queue_id,), max(0, now_ms - stored_ms)
    for (group, topic), count in list(revive.copied_counts.items()):
        yield "rocketmq_pop_revive_retry_messages_total", (group, topic, PUT_OK), count


def _transactions(broker: Broker) -> Iterator[_Sample]:
    open_half_messages = broker.transactions.open_half_messages.by_topic()
    for topic, count in () if open_half_messages is None else open_half_messages.items():
        yield "rocketmq_half_messages", (topic,), count
    counts = broker.transactions.counts
    for topic, count in list(counts.commits.items()):
        yield "rocketmq_commit_messages_total", (topic,), count
    for topic, count in list(counts.rollbacks.items()):
        yield "rocketmq_rollback_messages_total", (topic,), count
    for topic, latencies_s in list(counts.latencies_s.items()):
        yield "rocketmq_finish_message_latency_milliseconds", (topic,), latencies_s
