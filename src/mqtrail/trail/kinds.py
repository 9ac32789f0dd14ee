"""What a stored copy is, and which topics and groups belong to applications: SQL over topics and properties.

`stored_sql` computes the kind and group of copies with it; the judgement asks for topics and groups.

NORMAL      in its own topic
BATCH       the same, one of a batch: its own id and the id consumers see differ
DELAYED     the same, after a delay level or timer
RESENT      the same, sent again by an operator: it names an original message
DELAY_WAIT  waits in SCHEDULE_TOPIC_XXXX or the timer's topic for its own topic
RETRY       in %RETRY%group;      RETRY_WAIT  waits for it
DLQ         in %DLQ%group;        DLQ_WAIT    waits for it (4.9 brokers)
HALF        a transaction's half message
RECALL      the timer's record that deletes a message
"""

from __future__ import annotations

from collections.abc import Iterable

from mqtrail.wire import (
    DLQ_PREFIX,
    HALF_TOPIC,
    INNER_GROUP_PREFIXES,
    INNER_TOPIC_PREFIXES,
    INNER_TOPICS,
    RECALL_TAG,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_GROUPS,
    TIMER_TOPIC,
)

VISIBLE_KINDS = ("NORMAL", "BATCH", "DELAYED", "RESENT")
"""Kinds of a copy that is delivered to the groups of its topic."""


def quoted(values: Iterable[str]) -> str:
    """`values` as the inside of an SQL IN list."""
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def starts_with(text: str, prefix: str) -> str:
    """SQL: whether `text` begins with the constant `prefix` (which LIKE would read as a pattern)."""
    return f"substr({text}, 1, {len(prefix)}) = '{prefix}'"


def stored_kind(topic: str = "topic") -> str:
    """SQL: the kind of a copy, from the columns of message_meta."""
    waits = f"{topic} IN ('{SCHEDULE_TOPIC}', '{TIMER_TOPIC}')"
    return f"""CASE
    WHEN {starts_with(topic, DLQ_PREFIX)} THEN 'DLQ'
    WHEN {starts_with(topic, RETRY_PREFIX)} THEN 'RETRY'
    WHEN {waits} AND {starts_with("real_topic", RETRY_PREFIX)} THEN 'RETRY_WAIT'
    WHEN {waits} AND {starts_with("real_topic", DLQ_PREFIX)} THEN 'DLQ_WAIT'
    WHEN {topic} = '{TIMER_TOPIC}' AND tags = '{RECALL_TAG}' THEN 'RECALL'
    WHEN {waits} THEN 'DELAY_WAIT'
    WHEN {topic} = '{HALF_TOPIC}' THEN 'HALF'
    WHEN origin_msg_id <> '' THEN 'RESENT'
    WHEN own_unique_key <> last_unique_key THEN 'BATCH'
    WHEN delay_level IS NOT NULL OR delay_ms IS NOT NULL OR due_ms IS NOT NULL THEN 'DELAYED'
    ELSE 'NORMAL' END"""


def retry_group(topic: str) -> str:
    """SQL: the consumer group of a %RETRY% or %DLQ% topic; '' of any other."""
    return f"""CASE WHEN {starts_with(topic, RETRY_PREFIX)} THEN substr({topic}, {len(RETRY_PREFIX) + 1})
    WHEN {starts_with(topic, DLQ_PREFIX)} THEN substr({topic}, {len(DLQ_PREFIX) + 1}) ELSE '' END"""


def business_topic(topic: str = "topic") -> str:
    """SQL condition: the topic is an application's, as wire.is_business_topic decides."""
    prefixes = " AND ".join(f"NOT {starts_with(topic, prefix)}" for prefix in INNER_TOPIC_PREFIXES)
    return f"({topic} <> '' AND {topic} NOT IN ({quoted(sorted(INNER_TOPICS))}) AND {prefixes})"


def business_group(group: str = "group_name") -> str:
    """SQL condition: the group is an application's, as wire.is_business_group decides."""
    prefixes = " AND ".join(f"NOT {starts_with(group, prefix)}" for prefix in INNER_GROUP_PREFIXES)
    return f"({group} <> '' AND {group} NOT IN ({quoted(sorted(SYSTEM_GROUPS))}) AND {prefixes})"
