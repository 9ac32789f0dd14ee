"""fastjson's dialect: read as Java's peers write it, written as they read it."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import BodyError, ObjectKey, dumps, dumps_fastjson, loads

from .conftest import RecordedFrame

QUEUE = ObjectKey.of({"brokerName": "b", "queueId": 0, "topic": "t"})

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keyed = st.dictionaries(st.integers(0, 99), st.integers(), max_size=3) | st.dictionaries(
    st.builds(lambda queue_id: ObjectKey.of({"queueId": queue_id, "topic": "t"}), st.integers(0, 9)), plain, max_size=2
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"1.1.1.1:10911",1:"x"}', {0: "1.1.1.1:10911", 1: "x"}),
        ("{-1:2}", {-1: 2}),
        ('{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":9}}', {QUEUE: {"maxOffset": 9}}),
        ('{{"topic":"t","queueId":0,"brokerName":"b"}:1}', {QUEUE: 1}),
        ("{a:1,'b':'c',$d:[1,2,],}", {"a": 1, "b": "c", "$d": [1, 2]}),
        ("{a:1.0E10,b:1.0E-7,c:-0.5,d:-7}", {"a": 1.0e10, "b": 1.0e-7, "c": -0.5, "d": -7}),
        ('{a:"\\u0001\\u2028\\/\\n\\x41\\\'\\v"}', {"a": "\x01\u2028/\nA'\v"}),
        ('{a:"\\uD83D\\uDE00"}', {"a": "😀"}),
        ('{a:"\\uD83D"}', {"a": "\ufffd"}),
        (" \ufeff{a:true,b:false,c:null}\n", {"a": True, "b": False, "c": None}),
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
        ('[{"x":1},{"$ref":"$[0]"}]', [{"x": 1}, {"x": 1}]),
        ('{"a":[{"x":1}],"b":{"$ref":"$.a[0]"}}', {"a": [{"x": 1}], "b": {"x": 1}}),
        ('{"a":{"x":1},"b":{"$ref":"$.c"},"c":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}}),
        ('{"b":{"$ref":"$.nowhere"},"c":{"$ref":"@"},"d":{"$ref":"$[9]"}}', {"b": None, "c": None, "d": None}),
        ('{"a":{"$ref":"$.a"}}', {"a": None}),
        ('{"$ref":"plain member","b":1}', {"$ref": "plain member", "b": 1}),
        ("[]", []),
        ("7", 7),
        (b'{"a":"\xff"}', {"a": "\ufffd"}),
    ],
)
def test_reading_the_dialect(text: str | bytes, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a"',
        '{"a":',
        '{"a":1',
        "{a 1}",
        "{1.5:1}",
        "{true:1}x",
        "[1 2]",
        '["a',
        '["\\u12"]',
        '["\\',
        "nul",
        "{}x",
        "[" * 200 + "]" * 200,
        "[{:1}]",
        "1" * 5000,
        "{[1]:2}",
        "{{a:[1]}:2}",
        '{"a":{"b":{"$ref":".."}}}',
        '{"a":{"x":{"$ref":"$.b"}},"b":{"y":{"$ref":"$.a"}}}',
    ],
)
def test_what_cannot_be_read_is_a_body_error(text: str) -> None:
    """Cut, too deep, circular: one kind of error, with the place."""
    with pytest.raises(BodyError):
        loads(text)


@given(plain)
def test_strict_round_trip(value: Any) -> None:
    """What dumps writes is JSON for anyone."""
    assert loads(dumps(value)) == value
    assert json.loads(dumps(value)) == value
    assert loads(dumps_fastjson(value)) == value


@given(keyed)
def test_dialect_round_trip(value: Any) -> None:
    """Integer and object names survive in fastjson's form; strictly they become text, which Java reads too."""
    assert loads(dumps_fastjson(value)) == value
    strict = json.loads(dumps(value))
    assert [json.loads(name) for name in strict] == [
        name.members() if isinstance(name, ObjectKey) else name for name in sorted(value, key=_text_of_key)
    ]


def _text_of_key(key: Any) -> str:
    return dumps(key.members()).decode() if isinstance(key, ObjectKey) else str(key)


@given(st.text(max_size=30) | st.binary(max_size=30))
def test_garbage_gives_body_errors_alone(text: str | bytes) -> None:
    with contextlib.suppress(BodyError):
        loads(text)


@given(st.lists(st.sampled_from(list('{}[]:,"\\u0$ref.a1')), max_size=30).map("".join))
def test_nearly_json_gives_body_errors_alone(text: str) -> None:
    """Texts made of JSON's own characters find the corners that random ones miss."""
    with contextlib.suppress(BodyError):
        loads(text)


def test_members_are_alphabetical_and_tight() -> None:
    assert dumps({"b": [1, True], "a": {"d": "é/", "c": None}}) == '{"a":{"c":null,"d":"é/"},"b":[1,true]}'.encode()
    assert dumps({10: 1, 9: 2}) == b'{"10":1,"9":2}'
    assert dumps_fastjson({10: 1, 9: 2}) == b"{9:2,10:1}"
    assert dumps_fastjson({QUEUE: 1}) == b'{{"brokerName":"b","queueId":0,"topic":"t"}:1}'
    assert dumps({QUEUE: 1}) == b'{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"t\\"}":1}'


def test_other_names_are_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="float"):
        dumps({1.5: 1})


def test_every_recorded_body_is_read(recorded: list[RecordedFrame]) -> None:
    """All JSON that Apache's peers were recorded to write."""
    bodies = [line.body for line in recorded if line.body[:1] in (b"{", b"[")]
    assert len(bodies) > 100
    for body in bodies:
        assert loads(body) is not None
