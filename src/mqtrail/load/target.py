"""The topic of a load: created on request, and checked before, so that messages of others are not mixed in silently."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from mqtrail.client import Admin, ClientError, Gathered, RouteNotFound
from mqtrail.wire import ConsumerConnections, MessageQueue, MQError, TopicConfig, TopicStatsTable

from .marks import mark_of

ROUTE_WAIT_S: Final = 30.0
POLL_S: Final = 0.05
QUEUES_LOOKED_AT_MAX: Final = 64  # their newest messages are read
READ_WRITE: Final = 6


class TopicMissing(MQError):
    """There is no such topic, and it was not to be created."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """A topic as found. foreign_count: messages in the queues whose newest message is not of a load. groups: others
    that consume it. members: client ids of the load's own group that are online. unknown: what a broker of the topic
    did not say, such as one that refuses operators' requests."""

    topic: str
    is_new: bool
    foreign_count: int = 0
    groups: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


async def prepare_topic(admin: Admin, topic: str, group: str, *, create: bool, queues: int) -> LoadTarget:
    """Return the topic; create it if it is missing and `create` is set. TopicMissing, MQError."""
    try:
        route = await admin.route(topic)
    except RouteNotFound:
        if not create:
            raise TopicMissing(
                f"found no topic {topic!r}, expected one: pass --create, or run `mqtrail topic create {topic}`"
            ) from None
        done = await admin.create_topic(TopicConfig(topic, queues, queues, READ_WRITE))
        for name, error in done.failures.items():
            raise ClientError(f"broker {name} did not create topic {topic!r}: {error}") from error
        await _wait_for_route(admin, topic, set(done.found))
        return LoadTarget(topic, is_new=True, members=_members(await admin.group_connections(group)))
    stats, others = await admin.topic_stats(topic), await admin.groups_of_topic(topic)
    online = await admin.group_connections(group)
    brokers = {one.broker_name for one in route.broker_datas}
    names = {name for found in others.values() for name in found.group_list} - {group}
    return LoadTarget(
        topic,
        is_new=False,
        foreign_count=await _foreign_count(admin, topic, stats),
        groups=tuple(sorted(names)),
        members=_members(online),
        unknown=(
            *_unknown("its messages", stats, brokers),
            *_unknown("its groups", others, brokers),
            *_unknown(f"the members of {group!r}", online, brokers),
        ),
    )


def _unknown(what: str, asked: Gathered[Any], brokers: Collection[str]) -> Iterator[str]:
    for name, error in asked.failures.items():
        if name in brokers:
            yield f"{what} on {name} ({error})"


async def _wait_for_route(admin: Admin, topic: str, brokers: set[str]) -> None:
    """Wait until the name server knows the topic on these brokers: they register it after they have answered."""
    known: set[str] = set()
    try:
        async with asyncio.timeout(ROUTE_WAIT_S):
            while not brokers <= known:
                with suppress(RouteNotFound):
                    known = {one.broker_name for one in (await admin.route(topic)).broker_datas}
                await asyncio.sleep(0 if brokers <= known else POLL_S)
    except TimeoutError:
        raise ClientError(
            f"the name servers do not know topic {topic!r} on {', '.join(sorted(brokers - known))} "
            f"{ROUTE_WAIT_S:.0f} s after it was created: check that these brokers are registered with "
            "them, and run it again"
        ) from None


def _members(online: Gathered[ConsumerConnections]) -> tuple[str, ...]:
    return tuple(sorted({one.client_id for connections in online.values() for one in connections.connection_set}))


async def _foreign_count(admin: Admin, topic: str, stats: Gathered[TopicStatsTable]) -> int:
    """Return the number of messages in the queues whose newest one is not of a load, or cannot be read."""
    ranges = [
        (MessageQueue(topic, queue.broker_name or name, queue.queue_id), reach.min_offset, reach.max_offset)
        for name, found in sorted(stats.found.items())
        for queue, reach in sorted(found.offset_table.items())
        if reach.max_offset > reach.min_offset
    ]
    count = 0
    for queue, first, end in ranges[:QUEUES_LOOKED_AT_MAX]:
        try:
            newest = await admin.message_at_offset(queue, end - 1)
        except MQError:
            count += end - first
            continue
        if mark_of(newest.body) is None:
            count += end - first
    return count
