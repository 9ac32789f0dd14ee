"""The sources as one person sees them: each question is checked against the roles of that moment.

A person with a role on some topics, or in some clusters, may ask what can be confined to these. Whatever is about all
topics together is refused, because its parts cannot be separated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn

from mqtrail.client import InstanceConfig
from mqtrail.trail import Settings
from mqtrail.wire import topic_of_place

from ..changes import (
    Change,
    ChangePlan,
    CloneOffsets,
    ConsumeDirectly,
    DeleteGroup,
    DeleteTopic,
    RecallMessage,
    ResendDeadLetters,
    ResendEdited,
    ResendMessage,
    ResetOffsets,
    ResumeChecks,
    SetBrokerSettings,
    SetConsumeMode,
    SetGroup,
    SetOffset,
    SetTopic,
)
from ..cluster import (
    BODY_SHOWN_MAX,
    BrokersAnswer,
    BrokerSettingsAnswer,
    ClientAnswer,
    ClusterAnswers,
    GroupsAnswer,
    LagAnswer,
    MembersAnswer,
    StoredMessage,
    TopicsAnswer,
)
from ..doctor import Diagnosis
from ..joined import ClusterOverview
from ..operations import BrokerAccessAnswer, NameServersAnswer, ReplicationAnswer
from ..sources import Sources
from ..summaries import ShownIncident
from ..waiting import ROWS_DEFAULT, DelayedAnswer, PopsAnswer, TransactionsAnswer
from .model import LOCAL, NotAllowed, Person, Right

if TYPE_CHECKING:
    from mqtrail.lake import LakePath

    from ..lookup import Answers

NAMES_S: Final = 60.0
HIDDEN: Final = "the body is hidden: your role does not show bodies"


class KnownClusters:
    """The names of the clusters that the name servers know, kept for a minute. Thread safe."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._names: tuple[str, ...] = ()
        self._until_s = 0.0

    def all(self) -> tuple[str, ...]:
        """Return the names. MQError: they are not known."""
        if time.monotonic() >= self._until_s:
            names = {one.cluster for one in self._sources.of_cluster().brokers().brokers}
            self._names, self._until_s = tuple(sorted(names)), time.monotonic() + NAMES_S
        return self._names


@dataclass(frozen=True, slots=True)
class SeenSources:
    """`Sources` with the rights of a person. Its methods raise NotAllowed, and SignedOut when its session is over."""

    sources: Sources
    names: KnownClusters
    now: Callable[[], Person] = lambda: LOCAL

    @property
    def lake(self) -> LakePath | None:
        """The lake, None without one."""
        return self.sources.lake

    @property
    def namesrv(self) -> str:
        """The name servers, '' without a cluster."""
        return self.sources.namesrv

    @property
    def live(self) -> SeenCluster | None:
        """Questions to the cluster, None without one."""
        return None if self.sources.live is None else SeenCluster(self, self.sources.live)

    @property
    def settings(self) -> Settings:
        """Thresholds of judgements."""
        return self.sources.settings

    @property
    def instance(self) -> InstanceConfig:
        """Settings of clients."""
        return self.sources.instance

    @property
    def trace_topic(self) -> str:
        """The topic of trace records."""
        return self.sources.trace_topic

    def may(self, right: Right, topic: str = "") -> bool:
        """Return whether the person has a right in the live cluster, on a topic, or ('') on all."""
        person = self.now()
        if person.may(right, topic=topic):
            return True
        if self.sources.live is None:
            return False
        names = self.names.all()
        return bool(names) and all(person.may(right, name, topic) for name in names)

    def check(self, right: Right, topic: str = "") -> None:
        """Raise NotAllowed unless the person has a right in the live cluster."""
        if not self.may(right, topic):
            refuse(self.now(), right, topic)

    def check_change(self, change: Change) -> None:
        """Raise NotAllowed unless the person may do a change."""
        self.check(*needed(change))

    def check_plan(self, change: Change, plan: ChangePlan) -> None:
        """Raise NotAllowed unless the person may send a message again to the topic that it names, as any sender can."""
        if isinstance(change, ResendMessage | ResendEdited) and change.is_to_topic:
            self.check(Right.OPERATE, plan.steps[0].after)

    def check_incident(self, one: ShownIncident | None = None) -> None:
        """Raise NotAllowed unless the person may operate all topics of an incident's cluster; None: of any cluster."""
        person = self.now()
        clusters = {each.cluster for each in person.grants} if one is None else {one.cluster}
        if not any(person.may(Right.OPERATE, cluster) for cluster in clusters):
            refuse(person, Right.OPERATE)

    def answers(self, cluster: str = "") -> Answers:
        """Return look-ups in all sources, confined to what the person may read. The first call imports DuckDB."""
        person = self.now()
        if person.may(Right.READ):
            return self.sources.answers(cluster)
        from .confined import confined

        is_live = self.sources.live is not None and self.may(Right.READ)
        return confined(self.sources, person, cluster, is_live=is_live)

    def of_lake(self, cluster: str = "") -> Answers:
        """Return look-ups in the lake. NoSource: there is none."""
        self.sources.of_lake(cluster)
        return self.answers(cluster)

    def of_cluster(self) -> SeenCluster:
        """Return questions to the cluster. NoSource: there is none."""
        return SeenCluster(self, self.sources.of_cluster())

    def diagnosis(self, now_ms: int, *, sample_count: int = 1_000) -> Diagnosis:
        """Return what can be traced on the cluster. NoSource."""
        self.sources.of_cluster()
        self.check(Right.READ)
        return self.sources.diagnosis(now_ms, sample_count=sample_count)

    def close(self) -> None:
        """Close the connections."""
        self.sources.close()


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """Questions to the live cluster with the rights of a person."""

    seen: SeenSources
    live: ClusterAnswers

    def overview(self) -> ClusterOverview:
        """Return brokers, name servers and lag, found once for all who watch them."""
        self.seen.check(Right.READ)
        return self.live.overview()

    def brokers(self) -> BrokersAnswer:
        """Return every broker with its counters."""
        self.seen.check(Right.READ)
        return self.live.brokers()

    def settings(self, broker: str) -> BrokerSettingsAnswer:
        """Return the settings of a master without secrets."""
        self.seen.check(Right.READ)
        return self.live.settings(broker)

    def replication(self) -> ReplicationAnswer:
        """Return how the brokers follow their masters."""
        self.seen.check(Right.READ)
        return self.live.replication()

    def name_servers(self) -> NameServersAnswer:
        """Return the settings of each name server without secrets."""
        self.seen.check(Right.READ)
        return self.live.name_servers()

    def broker_access(self) -> BrokerAccessAnswer:
        """Return the users and policies of the brokers: to administrators, since it shows what is open."""
        self.seen.check(Right.ADMINISTER)
        return self.live.broker_access()

    def delayed(self, row_count: int = ROWS_DEFAULT) -> DelayedAnswer:
        """Return the messages that wait for their time."""
        self.seen.check(Right.READ)
        return self.live.delayed(row_count)

    def transactions(self, row_count: int = ROWS_DEFAULT) -> TransactionsAnswer:
        """Return the half messages that wait for the end of their transaction, and those that brokers gave up."""
        self.seen.check(Right.READ)
        return self.live.transactions(row_count)

    def pops(self, row_count: int = ROWS_DEFAULT) -> PopsAnswer:
        """Return the popped messages that are not acknowledged."""
        self.seen.check(Right.READ)
        return self.live.pops(row_count)

    def topics(self) -> TopicsAnswer:
        """Return the topics that the person may read."""
        if self.seen.may(Right.READ):
            return self.live.topics()
        found = self.live.topics()
        return replace(found, topics=tuple(one for one in found.topics if self.seen.may(Right.READ, one.name)))

    def groups(self) -> GroupsAnswer:
        """Return every group of an application."""
        self.seen.check(Right.READ)
        return self.live.groups()

    def members(self, group: str) -> MembersAnswer:
        """Return the live consumers of a group."""
        self.seen.check(Right.READ)
        return self.live.members(group)

    def client(self, group: str, client_id: str, *, has_stack: bool = False) -> ClientAnswer:
        """Return what a live consumer reports. has_stack: with its stack, for those who may operate."""
        self.seen.check(Right.OPERATE if has_stack else Right.READ)
        return self.live.client(group, client_id, has_stack=has_stack)

    def message(self, place: str, body_size_max: int = BODY_SHOWN_MAX) -> StoredMessage:
        """Return the copy at a place; without its body if the person may not see it."""
        topic = topic_of_place(place)
        self.seen.check(Right.READ, topic)
        if self.seen.may(Right.BODIES, topic):
            return self.live.message(place, body_size_max)
        found = self.live.message(place, 0)
        return replace(found, body=b"", is_hidden=True, why=HIDDEN)

    def lag(self, group: str | None = None, over_ms: int | None = None) -> LagAnswer:
        """Return what groups still have to read."""
        self.seen.check(Right.READ)
        return self.live.lag(group, over_ms)


def refuse(person: Person, right: Right, topic: str = "") -> NoReturn:
    """Raise NotAllowed."""
    found = ", ".join(map(str, person.grants)) or "none"
    where = f"on topic {topic!r}" if topic else "on all topics"
    raise NotAllowed(f"found the roles {found} of {person.name!r}, expected one with the right to {right} {where}")


def needed(change: Change) -> tuple[Right, str]:
    """Return the right that a change needs, and on which topic; '': on all."""
    match change:
        case ResetOffsets() | CloneOffsets() | SetOffset():
            return Right.OPERATE, change.topic
        case ResendMessage() | ResendEdited() | ConsumeDirectly():
            return Right.OPERATE, topic_of_place(change.place)
        case ResendDeadLetters() | ResumeChecks():
            return Right.OPERATE, ""
        case RecallMessage():
            return Right.OPERATE, change.topic
        case SetTopic() | DeleteTopic():
            return Right.ADMINISTER, change.topic
        case SetGroup() | DeleteGroup() | SetConsumeMode() | SetBrokerSettings():
            return Right.ADMINISTER, ""
