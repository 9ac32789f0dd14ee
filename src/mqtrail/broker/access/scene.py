"""What permission checks look up: what a request code needs, where a stored record belongs, which groups exist.

A request may name a place of the CommitLog instead of a topic. What stands at that place decides then.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from mqtrail.store import MessageStore
from mqtrail.wire import (
    HALF_TOPIC,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    QueryNotFound,
    RemotingCommand,
    decode_head,
    find_property,
    revive_topic,
)

from .policies import Resource

WAITING_TOPICS: Final = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC})
_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()


class Place(NamedTuple):
    """A stored record. topic: where it stands. meant_for: the topic that it waits for; topic, if it does not wait.

    real_topic: what its REAL_TOPIC property says, which a client may have written in a record that does not wait.
    """

    topic: str
    meant_for: str
    real_topic: str | None


class Dialect(StrEnum):
    """The two kinds of access control."""

    USERS = "5.x"
    FILES = "4.9"


class Need(NamedTuple):
    """One of actions on resource has to be allowed."""

    resource: Resource
    actions: tuple[str, ...]


class Scene:
    """Look-ups for permission checks. has_group: whether a consumer group is configured. like_apache: aclLikeApache.

    permissions: what each request code needs.
    """

    def __init__(
        self,
        cluster: str,
        store: MessageStore,
        has_group: Callable[[str], bool],
        permissions: Mapping[int, "Permission"],
        *,
        like_apache: bool = False,
    ) -> None:
        self.cluster = cluster
        self.permissions = permissions
        self.like_apache = like_apache
        self.has_group = has_group
        self.own_topics = frozenset({TIMER_TOPIC, revive_topic(cluster)})
        """Topics that only the broker writes to, and that Apache's lets everybody send to."""
        self._store = store

    def place(self, physical_offset: int) -> Place | None:
        """Return what stands at an offset of the CommitLog; None: no record begins there."""
        try:
            record = self._store.read_at(physical_offset)
        except QueryNotFound:
            return None
        head = decode_head(record)
        real = find_property(bytes(record[head.properties_start : head.properties_end]), _REAL_TOPIC)
        real_topic = None if real is None else real.decode("utf-8", "replace")
        meant_for = real_topic if head.topic in WAITING_TOPICS and real_topic is not None else head.topic
        return Place(head.topic, meant_for, real_topic)


Asks = Callable[[RemotingCommand, Scene], Iterable[Need]]


class Permission(NamedTuple):
    """What one request code needs. opened: the dialects in which aclLikeApache lets every known user send it."""

    needs: Asks
    touches: Asks
    opened: frozenset[Dialect]
