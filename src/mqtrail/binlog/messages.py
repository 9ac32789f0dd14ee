"""Changes as messages: their bodies, keys, tags and properties (docs/how-to/binlog.md has the tables)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from mqtrail.feed import SAFE, short_word
from mqtrail.wire import Message

from .model import (
    BinlogItem,
    BinlogPlace,
    NothingNew,
    Row,
    RowChange,
    SchemaChange,
    TransactionBegin,
    TransactionEnd,
    order_text,
)

OP, TABLE, POSITION, ROW, ORDER, GTID = (
    "BINLOG_OP",
    "BINLOG_TABLE",
    "BINLOG_POSITION",
    "BINLOG_ROW",
    "BINLOG_ORDER",
    "BINLOG_GTID",
)
TRANSACTION_INDEX, TRANSACTION_LAST, FENCE = "BINLOG_TX_INDEX", "BINLOG_TX_LAST", "BINLOG_FENCE"


class TagBy(StrEnum):
    """What the tag of a message is."""

    TABLE = "table"
    OP = "op"


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message. key: its messages stay in order; None: it goes to each queue. order: its place, for errors."""

    message: Message
    key: str | None
    order: str
    name: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything before place is sent once all that came before this is acknowledged. gtid: of that transaction."""

    place: BinlogPlace
    gtid: str
    time_ms: int
    is_idle: bool = False


def key_text(name: str, values: Row, key: tuple[str, ...]) -> str:
    """Return table and key of a row as one word: shop.orders:42, or shop.lines:42,7."""
    parts = (quote(_scalar(values[one]), safe=SAFE) for one in key)
    text = f"{quote(name, safe=SAFE)}:{','.join(parts)}"
    return short_word(text, text.encode(), f"{quote(name, safe=SAFE)}:")


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class ChangeComposer:
    """Makes messages of changes, in the binlog's order, and marks the last one of each transaction."""

    def __init__(self, topic: str, tag_by: TagBy = TagBy.TABLE) -> None:
        self._topic = topic
        self._tag_by = tag_by
        self._held: _Draft | None = None  # the last message of the transaction so far
        self._begin: TransactionBegin | None = None
        self._count = 0

    @property
    def count(self) -> int:
        """How many messages the transaction under way has so far."""
        return self._count

    def feed(self, item: BinlogItem) -> Iterator[Outbound | Checkpoint]:
        """Yield what is complete with this item."""
        if isinstance(item, TransactionBegin):
            self._begin, self._count = item, 0
        elif isinstance(item, RowChange):
            for draft in self._drafts(item):
                yield from self._hold(draft)
        elif isinstance(item, SchemaChange):
            yield from self._hold(self._schema(item))
        elif isinstance(item, TransactionEnd):
            if self._held is not None:
                yield self._finished(self._held, is_last=True)
                self._held = None
            begin = self._begin
            yield Checkpoint(item.place, begin.gtid if begin else "", begin.time_ms if begin else 0)
            self._begin = None
        elif isinstance(item, NothingNew):
            yield Checkpoint(item.place, "", 0, is_idle=True)

    def snapshot(
        self, name: str, key: tuple[str, ...], row: Row, place: BinlogPlace, number: int, time_ms: int
    ) -> Outbound:
        """Return the message of a row that was there at place. number: of the row in its table."""
        database, _, table = name.partition(".")
        draft = _Draft(
            op="snapshot",
            database=database,
            table=table,
            key={one: row[one] for one in key},
            text=key_text(name, row, key),
            place=place,
            row=number,
            order=order_text(place, 0),
            time_ms=time_ms,
            after=row,
        )
        return self._finished(draft, is_last=False)

    def _drafts(self, change: RowChange) -> Iterator[_Draft]:
        name = f"{change.database}.{change.table}"
        common: dict[str, Any] = {"database": change.database, "table": change.table, "place": change.place}
        common |= {"row": change.row, "time_ms": change.time_ms}

        def draft(op: str, row: Row, part: int = 0, **further: Any) -> _Draft:
            order = order_text(change.place, change.row, part)
            key = {one: row[one] for one in change.key}
            return _Draft(op=op, key=key, text=key_text(name, row, change.key), order=order, **common, **further)

        before, after = change.before, change.after
        if before is None:
            assert after is not None
            yield draft("insert", after, after=after)
        elif after is None:
            yield draft("delete", before, before=before)
        else:
            old, new = draft("update", before), draft("update", after, before=before, after=after)
            if old.key == new.key:
                yield new
                return
            moved = {"from": old.key, "to": new.key}
            fence = order_text(change.place, change.row).rpartition(".")[0]
            yield draft("delete", before, before=before, moved=moved, fence=fence)
            yield draft("insert", after, 1, after=after, moved=moved, fence=fence)

    def _schema(self, change: SchemaChange) -> _Draft:
        database, _, table = change.names[0].partition(".")
        return _Draft(
            op="schema",
            database=database,
            table=table,
            key=None,
            text=None,
            place=change.place,
            row=0,
            order=order_text(change.place, 0),
            time_ms=change.time_ms,
            schema={"kind": change.kind, "names": list(change.names), "statement": change.statement},
        )

    def _hold(self, draft: _Draft) -> Iterator[Outbound]:
        before, self._held = self._held, replace(draft, index=self._count)
        self._count += 1
        if before is not None:
            yield self._finished(before, is_last=False)

    def _finished(self, draft: _Draft, *, is_last: bool) -> Outbound:
        gtid = self._begin.gtid if self._begin is not None else ""
        name = f"{draft.database}.{draft.table}" if draft.table else draft.database
        body: dict[str, Any] = {
            "op": draft.op,
            "database": draft.database,
            "table": draft.table or None,
            "key": draft.key,
            "before": draft.before,
            "after": draft.after,
            "position": str(draft.place),
            "row": draft.row,
            "order": draft.order,
            "time_ms": draft.time_ms,
            "gtid": gtid or None,
            "transaction": {"id": gtid, "index": draft.index, "last": is_last} if gtid else None,
        }
        properties = {
            OP: draft.op,
            TABLE: quote(name, safe=SAFE),
            POSITION: str(draft.place),
            ROW: str(draft.row),
            ORDER: draft.order,
        }
        if gtid:
            properties |= {GTID: gtid, TRANSACTION_INDEX: str(draft.index), TRANSACTION_LAST: str(is_last).lower()}
        if draft.moved is not None:
            body |= {"moved": draft.moved, "fence": draft.fence}
            properties[FENCE] = draft.fence
        if draft.schema is not None:
            body["schema"] = draft.schema
        message = Message(
            self._topic,
            json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
            tags=quote(name if self._tag_by is TagBy.TABLE else draft.op, safe=SAFE),
            keys=(draft.text,) if draft.text is not None else (),
            properties=properties,
        )
        return Outbound(message, draft.text, draft.order, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A message before it is known whether it is the last one of its transaction. text: of its key."""

    op: str
    database: str
    table: str
    key: Row | None
    text: str | None
    place: BinlogPlace
    row: int
    order: str
    time_ms: int
    before: Row | None = None
    after: Row | None = None
    index: int = 0
    moved: dict[str, Any] | None = None
    fence: str = ""
    schema: dict[str, Any] | None = None
