"""WRITE, UPDATE and DELETE_ROWS_EVENT: the rows that a statement changed, each value exactly.

    table id 6, flags 2, (version 2: extra data, its length 2 included), number of columns, bitmap of the columns
    present, an update: a second bitmap; then for each row, an update: twice: bitmap of NULLs, values

Source: sql/log_event.cc (log_event_print_value), sql/compat56.cc, strings/decimal.c, MariaDB 10.11.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from . import tablemap as types
from .charsets import BINARY, CODECS, text_of
from .model import BinlogError, TableColumn, TableMap, Value
from .tablemap import ByteReader, Cut

WRITE_KINDS: Final = frozenset({23, 30})
UPDATE_KINDS: Final = frozenset({24, 31})
DELETE_KINDS: Final = frozenset({25, 32})
_VERSION_2: Final = frozenset({30, 31, 32})

_SIZES: Final = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
_DIGITS: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # bytes of so many digits of a decimal
_REFUSED: Final = {
    types.TIMESTAMP_OLD: "a TIMESTAMP in the format from before MariaDB 10.1",
    types.TIME_OLD: "a TIME in the format from before MariaDB 10.1",
    types.DATETIME_OLD: "a DATETIME in the format from before MariaDB 10.1",
    types.BLOB_COMPRESSED: "a COMPRESSED column",
    types.VARCHAR_COMPRESSED: "a COMPRESSED column",
    types.JSON: "MySQL's JSON",
}

Values = dict[str, Value]


class RowDecoder:
    """Decodes rows. charsets: id of a collation -> name of its character set, as the server lists them."""

    def __init__(self, charsets: Mapping[int, str]) -> None:
        self._charsets = charsets

    def rows(
        self, event: int, data: bytes, table: TableMap, left_out: frozenset[str] = frozenset()
    ) -> Iterator[tuple[Values | None, Values | None]]:
        """Yield before and after of each row of an event's payload. left_out: columns that are not decoded.

        BinlogError: a value cannot be kept exactly, or columns are missing.
        """
        reader = ByteReader(data)
        try:
            reader.take(8)
            if event in _VERSION_2:
                reader.take(max(0, reader.number(2) - 2))
            count = reader.length()
            self._check(table, count)
            for _ in range(2 if event in UPDATE_KINDS else 1):
                self._check_all_present(reader.take((count + 7) // 8), table, count)
            while not reader.is_at_end:
                first = self._row(reader, table, left_out)
                if event in WRITE_KINDS:
                    yield None, first
                elif event in DELETE_KINDS:
                    yield first, None
                else:
                    yield first, self._row(reader, table, left_out)
        except (Cut, IndexError):  # IndexError: a DECIMAL without digits
            raise BinlogError(
                f"found a damaged row of {table.name} in the binlog, expected whole ones: check the server's disk, and "
                "start again with a new --state"
            ) from None

    def _check(self, table: TableMap, count: int) -> None:
        if count != len(table.columns):
            raise Cut
        for column in table.columns:
            if column.kind in _REFUSED:
                raise BinlogError(
                    f"found {_REFUSED[column.kind]}, the column {column.name} of {table.name}, expected a type that "
                    "can "
                    "be kept exactly: convert the table (ALTER TABLE … FORCE converts old formats), or leave the table "
                    f"out: --exclude-table {table.name}"
                )

    def _check_all_present(self, bitmap: bytes, table: TableMap, count: int) -> None:
        if int.from_bytes(bitmap, "little") & (1 << count) - 1 != (1 << count) - 1:
            raise BinlogError(
                f"found a change of {table.name} without all its columns, expected binlog_row_image=FULL: set it for "
                "the server and its sessions, and start again with a new --state"
            )

    def _row(self, reader: ByteReader, table: TableMap, left_out: frozenset[str]) -> Values:
        nulls = int.from_bytes(reader.take((len(table.columns) + 7) // 8), "little")
        values: Values = {}
        for number, column in enumerate(table.columns):
            if nulls >> number & 1:
                value = None
            elif column.name in left_out:
                self._skip(reader, column)
                continue
            else:
                value = self._value(reader, column, table)
            if column.name not in left_out:
                values[column.name] = value
        return values

    def _skip(self, reader: ByteReader, column: TableColumn) -> None:
        """Pass over a value; its text is not decoded."""
        if column.kind in (types.VARCHAR, types.STRING, types.BLOB, types.GEOMETRY):
            _bytes(reader, column)
        elif column.kind in (types.ENUM, types.SET):
            reader.take(column.meta)
        else:
            _plain(reader, column)

    def _value(self, reader: ByteReader, column: TableColumn, table: TableMap) -> Value:
        if column.kind in (types.VARCHAR, types.STRING, types.BLOB):
            data = _bytes(reader, column)
            charset = self._charsets.get(column.charset, f"number {column.charset}")
            if charset == BINARY:
                # Trailing zeros of BINARY(n) are not in the binlog.
                return base64_of(data.ljust(column.meta, b"\0") if column.kind == types.STRING else data)
            return _text(data, charset, column, table)
        if column.kind == types.GEOMETRY:
            return base64_of(_bytes(reader, column))
        if column.kind in (types.ENUM, types.SET):
            charset = self._charsets.get(column.charset, f"number {column.charset}")
            names = [_text(one, charset, column, table) for one in _members(reader, column)]
            return names if column.kind == types.SET else names[0]
        return _plain(reader, column)


def base64_of(data: bytes) -> str:
    """Return bytes as JSON has them."""
    return base64.b64encode(data).decode("ascii")


def _text(data: bytes, charset: str, column: TableColumn, table: TableMap) -> str:
    try:
        return text_of(data, charset)
    except KeyError:
        found = f"the character set {charset}"
        expected = f"one of {', '.join(CODECS)}"
    except UnicodeDecodeError as error:
        found = f"bytes that are no {charset} ({error.reason})"
        expected = "text of that character set"
    raise BinlogError(
        f"found {found} in the column {column.name} of {table.name}, expected {expected}: convert the column, or "
        f"leave it out: --exclude-column {table.name}.{column.name}"
    ) from None


def _bytes(reader: ByteReader, column: TableColumn) -> bytes:
    """Return a value that begins with its length."""
    if column.kind in (types.BLOB, types.GEOMETRY):
        return reader.take(reader.number(column.meta))
    return reader.take(reader.number(2 if column.meta > 255 else 1))


def _members(reader: ByteReader, column: TableColumn) -> list[bytes]:
    """Return the members of a value: of an ENUM one, which is empty if an invalid value was written."""
    number = reader.number(column.meta)
    if column.kind == types.SET:
        return [name for bit, name in enumerate(column.members) if number >> bit & 1]
    return [column.members[number - 1] if 0 < number <= len(column.members) else b""]


def _plain(reader: ByteReader, column: TableColumn) -> Value:
    """Return a value of a type without a character set."""
    kind, meta = column.kind, column.meta
    if kind in _SIZES:
        return int.from_bytes(reader.take(_SIZES[kind]), "little", signed=not column.is_unsigned)
    if kind == types.FLOAT:
        (real,) = struct.unpack("<f", reader.take(4))
        return float(real)
    if kind == types.DOUBLE:
        (real,) = struct.unpack("<d", reader.take(8))
        return float(real)
    if kind == types.YEAR:
        year = reader.number(1)
        return year + 1900 if year else 0
    if kind == types.BIT:
        bits = (meta >> 8) * 8 + (meta & 0xFF)
        return int.from_bytes(reader.take((bits + 7) // 8), "big")
    if kind == types.DECIMAL:
        return decimal_text(reader, meta & 0xFF, meta >> 8)
    if kind == types.DATE:
        packed = reader.number(3)
        return f"{packed >> 9:04}-{packed >> 5 & 15:02}-{packed & 31:02}"
    if kind == types.DATETIME:
        return _datetime(reader, meta)
    if kind == types.TIMESTAMP:
        return _timestamp(reader, meta)
    if kind == types.TIME:
        return _time(reader, meta)
    raise BinlogError(f"found a column {column.name} of the binlog's type {kind}, expected a type that mqtrail knows")


def decimal_text(reader: ByteReader, precision: int, scale: int) -> str:
    """Return a DECIMAL(precision, scale) with all its digits after the point."""
    whole = precision - scale
    sizes = [_DIGITS[whole % 9], *[4] * (whole // 9), *[4] * (scale // 9), _DIGITS[scale % 9]]
    digits = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    data = bytearray(reader.take(sum(sizes)))
    is_negative = not data[0] & 0x80
    data[0] ^= 0x80
    if is_negative:
        data = bytearray(byte ^ 0xFF for byte in data)
    text, place = "", 0
    for size, count in zip(sizes, digits, strict=True):
        if count:
            text += f"{int.from_bytes(data[place : place + size], 'big'):0{count}}"
        place += size
    before, after = (text[:-scale], text[-scale:]) if scale else (text, "")
    number = (before.lstrip("0") or "0") + (f".{after}" if scale else "")
    return f"-{number}" if is_negative else number


def _fraction(reader: ByteReader, places: int) -> str:
    """Return the digits after the second, with their point."""
    if not places:
        return ""
    size = (places + 1) // 2
    value = int.from_bytes(reader.take(size), "big")
    return f".{value:0{2 * size}}"[: places + 1]


def _datetime(reader: ByteReader, places: int) -> str:
    packed = int.from_bytes(reader.take(5), "big") - 0x8000000000
    months = packed >> 22
    date = f"{months // 13:04}-{months % 13:02}-{packed >> 17 & 31:02}"
    clock = f"{packed >> 12 & 31:02}:{packed >> 6 & 63:02}:{packed & 63:02}"
    return f"{date}T{clock}{_fraction(reader, places)}"


def _timestamp(reader: ByteReader, places: int) -> str:
    seconds = int.from_bytes(reader.take(4), "big")
    fraction = _fraction(reader, places)
    if not seconds and not fraction.strip(".0"):
        return f"0000-00-00T00:00:00{fraction}Z"
    return f"{utc(seconds)}{fraction}Z"


def utc(seconds: int) -> str:
    """Return seconds since 1970 as a date and time of UTC, without the zone."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _time(reader: ByteReader, places: int) -> str:
    """Bits: sign, unused, 10 of hours, 6, 6, then the fraction. Negative times are the complement of all of them."""
    size = 3 + (places + 1) // 2
    packed = int.from_bytes(reader.take(size), "big") - (0x800000 << 8 * (size - 3))
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    whole = packed >> 8 * (size - 3)
    clock = f"{sign}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}"
    if not places:
        return clock
    fraction = packed & (1 << 8 * (size - 3)) - 1
    return f"{clock}.{fraction:0{2 * (size - 3)}}"[: len(clock) + 1 + places]
