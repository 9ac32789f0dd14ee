"""Properties text: the decoder's vectors, round trips, and the shortcut that agrees with the decoder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    PropertiesError,
    decode_properties,
    encode_properties,
    find_property,
    number_of,
)
from mqtrail.wire.properties import PROPERTY_SEPARATOR, RESERVED_PROPERTIES

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)
values = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a\x011\x02b\x012", {"a": "1", "b": "2"}),
        ("a\x011\x02b\x012\x02", {"a": "1", "b": "2"}),
        ("a\x01\x02b\x012\x02", {"b": "2"}),
        ("a\x011\x013\x02\x01q\x02b\x012", {"a": "1\x013", "b": "2"}),
        ("\x02\x02a\x011", {"a": "1"}),
        ("a\x011\x02a\x012\x02", {"a": "2"}),
        ("", {}),
        (b"a\x01\xff", {"a": "\ufffd"}),
    ],
)
def test_reading_as_java_does(text: str | bytes, properties: dict[str, str]) -> None:
    """The vectors of the reference are read, and the later one of two values wins."""
    assert decode_properties(text) == properties


@given(st.dictionaries(names, values, max_size=5))
def test_round_trip(properties: dict[str, str]) -> None:
    """Written properties are read back; a cut text gives the whole ones before the cut."""
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text.encode()) == properties
    assert text.count(PROPERTY_SEPARATOR) == len(properties)


@given(st.binary(max_size=60))
def test_reading_never_fails(data: bytes) -> None:
    """Any bytes give a map, perhaps an empty one."""
    assert all(name and value for name, value in decode_properties(data).items())


@pytest.mark.parametrize("properties", [{"": "1"}, {"a\x01": "1"}, {"a\x02": "1"}, {"a": ""}, {"a": "1\x02"}])
def test_what_cannot_be_read_back_is_not_written(properties: dict[str, str]) -> None:
    """There is no escaping, so a separator would change what the reader sees."""
    with pytest.raises(PropertiesError, match="expected"):
        encode_properties(properties)


@given(st.lists(st.sampled_from([b"a", b"ab", b"b", b"\x01", b"\x02", b"1"]), max_size=24).map(b"".join))
def test_find_says_what_decode_says(data: bytes) -> None:
    """The shortcut for the hot paths knows the same entries, for any arrangement of separators."""
    properties = decode_properties(data)
    for name in ("a", "ab", "b"):
        found = find_property(data, name.encode())
        assert (None if found is None else found.decode()) == properties.get(name)


def test_reserved_names() -> None:
    """Names of RocketMQ's own are known as such; separators and the transient prefix are no names."""
    assert {PROPERTY_UNIQ_KEY, PROPERTY_TAGS, "__STARTDELIVERTIME", "1ST_POP_TIME"} <= RESERVED_PROPERTIES
    assert not {"\x01", "\x02", "__RMQ.TRANSIENT."} & RESERVED_PROPERTIES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"0", 0),
        (b"9" * 18, 10**18 - 1),
        (None, None),
        (b"", None),
        (b"-1", None),
        (b"1_0", None),
        ("\u00b2".encode(), None),
        ("\u0663".encode(), None),
        (b"9" * 19, None),
        (b"9" * 5_000, None),
        ("12", 12),
        ("\u00b2", None),
        ("\u0663", None),
        ("9" * 19, None),
    ],
)
def test_numbers_of_senders(text: str | bytes | None, expected: int | None) -> None:
    """What is no number of ours never raises: int() does at 4,300 digits."""
    assert number_of(text) == expected


def test_a_number_may_have_a_limit_of_its_own() -> None:
    assert (number_of("123", 3), number_of("1234", 3)) == (123, None)
