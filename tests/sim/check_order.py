"""Rules 9 and 10: ordered consumption follows the offsets, and one member at a time owns a queue."""

from collections import defaultdict
from collections.abc import Iterator

from mqtrail.wire import DLQ_PREFIX, RETRY_PREFIX

from .facts import Facts
from .history import Locked, Place, Read

_Queue = tuple[str, str, int]  # broker, topic, queue id


class OrderChecker:
    """Checks the groups that consume in order: those that have `worked`."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._history = facts.history

    def problems(self) -> Iterator[str]:
        if self._history.worked:
            yield from self._follows_offsets()
            yield from self._one_at_a_time()

    def _follows_offsets(self) -> Iterator[str]:
        """A message is first started after all earlier ones are finished.

        The history has the queue at the end; under ASYNC_FLUSH the group may skip a message that got the position of
        one that it had read and that a power cut lost.
        """
        began: dict[tuple[str, Place, int], float] = {}
        for one in self._history.worked:
            key = one.group, one.place, one.number
            began[key] = min(began.get(key, one.from_ms), one.from_ms)
        done: dict[tuple[str, Place, int], float] = {}
        for handled in self._history.handled:
            if handled.as_ != "asked back":
                key = handled.group, handled.place, handled.number
                done[key] = min(done.get(key, handled.at_ms), handled.at_ms)
        queues: dict[_Queue, list[Read]] = defaultdict(list)
        for read in self._facts.audit:
            if read.number is not None and not read.place.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                queues[read.place[:3]].append(read)
        for group in sorted({one.group for one in self._history.worked}):
            for reads in queues.values():
                last, done_ms = None, 0.0  # the end of the message before it
                for read in sorted(reads, key=lambda read: read.place.offset):
                    assert read.number is not None
                    key = group, read.place, read.number
                    began_ms = began.get(key)
                    if began_ms is not None and began_ms < done_ms:
                        yield f"{group} began with {read.number} at {read.place} before it was done with {last}"
                    this_ms = done.get(key, float("inf"))
                    if this_ms > done_ms and not self._facts.reused(group, [read]):
                        last, done_ms = read.number, this_ms

    def _one_at_a_time(self) -> Iterator[str]:
        """No two members process a queue at the same time, each within the time for which it trusts its own lock."""
        locks: dict[tuple[str, _Queue], list[Locked]] = defaultdict(list)
        for lock in self._history.locked:
            locks[lock.group, (lock.broker, lock.topic, lock.queue_id)].append(lock)
        at_work: dict[tuple[str, str, _Queue], list[tuple[float, float]]] = defaultdict(list)
        for one in self._history.worked:
            at_work[one.group, one.member, one.place[:3]].append((one.from_ms, one.to_ms))
        for (group, queue), held in locks.items():
            held.sort(key=lambda lock: lock.asked_ms)
            for place, first in enumerate(held):
                for second in held[place + 1 :]:
                    from_ms, to_ms = max(first.from_ms, second.from_ms), min(first.until_ms, second.until_ms)
                    if first.member == second.member or from_ms >= to_ms or self._lost(first, second):
                        continue
                    for began_ms, ended_ms in at_work[group, first.member, queue]:
                        for other_began_ms, other_ended_ms in at_work[group, second.member, queue]:
                            since_ms = max(from_ms, began_ms, other_began_ms)
                            if since_ms < min(to_ms, ended_ms, other_ended_ms):
                                yield (
                                    f"{first.member} and {second.member} were at work on {queue} at {since_ms:.0f} ms, "
                                    f"with locks of {first.from_ms:.0f} and {second.from_ms:.0f} ms"
                                )

    def _lost(self, first: Locked, second: Locked) -> bool:
        """Return whether the broker could give the second lock while the member with the first one trusts it.

        Locks are in memory, as in Apache's broker, and end with its process. A clock that is set forward ages a lock.
        """
        broker, asked_ms, given_ms = first.broker, first.asked_ms, second.from_ms
        if self._facts.ended(broker, asked_ms, given_ms):
            return True
        age_ms = given_ms - asked_ms + self._facts.set_forward(broker, asked_ms, given_ms)
        return age_ms > self._history.lock_ttl_ms
