"""Requests that a member refuses: those of other groups, and those of members that it does not know."""

from mqtrail.wire import (
    LedgerHeartbeatReply,
    LedgerMetadata,
    LedgerMetadataReply,
    LedgerPush,
    LedgerPushReply,
    LedgerReply,
    LedgerRequest,
    LedgerTransfer,
    LedgerTransferReply,
    LedgerVote,
    LedgerVoteReply,
    PushType,
    VoteResult,
)

from ..core import TERM_STEP_MAX
from .state import MemberState, Status


class MemberRefusals(MemberState):
    """Which requests a member refuses, and how."""

    def _is_for_another(self, request: LedgerRequest) -> Status | None:
        """Return why a request is not for this member; None: it is."""
        config = self.config
        if request.group != config.group:
            self._problem(
                f"found a request for group {request.group} from {request.local_id}, expected group {config.group}: "
                "correct dLegerGroup or dLegerPeers there or here"
            )
            return Status.UNKNOWN_GROUP
        if request.remote_id != config.self_id:
            self._problem(
                f"found a request for member {request.remote_id} from {request.local_id}, expected one for "
                f"{config.self_id}: dLegerPeers must be the same at all members"
            )
            return Status.UNKNOWN_MEMBER
        if isinstance(request, LedgerMetadata | LedgerTransfer):
            return None  # of an operator too
        if request.leader_id == config.self_id:
            self._problem(
                f"found a request of member {request.leader_id}, which is this one's own id, expected another: two "
                "members have one dLegerSelfId"
            )
            return Status.UNEXPECTED_MEMBER
        if request.leader_id not in config.peers:
            self._problem(
                f"found a request of member {request.leader_id}, expected one of {', '.join(config.peers)}: "
                "dLegerPeers must be the same at all members"
            )
            return Status.UNKNOWN_MEMBER
        if request.term > self.term + TERM_STEP_MAX:
            self._problem(
                f"found term {request.term} in a request of member {request.leader_id}, expected at most "
                f"{self.term + TERM_STEP_MAX}: it is not a member of this group"
            )
            return Status.UNEXPECTED_ARGUMENT
        return None

    def _refusal(self, request: LedgerRequest, status: Status) -> LedgerReply:
        if isinstance(request, LedgerVote):
            is_unknown = status is not Status.UNEXPECTED_MEMBER
            result = VoteResult.REJECT_UNKNOWN_LEADER if is_unknown else VoteResult.REJECT_UNEXPECTED_LEADER
            return LedgerVoteReply(group=self.config.group, term=self.term, code=status, vote_result=result)
        if isinstance(request, LedgerPush):
            return self._push_reply(request, status)
        if isinstance(request, LedgerTransfer):
            return LedgerTransferReply(group=self.config.group, term=self.term, code=status)
        if isinstance(request, LedgerMetadata):
            return LedgerMetadataReply(group=self.config.group, code=status)
        return LedgerHeartbeatReply(group=self.config.group, term=self.term, code=status)

    def _push_reply(self, request: LedgerPush, status: Status) -> LedgerPushReply:
        log = self.log
        is_commit = request.type is PushType.COMMIT
        return LedgerPushReply(
            group=self.config.group,
            term=self.term if status is Status.EXPIRED_TERM else request.term,
            code=status,
            index=None if is_commit else request.first_index,
            count=0 if is_commit else len(request.entries),
            begin_index=log.begin_index,
            end_index=log.end_index,
        )
