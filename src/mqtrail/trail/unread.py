"""Messages that a group did not read before they were removed or lost, or that its offset passed without a client.

    unread_ranges → unread_at, the ranges as of the judgement
    unread_at × messages × group_facts → unread_hits: of each message and group the first range that has the message

The pipeline records these ranges when a sample shows them, because a later sample no longer does: the offset of a group
jumps to the minimum of its queue, and a deleted topic has no queues (`mqtrail.pipeline.unread`).
"""

from __future__ import annotations

from .packing import number_at, part
from .pops import retry_topic
from .stages import Stage

NO_END = 1 << 62
"""end_offset of a range without an end."""


def unread_stage(as_of_ms: int) -> Stage:
    """The unread ranges of samples until as_of_ms."""
    return Stage(
        "unread_at",
        f"""
SELECT DISTINCT cluster, sampled_ms, kind, group_name, topic, broker_name, queue_id, first_offset,
    coalesce(end_offset, {NO_END}) AS end_offset, live_count
FROM unread_ranges WHERE sampled_ms <= {as_of_ms}""",
        ("unread_ranges",),
    )


def unread_hits_stage() -> Stage:
    """Of each message and group the first range with the message, and with its copy in the retry topic. One that only
    shows that the queue is shorter counts if no other does.

    unread_any 1: it is a range of any group without an offset. A range of a time before the copy was stored is not of
    this copy: the queue was recreated.
    """
    return Stage("unread_hits", _HITS, ("unread_at", "messages", "group_facts", "group_places"))


_NAMES = ("unread", "retry_unread")
_HIT = "struct_pack(rank := CASE WHEN u.kind = 'SHORTENED' THEN 1 ELSE 0 END, ms := u.sampled_ms,"
_HIT += " of_any := CASE WHEN u.group_name = '' THEN 1 ELSE 0 END, kind := u.kind,"
_HIT += " live := u.live_count)"
_IN_RANGE = "u.first_offset <= {0} AND u.end_offset > {0}"
_HITS = f"""
SELECT cluster, msg_id, group_name, {
    ", ".join(f"{n}.ms AS {n}_ms, {n}.kind AS {n}_kind, {n}.live AS {n}_live" for n in _NAMES)
}, unread.of_any AS unread_any
FROM (SELECT cluster, msg_id, group_name, {", ".join(f"min(hit) FILTER (name = '{n}') AS {n}" for n in _NAMES)} FROM (
  SELECT g.cluster AS cluster, g.msg_id AS msg_id, g.group_name AS group_name, 'unread' AS name, {_HIT} AS hit
  FROM messages m JOIN unread_at u ON m.cluster = u.cluster AND m.topic = u.topic AND m.broker_name = u.broker_name
    AND m.queue_id = u.queue_id AND {_IN_RANGE.format("m.queue_offset")} AND m.visible_ms <= u.sampled_ms
  JOIN group_facts g ON m.cluster = g.cluster AND m.msg_id = g.msg_id AND u.group_name IN (g.group_name, '')
  ANTI JOIN (SELECT * FROM group_places WHERE is_other = 1) p
    ON g.cluster = p.cluster AND g.msg_id = p.msg_id AND g.group_name = p.group_name
  UNION ALL
  SELECT p.cluster, p.msg_id, p.group_name, 'unread', {_HIT}
  FROM group_places p JOIN unread_at u ON p.cluster = u.cluster AND p.topic = u.topic AND p.broker_name = u.broker_name
    AND p.queue_id = u.queue_id AND {_IN_RANGE.format("p.queue_offset")} AND p.visible_ms <= u.sampled_ms
    AND u.group_name IN (p.group_name, '')
  WHERE p.is_other = 1
  UNION ALL
  SELECT g.cluster, g.msg_id, g.group_name, 'retry_unread', {_HIT}
  FROM group_facts g JOIN messages m ON g.cluster = m.cluster AND g.msg_id = m.msg_id
  JOIN unread_at u ON g.cluster = u.cluster AND g.group_name = u.group_name
    AND u.topic = {retry_topic("g.group_name", part("g.retry_place", 6), "m.topic")}
    AND {part("g.retry_place", 3)} = u.broker_name
    AND {number_at("g.retry_place", 4)} = u.queue_id AND {_IN_RANGE.format(number_at("g.retry_place", 5))}
    AND {number_at("g.retry_place", 2)} <= u.sampled_ms) AS hits
GROUP BY cluster, msg_id, group_name) AS firsts"""

UNREAD_COLUMNS = "u.unread_any, " + ", ".join(f"u.{name}_{part}" for name in _NAMES for part in ("ms", "kind", "live"))
"""SQL of group_evidence: columns of unread_hits u. NULL: there is no range."""

IS_REMOVED = "(unread_kind <> 'OFFSET_MOVED' AND (unread_any = 0 OR now_offset IS NULL))"
"""SQL of group_evidence: whether the message was removed before the group's offset passed it."""


REPLACED = ("TRUNCATED", "RECREATED", "SHORTENED")
"""Kinds of ranges that the queue no longer has, or that have other messages now. Messages after which the queue or the
CommitLog goes on in their place are lost; a queue without any of its messages may have been deleted and created again.
"""


def unread_states(horizon: int, *, retry: bool) -> str:
    """SQL: the branches of a state that apply to a message that was not handed over, or (retry) to its last copy.

    A client that was online may have the message in memory: then the offset shows that it was not handed over.
    """
    name, passed = ("retry_unread", "retry_passed") if retry else ("unread", "passed")
    is_of = "copy_times > coalesce(times_max, -1) AND retry_place_times = copy_times" if retry else IS_REMOVED
    filtered = "" if retry else " AND filter_why = ''"
    traced = f"is_traced = 1 AND trace_off = 0{filtered}"
    alone = f"{name}_live = 0{filtered}"
    moved = f"{name}_kind = 'OFFSET_MOVED' AND {passed}_now = 1 AND {traced}"
    if retry:
        moved = f"{is_of} AND {moved}"
    removed = f"{name}_kind <> 'OFFSET_MOVED' AND {is_of}"
    return f"""
    WHEN {moved} THEN CASE WHEN {name}_ms <= {horizon} AND {passed}_then = 1 THEN 'SKIPPED:OFFSET_MOVED'
      ELSE 'UNKNOWN:TRACE_PENDING' END
    WHEN {removed} AND {name}_ms > {horizon} THEN 'UNKNOWN:TRACE_PENDING'
    WHEN {removed} AND {name}_kind = 'TRUNCATED' AND acked = 1 AND ({alone} OR {passed}_then = 1 AND {traced})
      THEN 'LOST:TRUNCATED'
    WHEN {removed} AND {name}_kind IN {REPLACED} THEN 'UNKNOWN:' || {name}_kind
    WHEN {removed} AND {name}_kind = 'TOPIC_DELETED' THEN CASE WHEN {alone} OR {traced} THEN 'EXPIRED:TOPIC_DELETED'
      ELSE 'UNKNOWN:TOPIC_DELETED' END
    WHEN {removed} AND ({alone} OR {passed}_then = 1 AND {traced}) THEN 'EXPIRED:REMOVED_UNREAD'
    WHEN {removed} AND {passed}_now = 0 THEN 'UNKNOWN:REMOVED_UNREAD'"""
