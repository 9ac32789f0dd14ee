"""What a stored copy is, and which topics and groups are an application's own: SQL over topics and properties.

NORMAL      in its own topic
BATCH       the same, one of a batch: its own id and the id consumers see differ
DELAYED     the same, after a delay level or timer
RESENT      the same, put back by hand: it names an original message
DELAY_WAIT  waits in SCHEDULE_TOPIC_XXXX or the timer's topic for its own topic
RETRY       in %RETRY%group;      RETRY_WAIT  waits for it
DLQ         in %DLQ%group;        DLQ_WAIT    waits for it (4.9 brokers)
HALF        a transaction's half message
RECALL      the timer's note that deletes a message
"""

from __future__ import annotations

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
RECALL_TAG = "_RECALL_TAG_"

VISIBLE_KINDS = ("NORMAL", "BATCH", "DELAYED", "RESENT")
"""Kinds of a copy that its topic's groups can be handed."""

SYSTEM_TOPIC_PREFIXES = ("RMQ_SYS_", "rmq_sys_", "%RETRY%", "%DLQ%", "%SYS%")
SYSTEM_TOPICS = (SCHEDULE_TOPIC, "TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
                 "TRANS_CHECK_MAX_TIME_TOPIC", "DefaultHeartBeatSyncerTopic")  # fmt: skip
TOOL_GROUP_PREFIXES = (
    "%RETRY%",
    "%DLQ%",
    "TOOLS_",
    "CID_RMQ_SYS_",
    "CID_ONSAPI_",
    "_INNER_TRACE",
    "SELF_TEST_",
    "FILTERSRV_",
    "MONITOR_CONSUMER",
    "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER",
    "CID_ONS-HTTP-PROXY",
)
"""Groups of tools, of traces and of the system: never judged."""


def quoted(values: tuple[str, ...]) -> str:
    """`values` as the inside of an SQL IN list."""
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def starts_with(text: str, prefix: str) -> str:
    """SQL: whether `text` begins with the constant `prefix` (which LIKE would read as a pattern)."""
    return f"substr({text}, 1, {len(prefix)}) = '{prefix}'"


def stored_kind(topic: str = "topic") -> str:
    """SQL: the kind of a copy, from the columns of message_meta."""
    waits = f"{topic} IN ('{SCHEDULE_TOPIC}', '{TIMER_TOPIC}')"
    return f"""CASE
    WHEN {starts_with(topic, "%DLQ%")} THEN 'DLQ'
    WHEN {starts_with(topic, "%RETRY%")} THEN 'RETRY'
    WHEN {waits} AND {starts_with("real_topic", "%RETRY%")} THEN 'RETRY_WAIT'
    WHEN {waits} AND {starts_with("real_topic", "%DLQ%")} THEN 'DLQ_WAIT'
    WHEN {topic} = '{TIMER_TOPIC}' AND tags = '{RECALL_TAG}' THEN 'RECALL'
    WHEN {waits} THEN 'DELAY_WAIT'
    WHEN {topic} = '{HALF_TOPIC}' THEN 'HALF'
    WHEN origin_msg_id <> '' THEN 'RESENT'
    WHEN own_unique_key <> last_unique_key THEN 'BATCH'
    WHEN delay_level IS NOT NULL OR delay_ms IS NOT NULL OR due_ms IS NOT NULL THEN 'DELAYED'
    ELSE 'NORMAL' END"""


def retry_group(topic: str) -> str:
    """SQL: the consumer group of a %RETRY% or %DLQ% topic; '' of any other."""
    return f"""CASE WHEN {starts_with(topic, "%RETRY%")} THEN substr({topic}, 8)
    WHEN {starts_with(topic, "%DLQ%")} THEN substr({topic}, 6) ELSE '' END"""


def business_topic(topic: str = "topic") -> str:
    """SQL condition: an application's own topic; not '' and none of the system's."""
    prefixes = " AND ".join(f"NOT {starts_with(topic, prefix)}" for prefix in SYSTEM_TOPIC_PREFIXES)
    return f"({topic} <> '' AND {topic} NOT IN ({quoted(SYSTEM_TOPICS)}) AND {prefixes})"


def is_business_topic(topic: str) -> bool:
    """The same as `business_topic`, of one name that is at hand."""
    return bool(topic) and topic not in SYSTEM_TOPICS and not topic.startswith(SYSTEM_TOPIC_PREFIXES)


def is_business_group(group: str) -> bool:
    """The same as `business_group`, of one name that is at hand."""
    return bool(group) and not group.startswith(TOOL_GROUP_PREFIXES)


def business_group(group: str = "group_name") -> str:
    """SQL condition: an application's own consumer group; not ''."""
    return f"({group} <> '' AND " + " AND ".join(f"NOT {starts_with(group, p)}" for p in TOOL_GROUP_PREFIXES) + ")"
