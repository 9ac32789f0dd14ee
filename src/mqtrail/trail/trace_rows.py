"""Converts trace messages to rows of evidence: the reference for all readers of the trace topic.

The look-up on a live cluster uses `trace_rows`. The pipeline decodes in bulk with `trace_sql`, and uses `record_rows`
for the few records that SQL does not read. A test compares its rows with those of `trace_rows`, including rejects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from mqtrail.wire import (
    FIELD_SEPARATOR,
    INTEGER_PATTERN,
    NULL_TEXT,
    RECORD_SEPARATOR,
    BrokerEvent,
    Delivered,
    Pub,
    PubAttempt,
    TraceBatch,
    TraceRecord,
    TraceReject,
    iter_trace,
)

from .broker_events import BROKER_EVENTS, event_columns
from .columns import Relation
from .evidence import TRACE_COLUMN_OF, TRACE_EVENTS, TRACE_REJECTS

Row = dict[str, Any]

RECORD_TEXT_LENGTH_MAX: Final = 2_000  # characters of a rejected record that are kept
TRACE_BODY_SIZE_MAX: Final = 4 * 1024 * 1024
"""Maximum bytes of a trace message's body, decompressed. Clients write at most 128 KB."""
TRACE_PARTS_MAX: Final = 131_072
"""Maximum number of separators (␂) and commas in a trace message's body: each may be a row, of a record, an id or an
offset. The largest batch has 65 536 ids and as many offset ids."""
BODY_RECORD_NO: Final = -1  # record_no of the reject of a whole body
_CLIENT_ID_AT: Final = 2  # TraceBatch, ver, clientId
_ATTRIBUTES: Final = {"ver", "offsets"}  # attributes of records without a column of the same meaning
_is_integer = re.compile(INTEGER_PATTERN).fullmatch


@dataclass(frozen=True, slots=True)
class TracePlace:
    """The position of a trace message, and when it was made and stored (epoch ms)."""

    cluster: str
    broker_name: str
    trace_topic: str
    queue_id: int
    queue_offset: int
    trace_born_ms: int
    trace_store_ms: int
    trace_born_host: str


def trace_rows(place: TracePlace, body: bytes | str) -> Iterator[tuple[Relation, Row]]:
    """Yield the rows of a trace message's body, each with its relation: TRACE_EVENTS, TRACE_REJECTS or BROKER_EVENTS.

    Never raises. An event has all columns of its relation. A record about n messages gives n rows. An invalid offset in
    a Delivered becomes None; the other offsets are kept. A reject has the first error of its record. A body above
    TRACE_BODY_SIZE_MAX or TRACE_PARTS_MAX is one reject.
    """
    if problem := oversize_problem(body):
        yield TRACE_REJECTS, body_reject(place, problem)
        return
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    client_id = trace_client_id(text)
    for record_no, record in iter_trace(text):
        yield from record_rows(place, client_id, record_no, record)


def record_rows(
    place: TracePlace, client_id: str, record_no: int, record: TraceRecord | TraceReject
) -> Iterator[tuple[Relation, Row]]:
    """Yield the rows of one record of a trace message. client_id: the message's trace_client_id."""
    if isinstance(record, TraceReject):
        yield TRACE_REJECTS, _reject(place, record_no, record.reason, record.text[:RECORD_TEXT_LENGTH_MAX])
        return
    if isinstance(record, BrokerEvent):
        yield BROKER_EVENTS, event_columns(record) | _of_event_place(place) | {"record_no": record_no}
        return
    row = _EMPTY | _of_place(place) | {"trace_client_id": client_id, "record_no": record_no}
    row |= {"record_type": type(record).__name__} | _columns(record)
    for own in _items(record):
        yield TRACE_EVENTS, row | own


def body_reject(place: TracePlace, reason: str) -> Row:
    """Return the row of TRACE_REJECTS of a body that cannot be read as a whole."""
    return _reject(place, BODY_RECORD_NO, reason, "")


def _reject(place: TracePlace, record_no: int, reason: str, text: str) -> Row:
    return {name: getattr(place, name) for name in _REJECT_PLACE} | {
        "record_no": record_no,
        "reason": reason,
        "record_text": text,
    }


def _of_place(place: TracePlace) -> Row:
    return {name: getattr(place, name) for name in _PLACE}


def _of_event_place(place: TracePlace) -> Row:
    return {name: getattr(place, name) for name in _EVENT_PLACE}


def oversize_problem(body: bytes | str) -> str | None:
    """Return why the body of a trace message is too large to be read; None: it is not."""
    if len(body) > TRACE_BODY_SIZE_MAX:
        return f"body: found {len(body)} bytes, expected at most {TRACE_BODY_SIZE_MAX}"
    if isinstance(body, bytes):
        return parts_problem(body.count(RECORD_SEPARATOR.encode()) + body.count(b","))
    return parts_problem(body.count(RECORD_SEPARATOR) + body.count(","))


def parts_problem(count: int) -> str | None:
    """Return why a body with so many separators and commas is too large to be read; None: it is not."""
    if count <= TRACE_PARTS_MAX:
        return None
    return f"body: found {count} records, ids and offsets, expected at most {TRACE_PARTS_MAX}"


_PLACE: Final = tuple(field.name for field in fields(TracePlace))
_EMPTY: Final[Row] = {column.name: "" if column.type == "string" else None for column in TRACE_EVENTS}
_EVENT_PLACE: Final = tuple(name for name in _PLACE if name in BROKER_EVENTS.names)
_REJECT_PLACE: Final = tuple(name for name in _PLACE if name in TRACE_REJECTS.names)


def trace_client_id(text: str) -> str:
    """Return the client id of the TraceBatch at the start of a trace message, even if unreadable; "" without one."""
    first = text.partition(RECORD_SEPARATOR)[0].split(FIELD_SEPARATOR, _CLIENT_ID_AT + 1)
    if len(first) <= _CLIENT_ID_AT or first[0] != TraceBatch.__name__ or first[_CLIENT_ID_AT] == NULL_TEXT:
        return ""
    return first[_CLIENT_ID_AT]


def _columns(record: TraceRecord) -> Row:
    """Return the columns that all items of a record share, without absent values."""
    row: Row = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if value is not None and name not in _ATTRIBUTES:
            row[TRACE_COLUMN_OF.get(name, name)] = value
    return row


def _items(record: TraceRecord) -> Iterator[Row]:
    """Yield the columns of each item: an id of a batch, an offset of a delivery, otherwise the record itself."""
    if isinstance(record, Delivered):
        offsets = (record.offsets or "").split(",")
        for number, text in enumerate(offsets):
            yield {"item_no": number, "item_count": len(offsets), "store_queue_offset": _offset_of(text)}
    elif isinstance(record, Pub | PubAttempt) and "," in (record.msg_id or ""):
        ids = (record.msg_id or "").split(",")
        places = (record.offset_msg_id or "").split(",") if isinstance(record, Pub) else []
        for number, msg_id in enumerate(ids):
            yield {
                "item_no": number,
                "item_count": len(ids),
                "msg_id": "" if msg_id == NULL_TEXT else msg_id,
                "offset_msg_id": places[number] if number < len(places) else "",
            }
    else:
        yield {"item_no": 0, "item_count": 1}


def _offset_of(text: str) -> int | None:
    """Return a queue offset; None if the text is not an int64."""
    if not _is_integer(text):
        return None
    offset = int(text)
    return offset if -(1 << 63) <= offset < 1 << 63 else None
