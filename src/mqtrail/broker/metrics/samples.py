"""Samples of a broker's Prometheus metrics: names and labels of RocketMQ 5, and a few of mqtrail.

Sends and pulls do no work for metrics: samples are computed on request from the state of the broker. An unknown value
has no sample. METRICS (table) gives the meaning of each metric; docs/reference/metrics.md prints it. Every sample also
has the labels cluster, node_type and node_id.

Source: BrokerMetricsManager, ConsumerLagCalculator, DefaultStoreMetricsManager, apache/rocketmq broker/ and store/ of
5.3.3.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from mqtrail.store import StoreError
from mqtrail.wire import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    REVIVE_GROUP,
    Perm,
    QueryNotFound,
    RecordError,
    decode_head,
    is_system_group,
    version_text,
)

from ..broker import Broker
from ..tables import Client
from ..telemetry import Histogram
from .waiting import waiting_samples

LAGS_MAX: Final = 50_000  # pairs of group and topic in one answer
QUEUES_A_PAUSE: Final = 500  # queues between two pauses


class Sample(NamedTuple):
    """A value of a metric, or a Histogram; labels in the order of the metric."""

    name: str
    labels: tuple[str, ...]
    value: float | Histogram


_STORAGE: Final = ("local", "disk")


def samples(broker: Broker, now_ms: int) -> Iterator[Sample | None]:
    """Yield all samples; None: a pause after some work without a sample.

    The broker may serve requests between two samples; each sample is then the value at its own time.
    """
    yield Sample("rocketmq_broker_permission", (), broker.config.permission)
    yield Sample("rocketmq_topic_number", (), len(broker.topics))
    yield Sample("rocketmq_consumer_group_number", (), len(broker.groups.all()))
    yield Sample("mqtrail_held_pulls", (), len(broker.held))
    yield Sample("mqtrail_access_refused_total", (), broker.access.refused)
    for topic, count in list(broker.limits.refused_sends.items()):
        yield Sample("mqtrail_throttled_sends_total", (topic,), count)
    for group, count in list(broker.limits.refused_pulls.items()):
        yield Sample("mqtrail_throttled_pulls_total", (group,), count)
    for work, (times, took_ms, cpu_ms) in list(broker.stalls.items()):
        yield Sample("mqtrail_loop_stalls_total", (work,), times)
        yield Sample("mqtrail_loop_stalled_milliseconds_total", (work,), took_ms)
        yield Sample("mqtrail_loop_stalled_cpu_milliseconds_total", (work,), cpu_ms)
    for direction, count in broker.clock_jumps.items():
        yield Sample("mqtrail_clock_jumps_total", (direction,), count)
    yield from _replication(broker)
    yield from _traffic(broker)
    yield from _connections(broker)
    yield from _lags(broker, now_ms)
    yield from _storage(broker, now_ms)
    for name, labels, value in waiting_samples(broker, now_ms):
        yield Sample(name, labels, value)


def _replication(broker: Broker) -> Iterator[Sample]:
    replicas = broker.replicas
    yield Sample("mqtrail_master", (), 0 if broker.config.is_slave else 1)
    yield Sample("mqtrail_role_changes_total", (), replicas.role_changes)
    if replicas.ledger is not None:
        state = replicas.ledger()
        yield Sample("mqtrail_ledger_term", (), state.term)
        yield Sample("mqtrail_ledger_elections_total", (), state.election_count)
        yield Sample("mqtrail_ledger_uncommitted_bytes", (), state.uncommitted_size)


def _traffic(broker: Broker) -> Iterator[Sample]:
    stats = broker.stats
    if stats is None:
        return
    for topic, (count, size) in stats.puts_by_topic().items():
        labels = (topic, _text(broker.topics.is_system(topic)))
        yield Sample("rocketmq_messages_in_total", labels, count)
        yield Sample("rocketmq_throughput_in_total", labels, size)
        if topic.startswith(DLQ_PREFIX):
            yield Sample("rocketmq_send_to_dlq_messages_total", (topic.removeprefix(DLQ_PREFIX),), count)
    for (topic, group), (count, size) in stats.gets_by_topic_group().items():
        is_system = _text(broker.topics.is_system(topic) or is_system_group(group))
        out = (topic, group, _text(topic.startswith(RETRY_PREFIX)), is_system)
        yield Sample("rocketmq_messages_out_total", out, count)
        yield Sample("rocketmq_throughput_out_total", out, size)
    yield Sample("mqtrail_pull_hits_total", (), stats.pull_hits)
    yield Sample("mqtrail_pull_misses_total", (), stats.pull_misses)


def _connections(broker: Broker) -> Iterator[Sample]:
    producers = Counter(_kind(client) for group in broker.clients.producer_groups().values() for client in group)
    for (language, version), count in producers.items():
        yield Sample("rocketmq_producer_connections", (language, version, "remoting"), count)
    for group in list(broker.clients.consumer_groups()):
        mode = group.consume_type.removeprefix("CONSUME_").lower()
        for (language, version), count in Counter(map(_kind, group.members.values())).items():
            labels = (group.name, language, version, mode, "remoting", _text(is_system_group(group.name)))
            yield Sample("rocketmq_consumer_connections", labels, count)


def _kind(client: Client) -> tuple[str, str]:
    return client.language.lower(), version_text(client.version).lower()


def _lags(broker: Broker, now_ms: int) -> Iterator[Sample | None]:
    """Lag of each group, per topic. Topics that cannot be read are omitted."""
    store, looked = broker.store, 0
    for group, topic in list(islice(broker.offsets, LAGS_MAX)):
        config = broker.topics.get(topic)
        if config is None or not config.perm & Perm.READ or group == REVIVE_GROUP:
            continue  # offsets of the revive log mean something else: see rocketmq_pop_revive_lag
        lag = ready = in_flight = 0
        oldest_ms = oldest_ready_ms = 0
        for queue_id in range(config.read_queue_nums):
            looked += 1
            if looked % QUEUES_A_PAUSE == 0:
                yield None
            end = store.max_offset(topic, queue_id)
            committed = broker.offsets.get(group, topic, queue_id)
            if committed is None or committed > end:
                continue
            committed = max(committed, store.min_offset(topic, queue_id))
            pulled = min(end, max(committed, broker.offsets.pulled(group, topic, queue_id) or 0))
            lag += end - committed
            ready += end - pulled
            in_flight += pulled - committed
            if end > committed:
                oldest_ms = _older(oldest_ms, store.store_time(topic, queue_id, committed))
            if end > pulled:
                oldest_ready_ms = _older(oldest_ready_ms, store.store_time(topic, queue_id, pulled))
        is_system = _text(broker.topics.is_system(topic) or is_system_group(group))
        labels = (group, topic, _text(topic.startswith(RETRY_PREFIX)), is_system)
        yield Sample("rocketmq_consumer_lag_messages", labels, lag)
        if oldest_ms or not lag:
            latency_ms = now_ms - oldest_ms if oldest_ms else 0
            yield Sample("rocketmq_consumer_lag_latency_milliseconds", labels, latency_ms)
        if oldest_ready_ms or not ready:
            latency_ms = now_ms - oldest_ready_ms if oldest_ready_ms else 0
            yield Sample("rocketmq_consumer_queueing_latency_milliseconds", labels, latency_ms)
        yield Sample("rocketmq_consumer_inflight_messages", labels, in_flight)
        yield Sample("rocketmq_consumer_ready_messages", labels, ready)


def _older(known_ms: int, stored_ms: int) -> int:
    """Return the earlier of two times (epoch ms); 0 or less means none."""
    return known_ms if stored_ms <= 0 else min(known_ms or stored_ms, stored_ms)


def _storage(broker: Broker, now_ms: int) -> Iterator[Sample]:
    store = broker.store
    first, end = store.min_physical_offset, store.end_offset
    yield Sample("rocketmq_storage_size_bytes", _STORAGE, max(0, end - first))
    yield Sample("rocketmq_storage_flush_behind_bytes", _STORAGE, max(0, end - store.flushed_offset))
    yield Sample("rocketmq_storage_dispatch_behind_bytes", _STORAGE, store.behind_size)
    if end > first:
        with suppress(StoreError, RecordError, QueryNotFound):  # just deleted, damaged, or not committed yet
            oldest_ms = decode_head(store.read_at(first)).store_timestamp_ms
            yield Sample("rocketmq_storage_message_reserve_time_milliseconds", _STORAGE, max(0, now_ms - oldest_ms))
    yield Sample("mqtrail_disk_ratio", (), store.disk_ratio)
    yield Sample("mqtrail_store_nodes_away", (), len(store.away_nodes) + (store.away is not None))
    yield Sample("mqtrail_store_replicas_away", (), len(store.away_replicas))
    yield Sample("mqtrail_index_damaged_total", (), store.index_damage[0])
    for topic, count in broker.own.passed.items():
        yield Sample("mqtrail_damaged_records_total", (topic,), count)


def _text(value: bool) -> str:
    return "true" if value else "false"
