"""Coverage: when the trace of which client can be relied on, and when it cannot, each time with its reason.

    client_records ─→ TRACED: the trace messages of a run of a client, without a hole in their numbers
                   ─→ LOST: numbers that are missing, records that the client dropped
    gaps, samples  ─→ UNREAD: trace messages that the pipeline did not read; SILENT: a broker did not answer
    clients        ─→ VANISHED: the client left; what it did after its last trace message is not known
                   ─→ NOT_NUMBERED: it was there, and its trace messages have no numbers, or it does not trace

A client that left in good order sends all its records before, so VANISHED is a possible reason and no loss by itself.
`judgement` doubts what only the absence of records proves of that time (CLIENT_VANISHED).
"""

from __future__ import annotations

from .client_records import folded_client_records_sql
from .clocks import host_of
from .context import losses_sql
from .evidence import CLIENTS
from .samples import OF_SAMPLES
from .unread import NO_END

COVERAGE_TABLES = ("client_records", "clients", "samples", "gaps")
"""Tables of a lake that `coverage_sql` reads."""
COVERAGE_LACKS = ("LOST", "UNREAD", "VANISHED", "NOT_NUMBERED", "SILENT")
"""Kinds of times in which records can be missing. The others say that there are none missing."""
_NO_TOPIC = "WITH scanned_topics AS (SELECT '' AS cluster, '' AS topic WHERE false)"
"""SQL: a range that was not read explains lacks, whether it is one of trace or of messages."""
_KEY = ", ".join(name for name in CLIENTS.names if name not in OF_SAMPLES)
# A client has a row for each group, and a new one if what it says changed. It has left if each of them has ended; later
# samples repeat how.
_MEMBERS = f"""
SELECT cluster, client_id, any_value(language) AS language, string_agg(DISTINCT group_name, ',' ORDER BY group_name)
    AS groups, min(first_ms) AS first_ms, max(until_ms) AS until_ms,
    CASE WHEN count(gone_ms) = count(*) THEN max(gone_ms) END AS gone_ms
FROM (SELECT {_KEY}, min(first_ms) AS first_ms, max(until_ms) AS until_ms,
    min(sampled_ms) FILTER (change = 'GONE' AND seen_ms = until_ms) AS gone_ms
  FROM (SELECT {_KEY}, sampled_ms, change, seen_ms, coalesce(first_ms, sampled_ms) AS first_ms,
      max(CASE WHEN change = 'GONE' THEN seen_ms ELSE sampled_ms END) OVER (PARTITION BY {_KEY}) AS until_ms
    FROM clients WHERE client_id <> '') AS rows_of_keys
  GROUP BY {_KEY}) AS keys
GROUP BY cluster, client_id"""


def _time(ms: str) -> str:
    return f"strftime(epoch_ms({ms}), '%Y-%m-%d %H:%M:%S')"


def coverage_sql() -> str:
    """SQL: cluster, client_id, host, groups, kind, from_ms, to_ms, lost_count, reason; of one row per time and reason.

    client_id '': it concerns all clients. groups: the consumer groups of the client, joined by commas. to_ms NULL: it
    lasts. Reads the lake's tables client_records, clients, samples and gaps by their names.
    """
    batches = "(SELECT * FROM client_records AS records WHERE record_type = 'TraceBatch')"
    runs = f"({folded_client_records_sql(batches, 0, 0)})"
    own = "cluster, client_id, from_ms, to_ms, lost_count"
    times = f"""
SELECT cluster, client_id, first_ms AS from_ms, event_ms AS to_ms, NULL::bigint AS lost_count, 'TRACED' AS kind,
    'trace messages ' || first_sequence || ' to ' || sequence || ' of start ' || start_id AS reason FROM {runs} AS runs
UNION ALL
SELECT {own}, CASE WHEN client_id = '' THEN 'UNREAD' ELSE 'LOST' END, reason FROM (
  {_NO_TOPIC} {losses_sql()}) AS losses
UNION ALL
SELECT c.cluster, c.client_id, coalesce(r.event_ms, c.first_ms), c.gone_ms, NULL,
  CASE WHEN r.event_ms IS NULL THEN 'NOT_NUMBERED' ELSE 'VANISHED' END,
  CASE WHEN r.event_ms IS NULL THEN 'its trace messages have no numbers, or it does not trace'
    ELSE 'it left after the sample of ' || {_time("c.until_ms")} || '; its last trace message is of '
      || {_time("r.event_ms")} END
FROM ({_MEMBERS}) AS c
LEFT JOIN (SELECT cluster, client_id, max(event_ms) AS event_ms FROM {runs} AS runs GROUP BY ALL) AS r
  ON c.cluster = r.cluster AND c.client_id = r.client_id
WHERE r.event_ms IS NULL OR c.gone_ms >= r.event_ms
UNION ALL
SELECT f.cluster, '', coalesce(min(f.seen_ms), min(f.sampled_ms)), min(o.sampled_ms), NULL, 'SILENT',
  'broker ' || f.broker_name || ' did not answer: ' || any_value(f.reason)
FROM samples AS f LEFT JOIN samples AS o ON f.cluster = o.cluster AND f.what = o.what
  AND f.broker_name = o.broker_name AND o.status = 'OK' AND o.sampled_ms > f.sampled_ms
WHERE f.what = 'OFFSETS' AND f.status = 'FAILED' GROUP BY f.cluster, f.broker_name, f.seen_ms"""
    return f"""
SELECT t.cluster AS cluster, t.client_id AS client_id, {host_of("t.client_id")} AS host,
  coalesce(m.groups, '') AS groups,
  t.kind AS kind, t.from_ms AS from_ms, nullif(t.to_ms, {NO_END}) AS to_ms, t.lost_count AS lost_count,
  t.reason AS reason
FROM ({times}) AS t LEFT JOIN ({_MEMBERS}) AS m ON t.cluster = m.cluster AND t.client_id = m.client_id"""
