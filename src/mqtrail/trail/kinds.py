"""Kinds of stored copies, and the topics and groups of applications: SQL over topics and properties.

`stored_sql` uses it for the kind and group of copies, the judgement for topics and groups.

NORMAL      in its own topic
NORMAL_LMQ  the same, also put into light queues (INNER_MULTI_DISPATCH), which other groups read
BATCH       the same, of a batch: its own id differs from the id that consumers see
DELAYED     the same, after a delay level or a timer
RESENT      the same, sent again by an operator: it names the original message
DELAY_WAIT  waits in SCHEDULE_TOPIC_XXXX or in the timer topic
RETRY       in %RETRY%group;      RETRY_WAIT  waits for its delivery there
RETRY_POP   in %RETRY%group_topic or %RETRY%group+topic, where POP puts what it gives out again; without RETRY_TOPIC
POP_CK      check point of POP: a group was handed the message of this id;     POP_ACK   the group acknowledged it
POP_LOG     the same, of a message that its broker no longer has
DLQ         in %DLQ%group;        DLQ_WAIT    waits for its delivery there (4.9 brokers)
COMMIT      in its own topic, committed by a transaction
HALF        half message of a transaction;    HALF_READ   the same, read when the messages of its topic were read too
OP          op record that ended one half message (ORIGIN_MESSAGE_ID is the offset id of that)
CHECK_MAX   half message that the broker no longer checks
RECALL      record of the timer that recalls a message
"""

from __future__ import annotations

from collections.abc import Iterable

from mqtrail.wire import (
    DLQ_PREFIX,
    HALF_TOPIC,
    INNER_GROUP_PREFIXES,
    INNER_TOPIC_PREFIXES,
    INNER_TOPICS,
    OP_HALF_TOPIC,
    POP_CHECK_POINT_TAG,
    RECALL_TAG,
    RETRY_PREFIX,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_GROUPS,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    MessageSysFlag,
)

_COMMITTED = int(MessageSysFlag.TRANSACTION_COMMIT)
_TRANSACTION_MASK = int(MessageSysFlag.TRANSACTION_COMMIT | MessageSysFlag.TRANSACTION_ROLLBACK)

VISIBLE_KINDS = ("NORMAL", "NORMAL_LMQ", "BATCH", "DELAYED", "RESENT", "COMMIT")
"""Kinds of copies that are delivered to the groups of their topic."""
HALF_KINDS = ("HALF", "HALF_READ")
"""Kinds of half messages. The greater one holds if several records tell of one copy."""
POP_KINDS = ("POP_CK", "POP_ACK")
"""Kinds of records about one message that a group popped."""
NOTE_KINDS = ("RECALL", "OP", *POP_KINDS)
"""Kinds of records that the broker keeps about a message: their tags, sizes and hosts are not the message's."""


def literal(text: str | None) -> str:
    """Return a text as a literal of SQL."""
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


def quoted(values: Iterable[str]) -> str:
    """Return values as the inside of an SQL IN list."""
    return ", ".join(map(literal, values))


def starts_with(text: str, prefix: str) -> str:
    """SQL: whether `text` begins with the constant `prefix`; LIKE would interpret its wildcards."""
    return f"substr({text}, 1, {len(prefix)}) = '{prefix}'"


def stored_kind(topic: str = "topic", normal: str = "'NORMAL'") -> str:
    """SQL: the kind of a copy, from the columns of message_meta. normal: SQL of that of a copy without any mark."""
    waits = f"{topic} IN ('{SCHEDULE_TOPIC}', '{TIMER_TOPIC}')"
    return f"""CASE
    WHEN {starts_with(topic, DLQ_PREFIX)} THEN 'DLQ'
    WHEN {starts_with(topic, RETRY_PREFIX)} THEN
      CASE WHEN retry_topic = '' AND reconsume_times > 0 THEN 'RETRY_POP' ELSE 'RETRY' END
    WHEN {waits} AND {starts_with("real_topic", RETRY_PREFIX)} THEN 'RETRY_WAIT'
    WHEN {waits} AND {starts_with("real_topic", DLQ_PREFIX)} THEN 'DLQ_WAIT'
    WHEN {topic} = '{TIMER_TOPIC}' AND tags = '{RECALL_TAG}' THEN 'RECALL'
    WHEN {waits} AND {starts_with("real_topic", REVIVE_TOPIC_PREFIX)} THEN CASE WHEN origin_msg_id = '' THEN 'POP_LOG'
      WHEN tags = '{POP_CHECK_POINT_TAG}' THEN 'POP_CK' ELSE 'POP_ACK' END
    WHEN {waits} THEN 'DELAY_WAIT'
    WHEN {topic} = '{HALF_TOPIC}' THEN 'HALF'
    WHEN {topic} = '{OP_HALF_TOPIC}' THEN 'OP'
    WHEN {topic} = '{TRANS_CHECK_MAX_TIME_TOPIC}' THEN 'CHECK_MAX'
    WHEN origin_msg_id <> '' THEN 'RESENT'
    WHEN own_unique_key <> last_unique_key THEN 'BATCH'
    WHEN (sys_flag & {_TRANSACTION_MASK}) = {_COMMITTED} THEN 'COMMIT'
    WHEN delay_level IS NOT NULL OR delay_ms IS NOT NULL OR due_ms IS NOT NULL THEN 'DELAYED'
    ELSE {normal} END"""


def retry_group(topic: str) -> str:
    """SQL: the consumer group of a %RETRY% or %DLQ% topic; '' for other topics."""
    return f"""CASE WHEN {starts_with(topic, RETRY_PREFIX)} THEN substr({topic}, {len(RETRY_PREFIX) + 1})
    WHEN {starts_with(topic, DLQ_PREFIX)} THEN substr({topic}, {len(DLQ_PREFIX) + 1}) ELSE '' END"""


def business_topic(topic: str = "topic") -> str:
    """SQL condition: the topic belongs to an application, like wire.is_business_topic."""
    prefixes = " AND ".join(f"NOT {starts_with(topic, prefix)}" for prefix in INNER_TOPIC_PREFIXES)
    return f"({topic} <> '' AND {topic} NOT IN ({quoted(sorted(INNER_TOPICS))}) AND {prefixes})"


def business_group(group: str = "group_name") -> str:
    """SQL condition: the group belongs to an application, like wire.is_business_group."""
    prefixes = " AND ".join(f"NOT {starts_with(group, prefix)}" for prefix in INNER_GROUP_PREFIXES)
    return f"({group} <> '' AND {group} NOT IN ({quoted(sorted(SYSTEM_GROUPS))}) AND {prefixes})"
