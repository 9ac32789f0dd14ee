"""Latency histograms, the index of keys, and lag: tables for charts and look-ups."""

from __future__ import annotations

from .results import KEY_INDEX, LAG, LATENCY_MINUTE
from .samples import offset_states, question_times, range_states
from .stages import Stage

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
    bucket = "CASE WHEN ms < 0 THEN cast(-1 AS bigint) ELSE cast(floor(log2(ms + 1) * 8) AS bigint) END"
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
    """SQL: the tokens of KEYS in current trajectories, given by the relation's name: columns of KEY_INDEX."""
    return f"""
SELECT DISTINCT cluster, publish_hour, key_token, msg_id, topic, 1 AS row_count FROM (
  SELECT cluster, publish_hour, unnest(string_split(keys, ' ')) AS key_token, msg_id, topic FROM {of_trajectories}
  WHERE keys <> '') AS tokens WHERE key_token <> ''"""


def lag_stages(sampled_ms: int | None = None) -> list[Stage]:
    """lag_points, lag_copies and lag (columns of LAG) of one sample; None: of all samples that are recorded in full.

    The range of a queue is the latest one at or before the sample of the offset.
    """
    if sampled_ms is None:
        sources, first = ("group_offsets", "queue_ranges"), []
    else:
        sources = ("offset_states", "range_states")
        first = [
            question_times(sampled_ms, sampled_ms),
            offset_states(sampled_ms, sampled_ms),
            range_states(sampled_ms),
        ]
    return [
        *first,
        Stage("lag_points", _lag_points(*sources, sampled_ms), sources),
        Stage("lag_copies", _LAG_COPIES, ("message_meta", "lag_points"), gathered=True),
        Stage("lag", _LAG, ("lag_points", "lag_copies")),
    ]


def _lag_points(offsets: str, ranges: str, sampled_ms: int | None) -> str:
    """The offsets, with the range of their queue and the offset of the first kept message that was not read."""
    sampled = "change = ''" if sampled_ms is None else f"sampled_ms = {sampled_ms}"
    return f"""
SELECT *, greatest(consumer_offset, min_offset) AS next_offset FROM (
  SELECT g.cluster, g.sampled_ms, g.group_name, g.topic, g.broker_name, g.queue_id,
    max(g.consumer_offset) AS consumer_offset, max_by(q.min_offset, q.sampled_ms) AS min_offset,
    max_by(q.max_offset, q.sampled_ms) AS max_offset
  FROM (SELECT * FROM {offsets} WHERE {sampled}) g JOIN (SELECT * FROM {ranges} WHERE {sampled}) q
    ON g.cluster = q.cluster AND g.broker_name = q.broker_name AND g.topic = q.topic AND g.queue_id = q.queue_id
    AND q.sampled_ms <= g.sampled_ms
  GROUP BY ALL) AS ranges"""


_LAG_COPIES = """
SELECT m.cluster, m.broker_name, m.topic, m.queue_id, m.queue_offset, min(m.store_ms) AS store_ms
FROM message_meta m SEMI JOIN lag_points p ON m.cluster = p.cluster AND m.broker_name = p.broker_name
  AND m.topic = p.topic AND m.queue_id = p.queue_id AND m.queue_offset = p.next_offset
GROUP BY ALL"""

_LAG = f"""
SELECT {LAG.typed()} FROM (
  SELECT p.*, greatest(p.max_offset - p.next_offset, 0) AS lag_count,
    CASE WHEN p.max_offset <= p.consumer_offset THEN 0 ELSE p.sampled_ms - m.store_ms END AS lag_ms
  FROM lag_points p LEFT JOIN (SELECT cluster, broker_name, topic, queue_id, queue_offset, min(store_ms) AS store_ms
    FROM lag_copies GROUP BY ALL) m
  ON p.cluster = m.cluster AND p.broker_name = m.broker_name AND p.topic = m.topic AND p.queue_id = m.queue_id
    AND p.next_offset = m.queue_offset) AS lags"""
