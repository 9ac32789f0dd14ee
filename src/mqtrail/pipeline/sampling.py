"""Samples of a cluster: subscriptions, clients, committed offsets and queue ranges, as rows of trail's relations.

The name servers and masters are asked for everything; nothing is written to the cluster.

What a broker does not know has no row, and is reported; it is never a zero. A group that no broker answered for has a
row with status ERROR. A queue without a committed offset has no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.wire import (
    CLOUD_TRACE_TOPIC_PREFIX,
    DELAY_LEVELS_DEFAULT,
    DLQ_PREFIX,
    IMPLEMENTATION,
    IMPLEMENTATION_KEY,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    ConsumerNotOnline,
    MessageQueue,
    MQError,
    business_topics,
    is_business_group,
    parse_delay_levels,
)

from .offsets import QueueOffsets

Row = dict[str, Any]

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
    evidence: tuple[str, ...]  # business topics, all retry and dead-letter topics, topics in which copies wait
    trace_topics: tuple[str, ...]  # the configured topic and those of regions, if they exist
    delays_ms: tuple[int, ...]  # delay of each level
    problems: tuple[str, ...] = ()


def survey(admin: SyncAdmin, trace_topic: str, only: tuple[str, ...] | None) -> Topology:
    """Ask the cluster for its brokers and topics. MQError: no name server answers.

    only: the business topics to read, ALL_TOPICS for all. None: all topics of a cluster of mqtrail brokers. On other
    clusters None reads no business topic, because a second reader of all messages is a load that its operator decides.
    """
    info = admin.cluster()
    names = sorted(info.cluster_addr_table)
    masters = admin.masters()
    topics = admin.topics()
    levels, is_ours = DELAY_LEVELS_DEFAULT, bool(masters)
    for address in masters.values():
        settings = admin.broker_config(address)
        levels = settings.get("messageDelayLevel", levels)
        is_ours = is_ours and settings.get(IMPLEMENTATION_KEY) == IMPLEMENTATION
    everything = is_ours if only is None else ALL_TOPICS in only
    business = tuple(
        topic
        for topic in business_topics(topics, names, info.broker_addr_table)
        if topic != trace_topic and (everything or topic in (only or ()))
    )
    problems = () if everything or only is not None else (NOT_OPTED_IN,)
    around = tuple(topic for topic in topics if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    waiting = tuple(topic for topic in (SCHEDULE_TOPIC, TIMER_TOPIC) if topic in topics)
    return Topology(
        cluster=names[0] if names else "",
        masters=masters,
        business=business,
        evidence=(*business, *around, *waiting),
        delays_ms=tuple(parse_delay_levels(levels)),
        problems=problems,
        trace_topics=tuple(
            topic for topic in topics if topic == trace_topic or topic.startswith(CLOUD_TRACE_TOPIC_PREFIX)
        ),
    )


@dataclass(slots=True)
class ClusterSample:
    """Rows by relation name, of one instant."""

    sampled_ms: int
    rows: dict[str, list[Row]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, relation: trail.Relation, row: Row) -> None:
        """Add one row of a relation."""
        self.rows.setdefault(relation.name, []).append(row)

    def with_read_offsets(self, reached: QueueOffsets) -> dict[str, list[Row]]:
        """The rows, with how far the pipeline has read each queue of queue_ranges."""
        ranges = [row | {"read_offset": reached.get(_queue_of(row))} for row in self._ranges()]
        return self.rows | ({trail.QUEUE_RANGES.name: ranges} if ranges else {})

    def _ranges(self) -> list[Row]:
        return self.rows.get(trail.QUEUE_RANGES.name, [])


def _queue_of(row: Row) -> MessageQueue:
    return MessageQueue(row["topic"], row["broker_name"], row["queue_id"])


def behind(found: ClusterSample, reached: QueueOffsets) -> list[str]:
    """Report the brokers whose queues were not read up to the sample: the judgement lacks these messages."""
    missing: dict[str, int] = {}
    for row in found.with_read_offsets(reached).get(trail.QUEUE_RANGES.name, []):
        if row["max_offset"] > (row["read_offset"] or 0):
            missing[row["broker_name"]] = (
                missing.get(row["broker_name"], 0) + row["max_offset"] - (row["read_offset"] or 0)
            )
    return [f"{count} messages of broker {name} could not be read yet" for name, count in sorted(missing.items())]


def sample(
    admin: SyncAdmin,
    topology: Topology,
    cluster: str,
    sampled_ms: int,
    known_groups: Iterable[str] = (),
) -> ClusterSample:
    """Sample a cluster now.

    Groups are those that masters have a configuration or offsets of, and known_groups: groups of earlier samples and
    of the trace, because a broker forgets a group.
    """
    found = ClusterSample(sampled_ms)
    stamp: Row = {"cluster": cluster, "sampled_ms": sampled_ms}
    groups: set[str] = set(known_groups)
    for name, address in topology.masters.items():
        groups |= _sample_offsets(admin, found, name, address, stamp)
        try:
            groups |= {group for group in admin.groups(address).subscription_group_table if is_business_group(group)}
        except MQError as error:
            found.problems.append(f"groups of {name}: {error}")
    for group in sorted(groups):
        _sample_group(admin, found, group, topology.masters, stamp)
    for topic in (*topology.trace_topics, *topology.evidence):
        _sample_ranges(admin, found, topic, stamp)
    return found


def _sample_offsets(admin: SyncAdmin, found: ClusterSample, name: str, address: str, stamp: Row) -> set[str]:
    """Add the committed offsets on one master; return its groups, of which broadcasting ones commit no offset."""
    try:
        offsets = admin.committed_offsets(address)
    except MQError as error:
        found.problems.append(f"committed offsets on {name}: {error}")
        return set()
    groups = set()
    for topic, group, is_broadcast, queues in offsets.by_group():
        if not is_business_group(group):
            continue
        groups.add(group)
        if is_broadcast:
            continue
        for queue_id, offset in queues.items():
            where = {"topic": topic, "broker_name": name, "queue_id": queue_id}
            found.add(trail.GROUP_OFFSETS, {**stamp, "group_name": group, **where, "consumer_offset": offset})
    return groups


def _sample_group(admin: SyncAdmin, found: ClusterSample, group: str, masters: Mapping[str, str], stamp: Row) -> None:
    clients: dict[str, Row] = {}
    subscriptions: dict[tuple[str, str, str], Row] = {}
    failed = False
    for name, address in masters.items():
        try:
            connections = admin.consumer_connections(group, address)
        except ConsumerNotOnline:
            continue
        except MQError as error:
            failed = True
            found.problems.append(f"clients of {group} on {name}: {error}")
            continue
        for one in connections.connection_set:
            clients[one.client_id] = {
                "client_id": one.client_id,
                "client_host": one.client_addr or "",
                "language": str(one.language or ""),
                "version": one.version,
            }
        for topic, wanted in connections.subscription_table.items():
            subscriptions[topic, wanted.expression_type or "TAG", wanted.sub_string] = {
                "topic": topic,
                "expression_type": wanted.expression_type or "TAG",
                "expression": wanted.sub_string,
                "consume_type": connections.consume_type or "",
                "message_model": connections.message_model or "",
            }
    for row in clients.values():
        found.add(trail.CLIENTS, {**stamp, "group_name": group, "status": "OK", **row})
    if not clients:
        status = "ERROR" if failed or not masters else "OFFLINE"
        found.add(trail.CLIENTS, {**stamp, "group_name": group, "status": status, "client_id": ""})
    for row in subscriptions.values():
        found.add(trail.SUBSCRIPTIONS, {**stamp, "group_name": group, **row})


def _sample_ranges(admin: SyncAdmin, found: ClusterSample, topic: str, stamp: Row) -> None:
    try:
        gathered = admin.topic_stats(topic)
    except MQError as error:
        found.problems.append(f"ranges of {topic}: {error}")
        return
    for name, failure in gathered.failures.items():
        found.problems.append(f"ranges of {topic} on {name}: {failure}")
    for name, stats in gathered.found.items():
        for queue, reach in stats.offset_table.items():
            row = {"broker_name": name, "topic": topic, "queue_id": queue.queue_id}
            ends = {"min_offset": reach.min_offset, "max_offset": reach.max_offset}
            found.add(trail.QUEUE_RANGES, {**stamp, **row, **ends})
