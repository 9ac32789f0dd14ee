"""Members of broadcast groups: each gets each message, because it consumes through a group of its own.

That group is the broker's, with its offsets and retries, so a restart of the door loses nothing. It begins at the end
of its topics, and ends with its member: when the member leaves, or says nothing for the time of its lease. A start of
the door leaves the members of the last run GRACE_MS to come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from mqtrail.clock import now_ms
from mqtrail.wire import (
    OWN_HOST,
    RETRY_PREFIX,
    DeleteGroupHeader,
    MQError,
    NoPermission,
    RemotingCommand,
    RequestCode,
    SubscriptionGroupConfig,
    SubscriptionGroupNotExist,
    SubscriptionGroupTable,
    TopicList,
    TopicNotExist,
    dlq_topic,
    pop_retry_topic,
    retry_topic,
    validate_group,
)

from ..caller import Caller, succeed
from ..config import DoorConfig
from ..gate import FAILURE_SUFFIX
from ..member_names import is_of_member, member_group, origin_of
from ..tasks import end_task
from .broker import PmqBroker
from .desk import Full, QueueName

MEMBERS_MAX: Final = 10_000
GROUP_MEMBERS_MAX: Final = 1_000  # of one group
GRACE_MS: Final = 120_000  # after the start, for members of the last run
SWEEP_MS: Final = 600_000  # between two looks for groups that no member has
TICK_S: Final = 1.0
AGAIN_MS: Final = 10_000  # until a group that could not be deleted is tried again


@dataclass(slots=True)
class BroadcastMember:
    """A member of a broadcast group. name: as it calls itself. address: from which it joined. topics: on which its
    group has begun."""

    name: str
    address: str
    lease_ms: int
    until_ms: int
    topics: set[str] = field(default_factory=set)


class Members:
    """`start`, then `stop`."""

    def __init__(self, caller: Caller, config: DoorConfig, clock: Callable[[], int] = now_ms) -> None:
        self._caller = caller
        self._config = config
        self._clock = clock
        self._known: dict[str, BroadcastMember] = {}  # by the member's own group
        self._by_origin: dict[str, dict[str, BroadcastMember]] = {}  # the same, by the group that they are of
        self._turn = asyncio.Lock()
        self._sweep_ms = clock() + GRACE_MS
        self._ticker: asyncio.Task[None] | None = None
        self.on_end: Callable[[str], None] = lambda name: None
        """Called with the group of a member that has ended."""

    def start(self) -> None:
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        await end_task(self._ticker)

    def of(self, group: str) -> dict[str, BroadcastMember]:
        """Return the members of a group, by their own groups."""
        return dict(self._by_origin.get(group, {}))

    def _add(self, name: str, member: BroadcastMember) -> BroadcastMember:
        self._by_origin.setdefault(origin_of(name), {})[name] = self._known[name] = member
        return member

    def _forget(self, name: str) -> None:
        del self._known[name]
        others = self._by_origin[origin_of(name)]
        del others[name]
        if not others:
            del self._by_origin[origin_of(name)]

    def renew(self, name: str, further_ms: int = 0) -> bool:
        """Renew the lease of a member; return whether it is known. name: of its own group. further_ms: beyond it."""
        member = self._known.get(name)
        if member is None or not member.lease_ms or member.until_ms <= (now := self._clock()):
            return False
        member.until_ms = max(member.until_ms, now + member.lease_ms + further_ms)
        return True

    def leave(self, name: str) -> None:
        """End a member soon. name: of its own group."""
        member = self._known.get(name)
        if member is not None:
            member.until_ms = 0

    async def join(
        self,
        group: str,
        member: str,
        topics: Mapping[str, Sequence[QueueName]],
        broker: PmqBroker,
        lease_ms: int,
        *,
        from_first: bool,
    ) -> str:
        """Make a member's own group, or renew its lease; return the group's name. topics: with the queues to read.

        It begins with the messages that are stored from now on; from_first: with the oldest ones. Full.
        SubscriptionGroupNotExist. NoPermission: the group must not broadcast. InvalidParameter: its name is too long.
        """
        name = member_group(group, member)
        validate_group(name)
        async with self._turn:
            config = await self._origin(group, broker)
            self._check_room(group, name)
            found = self._known.get(name) or self._add(name, BroadcastMember(member, "", 0, 0))
            found.address, found.lease_ms, found.until_ms = broker.host.ip, lease_ms, self._clock() + lease_ms
            await self._write(name, config, broker)
            for topic in topics.keys() - found.topics:
                if not from_first:
                    await broker.begin(name, topics[topic])
                found.topics.add(topic)
        return name

    async def _origin(self, group: str, broker: PmqBroker) -> SubscriptionGroupConfig:
        config = await broker.group(group)
        if config is None and self._config.creates_groups:
            config = SubscriptionGroupConfig(group)
            await _write_group(config, broker)
        if config is None:
            raise SubscriptionGroupNotExist(f"found no group {group}: create it with `mqtrail group create`")
        if not config.consume_broadcast_enable:
            raise NoPermission(
                f"found the group {group}, whose consumeBroadcastEnable is false, expected one that may broadcast: "
                "use another group, or ask an operator"
            )
        return config

    def _check_room(self, group: str, name: str) -> None:
        if name in self._known:
            return
        if len(self._known) >= MEMBERS_MAX:
            raise Full(f"found {MEMBERS_MAX} members of broadcast groups, expected fewer: let some leave")
        if len(self._by_origin.get(group, ())) >= GROUP_MEMBERS_MAX:
            raise Full(f"found {GROUP_MEMBERS_MAX} members of the group {group!r}, expected fewer: let some leave")

    async def settings_changed(self, config: SubscriptionGroupConfig, broker: PmqBroker) -> None:
        """Give the members of a group its settings."""
        async with self._turn:
            for name in self.of(config.group_name):
                await self._write(name, config, broker)

    async def _write(self, name: str, origin: SubscriptionGroupConfig, broker: PmqBroker) -> None:
        """Write a member's group as its origin is, unless it is so."""
        known = await broker.group(name)
        wanted = replace(origin, group_name=name, attributes={})  # no attributes: they stay
        if known is None or replace(known, attributes={}) != wanted:
            await _write_group(wanted, broker)

    # The end.

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick()

    async def tick(self) -> None:
        """Delete the groups of members that left. A group that cannot be deleted now is tried again later."""
        now = self._clock()
        if self._sweep_ms <= now:
            await self._sweep(now)
        for name in [name for name, one in self._known.items() if one.until_ms <= now]:
            async with self._turn:
                member = self._known.get(name)
                if member is None or member.until_ms > now:  # it came back meanwhile
                    continue
                try:
                    await self._delete(name)
                except (MQError, TimeoutError) as error:
                    member.until_ms = now + AGAIN_MS
                    member.lease_ms = 0  # it is not renewed any more, but may join again
                    self._config.report("member.cannot_delete", {"group": name, "found": str(error)})
                    return
                self._forget(name)
                self.on_end(name)

    async def _sweep(self, now: int) -> None:
        """Find groups that no member has: of an earlier run, or of a receive that outlived its member. They end with
        this tick."""
        try:
            reply = await succeed(self._caller, RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG), OWN_HOST)
            table = (await asyncio.to_thread(SubscriptionGroupTable.decode, reply.body)).subscription_group_table
        except (MQError, TimeoutError):
            self._sweep_ms = now + AGAIN_MS
            return
        for name in table:
            if is_of_member(name) and name not in self._known:
                self._add(name, BroadcastMember("", "", 0, 0))
        self._sweep_ms = now + SWEEP_MS

    async def _delete(self, name: str) -> None:
        """Delete the topics of a member's group, then its offsets and the group, so that a crash leaves it to the next
        sweep."""
        command = RemotingCommand(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": name})
        consumed = TopicList.decode((await succeed(self._caller, command, OWN_HOST)).body).topic_list
        own = {retry_topic(name), dlq_topic(name)}
        for topic in consumed:
            if topic.startswith(f"{name}_") and topic.endswith(FAILURE_SUFFIX):
                own.add(topic)
            elif not topic.startswith(RETRY_PREFIX):
                own |= {pop_retry_topic(topic, name), pop_retry_topic(topic, name, v2=True)}
        for topic in sorted(own):
            await succeed(self._caller, RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}), OWN_HOST)
        header = DeleteGroupHeader(name, clean_offset=True, remove_offset=True)
        await succeed(self._caller, RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext()), OWN_HOST)


async def queues_of(topic: str, broker: PmqBroker) -> list[QueueName]:
    """Return the queues of a topic to read. TopicNotExist."""
    config = await broker.topic(topic)
    if config is None:
        raise TopicNotExist(f"found no topic {topic}")
    return [QueueName(topic, number) for number in range(config.read_queue_nums)]


async def _write_group(config: SubscriptionGroupConfig, broker: PmqBroker) -> None:
    command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode())
    await succeed(broker.caller, command, broker.host)
