"""Lag: how far groups are behind, in messages and in time, as of one sample.

    offset_states, range_states, subscription_states → lag_points ─┬→ lag_spans: when their copies were stored
                                                                   └→ lag_copies, from message_meta of then → lag

`queue_spans` is what finds a copy among all that were ever stored. Its rows are made when messages are read, and become
coarser with age. They select files of message_meta; the time of the lag is that of the copy itself.
"""

from __future__ import annotations

from mqtrail.wire import RETRY_PREFIX

from .kinds import retry_group, starts_with
from .results import LAG, QUEUE_SPANS
from .samples import offset_states, question_times, range_states, subscription_states
from .stages import Stage

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000


def queue_spans_sql(message_meta: str) -> str:
    """SQL: rows of QUEUE_SPANS of rows of message_meta."""
    columns = {
        "first_offset": "queue_offset",
        "last_offset": "queue_offset",
        "first_ms": "store_ms",
        "last_ms": "store_ms",
    }
    return _spans(message_meta, columns, f"store_ms // {_MINUTE_MS}")


def folded_queue_spans_sql(spans: str, kept_from_ms: int = 0) -> str:
    """SQL: the same spans in fewer rows: one a queue and minute in the last hour, one a queue and hour before it.

    kept_from_ms: messages that were stored earlier have expired.
    """
    newest = f"(SELECT max(first_ms) FROM {spans} AS every)"
    window = (
        f"CASE WHEN first_ms > {newest} - {_HOUR_MS} THEN first_ms // {_MINUTE_MS} ELSE -first_ms // {_HOUR_MS} END"
    )
    return _spans(f"(SELECT * FROM {spans} AS kept WHERE last_ms >= {kept_from_ms})", {}, window)


def _spans(source: str, columns: dict[str, str], window: str) -> str:
    names = {name: columns.get(name, name) for name in ("first_offset", "last_offset", "first_ms", "last_ms")}
    found = {name: f"{'min' if name.startswith('first') else 'max'}({column})" for name, column in names.items()}
    queue = "cluster, topic, broker_name, queue_id"
    return f"SELECT {QUEUE_SPANS.typed(found)} FROM {source} AS of_queues GROUP BY {queue}, {window}"


def lag_stages(sampled_ms: int | None = None) -> list[Stage]:
    """lag_points, lag_spans, lag_copies and lag (columns of LAG) of one sample; None: of every one recorded in full.

    A queue's range is the latest one at or before the sample of the offset. An offset past its end makes the lag
    unknown: the queue lost messages or was recreated, or its range could not be sampled. A group without an offset in a
    queue of a topic to which it subscribes will start at an unknown place, in its retry topic at the first message. Of
    message_meta, the rows that lag_spans names are enough.
    """
    if sampled_ms is None:
        sources, first = ("group_offsets", "queue_ranges", "subscriptions"), []
    else:
        sources = ("offset_states", "range_states", "subscription_states")
        first = [
            question_times(sampled_ms, sampled_ms),
            offset_states(sampled_ms, sampled_ms),
            range_states(sampled_ms),
            subscription_states(sampled_ms),
        ]
    return [
        *first,
        Stage("lag_points", _lag_points(*sources, sampled_ms), sources),
        Stage("lag_spans", _LAG_SPANS, ("queue_spans", "lag_points")),
        Stage("lag_copies", _LAG_COPIES, ("message_meta", "lag_points")),
        Stage("lag", _LAG, ("lag_points", "lag_copies")),
    ]


def _lag_points(offsets: str, ranges: str, subscriptions: str, sampled_ms: int | None) -> str:
    """The offsets, with the range of their queue and the offset of the first kept message that was not read.

    consumer_offset NULL: the group has none in the queue. next_offset NULL: it is not known where it will start.
    """
    sampled = "change = ''" if sampled_ms is None else f"sampled_ms = {sampled_ms}"
    same_queue = " AND ".join(f"g.{name} = q.{name}" for name in ("cluster", "topic", "broker_name", "queue_id"))
    return f"""
WITH known AS (SELECT * FROM {offsets} WHERE {sampled}), kept AS (SELECT * FROM {ranges} WHERE {sampled}),
readers AS (SELECT DISTINCT cluster, sampled_ms, group_name, topic FROM {subscriptions}
    WHERE {sampled} AND NOT {starts_with("topic", RETRY_PREFIX)}
  UNION SELECT k.cluster, k.sampled_ms, g.group_name, k.topic
  FROM (SELECT DISTINCT cluster, sampled_ms, topic, {retry_group("topic")} AS group_name FROM kept
    WHERE {starts_with("topic", RETRY_PREFIX)}) k
  JOIN (SELECT cluster, sampled_ms, group_name FROM known UNION
    SELECT cluster, sampled_ms, group_name FROM {subscriptions} WHERE {sampled}) g
    ON k.cluster = g.cluster AND k.sampled_ms = g.sampled_ms AND k.group_name = g.group_name)
SELECT *, CASE WHEN consumer_offset IS NOT NULL THEN greatest(consumer_offset, min_offset)
    WHEN {starts_with("topic", RETRY_PREFIX)} OR min_offset = max_offset THEN min_offset END AS next_offset
FROM (
  SELECT g.cluster, g.sampled_ms, g.group_name, g.topic, g.broker_name, g.queue_id,
    max(g.consumer_offset) AS consumer_offset, max_by(q.min_offset, q.sampled_ms) AS min_offset,
    max_by(q.max_offset, q.sampled_ms) AS max_offset
  FROM known g JOIN kept q ON {same_queue}
  WHERE q.sampled_ms <= g.sampled_ms
  GROUP BY ALL
  UNION ALL
  SELECT r.cluster, r.sampled_ms, r.group_name, r.topic, q.broker_name, q.queue_id, NULL, q.min_offset, q.max_offset
  FROM readers r JOIN kept q ON r.cluster = q.cluster AND r.sampled_ms = q.sampled_ms AND r.topic = q.topic
  ANTI JOIN known g ON r.cluster = g.cluster AND r.sampled_ms = g.sampled_ms AND r.group_name = g.group_name
    AND r.topic = g.topic AND q.broker_name = g.broker_name AND q.queue_id = g.queue_id) AS points"""


# Where the copies of first messages that a group has not read can be.
_LAG_SPANS = """
SELECT DISTINCT s.first_ms, s.last_ms FROM queue_spans s JOIN lag_points p ON s.cluster = p.cluster
  AND s.topic = p.topic AND s.broker_name = p.broker_name AND s.queue_id = p.queue_id
  AND s.first_offset <= p.next_offset AND s.last_offset >= p.next_offset
WHERE p.max_offset > p.next_offset"""

# In a recreated queue an offset has several copies: the latest one is stored now.
_LAG_COPIES = """
SELECT m.cluster, m.broker_name, m.topic, m.queue_id, m.queue_offset, max(m.store_ms) AS store_ms
FROM message_meta m SEMI JOIN lag_points p ON m.cluster = p.cluster AND m.broker_name = p.broker_name
  AND m.topic = p.topic AND m.queue_id = p.queue_id AND m.queue_offset = p.next_offset
GROUP BY ALL"""

# A group whose offset is past the end of its queue has a next_offset past it, too.
_LAG = f"""
SELECT {LAG.typed()} FROM (
  SELECT p.*, CASE WHEN p.next_offset <= p.max_offset THEN p.max_offset - p.next_offset END AS lag_count,
    CASE WHEN p.next_offset > p.max_offset THEN NULL WHEN p.next_offset = p.max_offset THEN 0
      ELSE p.sampled_ms - m.store_ms END AS lag_ms
  FROM lag_points p LEFT JOIN (SELECT cluster, broker_name, topic, queue_id, queue_offset, max(store_ms) AS store_ms
    FROM lag_copies GROUP BY ALL) m
  ON p.cluster = m.cluster AND p.broker_name = m.broker_name AND p.topic = m.topic AND p.queue_id = m.queue_id
    AND p.next_offset = m.queue_offset) AS lags"""
