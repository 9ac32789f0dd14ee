"""What Apache's broker 5.3.3 declares: instrument, kind, unit, labels besides cluster, node_type and node_id.

Facts of BrokerMetricsManager, PopMetricsManager, RemotingMetricsManager, DefaultStoreMetricsManager,
RocksDBStoreMetricsManager and TieredStoreMetricsManager. The names as read were compared with what a broker of 5.3.3
answered on its port after sends, transactions, timers and pops.
"""

from typing import NamedTuple

_LAG = "consumer_group topic is_retry is_system"
_DISK = "storage_type storage_medium"
_FILES = f"topic queue_id file_type {_DISK}"
_UNITS = {"ms": "milliseconds"}  # as the exporter spells them

ROWS = f"""
rocketmq_processor_watermark gauge - processor
rocketmq_broker_permission gauge -
rocketmq_topic_number gauge -
rocketmq_consumer_group_number gauge -
rocketmq_messages_in_total counter - topic message_type is_system
rocketmq_messages_out_total counter - {_LAG}
rocketmq_throughput_in_total counter - topic message_type is_system
rocketmq_throughput_out_total counter - {_LAG}
rocketmq_message_size histogram - topic message_type is_system
rocketmq_topic_create_execution_time histogram milliseconds invocation_status is_system
rocketmq_consumer_group_create_execution_time histogram milliseconds invocation_status
rocketmq_producer_connections gauge - language version protocol_type
rocketmq_consumer_connections gauge - consumer_group language version consume_mode protocol_type is_system
rocketmq_consumer_lag_messages gauge - {_LAG}
rocketmq_consumer_lag_latency gauge milliseconds {_LAG}
rocketmq_consumer_inflight_messages gauge - {_LAG}
rocketmq_consumer_queueing_latency gauge milliseconds {_LAG}
rocketmq_consumer_ready_messages gauge - {_LAG}
rocketmq_send_to_dlq_messages_total counter - consumer_group topic is_system
rocketmq_half_messages gauge - topic
rocketmq_commit_messages_total counter - topic
rocketmq_rollback_messages_total counter - topic
rocketmq_finish_message_latency histogram ms topic
rocketmq_pop_buffer_scan_time_consume histogram milliseconds
rocketmq_pop_revive_in_message_total counter - consumer_group topic revive_message_type put_status
rocketmq_pop_revive_out_message_total counter - consumer_group topic queue_id revive_message_type
rocketmq_pop_revive_retry_messages_total counter - consumer_group topic put_status
rocketmq_pop_revive_lag gauge milliseconds queue_id
rocketmq_pop_revive_latency gauge milliseconds queue_id
rocketmq_pop_offset_buffer_size gauge -
rocketmq_pop_checkpoint_buffer_size gauge -
rocketmq_rpc_latency histogram milliseconds protocol_type request_code response_code is_long_polling result
rocketmq_storage_size gauge bytes {_DISK}
rocketmq_storage_flush_behind_bytes gauge bytes {_DISK}
rocketmq_storage_dispatch_behind_bytes gauge bytes {_DISK}
rocketmq_storage_message_reserve_time gauge milliseconds {_DISK}
rocketmq_timer_enqueue_lag gauge - {_DISK}
rocketmq_timer_enqueue_latency gauge milliseconds {_DISK}
rocketmq_timer_dequeue_lag gauge - {_DISK}
rocketmq_timer_dequeue_latency gauge milliseconds {_DISK}
rocketmq_timing_messages gauge - topic {_DISK}
rocketmq_timer_enqueue_total counter - topic {_DISK}
rocketmq_timer_dequeue_total counter - topic {_DISK}
rocketmq_timer_message_snapshot gauge - timer_bound_s {_DISK}
rocketmq_delay_message_latency histogram seconds topic {_DISK}
rocketmq_rocksdb_bytes_written gauge - type {_DISK}
rocketmq_rocksdb_bytes_read gauge - type {_DISK}
rocketmq_rocksdb_times_written_self gauge - type {_DISK}
rocketmq_rocksdb_times_written_other gauge - type {_DISK}
rocketmq_rocksdb_rate_cache_hit gauge - type {_DISK}
rocketmq_rocksdb_times_compressed gauge - type {_DISK}
rocketmq_rocksdb_read_amplification_bytes gauge - type {_DISK}
rocketmq_rocksdb_times_read gauge - type {_DISK}
rocketmq_tiered_store_api_latency histogram milliseconds
rocketmq_tiered_store_provider_rpc_latency histogram milliseconds
rocketmq_tiered_store_provider_upload_bytes histogram bytes
rocketmq_tiered_store_provider_download_bytes histogram bytes
rocketmq_tiered_store_dispatch_behind gauge - {_FILES}
rocketmq_tiered_store_dispatch_latency gauge seconds {_FILES}
rocketmq_tiered_store_messages_dispatch_total counter -
rocketmq_tiered_store_messages_out_total counter -
rocketmq_tiered_store_get_message_fallback_total counter -
rocketmq_tiered_store_read_ahead_cache_count gauge - {_DISK}
rocketmq_tiered_store_read_ahead_cache_bytes gauge bytes {_DISK}
rocketmq_tiered_store_read_ahead_cache_access_total counter -
rocketmq_tiered_store_read_ahead_cache_hit_total counter -
"""


class ApacheMetric(NamedTuple):
    """kind: counter, gauge or histogram."""

    kind: str
    labels: frozenset[str]


def _as_read(instrument: str, unit: str) -> str:
    """Return the name that a Prometheus reads (PrometheusMetricNameMapper of opentelemetry-java 1.29)."""
    word = _UNITS.get(unit, unit)
    return instrument if unit == "-" or word in instrument else f"{instrument}_{word}"


def apache_metrics() -> dict[str, ApacheMetric]:
    """Return name as read -> what it is."""
    found = {}
    for row in ROWS.split("\n"):
        if row:
            instrument, kind, unit, *labels = row.split()
            found[_as_read(instrument, unit)] = ApacheMetric(kind, frozenset(labels))
    return found
