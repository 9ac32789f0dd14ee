"""Look-ups of permission checks: the needs of a request code, the topic of a stored record, the existing groups.

A request may name a CommitLog offset instead of a topic. The record at that offset decides then.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from mqtrail.store import MessageStore
from mqtrail.wire import (
    OP_HALF_TOPIC,
    RAW_REAL_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    QueryNotFound,
    RemotingCommand,
    decode_head,
    find_property,
    retry_topic,
    revive_topic,
)

from ..properties import WAITING_TOPICS
from .policies import Resource

TARGETED_TOPICS: Final = WAITING_TOPICS - {OP_HALF_TOPIC} | {TRANS_CHECK_MAX_TIME_TOPIC}  # name the target


class RecordTopics(NamedTuple):
    """Topics of a stored record. topic: as stored. target_topic: where a waiting record is delivered; else topic.

    real_topic: its REAL_TOPIC property, which a client may set in any record.
    """

    topic: str
    target_topic: str
    real_topic: str | None


class AccessKind(StrEnum):
    """The two kinds of access control."""

    USERS = "5.x"
    FILES = "4.9"


class Need(NamedTuple):
    """A permission: one of the actions on the resource."""

    resource: Resource
    actions: tuple[str, ...]


class AccessContext:
    """Look-ups for permission checks. has_group, has_topic: whether it is configured. like_apache: aclLikeApache.

    permissions: what each request code needs.
    """

    def __init__(
        self,
        cluster: str,
        store: MessageStore,
        has_group: Callable[[str], bool],
        has_topic: Callable[[str], bool],
        permissions: Mapping[int, "Permission"],
        *,
        like_apache: bool = False,
    ) -> None:
        self.cluster = cluster
        self.permissions = permissions
        self.like_apache = like_apache
        self.has_group = has_group
        self._has_topic = has_topic
        self.own_topics = frozenset({TIMER_TOPIC, revive_topic(cluster)})
        """Topics that only the broker writes to; Apache's broker accepts sends from everyone."""
        self._store = store

    def popped_as(self, name: str) -> list[tuple[str, str]]:
        """Return the groups and topics whose popped messages are retried in %RETRY%name.

        None if there is no such topic, or if a group has this name: then the topic is that group's.
        """
        if self.like_apache or self.has_group(name) or not self._has_topic(retry_topic(name)):
            return []
        parts = [(name[:place], name[place + 1 :]) for place, letter in enumerate(name) if letter in "_+"]
        return [(group, topic) for group, topic in parts if self.has_group(group) and self._has_topic(topic)]

    def record_topics(self, physical_offset: int) -> RecordTopics | None:
        """Return the record at an offset of the CommitLog; None: no record starts there."""
        try:
            record = self._store.read_at(physical_offset)
        except QueryNotFound:
            return None
        head = decode_head(record)
        real = find_property(bytes(record[head.properties_start : head.properties_end]), RAW_REAL_TOPIC)
        real_topic = None if real is None else real.decode("utf-8", "replace")
        target_topic = real_topic if head.topic in TARGETED_TOPICS and real_topic is not None else head.topic
        return RecordTopics(head.topic, target_topic, real_topic)


NeedsOf = Callable[[RemotingCommand, AccessContext], Iterable[Need]]


class Permission(NamedTuple):
    """The needs of a request code. opened: kinds in which aclLikeApache allows it to every known user."""

    needs: NeedsOf
    touches: NeedsOf
    opened: frozenset[AccessKind]
