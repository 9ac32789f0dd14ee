"""Plans of operators' changes, their outcomes, and the parts that they need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, ClassVar, Protocol

import msgspec

from mqtrail.wire import RequestCode

from ..pmq import PmqInterface
from ..problems import Problem
from ..publishing import MessageSender
from .broker import OperatorBroker


class OperatedStep(msgspec.Struct):
    """One part of a change. before: None: there is none, or it is unknown. counts: messages that it affects, and how.

    A count is None if it is unknown.
    """

    target: str
    before: str | None
    after: str
    counts: dict[str, int | None] = {}


class OperatedFate(StrEnum):
    """The outcome of one part of a change."""

    DONE = "DONE"
    FAILED = "FAILED"  # refused: it was not done
    UNKNOWN = "UNKNOWN"  # sent without an answer: it may have been done
    WAITS = "WAITS"  # not yet: the same change does it later


class OperatedOutcome(msgspec.Struct):
    """The outcome of one part. detail: what it is now, or why it was not done."""

    target: str
    fate: OperatedFate
    detail: str = ""


class ChangeReport(msgspec.Struct):
    """A change: what it would do (steps, warnings) and, unless it was a dry run, the outcomes (outcomes)."""

    action: str
    is_dry_run: bool
    steps: list[OperatedStep]
    warnings: list[str] = []
    outcomes: list[OperatedOutcome] = []
    change_id: str = ""


@dataclass(frozen=True, slots=True)
class OperatedPlan:
    """The parts of a change. warnings: what else it does, as sentences."""

    steps: Sequence[OperatedStep]
    warnings: Sequence[str] = field(default_factory=tuple)


class QueueKeeper(Protocol):
    """Which queues have tables, on which databases."""

    @property
    def node_names(self) -> list[str]:
        """The names of all databases."""
        ...

    def node_of(self, topic: str, queue: int) -> str | None:
        """Return the name of the database of a queue; None: there is no such queue."""
        ...

    def tables_of(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the queues with a table: where each begins and ends."""
        ...

    def end_of(self, topic: str, queue: int) -> int:
        """Return where a queue ends."""
        ...

    def is_closed(self, topic: str, queue: int) -> bool:
        """Return whether `close_queue` closed a queue."""
        ...

    def close_queue(self, topic: str, queue: int, why: str | None) -> None:
        """Let publishers not use a queue; why None: let them."""
        ...

    async def release_table(self, topic: str, queue: int, end: int, to: str | None) -> bool:
        """Take its table from a queue that ends there; it goes on without, on the database `to` if that is named.

        Return whether that is committed; False: not yet. MQError: it was not done.
        """
        ...

    async def nodes(self) -> dict[str, tuple[str, str]]:
        """Return kind and state of each database by name; none: there is only the home. MQError."""
        ...

    async def set_node(self, name: str, kind: str | None, state: str | None, *, force: bool) -> tuple[str, str]:
        """Change kind or state of a database, and return both. MQError: it was not done."""
        ...


Facts = Callable[[bool, bool], Any]
"""Returns the facts of the database, a dataclass. Its arguments: with the tables of queues, and with their sizes."""


@dataclass(frozen=True, slots=True)
class DoorDatabase:
    """The databases of a broker on tables. facts: asks the home. keeper: says where queues are, and changes it."""

    facts: Facts
    keeper: QueueKeeper


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """What changes work with, for one client. keeper: None: the broker keeps a CommitLog."""

    broker: OperatorBroker
    pmq: PmqInterface
    sender: MessageSender
    keeper: QueueKeeper | None = None


class OperatorChange(Protocol):
    """A change: a shape of a request. Both raise MQError, TimeoutError, and Problem if it must not be done."""

    requests: ClassVar[tuple[RequestCode, ...]]

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """Return the parts. Nothing is changed."""
        ...

    def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Do it; yield what came of each part."""
        ...


class Audit(Protocol):
    """Where changes are recorded: before the first request, after each part, at the end. Its methods may block.

    Raises MQError: it cannot be written, or read.
    """

    def append(self, change_id: str, event: str, fields: Mapping[str, Any], *, is_synced: bool = True) -> None:
        """Add a line."""
        ...

    def last(self, count_max: int) -> Any:
        """Return the last changes, a dataclass."""
        ...


def refusal(detail: str) -> Problem:
    """Return the problem of a change that must not be done now."""
    return Problem(HTTPStatus.CONFLICT, detail)


def wrong(detail: str) -> Problem:
    """Return the problem of a change with a wrong parameter."""
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)


def outcome_of_error(target: str, error: Exception) -> OperatedOutcome:
    """Return what came of a part that ended with an error."""
    if isinstance(error, TimeoutError):
        return OperatedOutcome(target, OperatedFate.UNKNOWN, "no answer of the broker in time")
    return OperatedOutcome(target, OperatedFate.FAILED, str(error))
