"""Messages of a binlog topic as changes of one table: of each key the newest one.

`digest` runs where the messages are read, in this process or in Spark's workers: Arrow batches of messages in, Arrow
batches of changes out, at most one for each key, one for the last statement that emptied the table, and the counts.
`Digest` puts the parts of a batch together. Later changes of a key win by their order, wherever they were read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from mqtrail.binlog import UnknownValue, added_values, empties, moves_rows, removes_rows

from .model import TableError

MESSAGE_COLUMNS: Final = ("broker_name", "queue_id", "queue_offset", "msg_id", "keys", "body", "body_problem")
"""Columns of the source `rocketmq` that a change is made of."""
ROW_OPS: Final = frozenset({"snapshot", "insert", "update", "delete"})
CLEAR, FILL, COUNTS = "clear", "fill", "counts"  # kinds of rows of a digest beside changes
OTHERS_MAX: Final = 20  # names of other tables that are kept
TIME_MS_MAX: Final = 2**63 - 1  # what a column has
_ORDER: Final = re.compile(r"\d{10}\.\d{12}\.\d{8,18}\.\d", re.ASCII)
_POSITION: Final = re.compile(r"[^\x00-\x1f\x7f]{1,255}:\d{1,20}", re.ASCII)  # a file of the binlog may have any name

_DIGEST_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.string(),
    "order": pa.string(),
    "op": pa.string(),
    "deleted": pa.bool_(),
    "position": pa.string(),
    "gtid": pa.string(),
    "time_ms": pa.int64(),
    "msg_id": pa.string(),
    "values": pa.string(),
}
DIGEST_SCHEMA: Final = pa.schema(_DIGEST_TYPES)
DIGEST_DDL: Final = (
    "key string, `order` string, op string, deleted boolean, position string, gtid string, time_ms bigint, "
    "msg_id string, `values` string"
)
"""DIGEST_SCHEMA for Spark."""


@dataclass(frozen=True, slots=True)
class RowState:
    """A row after its newest change. values: its columns as the message has them; of a deleted row its key."""

    key: str
    order: str
    op: str
    deleted: bool
    position: str
    gtid: str | None
    time_ms: int
    msg_id: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """source: database.table whose changes are taken. ignores_other: leave out messages that are not changes."""

    source: str
    ignores_other: bool = False


@dataclass(slots=True)
class Digest:
    """What a batch of messages says. clear: the newest statement after which the table is empty. fills: by order, what
    statements that added columns have written in rows from before them.

    counts: messages, changes, repeated (of an order that the batch had before), late (below an order of their key),
    schema, elsewhere (of other tables), other (no changes). last_order: the highest of all messages.
    """

    rows: dict[str, RowState] = field(default_factory=dict)
    clear: RowState | None = None
    fills: dict[str, RowState] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    last_order: str = ""
    last_position: str = ""
    last_ms: int = 0
    key_columns: tuple[str, ...] = ()

    def add(self, row: RowState) -> None:
        """Take a change; the newest one of its key stays."""
        before = self.rows.get(row.key)
        if before is None or row.order > before.order:
            self.rows[row.key] = row

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Take a part that `digest` made."""
        for one in batch.to_pylist():
            if one["op"] == COUNTS:
                found = json.loads(one["values"])
                self.counts.update(found["counts"])
                self._note(one["order"], one["position"], one["time_ms"])
                self._key(tuple(found["key"]))
                continue
            row = RowState(**{**one, "values": json.loads(one["values"])})
            if row.op == CLEAR:
                if self.clear is None or row.order > self.clear.order:
                    self.clear = row
            elif row.op == FILL:
                self.fills[row.order] = row
            else:
                self.add(row)

    def _note(self, order: str, position: str, time_ms: int) -> None:
        if order > self.last_order:
            self.last_order, self.last_position = order, position
        self.last_ms = max(self.last_ms, time_ms)

    def _key(self, columns: tuple[str, ...]) -> None:
        if columns and self.key_columns and columns != self.key_columns:
            raise key_changed(columns, self.key_columns)
        self.key_columns = columns or self.key_columns

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield it as Arrow batches, for `add_batch`."""
        about = {"counts": dict(self.counts), "key": list(self.key_columns)}
        head = RowState("", self.last_order, COUNTS, False, self.last_position, None, self.last_ms, "", about)
        rows = [head, *([self.clear] if self.clear is not None else ()), *self.fills.values(), *self.rows.values()]
        names = DIGEST_SCHEMA.names
        columns = {name: [getattr(row, name) for row in rows] for name in names if name != "values"}
        columns["values"] = [json.dumps(row.values, ensure_ascii=False) for row in rows]
        yield pa.RecordBatch.from_pydict(columns, schema=DIGEST_SCHEMA)

    def settled(self) -> list[RowState]:
        """Return the newest state of each key, with what `clear` and `fills` did to them."""
        clear, rows = self.clear, list(self.rows.values())
        for fill in self.filled():
            rows = [
                row if row.deleted or row.order > fill.order else replace(row, values=row.values | fill.values)
                for row in rows
            ]
        if clear is None:
            return rows
        return [row if row.order > clear.order else self._cleared(row, clear) for row in rows]

    def filled(self) -> list[RowState]:
        """Return the fills in the order of their statements."""
        return [self.fills[order] for order in sorted(self.fills)]

    def _cleared(self, row: RowState, clear: RowState) -> RowState:
        key = {name: value for name, value in row.values.items() if name in self.key_columns}
        return replace(clear, key=row.key, op="schema", values=key)


def key_changed(found: tuple[str, ...], expected: tuple[str, ...]) -> TableError:
    """Return the error for rows with another primary key."""
    return TableError(
        f"found changes with the primary key ({', '.join(found)}), expected ({', '.join(expected)}), by which the "
        "table is merged: the table's rows cannot follow. Build a new table from a new snapshot: `mqtrail binlog run` "
        "with a new --state and a new topic, then this command with another --table"
    )


def digest(wanted: Wanted, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of one table in batches with MESSAGE_COLUMNS. TableError: a message cannot be merged."""
    reader = _Reader(wanted)
    for batch in batches:
        for message in batch.to_pylist():
            reader.read(message)
    yield from reader.made.batches()


class _Reader:
    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._database, _, _ = wanted.source.partition(".")
        self.made = Digest()
        self._seen: dict[str, set[str]] = {}

    def read(self, message: dict[str, Any]) -> None:
        """Take one message."""
        made = self.made
        made.counts["messages"] += 1
        body, problem = _body(message)
        if body is None:
            if self._wanted.ignores_other:
                made.counts["other"] += 1
                return
            raise TableError(
                f"found a message that is not a change of a database ({problem}) at {_where(message)}, expected those "
                "of `mqtrail binlog run`: pass the topic that it sends to, or --ignore-other to leave such messages out"
            )
        made._note(body["order"], body["position"], body["time_ms"])
        if body["op"] == "schema":
            self._schema(body, message)
        elif f"{body['database']}.{body['table']}" == self._wanted.source:
            self._row(body, message)
        else:
            made.counts["elsewhere"] += 1

    def _row(self, body: dict[str, Any], message: dict[str, Any]) -> None:
        made = self.made
        made._key(tuple(body["key"]))
        made.counts["changes"] += 1
        is_deleted = body["op"] == "delete"
        row = RowState(
            key=message["keys"],
            order=body["order"],
            op=body["op"],
            deleted=is_deleted,
            position=body["position"],
            gtid=body["gtid"],
            time_ms=body["time_ms"],
            msg_id=message["msg_id"],
            values=body["key"] if is_deleted else body["after"],
        )
        before = made.rows.get(row.key)
        seen = self._seen.get(row.key)
        if before is not None:
            seen = self._seen.setdefault(row.key, {before.order})
            if row.order in seen:
                made.counts["repeated"] += 1
            elif row.order < before.order:
                made.counts["late"] += 1
            seen.add(row.order)
        made.add(row)

    def _schema(self, body: dict[str, Any], message: dict[str, Any]) -> None:
        made, source = self.made, self._wanted.source
        made.counts["schema"] += 1
        about = body["schema"]
        kind, names, statement = about["kind"], about["names"], about["statement"]
        own = self._database if kind.endswith(" DATABASE") else source
        if own.casefold() not in (one.casefold() for one in names):
            return
        is_empty, why, values = empties(kind, statement), "", dict[str, Any]()
        try:
            values = dict(added_values(kind, statement))
        except UnknownValue as error:
            why = str(error)
        if moves_rows(kind, statement):
            why = "it moves rows without changes"
        elif removes_rows(kind, statement):
            why = "with IGNORE it may remove rows without changes"
        elif (is_empty or values) and own not in names:
            why = "it names the table in another case"
        if why:
            raise TableError(
                f"found the statement {statement[:200]!r} at {_where(message)} ({body['position']}), expected one "
                f"after which the rows of {source} are those of the messages: {why}. Earlier batches are merged. "
                "Build a new table from a new snapshot: `mqtrail binlog run` with a new --state and a new topic, then "
                "this command with another --table"
            )
        where = (body["position"], body["gtid"], body["time_ms"], message["msg_id"])
        if is_empty and (made.clear is None or body["order"] > made.clear.order):
            made.clear = RowState("", body["order"], CLEAR, True, *where, {})
        if values:
            made.fills[body["order"]] = RowState("", body["order"], FILL, False, *where, values)


def _where(message: dict[str, Any]) -> str:
    return f"queue {message['broker_name']}/{message['queue_id']}, offset {message['queue_offset']}"


def _body(message: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return the body of a change, or why the message is not a change."""
    if message["body"] is None:
        return None, message["body_problem"] or "without a body"
    try:
        text: str = message["body"].decode()
        found: Any = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()  # halves of a pair of surrogates are no text
    except (ValueError, RecursionError):
        return None, "its body is no JSON"
    if not isinstance(found, dict):
        return None, "its body is not an object"
    body: dict[str, Any] = {"gtid": None, "table": None} | found
    op, gtid, time_ms = body.get("op"), body["gtid"], body.get("time_ms")
    if not isinstance(body.get("database"), str) or type(time_ms) is not int or not 0 <= time_ms <= TIME_MS_MAX:
        return None, "it lacks database or time_ms"
    for name, pattern in (("order", _ORDER), ("position", _POSITION)):
        if not isinstance(one := body.get(name), str) or pattern.fullmatch(one) is None:
            return None, f"its {name} is {str(one)[:40]!r}"
    if not isinstance(gtid, str | None):
        return None, "its gtid is not text"
    if op == "schema":
        about = body.get("schema")
        return (body, "") if isinstance(about, dict) and _is_statement(about) else (None, "it lacks schema")
    if not isinstance(op, str) or op not in ROW_OPS or not isinstance(body.get("key"), dict) or not message["keys"]:
        return None, f"its op is {str(op)[:40]!r}, or it lacks a key"
    if op != "delete" and not isinstance(body.get("after"), dict):
        return None, "it lacks the row"
    return body, ""


def _is_statement(about: dict[str, Any]) -> bool:
    names = about.get("names")
    return (
        isinstance(about.get("kind"), str)
        and isinstance(about.get("statement"), str)
        and isinstance(names, list)
        and all(isinstance(one, str) for one in names)
    )
