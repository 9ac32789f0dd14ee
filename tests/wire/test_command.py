"""Commands: vectors of the Java classes, leniency as Java's, nothing but RemotingError for garbage."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Frame,
    RemotingCommand,
    RemotingError,
    SerializeType,
    decode_command,
    encode_command,
)
from mqtrail.wire.codes import LanguageCode

from .conftest import RecordedFrame

int32s = st.integers(-0x80000000, 0x7FFFFFFF)
texts = st.text(max_size=20).filter(lambda text: text.isprintable() or text.isascii())
commands = st.builds(
    RemotingCommand,
    st.integers(0, 32767),
    st.dictionaries(texts, texts, max_size=4),
    st.binary(max_size=20),
    st.none() | texts.filter(bool),
    int32s,
    st.integers(0, 3),
    st.sampled_from([code.name for code in LanguageCode]),
    st.integers(0, 612),
)


def frame_of(wire: bytes) -> Frame:
    size = int.from_bytes(wire[5:8], "big")
    return Frame(wire[4], wire[8 : 8 + size], wire[8 + size :])


def read(header: bytes | str, body: bytes = b"") -> RemotingCommand:
    return decode_command(Frame(0, header.encode() if isinstance(header, str) else header, body))


JAVA: dict[str, Any] = {"language": "JAVA", "version": 479}
VECTORS = [
    (
        RemotingCommand(105, {"topic": "TopicTest"}, opaque=7, **JAVA),
        b'\x00\x00\x00\x87\x00\x00\x00\x83{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA",'
        b'"opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}',
    ),
    (
        RemotingCommand(17, remark="No topic", flag=FLAG_RESPONSE, opaque=7, **JAVA),
        b'\x00\x00\x00x\x00\x00\x00t{"code":17,"flag":1,"language":"JAVA","opaque":7,"remark":"No topic",'
        b'"serializeTypeCurrentRPC":"JSON","version":479}',
    ),
    (
        RemotingCommand(34, flag=FLAG_ONEWAY, opaque=8, **JAVA),
        b'\x00\x00\x00d\x00\x00\x00`{"code":34,"flag":2,"language":"JAVA","opaque":8,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}',
    ),
    (
        RemotingCommand(
            105,
            {"topic": "TopicTest"},
            b"hi",
            opaque=7,
            serialize=SerializeType.ROCKETMQ,
            **JAVA,
        ),
        bytes.fromhex(
            "0000002f 01000029 0069 00 01df 00000007 00000000 00000000 00000014 0005 746f706963 00000009"
            "546f70696354657374 6869"
        ),
    ),
]


@pytest.mark.parametrize(("command", "wire"), VECTORS)
def test_vectors_of_java(command: RemotingCommand, wire: bytes) -> None:
    """We write the same bytes as the Java classes, and read the same values."""
    assert encode_command(command) == wire
    assert decode_command(frame_of(wire)) == command


def test_recorded_frames_survive_the_round_trip(recorded: list[RecordedFrame]) -> None:
    """Every recorded frame of Apache's peers decodes, and encodes to the same bytes."""
    assert len(recorded) > 450
    for line in recorded:
        command = decode_command(line.frame)
        assert (command.code, command.version, command.language) == (
            line.facts["code"],
            line.facts["version"],
            line.facts["language"],
        )
        assert command.is_response == line.is_reply
        assert command.is_oneway == (line.facts["kind"] == "oneway")
        assert frame_of(encode_command(command)) == line.frame


@given(commands, st.sampled_from(SerializeType))
def test_round_trip(command: RemotingCommand, serialize: SerializeType) -> None:
    """What is written is read back, in both serializations."""
    command.serialize = serialize
    assert decode_command(frame_of(encode_command(command))) == command


@given(commands)
def test_json_headers_are_written_as_java_does(command: RemotingCommand) -> None:
    """Members are in alphabetical order, without nulls and white space, as json.dumps writes them with these
    options."""
    members: dict[str, Any] = {
        "code": command.code,
        "extFields": command.ext or None,
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
        "remark": command.remark,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    header = frame_of(encode_command(command)).header
    assert json.loads(header) == {name: value for name, value in members.items() if value is not None}
    assert header.startswith(b'{"code":%d,' % command.code)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("{}", RemotingCommand(0, version=0, language="JAVA")),
        ('{"code":"105","opaque":"-3"}', RemotingCommand(105, opaque=-3, version=0, language="JAVA")),
        (
            '{"code":10,"extFields":{"queueId":3,"k":true,"m":false,"x":null,"d":1.5},"language":"CPP"}\n',
            RemotingCommand(10, {"queueId": "3", "k": "true", "m": "false", "d": "1.5"}, version=0, language="CPP"),
        ),
        (
            "{code:11,extFields:{topic:'T'},flag:1}",
            RemotingCommand(11, {"topic": "T"}, flag=1, version=0, language="JAVA"),
        ),
        ('{"code":1,"language":9,"unknown":[1,{}]}', RemotingCommand(1, version=0, language="GO")),
        ('{"code":1,"language":"cpp","flag":"0"}', RemotingCommand(1, version=0, language="CPP")),
        ('{"code":1,"language":"KLINGON"}', RemotingCommand(1, version=0, language="KLINGON")),
        ('{"code":1,"language":null,"extFields":null,"remark":null}', RemotingCommand(1, version=0, language="")),
        ('{"code":1,"extFields":{},"version":300}', RemotingCommand(1, version=300, language="JAVA", empty_ext=True)),
        (b'{"code":1,"remark":"\xff"}', RemotingCommand(1, version=0, language="JAVA", remark="\ufffd")),
    ],
)
def test_headers_are_read_as_leniently_as_java_does(header: bytes | str, expected: RemotingCommand) -> None:
    """The C++ client writes numbers and booleans as values, and a newline at the end; others omit members."""
    assert read(header) == expected


@pytest.mark.parametrize(
    "header",
    ["", "[]", "1", '{"code":1', '{"code":{}}', '{"code":1.5}', '{"extFields":[]}', '{"code":99999999999}', "{" * 5000],
)
def test_unreadable_json_headers_end_the_connection(header: str) -> None:
    """Only a header that cannot be an object with a command's members is rejected."""
    with pytest.raises(RemotingError):
        read(header)


def test_a_header_knows_no_references() -> None:
    """{"$ref": …} is an ordinary value there: it is not resolved."""
    header = '{"code":1,"extFields":{"a":"x","b":{"$ref":"$.extFields.a"},"c":["",{"$ref":"$"}],"d":{{"e":1}:2}}}'
    assert read(header).ext == {
        "a": "x",
        "b": '{"$ref":"$.extFields.a"}',
        "c": '["",{"$ref":"$"}]',
        "d": '{{"e":1}:2}',
    }


def test_a_header_has_so_many_fields() -> None:
    """The limit is the same for strict, lenient and binary headers."""
    for count in (1_000, 1_001):
        ext = {f"f{number}": "v" for number in range(count)}
        strict = frame_of(encode_command(RemotingCommand(11, ext)))
        lenient = Frame(0, strict.header.replace(b'"code"', b"code"), b"")
        binary = frame_of(encode_command(RemotingCommand(11, ext, serialize=SerializeType.ROCKETMQ)))
        for frame in (strict, lenient, binary):
            if count == 1_000:
                assert decode_command(frame).ext == ext
            else:
                with pytest.raises(RemotingError, match="expected at most 1000"):
                    decode_command(frame)


def test_fields_of_one_name_count_each() -> None:
    """A binary header of 256 KiB has room for 37,000 of them, and each takes its time."""
    frame = frame_of(encode_command(RemotingCommand(11, {"f": "v"}, serialize=SerializeType.ROCKETMQ)))
    head, field = frame.header[:21], frame.header[21:]
    for count in (1_000, 1_001):
        header = head[:-4] + (count * len(field)).to_bytes(4) + count * field
        if count == 1_000:
            assert decode_command(Frame(1, header, b"")).ext == {"f": "v"}
        else:
            with pytest.raises(RemotingError, match="expected at most 1000"):
                decode_command(Frame(1, header, b""))


@pytest.mark.parametrize("header", ['{"extFields":{"a":[' + "1," * 20_000 + "1]}}", "{a:'" + "\\v" * 20_000 + "'}"])
def test_a_lenient_header_has_so_many_values(header: str) -> None:
    """The slow reader limits the number of values, not the header's size."""
    with pytest.raises(RemotingError, match="at most 5000"):
        read(header)


def test_large_properties_fit_a_header() -> None:
    """32 767 bytes, each of which JSON has to escape, and a C++ client's header with as many commas."""
    properties = "\x01" * 32_767
    assert frame_of(encode_command(RemotingCommand(310, {"i": properties}))) is not None
    assert decode_command(frame_of(encode_command(RemotingCommand(310, {"i": properties})))).ext["i"] == properties
    assert read('{"extFields":{"e":1,"i":"' + "," * 32_767 + '"}}').ext["i"] == "," * 32_767


@given(st.sampled_from([0, 1]), st.binary(max_size=60))
def test_garbage_gives_remoting_errors_alone(serialize: int, header: bytes) -> None:
    """Any header gives a command or a RemotingError."""
    with contextlib.suppress(RemotingError):
        decode_command(Frame(serialize, header, b""))


@given(commands, st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_binary_header_is_read_or_refused(command: RemotingCommand, at: int, byte: int) -> None:
    """One wrong byte never gives another exception."""
    command.serialize = SerializeType.ROCKETMQ
    frame = frame_of(encode_command(command))
    header = bytearray(frame.header)
    header[at % len(header)] = byte
    with contextlib.suppress(RemotingError):
        decode_command(Frame(1, bytes(header), b""))
    with contextlib.suppress(RemotingError):
        decode_command(Frame(1, bytes(header[: at % len(header)]), b""))


def test_a_code_above_int16_needs_json() -> None:
    """POP's codes do not fit a binary header, in Java neither."""
    command = RemotingCommand(200050)
    assert decode_command(frame_of(encode_command(command))) == command
    command.serialize = SerializeType.ROCKETMQ
    with pytest.raises(RemotingError, match="use JSON"):
        encode_command(command)


def test_an_unknown_serialize_type_is_refused() -> None:
    with pytest.raises(RemotingError, match="serialize type 2"):
        decode_command(Frame(2, b"{}", b""))


def test_reply_to_answers_its_request() -> None:
    """A reply has the request's opaque and the response bit, and none of its other fields."""
    request = RemotingCommand(11, {"a": "b"}, b"body", opaque=42, flag=0, serialize=SerializeType.ROCKETMQ)
    reply = RemotingCommand.reply_to(request, 19, "OFFSET_OVERFLOW_ONE", {"minOffset": "0"})
    assert reply == RemotingCommand(19, {"minOffset": "0"}, remark="OFFSET_OVERFLOW_ONE", opaque=42, flag=FLAG_RESPONSE)
    assert (reply.is_response, reply.is_oneway, request.is_response) == (True, False, False)
    assert str(reply) == "reply code=19 opaque=42 ext=1 body=0B remark='OFFSET_OVERFLOW_ONE'"


def test_a_long_remark_is_cut() -> None:
    """It may quote what the peer sent; escaped six times it would not fit a header."""
    reply = RemotingCommand.reply_to(RemotingCommand(11), 1, "\x01" * 300_000)
    assert len(decode_command(frame_of(encode_command(reply))).remark or "") == 4_001
