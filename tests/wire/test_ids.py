"""Ids and hashes: the references' vectors, months and clocks, round trips."""

import struct
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    Host,
    IdError,
    UniqueIdFactory,
    index_key_hash,
    java_string_hash,
    offset_msg_id,
    parse_offset_msg_id,
    tags_code,
)
from mqtrail.wire.ids import decode_unique_id


def local_ms(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, second).timestamp() * 1000)


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


@pytest.mark.parametrize(
    ("host", "physical_offset", "text"),
    [
        (Host("192.168.1.1", 10911), 238257, "C0A8010100002A9F000000000003A2B1"),
        (Host("fd00::2", 10911), 238257, "FD00000000000000000000000000000200002A9F000000000003A2B1"),
    ],
)
def test_offset_ids(host: Host, physical_offset: int, text: str) -> None:
    """The broker's ids of the reference, both ways and in any case."""
    assert offset_msg_id(host, physical_offset) == text
    assert parse_offset_msg_id(text) == (host, physical_offset)
    assert parse_offset_msg_id(text.lower()) == (host, physical_offset)


@pytest.mark.parametrize("text", ["", "C0A8", "G" * 32, "C0 A8 01 01 00 00 2A 9F 00 00 00", "0" * 30, "F" * 32])
def test_texts_that_are_no_offset_ids(text: str) -> None:
    with pytest.raises(IdError, match="expected"):
        parse_offset_msg_id(text)


def test_unique_id_of_the_reference() -> None:
    """ip 192.168.1.9, pid 1234, time 790 366 843 ms after the month's start, counter 0."""
    clock = Clock(local_ms(2023, 11, 1) + 790_366_843)
    factory = UniqueIdFactory("192.168.1.9", 1234, 0x18B4AAC2, clock)
    assert factory.next() == "C0A8010904D218B4AAC22F1C0A7B0000"
    assert factory.next() == "C0A8010904D218B4AAC22F1C0A7B0001"
    unique_id = decode_unique_id("C0A8010904D218B4AAC22F1C0A7B0001")
    assert unique_id is not None
    assert (unique_id.ip, unique_id.pid, unique_id.loader_hash) == ("192.168.1.9", 1234, 0x18B4AAC2)
    assert (unique_id.month_ms, unique_id.counter) == (790_366_843, 1)
    assert unique_id.time_ms(clock.now_ms + 5) == clock.now_ms


def test_unique_ids_of_an_ipv6_host_have_56_digits() -> None:
    factory = UniqueIdFactory("fd00::2", 70_000, -1, Clock(local_ms(2024, 2, 29)))
    text = factory.next()
    assert len(text) == 56
    unique_id = decode_unique_id(text)
    assert unique_id is not None
    assert (unique_id.ip, unique_id.pid, unique_id.loader_hash) == ("fd00::2", 70_000 & 0xFFFF, 0xFFFFFFFF)


def test_time_starts_again_with_the_month() -> None:
    """At the first ms of the next month the time is 0, also over the year's end."""
    clock = Clock(local_ms(2023, 12, 31, 23, 59, 59))
    factory = UniqueIdFactory("10.0.0.1", 1, 1, clock)
    factory.next()
    clock.now_ms = local_ms(2024, 1, 1)
    unique_id = decode_unique_id(factory.next())
    assert unique_id is not None
    assert unique_id.month_ms == 0
    assert unique_id.time_ms(clock.now_ms + 1) == clock.now_ms


def test_id_of_last_month_is_dated_back() -> None:
    """A time in the future of this month belongs to the last month."""
    unique_id = decode_unique_id(UniqueIdFactory("10.0.0.1", 1, 1, Clock(local_ms(2024, 2, 28, 12))).next())
    assert unique_id is not None
    assert unique_id.time_ms(local_ms(2024, 3, 2)) == local_ms(2024, 2, 28, 12)


def test_a_clock_stepped_back_gives_time_zero_or_the_earlier_month() -> None:
    """A small step back over the month's start keeps the month with time 0; a large one returns to the previous
    month."""
    clock = Clock(local_ms(2024, 3, 1))
    factory = UniqueIdFactory("10.0.0.1", 1, 1, clock)
    clock.now_ms -= 5_000
    small = decode_unique_id(factory.next())
    clock.now_ms = local_ms(2024, 2, 10)
    large = decode_unique_id(factory.next())
    assert small is not None
    assert large is not None
    assert small.month_ms == 0
    assert large.month_ms == clock.now_ms - local_ms(2024, 2, 1)


def test_the_counter_wraps_without_repeating_itself_before() -> None:
    factory = UniqueIdFactory("10.0.0.1", 1, 1, Clock(local_ms(2024, 3, 1)))
    texts = [factory.next() for _ in range(65_537)]
    assert len(set(texts)) == 65_536
    assert texts[0] == texts[-1]


@pytest.mark.parametrize("text", ["", "x", "order-1", "0" * 31, "Z" * 32, "0" * 20 + " " * 12])
def test_other_ids_say_nothing(text: str) -> None:
    """Ids are opaque: an id of another shape is no error."""
    assert decode_unique_id(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("TagA", 2598919), ("TagB", 2598920), ("订单", 1129459), ("😀", 1772899), ("x" * 300, None)],
)
def test_string_hash(text: str, value: int | None) -> None:
    """Vectors of the reference, a pair of UTF-16 units, and a long text against the plain loop."""
    expected = 0
    data = text.encode("utf-16-be")
    for at in range(0, len(data), 2):
        expected = (31 * expected + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    if expected >= 0x80000000:
        expected -= 0x100000000
    assert java_string_hash(text) == expected
    if value is not None:
        assert expected == value


@given(st.text(max_size=40))
def test_hashes_are_32_bits(text: str) -> None:
    assert -0x80000000 <= java_string_hash(text) <= 0x7FFFFFFF
    assert 0 <= index_key_hash("T", text) <= 0x7FFFFFFF
    assert tags_code(text) == java_string_hash(text)


def test_hashes_without_an_absolute_value() -> None:
    """No tag is 0; the one hash whose absolute value does not fit is 0."""
    assert tags_code(None) == 0
    text = "polygenelubricants"  # known for its hash of -2**31
    assert java_string_hash(text) == -0x80000000
    assert index_key_hash("T", "k") == abs(java_string_hash("T#k"))


@pytest.mark.parametrize("length", [0, 1, 1_023, 1_024, 1_025, 5_000])
def test_long_texts_are_hashed_in_pieces(length: int) -> None:
    """Java's rule unit by unit, whatever the length; nothing is kept of a long text."""
    text = "aé\U0001f600b" * (length // 5 + 1)
    expected = 0
    for unit in struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be")):
        expected = (31 * expected + unit) & 0xFFFFFFFF
    assert java_string_hash(text) & 0xFFFFFFFF == expected
    assert tags_code(text) == java_string_hash(text)
