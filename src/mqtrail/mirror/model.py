"""A copy of a message in another cluster: its properties, where it came from, and whether it would go round.

| property | content |
|---|---|
| MIRROR_PATH | names of the clusters that it came through, with commas; the last one is the source of this copy |
| MIRROR_FROM | BROKER/TOPIC/QUEUE@OFFSET of its message in that source |
| MIRROR_BORN | epoch ms: when the first message was born |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mqtrail.wire import (
    PROPERTY_WAIT,
    Message,
    MessageExt,
    MessageQueue,
    MQError,
    copy_for_topic,
    parse_place,
)

PATH, FROM, BORN = "MIRROR_PATH", "MIRROR_FROM", "MIRROR_BORN"


class MirrorError(MQError):
    """A cluster, a topic, a message, a file or the folder is not what is needed. A retry would not change it."""


class ClusterAway(MQError):
    """The source does not answer. A retry may succeed."""


class Origin(NamedTuple):
    """Where a copy came from: a queue of the source, and the offset there."""

    queue: MessageQueue
    offset: int


def path_of(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the clusters that a message came through; none: it was sent by a producer."""
    text = properties.get(PATH)
    return text.split(",") if text else []


def origin_of(properties: Mapping[str, str], source: str) -> Origin | None:
    """Return where a copy came from; None: it is not a copy from that source."""
    if path_of(properties)[-1:] != [source]:
        return None
    try:
        return Origin(*parse_place(properties.get(FROM, "")))
    except ValueError:
        return None


def copy_of(message: MessageExt, topic: str, source: str, place: str) -> Message:
    """Return the copy of a message at a place of the source. It is due at once, and keeps its id."""
    found = message.properties
    marks = {
        PATH: ",".join((*path_of(found), source)),
        FROM: place,
        BORN: found.get(BORN) or str(message.born_timestamp_ms),
        PROPERTY_WAIT: "true",  # of this send, and all messages of a batch must have the same
    }
    return copy_for_topic(message, topic, marks)
