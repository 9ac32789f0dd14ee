"""The plain interface: its operations, and the application that serves them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from mqtrail import __version__
from mqtrail.wire import HeaderError, Message, visible_json

from .caller import Caller
from .config import INVISIBLE_S_DEFAULT, INVISIBLE_S_MAX, KEY_LENGTH_MAX, PREFIX, RECEIVE_COUNT_MAX, DoorConfig
from .crowd import Crowd, resting
from .exchange import answer_of, body_of, host_of, json_answer, json_body, media_type_of, ref_of, token_of
from .gate import Gate
from .guard import BodyRoom, LocalGuard
from .joining import GroupName, Turnstile, add_members
from .mail import Mailer
from .operator import Audit, DoorDatabase, Looking, OperatorChanges, changing_router, looking_router, operator_schemas
from .pmq import Members, PmqInterface
from .problems import RESPONSES, DescribedApi, Problem, add_problems
from .publishing import MessageSender, Repeatable
from .receipts import Receipt
from .receiving import Receiver
from .shapes import (
    BYTES_TYPES,
    JSON_TYPE,
    Ack,
    Extend,
    ListedTopics,
    Nack,
    NewTopic,
    Publish,
    PublishedMessages,
    Receive,
    ReceivedMessages,
    SettledMessages,
    Topic,
    message_of,
    read_json,
    schemas,
)
from .short_way import NamedOperation, ShortWay
from .topics import Topics
from .tracer import Tracer

T = TypeVar("T")
EVENTS_TYPE: Final = "text/event-stream"
EVENTS_WAIT_S: Final = 15  # between two comments of a stream without messages
SLOW_DOWN_MS: Final = 100  # at busy_from publishes under way; it grows with their number
_encode = msgspec.json.encode

TopicName = Annotated[str, Path(max_length=255, description="Name of a topic.")]
Key = Annotated[str, Query(max_length=KEY_LENGTH_MAX, description="With a body of bytes: its key.")]
Tag = Annotated[str, Query(max_length=KEY_LENGTH_MAX, description="With a body of bytes: its tag.")]
IdempotencyKey = Annotated[
    str | None,
    Header(description="Repeating a request with the same key, within a day, stores nothing twice."),
]


def make_door(
    caller: Caller,
    next_id: Callable[[], str],
    broker_name: str,
    config: DoorConfig,
    stopping: asyncio.Event,
    gate: Gate | None = None,
    database: DoorDatabase | None = None,
    audit: Audit | None = None,
) -> DescribedApi:
    """Return the application. caller: reaches the broker. next_id: makes ids of messages and requests.

    stopping: once it is set, receives no longer wait. gate: the operator's rules; None: there are none.
    database: of the messages; None: there is none. audit: where changes of operators are recorded; None: nowhere.
    """
    gate = gate or Gate()
    tracer = Tracer(caller, config.trace_topic)
    publisher = MessageSender(caller, tracer, next_id)
    members = Members(caller, config)
    pmq = PmqInterface(caller, publisher, tracer, broker_name, stopping, gate, config, members)

    mailer = Mailer(lambda: gate.rules.mail, config.report)
    pmq.on_mail = mailer.take

    @asynccontextmanager
    async def life(_: object) -> AsyncIterator[None]:
        tracer.start()
        pmq.start()
        members.start()
        mailer.start()
        yield
        await mailer.stop()
        await members.stop()
        await pmq.stop()
        await tracer.stop()

    app = DescribedApi(
        schemas=schemas() | operator_schemas(),
        title="mqtrail",
        version=__version__,
        description="Publish and receive messages over HTTP.",
        lifespan=life,
    )

    _add_health(app, caller)
    receiver = Receiver(caller, tracer, next_id, broker_name, config)
    router = APIRouter(prefix=PREFIX, responses=RESPONSES)
    named = {f"{PREFIX}/topics/*/messages": _add_publishing(router, publisher, config, gate)}
    named |= _add_receiving(router, receiver, stopping, Turnstile(gate, members))
    add_members(router, members, caller, gate)
    _add_topics(router, Topics(caller), gate)
    app.include_router(router)
    app.include_router(looking_router(Looking(caller, pmq, broker_name, database), gate))
    app.include_router(changing_router(OperatorChanges(caller, pmq, publisher, audit, database), gate))
    app.include_router(pmq.router())
    app.state.mails = mailer.counts
    add_problems(app)
    app.add_middleware(ShortWay, named=named, exact=pmq.operations)  # behind all bounds
    _add_bounds(app, config)
    return app


def _add_health(app: DescribedApi, caller: Caller) -> None:
    @app.get("/healthz", summary="Whether the door serves, and its database too", response_class=PlainTextResponse)
    async def healthz() -> PlainTextResponse:
        if (away := caller.away) is not None:
            return PlainTextResponse(f"the database does not answer: {away}\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ok\n")


def _add_bounds(app: DescribedApi, config: DoorConfig) -> None:
    app.add_middleware(Crowd, count_max=config.requests_max, shares=config.shares(config.requests_max))
    app.add_middleware(
        LocalGuard,
        hosts=config.hosts,
        body_size_max=config.request_size_max,
        room=BodyRoom(max(config.bodies_size_max, config.request_size_max)),
    )


def _add_publishing(router: APIRouter, publisher: MessageSender, config: DoorConfig, gate: Gate) -> NamedOperation:
    """Add the operation; return it without its query."""
    under_way = 0

    @router.post(
        "/topics/{topic}/messages",
        summary="Publish one message, a list of messages, or the bytes of a message",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    JSON_TYPE: {
                        "schema": {"oneOf": [ref_of(Publish), {"type": "array", "items": ref_of(Publish)}]},
                    },
                    BYTES_TYPES[0]: {"schema": {"type": "string", "format": "binary"}},
                    BYTES_TYPES[1]: {"schema": {"type": "string"}},
                },
            }
        },
        responses=answer_of(PublishedMessages),
    )
    async def publish(
        topic: TopicName, request: Request, key: Key = "", tag: Tag = "", idempotency_key: IdempotencyKey = None
    ) -> Response:
        nonlocal under_way
        gate.check_topic(topic, token_of(request))
        messages = _messages(topic, await request.body(), media_type_of(request), (key, tag), config)
        repeatable = None if idempotency_key is None else Repeatable.of(idempotency_key, messages)
        pause_s = gate.take(topic, len(messages), time.monotonic())
        under_way += 1
        try:
            found = await publisher.publish(messages, repeatable, host_of(request))
            slow_down_ms = SLOW_DOWN_MS * under_way // config.busy_from if under_way >= config.busy_from else 0
        finally:
            under_way -= 1
        return json_answer(PublishedMessages(found, max(slow_down_ms, math.ceil(1000 * pause_s))))

    return lambda topic, request: publish(topic, request, "", "", request.headers.get("idempotency-key"))


def _messages(topic: str, body: bytes, media_type: str, words: tuple[str, str], config: DoorConfig) -> list[Message]:
    """Return the messages of a request's body. Problem."""
    if media_type in BYTES_TYPES:
        if not body:
            detail = "found an empty body, expected the bytes of a message: pass them as the body"
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        messages = [Message(topic, body, keys=words[0], tags=words[1])]
    elif media_type == JSON_TYPE:
        read = read_json(body, _OneOrMany)
        items = read if isinstance(read, list) else [read]
        _check_count(len(items), config)
        messages = [message_of(topic, item, place) for place, item in enumerate(items)]
    else:
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"found Content-Type {media_type[:60]!r}, expected {JSON_TYPE}, or {' or '.join(BYTES_TYPES)} for the "
            "bytes of one message: set Content-Type",
        )
    size = max(len(message.body) for message in messages)
    if size > config.body_size_max:
        detail = f"found a message of {size} bytes, expected at most {config.body_size_max}: publish a smaller one"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    return messages


def _check_count(count: int, config: DoorConfig) -> None:
    if not 0 < count <= config.batch_count_max:
        detail = f"found {count} messages, expected 1 to {config.batch_count_max}: publish them in parts"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def _add_receiving(
    router: APIRouter, receiver: Receiver, stopping: asyncio.Event, turnstile: Turnstile
) -> dict[str, NamedOperation]:
    """Add the operations; return those of POST by path, with `*` for the group."""
    _add_events(router, receiver, stopping, turnstile)

    @router.post(
        "/groups/{group}/receive",
        summary="Receive messages for a group; wait for the first one",
        openapi_extra=body_of(Receive),
        responses=answer_of(ReceivedMessages),
    )
    async def receive(group: GroupName, request: Request) -> Response:
        wanted = read_json(await json_body(request), Receive)
        turnstile.check(group, request, wanted.topic, wanted.wait_s)
        work = receiver.receive(group, wanted, host_of(request))
        with resting(request.scope) if wanted.wait_s else nullcontext():
            return json_answer(await _unless_gone(request, stopping, work))

    @router.post(
        "/groups/{group}/ack",
        summary="Acknowledge received messages",
        openapi_extra=body_of(Ack),
        responses=answer_of(SettledMessages),
    )
    async def ack(group: GroupName, request: Request) -> Response:
        asked = read_json(await json_body(request), Ack)
        _check_receipts(turnstile, group, request, asked.receipts)
        return json_answer(SettledMessages(await receiver.ack(group, asked.receipts, host_of(request))))

    @router.post(
        "/groups/{group}/nack",
        summary="Have received messages delivered again",
        openapi_extra=body_of(Nack),
        responses=answer_of(SettledMessages),
    )
    async def nack(group: GroupName, request: Request) -> Response:
        asked = read_json(await json_body(request), Nack)
        _check_receipts(turnstile, group, request, asked.receipts)
        results = await receiver.nack(group, asked.receipts, asked.delay_s, asked.reason, host_of(request))
        return json_answer(SettledMessages(results))

    @router.post(
        "/groups/{group}/extend",
        summary="Take more time for received messages",
        openapi_extra=body_of(Extend),
        responses=answer_of(SettledMessages),
    )
    async def extend(group: GroupName, request: Request) -> Response:
        asked = read_json(await json_body(request), Extend)
        _check_receipts(turnstile, group, request, asked.receipts)
        return json_answer(
            SettledMessages(await receiver.extend(group, asked.receipts, asked.invisible_s, host_of(request)))
        )

    found: dict[str, NamedOperation] = {"receive": receive, "ack": ack, "nack": nack, "extend": extend}
    return {f"{PREFIX}/groups/*/{name}": operation for name, operation in found.items()}


def _check_receipts(turnstile: Turnstile, group: str, request: Request, receipts: Sequence[str]) -> None:
    """Problem: the client may not settle for the group, or may not have received what a receipt names: with a made up
    one, the broker would put a copy of any message into the group's retry topic."""
    topics: dict[str | None, None] = {None: None}
    for text in receipts:
        with suppress(HeaderError):  # it is refused where it is used
            topics[Receipt.decode(text).topic] = None
    for topic in topics:
        turnstile.check(group, request, topic)


def _add_events(router: APIRouter, receiver: Receiver, stopping: asyncio.Event, turnstile: Turnstile) -> None:
    @router.get(
        "/groups/{group}/events",
        summary="Receive messages as they come, as Server-Sent Events",
        response_class=StreamingResponse,
        responses={200: {"content": {EVENTS_TYPE: {"schema": {"type": "string"}}}}},
    )
    async def events(
        group: GroupName,
        request: Request,
        topic: Annotated[str, Query(min_length=1, max_length=255, description="Name of a topic.")],
        tag: Annotated[str, Query(max_length=KEY_LENGTH_MAX, description="Only messages with this tag.")] = "*",
        invisible_s: Annotated[float, Query(ge=1, le=INVISIBLE_S_MAX)] = INVISIBLE_S_DEFAULT,
        from_first: bool = True,
    ) -> StreamingResponse:
        turnstile.check(group, request, topic)
        wanted = Receive(topic, RECEIVE_COUNT_MAX, 0, invisible_s, tag, from_first)
        first = await receiver.receive(group, wanted, host_of(request))  # a refusal is an answer, not an event
        wanted = msgspec.structs.replace(wanted, wait_s=EVENTS_WAIT_S)

        def more() -> Awaitable[ReceivedMessages]:
            turnstile.check(group, request, topic, EVENTS_WAIT_S)  # rules may change, and a member may end
            return receiver.receive(group, wanted, host_of(request))

        return StreamingResponse(
            _events(request, stopping, first, more),
            media_type=EVENTS_TYPE,
            headers={"Cache-Control": "no-store"},
        )


def _add_topics(router: APIRouter, topics: Topics, gate: Gate) -> None:
    @router.get("/topics", summary="List the topics of applications", responses=answer_of(ListedTopics))
    async def list_topics(request: Request) -> Response:
        return json_answer(ListedTopics(await topics.list(host_of(request))))

    @router.get("/topics/{topic}", summary="Show a topic", responses=answer_of(Topic))
    async def show_topic(topic: TopicName, request: Request) -> Response:
        return json_answer(await topics.one(topic, host_of(request)))

    @router.put(
        "/topics/{topic}",
        summary="Create a topic, or change its number of queues",
        openapi_extra=body_of(NewTopic),
        responses=answer_of(Topic),
    )
    async def create_topic(topic: TopicName, request: Request) -> Response:
        gate.check_topic(topic, token_of(request))
        wanted = read_json(await json_body(request), NewTopic)
        return json_answer(await topics.create(topic, wanted.queues, host_of(request)))


# Requests and answers.

_OneOrMany: Any = Publish | list[Publish]


async def _unless_gone(request: Request, stopping: asyncio.Event, work: Awaitable[T]) -> T:
    """Return the result of a wait. If the client leaves or the server stops, cancel it: it then takes no message."""
    waiting = asyncio.ensure_future(work)
    ends = [asyncio.create_task(_gone(request)), asyncio.create_task(stopping.wait())]
    try:
        await asyncio.wait([waiting, *ends], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the server stops, or the connection was closed: try again")
        return waiting.result()
    finally:
        for task in (waiting, *ends):
            task.cancel()
        await asyncio.wait([waiting, *ends])


async def _events(
    request: Request, stopping: asyncio.Event, found: ReceivedMessages, ask: Callable[[], Awaitable[ReceivedMessages]]
) -> AsyncIterator[bytes]:
    """Yield messages as events, and a comment where none came, so that a broken connection is noticed."""
    while True:
        for message in found.messages:
            yield b"event: message\ndata: " + visible_json(_encode(message).decode()).encode() + b"\n\n"
        if not found.messages:
            yield b": no message\n\n"
        try:
            with resting(request.scope):
                await asyncio.sleep(found.slow_down_ms / 1000)
                found = await _unless_gone(request, stopping, ask())
        except Problem as problem:
            yield b"event: problem\ndata: " + _encode(problem.detail) + b"\n\n"
            return


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
