"""Latency histograms and the index of keys: tables for charts and look-ups."""

from __future__ import annotations

from typing import Final

from .otel_context import otel_trace_id
from .results import KEY_INDEX, LATENCY_MINUTE
from .stages import Stage

BUCKETS_A_DOUBLING: Final = 8
"""Buckets of LATENCY_MINUTE from one duration to its double: bucket n begins at 2 ** (n / 8) - 1 ms."""
_SEGMENTS = (
    # segment, milliseconds, when it began: columns of VERDICTS
    ("to_stored", "to_stored_ms", "start_ms"),
    ("delay", "delay_ms", "start_ms + to_stored_ms"),
    ("to_delivered", "to_delivered_ms", "visible_ms"),
    ("retry", "retry_ms", "first_delivered_ms"),
    ("handler", "handler_ms", "success_start_ms"),
    ("total", "total_ms", "start_ms"),
)


def companion_stages() -> list[Stage]:
    """latency_minute and key_index from trajectories and verdicts (columns of LATENCY_MINUTE and KEY_INDEX)."""
    return [
        Stage(
            "latency_counts", latency_counts("trajectories", "verdicts"), ("verdicts", "trajectories"), gathered=True
        ),
        Stage("latency_minute", _LATENCY_MINUTE, ("latency_counts",)),
        Stage("key_index", f"SELECT {KEY_INDEX.typed()} FROM ({key_tokens('trajectories')})", ("trajectories",)),
    ]


def latency_counts(of_trajectories: str, of_verdicts: str) -> str:
    """SQL: message counts per bucket from current trajectories and verdicts, given by the names of the relations.

    Each row is joined with the names of all segments, so that one scan is enough; missing segments are removed."""
    names = ", ".join(f"('{segment}')" for segment, _, _ in (*_SEGMENTS, ("send", "", "")))
    ms = " ".join(f"WHEN '{segment}' THEN {ms}" for segment, ms, _ in _SEGMENTS)
    began = " ".join(f"WHEN '{segment}' THEN {began}" for segment, _, began in _SEGMENTS)
    bucket = (
        f"CASE WHEN ms < 0 THEN cast(-1 AS bigint) ELSE cast(floor(log2(ms + 1) * {BUCKETS_A_DOUBLING}) AS bigint) END"
    )
    minute = "cast(floor(began_ms / 60000) AS bigint) * 60000"
    verdicts = ", ".join(
        f"v.{name} AS {name}"
        for name in (
            "cluster",
            "publish_hour",
            "topic",
            "group_name",
            "visible_ms",
            "first_delivered_ms",
            "success_start_ms",
            "to_stored_ms",
            "delay_ms",
            "to_delivered_ms",
            "retry_ms",
            "handler_ms",
            "total_ms",
        )
    )
    return f"""
SELECT cluster, publish_hour, {minute} AS minute_ms, topic, broker_name, group_name, segment, {bucket} AS bucket,
  count(*) AS message_count
FROM (SELECT cluster, publish_hour, topic, broker_name, group_name, segment,
    CASE segment WHEN 'send' THEN send_ms {ms} END AS ms, CASE segment WHEN 'send' THEN send_start_ms {began} END AS
        began_ms
  FROM (SELECT {verdicts}, t.broker_name AS broker_name, v.done_ms - v.total_ms AS start_ms,
      NULL::bigint AS send_ms, NULL::bigint AS send_start_ms
    FROM {of_verdicts} v JOIN {of_trajectories} t ON v.cluster = t.cluster AND v.msg_id = t.msg_id
    WHERE v.state = 'CONSUMED'
    UNION ALL
    SELECT cluster, publish_hour, topic, '', {", ".join(["NULL::bigint"] * 9)}, broker_name, NULL, send_ms,
        send_start_ms
    FROM {of_trajectories}) AS timed
    CROSS JOIN (SELECT col0 AS segment FROM (VALUES {names}) AS names(col0)) AS segments
  ) AS measured
WHERE ms IS NOT NULL AND began_ms IS NOT NULL
GROUP BY cluster, publish_hour, {minute}, topic, broker_name, group_name, segment, {bucket}"""


_BUCKET = "cluster, publish_hour, minute_ms, topic, broker_name, group_name, segment, bucket"
_LATENCY_MINUTE = f"""
SELECT {LATENCY_MINUTE.typed()} FROM (SELECT {_BUCKET}, sum(message_count) AS message_count FROM latency_counts
  GROUP BY {_BUCKET}) AS summed"""


def key_tokens(of_trajectories: str) -> str:
    """SQL: tokens of KEYS in current trajectories, their batches' and OpenTelemetry's ids: columns of KEY_INDEX.

    of_trajectories: the relation's name."""
    return f"""
SELECT DISTINCT cluster, publish_hour, key_token, msg_id, topic, 1 AS row_count FROM (
  SELECT cluster, publish_hour, unnest(string_split(keys, ' ')) AS key_token, msg_id, topic FROM {of_trajectories}
  WHERE keys <> ''
  UNION ALL SELECT cluster, publish_hour, batch_id, msg_id, topic FROM {of_trajectories}
  UNION ALL SELECT cluster, publish_hour, {otel_trace_id("traceparent")}, msg_id, topic FROM {of_trajectories}
) AS tokens
WHERE key_token <> ''"""
