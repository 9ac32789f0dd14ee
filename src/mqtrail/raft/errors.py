"""The errors of consensus."""

from mqtrail.wire import MQError


class RaftError(MQError):
    """Base of the errors of this room."""


class NotLeader(RaftError):
    """This member does not lead; `leader` is the id of the member that does, None if it is unknown."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"found a member that does not lead, expected the leader ({leader or 'unknown'})")
        self.leader = leader


class RaftBusy(RaftError):
    """A bound of the log or of the waiting reads is reached: try again later."""


class RaftBadMessage(RaftError):
    """A message that no member of this group sends to this one now."""


class RaftDamaged(RaftError):
    """The journal is damaged below a position that was durable: acknowledged entries may be missing."""


class RaftIdentityError(RaftError):
    """The journal belongs to another member or to another group."""


class RaftOldDisk(RaftError):
    """A peer has seen newer records of this member than its journal contains."""
