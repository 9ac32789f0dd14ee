"""What the plain interface reads and writes as JSON. The OpenAPI description is made from these classes."""

from __future__ import annotations

import base64
import binascii
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import msgspec

from mqtrail.wire import RESERVED_PROPERTIES, Message, MessageExt

from .config import (
    HEADERS_MAX,
    INVISIBLE_S_DEFAULT,
    INVISIBLE_S_MAX,
    KEY_LENGTH_MAX,
    LEASE_S_DEFAULT,
    LEASE_S_MAX,
    LEASE_S_MIN,
    MEMBER_TOPICS_MAX,
    RECEIPTS_MAX,
    RECEIVE_COUNT_MAX,
    RETRY_DELAYS_S,
    WAIT_S_MAX,
)
from .json_size import VALUES_MAX, has_many_values
from .problems import Problem

T = TypeVar("T")
JSON_TYPE: Final = "application/json"
BYTES_TYPES: Final = ("application/octet-stream", "text/plain")
REF: Final = "#/components/schemas/{name}"

Text = Annotated[str, msgspec.Meta(max_length=KEY_LENGTH_MAX)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Receipts = Annotated[list[str], msgspec.Meta(min_length=1, max_length=RECEIPTS_MAX)]
InvisibleS = Annotated[float, msgspec.Meta(ge=1, le=INVISIBLE_S_MAX)]


class Publish(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message to publish. Give `body`, a text, or `body_base64`, bytes in base64.

    key: a word to find the message by; several are joined by blanks. tag: a word that receivers filter by. headers:
    further properties of the message, texts by name.
    """

    body: str | None = None
    body_base64: str | None = None
    key: Text = ""
    tag: Text = ""
    headers: Annotated[dict[str, str], msgspec.Meta(max_length=HEADERS_MAX)] = {}


class PublishedMessage(msgspec.Struct):
    """Where a message is stored. On tables it is committed, so it survives kill -9 and a power failure."""

    id: str
    queue: int
    offset: int


class PublishedMessages(msgspec.Struct):
    """The published messages, in their order. slow_down_ms: pause before the next request; 0: none."""

    messages: list[PublishedMessage]
    slow_down_ms: int


class Receive(msgspec.Struct, forbid_unknown_fields=True):
    """What a group wants to receive.

    max: most messages of the answer. wait_s: longest time to wait for the first one, in seconds. invisible_s: time in
    which the messages must be acknowledged; then they are delivered again. tag: only messages with this tag; several
    are written `a || b`; `*`: all. from_first: a new group begins with the oldest message, not with new ones.
    """

    topic: Name
    max: Annotated[int, msgspec.Meta(ge=1, le=RECEIVE_COUNT_MAX)] = 1
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=WAIT_S_MAX)] = 0
    invisible_s: InvisibleS = INVISIBLE_S_DEFAULT
    tag: Text = "*"
    from_first: bool = True


class Received(msgspec.Struct, omit_defaults=True):
    """A received message. receipt: for ack, nack and extend. attempt: 1 at the first delivery to the group.

    body: its text; body_base64 instead if it is not UTF-8. born_ms, stored_ms: when it was published and stored,
    visible_again_ms: when it is delivered again if it is not acknowledged; all three in ms since 1970, UTC.
    """

    receipt: str
    id: str
    topic: str
    queue: int
    offset: int
    attempt: int
    born_ms: int
    stored_ms: int
    visible_again_ms: int
    key: str = ""
    tag: str = ""
    headers: dict[str, str] = {}
    body: str | None = None
    body_base64: str | None = None


class ReceivedMessages(msgspec.Struct):
    """The received messages; none: the time is over. slow_down_ms: pause before the next receive."""

    messages: list[Received]
    slow_down_ms: int


class Ack(msgspec.Struct, forbid_unknown_fields=True):
    """The messages that the group has processed."""

    receipts: Receipts


class Nack(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that the group could not process. delay_s: time until they are delivered again.

    Without delay_s it grows with the attempts, from 10 s to 2 h. reason: an error text, for the trace.
    """

    receipts: Receipts
    delay_s: Annotated[float, msgspec.Meta(ge=1, le=INVISIBLE_S_MAX)] | None = None
    reason: Text = ""


class Extend(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that take longer. invisible_s: the new time to acknowledge them, from now on."""

    receipts: Receipts
    invisible_s: InvisibleS = INVISIBLE_S_DEFAULT


class Settled(msgspec.Struct, omit_defaults=True):
    """The outcome for one receipt. receipt: the new one after `extend`; the old one is no longer valid.

    error: why nothing was done for this receipt.
    """

    receipt: str
    error: str = ""


class SettledMessages(msgspec.Struct):
    """An outcome per receipt, in the order of the request."""

    results: list[Settled]


class Topic(msgspec.Struct):
    """A topic. queues: how many queues messages are spread over."""

    topic: str
    queues: int
    readable: bool
    writable: bool


class ListedTopics(msgspec.Struct):
    """The topics of applications, by name."""

    topics: list[Topic]


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of a topic."""

    queues: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 4


class JoinGroup(msgspec.Struct, forbid_unknown_fields=True):
    """What a member of a group wants, that gets each message of the group whatever the other members get.

    topics: that it receives from. lease_s: the member ends without a request for so long. from_first: a new member
    begins with the oldest messages, not with those that are published from now on.
    """

    topics: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MEMBER_TOPICS_MAX)]
    lease_s: Annotated[float, msgspec.Meta(ge=LEASE_S_MIN, le=LEASE_S_MAX)] = LEASE_S_DEFAULT
    from_first: bool = False


class MemberGroup(msgspec.Struct):
    """A member's own group: use it in the paths of receive, events, ack, nack and extend. Each renews the lease."""

    group: str
    lease_s: float


SHAPES: Final = (
    Publish,
    PublishedMessages,
    Receive,
    ReceivedMessages,
    Ack,
    Nack,
    Extend,
    SettledMessages,
    Topic,
    ListedTopics,
    NewTopic,
    JoinGroup,
    MemberGroup,
)
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def schemas() -> dict[str, Any]:
    """Return the schemas of all shapes, by name."""
    _, components = msgspec.json.schema_components(SHAPES, ref_template=REF)
    return components


def read_json(data: bytes, kind: type[T]) -> T:
    """Return the value of a JSON body. Problem: it has another shape, or more than VALUES_MAX values."""
    if has_many_values(data):
        detail = f"the body: found more than {VALUES_MAX} values, expected fewer: send them in parts"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    try:
        decoder = _DECODERS[kind]
    except KeyError:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    try:
        value: T = decoder.decode(data)
    except msgspec.ValidationError as error:
        detail = f"the body: {error}; the shapes are in /openapi.json"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = repr(data[:40].decode("utf-8", "replace"))
        detail = f"the body: found {found}, expected JSON ({error}): send JSON with Content-Type: {JSON_TYPE}"
        raise Problem(HTTPStatus.BAD_REQUEST, detail) from None
    return value


def message_of(topic: str, item: Publish, place: int) -> Message:
    """Return the message of a JSON item. Problem: place names it."""

    def refuse(found: str, remedy: str) -> Problem:
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"message {place}: found {found}: {remedy}")

    if (item.body is None) == (item.body_base64 is None):
        found = "neither body nor body_base64" if item.body is None else "both body and body_base64"
        raise refuse(f"{found}, expected one of them", "pass a text as body, or bytes as body_base64")
    try:
        body = base64.b64decode(item.body_base64 or "", validate=True) if item.body is None else item.body.encode()
    except (binascii.Error, ValueError) as error:
        raise refuse(f"body_base64 that cannot be decoded ({error}), expected base64", "encode the bytes") from None
    if not body:
        raise refuse("an empty body, expected at least one byte", "pass a body")
    reserved = sorted(RESERVED_PROPERTIES.intersection(item.headers))
    if reserved:
        raise refuse(f"the header {reserved[0]}, expected a name that RocketMQ does not use", "rename it")
    return Message(topic, body, tags=item.tag, keys=item.key, properties=item.headers)


def body_of(message: MessageExt) -> tuple[str | None, str | None]:
    """Return (text, None), or (None, base64) of bytes that are not UTF-8."""
    try:
        return message.body.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(message.body).decode()


def retry_delay_s(attempts: int) -> int:
    """Return the delay after a nack of the attempts-th delivery, from 1."""
    return RETRY_DELAYS_S[min(max(attempts, 1), len(RETRY_DELAYS_S)) - 1]
