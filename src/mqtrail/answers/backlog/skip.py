"""Skips the backlog of a group in a topic, with a record of what was skipped.

    plan_skip -> SkipPlan -> write_record (durable) -> perform_skip (each queue by itself) -> outcomes in the record

Each queue is moved to exactly the offset that its record names, and never backward. A member may consume messages
between the plan and its reset, so a record can contain messages that were consumed; it misses none that was skipped.

The record is a file of JSON lines: `skip` (who, when, group, topic), a `queue` for each queue, an `outcome` for each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from mqtrail.client import SERVER_SIDE_RESET, MessageQueue, QueueMove, SyncAdmin
from mqtrail.net import sync_folder
from mqtrail.wire import MessageExt, MQError

from ..masters import resetting


class SkipRefused(MQError):
    """The backlog cannot be skipped so that the record is right. Nothing was changed."""


class RecordUnreadable(MQError):
    """A file is not a record of skipped messages."""


@dataclass(frozen=True, slots=True)
class SkippedQueue:
    """What a skip leaves out in one queue: the messages [first_offset, end_offset).

    consumer_offset: the group's before; None: it has none, so where it would have started is unknown, and the range is
    all that the queue keeps. first_ms, last_ms: store times of the first and last message; None: unknown.
    """

    broker_name: str
    queue_id: int
    consumer_offset: int | None
    first_offset: int
    end_offset: int
    first_ms: int | None
    last_ms: int | None

    @property
    def count(self) -> int:
        """How many messages."""
        return self.end_offset - self.first_offset

    @property
    def place(self) -> str:
        """BROKER/QUEUE."""
        return f"{self.broker_name}/{self.queue_id}"

    def of(self, topic: str) -> MessageQueue:
        """Return the queue."""
        return MessageQueue(topic, self.broker_name, self.queue_id)


@dataclass(frozen=True, slots=True)
class SkipPlan:
    """What a skip would do. to_ms: skip what was stored before; None: all. queues: only those that move."""

    group_name: str
    topic: str
    to_ms: int | None
    queues: tuple[SkippedQueue, ...]
    kept_count: int

    @property
    def count(self) -> int:
        """How many messages are skipped."""
        return sum(one.count for one in self.queues)


@dataclass(frozen=True, slots=True)
class SkipOutcome:
    """The outcome of one queue. offset: of the group now; None: unknown. error: why it was not moved, or ''."""

    place: str
    offset: int | None
    error: str = ""


def plan_skip(admin: SyncAdmin, group: str, topic: str, to_ms: int | None) -> SkipPlan:
    """Return what a skip would do now. MQError, SkipRefused."""
    planned = admin.plan_reset(group, topic, -1 if to_ms is None else to_ms)
    for place, error in planned.failures.items():
        raise SkipRefused(f"{place} could not be asked, so nothing can be skipped: {error}")
    moves = [one for one in planned.values() if is_forward(one)]
    moves.sort(key=lambda one: (one.queue.broker_name, one.queue.queue_id))
    _check_members(admin, group, {one.queue.broker_name for one in moves})
    queues = tuple(_skipped(admin, one) for one in moves)
    return SkipPlan(group, topic, to_ms, queues, len(planned.found) - len(queues))


def is_forward(move: QueueMove) -> bool:
    """Return whether a reset leaves out messages that the queue still keeps."""
    first = move.min_offset if move.consumer_offset is None else max(move.consumer_offset, move.min_offset)
    return move.new_offset > first


def _check_members(admin: SyncAdmin, group: str, brokers: Iterable[str]) -> None:
    """Check that no member overwrites the offsets. SkipRefused: one is online at a broker that does not reset them."""
    others = sorted(set(brokers) - resetting(admin, brokers))
    if others:
        members = admin.group_connections(group)
        if members.failures or any(one.connection_set for one in members.values()):
            raise SkipRefused(
                f"found members of group {group!r} online, and broker {others[0]!r} without {SERVER_SIDE_RESET}=true "
                "(5.x): members would overwrite the offsets. Stop them, and skip again"
            )


def _skipped(admin: SyncAdmin, move: QueueMove) -> SkippedQueue:
    queue, consumed = move.queue, move.consumer_offset
    first = move.min_offset if consumed is None else max(consumed, move.min_offset)
    times = (_stored_ms(admin, queue, first), _stored_ms(admin, queue, move.new_offset - 1))
    return SkippedQueue(queue.broker_name, queue.queue_id, consumed, first, move.new_offset, *times)


def _stored_ms(admin: SyncAdmin, queue: MessageQueue, offset: int) -> int | None:
    try:
        return admin.message_at_offset(queue, offset).store_timestamp_ms
    except MQError:  # it expired meanwhile, or cannot be decoded: the offsets say what is skipped
        return None


# -- the record --------------------------------------------------------------------------------------------------------


def write_record(path: Path, plan: SkipPlan, who: str, at_ms: int) -> None:
    """Write the record, durable, before anything is changed. OSError: for example, the file exists."""
    head = {"event": "skip", "who": who, "at_ms": at_ms, "group": plan.group_name, "topic": plan.topic}
    lines = [head | {"to_ms": plan.to_ms, "count": plan.count}]
    lines += [{"event": "queue", "count": one.count, **asdict(one)} for one in plan.queues]
    _append(path, lines, os.O_EXCL)
    sync_folder(path.parent)


def add_outcomes(path: Path, outcomes: Iterable[SkipOutcome]) -> None:
    """Add what came of the queues. OSError."""
    _append(path, [{"event": "outcome", **asdict(one)} for one in outcomes], 0)


def _append(path: Path, lines: Iterable[Mapping[str, Any]], flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def read_record(path: Path) -> tuple[str, tuple[SkippedQueue, ...]]:
    """Return topic and queues of a record. RecordUnreadable, OSError."""
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        topic = next(str(line["topic"]) for line in lines if line["event"] == "skip")
        names = SkippedQueue.__dataclass_fields__
        found = [{name: line[name] for name in names} for line in lines if line["event"] == "queue"]
        return topic, msgspec.convert(found, tuple[SkippedQueue, ...])
    except (ValueError, LookupError, TypeError, StopIteration, RecursionError, msgspec.ValidationError) as error:
        raise RecordUnreadable(
            f"found {type(error).__name__} in {str(path)!r}, expected a record of `mqtrail backlog skip`: JSON lines"
        ) from None


# -- the change --------------------------------------------------------------------------------------------------------


def perform_skip(admin: SyncAdmin, plan: SkipPlan) -> list[SkipOutcome]:
    """Move each queue to the end of its record; none moves backward. Errors are in the outcomes."""
    return [_move(admin, plan, one) for one in plan.queues]


def _move(admin: SyncAdmin, plan: SkipPlan, one: SkippedQueue) -> SkipOutcome:
    queue = one.of(plan.topic)
    try:
        now = admin.consumer_offset(plan.group_name, queue)
        if now is not None and now >= one.end_offset:  # members were faster
            return SkipOutcome(one.place, now)
        admin.set_offset(plan.group_name, queue, one.end_offset)
    except (MQError, OSError) as error:
        return SkipOutcome(one.place, None, str(error) or type(error).__name__)
    return SkipOutcome(one.place, one.end_offset)


def skipped_messages(admin: SyncAdmin, topic: str, queues: Sequence[SkippedQueue]) -> Iterator[MessageExt]:
    """Yield the messages of a record that the queues still keep, queue by queue. Nothing is changed. MQError."""
    for one in queues:
        queue = one.of(topic)
        yield from admin.messages_of_queue(queue, one.first_offset, min(one.end_offset, admin.max_offset(queue)))
