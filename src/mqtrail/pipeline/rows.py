"""Rows of a DataFrame as messages: which columns the sink takes, and why a row cannot be sent.

The schema is checked on the driver before any row is sent; each row is checked in its task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from mqtrail.wire import (
    PROPERTIES_SIZE_MAX,
    PROPERTY_UNIQ_KEY,
    RESERVED_PROPERTIES,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    UNSENDABLE_TOPICS,
    InvalidParameter,
    Message,
    MQError,
    PropertiesError,
    encode_properties,
    validate_topic,
)

from .options import SourceOptionError
from .rowids import ROW_ID_PROPERTY, TaskIds
from .sinkoptions import SINK_OPTIONS, SinkOptions

DELAY_LEVEL_MAX: Final = 18
_ID_SIZE: Final = 160  # bytes of the properties that the sink adds, at most
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint")

SINK_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "orderKey": ("string", *_NUMBERS),
    "delayLevel": _NUMBERS,
    "deliverAt": ("timestamp",),
}
"""Columns of the sink, and the types that each may have."""


class SinkRowError(MQError):
    """A row cannot be sent, and no rejectPath is set."""


class SinkRow(NamedTuple):
    """A message to send, with its id. stored_in: topic in which brokers store it first. number: place in the batch."""

    message: Message
    row_id: str
    stored_in: str
    order_key: str | int | None
    size: int
    batch: pa.RecordBatch
    number: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be sent: reason says what was found and what is expected."""

    batch: pa.RecordBatch
    number: int
    reason: str


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raise SourceOptionError if the sink does not know a column or its type, or lacks one."""
    columns = {field.name: field.dataType.simpleString() for field in schema.fields}
    expected = ", ".join(f"{name} {' or '.join(types)}" for name, types in SINK_COLUMNS.items())
    for name, kind in columns.items():
        if name == options.id_column and name not in SINK_COLUMNS:
            continue
        if kind not in SINK_COLUMNS.get(name, ()):
            raise SourceOptionError(
                f"the DataFrame has a column {name} {kind}, expected columns out of: {expected}. Select and cast the "
                "columns to send, or name the row's id by option idColumn"
            )
    if "body" not in columns:
        raise SourceOptionError(
            f"the DataFrame has the columns {', '.join(columns) or '(none)'}, expected body: add it, for example by "
            "to_json(struct(...)) AS body"
        )
    if ("topic" in columns) == (options.topic is not None):
        found = "both" if options.topic else "neither"
        raise SourceOptionError(
            f"found {found} of option topic and column topic, expected one of them: {SINK_OPTIONS['topic']}"
        )
    if options.topic is not None and (problem := _topic_problem(options.topic)):
        raise SourceOptionError(f"option topic: {problem}")
    if options.id_column is not None:
        kind = columns.get(options.id_column, "missing")
        if kind not in ("string", "binary", *_NUMBERS):
            raise SourceOptionError(
                f"option idColumn is {options.id_column!r}, a column that is {kind}, expected a column of text, bytes "
                "or whole numbers"
            )


class RowReader:
    """Makes messages of the rows of one task."""

    def __init__(self, options: SinkOptions, ids: TaskIds) -> None:
        self._options = options
        self._ids = ids
        self._count = 0
        self._topics: dict[str, str | None] = {}  # topic -> why no message can be sent to it

    def rows(self, batch: pa.RecordBatch) -> Iterator[SinkRow | BadRow]:
        """Yield each row, checked."""
        columns = {name: _values(batch, name) for name in batch.schema.names}
        id_column = self._options.id_column
        ids = [None] * batch.num_rows if id_column is None else columns[id_column]
        for number, values in enumerate(zip(*columns.values(), strict=True)):
            row, row_id = dict(zip(columns, values, strict=True)), ids[number]
            self._count += 1
            try:
                yield self._row(row, row_id, batch, number)
            except _BadValue as error:
                yield BadRow(batch, number, str(error))

    def _row(self, row: dict[str, Any], row_id: Any, batch: pa.RecordBatch, number: int) -> SinkRow:
        options = self._options
        topic = options.topic if options.topic is not None else row["topic"]
        self._check_topic(topic)
        body = row["body"]
        if body is None or not 0 < len(body) <= options.body_size_max:
            found = "null" if body is None else f"{len(body)} bytes"
            raise _BadValue(f"body is {found}, expected 1 to {options.body_size_max} bytes (option bodySizeMax)")
        keys = _keys(row.get("keys"))
        tags = row.get("tags") or ""
        given = _properties(row.get("properties"))
        level, deliver_at_ms, stored_in = _delay(row, topic)
        order_key = row.get("orderKey")
        size = len(body) + _size_max(tags, *keys, *given, *given.values())
        if size - len(body) > PROPERTIES_SIZE_MAX // 4 or given or "\x02" in tags or any("\x02" in one for one in keys):
            _check_properties(Message(topic, body, tags=tags, keys=keys, properties=given))
        if options.id_column is None:
            content = (topic, tags, keys, sorted(given.items()), order_key, level, deliver_at_ms)
            own_id = self._ids.row(self._count, content, body)
        elif row_id is None:
            raise _BadValue(f"{options.id_column} is null, expected a value that identifies the row (option idColumn)")
        else:
            own_id = self._ids.row(self._count, row_id)
        message = Message(
            topic,
            body,
            tags=tags,
            keys=keys,
            delay_level=level,
            deliver_at_ms=deliver_at_ms,
            properties={PROPERTY_UNIQ_KEY: own_id, **given},
        )
        return SinkRow(message, own_id, stored_in, order_key, size, batch, number)

    def _check_topic(self, topic: str | None) -> None:
        if topic is None:
            raise _BadValue("topic is null, expected the name of a topic")
        if topic not in self._topics:
            if len(self._topics) >= 4_096:
                self._topics.clear()
            self._topics[topic] = _topic_problem(topic)
        if problem := self._topics[topic]:
            raise _BadValue(problem)


class _BadValue(Exception):
    """Why a row cannot be sent."""


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    if name == "body" and not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    if pa.types.is_timestamp(column.type):
        micros: list[int | None] = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if at is None else at // 1_000 for at in micros]
    values: list[Any] = column.to_pylist()
    return values


def _topic_problem(topic: str) -> str | None:
    try:
        validate_topic(topic)
    except InvalidParameter as error:
        return f"topic is {topic[:200]!r}: {error}"
    return (
        f"topic is {topic!r}, a system topic of brokers; expected another one" if topic in UNSENDABLE_TOPICS else None
    )


def _keys(found: str | list[str | None] | None) -> tuple[str, ...]:
    if not found:
        return ()
    if isinstance(found, str):
        return tuple(found.split())
    for key in found:
        if not key or key.split() != [key]:
            raise _BadValue(f"keys has {key!r}, expected texts without blanks: brokers separate keys by blanks")
    return tuple(key for key in found if key)


def _properties(found: list[tuple[str, str | None]] | None) -> dict[str, str]:
    """Return the application's own properties; those of RocketMQ come from the other columns and the client."""
    given: dict[str, str] = {}
    for name, value in found or ():
        if name in RESERVED_PROPERTIES or name == ROW_ID_PROPERTY:
            continue
        if value is None:
            raise _BadValue(f"properties has {name!r} with null, expected text")
        given[name] = value
    return given


def _delay(row: Mapping[str, Any], topic: str) -> tuple[int, int, str]:
    """Return delay level, time of delivery, and the topic in which the broker stores the message first."""
    level, deliver_at_ms = row.get("delayLevel") or 0, row.get("deliverAt")
    if not 0 <= level <= DELAY_LEVEL_MAX:
        raise _BadValue(f"delayLevel is {level}, expected 0 to {DELAY_LEVEL_MAX}")
    if deliver_at_ms is None:
        return level, 0, SCHEDULE_TOPIC if level else topic
    if level:
        raise _BadValue(f"delayLevel is {level} and deliverAt is {_shown(deliver_at_ms)}, expected one of them")
    if deliver_at_ms <= 0:
        raise _BadValue(f"deliverAt is {_shown(deliver_at_ms)}, expected a time after 1970")
    return 0, deliver_at_ms, TIMER_TOPIC


def _shown(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms after 1970"


def _size_max(*texts: str) -> int:
    """Upper bound of the bytes of these texts as properties, for all but the longest scripts."""
    return sum(map(len, texts)) * 4 + 2 * len(texts) + _ID_SIZE


def _check_properties(message: Message) -> None:
    try:
        size = len(encode_properties(message.wire_properties()).encode("utf-8", "strict")) + _ID_SIZE
    except (PropertiesError, UnicodeEncodeError) as error:
        raise _BadValue(f"tags, keys or properties cannot be sent: {error}") from None
    if size > PROPERTIES_SIZE_MAX:
        raise _BadValue(
            f"tags, keys and properties take {size} bytes with the row's id, expected at most {PROPERTIES_SIZE_MAX}: "
            "move data to the body"
        )
