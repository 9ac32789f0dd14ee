"""The steps of a hand-over of the leadership, at the leader and at the member that takes over: see `handover`.

Source: DLedgerServer.handleLeadershipTransfer, checkPreferredLeader, DLedgerLeaderElector.TakeLeadershipTask,
openmessaging/dledger 0.3.1.2.
"""

from collections.abc import Hashable
from typing import Final

from mqtrail.wire import LedgerStatus, LedgerTransfer, LedgerTransferReply

from .handover import HandingOver, TakingOver
from .refusals import MemberRefusals
from .state import Status


class MemberTransfers(MemberRefusals):
    """How the leadership moves on purpose."""

    def hand_over(self, target: str, now_ms: int, asker: Hashable | None = None) -> Status:
        """At the leader: let another member lead. SUCCESS: it is asked; otherwise why it is not."""
        if not self.is_leader:
            return Status.NOT_LEADER
        if target not in self.config.peers:
            return Status.UNKNOWN_MEMBER
        if self._handing is not None:
            return Status.LEADER_TRANSFERRING
        if self.log.end_index - self.match_index(target) >= self.config.transfer_behind_max:
            return Status.FALL_BEHIND_TOO_MUCH
        number = self._call(
            target,
            LedgerTransfer,
            transfer_id=self.config.self_id,
            transferee_id=target,
            take_leadership_ledger_index=self.log.end_index,
        )
        self._handing = HandingOver(target, number, asker, now_ms + self.config.transfer_ms)
        return Status.SUCCESS

    def _on_transfer(self, asker: Hashable, request: LedgerTransfer, now_ms: int) -> None:
        config = self.config
        if request.transfer_id == config.self_id:
            status = Status.INCONSISTENT_TERM
            if request.term == self.term:
                status = self.hand_over(request.transferee_id or "", now_ms, asker)
            if status is not Status.SUCCESS:
                self._answer(asker, self._refusal(request, status))
        elif request.transferee_id != config.self_id or self.is_leader:
            self._answer(asker, self._refusal(request, Status.UNEXPECTED_ARGUMENT))
        elif request.term != self.term or request.transfer_id != self.leader:
            self._answer(asker, self._refusal(request, Status.INCONSISTENT_LEADER))
        elif self._taking is not None:
            self._answer(asker, self._refusal(request, Status.LEADER_TRANSFERRING))
        elif self.is_full or now_ms - self._resigned_ms < config.resigned_ms:
            self._answer(asker, self._refusal(request, Status.TAKE_LEADERSHIP_FAILED))
        else:
            index = request.take_leadership_ledger_index
            self._taking = TakingOver(asker, self.term + 1, index, now_ms + config.transfer_wait_ms)
            self._tick_handover(now_ms)

    def _tick_handover(self, now_ms: int) -> None:
        handing, taking = self._handing, self._taking
        if handing is not None and now_ms >= handing.due_ms:
            self._finish_handing(Status.TAKE_LEADERSHIP_FAILED)
        if taking is None:
            return
        if not taking.has_begun and self.log.end_index >= taking.index:
            taking.has_begun = True
            taking.due_ms = now_ms + self.config.transfer_ms
            self._campaign(now_ms, pre_vote=False)
        elif now_ms >= taking.due_ms:
            self._finish_taking(Status.TAKE_LEADERSHIP_FAILED)

    def _on_transfer_reply(self, number: int, reply: LedgerTransferReply | None) -> None:
        if self._handing is not None and self._handing.call == number:
            known = reply is not None and reply.code in _STATUSES
            self._finish_handing(Status(reply.code) if reply is not None and known else Status.TAKE_LEADERSHIP_FAILED)

    def _finish_handing(self, status: Status) -> None:
        handing, self._handing = self._handing, None
        if handing is None:
            return
        self._calls.pop(handing.call, None)
        if handing.asker is not None:
            reply = LedgerTransferReply(group=self.config.group, term=self.term, code=status)
            self._answer(handing.asker, reply)

    def _finish_taking(self, status: Status) -> None:
        taking, self._taking = self._taking, None
        if taking is not None:
            self._answer(taking.asker, LedgerTransferReply(group=self.config.group, term=self.term, code=status))

    def _look_for_preferred(self, now_ms: int) -> None:
        """Hand over to a preferred member that follows, the one that lacks least."""
        config = self.config
        if not config.preferred or config.self_id in config.preferred or now_ms < self._preferred_ms:
            return
        self._preferred_ms = now_ms + config.preferred_ms
        follows = [
            peer
            for peer in config.preferred
            if self.match_index(peer) >= 0 and self._follows(peer) and peer not in self._full_peers
        ]
        if follows:
            self.hand_over(max(follows, key=self.match_index), now_ms)

    def _look_for_space(self, now_ms: int) -> None:
        """With a full disk, hand over to a member that has space, if a majority has space without this one.

        Otherwise this member leads on and refuses messages: another leader could not commit them either. A member
        whose log ends where this one's does could write so far.
        """
        if not self.is_full or self._handing is not None or now_ms < self._space_ms:
            return
        config, end = self.config, self.log.end_index
        self._space_ms = now_ms + config.full_ms
        able = [
            peer
            for peer in config.peers
            if self._follows(peer) and peer not in self._full_peers and self.match_index(peer) == end
        ]
        if len(able) < config.majority:
            self._problem(
                f"found the disk of this member full, and {len(able)} others with space that have its whole log, "
                f"expected {config.majority}: it leads on and refuses messages; free space here or there"
            )
            return
        self._space_turn += 1
        target = able[self._space_turn % len(able)]
        self._problem(f"found the disk of this member full, expected space: member {target} is asked to lead")
        self.hand_over(target, now_ms)


_STATUSES: Final = frozenset(int(status) for status in LedgerStatus)
