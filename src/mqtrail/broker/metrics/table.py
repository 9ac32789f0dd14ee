"""The metrics: METRICS with their meanings; ABSENT, metrics of RocketMQ that are not served, with the reason.

Names are those that Prometheus reads from Apache's broker: OpenTelemetry's exporter appends the unit of an instrument
to its name unless the name contains it. Three instruments of Apache name a wrong unit; they keep name and value here,
and their meaning states the real unit.

Source: BrokerMetricsConstant, PopMetricsConstant, RemotingMetricsConstant, DefaultStoreMetricsConstant,
TieredStoreMetricsConstant and the managers beside them, apache/rocketmq 5.3.3; PrometheusMetricNameMapper,
open-telemetry/opentelemetry-java 1.29.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Metric(NamedTuple):
    """kind: counter, gauge or histogram. labels: besides the common ones. meaning: with the unit."""

    kind: str
    labels: tuple[str, ...]
    meaning: str


_LAG: Final = ("consumer_group", "topic", "is_retry", "is_system")
_STORAGE: Final = ("storage_type", "storage_medium")

METRICS: Final[Mapping[str, Metric]] = {
    "rocketmq_broker_permission": Metric("gauge", (), "bits: 4 read, 2 write"),
    "rocketmq_topic_number": Metric("gauge", (), "number of topics"),
    "rocketmq_consumer_group_number": Metric("gauge", (), "number of consumer groups"),
    "rocketmq_messages_in_total": Metric("counter", ("topic", "is_system"), "messages stored since the start"),
    "rocketmq_throughput_in_total": Metric("counter", ("topic", "is_system"), "bytes of the records of these messages"),
    "rocketmq_messages_out_total": Metric(
        "counter",
        ("topic", "consumer_group", "is_retry", "is_system"),
        "messages delivered to consumers since the start",
    ),
    "rocketmq_throughput_out_total": Metric(
        "counter", ("topic", "consumer_group", "is_retry", "is_system"), "bytes of the records of these messages"
    ),
    "rocketmq_send_to_dlq_messages_total": Metric(
        "counter", ("consumer_group",), "messages that became dead letters since the start"
    ),
    "rocketmq_producer_connections": Metric(
        "gauge", ("language", "version", "protocol_type"), "connected producers, counted once per group"
    ),
    "rocketmq_consumer_connections": Metric(
        "gauge",
        ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
        "connected consumers",
    ),
    "rocketmq_consumer_lag_messages": Metric("gauge", _LAG, "messages that the group has not acknowledged"),
    "rocketmq_consumer_lag_latency_milliseconds": Metric("gauge", _LAG, "ms since the oldest of them was stored"),
    "rocketmq_consumer_inflight_messages": Metric(
        "gauge", _LAG, "messages delivered to the group and not acknowledged"
    ),
    "rocketmq_consumer_queueing_latency_milliseconds": Metric(
        "gauge", _LAG, "ms since the oldest undelivered message was stored"
    ),
    "rocketmq_consumer_ready_messages": Metric("gauge", _LAG, "messages ready for delivery to the group"),
    "rocketmq_storage_size_bytes": Metric(
        "gauge", _STORAGE, "bytes from the first to the last message of the CommitLog"
    ),
    "rocketmq_storage_flush_behind_bytes": Metric("gauge", _STORAGE, "bytes stored and not flushed"),
    "rocketmq_storage_dispatch_behind_bytes": Metric("gauge", _STORAGE, "bytes stored and not indexed"),
    "rocketmq_storage_message_reserve_time_milliseconds": Metric(
        "gauge", _STORAGE, "ms since the oldest message was stored"
    ),
    "rocketmq_timer_enqueue_lag": Metric("gauge", _STORAGE, "timer messages not yet in the timer wheel"),
    "rocketmq_timer_enqueue_latency_milliseconds": Metric(
        "gauge", _STORAGE, "ms since the oldest of them was stored; 0 if there is none"
    ),
    "rocketmq_timer_dequeue_lag": Metric("gauge", _STORAGE, "timer messages in the timer wheel, without recalled ones"),
    "rocketmq_timer_dequeue_latency_milliseconds": Metric(
        "gauge", _STORAGE, "whole seconds, despite the name: delay of the next second to deliver"
    ),
    "rocketmq_timing_messages": Metric(
        "gauge", ("topic", *_STORAGE), "timer messages waiting for delivery; approximate after a crash"
    ),
    "rocketmq_timer_enqueue_total": Metric(
        "counter",
        ("topic", *_STORAGE),
        "timer messages and recalls put into the timer wheel since the start; counted again every two days of waiting",
    ),
    "rocketmq_timer_dequeue_total": Metric(
        "counter",
        ("topic", *_STORAGE),
        "timer messages that left the timer wheel since the start, without recalled ones",
    ),
    "rocketmq_timer_message_snapshot": Metric(
        "gauge",
        ("timer_bound_s", *_STORAGE),
        "timer messages due within this bound but not within the previous one: 5 s to 24 h",
    ),
    "rocketmq_delay_message_latency_seconds": Metric(
        "histogram",
        ("topic", *_STORAGE),
        "whole seconds from the birth of a timer message to its due time",
    ),
    "rocketmq_half_messages": Metric(
        "gauge",
        ("topic",),
        "open half messages; no sample after a start with open ones until they have been checked",
    ),
    "rocketmq_commit_messages_total": Metric("counter", ("topic",), "half messages committed since the start"),
    "rocketmq_rollback_messages_total": Metric("counter", ("topic",), "half messages rolled back since the start"),
    "rocketmq_finish_message_latency_milliseconds": Metric(
        "histogram", ("topic",), "whole seconds, despite the name: from the birth of a half message to its commit"
    ),
    "rocketmq_pop_revive_in_message_total": Metric(
        "counter",
        ("consumer_group", "topic", "revive_message_type", "put_status"),
        "check points (CK) and acks (ACK) of popped messages stored since the start",
    ),
    "rocketmq_pop_revive_out_message_total": Metric(
        "counter",
        ("consumer_group", "topic", "queue_id", "revive_message_type"),
        "check points and acks read from the revive log since the start",
    ),
    "rocketmq_pop_revive_retry_messages_total": Metric(
        "counter",
        ("consumer_group", "topic", "put_status"),
        "unacknowledged popped messages moved to a retry topic since the start",
    ),
    "rocketmq_pop_revive_lag_milliseconds": Metric(
        "gauge", ("queue_id",), "number of records, despite the name: unprocessed records of the revive log"
    ),
    "rocketmq_pop_revive_latency_milliseconds": Metric(
        "gauge",
        ("queue_id",),
        "ms since the oldest unprocessed record was written to the revive log; 0 if there is none",
    ),
    "mqtrail_held_pulls": Metric("gauge", (), "held pulls"),
    "mqtrail_pull_hits_total": Metric("counter", (), "pulls that found messages"),
    "mqtrail_pull_misses_total": Metric("counter", (), "pulls that found no message"),
    "mqtrail_disk_ratio": Metric("gauge", (), "used share of the disk, 0 to 1"),
    "mqtrail_store_nodes_away": Metric("gauge", (), "databases of a store on tables that do not answer"),
    "mqtrail_store_replicas_away": Metric("gauge", (), "replicas of these databases that cannot be read"),
    "mqtrail_index_damaged_total": Metric("counter", (), "index files found damaged since the start, and rebuilt"),
    "mqtrail_damaged_records_total": Metric(
        "counter", ("topic",), "damaged records of the broker's own queues that were passed since the start"
    ),
    "mqtrail_door_mails_total": Metric(
        "counter",
        ("outcome",),
        "mails that pmq's clients asked the HTTP door for; outcome: sent, failed, repeated (not sent again) or dropped",
    ),
    "mqtrail_loop_stalls_total": Metric(
        "counter",
        ("work",),
        "times that work blocked the event loop for 50 ms or more; work: request code, tick or job",
    ),
    "mqtrail_loop_stalled_milliseconds_total": Metric("counter", ("work",), "total ms of these"),
    "mqtrail_loop_stalled_cpu_milliseconds_total": Metric(
        "counter",
        ("work",),
        "ms of these in which the loop's thread used the CPU; in the rest it waited for a disk, another thread or, on "
        "a busy machine, the CPU",
    ),
    "mqtrail_clock_jumps_total": Metric(
        "counter",
        ("direction",),
        "number of times that the machine's clock was set by more than a second: forward, back",
    ),
    "mqtrail_master": Metric("gauge", (), "1: the broker is master; 0: it is a slave"),
    "mqtrail_role_changes_total": Metric(
        "counter", (), "changes between master and slave since the start, in controller mode and DLedger groups"
    ),
    "mqtrail_ledger_term": Metric("gauge", (), "term of the member of a DLedger group"),
    "mqtrail_ledger_elections_total": Metric(
        "counter", (), "times since the start that this member of a DLedger group was elected"
    ),
    "mqtrail_ledger_uncommitted_bytes": Metric(
        "gauge", (), "bytes at the end of the log of a DLedger member that it does not know to be committed"
    ),
    "mqtrail_access_refused_total": Metric("counter", (), "requests rejected by access control"),
    "mqtrail_throttled_sends_total": Metric(
        "counter", ("topic",), "sends rejected since the start because of the topic's rate"
    ),
    "mqtrail_throttled_pulls_total": Metric(
        "counter", ("consumer_group",), "pulls and pops rejected since the start because of the group's rate"
    ),
}
"""Name -> metric."""

_NO_CLOCK: Final = "not measured: the request creates it in code that has no clock"
_NO_BUFFER: Final = "check points are written to the revive log immediately, without a buffer"
_NO_ROCKSDB: Final = "ConsumeQueues are files; there is no RocksDB"
_NO_TIERS: Final = "there is no tiered storage"

ABSENT: Final[Mapping[str, str]] = {
    "rocketmq_processor_watermark": "there are no queues between the socket and the handlers",
    "rocketmq_message_size": "a histogram of every message costs too much: divide throughput by messages",
    "rocketmq_rpc_latency_milliseconds": "costs too much; the trace of clients records it for each message",
    "rocketmq_topic_create_execution_time_milliseconds": _NO_CLOCK,
    "rocketmq_consumer_group_create_execution_time_milliseconds": _NO_CLOCK,
    "rocketmq_pop_buffer_scan_time_consume_milliseconds": _NO_BUFFER,
    "rocketmq_pop_offset_buffer_size": "a pop commits the offset of its group before the answer, without a buffer",
    "rocketmq_pop_checkpoint_buffer_size": _NO_BUFFER,
    "rocketmq_rocksdb_bytes_written": _NO_ROCKSDB,
    "rocketmq_rocksdb_bytes_read": _NO_ROCKSDB,
    "rocketmq_rocksdb_times_written_self": _NO_ROCKSDB,
    "rocketmq_rocksdb_times_written_other": _NO_ROCKSDB,
    "rocketmq_rocksdb_rate_cache_hit": _NO_ROCKSDB,
    "rocketmq_rocksdb_times_compressed": _NO_ROCKSDB,
    "rocketmq_rocksdb_read_amplification_bytes": _NO_ROCKSDB,
    "rocketmq_rocksdb_times_read": _NO_ROCKSDB,
    "rocketmq_tiered_store_api_latency_milliseconds": _NO_TIERS,
    "rocketmq_tiered_store_provider_rpc_latency_milliseconds": _NO_TIERS,
    "rocketmq_tiered_store_provider_upload_bytes": _NO_TIERS,
    "rocketmq_tiered_store_provider_download_bytes": _NO_TIERS,
    "rocketmq_tiered_store_dispatch_behind": _NO_TIERS,
    "rocketmq_tiered_store_dispatch_latency_seconds": _NO_TIERS,
    "rocketmq_tiered_store_messages_dispatch_total": _NO_TIERS,
    "rocketmq_tiered_store_messages_out_total": _NO_TIERS,
    "rocketmq_tiered_store_get_message_fallback_total": _NO_TIERS,
    "rocketmq_tiered_store_read_ahead_cache_count": _NO_TIERS,
    "rocketmq_tiered_store_read_ahead_cache_bytes": _NO_TIERS,
    "rocketmq_tiered_store_read_ahead_cache_access_total": _NO_TIERS,
    "rocketmq_tiered_store_read_ahead_cache_hit_total": _NO_TIERS,
}
"""Name of a metric of RocketMQ -> why METRICS does not have it."""
