"""Held pulls: long polling.

A pull that may wait is held under its queue. It ends when a message arrives there that its tags may match, when its
hold time is over, or when its connection closes. Number and size of held pulls are bounded, in total and per
connection.

One message may wake thousands of pulls. They are checked a few at a time, queues in turn, so that other requests do not
wait: `arrived` records the message, `take_woken` returns the next pulls to serve.

Source: PullRequestHoldService, ManyPullRequest, apache/rocketmq broker/longpolling/. There a sweep every 5 s ends
pulls whose time is up; here each ends when it is.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from mqtrail.wire import Peer, PeerId, RemotingCommand, SystemBusy

from ..bounds import HELD_PEER_MIN, HELD_PEER_SHARE, HELD_SIZE_MAX
from ..filter import MessageFilter

CHECK_BUDGET: Final = 1_000  # cost of one call of take_woken: 1 for a check of a pull, more for SQL filters
WAKE_COST: Final = 20  # cost of serving a pull, in checks
DUE_A_SLICE: Final = 64  # requests that one call of take_due returns

QueueKey = tuple[str, int]  # topic, queue id
Arrived = Sequence[tuple[int, bytes]]  # tags code and properties text of each arrived message
Key = TypeVar("Key")


@dataclass(slots=True, eq=False)
class HeldPull:
    """A held pull. filter None: any message wakes it."""

    peer: Peer
    request: RemotingCommand
    queue: QueueKey
    queue_offset: int
    filter: MessageFilter | None
    deadline_ms: int
    live: bool = True


@dataclass(slots=True)
class _WakeCheck:
    """Progress of the check of a queue's pulls. again: end offset of messages that arrived during the check."""

    pulls: Iterator[HeldPull]
    next_offset: int
    arrived: Arrived | None
    again: int | None = None


class HeldRoom:
    """Number and size of held requests, in total and per connection."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._peer_count_max = min(count_max, max(HELD_PEER_MIN, count_max // HELD_PEER_SHARE))
        self._size = 0
        self.count = 0
        self._of: dict[PeerId, tuple[int, int]] = {}

    def full(self, peer: PeerId, request: RemotingCommand, wanted: MessageFilter | None) -> str | None:
        """Return why a request cannot be held; None: it can. wanted: its filter, which takes memory too."""
        if self.count >= self._count_max:
            return f"found {self.count} held requests, expected fewer than {self._count_max}"
        size = _size(request, wanted)
        peer_count, peer_size = self._of.get(peer, (0, 0))
        if peer_count >= self._peer_count_max:
            return f"found {peer_count} held requests of one connection, expected fewer than {self._peer_count_max}"
        if self._size + size > HELD_SIZE_MAX or peer_size + size > HELD_SIZE_MAX // HELD_PEER_SHARE:
            return (
                f"found held requests of {self._size} characters, {peer_size} of this connection, expected at most "
                f"{HELD_SIZE_MAX} and {HELD_SIZE_MAX // HELD_PEER_SHARE}"
            )
        return None

    def take(self, peer: PeerId, request: RemotingCommand, wanted: MessageFilter | None) -> None:
        """Add a request to the counts, and drop its body, which is not used while it is held."""
        request.body = b""
        self._add(peer, 1, _size(request, wanted))

    def give_back(self, peer: PeerId, request: RemotingCommand, wanted: MessageFilter | None) -> None:
        """Remove a request from the counts."""
        self._add(peer, -1, -_size(request, wanted))

    def _add(self, peer: PeerId, count: int, size: int) -> None:
        self.count += count
        self._size += size
        peer_count, peer_size = self._of.get(peer, (0, 0))
        if peer_count + count:
            self._of[peer] = peer_count + count, peer_size + size
        else:
            del self._of[peer]


class HeldPulls:
    """Held pulls by queue, by connection and by deadline."""

    def __init__(self, count_max: int) -> None:
        self._room = HeldRoom(count_max)
        self._checks: OrderedDict[QueueKey, _WakeCheck] = OrderedDict()
        self._by_queue: dict[QueueKey, dict[int, HeldPull]] = {}
        self._by_peer: dict[PeerId, dict[int, HeldPull]] = {}
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        self._number = 0

    def __len__(self) -> int:
        return self._room.count

    def __contains__(self, queue: QueueKey) -> bool:
        return queue in self._by_queue

    def hold(self, pull: HeldPull) -> None:
        """Hold the pull until it is taken. SystemBusy: too many held pulls."""
        if (why := self._room.full(pull.peer.id, pull.request, pull.filter)) is not None:
            raise SystemBusy(f"{why}: use fewer consumers, or raise held_pulls_max")
        self._room.take(pull.peer.id, pull.request, pull.filter)
        self._number += 1
        self._by_queue.setdefault(pull.queue, {})[id(pull)] = pull
        self._by_peer.setdefault(pull.peer.id, {})[id(pull)] = pull
        heapq.heappush(self._deadlines, (pull.deadline_ms, self._number, pull))
        if len(self._deadlines) > 2 * len(self) + 64:  # most entries belong to pulls that ended early
            self._deadlines = [entry for entry in self._deadlines if entry[2].live]
            heapq.heapify(self._deadlines)

    @property
    def is_waking(self) -> bool:
        """Whether take_woken has more work."""
        return bool(self._checks)

    def arrived(self, queue: QueueKey, next_offset: int, arrived: Arrived | None) -> bool:
        """Record that messages below next_offset arrived; return whether `take_woken` now checks the queue.

        arrived: the messages; None: unknown, so they may wake any pull. Messages that arrive during a check are not
        kept: the queue is then checked again.
        """
        check = self._checks.get(queue)
        if check is not None:
            check.again = next_offset
            return False
        pulls = self._by_queue.get(queue)
        if pulls is None:
            return False
        self._checks[queue] = _WakeCheck(iter(list(pulls.values())), next_offset, arrived)
        self._checks.move_to_end(queue, last=False)
        return True

    def take_woken(self) -> list[HeldPull]:
        """Remove and return some of the pulls that have messages."""
        taken: list[HeldPull] = []
        left = CHECK_BUDGET
        while self._checks and left > 0:
            queue = next(iter(self._checks))
            check = self._checks.pop(queue)
            for pull in check.pulls:
                left -= _cost(pull.filter, check.arrived)
                if pull.live and pull.queue_offset < check.next_offset and _is_for(pull.filter, check.arrived):
                    left -= WAKE_COST
                    self._drop(pull)
                    taken.append(pull)
                if left <= 0:
                    self._checks[queue] = check  # after the others
                    break
            else:
                if check.again is not None:
                    self.arrived(queue, check.again, None)
        return taken

    def take_due(self, now_ms: int) -> list[HeldPull]:
        """Remove and return pulls whose hold time is over; some of them if there are many."""
        taken: list[HeldPull] = []
        while (
            len(taken) < DUE_A_SLICE
            and self._deadlines
            and (self._deadlines[0][0] <= now_ms or not self._deadlines[0][2].live)
        ):
            pull = heapq.heappop(self._deadlines)[2]
            if pull.live:
                self._drop(pull)
                taken.append(pull)
        return taken

    def set_back(self, by_ms: int) -> None:
        """Continue without waiting, after the clock was set back."""
        self._deadlines = [(deadline_ms - by_ms, number, pull) for deadline_ms, number, pull in self._deadlines]

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and not self._deadlines[0][2].live:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def queues(self) -> list[QueueKey]:
        return list(self._by_queue)

    def disconnect(self, peer: PeerId) -> None:
        """Remove the pulls of a closed connection."""
        for pull in list(self._by_peer.get(peer, {}).values()):
            self._drop(pull)

    def _drop(self, pull: HeldPull) -> None:
        pull.live = False
        self._room.give_back(pull.peer.id, pull.request, pull.filter)
        _remove(self._by_queue, pull.queue, pull)
        _remove(self._by_peer, pull.peer.id, pull)


def _size(request: RemotingCommand, wanted: MessageFilter | None) -> int:
    size = sum(map(len, request.ext)) + sum(map(len, request.ext.values()))
    return size if wanted is None else size + wanted.size


def _cost(wanted: MessageFilter | None, arrived: Arrived | None) -> int:
    """Return the cost of applying a filter, in checks. CHECK_BUDGET checks cost as much as one pull may scan."""
    if wanted is None or arrived is None:
        return 1
    of_one = 1 if wanted.scan_max is None else max(1, CHECK_BUDGET // wanted.scan_max)
    return of_one * len(arrived)


def _is_for(wanted: MessageFilter | None, arrived: Arrived | None) -> bool:
    if wanted is None or arrived is None:
        return True
    return any(wanted.matches_code(tags_code) and wanted.matches(properties) for tags_code, properties in arrived)


def _remove(table: dict[Key, dict[int, HeldPull]], key: Key, pull: HeldPull) -> None:
    pulls = table[key]
    del pulls[id(pull)]
    if not pulls:
        del table[key]
