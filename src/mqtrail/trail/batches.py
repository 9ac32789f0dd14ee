"""Batches: consumers and brokers record the batch's id, producers the id of each message. These stages join them.

A stored copy of a batch item has its position and both ids: in its raw property text the first UNIQ_KEY is its own, the
last one the batch's. A row with a batch's id is joined to its item by the first of these rules that applies:

1. by position: a SubResult of mqtrail's client, a broker's record, a retry copy that names its original;
2. by the request of such SubResults, if the request has as many deliveries as results: both are in the same order;
3. by KEYS, if no other item of the batch has the same.

The remaining rows belong to the batch as a whole (`carriers`). All its items are consumed if the number of successful
deliveries equals the number of items; if it is lower, the consumed items are unknown.
Source: MessageDecoder and CommitLog (batch properties), apache/rocketmq; docs/design/verdicts.md, "Batches".
"""

from __future__ import annotations

from .attempts import merge_sql, with_requests_sql
from .results import ATTEMPTS
from .stages import Stage

_BY_ID = ("cluster", "msg_id")


def batch_stages(until_ms: int | None, batches: bool) -> list[Stage]:
    """attempts → resolved (columns of ATTEMPTS, merged, msg_id the message's own) and carriers.

    until_ms: attempts that begin later are excluded. batches=False: no stored copy has a batch id, so every msg_id is
    the message's own.
    """
    known = "true" if until_ms is None else f"coalesce(start_ms, end_ms, 0) <= {until_ms}"
    by_id = Stage("attempts_by_id", f"SELECT * FROM attempts WHERE {known}", ("attempts",), partition_by=_BY_ID)
    if not batches:
        return [
            by_id,
            Stage("resolved", _merged(by_id), (by_id.name,)),
            Stage("carriers", f"{_NO_CARRIERS} FROM resolved WHERE false", ("resolved",)),
        ]
    return [
        by_id,
        Stage("merged", _merged(by_id), (by_id.name,)),
        Stage("batch_items", _ITEMS, ("merged",), partition_by=("cluster", "batch_id")),
        Stage("batch_sizes", _SIZES, ("batch_items",)),
        Stage("batch_rows", _ROWS, ("merged", "batch_sizes")),
        Stage("batch_copies", _COPIES, ("batch_rows", "batch_items")),
        Stage("batch_places", _PLACES, ("batch_items", "batch_copies")),
        Stage("batch_results", _RESULTS, ("batch_rows", "batch_places")),
        Stage("batch_handed", _HANDED, ("batch_rows", "batch_results", "batch_items")),
        Stage("batch_found", _FOUND, ("batch_copies", "batch_results", "batch_handed"), partition_by=_BY_ID),
        Stage("batch_carriers", _BATCH_CARRIERS, ("batch_items", "batch_sizes", "batch_handed"), partition_by=_BY_ID),
        Stage("resolved", _RESOLVED, ("merged", "batch_sizes", "batch_found")),
        Stage("carriers", _CARRIERS, ("batch_carriers",)),
    ]


def _merged(by_id: Stage) -> str:
    return with_requests_sql(f"({merge_sql(by_id.name)}) AS merged_rows")


_NO_CARRIERS = """
SELECT cluster, msg_id, group_name, 0 AS item_count, 0 AS handed_count, 0 AS succeeded_count, start_ms, end_ms"""

_ITEMS = """
SELECT DISTINCT cluster, publish_hour, batch_id, msg_id AS own_id, broker_name, queue_id, queue_offset,
    offset_msg_id, keys
FROM merged WHERE kind = 'STORED' AND batch_id <> ''"""

_SIZES = """
SELECT cluster, batch_id, count(*) AS item_count, max(publish_hour) AS publish_hour
FROM (SELECT DISTINCT cluster, batch_id, own_id, publish_hour FROM batch_items) AS items GROUP BY cluster, batch_id"""

_ROWS = """
SELECT m.* FROM merged m JOIN batch_sizes s ON m.cluster = s.cluster AND m.msg_id = s.batch_id"""

_BY_KEYS = """(SELECT cluster, batch_id, keys, min(own_id) AS own_id FROM batch_items WHERE keys <> ''
  GROUP BY cluster, batch_id, keys HAVING min(own_id) = max(own_id)) k
  ON r.cluster = k.cluster AND r.msg_id = k.batch_id AND r.keys = k.keys"""

_COPIES = f"""
SELECT r.*, coalesce(o.own_id, p.own_id, k.own_id, '') AS own_id FROM batch_rows r
LEFT JOIN (SELECT cluster, batch_id, offset_msg_id, min(own_id) AS own_id FROM batch_items WHERE offset_msg_id <> ''
  GROUP BY cluster, batch_id, offset_msg_id) o
  ON r.cluster = o.cluster AND r.msg_id = o.batch_id AND r.origin_msg_id = o.offset_msg_id
LEFT JOIN (SELECT cluster, batch_id, broker_name, queue_id, queue_offset, min(own_id) AS own_id FROM batch_items
  GROUP BY cluster, batch_id, broker_name, queue_id, queue_offset) p
  ON r.cluster = p.cluster AND r.msg_id = p.batch_id AND r.broker_name = p.broker_name AND r.queue_id = p.queue_id
  AND r.queue_offset = p.queue_offset AND r.stored_kind IN ('NORMAL', 'BATCH')
LEFT JOIN {_BY_KEYS}
WHERE r.kind IN ('STORED', 'SENT_BACK', 'DEAD_LETTERED')"""

_PLACES = """
SELECT cluster, batch_id, broker_name, queue_id, queue_offset, min(own_id) AS own_id,
    min(retry_id) AS retry_id
FROM (SELECT cluster, batch_id, broker_name, queue_id, queue_offset, own_id, NULL::string AS retry_id
  FROM batch_items
  UNION ALL
  SELECT cluster, msg_id, broker_name, queue_id, queue_offset, NULL::string, own_id FROM batch_copies
  WHERE kind = 'STORED' AND stored_kind = 'RETRY' AND own_id <> '') AS places
GROUP BY cluster, batch_id, broker_name, queue_id, queue_offset"""

_RESULTS = """
SELECT r.*, CASE WHEN r.retry_times > 0 THEN coalesce(p.retry_id, p.own_id, '')
    ELSE coalesce(p.own_id, p.retry_id, '') END AS own_id
FROM batch_rows r LEFT JOIN batch_places p
  ON r.cluster = p.cluster AND r.msg_id = p.batch_id AND r.broker_name = p.broker_name AND r.queue_id = p.queue_id
  AND r.queue_offset = p.queue_offset
WHERE r.kind = 'RESULT'"""

# many: the request has results of several items, and which of them this delivery is of is not known.
_HANDED = f"""
SELECT *, CASE WHEN own_id = '' AND has_results THEN 1 ELSE 0 END AS many FROM (
  SELECT r.* EXCLUDE (twin, twins), q.own_ids IS NOT NULL AS has_results,
    coalesce(CASE WHEN len(q.own_ids) = r.twins THEN q.own_ids[r.twin]
      WHEN len(list_distinct(q.own_ids)) = 1 THEN q.own_ids[1] END, k.own_id, '') AS own_id
  FROM (SELECT *, row_number() OVER (PARTITION BY cluster, msg_id, request_id
        ORDER BY length(attempt_key), attempt_key) AS twin,
      count(*) OVER (PARTITION BY cluster, msg_id, request_id) AS twins
    FROM batch_rows WHERE kind = 'HANDLED') r
  LEFT JOIN (SELECT cluster, msg_id, request_id, list(own_id ORDER BY broker_name, queue_id, queue_offset) AS own_ids
    FROM batch_results WHERE own_id <> '' GROUP BY cluster, msg_id, request_id) q
    ON r.cluster = q.cluster AND r.msg_id = q.msg_id AND r.request_id = q.request_id
  LEFT JOIN {_BY_KEYS}) AS joined"""

_OWN = ", ".join("own_id AS msg_id" if name == "msg_id" else name for name in ATTEMPTS.names)
# The number of a delivery among those of its request serves no more, now that its id is the message's own.
_ONLY = _OWN.replace("attempt_key", "request_id AS attempt_key")
_COLUMNS = ", ".join(ATTEMPTS.names)
_PLAIN = ", ".join(f"r.{name} AS {name}" for name in ATTEMPTS.names)

_FOUND = f"""
SELECT {_OWN} FROM batch_copies WHERE own_id <> ''
UNION ALL SELECT {_OWN} FROM batch_results WHERE own_id <> ''
UNION ALL SELECT {_ONLY} FROM batch_handed WHERE own_id <> ''"""

_RESOLVED = f"""
SELECT {_PLAIN} FROM merged r LEFT JOIN batch_sizes s ON r.cluster = s.cluster AND r.msg_id = s.batch_id
WHERE s.batch_id IS NULL
UNION ALL SELECT {_COLUMNS} FROM batch_found"""

_BATCH_CARRIERS = """
SELECT i.cluster AS cluster, i.own_id AS msg_id, c.group_name AS group_name, max(s.item_count) AS item_count,
    max(c.handed_count) AS handed_count, max(c.succeeded_count) AS succeeded_count, min(c.start_ms) AS start_ms,
    max(c.end_ms) AS end_ms
FROM batch_items i JOIN batch_sizes s ON i.cluster = s.cluster AND i.batch_id = s.batch_id
JOIN (SELECT cluster, msg_id, group_name, count(*) AS handed_count, count(*) FILTER (succeeded = 1) AS
    succeeded_count,
    min(start_ms) AS start_ms, max(end_ms) AS end_ms
  FROM batch_handed WHERE own_id = '' AND many = 0 GROUP BY cluster, msg_id, group_name) c
  ON i.cluster = c.cluster AND i.batch_id = c.msg_id
GROUP BY i.cluster, i.own_id, c.group_name"""

_CARRIERS = """
SELECT cluster, msg_id, group_name, max(item_count) AS item_count, max(handed_count) AS handed_count,
    max(succeeded_count) AS succeeded_count, min(start_ms) AS start_ms, max(end_ms) AS end_ms
FROM batch_carriers GROUP BY cluster, msg_id, group_name"""
