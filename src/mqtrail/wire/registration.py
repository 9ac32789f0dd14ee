"""The topics of a registration (103), read in slices: a broker may have tens of thousands.

    JSON          {"filterServerList":[…],"topicConfigSerializeWrapper":{"dataVersion":{…},"topicConfigTable":{…}}}
    compressed    zlib of length-prefixed texts: the DataVersion's JSON, the count of topics, a line for each, the
                  filter servers' JSON; what 5.x adds behind them (static topics) is not read

Only the fields that a name server keeps are read: a topic's queues, permission and flags. JSON is first divided into
one piece per topic without reading the pieces (a large text run by run). A text in fastjson's dialect, or with
references, is read whole: it may have REST_SIZE bytes, and REFERENCES_NODES_MAX values and names, or
DIALECT_TEXT_NODES_MAX.

Source: RegisterBrokerBody, TopicConfigSerializeWrapper, TopicConfig.decode, apache/rocketmq remoting/, common/.
"""

import struct
import zlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec

from .bodies import RegisterBrokerBody
from .body import Body, Long, convert, loads_request
from .codes import Perm
from .configs import DataVersion
from .errors import BodyError, InvalidParameter
from .json_body import loads
from .json_runs import MARK, REST_SIZE, JsonRuns
from .values import BODY_SIZE_MAX

__all__ = [
    "RegisteredTopic",
    "Registration",
    "read_registration",
]

TOPICS_A_SLICE: Final = 1_000
SIZE_A_SLICE: Final = 256 * 1024  # bytes of topics read in one slice
STEP_SIZE: Final = 2 * 1024 * 1024  # decompressed in one slice
REFERENCES_NODES_MAX: Final = 20_000  # values and names of strict JSON, with references expanded
DIALECT_TEXT_NODES_MAX: Final = 5_000  # the same of other JSON, up to 5 us each
TOPIC_SIZE_MAX: Final = 64 * 1024  # bytes of one topic with its attributes
DIGITS_MAX: Final = 19  # of a number in a line

_I32 = struct.Struct(">i")
_LINE_FIELDS: Final = 5  # name, read queues, write queues, permission, filter type; attributes follow from 5.0 on


class RegisteredTopic(Body, frozen=True, gc=False):
    """What a name server keeps of a TopicConfig."""

    read_queue_nums: Long = 8
    write_queue_nums: Long = 8
    perm: Long = Perm.READ | Perm.WRITE
    topic_sys_flag: Long = 0


@dataclass(frozen=True, slots=True)
class Registration:
    """The fields beside the topics. filter_servers: their number; they are not kept."""

    data_version: DataVersion
    filter_servers: int


def read_registration(
    data: bytes, *, compressed: bool, topics_max: int
) -> Generator[dict[str, RegisteredTopic], None, Registration]:
    """Yield the topics of a registration's body, some at a time; return its other fields.

    BodyError: it is not a registration. InvalidParameter: it has more than topics_max topics.
    """
    if compressed:
        return (yield from _read_lines(data, topics_max))
    return (yield from _read_json(data or b"{}", topics_max))


# JSON


class _Wrapper(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, msgspec.Raw] | None = None
    data_version: msgspec.Raw = msgspec.Raw(b"{}")


class _Whole(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _Wrapper | None = None
    filter_server_list: list[msgspec.Raw] | None = None


_cut = msgspec.json.Decoder(_Whole).decode
_read_topic = msgspec.json.Decoder(RegisteredTopic, strict=False).decode


def _read_json(data: bytes, topics_max: int) -> Generator[dict[str, RegisteredTopic], None, Registration]:
    runs = JsonRuns(data, b"topicConfigTable")
    count = 0
    for run in runs:
        count += len(run)
        _check_count(count, topics_max)
        yield from _slices(run)
    if len(runs.rest) > REST_SIZE:
        raise BodyError(
            f"found {len(runs.rest)} bytes behind {count} topics that could not be divided, expected at most "
            f"{REST_SIZE}: write strict JSON, or have the broker compress it (compressedRegister)"
        )
    whole = _whole(runs.rest)
    if whole is None:
        if runs.is_cut:
            raise BodyError(f"found a registration that is not JSON behind the first {count} topics")
        return (yield from _read_dialect(data, topics_max))
    wrapper = whole.topic_config_serialize_wrapper or _Wrapper()
    table = wrapper.topic_config_table or {}
    if runs.is_cut and table.pop(MARK, None) is None:
        raise BodyError("found topicConfigTable outside of topicConfigSerializeWrapper, expected it there, once")
    _check_count(count + len(table), topics_max)
    yield from _slices(table)
    version = loads_request(bytes(wrapper.data_version))
    return Registration(_data_version(version), len(whole.filter_server_list or ()))


def _whole(data: bytes) -> _Whole | None:
    """Return a registration that is strict JSON without references; None: it is not."""
    try:
        return None if b"$ref" in data else _cut(data)
    except msgspec.ValidationError as error:
        raise BodyError(f"found a body that is not a RegisterBrokerBody: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _slices(table: Mapping[str, msgspec.Raw]) -> Iterator[dict[str, RegisteredTopic]]:
    topics: dict[str, RegisteredTopic] = {}
    size = 0
    for name, raw in table.items():
        piece = bytes(raw)
        if len(piece) > TOPIC_SIZE_MAX:
            raise BodyError(
                f"found {len(piece)} bytes of the topic {name[:40]!r}, expected at most {TOPIC_SIZE_MAX}: remove "
                "attributes of the topic"
            )
        try:
            topics[name] = _read_topic(piece)
        except (msgspec.MsgspecError, RecursionError):  # null counts as missing
            topics[name] = RegisteredTopic.decode(piece)
        size += len(piece)
        if len(topics) >= TOPICS_A_SLICE or size >= SIZE_A_SLICE:
            yield topics
            topics, size = {}, 0
    yield topics


def _read_dialect(data: bytes, topics_max: int) -> Generator[dict[str, RegisteredTopic], None, Registration]:
    value = loads(data, nodes_max=REFERENCES_NODES_MAX, dialect_nodes_max=DIALECT_TEXT_NODES_MAX)
    if not isinstance(value, Mapping):
        raise BodyError(f"found a {type(value).__name__} as the body, expected the object of RegisterBrokerBody")
    wrapper = value.get("topicConfigSerializeWrapper")
    table = wrapper.get("topicConfigTable") if isinstance(wrapper, Mapping) else None
    if not isinstance(table, Mapping):
        body = RegisterBrokerBody.read(value)
        return Registration(body.topic_config_serialize_wrapper.data_version, len(body.filter_server_list))
    assert isinstance(wrapper, Mapping)
    _check_count(len(table), topics_max)
    topics = iter(table.items())
    while some := dict(islice(topics, TOPICS_A_SLICE)):
        yield {str(name): RegisteredTopic.read(convert(topic, dict[Any, Any])) for name, topic in some.items()}
    servers = value.get("filterServerList")
    return Registration(_data_version(wrapper.get("dataVersion")), len(servers) if isinstance(servers, list) else 0)


def _data_version(value: object) -> DataVersion:
    if value is None:
        return DataVersion()
    if not isinstance(value, Mapping):
        raise BodyError(f"found a {type(value).__name__} as dataVersion, expected an object")
    return DataVersion.read(value)


def _check_count(count: int, topics_max: int) -> None:
    if count > topics_max:
        raise InvalidParameter(
            f"found {count} topics in a registration, expected at most {topics_max}: delete some, or raise "
            "broker_topics_max"
        )


# Compressed


def _read_lines(data: bytes, topics_max: int) -> Generator[dict[str, RegisteredTopic], None, Registration]:
    plain = bytearray()
    reader = zlib.decompressobj()
    try:
        while True:
            plain += reader.decompress(data, STEP_SIZE)
            data = reader.unconsumed_tail
            if len(plain) > BODY_SIZE_MAX:
                raise BodyError(
                    f"found a registration that decompresses to more than {BODY_SIZE_MAX} bytes: delete topics"
                )
            if not data:
                break
            yield {}
    except zlib.error as error:
        raise BodyError(f"found a compressed registration that is not a zlib stream: {error}") from error
    texts = _Texts(bytes(plain))
    version = _data_version(loads_request(texts.next().encode()))
    count = texts.count()
    _check_count(count, topics_max)
    topics: dict[str, RegisteredTopic] = {}
    began = texts.position
    for number in range(1, count + 1):  # lines: several may have one name
        name, topic = _topic_of_line(texts.next())
        topics[name] = topic
        if number % TOPICS_A_SLICE == 0 or texts.position - began >= SIZE_A_SLICE:
            yield topics
            topics, began = {}, texts.position
    yield topics
    servers = loads_request(texts.next().encode()) or []
    return Registration(version, len(convert(servers, tuple[str, ...])))


class _Texts:
    """Reads consecutive texts, each after its i32 length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def count(self) -> int:
        if self.position + 4 > len(self._data):
            raise BodyError(f"found a registration cut short at {len(self._data)} bytes")
        (value,) = _I32.unpack_from(self._data, self.position)
        if not 0 <= value <= len(self._data):
            raise BodyError(f"found a length of {value} in a registration of {len(self._data)} bytes")
        self.position += 4
        return int(value)

    def next(self) -> str:
        size = self.count()
        start = self.position
        self.position += size
        if self.position > len(self._data):
            raise BodyError(f"found a text of {size} bytes at {start}, expected {len(self._data) - start}")
        if size > TOPIC_SIZE_MAX:
            raise BodyError(f"found a text of {size} bytes in a registration, expected at most {TOPIC_SIZE_MAX}")
        return str(self._data[start : self.position], "utf-8", "replace")


def _topic_of_line(line: str) -> tuple[str, RegisteredTopic]:
    parts = line.split(" ", _LINE_FIELDS)
    if len(parts) < _LINE_FIELDS:
        raise BodyError(f"found the topic line {line!r:.80}, expected name, queues, permission and filter type")
    name, *numbers = parts[:4]
    if max(map(len, numbers)) > DIGITS_MAX:
        raise BodyError(f"found the topic line {line!r:.80}, expected numbers of at most {DIGITS_MAX} digits")
    read, write, perm = (
        int(number) if number.isascii() and number.isdigit() and len(number) < DIGITS_MAX else convert(number, int)
        for number in numbers
    )
    return name, RegisteredTopic(read, write, perm)
