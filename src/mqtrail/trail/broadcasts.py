"""Broadcasting groups: each client that was there gets each message, and no offset at the broker shows it.

    client_states × topic_groups ─→ broadcast_clients   since when and until when each client was there
    messages × broadcast_clients × hand_overs ─→ broadcasts   messages that some of these clients have no record of

Such a group is judged by its deliveries. So only the number of clients shows that a delivery has no record: a client
was killed, does not trace, or has not handled the message yet.
"""

from __future__ import annotations

from .settings import Settings
from .stages import Stage
from .unread import NO_END

REASON = "BROADCAST_NOT_TRACED"


def broadcast_clients_stage(settings: Settings) -> Stage:
    """The clients of broadcasting groups, from the first sample with each to the first one without it.

    A client whose last record shows its orderly end is left out, unless records of it are lost: what it was handed is
    traced.
    """
    pause_ms = settings.sample_pause_ms_max
    same = "{0}.cluster = c.cluster AND {0}.group_name = c.group_name"
    return Stage(
        "broadcast_clients",
        f"""
SELECT c.cluster AS cluster, c.group_name AS group_name, c.client_id AS client_id, c.first_ms AS from_ms,
    CASE WHEN c.last_ms = s.clients_sampled_ms THEN {NO_END}
      ELSE coalesce(max(v.to_ms), c.last_ms + {pause_ms}) END AS to_ms
FROM (SELECT cluster, group_name, client_id, min(sampled_ms) AS first_ms, max(sampled_ms) AS last_ms
  FROM client_states WHERE client_id <> '' AND (cluster, group_name) IN (
    SELECT (cluster, group_name) FROM topic_groups WHERE message_model = 'BROADCASTING')
  GROUP BY cluster, group_name, client_id) c
JOIN client_samples s ON {same.format("s")}
LEFT JOIN vanished_clients v ON {same.format("v")} AND v.client_id = c.client_id
ANTI JOIN client_records r ON {same.format("r")} AND r.client_id = c.client_id AND r.record_type = 'TraceEnd'
  AND c.last_ms < s.clients_sampled_ms
  AND (c.cluster, c.client_id) NOT IN (SELECT (cluster, client_id) FROM losses)
  AND r.trace_store_ms BETWEEN c.last_ms - {pause_ms} AND c.last_ms + {pause_ms + settings.trace_delay_ms}
GROUP BY c.cluster, c.group_name, c.client_id, c.first_ms, c.last_ms, s.clients_sampled_ms""",
        ("client_states", "client_samples", "topic_groups", "vanished_clients", "client_records", "losses"),
    )


def broadcasts_stage() -> Stage:
    """Of each message the first broadcasting group with fewer hand-overs than clients; no row: there is none.

    Records of mqtrail's clients name the client. Each of the others is of a client that these do not name.
    """
    reads = ("messages", "group_places", "topic_groups", "broadcast_clients", "filters", "hand_overs")
    return Stage("broadcasts", _BROADCASTS, reads)


_BROADCASTS = """
WITH offered AS (
  SELECT m.cluster AS cluster, m.msg_id AS msg_id, c.group_name AS group_name, c.client_id AS client_id,
    greatest(m.offered_count, m.sent_count) AS copies
  FROM (SELECT cluster, msg_id, topic, offered_from_ms, offered_to_ms, offered_count, sent_count, '' AS of_group
    FROM messages
    UNION ALL SELECT cluster, msg_id, topic, visible_ms, last_ms, offered_count, sent_count, group_name
    FROM group_places WHERE is_other = 1) m
  JOIN topic_groups g ON m.cluster = g.cluster AND m.topic = g.topic
    AND g.message_model = 'BROADCASTING' AND m.of_group IN (g.group_name, '')
  JOIN broadcast_clients c ON g.cluster = c.cluster AND g.group_name = c.group_name
    AND c.from_ms <= m.offered_to_ms AND c.to_ms >= m.offered_from_ms
  ANTI JOIN (SELECT * FROM filters WHERE excluded = 1) f
    ON m.cluster = f.cluster AND m.msg_id = f.msg_id AND m.topic = f.topic AND c.group_name = f.group_name),
handed AS (SELECT h.cluster, h.msg_id, h.group_name, h.client_id, count(*) AS hand_count FROM hand_overs h
  SEMI JOIN offered o ON h.cluster = o.cluster AND h.msg_id = o.msg_id AND h.group_name = o.group_name
  GROUP BY h.cluster, h.msg_id, h.group_name, h.client_id)
SELECT cluster, msg_id, lack.group_name AS broadcast_group, lack.clients AS broadcast_clients,
  lack.found AS broadcast_found
FROM (SELECT cluster, msg_id, min(struct_pack(group_name := group_name, clients := clients, found := found)) AS lack
  FROM (SELECT o.cluster AS cluster, o.msg_id AS msg_id, o.group_name AS group_name, count(*) AS clients,
      count(h.client_id) + least(count(*) - count(h.client_id), coalesce(max(u.hand_count), 0) // max(o.copies)) AS
          found
    FROM offered o
    LEFT JOIN handed h ON o.cluster = h.cluster AND o.msg_id = h.msg_id AND o.group_name = h.group_name
      AND o.client_id = h.client_id
    LEFT JOIN handed u ON o.cluster = u.cluster AND o.msg_id = u.msg_id AND o.group_name = u.group_name
      AND u.client_id = ''
    GROUP BY o.cluster, o.msg_id, o.group_name) AS counted
  WHERE found < clients GROUP BY cluster, msg_id) AS lacks"""
