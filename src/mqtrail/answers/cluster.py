"""Answers about a live cluster: brokers, topics, groups, their members, lag. Read-only.

What a broker does not report is an omission of the answer's scope, and unknown in its rows: None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from mqtrail.client import ClusterLag, InstanceConfig, Member, SyncAdmin
from mqtrail.wire import (
    RETRY_PREFIX,
    ConsumerRunningInfo,
    MQError,
    business_topics,
    is_business_group,
    parse_place,
    version_text,
)

from .changes.setting_kinds import is_secret_setting
from .joined import ClusterOverview, JoinedAnswers
from .masters import masters_of
from .model import Scope
from .operations import (
    BrokerAccessAnswer,
    NameServersAnswer,
    ReplicationAnswer,
    broker_access,
    cluster_scope,
    name_servers,
    replication,
)
from .waiting import (
    ROWS_DEFAULT,
    DelayedAnswer,
    GroupCopies,
    PopsAnswer,
    TransactionsAnswer,
    delayed,
    group_copies,
    pops,
    transactions,
)

T = TypeVar("T")
OLDEST_COUNT: Final = 10  # messages that wait, of one group
BODY_SHOWN_MAX: Final = 64 * 1024  # bytes
STACK_SIZE_MAX: Final = 256 * 1024  # characters


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker process. counters: as the broker reports them; None: it did not answer. why: the error then, or ''."""

    cluster: str
    name: str
    broker_id: int
    address: str
    version: str
    counters: Mapping[str, str] | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class BrokersAnswer:
    """The brokers that the name servers know."""

    scope: Scope
    brokers: tuple[BrokerRow, ...]


@dataclass(frozen=True, slots=True)
class BrokerSettingsAnswer:
    """The settings of a master, as it reports them. None: a secret."""

    scope: Scope
    broker: str
    settings: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class TopicOnBroker:
    """A topic's configuration on one broker. perm: bits 4 read, 2 write."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic. is_business: an application's, neither of the system nor a retry or dead-letter topic."""

    name: str
    is_business: bool
    brokers: tuple[TopicOnBroker, ...]


@dataclass(frozen=True, slots=True)
class TopicsAnswer:
    """The topics of all masters."""

    scope: Scope
    topics: tuple[TopicRow, ...]


@dataclass(frozen=True, slots=True)
class GroupOnBroker:
    """A group's configuration on one broker. retry_count_max: deliveries after the first."""

    broker_name: str
    is_consume_enabled: bool
    retry_count_max: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group with a configuration."""

    name: str
    brokers: tuple[GroupOnBroker, ...]


@dataclass(frozen=True, slots=True)
class GroupsAnswer:
    """The consumer groups of applications."""

    scope: Scope
    groups: tuple[GroupRow, ...]


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A live consumer. subscriptions: topic -> expression; None: it did not answer. why: the error then, or ''."""

    client_id: str
    address: str
    brokers: tuple[str, ...]
    language: str
    version: str
    subscriptions: Mapping[str, str] | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class MembersAnswer:
    """The live consumers of a group. differing: topics to which its members do not subscribe alike."""

    scope: Scope
    group_name: str
    members: tuple[MemberRow, ...]
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientQueue:
    """A queue at a consumer. committed_offset: its next commit. pulled_ms, consumed_ms: last times; None: never."""

    topic: str
    broker_name: str
    queue_id: int
    committed_offset: int
    cached_count: int
    is_locked: bool
    pulled_ms: int | None
    consumed_ms: int | None


@dataclass(frozen=True, slots=True)
class ClientTopic:
    """How a consumer processes a topic: its handler's ms, messages per second, failures of the last hour.

    handler_ms: None: unknown, since it processed nothing in the last minute.
    """

    topic: str
    handler_ms: float | None
    done_per_s: float
    failed_per_s: float
    failed_count: int


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """What a live consumer reports about itself. properties: None: a secret.

    stack: the first STACK_SIZE_MAX characters of its threads' stacks, stack_size of all; None: not asked for, or the
    client does not report it.
    """

    scope: Scope
    group_name: str
    client_id: str
    broker: str
    properties: Mapping[str, str | None]
    subscriptions: Mapping[str, str]
    queues: tuple[ClientQueue, ...]
    topics: tuple[ClientTopic, ...]
    stack: str | None
    stack_size: int


@dataclass(frozen=True, slots=True)
class GroupWait:
    """What a group still has to read in its topics and retry topics together. None: unknown.

    is_lower_bound: queues are unknown, so that the values are lower bounds.
    """

    group_name: str
    lag_count: int | None
    lag_ms: int | None
    is_lower_bound: bool


@dataclass(frozen=True, slots=True)
class LagAnswer:
    """The lag of all groups, or of one. waits: a row for each group of lag, in its order. copies: of one group."""

    scope: Scope
    waits: tuple[GroupWait, ...]
    lag: ClusterLag
    copies: GroupCopies | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A stored copy of a message. body: its first bytes; body_size: of all. why: the body could not be decoded.

    is_hidden: the asker may not see the body.
    """

    scope: Scope
    msg_id: str
    place: str
    stored_ms: int
    properties: Mapping[str, str]
    body: bytes
    body_size: int
    why: str = ""
    is_hidden: bool = False


class UnknownMember(MQError):
    """No such consumer is online in the group."""


class InvalidPlace(MQError):
    """A text does not name the place of a stored message."""


class ClusterAnswers:
    """Questions to one cluster. Thread safe.

    Every method but `message` and `members` raises MQError if no name server answers or none knows a master: a broker
    that stops unregisters, and an answer without it would report no lag.
    """

    def __init__(self, namesrv: str, instance: InstanceConfig | None = None) -> None:
        self.namesrv = namesrv
        self._admin = SyncAdmin(namesrv, config=instance)
        self._joined = JoinedAnswers()

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def overview(self) -> ClusterOverview:
        """Return what several people watch at the same time: what is found for one is given to all for 5 s."""
        return ClusterOverview(self, self._joined)

    def brokers(self) -> BrokersAnswer:
        """Return every broker with its counters."""
        self._admin.targets()
        rows = tuple(
            BrokerRow(
                one.cluster,
                one.name,
                one.broker_id,
                one.address,
                one.version,
                None if one.runtime is None else dict(one.runtime),
                "" if one.error is None else str(one.error),
            )
            for one in self._admin.brokers()
        )
        omissions = [f"broker {one.name} at {one.address}: {one.why}" for one in rows if one.why]
        return BrokersAnswer(self._scope(omissions), rows)

    def settings(self, broker: str) -> BrokerSettingsAnswer:
        """Return the settings of a master, by its name or address; secrets are left out. UnknownBroker."""
        ((name, address),) = masters_of(self._admin, broker).items()
        found = self._admin.broker_config(address)
        shown = {one: None if value and is_secret_setting(one) else value for one, value in found.items()}
        return BrokerSettingsAnswer(self._scope(()), name, shown)

    def replication(self) -> ReplicationAnswer:
        """Return how the brokers follow their masters."""
        return replication(self._admin, self.namesrv)

    def name_servers(self) -> NameServersAnswer:
        """Return the settings of each name server; secrets are left out."""
        return name_servers(self._admin, self.namesrv)

    def broker_access(self) -> BrokerAccessAnswer:
        """Return the users and policies of the masters, without passwords."""
        return broker_access(self._admin, self.namesrv)

    def delayed(self, row_count: int = ROWS_DEFAULT) -> DelayedAnswer:
        """Return the messages that wait for their time."""
        return delayed(self._admin, self.namesrv, row_count)

    def transactions(self, row_count: int = ROWS_DEFAULT) -> TransactionsAnswer:
        """Return the half messages that wait for the end of their transaction, and those that brokers gave up."""
        return transactions(self._admin, self.namesrv, row_count)

    def pops(self, row_count: int = ROWS_DEFAULT) -> PopsAnswer:
        """Return the popped messages that are not acknowledged."""
        return pops(self._admin, self.namesrv, row_count)

    def topics(self) -> TopicsAnswer:
        """Return every topic with its configuration on each master."""
        known = self._admin.cluster()
        found: dict[str, list[TopicOnBroker]] = {name: [] for name in self._admin.topics()}
        tables, omissions = self._each_master(lambda address: self._admin.topic_configs(address).topic_config_table)
        for broker, table in tables.items():
            for name, config in table.items():
                row = TopicOnBroker(broker, config.read_queue_nums, config.write_queue_nums, config.perm)
                found.setdefault(name, []).append(row)
        mine = set(business_topics(found, known.cluster_addr_table, known.broker_addr_table))
        rows = tuple(TopicRow(name, name in mine, tuple(found[name])) for name in sorted(found))
        return TopicsAnswer(self._scope(omissions), rows)

    def groups(self) -> GroupsAnswer:
        """Return every group of an application with its configuration on each master."""
        found: dict[str, list[GroupOnBroker]] = {}
        tables, omissions = self._each_master(lambda address: self._admin.groups(address).subscription_group_table)
        for broker, table in tables.items():
            for name, config in table.items():
                if is_business_group(name):
                    row = GroupOnBroker(broker, config.consume_enable, config.retry_max_times)
                    found.setdefault(name, []).append(row)
        rows = tuple(GroupRow(name, tuple(found[name])) for name in sorted(found))
        return GroupsAnswer(self._scope(omissions), rows)

    def members(self, group: str) -> MembersAnswer:
        """Return the live consumers of a group. A consumer that is connected to several brokers has one row."""
        gathered = self._admin.members(group)
        rows: dict[str, MemberRow] = {}
        for one in (member for members in gathered.values() for member in members):
            row = _member(one)
            known = rows.get(one.client_id)
            if known is not None:
                best = known if known.subscriptions is not None else row
                row = replace(best, brokers=(*known.brokers, one.broker_name))
            rows[one.client_id] = row
        omissions = [f"members at broker {name}: {error}" for name, error in gathered.failures.items()]
        members = tuple(rows[client_id] for client_id in sorted(rows))
        return MembersAnswer(self._scope(omissions), group, members, _differing(members))

    def client(self, group: str, client_id: str, *, has_stack: bool = False) -> ClientAnswer:
        """Return what a live consumer of a group reports. has_stack: with the stacks of its threads. UnknownMember.

        Each broker that it is connected to is asked, until one has its answer. MQError: none has.
        """
        addresses = self._admin.targets()
        gathered = self._admin.group_connections(group)
        names = [
            name
            for name, known in gathered.found.items()
            if name in addresses and client_id in {one.client_id for one in known.connection_set}
        ]
        omissions = [f"members at broker {name}: {error}" for name, error in gathered.failures.items()]
        if not names:
            unknown = f"; not known: {'; '.join(omissions)}" if omissions else ""
            raise UnknownMember(f"found no member {client_id!r} of group {group!r} online{unknown}")
        for name in names:
            try:
                found = self._admin.running_info(group, client_id, addresses[name], jstack=has_stack)
            except (MQError, OSError) as error:
                omissions.append(f"client {client_id} asked through broker {name}: {error}")
                last = error
                continue
            return _client(self._scope(omissions), group, client_id, name, found)
        raise last

    def message(self, place: str, body_size_max: int = BODY_SHOWN_MAX) -> StoredMessage:
        """Return the copy at `broker/topic/queue@offset` with the first bytes of its body. NoMessage, InvalidPlace."""
        try:
            queue, offset = parse_place(place)
        except ValueError:
            raise InvalidPlace(f"found the place {place!r}, expected BROKER/TOPIC/QUEUE@OFFSET") from None
        found = self._admin.message_at_offset(queue, offset)
        return StoredMessage(
            self._scope(()),
            found.msg_id,
            place,
            found.store_timestamp_ms,
            dict(found.properties),
            found.body[:body_size_max],
            len(found.body),
            found.undecodable or "",
        )

    def lag(self, group: str | None = None, over_ms: int | None = None) -> LagAnswer:
        """Return what groups still have to read. group: only this one, and the messages that have waited longest.

        over_ms: read twice with this pause, for a trend.
        """
        self._admin.targets()
        found = self._admin.lag(group, over_ms=over_ms, oldest_count=OLDEST_COUNT if group else 0)
        if group is None:
            found = replace(found, groups=tuple(replace(one, queues=()) for one in found.groups))
        waits = tuple(
            GroupWait(one.group_name, _sum(one.topics.lag_count, one.retry.lag_count), one.lag_ms, one.is_unknown)
            for one in found.groups
        )
        if group is None:
            return LagAnswer(self._scope(found.problems, found.as_of_ms), waits, found)
        omissions = [*found.problems]
        copies = group_copies(self._admin, group, omissions)
        return LagAnswer(self._scope(omissions, found.as_of_ms), waits, found, copies)

    def _each_master(self, ask: Callable[[str], T]) -> tuple[dict[str, T], list[str]]:
        """Ask every master; return answers by broker name, and a sentence for each failure. MQError: no master."""
        found: dict[str, T] = {}
        omissions: list[str] = []
        for name, address in self._admin.targets().items():
            try:
                found[name] = ask(address)
            except MQError as error:
                omissions.append(f"broker {name} at {address}: {error}")
        return found, omissions

    def _scope(self, omissions: Sequence[str], as_of_ms: int | None = None) -> Scope:
        return cluster_scope(self.namesrv, omissions, as_of_ms)


def _sum(first: int | None, second: int | None) -> int | None:
    """Return the sum of what is known; None if nothing is."""
    known = [one for one in (first, second) if one is not None]
    return sum(known) if known else None


def _member(one: Member) -> MemberRow:
    running = one.running
    subscriptions = None
    if running is not None:
        # A consumer subscribes to its own retry topic by itself.
        subscriptions = {
            each.topic: each.sub_string for each in running.subscription_set if not each.topic.startswith(RETRY_PREFIX)
        }
    why = "" if one.error is None else str(one.error)
    version = version_text(one.version)
    return MemberRow(one.client_id, one.address, (one.broker_name,), one.language, version, subscriptions, why)


def _client(scope: Scope, group: str, client_id: str, broker: str, found: ConsumerRunningInfo) -> ClientAnswer:
    stack = found.jstack
    queues = (
        ClientQueue(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            one.commit_offset,
            one.cached_msg_count,
            one.locked,
            one.last_pull_timestamp or None,
            one.last_consume_timestamp or None,
        )
        for queue, one in sorted(found.mq_table.items(), key=lambda each: each[0])
    )
    topics = (
        ClientTopic(
            topic,
            one.consume_rt if one.consume_rt or one.consume_ok_tps or one.consume_failed_tps else None,
            one.consume_ok_tps,
            one.consume_failed_tps,
            one.consume_failed_msgs,
        )
        for topic, one in sorted(found.status_table.items())
    )
    return ClientAnswer(
        scope,
        group,
        client_id,
        broker,
        {name: None if is_secret_setting(name) else value for name, value in sorted(found.properties.items())},
        {one.topic: one.sub_string for one in found.subscription_set},
        tuple(queues),
        tuple(topics),
        None if stack is None else stack[:STACK_SIZE_MAX],
        0 if stack is None else len(stack),
    )


def _differing(members: Sequence[MemberRow]) -> tuple[str, ...]:
    """Return the topics that some members subscribe to with another expression, or not at all."""
    known = [one.subscriptions for one in members if one.subscriptions is not None]
    topics = sorted({topic for one in known for topic in one})
    return tuple(topic for topic in topics if len({one.get(topic) for one in known}) > 1)
