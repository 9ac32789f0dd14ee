"""The operations of the operators' interface. Each needs the token of an operator (`gate`)."""

from __future__ import annotations

from collections.abc import Awaitable
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from mqtrail.wire import OPERATOR_PATH, Host, MQError

from ..caller import problem_of_error
from ..exchange import acts_for_of, answer_of, host_of, json_answer, json_body, ref_of, token_of
from ..gate import Gate
from ..problems import RESPONSES, Problem
from ..rights import DoorOperator, OperatedRules
from ..shapes import JSON_TYPE, REF, read_json
from .changing import AnyChange, OperatorChanges, action_of
from .looking import Looking
from .plans import ChangeReport
from .shapes import (
    SHAPES,
    KeptMessage,
    KeptMessages,
    OnlineMembers,
    OperatedGroupDetail,
    OperatedGroups,
    OperatedLock,
    OperatedNode,
    OperatedQueues,
    OperatedSubscriptions,
    OperatedTopic,
    OperatedTopics,
    QueueAges,
    StoredCount,
)

T = TypeVar("T")
MESSAGES_MAX: Final = 1_000
_ANY_CHANGE: Final[Any] = AnyChange

Name = Annotated[str, Path(max_length=255)]
Count = Annotated[int, Query(ge=1, le=MESSAGES_MAX, description="Most messages of the answer.")]


def operator_schemas() -> dict[str, Any]:
    """Return the schemas of all shapes, by name."""
    shapes = (*SHAPES, OperatedRules, ChangeReport, *get_args(AnyChange))
    _, components = msgspec.json.schema_components(shapes, ref_template=REF)
    return components


async def asked(work: Awaitable[T]) -> T:
    """Return what the broker answers. Problem."""
    try:
        return await work
    except (MQError, TimeoutError) as error:
        raise problem_of_error(error) from error


def _operator(gate: Gate, request: Request) -> DoorOperator:
    """Return who asks. Problem: no operator."""
    return gate.operator(token_of(request), acts_for_of(request))


def looking_router(looking: Looking, gate: Gate) -> APIRouter:
    """Return the operations that change nothing."""
    router = APIRouter(prefix=OPERATOR_PATH, responses=RESPONSES)
    _add_topics(router, looking, gate)
    _add_groups(router, looking, gate)
    _add_messages(router, looking, gate)

    @router.get("/node", summary="Show the broker and its database", responses=answer_of(OperatedNode))
    async def node(request: Request) -> Response:
        _operator(gate, request)
        return json_answer(await asked(looking.node(host_of(request))))

    @router.get("/rules", summary="Show who asks, and the rules without tokens", responses=answer_of(OperatedRules))
    async def rules(request: Request) -> Response:
        return json_answer(gate.shown(_operator(gate, request)))

    @router.get("/lock", summary="Show which process may write to the database", responses=answer_of(OperatedLock))
    async def lock(request: Request) -> Response:
        _operator(gate, request)
        return json_answer(await asked(looking.lock()))

    return router


def changing_router(changes: OperatorChanges, gate: Gate) -> APIRouter:
    """Return the operations that change something, and the log of the changes."""
    router = APIRouter(prefix=OPERATOR_PATH, responses=RESPONSES)

    @router.post(
        "/changes",
        summary="Do a change; it is recorded in the audit log",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {JSON_TYPE: {"schema": {"oneOf": [ref_of(kind) for kind in get_args(AnyChange)]}}},
            }
        },
        responses=answer_of(ChangeReport),
    )
    async def perform(
        request: Request,
        dry_run: Annotated[bool, Query(description="Only say what the change would do.")] = False,
    ) -> Response:
        who = _operator(gate, request)
        change: AnyChange = read_json(await json_body(request), _ANY_CHANGE)
        who.check_change(action_of(change), msgspec.structs.asdict(change), is_dry_run=dry_run)
        host = host_of(request)
        return json_answer(await (changes.plan(change, host) if dry_run else changes.perform(change, who, host)))

    @router.get("/audit", summary="The last changes of the audit log, and whether its lines are unbroken")
    async def audit(
        request: Request, count: Annotated[int, Query(ge=1, le=MESSAGES_MAX, description="Most changes.")] = 20
    ) -> Response:
        _operator(gate, request)
        return json_answer(await changes.audited(count))

    return router


def _add_topics(router: APIRouter, looking: Looking, gate: Gate) -> None:
    @router.get("/topics", summary="List the topics of applications", responses=answer_of(OperatedTopics))
    async def topics(request: Request) -> Response:
        _operator(gate, request)
        return json_answer(OperatedTopics(await asked(looking.topics(host_of(request)))))

    @router.get("/topics/{topic}", summary="Show a topic", responses=answer_of(OperatedTopic))
    async def topic(topic: Name, request: Request) -> Response:
        _operator(gate, request)
        return json_answer(await asked(looking.topic(topic, host_of(request))))

    @router.get("/queues", summary="List queues with their messages", responses=answer_of(OperatedQueues))
    async def queues(
        request: Request,
        topic: Annotated[str | None, Query(max_length=255, description="Only queues of this topic.")] = None,
        tables: Annotated[bool, Query(description="With the table of each queue, and its size.")] = False,
    ) -> Response:
        _operator(gate, request)
        return json_answer(OperatedQueues(await asked(looking.queues(topic, tables, host_of(request)))))

    @router.get("/ages", summary="Show when the first message of each queue was stored", responses=answer_of(QueueAges))
    async def ages(
        request: Request,
        topic: Annotated[str | None, Query(max_length=255, description="Only queues of this topic.")] = None,
    ) -> Response:
        _operator(gate, request)
        return json_answer(QueueAges(await asked(looking.ages(topic, host_of(request)))))

    @router.get(
        "/topics/{topic}/count",
        summary="Count the kept messages that were stored between two times",
        responses=answer_of(StoredCount),
    )
    async def counted(
        topic: Name,
        request: Request,
        from_ms: Annotated[int, Query(ge=0, description="Stored at or after this time.")],
        until_ms: Annotated[int, Query(ge=0, description="Stored before this time.")],
    ) -> Response:
        _operator(gate, request)
        found = await asked(looking.count(topic, from_ms, until_ms, host_of(request)))
        return json_answer(StoredCount(topic, from_ms, until_ms, found))


def _add_groups(router: APIRouter, looking: Looking, gate: Gate) -> None:
    @router.get("/groups", summary="List the groups of applications", responses=answer_of(OperatedGroups))
    async def groups(request: Request) -> Response:
        _operator(gate, request)
        return json_answer(OperatedGroups(await asked(looking.groups(host_of(request)))))

    @router.get(
        "/groups/{group}", summary="Show a group, its members and offsets", responses=answer_of(OperatedGroupDetail)
    )
    async def group(group: Name, request: Request) -> Response:
        _operator(gate, request)
        return json_answer(await asked(looking.group(group, host_of(request))))

    @router.get("/members", summary="List the clients that are online, by group", responses=answer_of(OnlineMembers))
    async def members(request: Request) -> Response:
        _operator(gate, request)
        return json_answer(OnlineMembers(await asked(looking.members(host_of(request)))))

    @router.get(
        "/subscriptions", summary="List which group consumes which topic", responses=answer_of(OperatedSubscriptions)
    )
    async def subscriptions(request: Request) -> Response:
        _operator(gate, request)
        return json_answer(OperatedSubscriptions(await asked(looking.subscriptions(host_of(request)))))


def _add_messages(router: APIRouter, looking: Looking, gate: Gate) -> None:
    @router.get(
        "/topics/{topic}/messages",
        summary="List stored messages: the last ones, from an offset or a time on, or those with a key or an id",
        responses=answer_of(KeptMessages),
    )
    async def messages(
        topic: Name,
        request: Request,
        queue: Annotated[int | None, Query(ge=0, description="Only of this queue.")] = None,
        first: Annotated[int | None, Query(ge=0, alias="from", description="From this offset of the queue on.")] = None,
        from_ms: Annotated[int | None, Query(ge=0, description="Stored at or after this time.")] = None,
        key: Annotated[str | None, Query(max_length=1_000, description="Only with this key.")] = None,
        id: Annotated[str | None, Query(max_length=255, description="Only with this id, with bodies.")] = None,
        count: Count = 20,
    ) -> Response:
        who = _operator(gate, request)
        host = host_of(request)
        if sum(one is not None for one in (first, from_ms, key, id)) > 1 or (first is not None and queue is None):
            detail = "found several of from, from_ms, key and id, or from without queue, expected one: omit the others"
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        word = key if id is None else id
        if id is not None:
            await _check_bodies(looking, gate, who, topic, host)
        if word is not None:
            found = await asked(looking.messages_by_key(topic, word, count, host, is_id=id is not None))
            found = [one for one in found if queue in (None, one.queue)]
        else:
            found = await asked(looking.messages(topic, queue, first, from_ms, count, host))
        return json_answer(KeptMessages(found))

    @router.get(
        "/topics/{topic}/queues/{queue}/messages/{offset}",
        summary="Show a stored message with its body and properties",
        responses=answer_of(KeptMessage),
    )
    async def message(
        topic: Name, queue: Annotated[int, Path(ge=0)], offset: Annotated[int, Path(ge=0)], request: Request
    ) -> Response:
        host = host_of(request)
        await _check_bodies(looking, gate, _operator(gate, request), topic, host)
        return json_answer(await asked(looking.message(topic, queue, offset, host)))


async def _check_bodies(looking: Looking, gate: Gate, who: DoorOperator, topic: str, host: Host) -> None:
    """Problem: this operator may not read the bodies of the topic."""
    if who.is_admin:
        return
    consumers = gate.owned_by(topic) or frozenset(await asked(looking.consumers(topic, host)))
    who.check_bodies(topic, gate.allowed(topic, consumers))
