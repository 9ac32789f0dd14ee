"""What a change would do, and its outcome."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from mqtrail.client import ClientClosed, Gathered, SendFailed
from mqtrail.net import NetError
from mqtrail.wire import MQError, RemotingError

from ..model import Scope

DELETED: Final = "-"
"""What a part that is deleted is afterwards."""


class InvalidChange(MQError):
    """A parameter of the change is wrong."""


class NothingToChange(MQError):
    """The change has no part: for example, there is no such dead letter."""


class ChangedMeanwhile(MQError):
    """What the change would do is not what its plan showed. Nothing was done."""


class Fate(StrEnum):
    """The outcome of one part of a change."""

    DONE = "DONE"
    FAILED = "FAILED"  # refused, or not sent: it was not done
    UNKNOWN = "UNKNOWN"  # sent without an answer: it may have been done


def fate_of(error: Exception) -> Fate:
    """Return whether a part that ended with this error may have been done."""
    if isinstance(error, NetError):
        return Fate.UNKNOWN if error.sent else Fate.FAILED
    if isinstance(error, SendFailed):
        return Fate.UNKNOWN if error.maybe_stored else Fate.FAILED
    is_unclear = isinstance(error, ClientClosed | RemotingError | OSError)
    return Fate.UNKNOWN if is_unclear else Fate.FAILED


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """One part of a change. target: the queue, message, client or broker. before: None: unknown, or there is none.

    counts: how many messages are affected and how, for example `skipped`; None: unknown.
    """

    target: str
    before: str | None
    after: str
    counts: Mapping[str, int | None] = field(default_factory=dict)


def raise_failure(gathered: Gathered[Any]) -> None:
    """Raise the first error of a request to one broker, if there is one."""
    for error in gathered.failures.values():
        raise error


def basis_of(action: str, parameters: Mapping[str, Any], steps: Sequence[ChangeStep], *, is_moving: bool) -> str:
    """Return a digest of the action, its parameters and its parts; unless is_moving, also of their values."""
    parts = [(one.target, None, None) if is_moving else (one.target, one.before, one.after) for one in steps]
    text = json.dumps([action, dict(parameters), parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Planned:
    """The parts of a change. omissions: what could not be asked. warnings: what else it does, as sentences."""

    steps: Sequence[ChangeStep]
    omissions: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """What a change would do now. requests: names and codes of what is sent. command: does the same.

    basis: a digest of it; pass it to `perform` to do only what was shown.
    """

    scope: Scope
    action: str
    parameters: Mapping[str, Any]
    requests: tuple[str, ...]
    steps: tuple[ChangeStep, ...]
    warnings: tuple[str, ...]
    command: tuple[str, ...]
    basis: str

    def total(self, name: str) -> int | None:
        """Return the sum of a count over all parts; None if one is unknown."""
        counts = [one.counts[name] for one in self.steps if name in one.counts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """The outcome of one part. detail: the answer or the error. place: of the message that was stored, or ''."""

    target: str
    fate: Fate
    detail: str = ""
    place: str = ""

    @classmethod
    def of_error(cls, target: str, error: Exception) -> ChangeOutcome:
        """Return the outcome of a part that ended with an error."""
        return cls(target, fate_of(error), str(error))


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The outcome of a change. change_id: its name in the audit log."""

    scope: Scope
    change_id: str
    action: str
    outcomes: tuple[ChangeOutcome, ...]

    @property
    def is_done(self) -> bool:
        """Whether every part was done."""
        return all(one.fate is Fate.DONE for one in self.outcomes)
