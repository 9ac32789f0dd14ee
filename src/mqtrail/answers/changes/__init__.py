"""Changes to a cluster: what each would do, doing it, and the audit log. The only part of `answers` that writes to one.

A change is a value. `ClusterChanges.plan` says which requests it sends and what each part is before and after.
`ClusterChanges.perform` records it in the audit log, does it, and records what came of each part.
"""

from mqtrail.net import Actor, AuditAnswer, AuditedChange, AuditFailed, AuditLog, read_audit

from .edited_kinds import ResendEdited, is_editable
from .group_kinds import RETRIES_MAX, DeleteGroup, SetGroup
from .kinds import LETTERS_MAX, Change, ConsumeDirectly, ResendDeadLetters, ResendMessage, ResetOffsets
from .model import (
    ChangedMeanwhile,
    ChangeOutcome,
    ChangePlan,
    ChangeResult,
    ChangeStep,
    Fate,
    InvalidChange,
    NothingToChange,
)
from .offset_kinds import CloneOffsets, SetOffset
from .perform import ClusterChanges, plan_of
from .setting_kinds import SetBrokerSettings, is_secret_setting
from .topic_kinds import DeleteTopic, SetTopic
from .waiting_kinds import HALF_MESSAGES_MAX, SHARED_MAX, RecallMessage, ResumeChecks, SetConsumeMode

__all__ = [
    "HALF_MESSAGES_MAX",
    "LETTERS_MAX",
    "RETRIES_MAX",
    "SHARED_MAX",
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
    "CloneOffsets",
    "ClusterChanges",
    "ConsumeDirectly",
    "DeleteGroup",
    "DeleteTopic",
    "Fate",
    "InvalidChange",
    "NothingToChange",
    "RecallMessage",
    "ResendDeadLetters",
    "ResendEdited",
    "ResendMessage",
    "ResetOffsets",
    "ResumeChecks",
    "SetBrokerSettings",
    "SetConsumeMode",
    "SetGroup",
    "SetOffset",
    "SetTopic",
    "is_editable",
    "is_secret_setting",
    "plan_of",
    "read_audit",
]
