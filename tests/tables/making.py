"""Messages of `mqtrail binlog run`, made by its composer, and merged into tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from mqtrail.binlog.messages import ChangeComposer, Outbound
from mqtrail.binlog.model import BinlogPlace, Row, RowChange, SchemaChange, TransactionBegin, TransactionEnd
from mqtrail.tables.changes import MESSAGE_COLUMNS, Digest, Wanted, digest
from mqtrail.tables.target import DeltaTarget
from mqtrail.wire import Message, MessageQueue

SOURCE, TOPIC = "shop.orders", "cdc"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


def changed(at: int, before: Row | None, after: Row | None, table: str = "orders") -> list[Message]:
    """The messages of one change, at a place in the binlog. Key: id."""
    place = BinlogPlace("bin.000001", at)
    return _made(RowChange("shop", table, ("id",), before, after, place, 0, at * 1000), place)


def schema(at: int, kind: str, statement: str, names: tuple[str, ...] = (SOURCE,)) -> list[Message]:
    """The message of a statement."""
    place = BinlogPlace("bin.000001", at)
    return _made(SchemaChange(kind, names, statement, "shop", place, at * 1000), place)


def _made(item: RowChange | SchemaChange, place: BinlogPlace) -> list[Message]:
    composer = ChangeComposer(TOPIC)
    items = (TransactionBegin(place, f"0-7-{place.position}", place.position * 1000), item, TransactionEnd(place))
    return [made.message for one in items for made in composer.feed(one) if isinstance(made, Outbound)]


def batch(messages: Iterable[Message]) -> pa.RecordBatch:
    """Messages as the source `rocketmq` has them."""
    rows: list[dict[str, Any]] = [
        {
            "broker_name": QUEUE.broker_name,
            "queue_id": 0,
            "queue_offset": number,
            "msg_id": f"M{number}",
            "keys": " ".join(one.keys) or None,
            "body": one.body,
            "body_problem": None,
        }
        for number, one in enumerate(messages)
    ]
    assert all(tuple(row) == MESSAGE_COLUMNS for row in rows)
    return pa.RecordBatch.from_pylist(rows)


def digested(*parts: Iterable[Message], ignores_other: bool = False) -> Digest:
    """What messages say, each part read by another task."""
    made = Digest()
    for part in parts:
        for one in digest(Wanted(SOURCE, ignores_other), [batch(part)]):
            made.add_batch(one)
    return made


def merge(target: DeltaTarget, *parts: Iterable[Message], offset: int = 0) -> Digest:
    """Merge messages as one batch that ends at an offset."""
    made = digested(*parts)
    target.apply(made, {QUEUE: offset})
    return made


def rows(target: DeltaTarget, columns: str = "id, n") -> list[tuple[Any, ...]]:
    """The rows that are not deleted."""
    return target.rows(f"SELECT {columns} FROM t WHERE NOT _mq_deleted ORDER BY id")
