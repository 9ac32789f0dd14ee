"""DLedger's requests: what members of a group send to each other, as JSON bodies of remoting commands.

    50000 METADATA    who leads, and where the members are
    51001 VOTE        a candidate asks for a vote
    51002 HEART_BEAT  a leader is there
    51004 PUSH        a leader's entries and what it committed; asks to compare or to cut off
    51005 LEADERSHIP_TRANSFER   from an operator or a leader: hand over, take over
    51901 PRE_VOTE    only between members of mqtrail: would you vote for me?

A command has no header fields of its own; the code of the reply's command is always 200, that of its body counts.
Unknown members of a body are ignored by both sides: `mqtrail` says which members understand PRE_VOTE.

Source: the classes of openmessaging/dledger 0.3.1.2, protocol/; DLedgerRpcNettyService.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Final, Self, TypeAlias

import msgspec

from .body import Body, Long
from .errors import BodyError
from .ledger_entry import LedgerEntry

__all__ = [
    "LEDGER_BATCH_COUNT_MAX",
    "LedgerCode",
    "LedgerHeartbeat",
    "LedgerHeartbeatReply",
    "LedgerMetadata",
    "LedgerMetadataReply",
    "LedgerPush",
    "LedgerPushReply",
    "LedgerReply",
    "LedgerRequest",
    "LedgerStatus",
    "LedgerTransfer",
    "LedgerTransferReply",
    "LedgerVote",
    "LedgerVoteReply",
    "PushType",
    "VoteResult",
    "decode_ledger_reply",
    "decode_ledger_request",
]

LEDGER_BATCH_COUNT_MAX: Final = 10_000  # entries of one PUSH
_NODES_MAX: Final = 64 + 20 * LEDGER_BATCH_COUNT_MAX


class LedgerCode(IntEnum):
    """The codes of requests."""

    METADATA = 50000
    APPEND = 50001  # of a client that appends bytes of its own
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005
    PRE_VOTE = 51901


class LedgerStatus(IntEnum):
    """The codes of replies, in their bodies."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    UNEXPECTED_ARGUMENT = 411
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506


class VoteResult(StrEnum):
    """The answer to a VOTE."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class PushType(StrEnum):
    """What a PUSH asks for. COMMIT has no entry, COMPARE and TRUNCATE have one."""

    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


class LedgerMessage(Body, frozen=True, kw_only=True):
    """What all requests and replies have. remote_id: the member that a request is for; local_id: the sender.

    mqtrail: 0 in messages of Apache's members, which do not have it.
    """

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    leader_id: str | None = None
    term: Long = -1
    code: Long = LedgerStatus.SUCCESS
    mqtrail: Long = 0

    def members(self) -> dict[str, Any]:
        """Return the members that a Java peer would write, and `mqtrail` unless it is 0."""
        members = Body.members(self)
        if not self.mqtrail:
            del members["mqtrail"]
        return members


class LedgerVote(LedgerMessage, frozen=True, kw_only=True):
    """VOTE, and PRE_VOTE with is_pre_vote. leader_id: the candidate. The ledger's end: that of the candidate's log."""

    ledger_end_index: Long = -1
    ledger_end_term: Long = -1
    is_pre_vote: bool = False

    @property
    def request_code(self) -> LedgerCode:
        return LedgerCode.PRE_VOTE if self.is_pre_vote else LedgerCode.VOTE

    def members(self) -> dict[str, Any]:
        """The code of the request says whether it is a pre-vote."""
        members = LedgerMessage.members(self)
        del members["isPreVote"]
        return members


class LedgerVoteReply(LedgerMessage, frozen=True, kw_only=True):
    """The answer to VOTE and PRE_VOTE."""

    vote_result: VoteResult = VoteResult.UNKNOWN


class LedgerHeartbeat(LedgerMessage, frozen=True, kw_only=True):
    """HEART_BEAT."""

    request_code: ClassVar[LedgerCode] = LedgerCode.HEART_BEAT


class LedgerHeartbeatReply(LedgerMessage, frozen=True, kw_only=True):
    """The answer to HEART_BEAT."""


class LedgerPush(LedgerMessage, frozen=True, kw_only=True):
    """PUSH. commit_index: what the leader committed. is_batch: the entries are written as a list."""

    request_code: ClassVar[LedgerCode] = LedgerCode.PUSH
    nodes_max: ClassVar[int] = _NODES_MAX
    commit_index: Long = -1
    type: PushType = PushType.APPEND
    entries: tuple[LedgerEntry, ...] = ()
    is_batch: bool = False

    @property
    def first_index(self) -> int:
        """Index of the first entry; -1: there is none."""
        return self.entries[0].index if self.entries else -1

    @property
    def last_index(self) -> int:
        """Index of the last entry; -1: there is none."""
        return self.entries[-1].index if self.entries else -1

    def members(self) -> dict[str, Any]:
        """Return also what Java derives from the entries and writes with them."""
        entries = [_entry_members(entry) for entry in self.entries]
        members: dict[str, Any] = {
            "group": self.group,
            "remoteId": self.remote_id,
            "localId": self.local_id,
            "leaderId": self.leader_id,
            "term": self.term,
            "code": self.code,
            "commitIndex": self.commit_index,
            "type": self.type.value,
            "batch": self.is_batch,
            "batchEntry": entries if self.is_batch else [],
            "count": len(entries),
            "entry": None if self.is_batch or not entries else entries[0],
            "firstEntryIndex": self.first_index,
            "lastEntryIndex": self.last_index,
            "totalSize": sum(entry.size for entry in self.entries) if self.is_batch else 0,
            "mqtrail": self.mqtrail or None,
        }
        return {name: value for name, value in members.items() if value is not None}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """Return the request of a JSON object. BodyError: as Body.read; or its entries do not follow each other."""
        listed, single = value.get("batchEntry") or [], value.get("entry")
        if not isinstance(listed, list) or len(listed) > LEDGER_BATCH_COUNT_MAX:
            raise BodyError(f"found no list of at most {LEDGER_BATCH_COUNT_MAX} entries in a PUSH")
        found = [_EntryBody.of(one) for one in listed] or ([] if single is None else [_EntryBody.of(single)])
        for place, entry in enumerate(found):
            if entry.index != found[0].index + place:
                raise BodyError(f"found entry {entry.index} in a PUSH, expected entry {found[0].index + place}")
        plain = {name: one for name, one in value.items() if name not in ("batchEntry", "entry", "entries", "isBatch")}
        request = super().read(plain)
        return msgspec.structs.replace(request, entries=tuple(found), is_batch=bool(listed))


class LedgerPushReply(LedgerMessage, frozen=True, kw_only=True):
    """The answer to PUSH. index, count: the entries that it answers. begin_index, end_index: the member's log."""

    index: Long | None = None
    begin_index: Long = 0
    end_index: Long = 0
    count: Long = 0


class LedgerTransfer(LedgerMessage, frozen=True, kw_only=True):
    """LEADERSHIP_TRANSFER. To the leader: transfer_id hands over to transferee_id. From it to that member: take over
    when your log has take_leadership_ledger_index."""

    request_code: ClassVar[LedgerCode] = LedgerCode.LEADERSHIP_TRANSFER
    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: Long = 0


class LedgerTransferReply(LedgerMessage, frozen=True, kw_only=True):
    """The answer to LEADERSHIP_TRANSFER."""


class LedgerMetadata(LedgerMessage, frozen=True, kw_only=True):
    """METADATA."""

    request_code: ClassVar[LedgerCode] = LedgerCode.METADATA


class LedgerMetadataReply(LedgerMessage, frozen=True, kw_only=True):
    """The answer to METADATA. peers: id -> host:port.

    end_position, committed_position: where the log of the member ends, and up to where it knows it to be committed, in
    bytes; None: it is one of Apache's, which tells neither these nor its term. instance: of the process, by chance;
    None: as before.
    """

    peers: dict[str, str] | None = None
    end_position: Long | None = None
    committed_position: Long | None = None
    instance: str | None = None

    def members(self) -> dict[str, Any]:
        """Return the members that a Java peer would write, and positions and instance where they are known."""
        members = super().members()
        for name in ("endPosition", "committedPosition", "instance"):
            if members[name] is None:
                del members[name]
        return members


LedgerRequest: TypeAlias = LedgerVote | LedgerHeartbeat | LedgerPush | LedgerTransfer | LedgerMetadata
LedgerReply: TypeAlias = (
    LedgerVoteReply | LedgerHeartbeatReply | LedgerPushReply | LedgerTransferReply | LedgerMetadataReply
)

_REQUESTS: Final[dict[int, type[LedgerRequest]]] = {
    LedgerCode.METADATA: LedgerMetadata,
    LedgerCode.VOTE: LedgerVote,
    LedgerCode.PRE_VOTE: LedgerVote,
    LedgerCode.HEART_BEAT: LedgerHeartbeat,
    LedgerCode.PUSH: LedgerPush,
    LedgerCode.LEADERSHIP_TRANSFER: LedgerTransfer,
}
_REPLIES: Final[dict[int, type[LedgerReply]]] = {
    LedgerCode.METADATA: LedgerMetadataReply,
    LedgerCode.VOTE: LedgerVoteReply,
    LedgerCode.PRE_VOTE: LedgerVoteReply,
    LedgerCode.HEART_BEAT: LedgerHeartbeatReply,
    LedgerCode.PUSH: LedgerPushReply,
    LedgerCode.LEADERSHIP_TRANSFER: LedgerTransferReply,
}


def decode_ledger_request(code: int, body: bytes) -> LedgerRequest | None:
    """Return the request of a command; None: a code that no member serves. BodyError: not the JSON of one."""
    kind = _REQUESTS.get(code)
    if kind is None:
        return None
    request = kind.decode(body)
    if isinstance(request, LedgerVote):
        return msgspec.structs.replace(request, is_pre_vote=code == LedgerCode.PRE_VOTE)
    return request


def decode_ledger_reply(request_code: int, body: bytes) -> LedgerReply:
    """Return the reply to a request. BodyError: not the JSON of one."""
    return _REPLIES[request_code].decode(body)


class _EntryBody(Body, frozen=True, kw_only=True):
    """An entry as JSON; its body as Base64."""

    magic: Long = 0
    index: Long = 0
    term: Long = 0
    pos: Long = 0
    channel: Long = 0
    chain_crc: Long = 0
    body_crc: Long = 0
    body: bytes = b""

    @classmethod
    def of(cls, value: Any) -> LedgerEntry:
        """Return the entry of a JSON value. BodyError: the value is not an entry."""
        if not isinstance(value, Mapping):
            raise BodyError(f"found a {type(value).__name__} as an entry of a PUSH, expected an object")
        found = cls.read(value)
        return LedgerEntry(
            found.index,
            found.term,
            found.pos,
            found.body,
            found.magic,
            found.channel,
            found.chain_crc,
            found.body_crc,
        )


def _entry_members(entry: LedgerEntry) -> dict[str, Any]:
    return {
        "body": entry.body,
        "bodyCrc": entry.body_crc,
        "chainCrc": entry.chain_crc,
        "channel": entry.channel,
        "index": entry.index,
        "magic": entry.magic,
        "pos": entry.position,
        "size": entry.size,
        "term": entry.term,
    }
