"""Consensus of a small fixed group, without I/O: votes, log matching, commit, reads, snapshots.

`Raft` decides; `Journal` keeps term, vote and log on a disk that is handed in; `take` returns what to send and to
apply after it made the journal durable. messages has the wire form. Assumptions and promises: docs/design/raft.md.
"""

from .config import RaftConfig
from .core import Decided, Raft, Role
from .errors import NotLeader, RaftBadMessage, RaftBusy, RaftDamaged, RaftError, RaftIdentityError, RaftOldDisk
from .journal import Journal, RaftDisk, RaftFile
from .messages import LogEntry, MessageKind, RaftMessage, decode_message, encode_message
from .rules import check_members

__all__ = [
    "Decided",
    "Journal",
    "LogEntry",
    "MessageKind",
    "NotLeader",
    "Raft",
    "RaftBadMessage",
    "RaftBusy",
    "RaftConfig",
    "RaftDamaged",
    "RaftDisk",
    "RaftError",
    "RaftFile",
    "RaftIdentityError",
    "RaftMessage",
    "RaftOldDisk",
    "Role",
    "check_members",
    "decode_message",
    "encode_message",
]
