"""Facts about groups and hosts from all messages: limits of attempts, handling times, traced groups and hosts.

    hand_overs, rounds, group_copies, message_facts → fold_counts ┐
    group_folds: the counts of earlier judgements                 ┴→ folds → group_limits, hung_limits, traced_groups …

Every fold is a count. A judgement of some messages subtracts their earlier counts and adds their new ones, so the
result equals that of counting all messages together.
"""

from __future__ import annotations

from .context import ip
from .hours import HOUR_MS
from .kinds import business_topic
from .results import GROUP_FOLDS
from .settings import Settings
from .stages import Stage


def fold_stages(settings: Settings) -> list[Stage]:
    """fold_counts, folds, and the limits derived from them: group_limits, hung_limits, traced_groups and others."""
    return [fold_counts_stage(), Stage("folds", _FOLDS, ("fold_counts", "group_folds")), *limit_stages(settings)]


def given_fold_stages(settings: Settings) -> list[Stage]:
    """Like `fold_stages`, if the counts of the messages are in group_folds already."""
    given = f"SELECT {_KEY}, sum(row_count)::bigint AS row_count FROM group_folds {_LEFT}"
    return [Stage("folds", given, ("group_folds",)), *limit_stages(settings)]


def fold_counts_stage() -> Stage:
    """The counts of the judged messages: columns of GROUP_FOLDS."""
    return Stage("fold_counts", _FOLD_COUNTS, ("hand_overs", "rounds", "group_copies", "message_facts"), gathered=True)


def limit_stages(settings: Settings) -> list[Stage]:
    """Limits and traced groups and hosts, derived from the folds."""
    return [
        Stage("group_limits", _GROUP_LIMITS, ("folds",)),
        Stage("hung_limits", _hung_limits(settings), ("folds",)),
        Stage("traced_groups", _TRACED_GROUPS, ("folds",)),
        Stage("traced_hosts", _TRACED_HOSTS, ("folds",)),
        Stage("handed_clients", _HANDED_CLIENTS, ("folds",)),
    ]


_KEY = ", ".join(name for name in GROUP_FOLDS.names if name != "row_count")
_LEFT = f"GROUP BY {_KEY} HAVING sum(row_count) > 0"

# READ: a group that got a message from the dead-letter topic of another group does not show that it reads its topic.
_FOLD_COUNTS = f"""
WITH dead AS (SELECT cluster, msg_id, group_name, dead_times FROM group_copies WHERE dead_times > 0)
SELECT {_KEY}, count(*) AS row_count FROM (
  SELECT cluster, 'SPAN' AS kind, group_name, '' AS name, end_ms - start_ms AS value FROM hand_overs
    WHERE outcome <> 'OPEN' AND end_ms >= start_ms
  UNION ALL SELECT cluster, 'HANDED', group_name, CASE WHEN client_id <> '' OR client_host = '' THEN client_id
      ELSE 'ip:' || {ip("client_host")} END, 0 FROM hand_overs
  UNION ALL SELECT cluster, 'CHAIN', group_name, '', retry_times FROM rounds
  UNION ALL SELECT cluster, 'CHAIN', group_name, '', retry_copy_times FROM group_copies
    WHERE retry_copy_times IS NOT NULL
  UNION ALL SELECT cluster, 'READ', group_name, topic, min(read_ms) // {HOUR_MS} FROM (
      SELECT m.cluster, m.msg_id, r.group_name, m.topic, r.first_ms AS read_ms FROM rounds r
      JOIN message_facts m ON r.cluster = m.cluster AND r.msg_id = m.msg_id
      ANTI JOIN dead d ON r.cluster = d.cluster AND r.msg_id = d.msg_id AND r.group_name <> d.group_name
        AND r.retry_times = d.dead_times
      UNION ALL
      SELECT m.cluster, m.msg_id, c.group_name, m.topic, coalesce(c.popped_ms, c.sent_back_ms, c.dead_ms)
      FROM group_copies c
      JOIN message_facts m ON c.cluster = m.cluster AND c.msg_id = m.msg_id
      ANTI JOIN dead d ON c.cluster = d.cluster AND c.msg_id = d.msg_id AND c.group_name <> d.group_name
        AND coalesce(c.retry_copy_times, c.dead_times) > d.dead_times) AS reads
    WHERE read_ms IS NOT NULL AND group_name <> '' AND {business_topic()}
    GROUP BY cluster, msg_id, group_name, topic
  UNION ALL SELECT cluster, 'HOST', '', born_host, 0 FROM message_facts
    WHERE born_host <> '' AND send_start_ms IS NOT NULL) AS shown
GROUP BY {_KEY}"""

_FOLDS = f"""
SELECT {_KEY}, sum(row_count)::bigint AS row_count
FROM (SELECT {_KEY}, row_count FROM fold_counts
  UNION ALL SELECT {_KEY}, row_count FROM group_folds) AS counts {_LEFT}"""

# No record contains the limit of attempts, so the longest chain of the group is used.
_GROUP_LIMITS = """
SELECT cluster, group_name, max(value) AS handed_times_max FROM folds WHERE kind = 'CHAIN'
GROUP BY cluster, group_name"""


def _hung_limits(settings: Settings) -> str:
    """Groups whose handlers are so slow that HUNG must wait longer.

    The 99th percentile of counted times in whole numbers, interpolated like percentile_cont: between the sample with
    index floor(0.99 * (samples - 1)), from 0, and the next one.
    """
    slow = settings.hung_ms // settings.hung_p99_factor
    return f"""
SELECT cluster, group_name, {settings.hung_p99_factor}
    * (100 * p99_ms + (next_ms - p99_ms) * (99 * (samples - 1) - 100 * place)) // 100 AS hung_ms
FROM (SELECT cluster, group_name, samples, place, max(span_ms) AS longest_ms,
    min(span_ms) FILTER (up_to > place) AS p99_ms,
    coalesce(min(span_ms) FILTER (up_to > place + 1), max(span_ms)) AS next_ms
  FROM (SELECT *, 99 * (samples - 1) // 100 AS place
    FROM (SELECT cluster, group_name, span_ms,
        cast(sum(span_count) OVER (PARTITION BY cluster, group_name ORDER BY span_ms) AS bigint) AS up_to,
        cast(sum(span_count) OVER (PARTITION BY cluster, group_name) AS bigint) AS samples
      FROM (SELECT cluster, group_name, value AS span_ms, row_count AS span_count FROM folds
        WHERE kind = 'SPAN') AS spans) AS counted) AS placed
  GROUP BY cluster, group_name, samples, place) AS percentiles
WHERE samples >= {settings.hung_p99_samples} AND longest_ms > {slow}"""


_TRACED_GROUPS = """
SELECT DISTINCT cluster, group_name FROM folds WHERE kind = 'HANDED'"""

_TRACED_HOSTS = """
SELECT cluster, name AS born_host FROM folds WHERE kind = 'HOST'"""

_HANDED_CLIENTS = """
SELECT cluster, group_name, name AS client_id FROM folds WHERE kind = 'HANDED' AND name <> ''"""
