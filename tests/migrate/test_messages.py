"""Records as messages: nothing of a record is lost, and what does not fit is named."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client import by_hash
from mqtrail.migrate import HeaderRule, KafkaRecord, MigrateError, OrderBy
from mqtrail.migrate.messages import HEADERS, RecordEncoder, key_of, outbound_of, queue_for, value_of
from mqtrail.wire import BatchItem, Message, MessageQueue, decode_properties, encode_properties

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(5)]


def record(**fields: Any) -> KafkaRecord:
    """A record with these fields."""
    return KafkaRecord("orders", 3, 17, 1_000, b"k", b"v")._replace(**fields)


@given(
    st.one_of(st.none(), st.binary(max_size=300)),
    st.one_of(st.none(), st.binary(max_size=20)),
    st.lists(st.tuples(st.text("aT\x01 é", max_size=3), st.one_of(st.none(), st.binary(max_size=9))), max_size=4),
)
def test_round_trip(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    """Key, value and all headers can be read back from any message, over the wire."""
    found = outbound_of(record(key=key, value=value, headers=tuple(headers)), "t").message
    properties = decode_properties(encode_properties(found.wire_properties()).encode())
    assert key_of(properties) == key
    assert value_of(found.body, properties) == value
    if HEADERS in properties:
        pairs = [(name, None if v is None else base64.b64decode(v)) for name, v in json.loads(properties[HEADERS])]
        assert pairs == headers
    else:
        assert {name: properties[name].encode() for name, _ in headers} == dict(headers)
    assert found.keys[-1] == "orders:3:17"
    assert not any(" " in one for one in found.keys)


HEADER_NAMES = st.one_of(st.text("aT\x01 é", max_size=3), st.sampled_from(["TAGS", "KAFKA_KEY", "trace", "source"]))
HEADER_VALUES = st.one_of(st.none(), st.binary(max_size=9), st.sampled_from([b"web", b"a\x02b", "é".encode()]))
KEYS = st.one_of(st.none(), st.binary(max_size=9), st.sampled_from([b"order-1", b"a b", b"k" * 200, b"k" * 201]))


@given(
    KEYS,
    st.one_of(st.none(), st.binary(max_size=9)),
    st.lists(st.tuples(HEADER_NAMES, HEADER_VALUES), max_size=4),
    st.sampled_from([-1, 0, 17]),
    st.sampled_from([1, 16_000, 17_000, 33_000]),
    st.sampled_from(HeaderRule),
)
def test_the_encoder_of_the_bridge_equals_the_general_one(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    offset: int,
    size: int,
    rule: HeaderRule,
) -> None:
    """Byte for byte, whatever the record has; what one refuses, the other refuses."""
    one = record(key=key, value=value, headers=(*headers, ("h", b"x" * size)), offset=offset)

    def outcome(encode: Callable[[KafkaRecord], BatchItem]) -> BatchItem | str:
        try:
            return encode(one)
        except MigrateError as error:
            return str(error)

    def general(of: KafkaRecord) -> BatchItem:
        message = outbound_of(of, "t", rule).message
        return BatchItem(message.body, encode_properties(message.wire_properties()).encode())

    assert outcome(RecordEncoder("t", rule).encode) == outcome(general)


def test_a_usual_record_is_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The general way, which takes three times as long, is not used for it."""
    monkeypatch.setattr(importlib.import_module("mqtrail.migrate.messages"), "outbound_of", None)
    usual = record(key=b"order-1", headers=(("source", b"web"), ("trace", "é".encode())))
    assert b"KEYS\x01order-1 orders:3:17\x02" in RecordEncoder("t", HeaderRule.ENCODE).encode(usual).properties


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ((("KEYS", b"x"),), "a reserved name"),
        ((("KAFKA_KEY", b"x"),), "a reserved name"),
        ((("", b"x"),), "an empty name"),
        ((("a", None),), "no value"),
        ((("a", b""),), "an empty value"),
        ((("a", b"\xff"),), "not UTF-8"),
        ((("a", b"\x02"),), r"with \\x01"),
        ((("a", b"1"), ("a", b"2")), "several values"),
    ],
)
def test_headers_that_do_not_fit(headers: tuple[tuple[str, bytes | None], ...], why: str) -> None:
    """They are refused by their name and record, or kept whole in KAFKA_HEADERS."""
    with pytest.raises(MigrateError, match=f"{why}.*orders:3:17.*--headers encode"):
        outbound_of(record(headers=headers), "t", HeaderRule.REFUSE)
    properties = outbound_of(record(headers=headers), "t").message.properties
    assert HEADERS in properties


def test_too_many_properties() -> None:
    """Keys and headers beyond what a message may have are refused, with the way to go on."""
    with pytest.raises(MigrateError, match=r"expected at most 32767.*--skip-record"):
        outbound_of(record(headers=(("a", b"x" * 33_000),)), "t")


def test_queues() -> None:
    """By partition, or by the key as by_hash of the clients; records without a key by partition."""
    assert [queue_for(record(partition=one), QUEUES, OrderBy.PARTITION).queue_id for one in range(7)] == [
        *range(5),
        *range(2),
    ]
    message = Message("t", b"b")
    for key in ("customer-7", "é", "x y"):
        assert queue_for(record(key=key.encode()), QUEUES, OrderBy.KEY) == by_hash(key)(QUEUES, message)
    assert queue_for(record(key=None), QUEUES, OrderBy.KEY).queue_id == 3
    assert queue_for(record(key=b"\xff"), QUEUES, OrderBy.KEY) in QUEUES
