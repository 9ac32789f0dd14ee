"""Bytes of row events as values: golden events of a MariaDB 10.11, and every value of a type back from its bytes."""

from __future__ import annotations

import struct
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mqtrail.binlog import BinlogError
from mqtrail.binlog import tablemap as types
from mqtrail.binlog.charsets import CODECS, text_of
from mqtrail.binlog.model import TableColumn, TableMap
from mqtrail.binlog.rows import RowDecoder, decimal_text
from mqtrail.binlog.tablemap import ByteReader, decode_table_map

# Recorded from MariaDB 10.11.19 with --binlog-row-metadata=FULL: the payloads of a table map and of its row.
TABLE = bytes.fromhex(
    "120000000000010001640001740015080d010405f61311fe0ffefe03fc10fefefe03ff0f1a04080a020306fe040900f701f801040201"
    "fe10fe10fe0c042800feff1f0101e402093f022e052d07fc000907010104370269640179027562016602646202647a02743302747301"
    "6202766201650273740176016a0262740175026970016303696e7601670263690a010805050201780179060502016101e9080100"
)
ROW = bytes.fromhex(
    "120000000000010015ffff1f0000e0ffffffffffffffff7cffcdcccc3d9a9999999999b93f80000001327feffff63c6955b90001e240"
    "01010200ff020300010000070000007b2261223a317d0201106ccd780cbaba102695645b8c656024db10000000000000000000000000"
    "0000000103e4b8ad0500000019000000000000000101000000000000000000f03f000000000000004002c3a9"
)
CHARSETS = {8: "latin1", 63: "binary", 45: "utf8mb4", 46: "utf8mb4", 2304: "utf8mb4", 28: "gbk", 3: "dec8"}
VALUES = {
    "id": 18446744073709551615,
    "y": 2024,
    "ub": 255,
    "f": 0.10000000149011612,
    "db": 0.1,
    "dz": "1.50",
    "t3": "-01:00:00.250",
    "ts": "2026-01-01T00:00:00.123456Z",
    "b": "AQAAAA==",
    "vb": "AP8=",
    "e": "é",
    "st": ["x", "y"],
    "v": 256,
    "j": '{"a":1}',
    "bt": 513,
    "u": "bM14DLq6ECaVZFuMZWAk2w==",
    "ip": "AAAAAAAAAAAAAAAAAAAAAQ==",
    "c": "中",
    "inv": 5,
    "g": "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA==",
    "ci": "é",
}
WRITE, UPDATE, DELETE = 23, 24, 25


def test_a_recorded_row_of_every_type() -> None:
    """The table map alone says how the row is read: signs, character sets, members, the key."""
    table = decode_table_map(TABLE)
    assert (table.name, table.key) == ("d.t", ("id",))
    decoder = RowDecoder(CHARSETS)
    assert list(decoder.rows(WRITE, ROW, table)) == [(None, VALUES)]
    assert list(decoder.rows(DELETE, ROW, table)) == [(VALUES, None)]
    head, bitmap, row = ROW[:9], ROW[9:12], ROW[12:]
    assert list(decoder.rows(UPDATE, head + 2 * bitmap + 2 * row, table)) == [(VALUES, VALUES)]
    version_2 = ROW[:8] + b"\x02\x00" + ROW[8:]
    assert list(decoder.rows(30, version_2, table)) == [(None, VALUES)]
    left_out = frozenset({"b", "e", "j", "bt", "g"})
    ((_, rest),) = decoder.rows(WRITE, ROW, table, left_out)
    assert rest == {name: value for name, value in VALUES.items() if name not in left_out}


def test_a_cut_row_is_refused() -> None:
    """No part of it is taken for a row."""
    table, decoder = decode_table_map(TABLE), RowDecoder(CHARSETS)
    for size in range(len(ROW)):
        if size == 12:  # an event without rows
            assert list(decoder.rows(WRITE, ROW[:size], table)) == []
            continue
        with pytest.raises(BinlogError, match=r"damaged row of d\.t"):
            list(decoder.rows(WRITE, ROW[:size], table))


@given(size=some.integers(0, len(TABLE) - 1))
def test_a_cut_table_map_is_refused(size: int) -> None:
    """It is damaged, or has no names."""
    try:
        table = decode_table_map(TABLE[:size])
    except BinlogError:
        return
    assert [one.name for one in table.columns] == list(VALUES), "cut after the names"


def test_a_table_map_without_names_is_refused() -> None:
    """binlog_row_metadata was not FULL when the change was made."""
    with pytest.raises(BinlogError, match=r"without names of its columns.*binlog_row_metadata"):
        decode_table_map(TABLE[: TABLE.index(b"\x01\x01\xe4")])


def test_a_change_without_all_columns_is_refused() -> None:
    """binlog_row_image=MINIMAL leaves out what did not change."""
    minimal = ROW[:9] + b"\x01\x00\x00" + ROW[12:]
    with pytest.raises(BinlogError, match="binlog_row_image=FULL"):
        list(RowDecoder(CHARSETS).rows(WRITE, minimal, decode_table_map(TABLE)))


def one_value(column: TableColumn, data: bytes, charsets: dict[int, str] | None = None) -> object:
    """Return the value of a row of one column."""
    table = TableMap(1, "d", "t", (column,), ("a",))
    payload = bytes(8) + b"\x01\x01" + b"\x00" + data
    ((_, row),) = RowDecoder(charsets or CHARSETS).rows(WRITE, payload, table)
    assert row is not None
    return row["a"]


@given(number=some.integers(-(1 << 63), (1 << 64) - 1), kind=some.sampled_from([1, 2, 3, 8, 9]))
def test_integers(number: int, kind: int) -> None:
    """Signed and unsigned, of each size, to the last bit."""
    size = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8}[kind]
    data = (number & (1 << 8 * size) - 1).to_bytes(size, "little")
    assert one_value(TableColumn("a", kind, is_unsigned=True), data) == int.from_bytes(data, "little")
    assert one_value(TableColumn("a", kind), data) == int.from_bytes(data, "little", signed=True)


def packed_decimal(digits: str, precision: int, scale: int, *, is_negative: bool) -> bytes:
    """Return a DECIMAL as MariaDB stores it: groups of nine digits in four bytes; negative ones are inverted."""
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    head = len(whole) % 9
    groups = [whole[:head], *(whole[at : at + 9] for at in range(head, len(whole), 9))]
    groups += [fraction[at : at + 9] for at in range(0, len(fraction), 9)]
    data = bytearray(b"".join(int(one).to_bytes(sizes[len(one)], "big") for one in groups if one))
    if is_negative:
        data = bytearray(byte ^ 0xFF for byte in data)
    data[0] ^= 0x80
    return bytes(data)


@given(data=some.data())
def test_decimals(data: some.DataObject) -> None:
    """Every digit stays, zeros at the end too."""
    precision = data.draw(some.integers(1, 65))
    scale = data.draw(some.integers(0, min(38, precision)))
    digits = data.draw(some.text("0123456789", min_size=precision, max_size=precision))
    is_negative = data.draw(some.booleans()) and digits.strip("0") != ""
    packed = packed_decimal(digits, precision, scale, is_negative=is_negative)
    text = decimal_text(ByteReader(packed), precision, scale)
    assert (
        Decimal(text)
        == Decimal(f"{'-' if is_negative else ''}{digits[: precision - scale] or '0'}")
        + Decimal(f"{'-' if is_negative else ''}0.{digits[precision - scale :] or '0'}")
        or precision > 28
    )
    assert text.lstrip("-").replace(".", "").zfill(precision)[-precision:] == digits
    assert len(text.partition(".")[2]) == scale
    assert one_value(TableColumn("a", types.DECIMAL, precision | scale << 8), packed) == text


@given(
    hours=some.integers(0, 838),
    minutes=some.integers(0, 59),
    seconds=some.integers(0, 59),
    micros=some.integers(0, 999_999),
    places=some.integers(0, 6),
    is_negative=some.booleans(),
)
def test_times(hours: int, minutes: int, seconds: int, micros: int, places: int, is_negative: bool) -> None:
    """Negative ones with a fraction too."""
    unit = 10 ** (6 - places)
    micros -= micros % unit
    size = (places + 1) // 2
    fraction = micros // 10 ** (6 - 2 * size)
    packed = (hours << 12 | minutes << 6 | seconds) << 8 * size | fraction
    data = ((0x800000 << 8 * size) + (-packed if is_negative else packed)).to_bytes(3 + size, "big")
    sign = "-" if is_negative and packed else ""
    end = f".{micros // unit:0{places}}" if places else ""
    expected = f"{sign}{hours:02}:{minutes:02}:{seconds:02}{end}"
    assert one_value(TableColumn("a", types.TIME, places), data) == expected


@given(
    year=some.integers(0, 9999),
    month=some.integers(0, 12),
    day=some.integers(0, 31),
    second=some.integers(0, 86_399),
    micros=some.integers(0, 999_999),
    places=some.integers(0, 6),
)
def test_dates(year: int, month: int, day: int, second: int, micros: int, places: int) -> None:
    """Also those that no calendar has: 0000-00-00 and 2026-02-31 are values of their own."""
    hour, minute, second = second // 3600, second // 60 % 60, second % 60
    micros -= micros % 10 ** (6 - places)
    size = (places + 1) // 2
    packed = ((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second
    fraction = (micros // 10 ** (6 - 2 * size)).to_bytes(size, "big")
    data = (packed + 0x8000000000).to_bytes(5, "big") + fraction
    end = f".{micros // 10 ** (6 - places):0{places}}" if places else ""
    expected = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{end}"
    assert one_value(TableColumn("a", types.DATETIME, places), data) == expected
    date = (year << 9 | month << 5 | day).to_bytes(3, "little")
    assert one_value(TableColumn("a", types.DATE), date) == expected[:10]


@pytest.mark.parametrize(
    ("places", "data", "text"),
    [
        (0, "00000000", "0000-00-00T00:00:00Z"),
        (3, "000000000000", "0000-00-00T00:00:00.000Z"),
        (3, "00000001000a", "1970-01-01T00:00:01.001Z"),
        (0, "7fffffff", "2038-01-19T03:14:07Z"),
        (0, "ffffffff", "2106-02-07T06:28:15Z"),
    ],
)
def test_timestamps(places: int, data: str, text: str) -> None:
    """They are UTC, to the end of the type; zero is no date."""
    assert one_value(TableColumn("a", types.TIMESTAMP, places), bytes.fromhex(data)) == text


@pytest.mark.parametrize(
    ("column", "data", "value"),
    [
        (TableColumn("a", types.YEAR), b"\x00", 0),
        (TableColumn("a", types.YEAR), b"\xff", 2155),
        (TableColumn("a", types.FLOAT, 4), struct.pack("<f", 1.5), 1.5),
        (TableColumn("a", types.BIT, 8 << 8), b"\xff" * 8, (1 << 64) - 1),
        (TableColumn("a", types.BIT, 1 << 8 | 1), b"\x01\x02", 258),
        (TableColumn("a", types.ENUM, 1, charset=28, members=(b"\xd6\xd0",)), b"\x01", "中"),
        (TableColumn("a", types.ENUM, 1, charset=8, members=(b"x",)), b"\x00", ""),
        (TableColumn("a", types.SET, 2, charset=8, members=(b"\xe9",) * 9), b"\x01\x01", ["é", "é"]),
        (TableColumn("a", types.SET, 1, charset=8, members=(b"x",)), b"\x00", []),
        (TableColumn("a", types.VARCHAR, 256, charset=8), b"\x02\x00\x80\x81", "€\x81"),
        (TableColumn("a", types.VARCHAR, 255, charset=63), b"\x01\x00", "AA=="),
        (TableColumn("a", types.STRING, 3, charset=63), b"\x00", "AAAA"),
        (TableColumn("a", types.BLOB, 3, charset=63), b"\x01\x00\x00\xff", "/w=="),
    ],
)
def test_further_values(column: TableColumn, data: bytes, value: object) -> None:
    """Ends of ranges, members in the character set of their column, binary and text."""
    assert one_value(column, data) == value


@pytest.mark.parametrize(
    ("column", "data", "found"),
    [
        (TableColumn("a", types.VARCHAR, 9, charset=3), b"\x01x", "character set dec8"),
        (TableColumn("a", types.VARCHAR, 9, charset=999), b"\x01x", "character set number 999"),
        (TableColumn("a", types.VARCHAR, 9, charset=45), b"\x01\xff", "bytes that are no utf8mb4"),
        (TableColumn("a", types.DATETIME_OLD), b"", r"format from before MariaDB 10\.1"),
        (TableColumn("a", types.BLOB_COMPRESSED, 2), b"", "a COMPRESSED column"),
        (TableColumn("a", 200), b"", "type 200"),
    ],
)
def test_what_cannot_be_kept_exactly_is_refused(column: TableColumn, data: bytes, found: str) -> None:
    """With the column, and what to do."""
    with pytest.raises(BinlogError, match=found) as caught:
        one_value(column, data)
    assert "a" in str(caught.value)


@pytest.mark.parametrize("charset", sorted(CODECS))
def test_every_charset_has_its_codec(charset: str) -> None:
    """Python knows each of them; ASCII is itself, in two and four bytes where the set has no single ones."""
    wide = {"ucs2": "utf_16_be", "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be"}
    assert text_of("a~1".encode(wide.get(charset, "ascii")), charset) == "a~1"


@given(some.data())
def test_damaged_events_are_refused_in_words(data: some.DataObject) -> None:
    """Whatever a server sends: values, or BinlogError."""
    changed, row = bytearray(TABLE), bytearray(ROW)
    for event in (changed, row):
        for at in data.draw(some.lists(some.integers(0, len(event) - 1), max_size=4)):
            event[at] = data.draw(some.sampled_from((0, 1, 0x7F, 0xFB, 0xFC, 0xFF)))
    with suppress(BinlogError):
        table = decode_table_map(bytes(changed))
        for kind in (WRITE, UPDATE, DELETE, 30, 31):
            with suppress(BinlogError):
                list(RowDecoder(CHARSETS).rows(kind, bytes(row), table))


@pytest.mark.parametrize("field", ["0200", "02020105", "0a020105"])
def test_half_a_pair_in_a_table_map_is_damage(field: str) -> None:
    """Default character sets are a number and pairs of numbers."""
    head = bytes.fromhex("120000000000010001640001740001030000")
    with pytest.raises(BinlogError, match="damaged table map"):
        decode_table_map(head + bytes.fromhex(field))


def test_a_decimal_without_digits_is_damage() -> None:
    """DECIMAL(0, 0) has no byte."""
    table = TableMap(18, "d", "t", (TableColumn("z", types.DECIMAL),), ("z",))
    with pytest.raises(BinlogError, match="damaged row"):
        list(RowDecoder({}).rows(WRITE, bytes.fromhex("120000000000010001ff00"), table))
