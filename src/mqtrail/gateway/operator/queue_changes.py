"""Changes of the tables of queues: free those of a shrunk topic, move a queue to another database.

A table is taken from a queue only when nothing in it can be missed: no group has messages left, and retention has
removed all, or the operator drops the rest. The queue goes on at its offset, so offsets of groups stay valid.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, ClassVar, Final

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
from .topic_changes import Name, check_topic, left_by_groups

QUEUE_ID_MAX: Final = (1 << 31) - 1
_DROPS: Final = "messages that a receiver over HTTP holds and does not acknowledge are not delivered again"


def _keeper(context: ChangeContext) -> QueueKeeper:
    """Problem: the broker keeps a CommitLog."""
    if context.keeper is None:
        raise refusal("found a broker with a CommitLog, expected one on tables: its queues have no tables")
    return context.keeper


def _part(topic: str, queue: int) -> str:
    return f"{topic}/{queue}"


async def _release(
    keeper: QueueKeeper, topic: str, queue: int, end: int, to: str | None, detail: str
) -> OperatedOutcome:
    """Take the table from a queue, and wait until the database has that."""
    part = _part(topic, queue)
    try:
        is_saved = await keeper.release_table(topic, queue, end, to)
    except MQError as error:
        return outcome_of_error(part, error)
    if is_saved:
        return OperatedOutcome(part, OperatedFate.DONE, detail)
    return OperatedOutcome(part, OperatedFate.UNKNOWN, "the database has not committed it yet")


class TableFreeing(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="free-tables"):
    """Free the tables of queues that a shrunk topic has no more. drop: also if messages are left in them."""

    topic: Name
    drop: bool = False
    requests: ClassVar[tuple[RequestCode, ...]] = ()

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """TopicNotExist. Problem: there is no such table."""
        check_topic(self.topic)
        keeper = _keeper(context)
        surplus = await self._surplus(context)
        if not surplus:
            raise refusal(
                f"found no table of a queue that {self.topic} has no more, expected some: use `mqtrail pmq topic "
                "shrink` first"
            )
        steps = [
            OperatedStep(_part(self.topic, queue), keeper.node_of(self.topic, queue), "no table", {"kept": end - first})
            for queue, (first, end) in surplus.items()
        ]
        return OperatedPlan(steps, [_DROPS] if self.drop else [])

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Free each table that may be freed."""
        keeper = _keeper(context)
        for queue, (first, end) in (await self._surplus(context)).items():
            if end > first and not self.drop:
                detail = f"found {end - first} messages that retention keeps, expected none: repeat this later, or drop"
                yield OperatedOutcome(_part(self.topic, queue), OperatedFate.WAITS, detail)
            else:
                yield await _release(keeper, self.topic, queue, end, None, "no table")

    async def _surplus(self, context: ChangeContext) -> dict[int, tuple[int, int]]:
        known = await context.broker.known_topic(self.topic)
        count = max(known.read_queue_nums, known.write_queue_nums)
        found = _keeper(context).tables_of(self.topic)
        return {queue: reach for queue, reach in sorted(found.items()) if queue >= count}


class QueueMoving(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="move-queue"):
    """Move a queue to another database, in two parts: publishers stop using it; when all groups have consumed it, it
    goes on there, for publishers too. The second part is done by the same change, later, while messages are left.

    drop: do not wait until retention has removed the consumed messages. cancel: let publishers use the queue again.
    """

    topic: Name
    queue: Annotated[int, msgspec.Meta(ge=0, le=QUEUE_ID_MAX)]
    node: str = ""
    drop: bool = False
    cancel: bool = False
    requests: ClassVar[tuple[RequestCode, ...]] = ()

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """TopicNotExist. Problem: there is no such queue or node, or no other queue for publishers."""
        check_topic(self.topic)
        keeper = _keeper(context)
        at, is_closed = self._check(keeper), keeper.is_closed(self.topic, self.queue)
        part = _part(self.topic, self.queue)
        if self.cancel:
            return OperatedPlan([OperatedStep(part, "closed" if is_closed else "open", "open")])
        known = await context.broker.known_topic(self.topic)
        others = [
            queue
            for queue in range(known.write_queue_nums)
            if queue != self.queue and not keeper.is_closed(self.topic, queue)
        ]
        if not others:
            raise refusal(
                f"found no other queue of {self.topic} for publishers, expected one: add queues with `mqtrail pmq "
                "topic create`"
            )
        pending = await left_by_groups(context, self.topic, lambda queue: queue == self.queue)
        first, end = keeper.tables_of(self.topic).get(self.queue, (0, 0))
        counts: dict[str, int | None] = {"pending": sum(pending.values()), "kept": end - first}
        warnings = [f"waits for {name}: {count} messages" for name, count in pending.items()]
        return OperatedPlan([OperatedStep(part, at, self.node, counts)], [*warnings, *([_DROPS] if self.drop else [])])

    def _check(self, keeper: QueueKeeper) -> str:
        """Return the node of the queue. Problem."""
        at = keeper.node_of(self.topic, self.queue)
        if at is None:
            raise refusal(
                f"found no queue {self.queue} of {self.topic} with messages, expected one: it has no node yet"
            )
        if not self.cancel and self.node not in keeper.node_names:
            raise wrong(f"found the node {self.node!r}, expected one of {', '.join(keeper.node_names)}")
        if not self.cancel and self.node == at:
            raise refusal(f"found {_part(self.topic, self.queue)} on {at} already, expected another node")
        return at

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Close the queue for publishers; move it unless messages are left."""
        keeper, part = _keeper(context), _part(self.topic, self.queue)
        if self.cancel:
            keeper.close_queue(self.topic, self.queue, None)
            yield OperatedOutcome(part, OperatedFate.DONE, "open")
            return
        keeper.close_queue(
            self.topic, self.queue, f"found {part} closed, because it moves to {self.node}: send to another queue"
        )
        end = keeper.end_of(self.topic, self.queue)
        pending = await left_by_groups(context, self.topic, lambda queue: queue == self.queue)
        if pending:
            found = ", ".join(f"{count} messages for {name}" for name, count in pending.items())
            detail = f"closed for publishers; found {found}, expected none: repeat this when they are consumed"
            yield OperatedOutcome(part, OperatedFate.WAITS, detail)
            return
        first, last = keeper.tables_of(self.topic).get(self.queue, (end, end))
        if last > first and not self.drop:
            detail = (
                f"closed for publishers; found {last - first} messages that retention keeps, expected none: repeat "
                "this later, or drop"
            )
            yield OperatedOutcome(part, OperatedFate.WAITS, detail)
            return
        outcome = await _release(keeper, self.topic, self.queue, end, self.node, f"on {self.node}")
        if outcome.fate is OperatedFate.DONE:
            keeper.close_queue(self.topic, self.queue, None)
        yield outcome
