"""The columns of the `rocketmq` data source, and messages as Arrow batches of them.

A reader makes only the columns it is asked for: `spark.read.format("rocketmq").schema("queue_offset long, body binary")`
never builds the others, which is how a body that nobody wants is dropped where it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mqtrail.pipeline.offsets import QueueRange
from mqtrail.pipeline.options import SourceOptionError
from mqtrail.wire import MessageExt, MessageQueue

# Arrow batches of 1 000 to 4 000 rows are the fastest for Spark; of large bodies fewer, so that one fits in memory.
BATCH_ROWS_MAX = 2_000
BATCH_BODY_SIZE_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Spark's type, how a message fills it, and what it says. All but the queue are null in a loss row."""

    name: str
    type: str
    value: Callable[[MessageQueue, MessageExt], Any]
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("topic", "string", lambda q, m: q.topic, "topic it is stored under"),
    Column("broker_name", "string", lambda q, m: q.broker_name, "broker it was read from"),
    Column("queue_id", "int", lambda q, m: q.queue_id, "queue of that topic and broker"),
    Column("queue_offset", "bigint", lambda q, m: m.queue_offset, "place in that queue"),
    Column("lost_until", "bigint", lambda q, m: None, "set in a loss row alone: [queue_offset, lost_until) is gone"),
    Column("physical_offset", "bigint", lambda q, m: m.physical_offset, "CommitLog byte"),
    Column("msg_id", "string", lambda q, m: m.msg_id, "UNIQ_KEY, or the offset id of a message without one"),
    Column("offset_msg_id", "string", lambda q, m: m.offset_msg_id, "id that tells store host and physical offset"),
    Column("tags", "string", lambda q, m: m.properties.get("TAGS"), "TAGS"),
    Column("keys", "string", lambda q, m: m.properties.get("KEYS"), "KEYS, separated by blanks"),
    Column("properties", "map<string,string>", lambda q, m: list(m.properties.items()), "all properties as stored"),
    Column("body", "binary", lambda q, m: m.body, "body, decompressed"),
    Column("body_size", "int", lambda q, m: len(m.body), "bytes of the decompressed body"),
    Column("body_crc", "bigint", lambda q, m: m.body_crc & 0xFFFFFFFF, "CRC32 of the body as stored, unsigned"),
    Column("store_size", "int", lambda q, m: m.store_size, "bytes of the whole stored record"),
    Column("flag", "int", lambda q, m: m.flag, "the application's flag"),
    Column("sys_flag", "int", lambda q, m: m.sys_flag, "compression, transaction and address-family bits"),
    Column("born_timestamp_ms", "bigint", lambda q, m: m.born_timestamp_ms, "when the producer made it, its clock"),
    Column("born_host", "string", lambda q, m: str(m.born_host), "producer's ip:port as the broker saw it"),
    Column("store_timestamp_ms", "bigint", lambda q, m: m.store_timestamp_ms, "when the broker stored it, its clock"),
    Column("store_host", "string", lambda q, m: str(m.store_host), "broker's ip:port as it calls itself"),
    Column("reconsume_times", "int", lambda q, m: m.reconsume_times, "deliveries that failed before"),
    Column("prepared_transaction_offset", "bigint", lambda q, m: m.prepared_transaction_offset, "of the half message"),
)
SCHEMA = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)


def columns_for(schema: StructType) -> list[Column]:
    """Return the columns of schema, in its order. SourceOptionError names one that the source does not have."""
    known = {column.name: column for column in COLUMNS}
    for field in schema.fields:
        column = known.get(field.name)
        if column is None or field.dataType.simpleString() != column.type:
            raise SourceOptionError(
                f"the schema asks for {field.name} {field.dataType.simpleString()}, expected columns out of: {SCHEMA}"
            )
    return [known[field.name] for field in schema.fields]


# What a loss row says; every other column of it is null.
_LOSS_VALUES: dict[str, Callable[[QueueRange], Any]] = {
    "topic": lambda lost: lost.queue.topic,
    "broker_name": lambda lost: lost.queue.broker_name,
    "queue_id": lambda lost: lost.queue.queue_id,
    "queue_offset": lambda lost: lost.start,
    "lost_until": lambda lost: lost.end,
}


class BatchBuilder:
    """Collects messages, and cuts them into Arrow batches of exactly the schema's types."""

    def __init__(self, schema: StructType) -> None:
        self._columns = columns_for(schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._tells_loss = "lost_until" in schema.fieldNames()
        self._rows: list[tuple[MessageQueue, MessageExt]] = []
        self._body_size = 0

    def add(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> Iterator[pa.RecordBatch]:
        """Take messages of queue; yield a batch whenever one is full."""
        for message in messages:
            self._rows.append((queue, message))
            self._body_size += len(message.body)
            if len(self._rows) >= BATCH_ROWS_MAX or self._body_size >= BATCH_BODY_SIZE_MAX:
                yield from self.flush()

    def loss(self, lost: QueueRange) -> Iterator[pa.RecordBatch]:
        """Yield one row that tells of a range that is gone, if the schema has lost_until to tell it with."""
        if self._tells_loss:
            values = [_LOSS_VALUES.get(column.name, lambda lost: None)(lost) for column in self._columns]
            yield self._batch([[value] for value in values])

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left, if anything is."""
        if self._rows:
            rows, self._rows, self._body_size = self._rows, [], 0
            yield self._batch([[column.value(queue, message) for queue, message in rows] for column in self._columns])

    def _batch(self, values: list[list[Any]]) -> pa.RecordBatch:
        arrays = [pa.array(column, type=field.type) for column, field in zip(values, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
