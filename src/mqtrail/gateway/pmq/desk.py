"""Who consumes what: consumers, members of groups, queues and their owners, versions. No I/O; time is an argument.

Nothing of it is stored: after a restart all ids and versions begin above those of the last run, so that a request with
an old id is refused and never reaches another queue, and clients register again. Consumer offsets are the broker's.

A group changes in two steps, because a member must let go of its queues before another one gets them: a change of the
members raises the versions, with the queues as before; when each old member has handed its queues over, or after
HAND_OVER_MS, the queues are assigned again and the versions are raised again.

Source: ConsumerGroupRbService, ConsumerServiceImpl, QueueOffsetServiceImpl of pmq.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from .waking import ClientAddress

HAND_OVER_MS: Final = 5_000
EXPIRE_MS: Final = 60_000  # a consumer without a heartbeat for so long is removed
CONSUMERS_MAX: Final = 10_000
GROUPS_MAX: Final = 10_000
CONSUMER_GROUPS_MAX: Final = 1_000  # of one consumer
GROUP_QUEUES_MAX: Final = 8_192  # of one group
QUEUES_MAX: Final = 300_000  # of all groups
NUMBERS_MAX: Final = 1_000_000  # queues that have an id
QUEUES_A_TICK: Final = 10_000  # looked at for silent consumers, and dealt, in one tick
IDS_OF_A_RUN: Final = 1_000_000  # per second since the last start


class QueueName(NamedTuple):
    """A queue of the broker."""

    topic: str
    queue_id: int


@dataclass(slots=True)
class GroupQueue:
    """A queue as a group consumes it. owner: consumer id, 0: none. is_failure: of G_T_fail.

    version: fences commits; it is raised when the owner changes or hands over, and when an operator moves the offset.
    committed: the offset that the door last saw or committed; None: it saw none.
    """

    offset_id: int
    queue: QueueName
    origin_topic: str
    is_failure: bool
    owner: int = 0
    version: int = 0
    committed: int | None = None


@dataclass(slots=True)
class Group:
    """A group. rebalance_version, meta_version: as clients see them. due_ms: when queues are dealt; 0: they are.

    counts: queues of each topic, without those of failure topics.
    """

    name: str
    rebalance_version: int
    meta_version: int = 0
    members: dict[int, None] = field(default_factory=dict)
    topics: dict[str, None] = field(default_factory=dict)
    queues: dict[QueueName, GroupQueue] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    handing_over: set[int] = field(default_factory=set)
    due_ms: int = 0

    @property
    def version(self) -> int:
        return self.rebalance_version + self.meta_version


@dataclass(slots=True)
class PmqConsumer:
    """A consumer: one client process. address: where it takes wake-ups."""

    name: str
    seen_ms: int
    address: ClientAddress | None = None
    groups: dict[str, None] = field(default_factory=dict)


class Full(Exception):
    """There are too many consumers, groups or queues."""


class PmqDesk:
    """All consumers and groups. now_ms: the time of the start."""

    def __init__(self, now_ms: int) -> None:
        self._base = now_ms // 1_000 * IDS_OF_A_RUN
        self._numbers = count(self._base + 1)
        self._consumers: dict[int, PmqConsumer] = {}
        self._ids: dict[str, int] = {}
        self._queue_numbers: dict[QueueName, int] = {}
        self._queue_names: dict[int, QueueName] = {}
        self._topic_numbers: dict[str, int] = {}
        self._offsets: dict[int, tuple[Group, GroupQueue]] = {}
        self._groups_of: dict[QueueName, list[Group]] = {}
        self.groups: dict[str, Group] = {}
        self.is_behind = False
        """Whether the last tick left work for the next one."""

    # Names and numbers.

    def number_of(self, queue: QueueName) -> int:
        """Return pmq's id of a queue. Full."""
        number = self._queue_numbers.get(queue)
        if number is None:
            if len(self._queue_numbers) >= NUMBERS_MAX:
                raise Full(f"found {NUMBERS_MAX} queues with ids, expected fewer: restart the door to forget them")
            number = self._queue_numbers[queue] = next(self._numbers)
            self._queue_names[number] = queue
        return number

    def queue_of(self, number: int) -> QueueName | None:
        """Return the queue with this id of pmq; None: there is none."""
        return self._queue_names.get(number)

    def topic_number_of(self, topic: str) -> int:
        """Return pmq's id of a topic."""
        if topic not in self._topic_numbers:
            self._topic_numbers[topic] = next(self._numbers)
        return self._topic_numbers[topic]

    # Consumers.

    def register(self, name: str, now_ms: int, address: ClientAddress | None = None) -> int:
        """Return the id of a consumer, the same for the same name. address: where it takes wake-ups. Full."""
        known = self._ids.get(name)
        if known is None:
            if len(self._consumers) >= CONSUMERS_MAX:
                raise Full(f"found {CONSUMERS_MAX} consumers, expected fewer: deregister some")
            known = self._ids[name] = next(self._numbers)
            self._consumers[known] = PmqConsumer(name, now_ms)
        self._consumers[known].seen_ms = now_ms
        self._consumers[known].address = address
        return known

    def knows(self, consumer_id: int) -> bool:
        return consumer_id in self._consumers

    def beat(self, consumer_id: int, now_ms: int) -> bool:
        """Note a heartbeat; return whether the consumer is known."""
        consumer = self._consumers.get(consumer_id)
        if consumer is not None:
            consumer.seen_ms = max(consumer.seen_ms, now_ms)
        return consumer is not None

    def deregister(self, consumer_id: int, now_ms: int) -> None:
        """Remove a consumer; its queues are free at once."""
        consumer = self._consumers.pop(consumer_id, None)
        if consumer is None:
            return
        del self._ids[consumer.name]
        for name in consumer.groups:
            group = self.groups[name]
            del group.members[consumer_id]
            group.handing_over.discard(consumer_id)
            for queue in group.queues.values():
                if queue.owner == consumer_id:
                    queue.owner = 0
                    queue.version += 1
            self._change(group, now_ms)

    # Groups.

    def check_room(self, name: str, queue_count: int) -> None:
        """Check that a group may have so many queues, if none of them is there yet. Full."""
        if queue_count > GROUP_QUEUES_MAX:
            raise Full(
                f"found {queue_count} queues of group {name!r}, expected at most {GROUP_QUEUES_MAX}: subscribe to "
                "fewer topics, or use more groups"
            )

    def join(
        self, name: str, consumer_id: int, topics: Mapping[str, Iterable[tuple[QueueName, bool]]], now_ms: int
    ) -> None:
        """Add a member. topics: topic -> its queues and those of its failure topic (True). Full."""
        group = self.groups.get(name)
        if group is None and len(self.groups) >= GROUPS_MAX:
            raise Full(f"found {GROUPS_MAX} groups, expected fewer")
        known = {} if group is None else group.queues
        fresh = {queue: (topic, failure) for topic, queues in topics.items() for queue, failure in queues}
        fresh = {queue: about for queue, about in fresh.items() if queue not in known}
        self.check_room(name, len(known) + len(fresh))
        if len(self._offsets) + len(fresh) > QUEUES_MAX:
            raise Full(f"found {len(self._offsets)} queues of all groups, expected at most {QUEUES_MAX}")
        consumer = self._consumers[consumer_id]
        if name not in consumer.groups and len(consumer.groups) >= CONSUMER_GROUPS_MAX:
            raise Full(f"found {CONSUMER_GROUPS_MAX} groups of one consumer, expected fewer")
        for queue in fresh:
            self.number_of(queue)
        if group is None:
            group = self.groups[name] = Group(name, self._base + 1)
        group.topics |= dict.fromkeys(topics)
        self._add(group, fresh)
        group.members[consumer_id] = None
        consumer.groups[name] = None
        self._change(group, now_ms)

    def fit(self, topic: str, count: int, now_ms: int) -> tuple[int, int]:
        """Give the groups of a topic the queues that it got since they joined, and take those that it lost; queue 0
        stays. Return how many groups changed, and how many have no room."""
        changed = full = 0
        for group in list(self._groups_of.get(QueueName(topic, 0), ())):
            names = (QueueName(topic, number) for number in range(count))
            fresh = [name for name in names if name not in group.queues]
            lost = [name for name in group.queues if name.topic == topic and name.queue_id >= max(count, 1)]
            for name in lost:
                self._take(group, name)
            if len(group.queues) + len(fresh) > GROUP_QUEUES_MAX or len(self._offsets) + len(fresh) > QUEUES_MAX:
                full += 1
                fresh = []
            for name in fresh:
                self.number_of(name)
            self._add(group, dict.fromkeys(fresh, (topic, False)))
            if fresh or lost:
                changed += 1
                self._change(group, now_ms)
        return changed, full

    def _take(self, group: Group, queue: QueueName) -> None:
        """Take a queue from a group."""
        one = group.queues.pop(queue)
        del self._offsets[one.offset_id]
        group.counts[one.origin_topic] -= not one.is_failure
        left = [other for other in self._groups_of[queue] if other is not group]
        if left:
            self._groups_of[queue] = left
        else:
            del self._groups_of[queue]

    def _add(self, group: Group, fresh: Mapping[QueueName, tuple[str, bool]]) -> None:
        """Add queues to a group: origin topic, and whether it is of a failure topic."""
        for queue, (topic, is_failure) in fresh.items():
            made = GroupQueue(next(self._numbers), queue, topic, is_failure)
            group.queues[queue] = made
            group.counts[topic] += not is_failure
            self._offsets[made.offset_id] = (group, made)
            self._groups_of.setdefault(queue, []).append(group)

    def drop(self, name: str) -> None:
        """Forget a group, and the ids of its failure queues."""
        group = self.groups.pop(name, None)
        if group is None:
            return
        for consumer_id in group.members:
            del self._consumers[consumer_id].groups[name]
        for queue, one in list(group.queues.items()):
            self._take(group, queue)
            if one.is_failure and queue not in self._groups_of:
                del self._queue_names[self._queue_numbers.pop(queue)]
                self._topic_numbers.pop(queue.topic, None)

    def _change(self, group: Group, now_ms: int) -> None:
        """Have all owners hand over, then deal the queues."""
        group.rebalance_version += 1
        group.handing_over = {queue.owner for queue in group.queues.values() if queue.owner}
        group.due_ms = now_ms + HAND_OVER_MS

    def tick(self, now_ms: int) -> bool:
        """Remove silent consumers, and deal queues that are due; return whether a group changed. Of many, some."""
        left = QUEUES_A_TICK
        silent = [number for number, one in self._consumers.items() if one.seen_ms + EXPIRE_MS <= now_ms]
        for place, number in enumerate(silent):
            left -= 1 + sum(len(self.groups[name].queues) for name in self._consumers[number].groups)
            self.deregister(number, now_ms)
            if left <= 0:
                self.is_behind = place + 1 < len(silent)
                return True
        due = [one for one in self.groups.values() if one.due_ms and (not one.handing_over or one.due_ms <= now_ms)]
        for place, group in enumerate(due):
            left -= 1 + len(group.queues)
            self._deal(group)
            if left <= 0:
                self.is_behind = place + 1 < len(due)
                return True
        self.is_behind = False
        return bool(silent or due)

    def _deal(self, group: Group) -> None:
        """Give each queue an owner, in turns: those of normal topics and of failure topics each evenly."""
        members = list(group.members)
        for is_failure in (False, True):
            queues = sorted(name for name, one in group.queues.items() if one.is_failure is is_failure)
            for place, name in enumerate(queues):
                queue, owner = group.queues[name], members[place % len(members)] if members else 0
                if queue.owner and queue.owner != owner:
                    queue.version += 1  # late commits of the former owner are void
                queue.owner = owner
        group.rebalance_version += 1
        group.handing_over.clear()
        group.due_ms = 0

    def name_of(self, consumer_id: int) -> str | None:
        """Return the name of a consumer; None: it is not known, or not any more."""
        consumer = self._consumers.get(consumer_id)
        return None if consumer is None else consumer.name

    def groups_of(self, consumer_id: int) -> list[str]:
        """Return the names of the groups of a consumer."""
        consumer = self._consumers.get(consumer_id)
        return [] if consumer is None else list(consumer.groups)

    def queues_of(self, group: Group, consumer_id: int) -> list[GroupQueue]:
        """Return the queues that a consumer owns."""
        return [queue for queue in group.queues.values() if queue.owner == consumer_id]

    def members_of(self, name: str) -> list[PmqConsumer]:
        """Return the members of a group."""
        group = self.groups.get(name)
        return [] if group is None else [self._consumers[number] for number in group.members]

    def owners_of(self, queue: QueueName) -> list[tuple[ClientAddress, str]]:
        """Return address and group of each owner of a queue that takes wake-ups."""
        found = []
        for group in self._groups_of.get(queue, ()):
            consumer = self._consumers.get(group.queues[queue].owner)
            if consumer is not None and consumer.address is not None:
                found.append((consumer.address, group.name))
        return found

    # Commits.

    def group_queue(self, offset_id: int) -> tuple[Group, GroupQueue] | None:
        """Return the group and its queue with this id; None: there is none."""
        return self._offsets.get(offset_id)

    def hand_over(self, offset_id: int, version: int, *, has_moved: bool) -> None:
        """Note that the owner of a queue has committed for the last time. has_moved: the offset has changed.

        Nothing happens if the queue has another version by now, or is gone: a commit takes time.
        """
        group, queue = self._offsets.get(offset_id, (None, None))
        if group is None or queue is None or queue.version != version:
            return
        queue.version += has_moved
        group.meta_version += 1
        group.handing_over.discard(queue.owner)

    def renew(self, name: str) -> bool:
        """Note that the settings of a group changed; return whether it has members or had some."""
        group = self.groups.get(name)
        if group is not None:
            group.meta_version += 1
        return group is not None

    def moved_by_operator(self, offset_id: int, offset: int) -> None:
        """Note that the offset is another one than that of the last commit, unless the queue is gone."""
        group, queue = self._offsets.get(offset_id, (None, None))
        if group is None or queue is None:
            return
        queue.committed = offset
        queue.version += 1
        group.meta_version += 1
