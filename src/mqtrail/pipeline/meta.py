"""Stored messages become `message_meta`: the values of their records, without the bodies."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from mqtrail import trail
from mqtrail.wire import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_ON,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)

from .sqltext import literal, relation_columns, select, select_relation

HOLDS = "holds"  # column of message_meta(): the kind of the row
MESSAGES, GAPS = "messages", "gaps"

# Columns to read from the source. It does not pass bodies to Spark, only their size.
META_SCHEMA = (
    "topic string, broker_name string, queue_id int, queue_offset bigint, lost_until bigint, lost_reason string, "
    "physical_offset bigint, "
    "offset_msg_id string, own_unique_key string, properties map<string,string>, stored_body_size int, "
    "body_crc bigint, store_size int, sys_flag int, born_timestamp_ms bigint, born_host string, "
    "store_timestamp_ms bigint, store_host string, reconsume_times int"
)


def message_meta(stored: DataFrame, cluster: str, delay_levels_ms: Sequence[int], read_ms: int) -> DataFrame:
    """Read stored messages in one pass: columns of trail.MESSAGE_META, and `holds`, the kind of the row.

    MESSAGES  a stored copy
    GAPS      lost messages: from queue_offset to physical_offset, with the reason in tags

    stored: rows of META_SCHEMA. delay_levels_ms: delays of the broker's levels 1, 2, … (messageDelayLevel). read_ms:
    now.
    """
    columns = _columns(cluster, delay_levels_ms, read_ms)
    plain = select(stored, {name: text for name, text in columns.items() if name != "stored_kind"})
    holds = f"CASE WHEN {HOLDS} THEN '{GAPS}' ELSE '{MESSAGES}' END AS {HOLDS}"
    return plain.selectExpr(*relation_columns(trail.MESSAGE_META, {"stored_kind": trail.stored_kind()}), holds)


def gaps(kept: DataFrame, detected_ms: int) -> DataFrame:
    """Rows of trail.GAPS, of message_meta()'s rows of GAPS."""
    columns = {
        "first_offset": "queue_offset",
        "end_offset": "physical_offset",
        "from_ms": "NULL",
        "to_ms": f"coalesce(store_ms, {detected_ms})",
        "detected_ms": str(detected_ms),
        "reason": "tags",
    }
    return select_relation(kept, trail.GAPS, columns)


def _columns(cluster: str, delay_levels_ms: Sequence[int], read_ms: int) -> dict[str, str]:
    """SQL of every column but stored_kind, which is computed from them; and of holds, whether it is a loss row."""
    level = f"try_cast({_property(PROPERTY_DELAY)} AS bigint)"
    levels = ", ".join(f"{ms}L" for ms in delay_levels_ms)
    # A level above the highest waits as long as the highest. Without a valid level there is no delay.
    delay_ms = (
        f"CASE WHEN {level} > 0 THEN element_at(array({levels}), int(least({level}, {len(delay_levels_ms)}))) END"
    )
    real_topic = _text(PROPERTY_REAL_TOPIC)
    # The topic that a waiting copy waits for.
    bound_for = f"CASE WHEN topic IN ('{SCHEDULE_TOPIC}', '{TIMER_TOPIC}') THEN {real_topic} ELSE topic END"
    timer_ms = f"try_cast({_property(PROPERTY_TIMER_OUT_MS)} AS bigint)"
    waits_ms = f"CASE WHEN topic = '{SCHEDULE_TOPIC}' THEN store_timestamp_ms + {delay_ms} END"
    return {column: column for column in trail.MESSAGE_META.names} | {
        "cluster": literal(cluster),
        "own_unique_key": "coalesce(own_unique_key, '')",
        "last_unique_key": _text(PROPERTY_UNIQ_KEY),
        "physical_offset": "coalesce(lost_until, physical_offset)",
        "offset_msg_id": "coalesce(offset_msg_id, '')",
        "keys": _text(PROPERTY_KEYS),
        "tags": f"coalesce(lost_reason, {_text(PROPERTY_TAGS)})",
        "born_ms": "born_timestamp_ms",
        "born_host": "coalesce(born_host, '')",
        "store_ms": "store_timestamp_ms",
        "store_host": "coalesce(store_host, '')",
        "body_size": "stored_body_size",
        "real_topic": real_topic,
        "retry_topic": _text(PROPERTY_RETRY_TOPIC),
        "group_name": trail.retry_group(f"({bound_for})"),
        "origin_msg_id": _text(PROPERTY_ORIGIN_MESSAGE_ID),
        "delay_level": level,
        "delay_ms": delay_ms,
        "due_ms": f"coalesce({timer_ms}, {waits_ms})",
        "trace_on": _text(PROPERTY_TRACE_ON),
        "read_ms": str(read_ms),
        HOLDS: "lost_until IS NOT NULL",
    }


def _property(name: str) -> str:
    return f"properties['{name}']"


def _text(name: str) -> str:
    return f"coalesce({_property(name)}, '')"
