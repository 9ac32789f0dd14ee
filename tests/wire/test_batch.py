"""Batch bodies: the reference's vector, recorded batches, round trips, damage."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    BatchItem,
    BodyError,
    Message,
    PropertiesError,
    decode_batch,
    decode_properties,
    encode_batch,
)

from .conftest import RecordedFrame

VECTOR = bytes.fromhex(
    "00000025 00000000 00000000 00000007 00000001 61 000e 7001310257414954017472756502"
    "00000022 00000000 00000000 00000000 00000002 6263 000a 57414954017472756502"
)
ITEMS = [BatchItem(b"a", b"p\x011\x02WAIT\x01true\x02", 7), BatchItem(b"bc", b"WAIT\x01true\x02")]

items = st.builds(BatchItem, st.binary(max_size=20), st.binary(max_size=20), st.integers(-(2**31), 2**31 - 1))


def test_vector_of_the_reference() -> None:
    assert encode_batch(ITEMS) == VECTOR
    assert decode_batch(VECTOR) == ITEMS


def test_messages_make_a_batch() -> None:
    """A Message is written with its wire properties, as an item would be."""
    (item,) = decode_batch(encode_batch([Message("T", b"b", tags="TagA", flag=3)]))
    assert (item.body, item.flag) == (b"b", 3)
    assert decode_properties(item.properties) == {"WAIT": "true", "TAGS": "TagA"}


def test_recorded_batches(recorded: list[RecordedFrame]) -> None:
    """What the Java client packed is unpacked, item by item, and packs to the same bytes."""
    bodies = [line.body for line in recorded if line.facts["code"] == 320 and not line.is_reply]
    assert bodies
    for body in bodies:
        batch = decode_batch(body)
        assert [item.body for item in batch] == [b"batch %d" % number for number in range(len(batch))]
        assert all("UNIQ_KEY" in decode_properties(item.properties) for item in batch)
        assert encode_batch(batch) == body


@given(st.lists(items, max_size=4))
def test_round_trip(batch: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@given(st.lists(items, min_size=1, max_size=3), st.integers(0, 200), st.integers(0, 255))
def test_damage_is_refused_as_a_whole(batch: list[BatchItem], at: int, byte: int) -> None:
    """A truncated batch is never accepted in part, and a wrong byte raises no other error."""
    data = bytearray(encode_batch(batch))
    at %= len(data)
    if at not in {0, *(sum(22 + len(i.body) + len(i.properties) for i in batch[:n]) for n in range(1, len(batch)))}:
        with pytest.raises(BodyError):
            decode_batch(data[:at])
    data[at] = byte
    with contextlib.suppress(BodyError):
        decode_batch(data)


def test_properties_too_long_for_the_wire() -> None:
    with pytest.raises(PropertiesError, match="32768"):
        encode_batch([BatchItem(b"", bytes(32768))])
