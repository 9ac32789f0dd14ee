"""The consumer side: one row of facts per message and group.

A hand-over is a delivery to a handler. A round is all hand-overs with the same reconsumeTimes.

    resolved → hand_overs (one row per request) → rounds               ┐
    resolved → group_copies (retry copies, send-backs, dead letters)   ├→ group_facts (one row per message and group)
    messages × topic_groups → expected groups · carriers               ┘

All stages aggregate by msg_id, so that a share of the ids can be judged alone.
"""

from __future__ import annotations

from .kinds import POP_KINDS, business_group, quoted
from .packing import packed, padded, part
from .pops import COPIES_OF_GROUPS, pops_stage
from .repeats import PUT_BACK_RETRY, SUSPENDED_RETRY, group_places_stage
from .stages import Stage


def hand_over_stages() -> list[Stage]:
    """namespaces, hand_overs, pops, group_copies, rounds: from a message's own rows only."""
    return [
        Stage("namespaces", _NAMESPACES, ("message_facts",)),
        Stage("hand_overs", _HAND_OVERS, ("resolved", "namespaces")),
        pops_stage(),
        Stage("group_copies", _GROUP_COPIES, ("resolved", "message_facts")),
        Stage("rounds", _ROUNDS, ("hand_overs",)),
    ]


def group_stages() -> list[Stage]:
    """group_places, group_facts."""
    return [
        group_places_stage(),
        Stage(
            "group_facts",
            _group_facts(),
            ("rounds", "group_copies", "messages", "topic_groups", "offsets_at", "group_places", "carriers"),
        ),
    ]


# Outcome of a hand-over. SURE: the handler succeeded. REPORTED: only SubAfter reports success, which it also reports
# for the unacknowledged tail of a listener batch and for every lite pull. FAILED. OPEN: no end was read.
_TWIN = "CASE WHEN kind = 'HANDLED' THEN split_part(attempt_key, request_id || '#', 2) ELSE '' END"
"""SQL: the number of a delivery among those of its request with the same id; '' for the first."""


def in_namespace(group: str, namespace: str) -> str:
    """SQL: the full name of a group in a trace record. namespace: that of the message's topic, NULL or '' if none."""
    return (
        f"CASE WHEN {namespace} <> '' AND instr({group}, '%') = 0 THEN {namespace} || '%' || {group} ELSE {group} END"
    )


def hand_overs_sql(attempts: str) -> str:
    """SQL: one row per hand-over, from rows of attempts (also partial ones) given by name."""
    return f"""
SELECT *, CASE
    WHEN result = 'SUCCESS' THEN 'SURE'
    WHEN result IN ('FAILED', 'EXCEPTION', 'RETURNNULL') THEN 'FAILED'
    WHEN has_after = 0 AND result = '' THEN 'OPEN'
    WHEN reported_success = 1 AND (context_code = 1 OR result = 'TIME_OUT') THEN 'SURE'
    WHEN reported_success = 1 THEN 'REPORTED'
    ELSE 'FAILED' END AS outcome
FROM (
  SELECT cluster, msg_id, request_id, max(publish_hour) AS publish_hour, max(group_name) AS group_name, max(topic) AS
      topic,
    coalesce(min(start_ms) FILTER (kind = 'HANDLED'), min(start_ms), max(end_ms) - max(cost_ms)) AS start_ms,
    coalesce(max(end_ms) FILTER (kind = 'RESULT'), max(end_ms),
      min(start_ms) + max(cost_ms) FILTER (has_after = 1)) AS end_ms,
    coalesce(max(cost_ms) FILTER (kind = 'RESULT'), max(cost_ms)) AS cost_ms,
    max(CASE WHEN kind = 'RESULT' THEN 1 ELSE 0 END) AS cost_is_own,
    max(succeeded) FILTER (kind = 'HANDLED') AS reported_success,
    max(CASE WHEN kind = 'RESULT' THEN outcome ELSE '' END) AS result,
    max(context_code) AS context_code, coalesce(max(retry_times), -1) AS retry_times,
    coalesce(max(has_before), 0) AS has_before, coalesce(max(has_after), 0) AS has_after,
    max(CASE WHEN kind = 'RESULT' THEN 1 ELSE 0 END) AS has_result,
    max(client_id) AS client_id, max(client_host) AS client_host, max(detail) AS detail, max(seen_ms) AS seen_ms
  FROM {attempts} WHERE kind IN ('HANDLED', 'RESULT')
  GROUP BY cluster, msg_id, request_id, {_TWIN}) AS requests
WHERE {business_group()}"""


# Clients with a namespace (4.x) leave it out of their trace, brokers do not: topic and group are NAMESPACE%name there.
_NAMESPACES = f"""
SELECT cluster, msg_id, split_part(topic, '%', 1) AS namespace
FROM (SELECT cluster, msg_id, coalesce(nullif({part("place", 6)}, ''), topic) AS topic
  FROM message_facts WHERE instr(place, '%') > 0 OR instr(topic, '%') > 1) AS named
WHERE instr(topic, '%') > 1"""
_HAND_OVERS = f"""
SELECT h.* REPLACE ({in_namespace("h.group_name", "n.namespace")} AS group_name)
FROM ({hand_overs_sql("resolved")}) AS h LEFT JOIN namespaces n ON h.cluster = n.cluster AND h.msg_id = n.msg_id"""

_RETRY = "(stored_kind IN ('RETRY', 'RETRY_POP', 'RETRY_WAIT') OR kind = 'SENT_BACK')"
_POP = f"stored_kind IN ({quoted(POP_KINDS)})"
_DEAD = "(stored_kind IN ('DLQ', 'DLQ_WAIT') OR kind = 'DEAD_LETTERED')"

_RETRY_PLACE = packed(
    padded("retry_times"), padded("start_ms"), "broker_name", padded("queue_id"), padded("queue_offset"), "pop"
)

_GROUP_COPIES = f"""
SELECT cluster, msg_id, group_name, max(publish_hour) AS publish_hour,
    max(retry_times) FILTER ({_RETRY}) AS retry_copy_times,
    min(retry_times) FILTER ({_RETRY}) AS retry_times_min,
    max(retry_times) FILTER (NOT {_POP}) AS copy_times,
    count(*) FILTER ({PUT_BACK_RETRY}) AS put_back_count,
    count(*) FILTER ({SUSPENDED_RETRY}) AS suspended_count,
    max(due_ms) FILTER ({_RETRY}) AS retry_due_ms,
    max(start_ms) FILTER ({_RETRY}) AS sent_back_ms,
    max(CASE WHEN stored_kind IN ('RETRY', 'RETRY_POP') THEN
      {_RETRY_PLACE} END) AS retry_place,
    min(start_ms) FILTER (stored_kind = 'RETRY_POP') AS pop_copy_ms,
    min(start_ms) FILTER ({_POP}) AS popped_ms,
    min(start_ms) FILTER ({_DEAD}) AS dead_ms,
    max(retry_times) FILTER ({_DEAD}) AS dead_times,
    max(CASE WHEN {_DEAD} THEN cause ELSE '' END) AS recorded_cause,
    max(CASE WHEN {_DEAD} AND delay_level < 0 THEN 1 ELSE 0 END) AS ordered_mark
FROM ({COPIES_OF_GROUPS}) AS copies WHERE {business_group()}
GROUP BY cluster, msg_id, group_name"""

_CLIENT = "CASE WHEN client_id <> '' THEN client_id ELSE client_host END"

_ROUNDS = f"""
SELECT cluster, msg_id, group_name, retry_times, max(publish_hour) AS publish_hour, max(topic) AS topic,
    count(*) AS hand_count,
    min(end_ms) FILTER (outcome = 'FAILED') AS first_failed_ms,
    count(*) FILTER (outcome = 'SURE') AS sure_count,
    count(*) FILTER (outcome = 'REPORTED') AS reported_count,
    count(*) FILTER (outcome = 'FAILED') AS failed_count,
    count(*) FILTER (outcome = 'OPEN') AS open_count,
    count(*) FILTER (has_before = 0) AS beginless_count,
    max(CASE WHEN outcome = 'REPORTED' AND coalesce(cost_ms, 0) > 0 THEN 1 ELSE 0 END) AS reported_cost,
    min(start_ms) AS first_ms, max(start_ms) AS last_ms, max(end_ms) AS last_end_ms,
    min({_CLIENT}) AS client_least, max({_CLIENT}) AS client_most,
    max(seen_ms) AS last_seen_ms, min(seen_ms) FILTER (outcome IN ('SURE', 'REPORTED')) AS success_seen_ms,
    max({packed(padded("start_ms"), "outcome", _CLIENT, "client_id", "client_host")}) AS last_hand_over,
    max({packed(padded("seen_ms"), padded("start_ms"), "client_id", "client_host")}) FILTER (outcome = 'OPEN')
      AS last_open,
    min({packed(padded("start_ms"), padded("end_ms"))}) FILTER (outcome = 'SURE') AS first_sure,
    min({packed(padded("start_ms"), padded("end_ms"))}) FILTER (outcome = 'REPORTED') AS first_reported,
    max(cost_ms) FILTER (outcome IN ('SURE', 'REPORTED')) AS cost_ms,
    max(CASE WHEN outcome IN ('SURE', 'REPORTED') AND cost_is_own = 0 AND end_ms - start_ms > 2 * cost_ms + 1
      THEN 1 ELSE 0 END) AS cost_is_average,
    max({packed(padded("start_ms"), "detail")}) FILTER (outcome = 'FAILED') AS last_failure
FROM hand_overs GROUP BY cluster, msg_id, group_name, retry_times"""

# REPORTED counts as a success, unless there is a copy with more attempts and no failed hand-over of the same round that
# explains it. Then the listener acknowledged only the head of its batch (ackIndex), and this message was in the tail.
# A popped message whose time was up is copied while its handler runs: then the success is the handler's own.
_REPORT_HOLDS = """(r.retry_times < 0 OR r.failed_count > 0 OR coalesce(c.copy_times, 0) <= r.retry_times
  OR r.retry_times = 0 AND r.last_end_ms > c.pop_copy_ms)"""
_SUCCEEDED = f"r.sure_count > 0 OR (r.reported_count > 0 AND {_REPORT_HOLDS})"

_FACTS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # name, fold, from rounds r with copies c, from copies, from expected groups, from carriers
    ("topic", "max", "r.topic", "''", "topic", "''"),
    ("maybe", "max", "NULL", "NULL", "maybe", "NULL"),  # 1: it is not known whether the group was there already
    ("known_ms", "max", "NULL", "NULL", "known_ms", "NULL"),
    ("delivery_count", "sum", "r.hand_count", "0", "0", "0"),
    ("sure_count", "sum", "r.sure_count", "0", "0", "0"),
    ("reported_count", "sum", f"CASE WHEN {_REPORT_HOLDS} THEN r.reported_count ELSE 0 END", "0", "0", "0"),
    ("failure_count", "sum", f"r.failed_count + CASE WHEN {_REPORT_HOLDS} THEN 0 ELSE r.reported_count END",
     "0", "0", "0"),
    # Successes after which POP gave the message out again: only the head of the batch was acknowledged, or no
    # acknowledgement arrived.
    ("doubted_count", "sum", f"CASE WHEN {_REPORT_HOLDS} OR c.pop_copy_ms IS NULL THEN 0 ELSE r.reported_count END",
     "0", "0", "0"),
    ("open_count", "sum", "r.open_count", "0", "0", "0"),
    ("beginless_count", "sum", "r.beginless_count", "0", "0", "0"),
    ("round_count", "sum", "CASE WHEN r.retry_times >= 0 THEN 1 ELSE 0 END", "0", "0", "0"),
    ("round_hands_max", "max", "CASE WHEN r.retry_times >= 0 THEN r.hand_count END", "NULL", "NULL", "NULL"),
    ("first_hands", "max", "CASE WHEN r.retry_times = 0 THEN r.hand_count END", "NULL", "NULL", "NULL"),
    ("later_hands", "sum", "CASE WHEN r.retry_times > 0 THEN r.hand_count ELSE 0 END", "0", "0", "0"),
    ("first_failed_ms", "min", "r.first_failed_ms", "NULL", "NULL", "NULL"),
    ("times_min", "min", "r.retry_times", "NULL", "NULL", "NULL"),
    ("times_max", "max", "r.retry_times", "NULL", "NULL", "NULL"),
    ("success_times", "min", f"CASE WHEN {_SUCCEEDED} THEN r.retry_times END",
     "NULL", "NULL", "NULL"),
    ("reported_cost", "max", "r.reported_cost", "NULL", "NULL", "NULL"),
    ("first_ms", "min", "r.first_ms", "NULL", "NULL", "NULL"),
    ("last_ms", "max", "r.last_ms", "NULL", "NULL", "NULL"),
    ("last_end_ms", "max", "r.last_end_ms", "NULL", "NULL", "NULL"),
    ("client_least", "min", "r.client_least", "NULL", "NULL", "NULL"),
    ("client_most", "max", "r.client_most", "NULL", "NULL", "NULL"),
    ("last_seen_ms", "max", "r.last_seen_ms", "NULL", "NULL", "NULL"),
    ("success_seen_ms", "min", "r.success_seen_ms", "NULL", "NULL", "NULL"),
    ("last_hand_over", "max", "r.last_hand_over", "NULL", "NULL", "NULL"),
    ("last_open", "max", "r.last_open", "NULL", "NULL", "NULL"),
    ("first_sure", "min", "r.first_sure", "NULL", "NULL", "NULL"),
    ("first_reported", "min", f"CASE WHEN {_REPORT_HOLDS} THEN r.first_reported END", "NULL", "NULL", "NULL"),
    ("cost_ms", "max", f"CASE WHEN r.sure_count > 0 OR {_REPORT_HOLDS} THEN r.cost_ms END", "NULL", "NULL", "NULL"),
    ("cost_is_average", "max", "r.cost_is_average", "NULL", "NULL", "NULL"),
    ("last_failure", "max", "r.last_failure", "NULL", "NULL", "NULL"),
    ("copy_times", "max", "NULL", "copy_times", "NULL", "NULL"),
    ("retry_copy_times", "max", "NULL", "retry_copy_times", "NULL", "NULL"),
    ("retry_times_min", "min", "NULL", "retry_times_min", "NULL", "NULL"),
    ("retry_due_ms", "max", "NULL", "retry_due_ms", "NULL", "NULL"),
    ("sent_back_ms", "max", "NULL", "sent_back_ms", "NULL", "NULL"),
    ("retry_place", "max", "NULL", "retry_place", "NULL", "NULL"),
    ("dead_ms", "min", "NULL", "dead_ms", "NULL", "NULL"),
    ("dead_times", "max", "NULL", "dead_times", "NULL", "NULL"),
    ("put_back_retries", "max", "0", "put_back_count", "0", "0"),
    ("suspended_count", "max", "0", "suspended_count", "0", "0"),
    ("recorded_cause", "max", "''", "recorded_cause", "''", "''"),
    ("ordered_mark", "max", "0", "ordered_mark", "0", "0"),
    ("batch_items", "max", "NULL", "NULL", "NULL", "item_count"),
    ("batch_handed", "max", "NULL", "NULL", "NULL", "handed_count"),
    ("batch_succeeded", "max", "NULL", "NULL", "NULL", "succeeded_count"),
    ("batch_start_ms", "min", "NULL", "NULL", "NULL", "start_ms"),
    ("batch_end_ms", "max", "NULL", "NULL", "NULL", "end_ms"),
)  # fmt: skip
_TEXTS = (
    "topic",
    "client_least",
    "client_most",
    "last_hand_over",
    "last_open",
    "first_sure",
    "first_reported",
    "last_failure",
    "retry_place",
    "recorded_cause",
)


_NAMESPACE = "CASE WHEN instr(m.topic, '%') > 1 THEN split_part(m.topic, '%', 1) END"
# A message is judged for groups that were known when it was offered or whose first sampled offset is not past it.
_EXPECTED = "(m.offered_from_ms >= g.known_ms OR o.first_offset <= m.queue_offset)"


def _group_facts() -> str:
    def columns(source: int) -> str:
        return ", ".join(f"cast({f[source]} AS {'string' if f[0] in _TEXTS else 'bigint'}) AS {f[0]}" for f in _FACTS)

    folded = ", ".join(f"cast({f[1]}({f[0]}) AS {'string' if f[0] in _TEXTS else 'bigint'}) AS {f[0]}" for f in _FACTS)
    return f"""
SELECT cluster, msg_id, group_name, {folded} FROM (
  SELECT r.cluster AS cluster, r.msg_id AS msg_id, r.group_name AS group_name, {columns(2)} FROM rounds r
  LEFT JOIN group_copies c ON r.cluster = c.cluster AND r.msg_id = c.msg_id AND r.group_name = c.group_name
  UNION ALL SELECT cluster, msg_id, group_name, {columns(3)} FROM group_copies
  UNION ALL SELECT cluster, msg_id, group_name, {columns(4)} FROM (
    SELECT m.cluster AS cluster, m.msg_id AS msg_id, g.group_name AS group_name, m.topic AS topic,
      g.known_ms AS known_ms, CASE WHEN coalesce({_EXPECTED}, false) THEN 0 ELSE 1 END AS maybe
    FROM messages m JOIN topic_groups g ON m.cluster = g.cluster AND m.topic = g.topic
    LEFT JOIN offsets_at o ON m.cluster = o.cluster AND g.group_name = o.group_name AND m.topic = o.topic
      AND m.broker_name = o.broker_name AND m.queue_id = o.queue_id
    WHERE (m.offered_to_ms > g.since_ms OR {_EXPECTED} OR g.reads_back = 1
        AND coalesce(o.first_offset > m.queue_offset, m.visible_ms IS NULL AND m.offered_from_ms < g.known_ms))
      AND g.message_model <> 'BROADCASTING' AND (g.by_namespace = 0 OR m.stored_ms IS NULL)
    UNION ALL
    SELECT p.cluster, p.msg_id, p.group_name, p.topic, p.known_ms, 2 - p.expects
    FROM group_places p JOIN topic_groups g ON p.cluster = g.cluster AND p.topic = g.topic
      AND p.group_name = g.group_name
    WHERE p.is_other = 1 AND p.expects > 0 AND g.message_model <> 'BROADCASTING') AS expected_groups
  UNION ALL SELECT cluster, msg_id, group_name, {columns(5)} FROM (
    SELECT c.* REPLACE ({in_namespace("c.group_name", _NAMESPACE)} AS group_name)
    FROM carriers c JOIN messages m ON c.cluster = m.cluster AND c.msg_id = m.msg_id) AS named
  WHERE {business_group()}) AS facts
GROUP BY cluster, msg_id, group_name"""
