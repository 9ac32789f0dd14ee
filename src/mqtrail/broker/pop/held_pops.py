"""Held pops, which found no message, and held notification requests (200054).

A request is held under (topic, group, queue id); queue id -1 means any queue of the topic. A message wakes the request
that was held longest. If that request leaves messages in the queue, it wakes the next one. A message in the retry topic
of a group wakes requests for the topic itself.

Source: PopLongPollingService, apache/rocketmq 5.3.3 broker/longpolling/. There a sweep every 20 ms ends expired
requests; here each request ends at its deadline.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from mqtrail.wire import ALL_QUEUES, Peer, PeerId, RemotingCommand

from ..filter import MessageFilter
from ..tables import DUE_A_SLICE, Arrived, HeldPopCounts, HeldRoom

QUEUES_A_SLICE = 1_024  # queues read by the requests that one call of take_due returns
WaitKey = tuple[str, str, int]  # topic, group, queue id


@dataclass(slots=True, eq=False)
class HeldPop:
    """One held request. filter None: any message wakes it. queues: number of queues that it reads when served."""

    peer: Peer
    request: RemotingCommand
    key: WaitKey
    filter: MessageFilter | None
    deadline_ms: int
    queues: int = 1
    live: bool = True


class HeldPops:
    """Held requests of one kind. Bounds: count_max of all, key_count_max under one key."""

    def __init__(self, watched: HeldPopCounts, count_max: int, key_count_max: int) -> None:
        self._watched = watched
        self._room = HeldRoom(count_max)
        self._key_count_max = key_count_max
        self._by_topic: dict[str, dict[str, dict[int, dict[int, HeldPop]]]] = {}
        self._by_peer: dict[PeerId, dict[int, HeldPop]] = {}
        self._due: list[tuple[int, int, HeldPop]] = []
        self._number = 0

    def __len__(self) -> int:
        return self._room.count

    def hold(self, pop: HeldPop) -> bool:
        """Hold the request until it is taken; return whether there was room for it."""
        topic, group, queue_id = pop.key
        if self.count(pop.key) > self._key_count_max or self._room.full(pop.peer.id, pop.request, pop.filter):
            return False
        self._room.take(pop.peer.id, pop.request, pop.filter)
        self._by_topic.setdefault(topic, {}).setdefault(group, {}).setdefault(queue_id, {})[id(pop)] = pop
        self._by_peer.setdefault(pop.peer.id, {})[id(pop)] = pop
        self._watched.add(topic, group)
        self.check_again(pop, pop.deadline_ms)
        return True

    def check_again(self, pop: HeldPop, at_ms: int) -> None:
        """Let take_due return a held request at at_ms, before its deadline."""
        self._number += 1
        heapq.heappush(self._due, (at_ms, self._number, pop))
        if len(self._due) > 2 * len(self) + 64:  # most entries belong to requests that ended early
            self._due = [entry for entry in self._due if entry[2].live]
            heapq.heapify(self._due)

    def count(self, key: WaitKey) -> int:
        """Return the number of requests under a key."""
        topic, group, queue_id = key
        return len(self._by_topic.get(topic, {}).get(group, {}).get(queue_id, ()))

    def take(self, key: WaitKey, arrived: Arrived | None = None) -> HeldPop | None:
        """Remove and return the oldest request under key that accepts an arrived message; None: there is none."""
        topic, group, queue_id = key
        waiting = self._by_topic.get(topic, {}).get(group, {}).get(queue_id)
        if not waiting:
            return None
        first = next(iter(waiting.values()))
        if arrived is not None and first.filter is not None and not _is_for(first.filter, arrived):
            return None
        self._drop(first)
        return first

    def take_arrived(
        self, topic: str, queue_id: int | None, arrived: Arrived | None, group: str | None = None
    ) -> list[HeldPop]:
        """Remove and return the requests that messages in a queue of topic wake.

        Per group, they wake one request for any queue and one for this queue. queue_id None: the messages are in a
        retry topic, which every pop of the topic reads; they wake one request. group: only requests of this group.
        """
        groups = [group] if group is not None else list(self._by_topic.get(topic, ()))
        taken = []
        for name in groups:
            if queue_id is None:
                keys: Iterator[int] = iter(list(self._by_topic.get(topic, {}).get(name, ())))
                found = next(filter(None, (self.take((topic, name, key), arrived) for key in keys)), None)
                taken += [] if found is None else [found]
                continue
            for key in (ALL_QUEUES, queue_id):
                found = self.take((topic, name, key), arrived)
                if found is not None:
                    taken.append(found)
        return taken

    def take_due(self, now_ms: int) -> list[HeldPop]:
        """Remove and return requests at their deadline or at a time set by check_again; only some if many are due."""
        taken: list[HeldPop] = []
        queues = 0
        while self._due and (self._due[0][0] <= now_ms or not self._due[0][2].live):
            if len(taken) >= DUE_A_SLICE or queues >= QUEUES_A_SLICE:
                break
            pop = heapq.heappop(self._due)[2]
            if pop.live:
                self._drop(pop)
                taken.append(pop)
                queues += pop.queues
        return taken

    def next_due_ms(self) -> int | None:
        while self._due and not self._due[0][2].live:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def disconnect(self, peer: PeerId) -> None:
        """Remove the requests of a closed connection."""
        for pop in list(self._by_peer.get(peer, {}).values()):
            self._drop(pop)

    def _drop(self, pop: HeldPop) -> None:
        topic, group, queue_id = pop.key
        pop.live = False
        self._room.give_back(pop.peer.id, pop.request, pop.filter)
        self._watched.remove(topic, group)
        groups = self._by_topic[topic]
        queues = groups[group]
        del queues[queue_id][id(pop)]
        if not queues[queue_id]:
            del queues[queue_id]
            if not queues:
                del groups[group]
                if not groups:
                    del self._by_topic[topic]
        peers = self._by_peer[pop.peer.id]
        del peers[id(pop)]
        if not peers:
            del self._by_peer[pop.peer.id]


def _is_for(wanted: MessageFilter, arrived: Arrived) -> bool:
    return any(wanted.matches_code(code) and wanted.matches(properties) for code, properties in arrived)
