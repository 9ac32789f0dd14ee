"""Changes of single offsets: copied from another group, or set on one queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from mqtrail.client import QueueMove, SyncAdmin
from mqtrail.wire import MessageQueue, MQError, RequestCode, validate_group, validate_topic

from ..masters import resetting
from .group_kinds import check_group, live_members
from .model import ChangeOutcome, ChangeStep, Fate, InvalidChange, NothingToChange, Planned

OVERWRITE: Final = "overwrite these offsets on brokers that do not reset them themselves (4.9): stop them first"
REQUESTS: Final = (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET)
"""The second goes to brokers that do not reset offsets themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOffsets:
    """Copy the committed offsets of the group `source` on a topic to `group`.

    On queues where source has none, group keeps its own.
    """

    source: str
    group: str
    topic: str
    action: Literal["clone-offsets"] = "clone-offsets"
    requests: ClassVar[tuple[RequestCode, ...]] = REQUESTS
    is_moving: ClassVar[bool] = True  # members commit

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail offset clone`."""
        return "mqtrail", "offset", "clone", self.source, self.group, self.topic

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the offset of each queue before and after. NothingToChange: source has no offset."""
        self._check()
        planned = admin.plan_clone(self.source, self.group, self.topic)
        moves = sorted(
            (move for move in planned.values() if move is not None),
            key=lambda move: (move.queue.broker_name, move.queue.queue_id),
        )
        omissions = [f"{name}: {error}" for name, error in planned.failures.items()]
        if not moves and not omissions:
            raise NothingToChange(f"group {self.source!r} has no offset on topic {self.topic!r}")
        warnings, unknown = _members(admin, self.group, [move.queue for move in moves])
        if left := sum(1 for move in planned.values() if move is None):
            warnings.append(f"{left} queues stay as they are: group {self.source!r} has no offset there")
        if omissions:
            warnings.append("some queues could not be read, so nothing will be copied: try again")
        return Planned([step_of(move) for move in moves], [*omissions, *unknown], warnings)

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Copy them; an outcome for each queue. Nothing is copied unless all queues could be read."""
        self._check()
        planned = admin.plan_clone(self.source, self.group, self.topic)
        for error in planned.failures.values():
            raise error
        moves = sorted((move.queue, move.new_offset) for move in planned.values() if move is not None)
        yield from _set(admin, self.group, moves)

    def _check(self) -> None:
        validate_group(self.source)
        check_group(self.group)
        validate_topic(self.topic)
        if self.source == self.group:
            raise InvalidChange(f"source: found {self.source!r}, the group itself, expected another one")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOffset:
    """Correct the offset of a group on one queue: it must lie within the queue, or at its end."""

    group: str
    topic: str
    broker: str
    queue_id: int
    offset: int
    action: Literal["set-offset"] = "set-offset"
    requests: ClassVar[tuple[RequestCode, ...]] = REQUESTS
    is_moving: ClassVar[bool] = True  # members commit

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail offset set`."""
        return "mqtrail", "offset", "set", self.group, self.topic, f"{self.broker}/{self.queue_id}={self.offset}"

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the offset before and after, and how many messages are skipped or repeated."""
        queue = self._queue(admin)
        first, end = admin.min_offset(queue), admin.max_offset(queue)
        if not first <= self.offset <= end:
            raise InvalidChange(f"offset: found {self.offset}, expected {first} to {end}, the range of the queue")
        move = QueueMove(queue, first, admin.consumer_offset(self.group, queue), self.offset)
        warnings, omissions = _members(admin, self.group, [queue])
        return Planned([step_of(move)], omissions, warnings)

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Set it."""
        yield from _set(admin, self.group, [(self._queue(admin), self.offset)])

    def _queue(self, admin: SyncAdmin) -> MessageQueue:
        check_group(self.group)
        validate_topic(self.topic)
        queue = MessageQueue(self.topic, self.broker, self.queue_id)
        if queue not in (known := admin.queues(self.topic)):
            names = ", ".join(one.place for one in sorted(known)[:20])
            raise InvalidChange(f"queue: found {queue.place!r}, expected one of topic {self.topic!r}: {names}")
        return queue


def _members(admin: SyncAdmin, group: str, queues: Sequence[MessageQueue]) -> tuple[list[str], list[str]]:
    """Return a warning if live members would overwrite offsets of these queues, and what could not be asked."""
    brokers = {queue.broker_name for queue in queues}
    if brokers == resetting(admin, brokers):
        return [], []
    return live_members(admin, group, OVERWRITE)


def _set(admin: SyncAdmin, group: str, offsets: Sequence[tuple[MessageQueue, int]]) -> Iterator[ChangeOutcome]:
    """Set the offset of each queue."""
    for queue, offset in offsets:
        try:
            admin.set_offset(group, queue, offset)
        except (MQError, OSError) as error:
            yield ChangeOutcome.of_error(queue.place, error)
        else:
            yield ChangeOutcome(queue.place, Fate.DONE, str(offset))


def step_of(move: QueueMove) -> ChangeStep:
    """Return the part of a change that moves a group on a queue."""
    before = None if move.consumer_offset is None else str(move.consumer_offset)
    counts = {"skipped": move.skipped_count, "repeated": move.repeated_count}
    return ChangeStep(move.queue.place, before, str(move.new_offset), counts)
