"""What a member of a DLedger group wants done: requests to send, and answers to requests of others."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from mqtrail.wire import LedgerReply, LedgerRequest


@dataclass(frozen=True, slots=True)
class LedgerCall:
    """Send a request to a member, and return its reply by `LedgerMember.answered` with the number."""

    number: int
    target: str
    request: LedgerRequest


@dataclass(frozen=True, slots=True)
class LedgerAnswer:
    """Send a reply to whoever asked: what `LedgerMember.serve` got as asker."""

    asker: Hashable
    reply: LedgerReply


@dataclass(slots=True)
class LedgerDecided:
    """What one step decided. problems: what an operator should know, each with found, expected and remedy.

    truncated: files with entries that were cut off.
    """

    calls: list[LedgerCall] = field(default_factory=list)
    answers: list[LedgerAnswer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
