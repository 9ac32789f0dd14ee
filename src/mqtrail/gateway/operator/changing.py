"""Plans and performs the changes of operators, and records each in the audit log.

A change has a line in the log before its first request, one for each part, and one at its end. If the log cannot be
written, nothing is changed. A change that began goes on although its operator leaves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from mqtrail.wire import Host, MQError

from ..caller import Caller, problem_of_error
from ..pmq import PmqInterface
from ..problems import Problem
from ..publishing import MessageSender
from ..rights import DoorOperator
from .broker import OperatorBroker
from .group_changes import GroupCreation, GroupDeletion, GroupPause, LetterResend, OffsetMove
from .node_changes import NodeSetting
from .plans import (
    Audit,
    ChangeContext,
    ChangeReport,
    DoorDatabase,
    OperatedOutcome,
    OperatedPlan,
    OperatorChange,
    outcome_of_error,
)
from .queue_changes import QueueMoving, TableFreeing
from .sending import MessageSend
from .topic_changes import TopicCreation, TopicDeletion, TopicPermission, TopicShrinking

T = TypeVar("T")
DOOR: Final = "http"  # how the audit log names this way of asking

AnyChange: TypeAlias = (
    TopicCreation
    | TopicShrinking
    | TopicPermission
    | TopicDeletion
    | TableFreeing
    | QueueMoving
    | GroupCreation
    | GroupPause
    | GroupDeletion
    | OffsetMove
    | LetterResend
    | MessageSend
    | NodeSetting
)
"""Every change. `action` tells them apart."""


class OperatorChanges:
    """Of one door, one after the other. audit: None: there is no data folder, and nothing is recorded. database:
    None: the broker keeps a CommitLog."""

    def __init__(
        self,
        caller: Caller,
        pmq: PmqInterface,
        sender: MessageSender,
        audit: Audit | None,
        database: DoorDatabase | None = None,
    ) -> None:
        self._caller = caller
        self._pmq = pmq
        self._sender = sender
        self._audit = audit
        self._keeper = None if database is None else database.keeper
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[ChangeReport]] = set()

    async def plan(self, change: AnyChange, host: Host) -> ChangeReport:
        """Return what a change would do now. Problem."""
        planned = await self._planned(change, self._context(host))
        return ChangeReport(action_of(change), True, list(planned.steps), list(planned.warnings))

    async def perform(self, change: AnyChange, who: DoorOperator, host: Host) -> ChangeReport:
        """Do it. Problem: nothing was done; or, of the audit log, the rest was not done."""
        task = asyncio.create_task(self._perform(change, who, host))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def audited(self, count_max: int) -> dict[str, Any]:
        """Return the last changes of the audit log, and where its lines are broken. Problem."""
        if self._audit is None:
            detail = "found a broker without a data folder, expected one: its changes are not recorded"
            raise Problem(HTTPStatus.NOT_FOUND, detail)
        audit = self._audit
        found: dict[str, Any] = msgspec.to_builtins(await _recorded(lambda: audit.last(count_max)))
        return found

    def _context(self, host: Host) -> ChangeContext:
        return ChangeContext(OperatorBroker(self._caller, host), self._pmq, self._sender, self._keeper)

    async def _planned(self, change: OperatorChange, context: ChangeContext) -> OperatedPlan:
        try:
            return await change.plan(context)
        except (MQError, TimeoutError) as error:
            raise problem_of_error(error) from error

    async def _perform(self, change: AnyChange, who: DoorOperator, host: Host) -> ChangeReport:
        async with self._turn:
            context = self._context(host)
            planned = await self._planned(change, context)
            report = ChangeReport(action_of(change), False, list(planned.steps), list(planned.warnings))
            report.change_id = uuid4().hex
            parameters = {
                name: value for name, value in msgspec.to_builtins(change).items() if name not in ("action", "body")
            }
            asked = {
                "who": who.name,
                "address": host.ip,
                "door": f"{DOOR}, {who.through}" if who.through else DOOR,
                "action": report.action,
                "parameters": parameters,
                "requests": [f"{code.name} ({code.value})" for code in change.requests],
                "steps": msgspec.to_builtins(report.steps),
            }
            await self._note(report.change_id, "asked", asked)
            await self._do(change, context, report)
            return report

    async def _do(self, change: AnyChange, context: ChangeContext, report: ChangeReport) -> None:
        async def add(outcome: OperatedOutcome) -> None:
            report.outcomes.append(outcome)
            await self._note(report.change_id, "outcome", {**msgspec.to_builtins(outcome), "place": ""})

        error = ""
        try:
            async for outcome in change.perform(context):
                await add(outcome)
        except (MQError, TimeoutError) as failure:  # of the rest
            await add(outcome_of_error("", failure))
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            counts = Counter(one.fate.value for one in report.outcomes)
            await self._note(report.change_id, "ended", {"counts": dict(counts), "error": error})

    async def _note(self, change_id: str, event: str, fields: Mapping[str, Any]) -> None:
        if self._audit is not None:
            audit = self._audit
            await _recorded(lambda: audit.append(change_id, event, fields, is_synced=event != "outcome"))


async def _recorded(act: Callable[[], T]) -> T:
    """Call the audit log in a thread. Problem: it cannot be written, or read."""
    called: Awaitable[T] = asyncio.to_thread(act)
    try:
        return await called
    except MQError as error:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}, so nothing further is changed") from error


def action_of(change: AnyChange) -> str:
    """Return the `action` of a change."""
    return str(change.__struct_config__.tag)
