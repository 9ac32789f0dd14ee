"""Joining a group as a member that gets each message, and who may receive for a group."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from mqtrail.wire import MQError

from .caller import Caller, problem_of_error
from .config import PREFIX
from .exchange import answer_of, body_of, host_of, json_answer, json_body, token_of
from .gate import Gate
from .member_names import is_of_member, member_group, origin_of
from .pmq import Full, Members, PmqBroker, queues_of
from .problems import Problem
from .shapes import JoinGroup, MemberGroup, read_json

GroupName = Annotated[str, Path(max_length=255, description="Name of a consumer group.")]
MemberName = Annotated[str, Path(max_length=255, description="Name of a member, unique in its group.")]


class Turnstile:
    """Who may receive: those whom the rules admit, and of members those that have not ended."""

    def __init__(self, gate: Gate, members: Members) -> None:
        self._gate = gate
        self._members = members

    def check(self, group: str, request: Request, topic: str | None, wait_s: float = 0) -> None:
        """Problem. Renew the lease of a member, beyond the time that the request waits."""
        self._gate.check_group(group, token_of(request), host_of(request).ip, topic)
        if is_of_member(group) and not self._members.renew(group, int(1000 * wait_s)):
            detail = (
                f"found no member with the group {group}, expected one whose lease is not over: join again with PUT "
                f"{PREFIX}/groups/{origin_of(group)}/members/NAME"
            )
            raise Problem(HTTPStatus.NOT_FOUND, detail)


def add_members(router: APIRouter, members: Members, caller: Caller, gate: Gate) -> None:
    """Add the operations."""

    @router.put(
        "/groups/{group}/members/{member}",
        summary="Join a group as a member that gets each message, or renew its lease",
        openapi_extra=body_of(JoinGroup),
        responses=answer_of(MemberGroup),
    )
    async def join(group: GroupName, member: MemberName, request: Request) -> Response:
        wanted, host = read_json(await json_body(request), JoinGroup), host_of(request)
        _check_origin(group)
        for topic in wanted.topics:
            gate.check_group(group, token_of(request), host.ip, topic)
        lease_ms, from_first = int(1000 * wanted.lease_s), wanted.from_first
        broker = PmqBroker(caller, host)
        try:
            topics = {topic: await queues_of(topic, broker) for topic in wanted.topics}
            name = await members.join(group, member, topics, broker, lease_ms, from_first=from_first)
        except (MQError, TimeoutError) as error:
            raise problem_of_error(error) from error
        except Full as error:
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, str(error)) from error
        return json_answer(MemberGroup(name, wanted.lease_s))

    @router.delete(
        "/groups/{group}/members/{member}",
        summary="Leave a group: the member's own group ends, with its offsets",
        responses=answer_of(MemberGroup),
    )
    async def leave(group: GroupName, member: MemberName, request: Request) -> Response:
        _check_origin(group)
        gate.check_group(group, token_of(request), host_of(request).ip)
        name = member_group(group, member)
        members.leave(name)
        return json_answer(MemberGroup(name, 0))


def _check_origin(group: str) -> None:
    """Problem: the group is that of a member, which has no members."""
    if is_of_member(group):
        detail = f"found the group {group} of a member, expected one without: use {origin_of(group)}"
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
