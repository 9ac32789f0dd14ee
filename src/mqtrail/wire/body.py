"""Body classes: structs with the members of a JSON body, read leniently and written as Java does.

Names are RocketMQ's in snake_case. Reading ignores unknown members, uses Java's defaults for missing members and null,
and accepts numbers as text. Writing sorts members by name, omits those that are None, and adds no white space.

Source: RemotingSerializable and its subclasses, apache/rocketmq remoting/; json_body.py for fastjson's dialect.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, cast

import msgspec

from .errors import BodyError
from .json_body import dumps, dumps_fastjson, loads
from .json_bounds import DIALECT_NODES_MAX, NODES_MAX, ObjectKey
from .values import MessageQueue

__all__ = [
    "Body",
    "dumps_in_slices",
    "encode_in_slices",
    "encode_list_in_slices",
    "loads_request",
    "queue_members",
]

Long = Annotated[int, msgspec.Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)]
"""The numbers of bodies: Java's long. A JSON number may have thousands of digits, which no Java peer can hold."""

REQUEST_NODES_MAX: Final = 50_000
"""Limit for bodies of clients, because other requests wait while one is read. A lock of 5 000 queues has 40 000."""
REQUEST_DIALECT_NODES_MAX: Final = 5_000  # up to 5 us each; official clients send strict JSON
TEXT_OF_AN_ENTRY: Final = 128  # characters of a text that take as long to encode as another entry

Value = TypeVar("Value")


class Body(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all body classes. A subclass whose JSON differs from its fields overrides members and read.

    nodes_max: values and names that a text may have. dialect_nodes_max: the same for one in fastjson's dialect.
    """

    nodes_max: ClassVar[int] = NODES_MAX
    dialect_nodes_max: ClassVar[int] = DIALECT_NODES_MAX

    def encode(self, *, strict: bool = True) -> bytes:
        """Return the JSON: standard JSON (strict), or with bare integer and object names, which old peers may rely
        on."""
        return dumps(self.members()) if strict else dumps_fastjson(self.members())

    def members(self) -> dict[str, Any]:
        """Return the JSON object's members as plain values, for use in another body."""
        plain = _without_none(msgspec.to_builtins(self))
        assert isinstance(plain, dict)
        return plain

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview | str) -> Self:
        """Return the body. BodyError: not JSON, or a member is of another type."""
        return cls._decode(data, cls.nodes_max, cls.dialect_nodes_max)

    @classmethod
    def decode_request(cls, data: bytes) -> Self:
        """Return the body of a request to a server, with the limits of RequestBody. BodyError as decode.

        For bodies that servers read and send: a reply may be larger than a request.
        """
        return cls._decode(data, REQUEST_NODES_MAX, REQUEST_DIALECT_NODES_MAX)

    @classmethod
    def _decode(cls, data: bytes | bytearray | memoryview | str, nodes_max: int, dialect_nodes_max: int) -> Self:
        value = loads(data, nodes_max=nodes_max, dialect_nodes_max=dialect_nodes_max)
        if not isinstance(value, Mapping):
            raise BodyError(f"found a {type(value).__name__} as the body, expected the object of {cls.__name__}")
        return cls.read(value)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """Return the body of a JSON object that is already read. BodyError: a member is of another type."""
        return convert(_without_none(value), cls)


class RequestBody(Body, frozen=True):
    """Base of the bodies that clients send to servers. All of them are small."""

    nodes_max: ClassVar[int] = REQUEST_NODES_MAX
    dialect_nodes_max: ClassVar[int] = REQUEST_DIALECT_NODES_MAX


def loads_request(data: bytes) -> Any:
    """Return the value of a request's JSON text, with the limits of RequestBody. BodyError: as loads."""
    return loads(data, nodes_max=REQUEST_NODES_MAX, dialect_nodes_max=REQUEST_DIALECT_NODES_MAX)


def encode_in_slices(
    body: Body, member: str, entries: Iterable[tuple[object, object]], count: int, *, strict: bool = True
) -> Generator[None, None, bytes]:
    """Return body's JSON with entries as its empty object `member`, yielding after each count of them.

    entries: sorted names and values, Body or plain, as Body.encode would write them. A name may be an int or a
    MessageQueue. A value with entries of its own counts as that many entries, and must not change meanwhile; a text
    counts as one for every TEXT_OF_AN_ENTRY characters, which may all be control characters and six times as long as
    JSON.
    """
    write = dumps if strict else dumps_fastjson
    empty = b'"%b":{}' % member.encode()
    before, found, after = body.encode(strict=strict).partition(empty)
    assert found, f"{member} is not an empty object of {type(body).__name__}"
    parts = []
    some: dict[Any, object] = {}
    weight = 0
    for name, value in entries:
        key = queue_key(name) if isinstance(name, MessageQueue) else name
        if isinstance(value, Mapping) and len(value) > count:
            if some:
                parts.append(write(some)[1:-1])
                some, weight = {}, 0
            parts.append((yield from _large_in_slices(key, value, count, write)))
            continue
        some[key] = value.members() if isinstance(value, Body) else value
        weight += _weight(value)
        if weight >= count:
            parts.append(write(some)[1:-1])
            some, weight = {}, 0
            yield
    if some:
        parts.append(write(some)[1:-1])
    pieces = [before, empty[:-1]]
    for part in parts:
        pieces += part, b","  # one join copies all: 16 MiB take 15 ms
    if parts:
        pieces.pop()
    return b"".join((*pieces, b"}", after))


def _weight(value: object) -> int:
    """Return as how many entries a value counts."""
    if isinstance(value, Mapping):
        return max(1, len(value))
    return 1 + len(value) // TEXT_OF_AN_ENTRY if isinstance(value, str) else 1


def _large_in_slices(
    name: object, value: Mapping[Any, object], count: int, write: Callable[[object], bytes]
) -> Generator[None, None, bytes]:
    """Return an object with a name as a member of JSON, yielding after each count of its entries."""
    parts = []
    rest = iter(value.items())
    while some := dict(islice(rest, count)):
        parts.append(write(some)[1:-1])
        yield
    return b"".join((write({name: {}})[1:-2], b",".join(parts), b"}"))


def encode_list_in_slices(
    body: Body, member: str, items: Iterable[object], count: int, *, strict: bool = True
) -> Generator[None, None, bytes]:
    """Return body's JSON with items as its empty array `member`, yielding after each count of them.

    items: Body or plain, as Body.encode would write them.
    """
    empty = b'"%b":[]' % member.encode()
    before, found, after = body.encode(strict=strict).partition(empty)
    assert found, f"{member} is not an empty array of {type(body).__name__}"
    array = yield from dumps_in_slices(items, count, strict=strict)
    return b"".join((before, empty[:-2], array, after))


def dumps_in_slices(items: Iterable[object], count: int, *, strict: bool = True) -> Generator[None, None, bytes]:
    """Return items, Body or plain, as a JSON array, yielding after each count of them."""
    write = dumps if strict else dumps_fastjson
    parts = []
    rest = iter(items)
    while some := list(islice(rest, count)):
        parts.append(write([item.members() if isinstance(item, Body) else item for item in some])[1:-1])
        if len(some) == count:
            yield
    return b"[%b]" % b",".join(parts)


def convert(value: object, kind: type[Value]) -> Value:
    """Convert plain JSON values to kind; numbers may be texts, int means Long. BodyError: a value does not fit."""
    if kind is int:
        kind = cast(type[Value], Long)
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BodyError(f"found a body that is not a {getattr(kind, '__name__', kind)}: {error}") from error


_SCALARS: Final = frozenset((str, int, bool, float))  # nearly all members, as empty ones: this saves a call


def _without_none(value: object) -> object:
    """Return value without null members. It recurses as deep as `loads` allows values to nest."""
    if type(value) is dict or isinstance(value, Mapping):
        return {
            key: member if type(member) in _SCALARS or not member else _without_none(member)
            for key, member in value.items()
            if member is not None
        }
    if isinstance(value, list | tuple):
        return [item if type(item) in _SCALARS or not item else _without_none(item) for item in value]
    return value


def queue_key(queue: MessageQueue) -> ObjectKey:
    """Return the member name of a queue in a Java map with MessageQueue keys."""
    return ObjectKey.of({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic})


def queue_of_key(key: object) -> MessageQueue:
    """Return the queue of a member name: an object, or the text of one. BodyError: it is neither."""
    members = key.members() if isinstance(key, ObjectKey) else loads(key) if isinstance(key, str) else None
    if not isinstance(members, dict):
        raise BodyError(f"found the member name {key!r:.60}, expected a MessageQueue")
    return queue_of(members)


def queue_of(members: object) -> MessageQueue:
    """Return the queue of a JSON object. BodyError: it is not a queue."""
    found = convert(members, _Queue)
    return MessageQueue(found.topic, found.broker_name, found.queue_id)


def queue_members(queue: MessageQueue) -> dict[str, Any]:
    """Return the JSON object of a queue."""
    return queue_key(queue).members()


def read_queue_table(table: object, kind: type[Value]) -> dict[MessageQueue, Value]:
    """Return a map by queue from a JSON object with MessageQueue names. BodyError: it is not such an object."""
    if table is None:
        return {}
    if not isinstance(table, Mapping):
        raise BodyError(f"found a {type(table).__name__}, expected a map by MessageQueue")
    return {queue_of_key(key): convert(_without_none(value), kind) for key, value in table.items()}


def queue_table(table: Mapping[MessageQueue, Any]) -> dict[ObjectKey, Any]:
    """Return the JSON object of a map by queue, values as plain values."""
    return {queue_key(queue): value.members() if isinstance(value, Body) else value for queue, value in table.items()}


class _Queue(Body, frozen=True):
    topic: str
    broker_name: str = ""
    queue_id: Long = 0
