"""Messages that a group did not read before they were removed, or that its offset passed without a client.

    unread_ranges → unread, the ranges as of the judgement
    unread × messages × group_facts → unread_hits: of each message and group the first range that has the message

The pipeline records these ranges when a sample shows them, because a later sample no longer does: the offset of a group
jumps to the minimum of its queue, and a deleted topic has no queues (`mqtrail.pipeline.unread`).
"""

from __future__ import annotations

from .packing import number_at, packed, padded, part
from .stages import Stage

NO_END = 1 << 62
"""end_offset of a range without an end."""


def unread_stage(as_of_ms: int) -> Stage:
    """The unread ranges of samples until as_of_ms."""
    return Stage(
        "unread",
        f"""
SELECT DISTINCT cluster, sampled_ms, kind, group_name, topic, broker_name, queue_id, first_offset,
    coalesce(end_offset, {NO_END}) AS end_offset, live_count
FROM unread_ranges WHERE sampled_ms <= {as_of_ms}""",
        ("unread_ranges",),
    )


def unread_hits_stage() -> Stage:
    """Of each message and group the first range with the message (hit), and with its copy in the retry topic.

    group_name '': the range of any group without an offset. A range of a time before the copy was stored is not of
    this copy: the queue was made anew.
    """
    return Stage("unread_hits", _HITS, ("unread", "messages", "group_facts"))


_HIT = packed(padded("u.sampled_ms"), "u.kind", "coalesce(cast(u.live_count AS string), '')")
_IN_RANGE = "u.first_offset <= {0} AND u.end_offset > {0}"
_HITS = f"""
SELECT cluster, msg_id, group_name, min(hit) AS hit, min(retry_hit) AS retry_hit FROM (
  SELECT m.cluster AS cluster, m.msg_id AS msg_id, u.group_name AS group_name, {_HIT} AS hit,
    cast(NULL AS string) AS retry_hit
  FROM messages m JOIN unread u ON m.cluster = u.cluster AND m.topic = u.topic AND m.broker_name = u.broker_name
    AND m.queue_id = u.queue_id AND {_IN_RANGE.format("m.queue_offset")} AND m.visible_ms <= u.sampled_ms
  UNION ALL
  SELECT g.cluster, g.msg_id, g.group_name, NULL, {_HIT}
  FROM group_facts g JOIN unread u ON g.cluster = u.cluster AND g.group_name = u.group_name
    AND u.topic = '%RETRY%' || g.group_name AND {part("g.retry_place", 3)} = u.broker_name
    AND {number_at("g.retry_place", 4)} = u.queue_id AND {_IN_RANGE.format(number_at("g.retry_place", 5))}
    AND {number_at("g.retry_place", 2)} <= u.sampled_ms) AS hits
GROUP BY cluster, msg_id, group_name"""

# The range of any group is that of this group if it has no offset in the queue, and then no earlier range counts.
_OF_GROUP = f"""CASE WHEN {part("u.hit", 1)} <= coalesce({part("d.hit", 1)}, {part("u.hit", 1)}) THEN u.hit
        WHEN o.now_offset IS NULL THEN d.hit END"""

UNREAD_COLUMNS = ", ".join(
    f"{number_at(hit, 1)} AS {name}_ms, {part(hit, 2)} AS {name}_kind, {number_at(hit, 3)} AS {name}_live"
    for name, hit in (("unread", _OF_GROUP), ("retry_unread", "u.retry_hit"))
)
"""SQL of group_evidence: columns about unread_hits. NULL: there is no range."""

UNREAD_JOINS = """LEFT JOIN unread_hits u ON g.cluster = u.cluster AND g.msg_id = u.msg_id
      AND g.group_name = u.group_name
    LEFT JOIN (SELECT * FROM unread_hits WHERE group_name = '') d ON g.cluster = d.cluster AND g.msg_id = d.msg_id"""
"""SQL of group_evidence: its joins, after those of group_facts g and offsets_at o."""


def unread_states(horizon: int) -> str:
    """SQL: columns unread_state, of a message that was not handed over, and retry_unread_state, of its last copy.

    A state and its reason, as in group_states; '' if no range has the message, or the offset is before it again.
    """
    return ", ".join(
        f"{_state(name, passed, horizon)} AS {name}_state"
        for name, passed in (("unread", "passed"), ("retry_unread", "retry_passed"))
    )


def _state(name: str, passed: str, horizon: int) -> str:
    """A client that was there can have the message in its memory: then the offset tells that it was not handed over."""
    filtered = " AND filter_why = ''" if name == "unread" else ""
    traced = f"is_traced = 1 AND trace_off = 0{filtered}"
    alone = f"{name}_live = 0{filtered}"
    return f"""CASE WHEN {name}_kind IS NULL THEN ''
    WHEN {name}_kind = 'OFFSET_MOVED' AND NOT ({passed}_now = 1 AND {traced}) THEN ''
    WHEN {name}_ms > {horizon} THEN 'UNKNOWN:TRACE_PENDING'
    WHEN {name}_kind = 'OFFSET_MOVED' AND {passed}_then = 1 THEN 'SKIPPED:OFFSET_MOVED'
    WHEN {name}_kind = 'EXPIRED' AND ({alone} OR {passed}_then = 1 AND {traced}) THEN 'EXPIRED:REMOVED_UNREAD'
    WHEN {name}_kind = 'EXPIRED' AND {passed}_now = 0 THEN 'UNKNOWN:REMOVED_UNREAD'
    WHEN {name}_kind = 'TOPIC_DELETED' AND ({alone} OR {traced}) THEN 'EXPIRED:TOPIC_DELETED'
    WHEN {name}_kind = 'TOPIC_DELETED' THEN 'UNKNOWN:TOPIC_DELETED'
    ELSE '' END"""
