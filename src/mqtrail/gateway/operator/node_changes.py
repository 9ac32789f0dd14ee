"""A change of a database of the store: what clients may do with its queues, and which new queues it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, ClassVar, Literal

import msgspec

from mqtrail.wire import MQError, RequestCode

from .plans import (
    ChangeContext,
    OperatedFate,
    OperatedOutcome,
    OperatedPlan,
    OperatedStep,
    QueueKeeper,
    outcome_of_error,
    refusal,
    wrong,
)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class NodeSetting(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="set-node"):
    """Set the state or the kind of a database of the store; the broker follows within a second.

    force: also if topics are left without a queue that takes messages.
    """

    node: Name
    state: Literal["read-write", "read-only", "closed"] | None = None
    kind: Literal["normal", "failure"] | None = None
    force: bool = False
    requests: ClassVar[tuple[RequestCode, ...]] = ()

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """Problem: there is no such database, or nothing to set."""
        if self.state is None and self.kind is None:
            raise wrong("found neither state nor kind, expected what to set: pass one of them")
        nodes = await _keeper(context).nodes()
        if self.node not in nodes:
            known = ", ".join(nodes) or "none: it has one database"
            raise wrong(f"found no node {self.node!r} in this store, expected one of its nodes: {known}")
        kind, state = nodes[self.node]
        after = f"{self.kind or kind}, {self.state or state}"
        return OperatedPlan([OperatedStep(self.node, f"{kind}, {state}", after)])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Write it in the home."""
        try:
            kind, state = await _keeper(context).set_node(self.node, self.kind, self.state, force=self.force)
        except MQError as error:
            yield outcome_of_error(self.node, error)
            return
        yield OperatedOutcome(self.node, OperatedFate.DONE, f"{kind}, {state}")


def _keeper(context: ChangeContext) -> QueueKeeper:
    if context.keeper is None:
        raise refusal("found a broker with a CommitLog, expected one on tables: it has no databases")
    return context.keeper
