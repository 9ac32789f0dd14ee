"""The operation by which people acknowledge and mute incidents. It writes to neither lake nor cluster."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from mqtrail.clock import now_ms

from ..handling import WHY_SIZE_MAX, HandledIncidents, incident_with_id
from ..summaries import IncidentActKind, IncidentHandling
from .door import Seen, actor_of
from .ranges import Cluster, Since, Until, range_of
from .workers import Workers

TIME_MS_MAX: Final = 1 << 53  # exact in JSON


class IncidentOrder(BaseModel):
    """What to do about an incident."""

    incident_id: str = Field(min_length=1, max_length=64, description="As `/incidents` has it.")
    kind: IncidentActKind
    why: str = Field(default="", max_length=WHY_SIZE_MAX, description="The reason. A mute needs one.")
    until_ms: int = Field(default=0, ge=0, le=TIME_MS_MAX, description="End of a mute: epoch ms, at most in 90 days.")


def add_acts(router: APIRouter, workers: Workers, handled: HandledIncidents) -> None:
    """Add the operation to a router."""

    @router.post("/incidents/acts", summary="Acknowledge or mute an incident, or take that back; it is recorded")
    async def act(
        sources: Seen,
        order: IncidentOrder,
        request: Request,
        since: Since = "",
        until: Until = "",
        cluster: Cluster = "",
    ) -> IncidentHandling:
        first_ms, end_ms = range_of(since, until)

        def ask() -> IncidentHandling:
            at_ms = now_ms()
            sources.check_incident()  # before a search
            one = incident_with_id(sources.of_lake(cluster), order.incident_id, at_ms, first_ms, end_ms)
            sources.check_incident(one)
            return handled.act(one, order.kind, actor_of(request, "api"), at_ms, why=order.why, until_ms=order.until_ms)

        return await workers.run(ask)
