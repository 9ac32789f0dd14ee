"""fastjson's dialect: read as Java's peers write it, written so that they can read it."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    BodyError,
    ConsumerOffsetTable,
    DataVersion,
    dumps,
    dumps_fastjson,
    loads,
    loads_file,
    loads_request,
)
from mqtrail.wire.json_bounds import NODES_MAX, ObjectKey, nodes_of_references

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
    """Truncated, too deep or circular JSON raises BodyError with the position."""
    with pytest.raises(BodyError):
        loads(text)


@given(plain)
def test_strict_round_trip(value: Any) -> None:
    """The output of dumps is standard JSON."""
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


def doubled(levels: int) -> str:
    """A text whose references expand to 2 ** levels values."""
    names = [f'"a{level}":[{{"$ref":"$.a{level - 1}"}},{{"$ref":"$.a{level - 1}"}}]' for level in range(1, levels)]
    return '{"a0":["x","x"],' + ",".join(names) + "}"


def expanded(value: Any) -> int:
    """The number of values and names that a reader of value visits."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(expanded, value.values()))
    return 1 + sum(map(expanded, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("levels", [12, 20, 60])
@pytest.mark.parametrize("dialect", [False, True])
def test_references_stand_for_no_more_than_the_text_may_have(levels: int, dialect: bool) -> None:
    """A text of 1 KB that expands to billions of values is refused before a reader visits them."""
    text = doubled(levels).replace('"a0":', "a0:", int(dialect))
    with pytest.raises(BodyError, match=r"\$ref"):
        loads(text.encode())


def test_references_of_real_bodies_are_read() -> None:
    """One subscription that 1 000 groups share: its expansion grows with the text."""
    shared = {"topic": "T", "subString": "*", "tagsSet": ["a", "b"], "codeSet": [1, 2], "subVersion": 1}
    groups = [{"groupName": "g0", "subscriptionDataSet": [shared]}]
    groups += [
        {"groupName": f"g{number}", "subscriptionDataSet": [{"$ref": "$.consumerDataSet[0].subscriptionDataSet[0]"}]}
        for number in range(1, 1_000)
    ]
    text = json.dumps({"consumerDataSet": groups}).encode()
    value = loads(text)
    assert [group["subscriptionDataSet"] for group in value["consumerDataSet"]] == [[shared]] * 1_000
    assert expanded(value) < nodes_of_references(len(text))


def test_a_long_text_counts_as_many_values() -> None:
    """A shared text counts once per reference, since encoding writes it as often."""
    references = ",".join(['{"$ref":"$.x"}'] * 1_000)
    assert len(loads(f'{{"x":"{"y" * 60}","b":[{references}]}}')["b"]) == 1_000
    with pytest.raises(BodyError, match=r"\$ref"):
        loads(f'{{"x":"{"y" * 100_000}","b":[{references}]}}')


def test_following_references_is_counted() -> None:
    """Many references to one with a long path cost as many steps as that path has."""
    path = "$" + ".y" * 60
    value: dict[str, Any] = {"z": {"w": 1}, "r": {"$ref": path + ".z"}}
    for _ in range(60):
        value = {"y": value}
    few = {"b": [{"$ref": path + ".r"}, {"$ref": "$.b[0]"}, {"$ref": path + ".nowhere"}], **value}
    assert loads(json.dumps(few))["b"] == [{"w": 1}, {"w": 1}, None]
    many = {"b": [{"$ref": "$.x"}] * 10_000, "x": {"$ref": path + ".r"}, **value}
    with pytest.raises(BodyError, match=r"\$ref"):
        loads(json.dumps(many))
    assert loads(json.dumps({"a": 1, "b": {"$ref": "$" + ".a" * 600}})) == {"a": 1, "b": None}  # no such depth


def test_following_a_chain_of_references_is_counted() -> None:
    """Each member refers to the next one, so that each costs up to 64 steps: 75 KB held a server for 150 ms."""
    chain = {f"a{number}": {"$ref": f"$.a{number + 1}"} for number in range(3_000)}
    with pytest.raises(BodyError, match=r"\$ref"):
        loads(json.dumps(chain))
    short = {f"a{number}": {"$ref": f"$.a{number + 1}"} for number in range(30)}
    assert loads(json.dumps({**short, "a30": 1})) == dict.fromkeys([*short, "a30"], 1)


@pytest.mark.parametrize("path", ["$..x", "$x.x", "$.x.", "$.x ]", "$[[0]", "$" + "." * 900 + ".x"])
def test_a_path_is_made_of_steps_alone(path: str) -> None:
    """A thousand characters that are no steps cost as much as a thousand steps, but do not count as steps."""
    assert loads(json.dumps({"x": {"y": 1}, "b": {"$ref": path}}))["b"] is None


def test_a_long_chain_of_references_is_too_deep() -> None:
    """It raises BodyError, not RecursionError."""
    members = {f"a{number}": {"x": {"$ref": f"$.a{number + 1}"}} for number in range(20_000)}
    with pytest.raises(BodyError, match="deeper"):
        loads(json.dumps(members))


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900])
def test_strict_json_nests_no_deeper_than_the_dialect(text: str) -> None:
    """The strict decoder accepts about a thousand levels, too many for recursive readers."""
    with pytest.raises(BodyError, match="deeper"):
        loads(text.encode())
    with pytest.raises(BodyError, match="deeper"):
        DataVersion.decode(('{"x":' + text + "}").encode())


@pytest.mark.parametrize(
    "text", ["{0:[" + "1," * 100 + "1]}", '{"0":[' + "1," * 100 + "1]}", "['" + "\\v" * 110 + "']"]
)
def test_values_are_counted(text: str) -> None:
    """The limit applies to the dialect and to strict JSON; the dialect's escapes count too."""
    loads(text, nodes_max=120)
    for data in (text, text.encode()):
        with pytest.raises(BodyError, match="at most 100"):
            loads(data, nodes_max=100)


def test_commas_in_a_text_are_no_values() -> None:
    """Only values count, however many commas the text has."""
    assert loads(b'{"a":"' + b"," * 1_000 + b'"}', nodes_max=10) == {"a": "," * 1_000}
    assert loads(b"[1" + b"," * 1_000_000 + b"2]", nodes_max=10) == [1, 2]


@pytest.mark.slow
def test_a_file_is_read_however_large() -> None:
    """A broker's own table comes from no peer, so no limit applies."""
    text = json.dumps(list(range(NODES_MAX + 1))).encode()
    with pytest.raises(BodyError, match="at most"):
        loads(text)
    assert len(loads_file(text)) == NODES_MAX + 1


@pytest.mark.parametrize(
    "text",
    [
        "{{1:2,'1':'a'}:3}",  # names that are one text
        "{" * 30 + "a:'\\''" + "}:1}" * 29,  # a name within a name doubles with each level
        "{99999999999999999999:1}",  # larger integers can be made to share one hash
        "{a:1e999}",
        "{a:NaN}",
        "[Infinity]",
    ],
)
def test_unusual_names_and_numbers(text: str) -> None:
    """The result is a BodyError or a small value; no other exception, and no growing value."""
    with contextlib.suppress(BodyError):
        assert len(repr(loads(text))) < 200


@pytest.mark.parametrize("digits", ["9" * 19, "-" + "9" * 30, "9" * 4_000, "9" * 5_000])
def test_numbers_beyond_javas_long_fit_no_body(digits: str) -> None:
    """Such numbers, texts and names are rejected: no struct can pack them."""
    for text in (f'{{"counter":{digits}}}', f'{{"counter":"{digits}"}}'):
        with pytest.raises(BodyError):
            DataVersion.decode(text)
    for text in (f'{{"offsetTable":{{"t":{{"{digits}":1}}}}}}', f"{{offsetTable:{{t:{{{digits}:1}}}}}}"):
        with pytest.raises(BodyError):
            ConsumerOffsetTable.decode(text)


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


def test_a_large_text_in_the_dialect_is_refused() -> None:
    """Raw control characters are not strict: 4 MB of them took 60 ms to read. Strict JSON of that size is read."""
    strict = b'{"a":"%b"}' % (b"x" * 1_100_000)
    assert loads_request(strict) == {"a": "x" * 1_100_000}
    with pytest.raises(BodyError, match=r"not strict, or has too many values, expected at most 5000 .* in 1000000"):
        loads_request(strict.replace(b"x", b"\x01"))
    assert loads_request(b'{"a":"\x01"}') == {"a": "\x01"}
    assert loads(b'{1:"%b"}' % (b"x" * 1_100_000)) == {1: "x" * 1_100_000}
