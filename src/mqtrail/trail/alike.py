"""Messages that producers sent again under another id: equal topic, keys, tags, body size and body CRC, soon after.

    stored copies ─→ alike_copies_sql ─→ alike_found_sql ─→ sent_before (input of a judgement)
    trajectories of an earlier judgement ─→ alike_known_sql ──┘

Only messages with keys are compared: equal bodies without a key are no sign of one business event. Both ids must be
made in hours (publish_hour) next to each other, so that a cycle reads few hours. A pair of copies remains a pair
whatever is read later, and a message names the latest copy before its own: so each cycle looks at new copies only, and
takes what is known of older ones from their last judgement.
"""

from __future__ import annotations

from .columns import Relation, number, text
from .kinds import VISIBLE_KINDS, quoted

SENT_BEFORE = Relation(
    "sent_before",
    "One row per message of which an equal one was stored shortly before under another id. Key: cluster, msg_id.",
    (
        text("cluster", "as in trace_events"),
        text("msg_id", "the later message"),
        text("earlier_id", "the id of the copy that was stored last before it"),
        number("earlier_ms", "when that copy was stored"),
    ),
)

REASON = "SENT_BEFORE"

_COMPARED = quoted(kind for kind in VISIBLE_KINDS if kind != "RESENT")
_PRINT = "hash(topic, keys, tags, body_size, body_crc)"
_LATEST = "max(struct_pack(earlier_ms := earlier_ms, earlier_id := earlier_id))"


def alike_copies_sql(attempts: str, until_ms: int | None = None) -> str:
    """SQL: cluster, publish_hour, msg_id, at_ms and print of the copies that can be alike, from rows of attempts.

    until_ms: copies that were stored later are left out.
    """
    known = "" if until_ms is None else f" AND start_ms <= {until_ms}"
    return f"""
SELECT DISTINCT cluster, publish_hour, msg_id, start_ms AS at_ms, {_PRINT} AS print FROM {attempts}
WHERE kind = 'STORED' AND stored_kind IN ({_COMPARED}) AND keys <> '' AND body_crc IS NOT NULL
  AND offset_msg_id <> '' AND start_ms IS NOT NULL{known}"""


def alike_found_sql(copies: str, window_ms: int) -> str:
    """SQL: columns of SENT_BEFORE, and publish_hour, from columns of `alike_copies_sql`."""
    order = "PARTITION BY cluster, print, near_hour ORDER BY at_ms, msg_id"
    before = "struct_pack(at_ms := at_ms, msg_id := msg_id)"
    return f"""
SELECT cluster, publish_hour, msg_id, latest.earlier_id AS earlier_id, latest.earlier_ms AS earlier_ms
FROM (SELECT cluster, publish_hour, msg_id, {_LATEST} AS latest
  FROM (SELECT cluster, publish_hour, near_hour, msg_id, at_ms, before.at_ms AS earlier_ms, before.msg_id AS earlier_id
    FROM (SELECT *, last_value(other IGNORE NULLS) OVER ({order} ROWS UNBOUNDED PRECEDING) AS before
      FROM (SELECT *, CASE WHEN lag(msg_id) OVER ({order}) <> msg_id THEN lag({before}) OVER ({order}) END AS other
        FROM (SELECT c.*, unnest([publish_hour - 1, publish_hour, publish_hour + 1]) AS near_hour
          FROM {copies} c SEMI JOIN (SELECT cluster, print FROM {copies} GROUP BY cluster, print
            HAVING min(msg_id) < max(msg_id)) p ON c.cluster = p.cluster AND c.print = p.print) AS spread) AS marked)
      AS ordered) AS paired
  WHERE near_hour = publish_hour AND at_ms - earlier_ms <= {window_ms}
  GROUP BY cluster, publish_hour, msg_id) AS found"""


def alike_known_sql(trajectories: str) -> str:
    """SQL: columns of SENT_BEFORE from rows of TRAJECTORIES, outdated ones included."""
    found = rf"regexp_extract(reasons, '{REASON}\(msg_id=([^,]*),stored_ms=(\d+)\)', ['id', 'ms'])"
    return f"""
SELECT cluster, msg_id, found.id AS earlier_id, cast(found.ms AS bigint) AS earlier_ms
FROM (SELECT cluster, msg_id, {found} AS found FROM {trajectories}
  WHERE message_codes LIKE '%DUPLICATE_SEND%' AND reasons LIKE '%{REASON}(%') AS named WHERE found.id <> ''"""


def sent_before_sql(*sources: str) -> str:
    """SQL: SENT_BEFORE from several relations with its columns: of each message the latest earlier copy."""
    every = " UNION ALL ".join(f"SELECT cluster, msg_id, earlier_id, earlier_ms FROM {source}" for source in sources)
    return f"""
SELECT cluster, msg_id, latest.earlier_id AS earlier_id, latest.earlier_ms AS earlier_ms
FROM (SELECT cluster, msg_id, {_LATEST} AS latest FROM ({every}) AS every GROUP BY cluster, msg_id) AS merged"""
