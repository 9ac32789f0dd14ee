"""Samples of a cluster: subscriptions, clients, committed offsets and queue ranges, as rows of trail's relations.

The samples are queries to name servers and masters; nothing is written to the cluster.

Unknown values have no row and are reported; they are never stored as zero. A group for which no broker answered has a
row with status ERROR. A queue without a committed offset has no row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.wire import (
    CLOUD_TRACE_TOPIC_PREFIX,
    DELAY_LEVELS_DEFAULT,
    DLQ_PREFIX,
    HALF_TOPIC,
    IMPLEMENTATION,
    IMPLEMENTATION_KEY,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    ConsumerConnections,
    ConsumerNotOnline,
    MessageQueue,
    MQError,
    Refusal,
    business_topics,
    parse_delay_levels,
)

from .group_masters import MASTERS, MasterEpochs
from .offsets import QueueOffsets
from .orders import ConsumeOrders

Row = dict[str, Any]

_INNER_EVIDENCE = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
ALL_TOPICS = "*"
NOT_OPTED_IN = (
    "business topics are not read because these are not mqtrail brokers; name some with --topic, or all with --topic "
    "'*', and limit the rate with --read-rate-max. Until then verdicts that need stored copies are UNKNOWN"
)


@dataclass(frozen=True, slots=True)
class Topology:
    """A cluster: its name, masters by broker name, and topics by how the pipeline uses them."""

    cluster: str
    masters: Mapping[str, str]
    business: tuple[str, ...]
    evidence: tuple[str, ...]  # business topics, all retry and dead-letter topics, _INNER_EVIDENCE
    trace_topics: tuple[str, ...]  # the configured topic and those of regions, if they exist
    delays_ms: tuple[int, ...]  # delay of each level
    problems: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()  # of all kinds, read or not
    without_master: tuple[str, ...] = ()  # brokers that only have slaves: consumers read there; they are not sampled


def is_trace_topic(topic: str, trace_topic: str) -> bool:
    """Return whether clients send their trace to a topic. trace_topic: the configured one; others are of regions."""
    return topic == trace_topic or topic.startswith(CLOUD_TRACE_TOPIC_PREFIX)


def survey(admin: SyncAdmin, trace_topic: str, only: tuple[str, ...] | None) -> Topology:
    """Query the cluster's brokers and topics. MQError: no name server answers.

    A master that does not answer becomes a problem, and is assumed to be like the others.

    only: the business topics to read, ALL_TOPICS for all. None: all topics of a cluster of mqtrail brokers. On other
    clusters None reads no business topic, because a second reader of all messages is a load that its operator decides.
    """
    info = admin.cluster()
    names = sorted(info.cluster_addr_table)
    masters = admin.masters()
    topics = admin.topics()
    levels, is_ours = DELAY_LEVELS_DEFAULT, bool(masters)
    silent: list[str] = []
    for name, address in masters.items():
        try:
            settings = admin.broker_config(address)
        except MQError as error:
            silent.append(f"configuration on {name}: {error}")
            is_ours = is_ours and len(silent) < len(masters)
            continue
        levels = settings.get("messageDelayLevel", levels)
        is_ours = is_ours and settings.get(IMPLEMENTATION_KEY) == IMPLEMENTATION
    everything = is_ours if only is None else ALL_TOPICS in only
    business = tuple(
        topic
        for topic in business_topics(topics, names, info.broker_addr_table)
        if topic != trace_topic and (everything or topic in (only or ()))
    )
    problems = (*silent, *(() if everything or only is not None else (NOT_OPTED_IN,)))
    around = tuple(topic for topic in topics if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    inner = tuple(topic for topic in _INNER_EVIDENCE if topic in topics)
    return Topology(
        cluster=names[0] if names else "",
        masters=masters,
        business=business,
        evidence=(*business, *around, *inner),
        delays_ms=tuple(parse_delay_levels(levels)),
        problems=problems,
        topics=tuple(topics),
        without_master=tuple(sorted(info.broker_addr_table.keys() - masters.keys())),
        trace_topics=tuple(topic for topic in topics if is_trace_topic(topic, trace_topic)),
    )


NO_MASTER: Final = "it has no master, only slaves"
GROUPS_MAX: Final = 20_000  # groups of a sample: a broker may report any names

Question = tuple[str, str, str]
"""(what, broker name, topic), as in trail.SAMPLES: OFFSETS or GROUPS of a broker, or RANGES of a topic on a broker."""


@dataclass(slots=True)
class ClusterSample:
    """Rows by relation name, of one instant."""

    sampled_ms: int
    rows: dict[str, list[Row]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    answers: dict[Question, str] = field(default_factory=dict)
    """Question -> why there is no answer; '' if there is one."""
    gap: str = ""
    """Why there are no samples of the time before this one; '' if there are."""
    topics: list[str] = field(default_factory=list)
    """All topics of the cluster; empty: not known."""

    def add(self, relation: trail.Relation, row: Row) -> None:
        """Add one row of a relation."""
        self.rows.setdefault(relation.name, []).append(row)

    @property
    def groups(self) -> set[str]:
        """The groups that were queried."""
        return {row["group_name"] for row in self.rows.get(trail.CLIENTS.name, ())}

    @property
    def has_readers(self) -> bool:
        """Whether a group has an offset or a subscription: no other group has a lag."""
        return bool(self.rows.get(trail.GROUP_OFFSETS.name) or self.rows.get(trail.SUBSCRIPTIONS.name))

    def read_topics(self, reached: QueueOffsets, left: Collection[str] = ()) -> set[str]:
        """Topics all of whose queues were read up to this sample. reached: the next offset to read of each queue.

        Where the queues of a broker that did not answer end is not known, so their topics are not among them. left:
        topics of brokers that are no more, which may have stored messages after they were read for the last time.
        """
        ends = list(self._ends())
        topics = {queue.topic for queue, _ in ends if queue in reached}
        unread = {queue.topic for queue, max_offset in ends if reached.get(queue, 0) < max_offset}
        return topics - unread - {queue.topic for queue in reached if self._is_silent_of(queue)} - set(left)

    def _is_silent_of(self, queue: MessageQueue) -> bool:
        """Whether the broker of a queue did not answer in this sample, or not about the queue's topic."""
        name = queue.broker_name
        return bool(self.answers.get(("OFFSETS", name, "")) or self.answers.get(("RANGES", name, queue.topic)))

    def behind(self, reached: QueueOffsets) -> list[str]:
        """Return a sentence for each broker whose queues were not read up to the sample: messages are missing."""
        missing: Counter[str] = Counter()
        for queue, max_offset in self._ends():
            missing[queue.broker_name] += max(max_offset - (reached.get(queue) or 0), 0)
        return [
            f"{count} messages of broker {name} could not be read yet"
            for name, count in sorted(missing.items())
            if count
        ]

    def _ends(self) -> Iterator[tuple[MessageQueue, int]]:
        for row in self.rows.get(trail.QUEUE_RANGES.name, ()):
            yield MessageQueue(row["topic"], row["broker_name"], row["queue_id"]), row["max_offset"]


def sample(
    admin: SyncAdmin,
    topology: Topology,
    cluster: str,
    sampled_ms: int,
    known_groups: Iterable[str] = (),
    orders: ConsumeOrders | None = None,
    epochs: MasterEpochs | None = None,
) -> ClusterSample:
    """Sample a cluster now.

    Groups are those that masters have a configuration or offsets of, and known_groups: groups of earlier samples and
    of the trace, because a broker forgets a group. A master that does not answer gets no further queries, except for
    its offsets. orders, epochs: what consumers and masters said in earlier samples.

    Clients are queried before offsets. A consumer commits before it leaves, so a group without clients has committed:
    if its offset rises after that, an operator moved it.
    """
    found = ClusterSample(sampled_ms, topics=list(topology.topics))
    stamp: Row = {"cluster": cluster, "sampled_ms": sampled_ms}
    asking = _Asking(admin, found, topology.masters, stamp, orders or ConsumeOrders())
    asking.leave_out(topology.without_master)
    known = set(known_groups)
    asked = sorted(known)[:GROUPS_MAX]
    for group in asked:
        asking.group(group)
    groups = set(known)
    for name, address in topology.masters.items():
        groups |= asking.offsets(name, address)
        groups |= asking.configured_groups(name, address)
    for group in asking.bounded(groups, known)[len(asked) :]:
        asking.group(group)
    asking.answer_groups()
    for topic in (*topology.trace_topics, *topology.evidence):
        asking.ranges(topic)
    epochs = epochs or MasterEpochs()
    found.rows[MASTERS] = epochs.rows(admin, topology.masters, topology.without_master, asking.silent)
    return found


@dataclass(slots=True)
class _Asking:
    """Queries for one sample, and the masters that did not answer."""

    admin: SyncAdmin
    found: ClusterSample
    masters: Mapping[str, str]
    stamp: Row
    orders: ConsumeOrders = field(default_factory=ConsumeOrders)
    silent: set[str] = field(default_factory=set)
    unknown: dict[str, str] = field(default_factory=dict)
    """Brokers that may have groups which they did not report, with the first reason."""

    def leave_out(self, names: Iterable[str]) -> None:
        """Note brokers that have only slaves: offsets and clients of groups that read there are not known."""
        for name in names:
            self.unknown[name] = self.found.answers["OFFSETS", name, ""] = NO_MASTER
            self.found.problems.append(f"offsets and clients on {name}: {NO_MASTER}")

    def answer_groups(self) -> None:
        """Note which brokers reported all groups that they know, with topics and clients."""
        first = next(iter(self.unknown.values()), "" if self.masters else "there is no master")
        names = self.masters.keys() | self.unknown.keys()
        self.found.answers |= {("GROUPS", name, ""): self.unknown.get(name, "") for name in names}
        self.found.answers["GROUPS", "", ""] = first

    def bounded(self, groups: set[str], known: set[str]) -> list[str]:
        """Return at most GROUPS_MAX groups, known ones first; without the others no broker's groups are all known."""
        if len(groups) > GROUPS_MAX:
            reason = f"found {len(groups)} groups, expected at most {GROUPS_MAX}: the others are not sampled"
            self.found.problems.append(reason)
            for name in self.masters:
                self.unknown.setdefault(name, reason)
        return sorted(groups, key=lambda group: (group not in known, group))[:GROUPS_MAX]

    def _note(self, what: str, name: str, error: Exception) -> None:
        """Report a failed query. After an error other than a refusal, the broker counts as silent."""
        self.found.problems.append(f"{what} on {name}: {error}")
        if not isinstance(error, Refusal):
            self.silent.add(name)

    def offsets(self, name: str, address: str) -> set[str]:
        """Add the committed offsets on one master; return its groups, of which broadcasting ones commit no offset."""
        try:
            offsets = self.admin.committed_offsets(address)
        except MQError as error:
            self._note("committed offsets", name, error)
            self.unknown.setdefault(name, str(error))
            self.found.answers["OFFSETS", name, ""] = str(error)
            return set()
        self.found.answers["OFFSETS", name, ""] = ""
        groups = set()
        for topic, group, is_broadcast, queues in offsets.of_business():
            groups.add(group)
            if is_broadcast:
                continue
            for queue_id, offset in queues.items():
                place = {"group_name": group, "topic": topic, "broker_name": name, "queue_id": queue_id}
                self.found.add(trail.GROUP_OFFSETS, {**self.stamp, **place, "consumer_offset": offset})
        return groups

    def configured_groups(self, name: str, address: str) -> set[str]:
        """Return the groups that one master has a configuration of."""
        if name in self.silent:
            return set()
        try:
            return self.admin.groups(address).business_groups()
        except MQError as error:
            self._note("groups", name, error)
            self.unknown.setdefault(name, str(error))
            return set()

    def group(self, group: str) -> None:
        """Add the clients and subscriptions of a group."""
        answers: list[ConsumerConnections] = []
        ordered: dict[str, str] = {}
        is_complete = bool(self.masters) and not any(name not in self.masters for name in self.unknown)
        for name, address in self.masters.items():
            if name in self.silent:
                is_complete = False
                self.unknown.setdefault(name, "it did not answer an earlier question")
                continue
            try:
                found = self.admin.consumer_connections(group, address)
                answers.append(found)
                ordered |= self.orders.of_clients(self.admin, group, found, address, self.found.sampled_ms)
            except ConsumerNotOnline:
                continue
            except MQError as error:
                is_complete = False
                self._note(f"clients of {group}", name, error)
                self.unknown.setdefault(name, str(error))
        for relation, row in trail.group_rows(group, answers, is_complete=is_complete, ordered=ordered):
            self.found.add(relation, {**self.stamp, **row})

    def ranges(self, topic: str) -> None:
        """Add the ranges of a topic's queues."""
        try:
            gathered = self.admin.topic_stats(topic, without=self.silent)
        except MQError as error:
            self.found.problems.append(f"ranges of {topic}: {error}")
            return
        for name, failure in gathered.failures.items():
            self._note(f"ranges of {topic}", name, failure)
            self.found.answers["RANGES", name, topic] = str(failure)
        for name, stats in gathered.found.items():
            self.found.answers["RANGES", name, topic] = ""
            for queue, reach in stats.offset_table.items():
                row = {"broker_name": name, "topic": topic, "queue_id": queue.queue_id}
                ends = {"min_offset": reach.min_offset, "max_offset": reach.max_offset}
                self.found.add(trail.QUEUE_RANGES, {**self.stamp, **row, **ends})
