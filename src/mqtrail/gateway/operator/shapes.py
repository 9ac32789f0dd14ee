"""What the operators' interface answers. Offsets are queue offsets, times are ms since 1970 UTC, sizes are bytes."""

from __future__ import annotations

from typing import Any, Final

import msgspec


class OperatedTopic(msgspec.Struct):
    """A topic. read_queues is larger than write_queues while a topic shrinks. messages: that its queues keep.

    last_stored_ms: None: it has no message. groups: that consume it, or did.
    """

    topic: str
    read_queues: int
    write_queues: int
    readable: bool
    writable: bool
    messages: int
    last_stored_ms: int | None
    groups: list[str]


class OperatedTopics(msgspec.Struct):
    """The topics of applications, by name."""

    topics: list[OperatedTopic]


class OperatedQueue(msgspec.Struct):
    """A queue. first, next: offset of its first kept message and of its next one. messages: that it keeps.

    writable: whether publishers may use it. table, size: its table and the bytes of it; None: not asked, or none. node:
    its database; None: it has none yet, or the broker keeps a CommitLog.
    """

    topic: str
    queue: int
    first: int
    next: int
    messages: int
    last_stored_ms: int | None
    readable: bool
    writable: bool
    table: str | None = None
    size: int | None = None
    node: str | None = None


class OperatedQueues(msgspec.Struct):
    """Queues, by topic and number."""

    queues: list[OperatedQueue]


class QueueAge(msgspec.Struct):
    """When the first kept message of a queue was stored. first_stored_ms: None: the queue keeps none."""

    topic: str
    queue: int
    first_stored_ms: int | None


class QueueAges(msgspec.Struct):
    """Queues, by topic and number."""

    queues: list[QueueAge]


class StoredCount(msgspec.Struct):
    """How many kept messages of a topic were stored in [from_ms, until_ms)."""

    topic: str
    from_ms: int
    until_ms: int
    messages: int


class Place(msgspec.Struct):
    """A group on a queue. offset: of the next message that it gets; pending: messages from there on.

    last_consumed_ms: store time of the last message before the offset; None: unknown.
    """

    topic: str
    queue: int
    offset: int
    next: int
    pending: int
    last_consumed_ms: int | None


class OperatedMember(msgspec.Struct):
    """A client that is online. interface: rocketmq, pmq, or http for a member of a broadcast group; other receivers of
    the plain interface are not known by name."""

    client: str
    address: str
    interface: str


class OnlineMember(msgspec.Struct):
    """A client of a group that is online. seen_ms: its last heartbeat; None: it is known by its connection alone."""

    group: str
    client: str
    address: str
    interface: str
    language: str | None
    version: str | None
    seen_ms: int | None


class OnlineMembers(msgspec.Struct):
    """Clients that are online, by group."""

    members: list[OnlineMember]


class OperatedGroup(msgspec.Struct):
    """A group. paused: it gets no messages. retries_max: deliveries after the first; then a message is a dead letter.

    online: members. pending: messages of its topics that it has not consumed; None: unknown, because the group has no
    offset yet on a topic that keeps messages. retrying: messages that wait for a
    further delivery. dead_letters: that are kept. mode: of pmq's own clients, cluster or broadcast; member: it is the
    group of one member of a broadcast group.
    """

    group: str
    paused: bool
    retries_max: int
    topics: list[str]
    online: int
    pending: int | None
    retrying: int
    dead_letters: int
    mode: str


class OperatedGroups(msgspec.Struct):
    """The groups of applications, by name."""

    groups: list[OperatedGroup]


class OperatedGroupDetail(OperatedGroup):
    """A group with its members and its places."""

    members: list[OperatedMember]
    queues: list[Place]


class OperatedSubscription(msgspec.Struct):
    """A group and a topic that it consumes. tag: expression of the members that are online; None: none is.

    pending: messages that it has not consumed; None: unknown, because the group has no offset there yet.
    """

    group: str
    topic: str
    tag: str | None
    online: int
    pending: int | None
    paused: bool


class OperatedSubscriptions(msgspec.Struct):
    """Subscriptions, by group and topic."""

    subscriptions: list[OperatedSubscription]


class KeptMessage(msgspec.Struct, omit_defaults=True):
    """A stored message. attempt: earlier deliveries and this one. properties, body: only where they were asked for.

    body: its text; body_base64 instead if it is not UTF-8. problem: why the message cannot be read.
    """

    id: str
    topic: str
    queue: int
    offset: int
    attempt: int
    born_ms: int
    stored_ms: int
    size: int
    from_address: str
    key: str = ""
    tag: str = ""
    problem: str | None = None
    properties: dict[str, str] = {}
    body: str | None = None
    body_base64: str | None = None


class KeptMessages(msgspec.Struct):
    """Stored messages, by store time."""

    messages: list[KeptMessage]


class OperatedLock(msgspec.Struct):
    """Who may write to the database. writer: number of the process, one more at each start. clock_ms: the database's.

    starts: the last starts, the latest first: writer, started_ms, host, pid, version of mqtrail.
    """

    writer: int
    clock_ms: int
    starts: list[dict[str, Any]]


class OperatedNode(msgspec.Struct):
    """The broker and its database. away: why the database does not answer; None: it answers.

    uncommitted_size: bytes of records that wait for their commit. boot_ms: start of the process. database: facts of
    the database (dialect, version, size, connections, …); None: the broker keeps a CommitLog.
    """

    broker: str
    version: str
    boot_ms: int
    away: str | None
    uncommitted_size: int
    stored_size: int
    stored_today: int
    database: dict[str, Any] | None


SHAPES: Final = (
    OperatedTopic,
    OperatedTopics,
    OperatedQueues,
    QueueAges,
    StoredCount,
    OperatedGroups,
    OperatedGroupDetail,
    OnlineMembers,
    OperatedSubscriptions,
    KeptMessage,
    KeptMessages,
    OperatedNode,
    OperatedLock,
)
