"""Converts stored messages to rows of `message_meta`: SQL for DuckDB over the fields of records, without bodies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mqtrail.wire import (
    HALF_TOPIC,
    INTEGER_PATTERN,
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_KEYS,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_ON,
    PROPERTY_UNIQ_KEY,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIME_MS_MAX,
    TIMER_TOPIC,
)

from .evidence import MESSAGE_META
from .kinds import literal, quoted, retry_group, starts_with, stored_kind
from .otel_context import TRACEPARENT, traceparent_sql

# Every property, as records have them. Of several with one name a map has the last, which is the one that counts.
_EVERY = "array_to_string([p.key || chr(1) || p.value || chr(2) for p in map_entries(properties)], '')"

POP_GROUP = "mqtrail.pop_group"
"""Property with which the pipeline names the group in a row about a popped message."""
_REAL_TOPIC = f"coalesce(properties['{PROPERTY_REAL_TOPIC}'], '')"
_IS_POP = f"topic = '{TIMER_TOPIC}' AND {starts_with(_REAL_TOPIC, REVIVE_TOPIC_PREFIX)}"


def message_meta_sql(
    stored: str,
    cluster: str,
    delay_levels_ms: Sequence[int],
    read_ms: int,
    sql_topics: Collection[str] = (),
    topics: Collection[str] = (),
) -> str:
    """SQL: rows of MESSAGE_META from a table of stored messages.

    stored: name of a table with the columns topic, broker_name, queue_id, queue_offset, physical_offset, offset_msg_id,
    own_unique_key, properties (a map), stored_body_size, body_crc, store_size, sys_flag, born_timestamp_ms, born_host,
    store_timestamp_ms, store_host, reconsume_times. delay_levels_ms: delays of the broker's levels 1, 2, …
    (messageDelayLevel). read_ms: the current time. sql_topics: those whose properties are kept. topics: those whose
    messages are read, too.
    """
    columns = _columns(cluster, delay_levels_ms, read_ms)
    kept = f"CASE WHEN topic IN ({quoted(sorted(sql_topics))}) THEN {_EVERY} ELSE '' END"
    columns["properties"] = kept if sql_topics else "''"
    columns["light_queues"] = _text(PROPERTY_INNER_MULTI_DISPATCH)
    plain = ", ".join(f"{text} AS {name}" for name, text in columns.items() if name != "stored_kind")
    kind = stored_kind(normal="CASE WHEN light_queues <> '' THEN 'NORMAL_LMQ' ELSE 'NORMAL' END")
    if topics:
        kind = f"CASE WHEN topic = '{HALF_TOPIC}' AND real_topic IN ({quoted(topics)}) THEN 'HALF_READ' ELSE {kind} END"
    return f"SELECT {MESSAGE_META.typed({'stored_kind': kind})} FROM (SELECT {plain} FROM {stored}) AS read"


def _columns(cluster: str, delay_levels_ms: Sequence[int], read_ms: int) -> dict[str, str]:
    """SQL of every column but stored_kind, which is computed from them and from light_queues."""
    level = _number(PROPERTY_DELAY)
    levels = f"[{', '.join(map(str, delay_levels_ms))}]::bigint[]"
    # A level above the highest means the highest. Without a valid level there is no delay.
    delay_ms = f"CASE WHEN {level} > 0 THEN ({levels})[least({level}, {len(delay_levels_ms)})] END"
    # The target topic of a waiting copy.
    bound_for = f"CASE WHEN topic IN ('{SCHEDULE_TOPIC}', '{TIMER_TOPIC}') THEN {_REAL_TOPIC} ELSE topic END"
    # Nothing is added to an invalid store time.
    waits_ms = f"CASE WHEN topic = '{SCHEDULE_TOPIC}' AND store_timestamp_ms BETWEEN 0 AND {TIME_MS_MAX} "
    waits_ms += f"THEN store_timestamp_ms + {delay_ms} END"
    return {column: column for column in MESSAGE_META.names} | {
        "cluster": literal(cluster),
        "own_unique_key": "coalesce(own_unique_key, '')",
        "last_unique_key": _text(PROPERTY_UNIQ_KEY),
        "keys": _text(PROPERTY_KEYS),
        "tags": _text(PROPERTY_TAGS),
        "traceparent": traceparent_sql(_property(TRACEPARENT)),
        "born_ms": "born_timestamp_ms",
        "store_ms": "store_timestamp_ms",
        "body_size": "stored_body_size",
        "real_topic": _REAL_TOPIC,
        "retry_topic": _text(PROPERTY_RETRY_TOPIC),
        "group_name": f"CASE WHEN {_IS_POP} THEN {_text(POP_GROUP)} ELSE {retry_group(f'({bound_for})')} END",
        "origin_msg_id": _text(PROPERTY_ORIGIN_MESSAGE_ID),
        "delay_level": level,
        "delay_ms": delay_ms,
        "due_ms": f"coalesce({_number(PROPERTY_TIMER_OUT_MS)}, {waits_ms})",
        "trace_on": _text(PROPERTY_TRACE_ON),
        "sharding_key": _text(PROPERTY_SHARDING_KEY),
        "read_ms": str(read_ms),
    }


def _property(name: str) -> str:
    return f"properties['{name}']"


def _text(name: str) -> str:
    return f"coalesce({_property(name)}, '')"


def _number(name: str) -> str:
    """SQL: a property as a number; NULL if it is not a number."""
    text = _property(name)
    return f"CASE WHEN regexp_full_match({text}, '{INTEGER_PATTERN}') THEN try_cast({text} AS bigint) END"
