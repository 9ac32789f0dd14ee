"""Trace messages become `trace_events` and `trace_rejects`, with built-in functions of Spark only.

    body text ─split at ␂→ pieces ─posexplode→ piece ─split at ␁→ fields ─CASE over the type→ one column an attribute

The SQL is generated from wire's TRACE_LAYOUTS, the table that wire's codec uses, so both know the same records.
`trail.trace_rows` defines the rows; a test compares both, rejects included. Spark accepts some texts that the codec
rejects (try_cast ignores blanks): a number whose text differs from its own print is checked exactly in a second step.

A record is one row. A record about a batch is one row per id, with the id's place in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame

from mqtrail import trail
from mqtrail.wire import (
    ABSENT,
    APACHE_TYPES,
    COUNT_MAX,
    FIELD_SEPARATOR,
    FOUND_LENGTH_MAX,
    INTEGER_PATTERN,
    KIND_RANGE,
    MSG_TYPE_MAX,
    NULL_TEXT,
    RECORD_SEPARATOR,
    TIME_MS_MAX,
    TRACE_LAYOUTS,
    TRANSACTION_STATES,
    UNTERMINATED_PATTERN,
    FieldKind,
    Layout,
    TraceField,
)

from .sqltext import literal, one_of, relation_columns, select, select_relation

# Columns to read from the source.
TRACE_SCHEMA = (
    "topic string, broker_name string, queue_id int, queue_offset bigint, lost_until bigint, lost_reason string, "
    "born_timestamp_ms bigint, born_host string, store_timestamp_ms bigint, body_text string, body_problem string"
)
HOLDS = "holds"  # column of decoded(): the kind of the row
EVENTS, SUSPECTS, GAPS = "events", "suspects", "gaps"
BODY_RECORD_NO = trail.BODY_RECORD_NO

_TYPES = {name: number for number, name in enumerate(TRACE_LAYOUTS)}
_BATCH_TYPES = ("Pub", "PubAttempt")  # their msgId can list several ids
_BATCH_NUMBERS = [_TYPES[name] for name in _BATCH_TYPES]
_DELIVERED = _TYPES["Delivered"]
# SQL: a cheap test that the text of an integer is in the range of its kind. Texts that fail it are checked exactly.
_SHORT = {
    FieldKind.INT: "length({0}) < 10 AND ",
    FieldKind.TIME: f"length({{0}}) <= {len(str(TIME_MS_MAX))} AND {{0}} >= '0' AND ",
    FieldKind.COUNT: f"length({{0}}) <= {len(str(COUNT_MAX))} AND {{0}} >= '0' AND ",
}
assert set(str(TIME_MS_MAX)) == set(str(COUNT_MAX)) == {"9"}
_INTEGER = literal(rf"\A{INTEGER_PATTERN}\z")
_NULL_TEXTS = f"({literal(NULL_TEXT)}, '')"

# Position of a trace message: name here -> column of the source.
_PLACES = {
    "broker_name": "broker_name",
    "trace_topic": "topic",
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "trace_born_ms": "born_timestamp_ms",
    "trace_store_ms": "store_timestamp_ms",
    "trace_born_host": "born_host",
}


def decoded(pulled: DataFrame, cluster: str) -> DataFrame:
    """Decode trace messages in one pass: columns of trail.TRACE_EVENTS, and `holds`, the kind of the row.

    EVENTS    an item of a readable record
    SUSPECTS  a record that may be unreadable, with its text in detail; or a whole body, with its problem in reason
    GAPS      lost messages: from queue_offset to store_queue_offset, with the reason in reason

    pulled: rows of TRACE_SCHEMA. Two filters over the result would compute it twice: write it partitioned by holds, and
    read the few other rows with `suspected_events`, `rejects` and `gaps`.
    """
    rows = _records(pulled).selectExpr("*", f"{_plain_record()} AS plain")
    items = f"CASE WHEN plain THEN {_items()} ELSE array('') END"
    holds = f"CASE WHEN plain THEN '{EVENTS}' WHEN lost_until IS NULL THEN '{SUSPECTS}' ELSE '{GAPS}' END AS {HOLDS}"
    columns = _event_columns()
    columns |= {
        "cluster": literal(cluster),
        "record_no": f"CASE WHEN body_problem IS NULL THEN record_no ELSE {BODY_RECORD_NO} END",
        "store_queue_offset": f"CASE WHEN plain THEN {columns['store_queue_offset']} ELSE lost_until END",
        "reason": f"CASE WHEN plain THEN {columns['reason']} ELSE coalesce(body_problem, lost_reason, '') END",
        "detail": f"CASE WHEN plain THEN {columns['detail']} ELSE piece END",
    }
    return _exploded(rows, items).selectExpr(*relation_columns(trail.TRACE_EVENTS, columns), holds)


def suspected_events(suspects: DataFrame) -> DataFrame:
    """Rows of trail.TRACE_EVENTS: items of those SUSPECTS of decoded() that are readable after all."""
    # A null array instead of a filter: Spark would push the filter below its own inputs and compute them twice.
    items = f"CASE WHEN NOT wrong THEN {_items()} END"
    return select_relation(_exploded(_closely(suspects), items), trail.TRACE_EVENTS, _event_columns())


def rejects(suspects: DataFrame) -> DataFrame:
    """Rows of trail.TRACE_REJECTS: records and bodies of decoded()'s SUSPECTS that are unreadable."""
    reason = f"CASE WHEN record_no = {BODY_RECORD_NO} THEN body_problem ELSE {_reason()} END"
    rows = _closely(suspects).selectExpr("*", f"explode(CASE WHEN wrong THEN array({reason}) END) AS why")
    columns = {"reason": "why", "record_text": f"left(piece, {trail.RECORD_TEXT_LENGTH_MAX})"}
    return select_relation(rows, trail.TRACE_REJECTS, columns)


def gaps(kept: DataFrame, detected_ms: int) -> DataFrame:
    """Rows of trail.GAPS, of decoded()'s rows of GAPS."""
    columns = {
        "topic": "trace_topic",
        "first_offset": "queue_offset",
        "end_offset": "store_queue_offset",
        "from_ms": "NULL",
        "to_ms": f"coalesce(trace_store_ms, {detected_ms})",
        "detected_ms": str(detected_ms),
    }
    return select_relation(kept, trail.GAPS, columns)


def _records(pulled: DataFrame) -> DataFrame:
    """One row per record: its position, its fields f (field 0: the type), their count n, and the number t of the type
    (-1: not known). A message without a body has one empty record."""
    # A ␂ can be missing only if the name of a type follows a ␁. This cheap test avoids the pattern for other texts.
    suspected = " OR ".join(
        f"contains(body_text, {literal(FIELD_SEPARATOR + name + FIELD_SEPARATOR)})" for name in APACHE_TYPES
    )
    mended = f"regexp_replace(body_text, {literal(UNTERMINATED_PATTERN)}, {literal('$1' + RECORD_SEPARATOR)})"
    head = f"substring_index(body_text, {literal(RECORD_SEPARATOR)}, 1)"
    client_id = f"get(split({head}, {literal(FIELD_SEPARATOR)}), {_place('TraceBatch', 'client_id')})"
    about = {
        "lost_until": "lost_until",
        "lost_reason": "lost_reason",
        "body_problem": "body_problem",
        "trace_client_id": f"CASE WHEN startswith(body_text, {literal('TraceBatch' + FIELD_SEPARATOR)}) "
        f"THEN {client_id} END",
    }
    text = f"CASE WHEN body_text IS NULL THEN '' WHEN {suspected} THEN {mended} ELSE body_text END"
    texts = select(pulled, _PLACES | about | {"no_body": "body_text IS NULL", "text": text})
    pieces = texts.selectExpr(
        *_PLACES, *about, "no_body", f"posexplode(split(text, {literal(RECORD_SEPARATOR)})) AS (record_no, piece)"
    )
    return _fields(pieces.filter("piece <> '' OR no_body"))


def _fields(pieces: DataFrame) -> DataFrame:
    types = " ".join(f"WHEN {literal(name)} THEN {number}" for name, number in _TYPES.items())
    fields = pieces.selectExpr("*", f"split(piece, {literal(FIELD_SEPARATOR)}) AS f")
    return fields.selectExpr("*", f"CASE f[0] {types} ELSE -1 END AS t", "size(f) AS n")


def _closely(suspects: DataFrame) -> DataFrame:
    """decoded()'s rows of SUSPECTS as records again, with `wrong`: whether to reject them."""
    kept = [*(name for name in _PLACES if name != "cluster"), "cluster", "record_no", "trace_client_id"]
    rows = _fields(suspects.selectExpr(*kept, "detail AS piece", "reason AS body_problem"))
    return rows.selectExpr("*", f"{_wrong_record()} AS wrong")


def _exploded(records: DataFrame, items: str) -> DataFrame:
    """One row per item of a record, with the text of each attribute as s_<attribute>."""
    rows = records.selectExpr("*", f"{items} AS items", f"{_batch_places()} AS batch_places")
    rows = rows.selectExpr("*", "size(items) AS item_count", "posexplode(items) AS (item_no, item)")
    texts = (f"{_text_of(name)} AS s_{name}" for name, kind in _ATTRIBUTES.items() if _is_text(kind))
    return rows.selectExpr("*", *texts)


def _attributes() -> Iterator[tuple[str, FieldKind]]:
    for layouts in TRACE_LAYOUTS.values():
        for field in layouts[-1].fields:
            yield field.attribute, field.kind


_ATTRIBUTES = dict(_attributes())  # an attribute has the same kind in all types
assert all(_ATTRIBUTES[attribute] is kind for attribute, kind in _attributes())


def _is_text(kind: FieldKind) -> bool:
    return kind in (FieldKind.TEXT, FieldKind.TRANSACTION_STATE)


def _place(record_type: str, attribute: str) -> int:
    return [field.attribute for field in TRACE_LAYOUTS[record_type][-1].fields].index(attribute) + 1


def _text_of(attribute: str) -> str:
    """SQL: the text of an attribute; null in a layout without it.

    Types that have it at the same place in all their layouts share a branch. Other types get a branch for each layout
    that has it, with the layout's count of fields.
    """
    everywhere: dict[int, list[int]] = {}
    arms: list[str] = []
    for name, layouts in TRACE_LAYOUTS.items():
        places = [
            (layout, [field.attribute for field in layout.fields].index(attribute) + 1)
            for layout in layouts
            if attribute in [field.attribute for field in layout.fields]
        ]
        if len(places) == len(layouts) and len({place for _, place in places}) == 1:
            everywhere.setdefault(places[0][1], []).append(_TYPES[name])
            continue
        arms += [f"WHEN t = {_TYPES[name]} AND {_has(layout)} THEN get(f, {place})" for layout, place in places]
    arms = [f"WHEN {one_of('t', types)} THEN get(f, {place})" for place, types in everywhere.items()] + arms
    return f"CASE {' '.join(arms)} END"


def _has(layout: Layout) -> str:
    """SQL: whether a record of the layout's type has the layout's count of fields."""
    return f"n >= {layout.count_min}" + (f" AND n <= {layout.count_max}" if layout.count_max else "")


def _plain_record() -> str:
    """SQL: whether a record is as writers write it, and needs no exact check. Never null."""
    arms = []
    for name, layouts in TRACE_LAYOUTS.items():
        plain = [f"n >= {layouts[0].count_min}"]
        for field, place, layout in _checked(name):
            plain.append(f"(n < {layout.count_min} OR {_plain(field, place)})" if layout else _plain(field, place))
        arms.append(f"WHEN {_TYPES[name]} THEN {' AND '.join(plain)}")
    return f"coalesce(CASE t {' '.join(arms)} END, false)"


def _wrong_record() -> str:
    """SQL: the exact check: whether to reject a record or a body."""
    arms = []
    for name, layouts in TRACE_LAYOUTS.items():
        wrong = [f"n < {layouts[0].count_min}"]
        for field, place, layout in _checked(name):
            wrong.append(f"(n >= {layout.count_min} AND {_wrong(field, place)})" if layout else _wrong(field, place))
        arms.append(f"WHEN {_TYPES[name]} THEN {' OR '.join(wrong)}")
    return f"CASE t {' '.join(arms)} ELSE true END"


def _checked(record_type: str) -> Iterator[tuple[TraceField, int, Layout | None]]:
    """The fields of a type that can be wrong, in order, with their places; and the first layout with the field, if not
    all layouts have it."""
    layouts = TRACE_LAYOUTS[record_type]
    for place, field in enumerate(layouts[-1].fields, start=1):
        if field.kind in KIND_RANGE or field.kind is FieldKind.TRANSACTION_STATE:
            having = [layout for layout in layouts if field in layout.fields]
            yield field, place, None if len(having) == len(layouts) else having[0]


def _plain(field: TraceField, place: int) -> str:
    """SQL: whether a field is as writers write it: a number whose text equals its own print."""
    text = f"get(f, {place})"
    if field.kind is FieldKind.TRANSACTION_STATE:
        return f"{text} IN ({', '.join(map(literal, TRANSACTION_STATES))})"
    if field.kind is FieldKind.MSG_TYPE:
        return f"{text} IN ({', '.join(literal(str(number)) for number in range(MSG_TYPE_MAX + 1))})"
    short = _SHORT.get(field.kind, "").format(text)
    plain = f"{short}CAST(try_cast({text} AS bigint) AS string) = {text}"
    return f"({plain} OR {text} = {literal(NULL_TEXT)})" if field.nullable else plain


def _wrong(field: TraceField, place: int) -> str:
    """SQL: whether a field is not of its kind."""
    text = f"get(f, {place})"
    if field.kind is FieldKind.TRANSACTION_STATE:
        return f"{text} NOT IN ({', '.join(map(literal, TRANSACTION_STATES))})"
    low, high = KIND_RANGE[field.kind]
    value = f"try_cast({text} AS bigint)"
    # Every bigint has 64 bits, and Spark has no literal for the lower bound.
    bounds = (
        f"{value} IS NOT NULL" if field.kind is FieldKind.LONG else f"coalesce({value} BETWEEN {low} AND {high}, false)"
    )
    none = f"{text} NOT IN {_NULL_TEXTS} AND " if field.nullable else ""
    return f"{none}NOT ({text} RLIKE {_INTEGER} AND {bounds})"


def _reason() -> str:
    """SQL: why a record is rejected, with the words of wire.decode_trace: the first error in it."""
    arms = [
        f"WHEN t < 0 THEN concat('record type: found \\'', left(f[0], {FOUND_LENGTH_MAX}), "
        "'\\', expected one that is known')"
    ]
    for name, layouts in TRACE_LAYOUTS.items():
        least = layouts[0].count_min
        this = f"t = {_TYPES[name]}"
        arms.append(
            f"WHEN {this} AND n < {least} THEN concat('fields: found ', n, ', expected at least {least} in {name}')"
        )
        for field, place, layout in _checked(name):
            here = f"{this} AND n >= {layout.count_min}" if layout else this
            arms.append(
                f"WHEN {here} AND {_wrong(field, place)} THEN concat('{field.name}: found \\'', "
                f"left(get(f, {place}), {FOUND_LENGTH_MAX}), '\\', expected {field.kind.value}')"
            )
    return f"CASE {' '.join(arms)} END"


def _items() -> str:
    """SQL: the items of a record: the ids of a batch, the offsets of a delivery, otherwise its id."""
    ids = _text_of("msg_id")
    batch_ids = f"get(f, {_place('Pub', 'msg_id')})"
    assert all(_place(name, "msg_id") == _place("Pub", "msg_id") for name in _BATCH_TYPES)
    offsets = f"get(f, {_place('Delivered', 'offsets')})"
    return (
        f"CASE WHEN {one_of('t', _BATCH_NUMBERS)} AND contains({batch_ids}, ',') THEN split({batch_ids}, ',') "
        f"WHEN t = {_DELIVERED} THEN split({offsets}, ',') ELSE array({ids}) END"
    )


def _batch_places() -> str:
    """SQL: the offset ids of a batch's Pub, split once per record and not once per item; null elsewhere."""
    ids = f"get(f, {_place('Pub', 'msg_id')})"
    return f"CASE WHEN t = {_TYPES['Pub']} AND contains({ids}, ',') THEN split({_text_of('offset_msg_id')}, ',') END"


def _event_columns() -> dict[str, str]:
    """SQL of the columns of trace_events but the position, over _records, its items and the texts s_<attribute>."""
    columns = {
        trail.TRACE_COLUMN_OF.get(attribute, attribute): _value(attribute, kind)
        for attribute, kind in _ATTRIBUTES.items()
    }
    of_batch = "coalesce(get(batch_places, item_no), '')"
    return columns | {
        "record_type": "f[0]",
        "trace_client_id": _text("trace_client_id"),
        "msg_id": f"CASE WHEN t = {_DELIVERED} THEN '' ELSE {_text('item')} END",
        "offset_msg_id": f"CASE WHEN item_count > 1 THEN {of_batch} ELSE {_text('s_offset_msg_id')} END",
        "store_queue_offset": f"CASE WHEN t = {_DELIVERED} THEN CASE WHEN item RLIKE {_INTEGER} THEN "
        f"try_cast(item AS bigint) END ELSE {columns['store_queue_offset']} END",
    }


def _value(attribute: str, kind: FieldKind) -> str:
    """SQL: the value of an attribute."""
    if _is_text(kind):
        return _text(f"s_{attribute}")
    if kind in KIND_RANGE:
        return f"try_cast({_text_of(attribute)} AS bigint)"
    # Few types have booleans: one branch for each type and layout.
    arms = []
    for name, layouts in TRACE_LAYOUTS.items():
        for layout in layouts:
            for place, field in enumerate(layout.fields, start=1):
                if field.attribute == attribute:
                    value = f"lower(get(f, {place})) = 'true'"
                    if field.nullable:
                        value = f"CASE WHEN get(f, {place}) NOT IN {_NULL_TEXTS} THEN {value} END"
                    arms.append(f"WHEN t = {_TYPES[name]} AND {_has(layout)} THEN {value}")
        if attribute in ABSENT.get(name, {}):
            arms.append(f"WHEN t = {_TYPES[name]} THEN {str(ABSENT[name][attribute]).lower()}")
    return f"CASE {' '.join(arms)} END"


def _text(text: str) -> str:
    """SQL: a text; '' for none."""
    return f"CASE WHEN {text} IS NULL OR {text} = {literal(NULL_TEXT)} THEN '' ELSE {text} END"
