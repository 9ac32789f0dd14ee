"""The state of the cluster at the time of judgement, from samples: small relations, one row per group or queue.

`horizon` is the time of judgement minus the trace delay. Only records that were due before it count as missing.
"""

from __future__ import annotations

from .client_records import runs_sql
from .ends import end_scans_stage
from .evidence import OF_MESSAGES, RANGE_NOT_READ, TRACE_NOT_READ
from .filters import filter_runs_stage
from .hours import HOUR_MS
from .kinds import business_group, business_topic
from .packing import number_at, packed, padded
from .pops import pop_gaps_stage
from .samples import sample_stages
from .settings import Settings
from .stages import Stage
from .unread import NO_END, unread_stage

IN_ORDER, NOT_IN_ORDER = "ORDERLY", "CONCURRENTLY"
"""Values of consume_order: what all clients of a group say that said anything."""
TRACED_WITHIN = 3
"""Times of trace_delay_ms after its first sight within which a group that traces has a record."""


def context_stages(as_of_ms: int, settings: Settings) -> list[Stage]:
    """Return the stages in order. The docstring of the function that builds a stage describes it."""
    horizon = as_of_ms - settings.trace_delay_ms
    return [
        *sample_stages(as_of_ms, horizon),
        Stage("committed", _committed(as_of_ms), ("offset_states", "client_records")),
        Stage("offsets_at", _offsets_at(horizon), ("committed",)),
        Stage("offset_samples", _OFFSET_SAMPLES, ("offset_states", "question_times")),
        Stage("client_samples", _CLIENT_SAMPLES, ("client_states",)),
        Stage("group_clients", _GROUP_CLIENTS, ("client_states", "client_samples")),
        Stage("live_clients", _live_clients(), ("client_states", "client_samples")),
        Stage(
            "vanished_clients",
            _vanished(as_of_ms, settings),
            ("client_states", "group_clients", "clients", "client_records"),
        ),
        Stage(
            "group_members",
            _group_members(settings),
            ("client_states", "group_clients", "vanished_clients", "client_records"),
        ),
        Stage("group_orders", group_orders_sql("clients", as_of_ms), ("clients",)),
        filter_runs_stage(settings),
        Stage("scanned_topics", _scanned_topics(as_of_ms), ("queue_ranges", "samples")),
        end_scans_stage(),
        Stage("losses", losses_sql(as_of_ms, horizon), ("client_records", "gaps", "samples", "scanned_topics")),
        Stage("widest_losses", _WIDEST_LOSSES, ("losses",)),
        pop_gaps_stage(),
        unread_stage(as_of_ms),
    ]


def group_orders_sql(clients: str, as_of_ms: int | None = None) -> str:
    """SQL: cluster, group_name, consume_order of the groups whose clients all say the same. clients: rows of CLIENTS.

    A group whose clients differ, now or at different times, has no row.
    """
    until = "true" if as_of_ms is None else f"sampled_ms <= {as_of_ms}"
    return f"""
SELECT cluster, group_name, CASE max(ordered) WHEN 'true' THEN '{IN_ORDER}' ELSE '{NOT_IN_ORDER}' END AS consume_order
FROM {clients} WHERE ordered IN ('true', 'false') AND {until}
GROUP BY cluster, group_name HAVING min(ordered) = max(ordered)"""


def topic_groups_stage(as_of_ms: int, settings: Settings) -> Stage:
    """The groups of applications that are known to read a topic.

    A group that commits offsets at the broker is in clustering mode: broadcasting clients store their own offsets. So
    do the commits that clients record, unless a subscription shows another mode: earlier ones recorded local offsets. A
    traced delivery shows the topic of the message, but the group can have got it from a dead-letter topic, or from
    another topic to which it was forwarded. So it does not count if no sampled subscription of the group has the topic.

    known_ms: the earliest of a sample, a commit and a traced delivery, of which only the hour is counted: then it is
    the end of that hour. since_ms: the group did not come earlier, because a sample just before known_ms, or before the
    gap around it, does not have the group; for messages between the two it is not known whether the group was there.

    by_namespace 1: the group reads NAMESPACE%topic. The trace of clients with a namespace (4.x) names the topic without
    it, so a message of which no copy was read can be of that topic.

    reads_back 1: it came long enough ago, and is not traced, or records of the time in which it came may be lost. A new
    group can begin with the first message of a queue, and brokers let each group do so as long as they have all of a
    short queue in memory. What a traced group read of earlier messages, its records show.
    """
    sights = _sights(settings)
    columns = "group_name, seen_ms, since_ms, message_model, consume_type, is_recorded"
    named = f"""
  SELECT cluster, topic, {columns}, 0 AS by_namespace FROM ({sights}) AS seen
  UNION ALL
  SELECT cluster, substr(topic, instr(topic, '%') + 1), {columns}, 1 FROM ({sights}) AS seen
  WHERE instr(topic, '%') > 1"""
    return Stage(
        "topic_groups",
        f"""
SELECT k.cluster AS cluster, k.topic AS topic, k.group_name AS group_name, k.known_ms AS known_ms,
    CASE WHEN max(w.whole_ms) IS NULL THEN 0 WHEN k.known_ms > max(w.whole_ms) THEN least(k.since_ms, max(w.whole_ms))
      ELSE least(k.since_ms, coalesce(min(g.from_ms), k.since_ms)) END AS since_ms,
    k.message_model AS message_model, k.consume_type AS consume_type, k.by_namespace AS by_namespace,
    CASE WHEN k.known_ms > {as_of_ms - TRACED_WITHIN * settings.trace_delay_ms}
      OR (k.cluster, k.group_name) IN (SELECT (cluster, group_name) FROM traced_groups)
        AND max(d.from_ms) IS NULL THEN 0 ELSE 1 END AS reads_back
FROM (SELECT cluster, topic, group_name, first.seen_ms AS known_ms, first.since_ms AS since_ms, message_model,
    consume_type, by_namespace
  FROM (SELECT cluster, topic, group_name, min(struct_pack(seen_ms := seen_ms, since_ms := since_ms)) AS first,
      CASE WHEN max(message_model) = '' AND max(is_recorded) = 1 THEN 'CLUSTERING' ELSE max(message_model) END
        AS message_model, max(consume_type) AS consume_type, min(by_namespace) AS by_namespace
    FROM ({named}) AS sights WHERE {business_group()} GROUP BY cluster, topic, group_name) AS firsts) AS k
LEFT JOIN whole_samples w ON k.cluster = w.cluster AND w.broker_name = ''
LEFT JOIN sample_gaps g ON k.cluster = g.cluster AND g.broker_name = '' AND g.from_ms < k.known_ms
  AND g.to_ms >= k.known_ms
LEFT JOIN ({_DOUBTS}) d ON k.cluster = d.cluster AND d.group_name IN (k.group_name, '')
  AND d.from_ms <= k.known_ms + {settings.trace_delay_ms} AND d.to_ms >= k.since_ms
GROUP BY k.cluster, k.topic, k.group_name, k.known_ms, k.since_ms, k.message_model, k.consume_type, k.by_namespace""",
        (
            "committed", "subscription_states", "folds", "traced_groups", "whole_samples", "sample_gaps",
            "widest_losses", "handed_clients", "vanished_clients", "group_members",
        ),
    )  # fmt: skip


def _sights(settings: Settings) -> str:
    """SQL: each sight of a group at a topic. is_recorded 1: a commit that a client recorded."""
    return f"""
  SELECT cluster, topic, group_name, sampled_ms AS seen_ms, sampled_ms - {settings.sample_pause_ms_max} AS since_ms,
    CASE is_sampled WHEN 1 THEN 'CLUSTERING' ELSE '' END AS message_model, '' AS consume_type,
    1 - is_sampled AS is_recorded FROM committed
  UNION ALL
  SELECT cluster, topic, group_name, sampled_ms, sampled_ms - {settings.sample_pause_ms_max}, message_model,
    consume_type, 0 FROM subscription_states
  UNION ALL
  SELECT cluster, name, group_name, (value + 1) * {HOUR_MS}, value * {HOUR_MS}, '', '', 0 FROM folds
  WHERE kind = 'READ' AND ((cluster, group_name) NOT IN (SELECT (cluster, group_name) FROM subscription_states)
    OR (cluster, group_name, name) IN (SELECT (cluster, group_name, topic) FROM subscription_states))"""


# Times in which records of a group (''; of every one) may be lost.
_DOUBTS = f"""
  SELECT l.cluster AS cluster, h.group_name AS group_name, l.from_ms AS from_ms, l.to_ms AS to_ms
  FROM widest_losses l JOIN handed_clients h ON l.cluster = h.cluster AND l.client_id = h.client_id
  UNION ALL SELECT cluster, '', from_ms, to_ms FROM widest_losses WHERE client_id = '' AND host <> '{OF_MESSAGES}'
  UNION ALL SELECT cluster, group_name, from_ms, to_ms FROM vanished_clients
  UNION ALL SELECT m.cluster, m.group_name, m.from_ms, m.to_ms FROM group_members m
  ANTI JOIN handed_clients h ON m.cluster = h.cluster AND m.group_name = h.group_name
    AND h.client_id IN (m.client_id, 'ip:' || m.host)"""


def _committed(as_of_ms: int) -> str:
    """Committed offsets: sampled from brokers, and recorded by mqtrail's consumers.

    Only the sampled rows that offset_states keeps.
    """
    return f"""
SELECT cluster, sampled_ms, group_name, topic, broker_name, queue_id, consumer_offset, 1 AS is_sampled
FROM offset_states
UNION ALL
SELECT cluster, event_ms, group_name, topic, store_broker_name, store_queue_id, consumer_offset, 0 FROM client_records
WHERE record_type = 'OffsetCommit' AND event_ms <= {as_of_ms}"""


def _offsets_at(horizon: int) -> str:
    """The group's offset of a queue in the latest sample, in the latest one at the horizon, and in the first one."""
    latest = packed(padded("sampled_ms"), padded("consumer_offset"))
    return f"""
SELECT cluster, group_name, topic, broker_name, queue_id,
    {number_at("latest", 1)} AS now_ms, {number_at("latest", 2)} AS now_offset,
    {number_at("earlier", 1)} AS then_ms, {number_at("earlier", 2)} AS then_offset,
    {number_at("first", 2)} AS first_offset
FROM (SELECT cluster, group_name, topic, broker_name, queue_id, max({latest}) AS latest,
    max({latest}) FILTER (sampled_ms <= {horizon}) AS earlier, min({latest}) AS first
  FROM committed GROUP BY cluster, group_name, topic, broker_name, queue_id) AS packed_offsets"""


# Time of the last sample of the offsets of each broker.
_OFFSET_SAMPLES = """
SELECT cluster, broker_name, max(sampled_ms) AS offsets_sampled_ms
FROM (SELECT cluster, broker_name, sampled_ms FROM offset_states
  UNION ALL SELECT cluster, broker_name, now_ms FROM question_times WHERE what = 'OFFSETS' AND now_ms IS NOT NULL) AS s
GROUP BY cluster, broker_name"""

# The latest sample of each group's clients.
_CLIENT_SAMPLES = """
SELECT cluster, group_name, max(sampled_ms) AS clients_sampled_ms FROM client_states GROUP BY cluster, group_name"""

# Number of clients of a group in its latest sample; NULL: the group could not be queried.
_GROUP_CLIENTS = """
SELECT c.cluster AS cluster, c.group_name AS group_name, max(s.clients_sampled_ms) AS clients_sampled_ms,
    CASE WHEN max(CASE WHEN c.status = 'ERROR' THEN 1 ELSE 0 END) = 1 THEN NULL::bigint
         ELSE count(*) FILTER (c.status = 'OK') END AS live_count
FROM client_states c JOIN client_samples s
  ON c.cluster = s.cluster AND c.group_name = s.group_name AND c.sampled_ms = s.clients_sampled_ms
GROUP BY c.cluster, c.group_name"""


def _live_clients() -> str:
    """Names by which a delivery can refer to its client (id, or ip of its connection), and whether it is alive."""
    return f"""
SELECT cluster, group_name, client, max(live) AS live
FROM (SELECT c.cluster AS cluster, c.group_name AS group_name, c.client_id AS client,
      CASE WHEN c.sampled_ms = s.clients_sampled_ms THEN 1 ELSE 0 END AS live
    FROM client_states c JOIN client_samples s ON c.cluster = s.cluster AND c.group_name = s.group_name
    WHERE c.client_id <> ''
  UNION ALL
  SELECT c.cluster, c.group_name, 'ip:' || {ip("c.client_host")},
      CASE WHEN c.sampled_ms = s.clients_sampled_ms THEN 1 ELSE 0 END
    FROM client_states c JOIN client_samples s ON c.cluster = s.cluster AND c.group_name = s.group_name
    WHERE c.client_host <> '') AS named
GROUP BY cluster, group_name, client"""


def _vanished(as_of_ms: int, settings: Settings) -> str:
    """Clients that are no longer there, and the time in which the last records of each can be lost.

    A process that is killed takes the records along that it did not send yet. One that stops normally leaves the
    same samples, but the last record of a consumer of mqtrail, TraceEnd, shows an orderly end. The client ended
    between the last sample with it and the next one. A new connection under the same id is a new process, unless the id
    contains the time of its start, after '#'.
    """
    pause_ms = settings.sample_pause_ms_max
    return f"""
SELECT cluster, group_name, client_id, host, at_ms - {settings.trace_delay_ms} AS from_ms,
    least(at_ms + {pause_ms}, coalesce(next_ms, at_ms + {pause_ms})) AS to_ms
FROM (SELECT *, min(sampled_ms) OVER (PARTITION BY cluster, group_name ORDER BY at_ms
    RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS next_ms
  FROM (SELECT s.cluster, s.group_name, client_id, host, until_ms AS at_ms, NULL::bigint AS sampled_ms
    FROM (SELECT cluster, group_name, client_id, max({ip("client_host")}) AS host, max(sampled_ms) AS until_ms
      FROM client_states WHERE client_id <> ''
      GROUP BY cluster, group_name, client_id, CASE WHEN instr(client_id, '#') > 0 THEN '' ELSE client_host END) s
    JOIN group_clients g ON s.cluster = g.cluster AND s.group_name = g.group_name
    WHERE g.live_count IS NOT NULL AND until_ms < g.clients_sampled_ms
    UNION ALL
    SELECT DISTINCT cluster, group_name, '', '', sampled_ms, sampled_ms FROM clients
    WHERE sampled_ms <= {as_of_ms}) AS instants) AS followed
WHERE client_id <> '' AND NOT EXISTS (SELECT 1 FROM client_records r WHERE r.record_type = 'TraceEnd'
  AND r.cluster = followed.cluster AND r.group_name = followed.group_name AND r.client_id = followed.client_id
  AND r.trace_store_ms BETWEEN at_ms - {pause_ms} AND at_ms + {pause_ms + settings.trace_delay_ms})"""


def _group_members(settings: Settings) -> str:
    """The clients of each group, from the first sample with each to the first one without it. A client whose last
    record shows its orderly end is left out: it traces.
    """
    return f"""
SELECT s.cluster AS cluster, s.group_name AS group_name, s.client_id AS client_id, s.host AS host, s.from_ms AS from_ms,
    CASE WHEN s.last_ms = g.clients_sampled_ms THEN {NO_END}
      ELSE coalesce(v.to_ms, s.last_ms + {settings.sample_pause_ms_max}) END AS to_ms
FROM (SELECT cluster, group_name, client_id, max({ip("client_host")}) AS host, min(sampled_ms) AS from_ms,
    max(sampled_ms) AS last_ms
  FROM client_states WHERE client_id <> '' GROUP BY cluster, group_name, client_id) s
JOIN group_clients g ON s.cluster = g.cluster AND s.group_name = g.group_name
LEFT JOIN (SELECT cluster, group_name, client_id, max(to_ms) AS to_ms FROM vanished_clients
  GROUP BY cluster, group_name, client_id) v
  ON s.cluster = v.cluster AND s.group_name = v.group_name AND s.client_id = v.client_id
ANTI JOIN (SELECT * FROM client_records WHERE record_type = 'TraceEnd') r
  ON s.cluster = r.cluster AND s.group_name = r.group_name AND s.client_id = r.client_id"""


def _scanned_topics(as_of_ms: int) -> str:
    """Topics whose messages the pipeline reads, and the last sample up to which their queues were read.

    In `samples`, seen_ms of a row (READ, topic '') is a sample up to which messages were read. The row of a topic says
    whether the topic is read from then on.
    """
    return f"""
SELECT cluster, topic, max(sampled_ms) AS scanned_ms FROM (
  SELECT cluster, topic, sampled_ms FROM queue_ranges WHERE read_offset IS NOT NULL AND sampled_ms <= {as_of_ms}
  UNION ALL
  SELECT t.cluster, t.topic, CASE t.state.status WHEN 'OK' THEN m.read_ms ELSE t.state.seen_ms END
  FROM (SELECT cluster, topic, max_by(struct_pack(status := status, seen_ms := seen_ms), sampled_ms) AS state
    FROM samples WHERE what = 'READ' AND topic <> '' AND sampled_ms <= {as_of_ms} GROUP BY cluster, topic) t
  JOIN (SELECT cluster, max(seen_ms) AS read_ms FROM samples
    WHERE what = 'READ' AND topic = '' AND sampled_ms <= {as_of_ms} GROUP BY cluster) m ON t.cluster = m.cluster
  ) AS read_topics
WHERE sampled_ms IS NOT NULL GROUP BY cluster, topic"""


def losses_sql(as_of_ms: int = NO_END, horizon: int = NO_END) -> str:
    """Intervals in which trace records were lost: missing sequence numbers, reported drops, ranges that were not read.

    client_id '' (a gap): of any client; host OF_MESSAGES: of messages of an application's topic, neither of trace nor
    of copies that wait for a retry. A missing number that is newer than the horizon can still arrive. So can the
    records of a broker whose trace topics are not read to their ends: its interval lasts until they are. A broker that
    is gone got no records after that.
    """
    return f"""
SELECT cluster, client_id, host, from_ms, to_ms, lost_count, reason FROM (
  SELECT cluster, client_id, host, coalesce(before_ms, 0) AS from_ms, first_ms AS to_ms,
      CASE WHEN first_sequence > before_sequence + 1 THEN first_sequence - before_sequence - 1
           ELSE dropped_total - before_dropped END AS lost_count,
      CASE WHEN first_sequence > before_sequence + 1 THEN 'TRACE_MESSAGES_LOST' ELSE 'TRACE_DROPPED' END AS reason
  FROM (SELECT cluster, client_id, trace_born_host AS host, first_sequence, first_ms, dropped_total,
      before.event_ms AS before_ms, coalesce(before.sequence, 0) AS before_sequence,
      coalesce(before.dropped_total, 0) AS before_dropped
    FROM ({runs_sql("client_records")}) AS runs) AS numbered
  WHERE first_ms <= {horizon} AND (first_sequence > before_sequence + 1 OR dropped_total > before_dropped)
  UNION ALL
  SELECT DISTINCT cluster, client_id, trace_born_host, from_ms, to_ms, lost_count,
      CASE WHEN reason = '' THEN 'TRACE_DROPPED' ELSE 'TRACE_DROPPED:' || reason END
  FROM client_records WHERE record_type = 'TraceLoss'
  UNION ALL
  SELECT DISTINCT g.cluster, '', CASE WHEN s.topic IS NOT NULL AND {business_topic("g.topic")} THEN '{OF_MESSAGES}'
      ELSE '' END, coalesce(g.from_ms, 0), g.to_ms, g.end_offset - g.first_offset, '{RANGE_NOT_READ}' || g.topic
  FROM gaps g LEFT JOIN scanned_topics s ON g.cluster = s.cluster AND g.topic = s.topic
  UNION ALL
  SELECT cluster, '', '', coalesce(state.seen_ms, 0),
      CASE state.status WHEN 'GONE' THEN changed_ms ELSE {NO_END} END, NULL, '{TRACE_NOT_READ}' || broker_name
  FROM (SELECT cluster, broker_name, max(sampled_ms) AS changed_ms,
      max_by(struct_pack(status := status, seen_ms := seen_ms), sampled_ms) AS state
    FROM samples WHERE what = 'TRACE' AND sampled_ms <= {as_of_ms} GROUP BY cluster, broker_name) AS sources
  WHERE state.status <> 'OK') AS lost
WHERE from_ms IS NOT NULL AND to_ms IS NOT NULL"""


# Of losses of the same clients that begin at the same time, the last to end: it has all times of the others. The first
# read of a cluster can find a lost range in every queue.
_WIDEST_LOSSES = f"""
SELECT cluster, client_id, host, from_ms, widest.to_ms AS to_ms, nullif(widest.lost_count, 0) AS lost_count,
    widest.reason AS reason
FROM (SELECT cluster, client_id, host, from_ms,
    max(struct_pack(to_ms := to_ms, lost_count := coalesce(lost_count, 0), reason := reason)) AS widest
  FROM losses GROUP BY cluster, client_id, host, from_ms, reason LIKE '{TRACE_NOT_READ}%') AS widths"""


def ip(host: str) -> str:
    """SQL: the ip of 'ip:port'; of an IPv6 address all but the last part. '' for ''."""
    return f"substr({host}, 1, length({host}) - length(split_part({host}, ':', -1)) - 1)"
