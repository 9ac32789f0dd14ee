"""The values that rows get in the columns that an ALTER TABLE adds. The binlog has no changes of these rows.

Only what the statement says for certain: a literal as the default, or none of a type with an implicit default. All else
is refused: expressions, the time of the statement, IF NOT EXISTS, which may have added nothing.
"""

from __future__ import annotations

import re
import struct
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Final

from .model import Value
from .statements import AddedColumn, added_columns

_WHOLE: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "bool", "boolean"})
_DECIMAL: Final = frozenset({"decimal", "numeric", "dec", "fixed"})
_TEXT: Final = frozenset({"varchar", "char", "tinytext", "text", "mediumtext", "longtext"})
_REAL: Final = frozenset({"float", "double"})
_COMPUTED: Final = re.compile(r"\b(?:AS|GENERATED|AUTO_INCREMENT|SERIAL)\b", re.IGNORECASE)
_BINARY: Final = re.compile(r"\bBYTE\b|\b(?:CHARSET|CHAR(?:ACTER)?\s+SET)\s*=?\s*['`\"]?\s*BINARY\b", re.IGNORECASE)
_DEFAULT: Final = re.compile(r"\bDEFAULT\b\s*('\d+'|[+-]?[\d.]+(?:e[+-]?\d+)?(?!\w)|\w+)(\s*\()?", re.IGNORECASE)
_HAS_DEFAULT: Final = re.compile(r"\bDEFAULT\b", re.IGNORECASE)
_NOT_NULL: Final = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)
_NULL: Final = re.compile(r"\bNULL\b", re.IGNORECASE)
_WORDS: Final = {"TRUE": "1", "FALSE": "0"}
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)


class UnknownValue(ValueError):
    """It is not known which values rows have in an added column. The text names it."""


def added_values(kind: str, statement: str) -> dict[str, Value]:
    """Return column -> value, as messages have it, that rows from before a statement have after it. UnknownValue."""
    found: dict[str, Value] = {}
    for column in added_columns(kind, statement):
        value = _value(column)
        if value is not None:
            found[column.name] = value
    return found


def _value(column: AddedColumn) -> Value:
    definition = column.definition
    if _COMPUTED.search(definition) or column.kind == "serial":
        raise _unknown(column, "computed values")
    default = _DEFAULT.search(definition)
    text: str | None = None
    if default is not None and not default[2]:
        text = _literal(column, default[1])
        if text is None:
            return None
    elif _HAS_DEFAULT.search(definition):
        raise _unknown(column, "an expression")
    elif column.kind == "timestamp" and not _NULL.search(_NOT_NULL.sub("", definition)):
        raise _unknown(column, "perhaps the time of the statement")
    elif not _NOT_NULL.search(definition):
        return None
    elif column.kind not in _WHOLE | _DECIMAL | _TEXT | _REAL:
        raise _unknown(column, "an implicit default")
    if column.may_exist:
        raise _unknown(column, "IF NOT EXISTS, so it may have been there")
    try:
        return _converted(column, text)
    except (ValueError, InvalidOperation, OverflowError):
        raise _unknown(column, f"the default {text!r}") from None


def _literal(column: AddedColumn, token: str) -> str | None:
    """Return a literal without its quotes; None: NULL."""
    if token[0] == "'":
        text = column.quoted[int(token[1:-1])][1:-1]
        if "\\" in text:
            raise _unknown(column, "a default with a backslash, which depends on the session")
        return text.replace("''", "'")
    if token.upper() == "NULL":
        return None
    text = _WORDS.get(token.upper(), token)
    number = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?" if column.kind in _DECIMAL | _REAL else r"[+-]?\d+"
    if not re.fullmatch(number, text, re.ASCII | re.IGNORECASE):
        raise _unknown(column, f"the default {token}")
    return text


def _converted(column: AddedColumn, text: str | None) -> Value:
    """Return a literal as a value of the column. None: the implicit default. ValueError: it is no such value."""
    kind = column.kind
    if kind in _WHOLE:
        return int(text or "0")
    if kind in _DECIMAL:
        _, _, places = column.arguments.partition(",")
        number = Decimal(text or "0").quantize(Decimal(1).scaleb(-int(places or 0)), ROUND_HALF_UP)
        return f"{number or abs(number):f}"
    if kind == "float":
        (real,) = struct.unpack("<f", struct.pack("<f", float(text or "0")))
        return float(real)
    if kind == "double":
        return float(text or "0")
    if kind in _TEXT and not _BINARY.search(column.definition):
        return (text or "").rstrip(" ") if kind == "char" else text or ""
    if text is not None and kind == "enum":
        members = [column.quoted[int(one)][1:-1].replace("''", "'") for one in re.findall(r"'(\d+)'", column.arguments)]
        if text in members:
            return text
    if text is not None and kind in ("date", "datetime") and (found := _MOMENT.fullmatch(text)):
        return _moment(kind, int(column.arguments or 0), found[1], found[2], found[3] or "")
    raise ValueError(kind)


def _moment(kind: str, places: int, day: str, clock: str | None, fraction: str) -> str:
    if kind == "date":
        if clock is not None:
            raise ValueError(clock)
        return day
    if len(fraction) > places:
        raise ValueError(fraction)
    return f"{day}T{clock or '00:00:00'}{f'.{fraction:0<{places}}' if places else ''}"


def _unknown(column: AddedColumn, what: str) -> UnknownValue:
    return UnknownValue(f"it gives rows {what} in the column {column.name}")
