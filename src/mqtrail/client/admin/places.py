"""Where groups are in their queues: committed offsets, members and ranges of a whole cluster, with few requests.

Groups are those that brokers have a configuration or an offset of. Their topics are those that live members subscribe
to, otherwise those with offsets. Offsets are read before ranges, so that no offset is past the end of a queue only
because messages came in between.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from mqtrail.wire import (
    RETRY_PREFIX,
    ConsumeFromWhere,
    ConsumerConnections,
    ConsumerNotOnline,
    ConsumeType,
    MessageModel,
    pop_retry_topic,
    retry_topic,
)

from ..core import RouteNotFound
from .asking import Asking, BrokerTopic, Ranges
from .backlog import QueueReading

OFFSETS_AT_MEMBERS: Final = "broadcasting: each member keeps its own offsets, which brokers do not know"


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The answer about a group's live members. found: None: there are none. why: why they are unknown, or ''."""

    found: ConsumerConnections | None = None
    why: str = ""

    @property
    def count(self) -> int | None:
        """The number of members; None: unknown."""
        return None if self.why else 0 if self.found is None else len(self.found.connection_set)

    @property
    def topics(self) -> frozenset[str]:
        """Subscribed topics, without retry topics."""
        names = self.found.subscription_table if self.found is not None else ()
        return frozenset(name for name in names if not name.startswith(RETRY_PREFIX))

    @property
    def pops(self) -> bool:
        """Whether they pop."""
        return self.found is not None and self.found.consume_type == ConsumeType.CONSUME_POP

    @property
    def is_broadcasting(self) -> bool:
        """Whether each gets all messages."""
        return self.found is not None and self.found.message_model == MessageModel.BROADCASTING

    @property
    def starts_at_first(self) -> bool:
        """Whether they start at the first message of a queue without an offset."""
        where = None if self.found is None else self.found.consume_from_where
        return where == ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@dataclass(slots=True)
class Places:
    """Offsets and ranges of one reading, and when each answer came (ms of the monotonic clock)."""

    offsets: dict[str, dict[str, dict[str, Mapping[int, int]]]] = field(default_factory=dict)
    """Broker -> group -> topic -> queue id -> offset."""
    offset_ms: dict[str, float] = field(default_factory=dict)
    ranges: dict[BrokerTopic, Ranges | None] = field(default_factory=dict)
    """None: the broker does not have the topic."""
    range_ms: dict[BrokerTopic, float] = field(default_factory=dict)

    def offsets_of(self, broker_name: str, group: str) -> Mapping[str, Mapping[int, int]]:
        """Return topic -> queue id -> offset."""
        return self.offsets.get(broker_name, {}).get(group, {})


class GroupPlaces:
    """Reads the places of groups. only: of this group."""

    def __init__(self, asking: Asking, only: str | None) -> None:
        self._asking = asking
        self._only = only
        self.groups: set[str] = set()
        self.members: dict[str, GroupMembers] = {}
        self.left: dict[str, frozenset[str]] = {}
        """Group -> topics with offsets that its members do not subscribe to any more."""
        self._topics: frozenset[str] = frozenset()  # all that the name server knows
        self._broadcasting: set[str] = set()
        self._own: dict[str, frozenset[str]] = {}
        self._retry: dict[str, frozenset[str]] = {}
        self._refused: dict[BrokerTopic, str] = {}
        self._routed: dict[BrokerTopic, int] = {}  # number of readable queues by the name server

    async def first(self) -> Places:
        """Find groups, members and topics, and read all places."""
        self._topics = frozenset(await self._asking.admin.topics())
        places = await self._offsets()
        found = {group for groups in places.offsets.values() for group in groups} | self._broadcasting

        async def configured(name: str, address: str) -> None:
            table = await self._asking.ask(name, "groups", partial(self._asking.admin.groups, address))
            if not isinstance(table, str):
                found.update(table.business_groups())

        await self._asking.each_master(configured)
        self.groups = found if self._only is None else {self._only}
        await self._asking.each(sorted(self.groups), lambda group: self._read_members(group, places))
        if self._only is not None and self._only not in found and not self.members[self._only].count:
            self.groups = set()
        for group in self.groups:
            self._find_topics(group, places)
        await self._read_ranges(places)
        return places

    async def again(self) -> Places:
        """Read the places of the same groups and topics again."""
        places = await self._offsets()
        await self._read_ranges(places)
        return places

    async def _offsets(self) -> Places:
        places = Places()

        async def read(name: str, address: str) -> None:
            ask = partial(self._asking.admin.committed_offsets, address)
            table = await self._asking.ask(name, "committed offsets", ask)
            if isinstance(table, str):
                self._asking.silent.setdefault(name, table)  # without them nothing else about its queues is of use
                return
            found = places.offsets.setdefault(name, {})
            for topic, group, is_broadcast, queues in table.of_business():
                if is_broadcast:
                    self._broadcasting.add(group)
                else:
                    found.setdefault(group, {})[topic] = queues
            places.offset_ms[name] = _monotonic_ms()

        await self._asking.each_master(read)
        return places

    async def _read_members(self, group: str, places: Places) -> None:
        """Ask brokers, those with its offsets first, until one has members: each member reports to all brokers."""
        why = ""
        for name in sorted(self._asking.masters, key=lambda name: (not places.offsets_of(name, group), name)):
            answer = await self._asking.ask(name, f"clients of {group}", partial(self._connections, group, name))
            if isinstance(answer, str):
                why = why or answer
            elif answer is not None:
                self.members[group] = GroupMembers(answer)
                return
        self.members[group] = GroupMembers(None, why)

    async def _connections(self, group: str, name: str) -> ConsumerConnections | None:
        try:
            return await self._asking.admin.consumer_connections(group, self._asking.masters[name])
        except ConsumerNotOnline:
            return None

    def _find_topics(self, group: str, places: Places) -> None:
        committed = {topic for name in self._asking.masters for topic in places.offsets_of(name, group)}
        retry = {topic for topic in committed if topic.startswith(RETRY_PREFIX)}
        subscribed = self.members[group].topics
        own = (committed - retry) | subscribed
        names = [retry_topic(group), *(pop_retry_topic(topic, group, v2=v2) for topic in own for v2 in (False, True))]
        # Offsets of an earlier subscription stay. Members without subscriptions have assigned queues to themselves.
        self._own[group] = frozenset(subscribed or own)
        self.left[group] = frozenset(own - self._own[group])
        self._retry[group] = frozenset(retry | self._topics.intersection(names))

    async def _read_ranges(self, places: Places) -> None:
        asked = {
            BrokerTopic(name, topic): None
            for group in sorted(self.groups)
            for name in self._asking.masters
            for topic in self._own[group] | self._retry[group]
            if topic in self._topics or topic in places.offsets_of(name, group)
        }

        async def read(of: BrokerTopic) -> None:
            answer = await self._asking.ranges(of)
            if isinstance(answer, str):
                self._refused[of] = answer
            else:
                places.ranges[of] = answer
                places.range_ms[of] = _monotonic_ms()

        await self._asking.each(asked, read)

    async def find_routes(self) -> None:
        """Ask the name server for the queues of topics on brokers that did not answer, to list them as unknown."""
        lost = {of.topic for of in self._refused}
        if self._asking.silent:
            lost |= {topic for group in self.groups for topic in self._own[group] | self._retry[group]}

        async def find(topic: str) -> None:
            try:
                data = await self._asking.admin.route(topic)
            except RouteNotFound:
                return
            for one in data.queue_datas:
                self._routed[BrokerTopic(one.broker_name, topic)] = one.read_queue_nums

        await self._asking.each(sorted(lost), find)

    def readings(self, group: str, places: Places) -> list[QueueReading]:
        """Return the group's place in every queue of its topics, then of its retry topics."""
        names = sorted({*self._asking.masters, *self._asking.silent})
        topics = [*sorted(self._own[group]), *sorted(self._retry[group])]
        return [
            one for topic in topics for name in names for one in self._topic(group, BrokerTopic(name, topic), places)
        ]

    def _topic(self, group: str, of: BrokerTopic, places: Places) -> Iterable[QueueReading]:
        offsets = places.offsets_of(of.broker_name, group).get(of.topic, {})
        ranges = places.ranges.get(of)
        if ranges is None:
            # Without a reason, the broker does not have the topic.
            why = self._asking.silent.get(of.broker_name) or self._refused.get(of, "")
            queue_ids = sorted({*offsets, *range(self._routed.get(of, 0))}) if why else []
            return [QueueReading(of.topic, of.broker_name, queue_id, why=why) for queue_id in queue_ids]
        members, why = self.members[group], ""
        starts_at_first = of.topic.startswith(RETRY_PREFIX) or members.starts_at_first
        if members.is_broadcasting or group in self._broadcasting:
            offsets, starts_at_first, why = {}, False, OFFSETS_AT_MEMBERS
        offset_ms, range_ms = places.offset_ms.get(of.broker_name, 0), places.range_ms[of]
        return [
            QueueReading(
                of.topic,
                of.broker_name,
                queue_id,
                offsets.get(queue_id),
                first,
                end,
                offset_ms=offset_ms,
                range_ms=range_ms,
                starts_at_first=starts_at_first,
                why=why,
            )
            for queue_id, (first, end) in sorted(ranges.items())
        ]


def _monotonic_ms() -> float:
    return time.monotonic() * 1000
