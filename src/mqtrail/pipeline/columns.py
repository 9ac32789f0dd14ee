"""The columns of the `rocketmq` data source, and stored records as Arrow batches of them.

A reader makes only the columns of the schema. With `.schema("queue_offset bigint, stored_body_size int")` it neither
decompresses bodies nor copies them to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mqtrail.wire import (
    BODY_SIZE_MAX,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    CompressionError,
    Host,
    MessageQueue,
    RecordHead,
    decode_properties,
    decompress,
    find_property,
    offset_msg_id,
)

from .offsets import QueueRange
from .options import SourceOptionError

# Arrow batches of 1 000 to 4 000 rows are the fastest for Spark. Large bodies make smaller ones, which fit in memory.
BATCH_ROWS_MAX = 2_000
BATCH_SIZE_MAX = 16 * 1024 * 1024

LostReason = Literal["EXPIRED", "RECREATED", "UNREADABLE"]
"""Why messages are gone: the queue's first offset is past them, its end is below them, or their bytes are damaged."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A range of messages that are gone. until_ms: store time of the next message; None if there is none."""

    range: QueueRange
    reason: LostReason
    until_ms: int | None = None


class StoredRecord:
    """One stored record. Values that only some columns need are read from its bytes on demand."""

    __slots__ = ("body", "body_problem", "head", "queue", "record")

    def __init__(self, queue: MessageQueue, record: bytes, head: RecordHead, body_size_max: int) -> None:
        """body_size_max: bytes that the body may expand to; 0: it is not read."""
        self.queue = queue
        self.record = record
        self.head = head
        self.body: bytes | None = None
        self.body_problem: str | None = None
        if body_size_max:
            try:
                self.body = decompress(record[head.body_start : head.body_end], head.sys_flag, body_size_max)
            except CompressionError as error:
                self.body_problem = str(error)

    @property
    def property_text(self) -> bytes:
        return self.record[self.head.properties_start : self.head.properties_end]

    def property(self, name: str) -> str | None:
        """One property as consumers see it: the last one of its name; None if there is none."""
        value = find_property(self.property_text, name.encode())
        return None if value is None else value.decode("utf-8", "replace")

    def own_unique_key(self) -> str | None:
        """The first UNIQ_KEY of the property text. Brokers append the batch's UNIQ_KEY to each item of a batch, and
        consumers read the last one.
        """
        mark = PROPERTY_UNIQ_KEY + "\x01"
        for part in self.property_text.decode("utf-8", "replace").split("\x02"):
            if part.startswith(mark) and len(part) > len(mark):
                return part[len(mark) :]
        return None

    def body_text(self) -> str | None:
        """The body as text. Decoding it in Spark takes a hundred times longer."""
        return None if self.body is None else self.body.decode("utf-8", "replace")

    def offset_msg_id(self) -> str:
        return offset_msg_id(Host.unpack(self.head.store_host), self.head.physical_offset)

    def msg_id(self) -> str:
        return self.property(PROPERTY_UNIQ_KEY) or self.offset_msg_id()


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One column: its Spark type, its value from a record, and its meaning."""

    name: str
    type: str
    value: Callable[[StoredRecord], Any]
    meaning: str


COLUMNS: tuple[SourceColumn, ...] = (
    SourceColumn("topic", "string", lambda r: r.queue.topic, "topic of its queue"),
    SourceColumn("broker_name", "string", lambda r: r.queue.broker_name, "broker it was read from"),
    SourceColumn("queue_id", "int", lambda r: r.queue.queue_id, "queue of that topic and broker"),
    SourceColumn("queue_offset", "bigint", lambda r: r.head.queue_offset, "place in that queue"),
    SourceColumn("lost_until", "bigint", lambda r: None, "loss rows only: [queue_offset, lost_until) is gone"),
    SourceColumn("lost_reason", "string", lambda r: None, "loss rows only: EXPIRED, RECREATED or UNREADABLE"),
    SourceColumn("physical_offset", "bigint", lambda r: r.head.physical_offset, "CommitLog byte"),
    SourceColumn(
        "msg_id", "string", StoredRecord.msg_id, "the last UNIQ_KEY, or the offset id of a message without one"
    ),
    SourceColumn("own_unique_key", "string", StoredRecord.own_unique_key, "the first UNIQ_KEY: a batch item's own id"),
    SourceColumn("offset_msg_id", "string", StoredRecord.offset_msg_id, "id made of store host and physical offset"),
    SourceColumn("tags", "string", lambda r: r.property(PROPERTY_TAGS), "TAGS"),
    SourceColumn("keys", "string", lambda r: r.property(PROPERTY_KEYS), "KEYS, separated by blanks"),
    SourceColumn(
        "properties", "map<string,string>", lambda r: list(decode_properties(r.property_text).items()), "as stored"
    ),
    SourceColumn("body", "binary", lambda r: r.body, "body, decompressed; null if that fails"),
    SourceColumn("body_text", "string", StoredRecord.body_text, "body as UTF-8 text; invalid bytes become U+FFFD"),
    SourceColumn("body_problem", "string", lambda r: r.body_problem, "why the body cannot be decompressed, else null"),
    SourceColumn(
        "body_size", "int", lambda r: None if r.body is None else len(r.body), "bytes of the decompressed body"
    ),
    SourceColumn(
        "stored_body_size", "int", lambda r: r.head.body_end - r.head.body_start, "bytes of the body as stored"
    ),
    SourceColumn("body_crc", "bigint", lambda r: r.head.body_crc, "CRC-32 of the body as stored, 31 bits"),
    SourceColumn("store_size", "int", lambda r: r.head.size, "bytes of the whole stored record"),
    SourceColumn("flag", "int", lambda r: r.head.flag, "the application's flag"),
    SourceColumn("sys_flag", "int", lambda r: r.head.sys_flag, "compression, transaction and address-family bits"),
    SourceColumn(
        "born_timestamp_ms", "bigint", lambda r: r.head.born_timestamp_ms, "when it was made, producer's clock"
    ),
    SourceColumn(
        "born_host", "string", lambda r: str(Host.unpack(r.head.born_host)), "producer's ip:port, as the broker saw"
    ),
    SourceColumn(
        "store_timestamp_ms",
        "bigint",
        lambda r: r.head.store_timestamp_ms,
        "when it was stored, broker's clock; in a loss row, when the next message was",
    ),
    SourceColumn(
        "store_host", "string", lambda r: str(Host.unpack(r.head.store_host)), "broker's ip:port by its own account"
    ),
    SourceColumn("reconsume_times", "int", lambda r: r.head.reconsume_times, "deliveries that failed before"),
    SourceColumn(
        "prepared_transaction_offset", "bigint", lambda r: r.head.prepared_transaction_offset, "of the half message"
    ),
)
SCHEMA = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
_COLUMN = {column.name: column for column in COLUMNS}
_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}

_PLACE_COLUMNS = ("topic", "broker_name", "queue_id", "queue_offset", "lost_until", "lost_reason")
TRACE_COLUMNS = (
    *_PLACE_COLUMNS,
    "born_timestamp_ms",
    "born_host",
    "store_timestamp_ms",
    "body_text",
    "body_problem",
)
"""Columns that decoding a trace message needs."""
STORED_COLUMNS = (
    *_PLACE_COLUMNS,
    "physical_offset",
    "offset_msg_id",
    "own_unique_key",
    "properties",
    "stored_body_size",
    "body_crc",
    "store_size",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "store_timestamp_ms",
    "store_host",
    "reconsume_times",
)
"""Columns that a row of message_meta needs. Bodies are not decompressed for them."""

_BODY_COLUMNS = {"body", "body_text", "body_problem", "body_size"}

# The values of a loss row. Its other columns are null.
_LOSS_VALUES: dict[str, Callable[[Lost], Any]] = {
    "topic": lambda lost: lost.range.queue.topic,
    "broker_name": lambda lost: lost.range.queue.broker_name,
    "queue_id": lambda lost: lost.range.queue.queue_id,
    "queue_offset": lambda lost: lost.range.start,
    "lost_until": lambda lost: lost.range.end,
    "lost_reason": lambda lost: lost.reason,
    "store_timestamp_ms": lambda lost: lost.until_ms,
}


def columns_for(schema: StructType) -> list[SourceColumn]:
    """Return the columns of schema, in its order. SourceOptionError names a column that the source does not have."""
    for field in schema.fields:
        column = _COLUMN.get(field.name)
        if column is None or field.dataType.simpleString() != column.type:
            raise SourceOptionError(
                f"the schema asks for {field.name} {field.dataType.simpleString()}, expected columns out of: {SCHEMA}"
            )
    return [_COLUMN[field.name] for field in schema.fields]


class BatchBuilder:
    """Collects records into Arrow batches with exactly the schema's types."""

    def __init__(self, columns: StructType | Sequence[str], body_size_max: int = BODY_SIZE_MAX) -> None:
        """columns: Spark's schema, or names."""
        if isinstance(columns, StructType):
            self._columns = columns_for(columns)
            self._schema: pa.Schema = to_arrow_schema(columns, timezone="UTC")
        else:
            self._columns = [_COLUMN[name] for name in columns]
            self._schema = pa.schema([(column.name, _ARROW[column.type]) for column in self._columns])
        self._body_size_max = 0 if _BODY_COLUMNS.isdisjoint(self._schema.names) else body_size_max
        self._rows: list[StoredRecord] = []
        self._size = 0

    def add(self, queue: MessageQueue, record: bytes, head: RecordHead) -> Iterator[pa.RecordBatch]:
        """Add a record of a queue; yield a batch when it is full."""
        stored = StoredRecord(queue, record, head, self._body_size_max)
        self._rows.append(stored)
        self._size += head.size if stored.body is None else len(stored.body)
        if len(self._rows) >= BATCH_ROWS_MAX or self._size >= BATCH_SIZE_MAX:
            yield from self.flush()

    def loss(self, lost: Lost) -> Iterator[pa.RecordBatch]:
        """Yield one row that reports lost messages, if the schema has the column lost_until."""
        if "lost_until" in self._schema.names:
            fills = [_LOSS_VALUES.get(column.name) for column in self._columns]
            yield self._batch([[None if fill is None else fill(lost)] for fill in fills])

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining records, if there are any."""
        if self._rows:
            rows, self._rows, self._size = self._rows, [], 0
            yield self._batch([[column.value(stored) for stored in rows] for column in self._columns])

    def _batch(self, values: list[list[Any]]) -> pa.RecordBatch:
        arrays = [pa.array(column, type=field.type) for column, field in zip(values, self._schema, strict=True)]
        return pa.record_batch(arrays, schema=self._schema)
