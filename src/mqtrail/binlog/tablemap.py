"""TABLE_MAP_EVENT: the table that the row events after it change.

    table id 6, flags 2, database (length 1, text, NUL), table (likewise), number of columns, a type for each,
    metadata, bitmap of nullable columns, then optional fields: type 1, length, value

binlog_row_metadata=FULL writes the optional fields: names, signs, character sets, members, primary key. So a change is
decoded with the table as it was, whatever statements came after it.

Source: sql/log_event_server.cc (Table_map_log_event), MariaDB 10.11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from .model import BinlogError, TableColumn, TableMap

TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24 = 1, 2, 3, 4, 5, 8, 9
TIMESTAMP_OLD, DATE, TIME_OLD, DATETIME_OLD, YEAR = 7, 10, 11, 12, 13
VARCHAR, BIT, TIMESTAMP, DATETIME, TIME = 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
JSON, DECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 245, 246, 247, 248, 252, 253, 254, 255

_META_1: Final = frozenset(
    {FLOAT, DOUBLE, BLOB, GEOMETRY, JSON, TIMESTAMP, DATETIME, TIME, BLOB_COMPRESSED}
)  # types with a byte of metadata
_META_2: Final = frozenset({VARCHAR, BIT, DECIMAL, STRING, VAR_STRING, ENUM, SET, VARCHAR_COMPRESSED})
_NUMBERS: Final = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, DECIMAL, FLOAT, DOUBLE, YEAR})  # they have a sign bit
_TEXTS: Final = frozenset({STRING, VAR_STRING, VARCHAR, BLOB, GEOMETRY, BLOB_COMPRESSED, VARCHAR_COMPRESSED})

(
    SIGNS,
    DEFAULT_CHARSET,
    CHARSETS,
    NAMES,
    SET_MEMBERS,
    ENUM_MEMBERS,
    _,
    KEY,
    PREFIX_KEY,
    DEFAULT_MEMBER_CHARSET,
    MEMBER_CHARSETS,
) = range(1, 12)


class Cut(Exception):
    """An event ends before its last value, or a length in it cannot be."""


class ByteReader:
    """Reads values from the bytes of an event."""

    def __init__(self, data: bytes, place: int = 0) -> None:
        self._data = data
        self.place = place

    @property
    def is_at_end(self) -> bool:
        """Whether all bytes are read."""
        return self.place >= len(self._data)

    def take(self, size: int) -> bytes:
        """Return the next bytes. Cut."""
        end = self.place + size
        if end > len(self._data):
            raise Cut
        found = self._data[self.place : end]
        self.place = end
        return found

    def number(self, size: int) -> int:
        """Return an unsigned number, low byte first."""
        return int.from_bytes(self.take(size), "little")

    def length(self) -> int:
        """Return a number of 1 to 9 bytes."""
        first = self.number(1)
        if first < 251:
            return first
        sizes = {252: 2, 253: 3, 254: 8}
        if first not in sizes:
            raise Cut
        return self.number(sizes[first])

    def text(self) -> bytes:
        """Return bytes after their length."""
        return self.take(self.length())

    def lengths(self) -> Iterator[int]:
        """Yield numbers to the end."""
        while not self.is_at_end:
            yield self.length()


@dataclass(slots=True)
class _Optional:
    """The optional fields."""

    signs: bytes = b""
    charsets: list[int] = field(default_factory=list)  # of all columns with text, in their order
    default: tuple[int, Mapping[int, int]] | None = None
    member_charsets: list[int] = field(default_factory=list)
    member_default: tuple[int, Mapping[int, int]] | None = None
    names: list[str] = field(default_factory=list)
    sets: list[list[bytes]] = field(default_factory=list)
    enums: list[list[bytes]] = field(default_factory=list)
    key: list[int] = field(default_factory=list)

    def charset(self, number: int) -> int:
        """Return the collation of the text column with this number among them."""
        return _charset(number, self.charsets, self.default)

    def member_charset(self, number: int) -> int:
        """Return the collation of the ENUM or SET column with this number among them."""
        return _charset(number, self.member_charsets, self.member_default)


def _charset(number: int, each: list[int], default: tuple[int, Mapping[int, int]] | None) -> int:
    if default is not None:
        return default[1].get(number, default[0])
    return each[number] if number < len(each) else 0


def decode_table_map(data: bytes) -> TableMap:
    """Return the table of an event's payload. BinlogError: without binlog_row_metadata=FULL, or damaged."""
    try:
        return _decode(ByteReader(data))
    except (Cut, IndexError, ValueError) as error:  # ValueError: other text than UTF-8, or a half of a pair
        raise BinlogError(
            f"found a damaged table map in the binlog ({type(error).__name__}), expected whole ones: check the "
            "server's disk, and start again with a new --state"
        ) from None


def _decode(reader: ByteReader) -> TableMap:
    table_id = reader.number(6)
    reader.take(2)
    names = []
    for _part in range(2):
        names.append(reader.take(reader.number(1)).decode())
        reader.take(1)
    database, table = names
    kinds = reader.take(reader.length())
    columns = list(_columns(kinds, ByteReader(reader.text())))
    reader.take((len(kinds) + 7) // 8)
    optional = _optional(reader)
    if len(optional.names) != len(columns):
        raise BinlogError(
            f"found changes of {database}.{table} without names of its columns, expected those that "
            "binlog_row_metadata=FULL writes: set it (SET GLOBAL binlog_row_metadata='FULL'), open new connections to "
            "the server, and start again with a new --state"
        )
    return TableMap(
        table_id,
        database,
        table,
        tuple(_completed(columns, optional)),
        tuple(optional.names[one] for one in optional.key),
    )


def _columns(kinds: bytes, meta: ByteReader) -> Iterator[tuple[int, int]]:
    """Yield type and metadata of each column. ENUM and SET hide in STRING."""
    for kind in kinds:
        if kind in _META_1:
            yield kind, meta.number(1)
        elif kind in (STRING, VAR_STRING, ENUM, SET):
            high, low = meta.number(1), meta.number(1)
            if high in (ENUM, SET):
                yield high, low
            elif high & 0x30 != 0x30:  # the length has more than 8 bits
                yield STRING, low | ((high & 0x30) ^ 0x30) << 4
            else:
                yield STRING, low
        elif kind in _META_2:
            yield kind, meta.number(2)
        else:
            yield kind, 0


def _optional(reader: ByteReader) -> _Optional:
    found = _Optional()
    while not reader.is_at_end:
        kind = reader.number(1)
        data = reader.text()
        inner = ByteReader(data)
        if kind == SIGNS:
            found.signs = data
        elif kind in (DEFAULT_CHARSET, DEFAULT_MEMBER_CHARSET):
            default, *pairs = inner.lengths()
            value = default, dict(zip(pairs[::2], pairs[1::2], strict=True))
            if kind == DEFAULT_CHARSET:
                found.default = value
            else:
                found.member_default = value
        elif kind == CHARSETS:
            found.charsets = list(inner.lengths())
        elif kind == MEMBER_CHARSETS:
            found.member_charsets = list(inner.lengths())
        elif kind == NAMES:
            while not inner.is_at_end:
                found.names.append(inner.text().decode())
        elif kind in (SET_MEMBERS, ENUM_MEMBERS):
            members = found.sets if kind == SET_MEMBERS else found.enums
            while not inner.is_at_end:
                members.append([inner.text() for _ in range(inner.length())])
        elif kind == KEY:
            found.key = list(inner.lengths())
        elif kind == PREFIX_KEY:
            found.key = list(inner.lengths())[::2]
    return found


def _completed(columns: list[tuple[int, int]], optional: _Optional) -> Iterator[TableColumn]:
    numbers = texts = sets = enums = 0
    for name, (kind, meta) in zip(optional.names, columns, strict=True):
        is_unsigned, charset, members = False, 0, list[bytes]()
        if kind in _NUMBERS:
            is_unsigned = bool(optional.signs[numbers // 8] & 0x80 >> numbers % 8)
            numbers += 1
        elif kind in _TEXTS:
            charset = optional.charset(texts)
            texts += 1
        elif kind in (ENUM, SET):
            charset = optional.member_charset(enums + sets)
            if kind == ENUM:
                members, enums = optional.enums[enums], enums + 1
            else:
                members, sets = optional.sets[sets], sets + 1
        yield TableColumn(name, kind, meta, is_unsigned, charset, tuple(members))
