"""Conditions for sending messages to a topic, and for writing a group's offsets."""

from __future__ import annotations

from mqtrail.client import Admin, Producer, RouteNotFound
from mqtrail.wire import MessageQueue, MQError


async def check_group(admin: Admin, group: str, error: type[MQError]) -> None:
    """Check that the group is there and has no members. The error, MQError."""
    configs = await admin.group_config(group)
    if any(one is None for one in configs.found.values()):
        raise error(
            f"found no group {group!r} on each broker, expected it: create it with `mqtrail group create {group}`, "
            "then apply again"
        )
    found = await admin.group_connections(group)
    count = len({one.client_id for members in found.found.values() for one in members.connection_set})
    if count:
        raise error(
            f"found {count} running members of group {group!r}, expected none: they would overwrite the offsets: stop "
            "them, apply again, then start them"
        )
    if found.failures:
        name, failure = next(iter(found.failures.items()))
        raise MQError(f"could not find out whether group {group!r} has running members: {name}: {failure}: try again")


async def queues_of(producer: Producer, topic: str, error: type[MQError], expected: str = "") -> list[MessageQueue]:
    """Return the queues of a topic, in order. The error: there is none; expected: how many queues it should have."""
    try:
        found = await producer.queues(topic)
    except RouteNotFound:
        raise error(
            f"found no topic {topic!r}, expected one{expected}: mqtrail topic create {topic} --queues 8"
        ) from None
    return sorted(found, key=lambda queue: (queue.broker_name, queue.queue_id))
