"""The stage that turns stored messages into `message_meta`: what their records tell, without their bodies."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from mqtrail import trail
from mqtrail.wire import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC

# What the source is asked for: the body is counted and dropped where it arrives.
META_SCHEMA = (
    "topic string, broker_name string, queue_id int, queue_offset bigint, lost_until bigint, physical_offset bigint, "
    "offset_msg_id string, own_unique_key string, properties map<string,string>, stored_body_size int, "
    "body_crc bigint, store_size int, sys_flag int, born_timestamp_ms bigint, born_host string, "
    "store_timestamp_ms bigint, store_host string, reconsume_times int"
)


def message_meta(stored: DataFrame, cluster: str, delay_levels_ms: Sequence[int], read_ms: int) -> DataFrame:
    """One row a stored copy, as trail.MESSAGE_META says, of rows of META_SCHEMA; loss rows are left out.

    delay_levels_ms: what the broker's levels 1, 2, … mean (messageDelayLevel). read_ms: now.
    """
    expressions = _expressions(cluster, delay_levels_ms, read_ms)
    rows = stored.filter("lost_until IS NULL").selectExpr(*(f"{text} AS {name}" for name, text in expressions.items()))
    kinds = {"stored_kind": trail.stored_kind()}
    return rows.selectExpr(*(f"{kinds.get(name, name)} AS {name}" for name in trail.MESSAGE_META.names))


def _expressions(cluster: str, delay_levels_ms: Sequence[int], read_ms: int) -> dict[str, str]:
    """The SQL of every column of trail.MESSAGE_META, in its order."""
    level = f"try_cast({_property('DELAY')} AS bigint)"
    levels = ", ".join(f"{ms}L" for ms in delay_levels_ms)
    # A level above the highest waits as long as the highest; none and what is no level wait for nothing.
    delay_ms = (
        f"CASE WHEN {level} > 0 THEN element_at(array({levels}), int(least({level}, {len(delay_levels_ms)}))) END"
    )
    # Of a waiting copy the topic it waits for, of any other the one it stands in.
    bound_for = f"CASE WHEN topic = '{SCHEDULE_TOPIC}' THEN {_text('REAL_TOPIC')} ELSE topic END"
    own = {
        "cluster": _literal(cluster),
        "offset_msg_id": "offset_msg_id",
        "own_unique_key": "coalesce(own_unique_key, '')",
        "last_unique_key": _text("UNIQ_KEY"),
        "keys": _text("KEYS"),
        "tags": _text("TAGS"),
        "born_ms": "born_timestamp_ms",
        "store_ms": "store_timestamp_ms",
        "body_size": "stored_body_size",
        "real_topic": _text("REAL_TOPIC"),
        "retry_topic": _text("RETRY_TOPIC"),
        "group_name": f"CASE WHEN startswith({bound_for}, '{RETRY_PREFIX}') THEN substring({bound_for}, "
        f"{len(RETRY_PREFIX) + 1}) WHEN startswith({bound_for}, '{DLQ_PREFIX}') THEN substring({bound_for}, "
        f"{len(DLQ_PREFIX) + 1}) ELSE '' END",
        "origin_msg_id": _text("ORIGIN_MESSAGE_ID"),
        "delay_level": level,
        "delay_ms": delay_ms,
        "due_ms": f"coalesce(try_cast({_property('TIMER_OUT_MS')} AS bigint), CASE WHEN topic = '{SCHEDULE_TOPIC}' "
        f"THEN store_timestamp_ms + {delay_ms} END)",
        "trace_on": _text("TRACE_ON"),
        "read_ms": str(read_ms),
    }
    types = {"string": "string", "bigint": "bigint", "boolean": "boolean"}
    return {
        column.name: f"CAST({own.get(column.name, column.name)} AS {types[column.type]})"
        for column in trail.MESSAGE_META
        if column.name != "stored_kind"  # made of the others
    }


def _property(name: str) -> str:
    return f"properties['{name}']"


def _text(name: str) -> str:
    return f"coalesce({_property(name)}, '')"


def _literal(text: str) -> str:
    """A text as an SQL literal of Spark, whatever is in it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
