"""The operations that change the cluster. They exist only where they are allowed."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Body, Query, Request

from ..access import Right, SeenSources
from ..changes import Actor, AuditAnswer, Change, ChangeOutcome, ChangePlan, ChangeResult, ClusterChanges
from .door import Seen, actor_of
from .workers import Workers

CHANGES_AT_ONCE_MAX: Final = 2
CHANGES_WAITING_MAX: Final = 8
TIMEOUT_S: Final = 600.0
AUDITED_MAX: Final = 1_000

Wanted = Annotated[Change, Body(discriminator="action", description="The change. `action` says which.")]


class Changing:
    """Plans and performs changes in threads of its own, if the asker may. Call it from one event loop.

    A change that began goes on although its asker leaves or its time is over: the audit log has its end.
    """

    def __init__(self, changes: ClusterChanges) -> None:
        self._changes = changes
        self._workers = Workers(count=CHANGES_AT_ONCE_MAX, waiting_max=CHANGES_WAITING_MAX, timeout_s=TIMEOUT_S)

    async def plan(self, change: Change, seen: SeenSources) -> ChangePlan:
        """Return what a change would do now. Problem."""

        def ask() -> ChangePlan:
            seen.check_change(change)
            planned = self._changes.plan(change)
            seen.check_plan(change, planned)
            return planned

        return await self._workers.run(ask)

    async def perform(
        self, change: Change, seen: SeenSources, actor: Actor, basis: str, outcomes: list[ChangeOutcome]
    ) -> ChangeResult:
        """Perform a change; add the outcome of each part to `outcomes` as it comes. Problem."""

        def ask() -> ChangeResult:
            seen.check_change(change)
            check = partial(seen.check_plan, change)
            return self._changes.perform(change, actor, basis=basis, seen=outcomes.append, check=check)

        return await self._workers.run(ask)

    async def audited(self, count_max: int, seen: SeenSources) -> AuditAnswer:
        """Return the last changes of the audit log. Problem."""

        def ask() -> AuditAnswer:
            seen.check(Right.ADMINISTER)
            return self._changes.audited(count_max)

        return await self._workers.run(ask)

    def close(self) -> None:
        """Stop taking changes, and close the connections: one that runs ends with an error."""
        self._workers.close()
        self._changes.close()


def add_changes(router: APIRouter, changing: Changing) -> None:
    """Add the operations to a router."""

    @router.post("/changes/plan", summary="What a change would do now; nothing is changed")
    async def plan(sources: Seen, change: Wanted) -> ChangePlan:
        return await changing.plan(change, sources)

    @router.post("/changes", summary="Do a change; it is recorded in the audit log")
    async def perform(
        sources: Seen,
        change: Wanted,
        request: Request,
        basis: Annotated[
            str, Query(max_length=64, description="`basis` of the plan: refuse to do anything else than it showed.")
        ] = "",
    ) -> ChangeResult:
        return await changing.perform(change, sources, actor_of(request, "api"), basis, [])

    @router.get("/audit", summary="The last changes of the audit log, and whether its lines are unbroken")
    async def audit(
        sources: Seen,
        limit: Annotated[int, Query(ge=1, le=AUDITED_MAX, description="Most changes of this answer.")] = 100,
    ) -> AuditAnswer:
        return await changing.audited(limit, sources)
