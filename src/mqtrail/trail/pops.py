"""Popped messages: what the broker's records show of them, and in which group's retry topic their copies are.

The retry topic of POP is %RETRY%group_topic, with newer brokers %RETRY%group+topic. Both parts may contain '_', so
the group is known only with the topic of the message. Brokers write no RETRY_TOPIC into these copies (`kinds`).

A pop writes a check point for the messages that it hands out, and an acknowledgement each. Both are in the timer's
topic until the time of the pop is up. A client that wants more time, or no longer wants the message, gets a new check
point, and then the broker itself acknowledges the old one. So only the last pop of a message shows what became of it,
and a pop with two check points of different times shows nothing.

A check point is due a second before the time of its pop is up. One of a time of a second or less is due at once, so it
is not in the timer's topic. So after an acknowledgement only a copy shows that the client gave the message back for so
short a time, and the broker makes it some seconds later: it scans its records for up to 10 s (reviveScanTime) and waits
4 s for more.
Source: PopReviveService.reviveRetry and consumeReviveMessage, HookUtils.transformTimerMessage,
ChangeInvisibleTimeProcessor.appendCheckPointThenAckOrigin and KeyBuilder, apache/rocketmq broker/ and common/.
"""

from __future__ import annotations

from typing import Final

from mqtrail.wire import RETRY_PREFIX, TIMER_TOPIC

from .evidence import RANGE_NOT_READ
from .kinds import POP_KINDS, business_group, quoted, starts_with
from .settings import Settings
from .stages import Stage

_JOINTS = ("_", "+")
"""Between group and topic in the names of POP's retry topics."""


def _ends_with_topic(name: str, topic: str) -> str:
    """SQL: whether the name of a retry topic, without its prefix, ends as that of POP for this topic."""
    tests = " OR ".join(f"right({name}, length({topic}) + 1) = '{joint}' || {topic}" for joint in _JOINTS)
    return f"({topic} <> '' AND length({name}) > length({topic}) + 1 AND ({tests}))"


_IS_POP = _ends_with_topic("r.group_name", "m.topic")

# The group of each copy, send-back and dead letter. `pop` is what is between group and topic in the name of the copy's
# retry topic. A broker's record of a copy (Stored) does not show whether POP made it. So if neither the copy itself was
# read nor a send-back, and the name can be that of a group or of POP, the copy counts for no group.
COPIES_OF_GROUPS = f"""
SELECT r.* EXCLUDE (group_name, is_sent_back),
    CASE WHEN r.stored_kind = 'RETRY_POP' AND {_IS_POP} THEN left(r.group_name, -1 - length(m.topic))
      WHEN r.stored_kind = 'RETRY_POP' AND m.topic = '' THEN ''
      WHEN r.stored_kind = 'RETRY' AND r.body_crc IS NULL AND NOT is_sent_back AND {_IS_POP} THEN ''
      ELSE r.group_name END AS group_name,
    CASE WHEN r.stored_kind = 'RETRY_POP' AND {_IS_POP} THEN left(right(r.group_name, length(m.topic) + 1), 1) ELSE ''
      END AS pop
FROM (SELECT *, bool_or(kind = 'SENT_BACK') OVER (PARTITION BY cluster, msg_id, group_name) AS is_sent_back
  FROM resolved WHERE kind IN ('STORED', 'SENT_BACK', 'DEAD_LETTERED') AND group_name <> '') r
JOIN message_facts m ON r.cluster = m.cluster AND r.msg_id = m.msg_id"""


def retry_topic(group: str, pop: str, topic: str) -> str:
    """SQL: the retry topic of a group; pop: what joins group and topic in its name, '' if POP did not make it."""
    return f"'{RETRY_PREFIX}' || {group} || CASE WHEN coalesce({pop}, '') = '' THEN '' ELSE {pop} || {topic} END"


def retry_topics(group: str, topic: str) -> str:
    """SQL, for IN: all retry topics that a group can have for a topic."""
    names = [f"'{RETRY_PREFIX}' || {group}", *(f"'{RETRY_PREFIX}' || {group} || '{one}' || {topic}" for one in _JOINTS)]
    return ", ".join(names)


def of_retry_topic() -> str:
    """SQL condition: `topic` is a retry topic of `group_name`, or of a group whose name begins like it."""
    return f"({starts_with('topic', RETRY_PREFIX)} AND starts_with(substr(topic, {len(RETRY_PREFIX) + 1}), group_name))"


def pop_gaps_stage() -> Stage:
    """Ranges of records of POP that were lost."""
    return Stage(
        "pop_gaps",
        f"""
SELECT cluster, broker_name, first_offset, end_offset, to_ms FROM gaps WHERE topic = '{TIMER_TOPIC}'""",
        ("gaps",),
    )


def pops_stage() -> Stage:
    """The last pop of each message by each group: from the message's own rows only.

    pop_acked_ms: when it was acknowledged in time, NULL: it was not. pop_offset, pop_acked_offset: places of its check
    point and its acknowledgement in the queue of these records.
    """
    return Stage("pops", _POPS, ("resolved",))


POP_COLUMNS = ("pop_ms", "pop_until_ms", "pop_times", "pop_acked_ms", "pops_read_ms", "pops_lost_ms", "pops_missed")
"""Columns of `pops_known` besides the key."""
_IS_CHECK_POINT = "stored_kind = 'POP_CK'"
"""SQL: the time in it is exact. The timer rounds that of an acknowledgement down."""

_POPS = f"""
SELECT cluster, msg_id, group_name, last.pop_ms AS pop_ms, last.until_ms AS pop_until_ms, last.times AS pop_times,
    CASE WHEN last.acked_ms <= last.until_ms AND last.least_ms = last.until_ms THEN last.acked_ms END AS pop_acked_ms,
    last.broker_name AS pop_broker, last.queue_offset AS pop_offset, last.acked_offset AS pop_acked_offset
FROM (SELECT cluster, msg_id, group_name, max(struct_pack(pop_ms := pop_ms, until_ms := until_ms, times := times,
      acked_ms := acked_ms, least_ms := least_ms, broker_name := broker_name, queue_offset := queue_offset,
      acked_offset := acked_offset)) AS last
  FROM (SELECT cluster, msg_id, group_name, cast(request_id AS bigint) AS pop_ms,
      coalesce(max(due_ms) FILTER ({_IS_CHECK_POINT}), max(due_ms)) AS until_ms,
      coalesce(min(due_ms) FILTER ({_IS_CHECK_POINT}), max(due_ms)) AS least_ms,
      max(retry_times) AS times, min(start_ms) FILTER (stored_kind = 'POP_ACK') AS acked_ms,
      min(broker_name) AS broker_name, min(queue_offset) FILTER ({_IS_CHECK_POINT}) AS queue_offset,
      min(queue_offset) FILTER (stored_kind = 'POP_ACK') AS acked_offset
    FROM resolved WHERE kind = 'STORED' AND stored_kind IN ({quoted(POP_KINDS)}) AND {business_group()}
    GROUP BY cluster, msg_id, group_name, request_id) AS pops
  GROUP BY cluster, msg_id, group_name) AS lasts"""


def pops_known_stage() -> Stage:
    """pops, and what is known of records after each: pops_read_ms, up to when they were read; pops_lost_ms, the end of
    a range of them that was lost since the pop; pops_missed 1: such a range is before the acknowledgement, and can have
    a newer check point.
    """
    return Stage(
        "pops_known",
        f"""
SELECT p.*, s.scanned_ms AS pops_read_ms, (SELECT max(l.to_ms) FROM losses l WHERE l.cluster = p.cluster
    AND l.reason = '{RANGE_NOT_READ}{TIMER_TOPIC}' AND l.to_ms >= p.pop_ms) AS pops_lost_ms,
  CASE WHEN EXISTS (SELECT 1 FROM pop_gaps g WHERE g.cluster = p.cluster AND g.broker_name = p.pop_broker
    AND g.end_offset <= p.pop_acked_offset AND coalesce(g.first_offset > p.pop_offset, true)
    AND coalesce(g.to_ms >= p.pop_ms, true)) THEN 1 ELSE 0 END AS pops_missed
FROM pops p LEFT JOIN scanned_topics s ON p.cluster = s.cluster AND s.topic = '{TIMER_TOPIC}'""",
        ("pops", "scanned_topics", "losses", "pop_gaps"),
    )


_IS_LAST = """(pop_ms IS NOT NULL AND offered_count = 1 AND coalesce(last_ms <= pop_until_ms, true)
      AND pop_times >= greatest(coalesce(copy_times, 0), coalesce(times_max, 0)))"""
"""SQL of group_evidence: whether no copy and no hand-over is newer than the last pop that was read."""
REVIVED_AFTER: Final = 3
"""Times of trace_delay_ms after an acknowledgement within which a copy may still be made and read."""
_TRACED = "(delivery_count > 0 AND times_max = pop_times)"
_TIMES_MAX: Final = 16
"""maxReconsumeTimes of a consumer that sets none. A client acknowledges a message with more attempts, and no handler
gets it. Source: DefaultMQPushConsumerImpl.processPopResult, apache/rocketmq client/."""
_DROPPED = f"(NOT {_TRACED} AND (delivery_count > 0 OR pop_times > {_TIMES_MAX}))"
"""SQL of group_evidence: whether no handler may have got the last attempt: earlier ones have records and it has none,
or there were more than consumers make."""
_ACCEPTED = "(excluded = 0 AND filter_why = '')"


POPPED_UNKNOWN = "(pop_ms IS NOT NULL AND offered_count = 1 AND delivery_count = 0)"
"""SQL of group_evidence: whether the group popped the message, and no hand-over shows to whom."""


def pop_is_open(as_of_ms: int) -> str:
    """SQL of group_evidence: whether the time of the last pop is not up, and it is not acknowledged."""
    return f"({_IS_LAST} AND pop_acked_ms IS NULL AND pop_until_ms > {as_of_ms})"


def pop_states(as_of_ms: int, settings: Settings, running: str) -> str:
    """SQL: the branches of a state that apply to a popped message. running: the state of a hand-over without an end.

    The record does not show who acknowledged it, or why: a client that gives a message up after many failures does, and
    a proxy, if the filter of the group excludes the message. Nor does it show which client popped it.
    """
    acked = f"{_IS_LAST} AND pop_acked_ms IS NOT NULL AND pops_missed = 0"
    is_open = (
        f"{pop_is_open(as_of_ms)} AND pops_read_ms >= {as_of_ms - settings.state_age_ms_max} AND pops_lost_ms IS NULL"
    )
    return f"""
    WHEN {acked} AND pop_acked_ms > {as_of_ms - REVIVED_AFTER * settings.trace_delay_ms} THEN 'UNKNOWN:TRACE_PENDING'
    WHEN {acked} AND {_TRACED} AND last_outcome = 'FAILED' THEN 'UNKNOWN:POP_GIVEN_UP'
    WHEN {acked} AND {_DROPPED} THEN 'UNKNOWN:POP_GIVEN_UP'
    WHEN {acked} AND ({_TRACED} OR {_ACCEPTED} AND consume_type <> '') THEN 'CONSUMED:POP_ACKED'
    WHEN {acked} AND {_ACCEPTED} THEN 'UNKNOWN:POP_ACKED'
    WHEN {is_open} AND {_TRACED} AND last_outcome = 'FAILED' THEN 'RETRYING'
    WHEN {is_open} AND {_TRACED} AND last_outcome IN ('OPEN', 'REPORTED') THEN {running}
    WHEN {is_open} AND excluded = 0 AND live_count > 0 AND clients_sampled_ms >= pop_ms
      AND {as_of_ms} - pop_ms < {settings.hung_ms} THEN 'IN_FLIGHT:POP_NOT_ACKED'
    WHEN {is_open} AND excluded = 0 THEN 'UNKNOWN:POP_NOT_ACKED'"""
