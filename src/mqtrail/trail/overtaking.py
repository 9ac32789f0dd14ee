"""Messages that an ordered group finished after a later one of the same sharding key or queue.

    clients ─→ group_orders (`context`)            the groups that consume in order
    attempts × group_orders ─→ finishes_sql        when a group first finished a message, and where that is stored
    finishes ─→ overtaken_found_sql ─→ overtaken (input of a judgement)
    verdicts of an earlier judgement ─→ overtaken_known_sql ──┘

Messages with a sharding key are compared with those of the same key, the others with those of their queue that have no
key. The CommitLog of a broker gives their order. Times are compared only if the same host recorded them: clocks of
hosts differ. Both ids must be made in hours (publish_hour) next to each other, so that a cycle reads few hours.

Not compared: a message that is stored more than once or was sent again, one that the group got from a retry or
dead-letter topic, and a message of a send batch that consumers know by the id of the batch.
"""

from __future__ import annotations

from .attempts import with_requests_sql
from .columns import Relation, number, text
from .context import IN_ORDER, ip
from .group_facts import hand_overs_sql
from .kinds import VISIBLE_KINDS, quoted

OVERTAKEN = Relation(
    "overtaken",
    "One row per message and ordered group that finished a later message before. Key: cluster, msg_id, group_name.",
    (
        text("cluster", "as in trace_events"),
        text("msg_id", "the earlier message"),
        text("group_name", "consumer group"),
        text("later_id", "the later message that was finished first"),
        number("later_ms", "when the group finished that"),
    ),
)

REASON = "OVERTAKEN_BY"


def finishes_sql(attempts: str, group_orders: str, until_ms: int | None = None) -> str:
    """SQL: one row per message and ordered group that finished it. attempts: partial rows, by name.

    A batch that a listener got in one call is finished as a whole: `end_ms` is that of its last message.
    until_ms: attempts that begin later are left out.
    """
    known = "true" if until_ms is None else f"coalesce(a.start_ms, a.end_ms, 0) <= {until_ms}"
    same_id = "a.cluster = h.cluster AND a.msg_id = h.msg_id"
    own = f"(SELECT a.* FROM {attempts} a SEMI JOIN handed h ON {same_id} WHERE {known}) AS partial"
    return f"""
WITH ordered AS (SELECT * FROM {group_orders} WHERE consume_order = '{IN_ORDER}'),
handed AS (SELECT DISTINCT a.cluster, a.msg_id FROM {attempts} a
  JOIN ordered g ON a.cluster = g.cluster AND a.group_name = g.group_name WHERE a.kind IN ('HANDLED', 'RESULT')),
own AS ({with_requests_sql(own)}),
seen AS (SELECT cluster, msg_id, request_id, max(seen_ms) AS seen_ms FROM own WHERE kind IN ('HANDLED', 'RESULT')
  GROUP BY cluster, msg_id, request_id),
hand_overs AS ({hand_overs_sql("own")}),
ended AS (SELECT h.cluster, h.msg_id, h.group_name, s.seen_ms, {ip("h.client_host")} AS host,
    max(h.end_ms) OVER (PARTITION BY h.cluster, h.group_name, h.request_id) AS end_ms, h.outcome
  FROM hand_overs h JOIN seen s ON h.cluster = s.cluster AND h.msg_id = s.msg_id AND h.request_id = s.request_id
  SEMI JOIN ordered g ON h.cluster = g.cluster AND h.group_name = g.group_name),
first AS (SELECT cluster, msg_id, group_name,
    min(struct_pack(end_ms := end_ms, seen_ms := seen_ms, host := host)) AS finish
  FROM ended WHERE outcome IN ('SURE', 'REPORTED') AND end_ms IS NOT NULL GROUP BY cluster, msg_id, group_name),
places AS (SELECT cluster, msg_id, max(publish_hour) AS publish_hour, max(topic) AS topic,
    max(broker_name) AS broker_name, max(physical_offset) AS physical_offset,
    CASE WHEN max(sharding_key) <> '' THEN 'key ' || max(sharding_key) ELSE 'queue ' || max(queue_id) END AS line
  FROM own WHERE kind = 'STORED' AND group_name = '' AND stored_kind IN ({quoted(VISIBLE_KINDS)})
  GROUP BY cluster, msg_id HAVING count(DISTINCT attempt_key) = 1 AND max(offset_msg_id) <> ''
    AND bool_and(stored_kind <> 'RESENT')),
returned AS (SELECT DISTINCT cluster, msg_id, group_name FROM own
  WHERE kind IN ('STORED', 'SENT_BACK', 'DEAD_LETTERED') AND group_name <> '')
SELECT f.cluster AS cluster, f.group_name AS group_name, f.msg_id AS msg_id, p.publish_hour AS publish_hour,
  p.topic AS topic, p.broker_name AS broker_name, p.line AS line, p.physical_offset AS physical_offset,
  f.finish.end_ms AS end_ms, f.finish.seen_ms AS seen_ms, f.finish.host AS host
FROM first f JOIN places p ON f.cluster = p.cluster AND f.msg_id = p.msg_id
ANTI JOIN returned r ON f.cluster = r.cluster AND f.msg_id = r.msg_id AND f.group_name = r.group_name"""


def overtaken_found_sql(finishes: str, trace_delay_ms: int) -> str:
    """SQL: columns of OVERTAKEN, and publish_hour. finishes: a relation with the columns of `finishes_sql`.

    The record of the later message must not have taken longer to the trace topic than the other by trace_delay_ms or
    more: then the clock of the host was set back between the two.
    """
    line = "cluster, group_name, topic, broker_name, line, host, near_hour"
    finish = "struct_pack(end_ms := end_ms, msg_id := msg_id, seen_ms := seen_ms)"
    return f"""
SELECT cluster, publish_hour, msg_id, group_name, later.msg_id AS later_id, later.end_ms AS later_ms
FROM (SELECT *, min({finish}) OVER (PARTITION BY {line} ORDER BY physical_offset DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS later
  FROM (SELECT *, unnest([publish_hour - 1, publish_hour, publish_hour + 1]) AS near_hour FROM {finishes}
    WHERE host <> '') AS spread) AS compared
WHERE near_hour = publish_hour AND later.end_ms < end_ms
  AND (later.seen_ms - later.end_ms) - (seen_ms - end_ms) < {trace_delay_ms}"""


def overtaken_known_sql(verdicts: str) -> str:
    """SQL: columns of OVERTAKEN from rows of VERDICTS, outdated ones included."""
    found = rf"regexp_extract(reasons, '{REASON}\(msg_id=([^,]*),finished_ms=(\d+)\)', ['id', 'ms'])"
    return f"""
SELECT cluster, msg_id, group_name, found.id AS later_id, cast(found.ms AS bigint) AS later_ms
FROM (SELECT cluster, msg_id, group_name, {found} AS found FROM {verdicts}
  WHERE codes LIKE '%OUT_OF_ORDER%' AND reasons LIKE '%{REASON}(%') AS named WHERE found.id <> ''"""


def overtaken_sql(*sources: str) -> str:
    """SQL: OVERTAKEN from several relations with its columns: of each message and group the one finished first."""
    every = " UNION ALL ".join(
        f"SELECT cluster, msg_id, group_name, later_id, later_ms FROM {source}" for source in sources
    )
    return f"""
SELECT cluster, msg_id, group_name, later.later_id AS later_id, later.later_ms AS later_ms
FROM (SELECT cluster, msg_id, group_name, min(struct_pack(later_ms := later_ms, later_id := later_id)) AS later
  FROM ({every}) AS every GROUP BY cluster, msg_id, group_name) AS merged"""
