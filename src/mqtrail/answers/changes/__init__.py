"""Changes to a cluster: what each would do, doing it, and the audit log. The only part of `answers` that writes to one.

A change is a value. `ClusterChanges.plan` says which requests it sends and what each part is before and after.
`ClusterChanges.perform` records it in the audit log, does it, and records what came of each part.
"""

from .audit import AuditAnswer, AuditedChange, AuditFailed, AuditLog, read_audit
from .kinds import LETTERS_MAX, Change, ConsumeDirectly, ResendDeadLetters, ResendMessage, ResetOffsets
from .model import (
    Actor,
    ChangedMeanwhile,
    ChangeOutcome,
    ChangePlan,
    ChangeResult,
    ChangeStep,
    Fate,
    InvalidChange,
    NothingToChange,
)
from .perform import ClusterChanges, plan_of

__all__ = [
    "LETTERS_MAX",
    "Actor",
    "AuditAnswer",
    "AuditFailed",
    "AuditLog",
    "AuditedChange",
    "Change",
    "ChangeOutcome",
    "ChangePlan",
    "ChangeResult",
    "ChangeStep",
    "ChangedMeanwhile",
    "ClusterChanges",
    "ConsumeDirectly",
    "Fate",
    "InvalidChange",
    "NothingToChange",
    "ResendDeadLetters",
    "ResendMessage",
    "ResetOffsets",
    "plan_of",
    "read_audit",
]
