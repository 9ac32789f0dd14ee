"""Pulls that found nothing and wait: long polling.

A pull that may wait is held under its queue. It ends when a message arrives there that its tags may match, when its
time is up, or when its connection closes. The number of held pulls is bounded.

Source: PullRequestHoldService, ManyPullRequest, apache/rocketmq broker/longpolling/. There a sweep every 5 s ends
pulls whose time is up; here each ends when it is.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mqtrail.wire import Peer, PeerId, RemotingCommand, SystemBusy

from .filter import MessageFilter

QueueKey = tuple[str, int]  # topic, queue id
Arrived = Sequence[tuple[int, bytes]]  # of each message that arrived: its tags code and properties text
Key = TypeVar("Key")


@dataclass(slots=True, eq=False)
class HeldPull:
    """One waiting pull. filter None: any message wakes it."""

    peer: Peer
    request: RemotingCommand
    queue: QueueKey
    queue_offset: int
    filter: MessageFilter | None
    deadline_ms: int
    live: bool = True


class HeldPulls:
    """The waiting pulls, by queue, by connection and by deadline."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._by_queue: dict[QueueKey, dict[int, HeldPull]] = {}
        self._by_peer: dict[PeerId, dict[int, HeldPull]] = {}
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        self._number = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, queue: QueueKey) -> bool:
        return queue in self._by_queue

    def hold(self, pull: HeldPull) -> None:
        """Keep the pull until it is taken. SystemBusy: as many as may wait do."""
        if self._count >= self._count_max:
            raise SystemBusy(
                f"found {self._count} pulls held, expected fewer than {self._count_max}: "
                "use fewer consumers, or raise held_pulls_max"
            )
        self._number += 1
        self._count += 1
        self._by_queue.setdefault(pull.queue, {})[id(pull)] = pull
        self._by_peer.setdefault(pull.peer.id, {})[id(pull)] = pull
        heapq.heappush(self._deadlines, (pull.deadline_ms, self._number, pull))
        if len(self._deadlines) > 2 * self._count + 64:  # most entries are of pulls that ended early
            self._deadlines = [entry for entry in self._deadlines if entry[2].live]
            heapq.heapify(self._deadlines)

    def take_arrived(self, queue: QueueKey, next_offset: int, arrived: Arrived | None) -> list[HeldPull]:
        """Return, and hold no longer, the queue's pulls that a message below next_offset is for.

        arrived: the messages; None when they are not known: they may be for anyone.
        """
        pulls = self._by_queue.get(queue)
        if pulls is None:
            return []
        taken = [
            pull
            for pull in pulls.values()
            if pull.queue_offset < next_offset
            and (arrived is None or pull.filter is None or _is_for(pull.filter, arrived))
        ]
        for pull in taken:
            self._drop(pull)
        return taken

    def take_due(self, now_ms: int) -> list[HeldPull]:
        """Return, and hold no longer, the pulls whose time is up."""
        taken = []
        while self._deadlines and (self._deadlines[0][0] <= now_ms or not self._deadlines[0][2].live):
            pull = heapq.heappop(self._deadlines)[2]
            if pull.live:
                self._drop(pull)
                taken.append(pull)
        return taken

    def set_back(self, by_ms: int) -> None:
        """Wait no longer for the clock's having been set back."""
        self._deadlines = [(deadline_ms - by_ms, number, pull) for deadline_ms, number, pull in self._deadlines]

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and not self._deadlines[0][2].live:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def queues(self) -> list[QueueKey]:
        return list(self._by_queue)

    def disconnect(self, peer: PeerId) -> None:
        """Forget a closed connection's pulls: nobody waits for their answers."""
        for pull in list(self._by_peer.get(peer, {}).values()):
            self._drop(pull)

    def _drop(self, pull: HeldPull) -> None:
        pull.live = False
        self._count -= 1
        _remove(self._by_queue, pull.queue, pull)
        _remove(self._by_peer, pull.peer.id, pull)


def _is_for(wanted: MessageFilter, arrived: Arrived) -> bool:
    return any(wanted.matches_code(tags_code) and wanted.matches(properties) for tags_code, properties in arrived)


def _remove(table: dict[Key, dict[int, HeldPull]], key: Key, pull: HeldPull) -> None:
    pulls = table[key]
    del pulls[id(pull)]
    if not pulls:
        del table[key]
