"""Entries of the log: pushed by the leader, answered by the others once they have them, committed by a majority.

Source: DLedgerEntryPusher, openmessaging/dledger 0.3.1.2.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence

from mqtrail.wire import LedgerEntry, LedgerPush, LedgerPushReply, PushType

from ..errors import NotLeader, RaftBusy
from ..rules import commits_by_count, reached_by
from .heartbeats import MemberHeartbeats
from .state import Status


class MemberEntries(MemberHeartbeats):
    """What the log of a member gets, and what is committed."""

    def check_room(self, count: int) -> None:
        """Check that so many entries of this term may be appended to the log now; `take` sends them.

        NotLeader; RaftBusy: too many wait for a majority, or another member takes over.
        """
        if not self.is_leader:
            raise NotLeader(self.leader)
        if self._handing is not None:
            raise RaftBusy(f"found member {self._handing.target} about to lead, expected no hand-over: try again")
        waiting = self.log.end_index - self.log.committed_index
        if waiting and waiting + count > self.config.pending_count_max:
            raise RaftBusy(
                f"found {waiting} entries that wait for a majority, expected fewer than "
                f"{self.config.pending_count_max}: try again when more members answer"
            )

    def _on_push(self, asker: Hashable, request: LedgerPush, now_ms: int) -> None:
        status = self._obey(request, now_ms)
        if status is Status.SUCCESS:
            self._hear(now_ms)
            pushed = self.following.push(request)
            if pushed is None:
                return  # it is served again, once the log is cut off
            status = pushed
        reply = self._push_reply(request, status)
        if status is Status.SUCCESS and request.type is not PushType.COMMIT:  # the leader counts COMPARE too
            self._held = deque(one for one in self._held if one[0] <= self.log.end_index)
            self._held.append((request.last_index, asker, reply))
        else:
            self._answer(asker, reply)
        if self._taking is not None:
            self._tick_handover(now_ms)

    def _release_answers(self) -> None:
        """Answer for the entries that this member has by now."""
        has = self.has_entries_index
        while self._held and self._held[0][0] <= has:
            _, asker, reply = self._held.popleft()
            self._answer(asker, reply)

    def _pusher(self, peer: str) -> Callable[[PushType, Sequence[LedgerEntry]], int]:
        def send(kind: PushType, entries: Sequence[LedgerEntry]) -> int:
            return self._call(
                peer,
                LedgerPush,
                type=kind,
                commit_index=self.log.committed_index,
                entries=tuple(entries),
                is_batch=len(entries) > 1,
            )

        return send

    def _on_push_reply(self, peer: str, number: int, reply: LedgerPushReply | None, now_ms: int) -> None:
        if reply is not None and reply.code == Status.EXPIRED_TERM and reply.term > self.term:
            self._depose(reply.term, now_ms)
            return
        pushing = self._pushing.get(peer)
        if pushing is not None:
            pushing.answered(number, reply, now_ms)
            if reply is not None and reply.code == Status.SUCCESS:
                self._answers_ms[peer] = now_ms

    def _advance_commit(self) -> None:
        """Commit the newest entry of this term that a majority has, and with it all before."""
        log = self.log
        reached = [self.has_entries_index, *(pushing.match_index for pushing in self._pushing.values())]
        index = reached_by(reached, self.config.majority)
        if index > log.committed_index and self._counts(index):
            log.committed_index = index

    def _counts(self, index: int) -> bool:
        return commits_by_count(self.log.term_at(index), self.term)
