"""Converts trace messages to rows of `trace_events` in bulk: SQL for DuckDB, built from wire's TRACE_LAYOUTS.

    body text ─split at ␂→ records ─split at ␁→ fields f ─┬─ plain records: one SELECT per layout
                                                          └─ others: one by one, by the codec of wire

A record is plain if SQL certainly reads it like wire: its type is known, it has enough fields, and each number is in
canonical form. Nearly all records are plain. BrokerEvents are not: they are few, and rows of another relation. `lake`
passes the others to `trail.record_rows`, which also decides what is a reject, so no rule is written twice. Add the
missing ␂ of texts that match UNTERMINATED_PATTERN before.

`trail.trace_rows` defines the rows; a test compares both, including rejects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mqtrail.wire import (
    ABSENT,
    FIELD_SEPARATOR,
    INTEGER_PATTERN,
    KIND_RANGE,
    MSG_TYPE_MAX,
    NULL_TEXT,
    RECORD_SEPARATOR,
    TRACE_LAYOUTS,
    TRANSACTION_STATES,
    BrokerEvent,
    FieldKind,
    Layout,
    TraceField,
)

from .evidence import TRACE_COLUMN_OF, TRACE_EVENTS
from .kinds import literal, quoted

TRACE_PLACE = (
    "broker_name",
    "trace_topic",
    "queue_id",
    "queue_offset",
    "trace_born_ms",
    "trace_store_ms",
    "trace_born_host",
)
"""Columns of a table of trace messages besides body_text: the position of each message. Named as in trace_events."""

_BY_TYPE = {name: layouts for name, layouts in TRACE_LAYOUTS.items() if name != BrokerEvent.__name__}
_LAYOUTS = tuple(layout for layouts in _BY_TYPE.values() for layout in layouts)
_FIELD, _RECORD = f"chr({ord(FIELD_SEPARATOR)})", f"chr({ord(RECORD_SEPARATOR)})"
_NULL = f"'{NULL_TEXT}'"
_BATCH_TYPES = ("Pub", "PubAttempt")  # their msgId may contain several ids
_DELIVERED = "Delivered"


class TraceShape(NamedTuple):
    """The records that one SELECT reads: they have the same layout, and either one item each or several."""

    layout: int
    """Index among the layouts of all types."""
    several: bool

    @property
    def record_type(self) -> str:
        """The type of its records."""
        return _LAYOUTS[self.layout].record_type


def trace_records_sql(messages: str) -> str:
    """SQL: one row per record of a table of trace messages (columns message_no and body_text, which is not NULL).

    Columns: message_no, record_no, f (the fields; the first is the type), layout (of TraceShape; NULL: not plain),
    several (whether the record has several items).
    """
    return f"""
SELECT *, CASE f[1] {_layouts()} END AS layout,
  CASE WHEN f[1] IN ({quoted(_BATCH_TYPES)}) THEN contains(coalesce(f[{_ids_place()}], ''), ',')
    ELSE f[1] = '{_DELIVERED}' END AS several
FROM (SELECT message_no, record_no, string_split(piece, {_FIELD}) AS f
  FROM (SELECT message_no, unnest(pieces) AS piece, generate_subscripts(pieces, 1) - 1 AS record_no
    FROM (SELECT message_no, string_split(body_text, {_RECORD}) AS pieces FROM {messages})) AS cut
  WHERE piece <> '') AS records"""


def trace_events_sql(messages: str, records: str, shapes: Sequence[TraceShape], cluster: str) -> str:
    """SQL: rows of TRACE_EVENTS of the plain records of these shapes. records: rows of trace_records_sql."""
    arms = [_arm(messages, records, shape, cluster) for shape in shapes]
    return " UNION ALL ".join(arms or [f"SELECT {TRACE_EVENTS.typed(_nothing())} WHERE false"])


def _layouts() -> str:
    """SQL: the inside of a CASE over the type: the index of a plain record's layout, else NULL."""
    return " ".join(f"WHEN '{name}' THEN {_layout_of(name)}" for name in _BY_TYPE)


def _layout_of(record_type: str) -> str:
    arms = []
    for number, layout in enumerate(_LAYOUTS):
        if layout.record_type == record_type:
            has = f"len(f) >= {layout.count_min}" + (f" AND len(f) <= {layout.count_max}" if layout.count_max else "")
            arms.append(" AND ".join((f"WHEN {has}", *_plain(layout))) + f" THEN {number}")
    return f"CASE {' '.join(arms)} END"


def _plain(layout: Layout) -> Iterator[str]:
    """SQL: conditions under which every field of a record of the layout can be read by SQL."""
    for place, field in enumerate(layout.fields, start=2):
        text = f"f[{place}]"
        if field.kind is FieldKind.TRANSACTION_STATE:
            yield f"{text} IN ({quoted(TRANSACTION_STATES)})"
        elif field.kind is FieldKind.MSG_TYPE:
            yield f"{text} IN ({quoted(str(number) for number in range(MSG_TYPE_MAX + 1))})"
        elif field.kind in KIND_RANGE:
            plain = _plain_number(field, text)
            yield f"({text} = {_NULL} OR coalesce({plain}, false))" if field.nullable else plain


def _plain_number(field: TraceField, text: str) -> str:
    if field.kind is FieldKind.INT:
        return f"cast(try_cast({text} AS integer) AS string) = {text}"
    plain = f"cast(try_cast({text} AS bigint) AS string) = {text}"
    if field.kind is FieldKind.LONG:
        return plain
    low, high = KIND_RANGE[field.kind]
    return f"{plain} AND try_cast({text} AS bigint) BETWEEN {low} AND {high}"


def _arm(messages: str, records: str, shape: TraceShape, cluster: str) -> str:
    """SQL: the rows of the records of one shape."""
    layout = _LAYOUTS[shape.layout]
    source = (
        f"(SELECT * FROM {records} WHERE layout = {shape.layout} AND several = {shape.several}) AS of_shape"
        f" JOIN {messages} USING (message_no)"
    )
    columns = _nothing() | {
        "cluster": literal(cluster),
        **{name: name for name in TRACE_PLACE},
        "trace_client_id": "trace_client_id",
        "record_no": "record_no",
        "record_type": f"'{layout.record_type}'",
        "item_no": "0",
        "item_count": "1",
        **_values(layout),
    }
    if shape.several and layout.record_type == _DELIVERED:
        source = f"({_unnested(source, _split(layout, 'offsets'), '[]')})"
        columns |= {"item_no": "item_no", "item_count": "item_count", "store_queue_offset": _offset("item")}
    elif shape.several:
        has_places = any(field.attribute == "offset_msg_id" for field in layout.fields)
        source = (
            f"({_unnested(source, _split(layout, 'msg_id'), _split(layout, 'offset_msg_id') if has_places else '[]')})"
        )
        columns |= {
            "item_no": "item_no",
            "item_count": "item_count",
            "msg_id": _text("item"),
            "offset_msg_id": "coalesce(place, '')",
        }
    return f"SELECT {TRACE_EVENTS.typed(columns)} FROM {source}"


def _unnested(source: str, items: str, places: str) -> str:
    """SQL: one row per item: item, item_no, item_count, and the place with the same index, or NULL."""
    both = f"SELECT *, {items} AS items, {places} AS places FROM {source}"
    return (
        "SELECT *, len(items) AS item_count, unnest(items) AS item, generate_subscripts(items, 1) - 1 AS item_no, "
        f"unnest(cast(places[1:len(items)] AS varchar[])) AS place FROM ({both}) AS both_lists"
    )


def _split(layout: Layout, attribute: str) -> str:
    """SQL: the list in a field; one empty text for none."""
    return f"string_split({_text(_field(layout, attribute))}, ',')"


def _offset(item: str) -> str:
    """SQL: an offset; NULL if the text is not an int64."""
    value = f"try_cast({item} AS bigint)"
    return (
        f"CASE WHEN cast({value} AS string) = {item} THEN {value} "
        f"WHEN regexp_full_match({item}, '{INTEGER_PATTERN}') THEN {value} END"
    )


def _values(layout: Layout) -> dict[str, str]:
    """SQL of the columns that the fields of a layout fill."""
    absent = {
        TRACE_COLUMN_OF.get(attribute, attribute): str(value).lower()
        for attribute, value in ABSENT.get(layout.record_type, {}).items()
    }
    found = {}
    for place, field in enumerate(layout.fields, start=2):
        name = TRACE_COLUMN_OF.get(field.attribute, field.attribute)
        if name in TRACE_EVENTS.names:
            found[name] = _value(field, f"f[{place}]")
    return absent | found


def _value(field: TraceField, text: str) -> str:
    if field.kind in KIND_RANGE:
        return f"try_cast({text} AS bigint)"
    if field.kind is FieldKind.BOOL:
        value = f"lower({text}) = 'true'"
        return f"CASE WHEN {text} NOT IN ({_NULL}, '') THEN {value} END" if field.nullable else value
    return _text(text)


def _nothing() -> dict[str, str]:
    """SQL of every column of TRACE_EVENTS without a value."""
    return {column.name: "''" if column.type == "string" else "NULL" for column in TRACE_EVENTS}


def _text(text: str) -> str:
    """SQL: a text; '' if there is none."""
    return f"CASE WHEN {text} = {_NULL} THEN '' ELSE {text} END"


def _field(layout: Layout, attribute: str) -> str:
    return f"f[{[field.attribute for field in layout.fields].index(attribute) + 2}]"


def _place(record_type: str, attribute: str) -> int:
    """Return the index of an attribute among the fields of a type, from 1; the same in all layouts that have it."""
    return [field.attribute for field in TRACE_LAYOUTS[record_type][-1].fields].index(attribute) + 2


def _ids_place() -> int:
    places = {_place(name, "msg_id") for name in _BATCH_TYPES}
    assert len(places) == 1
    return places.pop()
