"""What an operator sees of a door, and the changes that it makes. Every call: DoorRefused, DoorFailed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from mqtrail.wire import dlq_topic

from .door import DoorAnswer, OperatedDoor

FAILURE_SUFFIX: Final = "_fail"
COPIES_MAX: Final = 100  # messages with one id


def topics(door: OperatedDoor) -> DoorAnswer:
    """Return the topics of applications, with queues, messages and groups."""
    return door.get("topics")


def topic(door: OperatedDoor, name: str) -> DoorAnswer:
    """Return a topic with its queues and the groups that consume it."""
    found = door.get(f"topics/{_segment(name)}")
    found.update(
        queues=door.get("queues", topic=name).rows("queues"),
        subscriptions=subscriptions(door, topic=name).rows("subscriptions"),
    )
    return found


def queues(door: OperatedDoor, topic: str | None = None, *, tables: bool = False) -> DoorAnswer:
    """Return the queues of a topic, or all. tables: with the table of each queue and its bytes."""
    return door.get("queues", topic=topic, tables=tables or None)


def groups(door: OperatedDoor) -> DoorAnswer:
    """Return the groups of applications with their online members and unconsumed messages."""
    return door.get("groups")


def group(door: OperatedDoor, name: str) -> DoorAnswer:
    """Return a group with its members and its offset on each queue."""
    return door.get(f"groups/{_segment(name)}")


def subscriptions(door: OperatedDoor, group: str | None = None, topic: str | None = None) -> DoorAnswer:
    """Return which group consumes which topic."""
    found = door.get("subscriptions")
    rows = found.rows("subscriptions")
    found["subscriptions"] = [row for row in rows if group in (None, row["group"]) and topic in (None, row["topic"])]
    return found


def members(door: OperatedDoor, group: str | None = None) -> DoorAnswer:
    """Return the clients that are online, of a group or of all."""
    found = door.get("members")
    found["members"] = [row for row in found.rows("members") if group in (None, row["group"])]
    return found


def backlog(door: OperatedDoor) -> DoorAnswer:
    """Return for each group and topic how many messages are stored, consumed and pending, the most pending first.

    stored: messages that the topic keeps. consumed: those of them that the group has behind it. Unknown ones are null,
    and come first.
    """
    stored = {row["topic"]: row["messages"] for row in topics(door).rows("topics")}
    rows = []
    for row in subscriptions(door).rows("subscriptions"):
        kept, pending = stored.get(row["topic"]), row["pending"]
        is_known = kept is not None and pending is not None
        consumed = max(0, kept - pending) if is_known else None
        names = ("group", "topic", "online", "paused")
        rows.append(DoorAnswer({name: row[name] for name in names}, stored=kept, consumed=consumed, pending=pending))
    rows.sort(key=lambda row: (row["pending"] is not None, -(row["pending"] or 0), row["group"], row["topic"]))
    return DoorAnswer(backlog=rows)


def messages(
    door: OperatedDoor,
    topic: str,
    *,
    queue: int | None = None,
    offset: int | None = None,
    from_ms: int | None = None,
    key: str | None = None,
    count: int = 20,
) -> DoorAnswer:
    """Return stored messages of a topic: the newest ones, those from an offset or a time on, or those with a key."""
    asked = {"queue": queue, "from": offset, "from_ms": from_ms, "key": key, "count": count}
    return door.get(f"topics/{_segment(topic)}/messages", **asked)


def message(door: OperatedDoor, topic: str, queue: int, offset: int) -> DoorAnswer:
    """Return the message at an offset, with body and properties."""
    return DoorAnswer(messages=[door.get(f"topics/{_segment(topic)}/queues/{queue}/messages/{offset}")])


def messages_with_id(door: OperatedDoor, topic: str, id: str) -> DoorAnswer:
    """Return all messages of a topic with an id, with bodies and properties."""
    return door.get(f"topics/{_segment(topic)}/messages", id=id, count=COPIES_MAX)


def message_count(door: OperatedDoor, topic: str, from_ms: int, until_ms: int) -> DoorAnswer:
    """Return how many kept messages of a topic were stored in [from_ms, until_ms)."""
    return door.get(f"topics/{_segment(topic)}/count", from_ms=from_ms, until_ms=until_ms)


def failures(door: OperatedDoor) -> DoorAnswer:
    """Return where messages that could not be processed are: dead letters of groups, pmq's failure topics.

    of: the topic whose messages of pmq's own clients failed; '' for dead letters of all topics.
    """
    rows = []
    kept = {row["topic"]: row["messages"] for row in topics(door).rows("topics")}
    names = []
    for row in groups(door).rows("groups"):
        names.append(row["group"])
        if row["dead_letters"]:
            rows.append(DoorAnswer(group=names[-1], of="", topic=dlq_topic(names[-1]), messages=row["dead_letters"]))
    for held, count in kept.items():
        if count and held.endswith(FAILURE_SUFFIX):
            middle = held.removesuffix(FAILURE_SUFFIX)
            parts = [(name, middle[len(name) + 1 :]) for name in names if middle.startswith(f"{name}_")]
            sure = [one for one in parts if one[1] in kept]  # `a_b_c` may be of the group `a` or of `a_b`
            rows += [DoorAnswer(group=name, of=of, topic=held, messages=count) for name, of in sure or parts]
    rows.sort(key=lambda row: (row["group"], row["topic"]))
    return DoorAnswer(failures=rows)


def node(door: OperatedDoor) -> DoorAnswer:
    """Return the broker and its database."""
    return door.get("node")


def lock(door: OperatedDoor) -> DoorAnswer:
    """Return which process may write to the database, and earlier ones."""
    return door.get("lock")


def rules(door: OperatedDoor) -> DoorAnswer:
    """Return who asks, and the rules of topics, groups and operators without tokens."""
    return door.get("rules")


def audited(door: OperatedDoor, count: int) -> DoorAnswer:
    """Return the last changes that the door recorded."""
    return door.get("audit", count=count)


def planned(door: OperatedDoor, change: Mapping[str, Any]) -> DoorAnswer:
    """Return what a change would do now."""
    return door.post("changes", change, dry_run=True)


def changed(door: OperatedDoor, change: Mapping[str, Any]) -> DoorAnswer:
    """Do a change, and return what came of it."""
    return door.post("changes", change)


def _segment(text: str) -> str:
    """Return a name as a part of a path."""
    return quote(text, safe="")
