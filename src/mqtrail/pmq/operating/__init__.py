"""What operators ask of an HTTP door: the commands of `mqtrail pmq` and the pages of the console show the same.

Each function of `looking` and `reports` asks a door, and returns what a command prints with `--json`.
"""

from .door import DoorAnswer, DoorFailed, DoorRefused, OperatedDoor, door_url
from .looking import (
    audited,
    backlog,
    changed,
    failures,
    group,
    groups,
    lock,
    members,
    message,
    message_count,
    messages,
    messages_with_id,
    node,
    planned,
    queues,
    rules,
    subscriptions,
    topic,
    topics,
)
from .reports import node_report, queue_report, topic_report

__all__ = [
    "DoorAnswer",
    "DoorFailed",
    "DoorRefused",
    "OperatedDoor",
    "audited",
    "backlog",
    "changed",
    "door_url",
    "failures",
    "group",
    "groups",
    "lock",
    "members",
    "message",
    "message_count",
    "messages",
    "messages_with_id",
    "node",
    "node_report",
    "planned",
    "queue_report",
    "queues",
    "rules",
    "subscriptions",
    "topic",
    "topic_report",
    "topics",
]
