"""Bronze to silver: each record and each stored copy becomes a partial row of an attempt; partial rows are merged.

attempt_key distinguishes attempts of one message and kind:

    SEND             timeStamp@storeHost         one Pub: an answered attempt
    SEND_TRY         sendId#attempt              one PubAttempt
    STORED           broker:physical offset      one copy, from the broker's record and from the message itself
                     broker:physical offset#id   one half message (its offset id) that an op record ended, or one popped
                                                 message; request_id is the time of the pop
    HANDLED          requestId                   SubBefore and SubAfter of one delivery to a handler
                     requestId#2, #3, …          the same, of further messages of one delivery that have the same id
    RESULT           requestId@broker/queue/offset   one SubResult: one message of a batch
    SENT_BACK        group#reconsumeTimes
    DEAD_LETTERED    group#reconsumeTimes
    END_TRANSACTION  timeStamp@state             RECALL   timeStamp@outcome
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mqtrail.wire import DLQ_PREFIX, HALF_TOPIC, SCHEDULE_TOPIC, TIME_MS_MAX, TIMER_TOPIC

from .columns import Column
from .hours import publish_hour_select
from .kinds import POP_KINDS, quoted, retry_group, starts_with
from .results import ATTEMPTS
from .stages import Stage


def _time(text: str) -> str:
    """SQL: a time from a record; NULL if out of range, because later stages add to it."""
    return f"CASE WHEN {text} BETWEEN 0 AND {TIME_MS_MAX} THEN {text} END"


_COMMON = {
    "keys": "keys",
    "client_host": "trace_born_host",
    "seen_ms": "trace_store_ms",
    "evidence": "'trace:' || broker_name || '/' || cast(queue_id AS string) || '@' || cast(queue_offset AS string)"
    " || '#' || cast(record_no AS string)",
}
_POSITION = {"broker_name": "store_broker_name", "queue_id": "store_queue_id", "queue_offset": "store_queue_offset"}
_PLACE = "store_broker_name || '/' || cast(store_queue_id AS string) || '/' || cast(store_queue_offset AS string)"
_BIT = "CASE WHEN {} THEN 1 ELSE 0 END"
_WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC)
_HALF_TYPE = 1  # msgType of a half message in Pub
_WAITS = f"topic IN ({quoted(_WAITING_TOPICS)})"
# Consumers see the messages of a send batch under one id. A listener that gets several of them at once has one record
# each, in one trace message and in the order of the list: in SubBefore as in SubAfter.
_DELIVERIES = ("SubBefore", "SubAfter")
_TWIN = ("cluster", "broker_name", "trace_topic", "queue_id", "queue_offset", "record_type", "request_id", "msg_id")
_DELIVERY = """request_id || CASE WHEN list_position(twin_nos, record_no) > 1
    THEN '#' || cast(list_position(twin_nos, record_no) AS string) ELSE '' END"""
# Not again what attempt_key says: it would be a third of the bytes of silver.
_REQUEST = f"CASE WHEN {_DELIVERY} = request_id AND NOT starts_with(request_id, '#') THEN '' ELSE request_id END"
_WHOLE_REQUEST = """CASE WHEN kind = 'HANDLED' AND request_id = '' AND NOT starts_with(attempt_key, '#')
    THEN attempt_key ELSE request_id END"""

RECORD_FILLS: Mapping[str, Mapping[str, str]] = {
    "Pub": {
        **_COMMON,
        "kind": "'SEND'",
        "attempt_key": "cast(event_ms AS string) || '@' || store_host",
        "group_name": "group_name",
        "topic": "topic",
        "tags": "tags",
        "start_ms": "event_ms",
        "end_ms": "event_ms + cost_ms",
        "cost_ms": "cost_ms",
        "succeeded": _BIT.format("success"),
        "failed": _BIT.format("NOT success"),
        "item_count": "item_count",
        "offset_msg_id": "offset_msg_id",
        "store_host": "store_host",
        "body_size": "CASE WHEN item_count = 1 THEN body_size END",
        "stored_kind": f"CASE WHEN msg_type = {_HALF_TYPE} THEN 'HALF' ELSE '' END",
        "client_id": "trace_client_id",
    },
    "PubAttempt": {
        **_COMMON,
        "kind": "'SEND_TRY'",
        "attempt_key": "send_id || '#' || cast(attempt AS string)",
        "group_name": "group_name",
        "topic": "topic",
        "start_ms": "event_ms",
        "end_ms": "event_ms + cost_ms",
        "cost_ms": "cost_ms",
        "succeeded": _BIT.format("outcome = 'OK'"),
        "failed": _BIT.format("outcome NOT IN ('OK', 'ONEWAY')"),
        "outcome": "outcome",
        "response_code": "response_code",
        "is_final": _BIT.format("is_final"),
        "attempt_no": "attempt",
        "send_id": "send_id",
        "item_count": "item_count",
        "broker_name": "store_broker_name",
        "queue_id": "store_queue_id",
        "store_host": "store_host",
        "body_size": "CASE WHEN item_count = 1 THEN body_size END",
        "client_id": "client_id",
    },
    "SubBefore": {
        **_COMMON,
        "kind": "'HANDLED'",
        "attempt_key": _DELIVERY,
        "group_name": "group_name",
        "start_ms": "event_ms",
        "request_id": _REQUEST,
        "retry_times": "retry_times",
        "has_before": "1",
        "client_id": "trace_client_id",
    },
    "SubAfter": {
        **_COMMON,
        "kind": "'HANDLED'",
        "attempt_key": _DELIVERY,
        "group_name": "group_name",
        "end_ms": "event_ms",
        "cost_ms": "cost_ms",
        "succeeded": _BIT.format("success"),
        "failed": _BIT.format("NOT success"),
        "context_code": "context_code",
        "request_id": _REQUEST,
        "has_after": "1",
        "client_id": "trace_client_id",
    },
    "SubResult": {
        **_COMMON,
        **_POSITION,
        "keys": "''",
        "kind": "'RESULT'",
        "attempt_key": f"request_id || '@' || {_PLACE}",
        "group_name": "group_name",
        "topic": f"CASE WHEN {retry_group('topic')} = '' THEN topic ELSE '' END",
        "start_ms": "event_ms - cost_ms",
        "end_ms": "event_ms",
        "cost_ms": "cost_ms",
        "succeeded": _BIT.format("result = 'SUCCESS'"),
        "failed": _BIT.format("result IN ('FAILED', 'EXCEPTION', 'RETURNNULL')"),
        "outcome": "result",
        "request_id": "request_id",
        "retry_times": "retry_times",
        "client_id": "client_id",
        "detail": "detail",
    },
    "Stored": {
        **_COMMON,
        **_POSITION,
        "client_host": "born_host",
        "kind": "'STORED'",
        "attempt_key": "store_broker_name || ':' || cast(physical_offset AS string)",
        "group_name": retry_group("topic"),
        "topic": f"CASE WHEN {retry_group('topic')} = '' AND NOT {_WAITS} THEN topic ELSE '' END",
        "stored_topic": "topic",
        "start_ms": "store_ms",
        "end_ms": "store_ms",
        "stored_kind": f"""CASE WHEN topic = '{SCHEDULE_TOPIC}' AND stored_kind = 'RETRY' THEN 'RETRY_WAIT'
            WHEN topic = '{HALF_TOPIC}' THEN 'HALF' WHEN stored_kind = 'RECALL' THEN 'RECALL'
            WHEN topic IN ('{SCHEDULE_TOPIC}', '{TIMER_TOPIC}') THEN 'DELAY_WAIT'
            WHEN {retry_group("topic")} <> '' THEN
              CASE WHEN {starts_with("topic", DLQ_PREFIX)} THEN 'DLQ' ELSE 'RETRY' END
            WHEN stored_kind IN ('BATCH', 'COMMIT') THEN stored_kind WHEN stored_kind = 'DELAY' THEN 'DELAYED'
            ELSE 'NORMAL' END""",
        "physical_offset": "physical_offset",
        "store_host": "store_host",
        "born_ms": _time("born_ms"),
    },
    "SentBack": {
        **_COMMON,
        "kind": "'SENT_BACK'",
        "attempt_key": "group_name || '#' || cast(coalesce(reconsume_times, -1) AS string)",
        "group_name": "group_name",
        "start_ms": "event_ms",
        "end_ms": "event_ms",
        "retry_times": "reconsume_times",
        "origin_msg_id": "origin_msg_id",
        "due_ms": "due_ms",
        "delay_level": "delay_level",
        "client_id": "client_id",
    },
    "DeadLettered": {
        **_COMMON,
        "kind": "'DEAD_LETTERED'",
        "attempt_key": "group_name || '#' || cast(coalesce(reconsume_times, -1) AS string)",
        "group_name": "group_name",
        "start_ms": "event_ms",
        "end_ms": "event_ms",
        "retry_times": "reconsume_times",
        "origin_msg_id": "origin_msg_id",
        "cause": "cause",
        "client_id": "client_id",
    },
    "EndTransaction": {
        **_COMMON,
        "kind": "'END_TRANSACTION'",
        "attempt_key": "cast(event_ms AS string) || '@' || transaction_state",
        "group_name": "group_name",
        "topic": "topic",
        "tags": "tags",
        "start_ms": "event_ms",
        "end_ms": "event_ms",
        "outcome": "transaction_state",
        "store_host": "store_host",
    },
    "Recall": {
        **_COMMON,
        "kind": "'RECALL'",
        "attempt_key": "cast(event_ms AS string) || CASE WHEN success THEN '@done' ELSE '@refused' END",
        "group_name": "group_name",
        "topic": "topic",
        "start_ms": "event_ms",
        "end_ms": "event_ms",
        "succeeded": _BIT.format("success"),
        "failed": _BIT.format("NOT success"),
    },
}
"""Record type → the columns of `attempts` that it fills → SQL over columns of trace_events."""

_IS_POP = f"stored_kind IN ({quoted(POP_KINDS)})"

META_FILLS: Mapping[str, str] = {
    "kind": "'STORED'",
    "attempt_key": "broker_name || ':' || cast(physical_offset AS string)"
    f" || CASE WHEN stored_kind = 'OP' OR {_IS_POP} THEN '#' || origin_msg_id ELSE '' END",
    "group_name": "group_name",
    "topic": "CASE WHEN stored_kind IN ('DELAY_WAIT', 'HALF', 'HALF_READ', 'OP', 'CHECK_MAX', 'RECALL') THEN real_topic"
    f" WHEN stored_kind IN ('RETRY', 'RETRY_POP', 'RETRY_WAIT', 'DLQ', 'DLQ_WAIT') OR {_IS_POP} THEN retry_topic"
    " ELSE topic END",
    "stored_topic": "topic",
    "keys": "keys",
    "tags": "tags",
    "traceparent": "traceparent",
    "start_ms": _time("store_ms"),
    "end_ms": _time("store_ms"),
    "retry_times": "reconsume_times",
    "batch_id": "CASE WHEN own_unique_key <> '' AND own_unique_key <> last_unique_key THEN last_unique_key ELSE '' END",
    "stored_kind": "stored_kind",
    "broker_name": "broker_name",
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "physical_offset": "physical_offset",
    "offset_msg_id": "offset_msg_id",
    "store_host": "store_host",
    "origin_msg_id": "origin_msg_id",
    "real_topic": "real_topic",
    "body_size": "body_size",
    "body_crc": "body_crc",
    "born_ms": f"CASE WHEN NOT {_IS_POP} THEN {_time('born_ms')} END",
    "request_id": f"CASE WHEN {_IS_POP} THEN cast(born_ms AS string) ELSE '' END",
    "due_ms": _time("due_ms"),
    "delay_level": "delay_level",
    "delay_ms": "delay_ms",
    "trace_on": "trace_on",
    "sharding_key": "sharding_key",
    "properties": "properties",
    "client_host": "born_host",
    "seen_ms": "read_ms",
    "evidence": "'message:' || broker_name || '/' || topic || '/' || cast(queue_id AS string) || '@'"
    " || cast(queue_offset AS string)",
}
"""The columns of `attempts` that a stored copy fills → SQL over columns of message_meta."""

_FILLED = [column for column in ATTEMPTS if column.name not in ("cluster", "publish_hour", "msg_id")]


def attempts_stage() -> Stage:
    """Return the stage `attempts`: partial rows of ATTEMPTS from the two bronze relations."""
    return Stage("attempts", attempts_sql(), ("trace_events", "message_meta"))


def attempts_sql(
    trace_events: str = "trace_events",
    message_meta: str = "message_meta",
    record_types: Iterable[str] = RECORD_FILLS,
    *,
    twins: bool = True,
) -> str:
    """SQL: partial rows of ATTEMPTS from the two bronze relations, given by name. Rows of one key are not merged.

    record_types: those in trace_events. twins=False: `twins_sql` finds none. With less the SQL is shorter and faster.
    """
    columns = ", ".join(ATTEMPTS.names)
    types = [record_type for record_type in RECORD_FILLS if record_type in set(record_types)]
    records = quoted(types) or "''"
    from_trace = ", ".join(f"{_by_type(column, types)} AS {column.name}" for column in _FILLED)
    if not twins:
        from_trace = from_trace.replace(_DELIVERY, "request_id")
    from_meta = ", ".join(f"{_typed(column, META_FILLS.get(column.name))} AS {column.name}" for column in _FILLED)
    meta_id = "CASE WHEN own_unique_key <> '' THEN own_unique_key WHEN last_unique_key <> '' THEN last_unique_key" \
        " ELSE offset_msg_id END"  # fmt: skip
    rows = f"""(SELECT cluster, msg_id, coalesce(event_ms, {_time("trace_born_ms")}) AS event_of_id_ms, {from_trace}
  FROM {_with_twins(trace_events) if twins else trace_events} WHERE record_type IN ({records}) AND msg_id <> ''
UNION ALL
SELECT cluster, {meta_id} AS msg_id, {_time("store_ms")} AS event_of_id_ms, {from_meta}
  FROM {message_meta} WHERE stored_kind <> 'POP_LOG' AND (stored_kind <> 'OP' OR own_unique_key <> '')
) AS partial_rows"""
    names = [name for name in ATTEMPTS.names if name != "publish_hour"]
    return f"SELECT {columns} FROM ({publish_hour_select(rows, 'msg_id', 'event_of_id_ms', ', '.join(names))}) AS hours"


def twins_sql(trace_events: str) -> str:
    """SQL: a row if records of one delivery can have the same id, otherwise none. It is cheaper than to number them."""
    return f"""SELECT 1 FROM {trace_events} WHERE record_type IN ({quoted(_DELIVERIES)})
      GROUP BY queue_offset, hash(record_type, request_id, msg_id) HAVING min(record_no) < max(record_no) LIMIT 1"""


def _with_twins(trace_events: str) -> str:
    """SQL, for a FROM: trace_events with twin_nos, the numbers of records of one delivery that have the same id."""
    key = ", ".join(_TWIN)
    twins = f"""SELECT {key}, list_sort(list(DISTINCT record_no)) AS twin_nos FROM {trace_events}
      WHERE record_type IN ({quoted(_DELIVERIES)}) GROUP BY {key} HAVING min(record_no) < max(record_no)"""
    on = " AND ".join(f"e.{name} = t.{name}" for name in _TWIN)
    return f"(SELECT e.*, t.twin_nos AS twin_nos FROM {trace_events} e LEFT JOIN ({twins}) t ON {on}) AS numbered"


def merge_sql(attempts: str = "attempts") -> str:
    """SQL: one row per key of ATTEMPTS. The order and the number of merges do not change the result."""
    folded = [c.name if c.fold == "key" else f"{c.fold}({c.name}) AS {c.name}" for c in ATTEMPTS]
    return f"SELECT {', '.join(folded)} FROM {attempts} GROUP BY {', '.join(ATTEMPTS.keys)}"


def with_requests_sql(attempts: str) -> str:
    """SQL: rows of ATTEMPTS, by name or in parentheses, each delivery with its request_id. Also of older lakes."""
    return f"SELECT * REPLACE ({_WHOLE_REQUEST} AS request_id) FROM {attempts}"


def folded_attempts_sql(
    trace_events: str, message_meta: str, record_types: Iterable[str], *, messages: bool, twins: bool = True
) -> str:
    """SQL: the rows of `attempts_sql`, merged. messages: whether message_meta has rows.

    Columns that none of the records fill have the same value in all rows and are not folded.
    """
    types = set(record_types)
    filled = {name for record_type, fills in RECORD_FILLS.items() if record_type in types for name in fills}
    filled |= set(META_FILLS) if messages else set()
    columns = [
        column.name
        if column.fold == "key"
        else f"{column.fold}({column.name}) AS {column.name}"
        if column.name in filled
        else f"{_typed(column, None)} AS {column.name}"
        for column in ATTEMPTS
    ]
    rows = attempts_sql(trace_events, message_meta, types, twins=twins)
    return f"SELECT {', '.join(columns)} FROM ({rows}) AS partial_attempts GROUP BY {', '.join(ATTEMPTS.keys)}"


def _typed(column: Column, expression: str | None) -> str:
    if expression is None:
        return "''" if column.type == "string" else f"cast(NULL AS {column.type})"
    return f"coalesce({expression}, '')" if column.type == "string" else f"cast({expression} AS {column.type})"


def _by_type(column: Column, types: Iterable[str]) -> str:
    """One CASE over the record types. Types that fill the column with the same SQL share a branch."""
    branches: dict[str, list[str]] = {}
    for record_type in types:
        if column.name in RECORD_FILLS[record_type]:
            branches.setdefault(RECORD_FILLS[record_type][column.name], []).append(record_type)
    if not branches:
        return _typed(column, None)
    when = " ".join(
        f"WHEN record_type IN ({', '.join(repr(t) for t in types)}) THEN {_typed(column, expression)}"
        for expression, types in branches.items()
    )
    return f"CASE {when} ELSE {_typed(column, None)} END"
