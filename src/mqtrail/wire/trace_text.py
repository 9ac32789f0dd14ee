"""Trace records <-> the text in a trace message's body. Layouts and reading rules: trace_layouts.

The written text equals that of Apache RocketMQ's current client, byte for byte: null is the word `null`, booleans are
`true` and `false`, nothing is escaped. So separators inside a value are removed, and an empty last field becomes
`null`: Java's decoders drop empty fields at the end and then fail on the whole message.

Every layout of any release is read. A record that cannot be read is returned as a TraceReject beside the others;
Apache's viewers then show no record of the message.

Source: TraceDataEncoder, AsyncTraceDispatcher, apache/rocketmq client/.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from .trace_layouts import (
    ABSENT,
    APACHE_TYPES,
    FIELD_SEPARATOR,
    FOUND_LENGTH_MAX,
    INTEGER_PATTERN,
    KIND_RANGE,
    NULL_TEXT,
    RECORD_CLASSES,
    RECORD_SEPARATOR,
    SHORT_SUB_AFTER_PATTERN,
    TRACE_LAYOUTS,
    TRANSACTION_STATES,
    UNTERMINATED_PATTERN,
    FieldKind,
    Layout,
    TraceField,
)
from .trace_records import SubAfter, TraceRecord

__all__ = [
    "TRACE_KEYS_SIZE_MAX",
    "TRACE_MESSAGE_SIZE_MAX",
    "TraceReject",
    "decode_record_text",
    "decode_trace",
    "encode_record_text",
    "encode_trace",
    "iter_trace",
    "terminated",
    "trace_keys",
]

TRACE_MESSAGE_SIZE_MAX: Final = 128_000  # of the body of a trace message, by default
TRACE_KEYS_SIZE_MAX: Final = 24_000  # bytes of its KEYS, by default; a broker rejects properties over 32 767 bytes

_SEPARATORS: Final = {1: None, 2: None}
_unterminated = re.compile(UNTERMINATED_PATTERN)
_short_sub_after = re.compile(SHORT_SUB_AFTER_PATTERN)
_SUB_AFTER_SHORT = TRACE_LAYOUTS["SubAfter"][0].count_min
_is_integer = re.compile(INTEGER_PATTERN).fullmatch
_WRITTEN = {
    RECORD_CLASSES[name]: (name, tuple(field.attribute for field in layout.fields))
    for name, layouts in TRACE_LAYOUTS.items()
    for layout in layouts
    if layout.written
}
# A trace message is indexed by the ids and keys of these records. Our broker's records are not among them: Apache's
# viewers read at most 64 messages, and need them for the clients' records.
_INDEXED_TYPES = frozenset(RECORD_CLASSES[name] for name in (*APACHE_TYPES, "PubAttempt", "SubResult"))


@dataclass(frozen=True, slots=True)
class TraceReject:
    """A record that cannot be read. record_no: its place in the message, counted as in iter_trace."""

    record_no: int
    text: str
    reason: str


def encode_trace(records: Iterable[TraceRecord], *, cloud: bool = False) -> str:
    """Return the records' text. cloud: SubAfter as for the CLOUD channel, without timeStamp and groupName."""
    return "".join(encode_record_text(record, cloud=cloud) for record in records)


def encode_record_text(record: TraceRecord, *, cloud: bool = False) -> str:
    """Return one record's text with its ␂. A SubAfter that was read without a timeStamp is written without it."""
    name, attributes = _WRITTEN[type(record)]
    texts = [name]
    texts += [_text_of(getattr(record, attribute)) for attribute in attributes]
    if isinstance(record, SubAfter) and (cloud or record.time_stamp is None):
        del texts[_SUB_AFTER_SHORT if record.context_code is None else _SUB_AFTER_SHORT + 1 :]
        if cloud and record.context_code is not None:
            texts.append("")
            return FIELD_SEPARATOR.join(texts) + RECORD_SEPARATOR
    texts[-1] = texts[-1] or NULL_TEXT
    return FIELD_SEPARATOR.join(texts) + RECORD_SEPARATOR


def _text_of(value: object) -> str:
    if value is None:
        return NULL_TEXT
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    return str(value).translate(_SEPARATORS) or (NULL_TEXT if value else "")


def decode_trace(text: bytes | str) -> tuple[list[TraceRecord], list[TraceReject]]:
    """Return the records of a trace message's (decompressed) body, and the rejects. This never fails.

    Bytes that are not UTF-8 become U+FFFD: a 4.x client writes in its machine's charset.
    """
    records: list[TraceRecord] = []
    rejects: list[TraceReject] = []
    for _, record in iter_trace(text):
        if isinstance(record, TraceReject):
            rejects.append(record)
        else:
            records.append(record)
    return records, rejects


def iter_trace(text: bytes | str) -> Iterator[tuple[int, TraceRecord | TraceReject]]:
    """Yield (record_no, record or reject) of a trace message's body.

    record_no is the record's place, from 0, among the pieces between ␂s; empty pieces hold no record but count.
    A record of an unknown type is a reject too.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    for record_no, piece in enumerate(terminated(text).split(RECORD_SEPARATOR)):
        if piece:
            yield record_no, decode_record_text(record_no, piece)


def terminated(text: str) -> str:
    """Return a body's text with the ␂s that UNTERMINATED_PATTERN misses."""
    return _unterminated.sub(_with_ends, text) if "SubAfter" in text else text


def _with_ends(run: re.Match[str]) -> str:
    return _short_sub_after.sub(rf"\g<0>{RECORD_SEPARATOR}", run[0])


def decode_record_text(record_no: int, piece: str) -> TraceRecord | TraceReject:
    """Return the record of one piece between ␂s, or why it cannot be read. record_no: its place, for the reject."""
    texts = piece.split(FIELD_SEPARATOR)
    layouts = TRACE_LAYOUTS.get(texts[0])
    if layouts is None:
        return TraceReject(
            record_no, piece, f"record type: found '{texts[0][:FOUND_LENGTH_MAX]}', expected one that is known"
        )
    layout = layout_for(layouts, len(texts))
    if layout is None:
        return TraceReject(
            record_no, piece, f"fields: found {len(texts)}, expected at least {layouts[0].count_min} in {texts[0]}"
        )
    values: dict[str, Any] = {}
    for field, text in zip(layout.fields, texts[1:], strict=False):
        try:
            values[field.attribute] = _value_of(field, text)
        except ValueError:
            return TraceReject(
                record_no,
                piece,
                f"{field.name}: found '{text[:FOUND_LENGTH_MAX]}', expected {field.kind.value}",
            )
    return RECORD_CLASSES[texts[0]](**{**_DEFAULTS[texts[0]], **values})


def layout_for(layouts: tuple[Layout, ...], count: int) -> Layout | None:
    """Return the layout of a record with count fields (its type included), or None if there are too few."""
    for layout in layouts:
        if layout.count_min <= count and (layout.count_max is None or count <= layout.count_max):
            return layout
    return None


def _value_of(field: TraceField, text: str) -> str | int | bool | None:
    """Read one field. ValueError: reject the record."""
    kind = field.kind
    if kind is FieldKind.TEXT:
        return None if text in (NULL_TEXT, "") else text
    if field.nullable and text in (NULL_TEXT, ""):
        return None
    if kind is FieldKind.BOOL:
        return text.lower() == "true"
    if kind is FieldKind.TRANSACTION_STATE:
        if text not in TRANSACTION_STATES:
            raise ValueError(text)
        return text
    if not _is_integer(text):
        raise ValueError(text)
    value = int(text)
    least, greatest = KIND_RANGE[kind]
    if not least <= value <= greatest:
        raise ValueError(text)
    return value


_DEFAULTS = {
    name: {field: ABSENT.get(name, {}).get(field) for field in kind.__struct_fields__}
    for name, kind in RECORD_CLASSES.items()
}
for _name, _layouts in TRACE_LAYOUTS.items():
    assert {field.attribute for layout in _layouts for field in layout.fields} == set(_DEFAULTS[_name]), _name


def trace_keys(records: Iterable[TraceRecord]) -> list[str]:
    """Return the index keys of a trace message that holds these records: ids and keys, each once, in order.

    Like Apache's client: every msgId, and every token of keys. Each id of a batch's Pub is a key as well, so that a
    query by one id finds it (Apache's client only adds the joined ids as one key). Records of our broker add none.
    """
    keys: dict[str, None] = {}
    for record in records:
        if type(record) in _INDEXED_TYPES:
            msg_id: str | None = getattr(record, "msg_id", None)
            if msg_id:
                keys[msg_id] = None
                keys.update(dict.fromkeys(msg_id.split(",")))
            keys.update(dict.fromkeys((getattr(record, "keys", None) or "").split()))
    return list(keys)
