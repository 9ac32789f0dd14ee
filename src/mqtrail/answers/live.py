"""Reads a cluster's evidence of one message: its trace, its stored copies, and the groups that read its topic now.

Queries use the brokers' index, so retention and a limit of 64 messages per query apply; each limit reached is listed as
an omission. Rows have the columns of trail's evidence relations, so the same judgement applies. TraceBatch records are
skipped: a query returns only some of them, and the missing numbers would look like lost records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mqtrail import trail
from mqtrail.client import RouteNotFound, SyncAdmin
from mqtrail.wire import (
    BROKER_EVENTS_KEY,
    DELAY_LEVELS_DEFAULT,
    DELAY_LEVELS_MS,
    PROPERTY_DELAY,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_KEY,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    ConsumerConnections,
    ConsumerNotOnline,
    GroupOffsets,
    IdError,
    MessageExt,
    MQError,
    business_topics,
    dlq_topic,
    group_of,
    is_business_group,
    parse_delay_levels,
    parse_offset_msg_id,
    pop_retry_topic,
    retry_topic,
)

from .born import MESSAGES_MAX, WINDOW_MS, BirthRead

Row = dict[str, Any]

IDS_MAX = 20  # most ids followed for one key
TOPICS_MAX = 64  # most topics searched for a message whose topic no trace record names


@dataclass(slots=True)
class LiveEvidence:
    """Evidence rows by relation name, message ids found in them, sources and omissions.

    stored: copies of messages, for `lake.stored_rows`. delays_ms: of the cluster's delay levels 1, 2, …
    """

    rows: dict[str, list[Row]] = field(default_factory=dict)
    stored: list[Row] = field(default_factory=list)
    delays_ms: tuple[int, ...] = DELAY_LEVELS_MS
    omissions: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    is_reachable: bool = True
    has_unread_trace: bool = False  # a trace message about it, or records in one, could not be decoded
    ids: set[str] = field(default_factory=set)
    trace_places: set[tuple[Any, ...]] = field(default_factory=set)
    broker_events: list[Row] = field(default_factory=list)  # the latest ones; no judgement reads them

    def add(self, relation: str, row: Row) -> None:
        """Add one row."""
        self.rows.setdefault(relation, []).append(row)

    def add_trace(self, row: Row) -> None:
        """Add one row of TRACE_EVENTS, once."""
        names = ("broker_name", "queue_id", "queue_offset", "record_no", "item_no")
        place = tuple(row[name] for name in names)
        if place not in self.trace_places:
            self.trace_places.add(place)
            self.add(trail.TRACE_EVENTS.name, row)

    @property
    def knows_message(self) -> bool:
        """Whether a stored copy was found."""
        return bool(self.stored)

    @property
    def is_traced(self) -> bool:
        """Whether a trace record of it was found."""
        return any(row.get("msg_id") for row in self.rows.get(trail.TRACE_EVENTS.name, ()))


def trace_place(message: MessageExt, cluster: str, trace_topic: str) -> trail.TracePlace:
    """Return the position of a trace message."""
    return trail.TracePlace(
        cluster,
        message.broker_name,
        trace_topic,
        message.queue_id,
        message.queue_offset,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
        str(message.born_host),
    )


def gather(
    admin: SyncAdmin, asked: str, topic: str, cluster: str, now_ms: int, trace_topic: str = TRACE_TOPIC
) -> LiveEvidence:
    """Gather a cluster's evidence of an id or key. topic: the business topic; '' if unknown: take it from the trace.

    Problems of the cluster do not raise: they become omissions.
    """
    live = LiveEvidence()
    topics = {topic} if topic else set()
    seeker = _Seeker(admin, live, cluster, now_ms)
    done: set[str] = set()
    # A key leads to message ids, and a broker's id to the client's id: query each of them in turn.
    waiting = [asked, *_client_ids(admin, asked)]
    while waiting and live.is_reachable and len(done) <= IDS_MAX:
        one = waiting.pop(0)
        done.add(one)
        topics |= _traces(admin, live, one, cluster, trace_topic, now_ms)
        if not topics:
            topics = _business_topics(admin, live)
        seeker.messages(one, sorted(topics))
        waiting = [*waiting, *sorted(live.ids - done - set(waiting))]
    if waiting:
        live.omissions.append(f"only {len(done)} of the ids that {asked!r} leads to were followed")
    if live.is_traced or live.knows_message:
        _broker_events(admin, live, cluster, trace_topic)
    return live


def _broker_events(admin: SyncAdmin, live: LiveEvidence, cluster: str, trace_topic: str) -> None:
    """Add the latest events of each broker. They have a key of their own; brokers without it write none."""
    try:
        found = admin.query(trace_topic, BROKER_EVENTS_KEY)
    except MQError:
        return  # the look-up of the trace said it
    for message in found.messages:
        if message.undecodable is None:
            rows = trail.trace_rows(trace_place(message, cluster, trace_topic), message.body)
            live.broker_events += [row for relation, row in rows if relation is trail.BROKER_EVENTS]


def _client_ids(admin: SyncAdmin, asked: str) -> set[str]:
    """Return the client id of the message that a broker's id names; an empty set if there is no such message."""
    return {message.msg_id for message in _at(admin, asked)}


def _at(admin: SyncAdmin, offset_id: str) -> list[MessageExt]:
    """Return the message that a broker's id names; [] if it belongs to another cluster, or no longer exists."""
    try:
        host, _ = parse_offset_msg_id(offset_id)
        names = {address: name for name, address in admin.masters().items()}
        if str(host) not in names:
            return []
        return [replace(admin.message_at(offset_id), broker_name=names[str(host)])]
    except (IdError, MQError):
        return []


def _traces(admin: SyncAdmin, live: LiveEvidence, asked: str, cluster: str, trace_topic: str, now_ms: int) -> set[str]:
    """Add the trace records of an id or key; return the topics in them."""
    try:
        found = admin.query(trace_topic, asked)
    except RouteNotFound:
        live.omissions.append(f"the cluster has no trace topic {trace_topic!r}: nothing is traced")
        return set()
    except MQError as error:
        live.is_reachable = False
        live.omissions.append(f"the trace topic could not be queried: {error}")
        return set()
    live.sources.append(f"trace topic {trace_topic} of {cluster}")
    _note_query(live, f"trace of {asked!r}", found.failures, found.cut_off)
    messages = [*found.messages] or list(_of_birth(admin, live, asked, trace_topic, now_ms))
    return {topic for message in messages for topic in _records(live, message, asked, cluster, trace_topic)}


def _of_birth(admin: SyncAdmin, live: LiveEvidence, asked: str, trace_topic: str, now_ms: int) -> Iterator[MessageExt]:
    """Yield the trace messages of an id that the index does not have, from the time in which it was born."""
    read = BirthRead(admin, trace_topic, asked, now_ms)
    try:
        yield from read.messages()
    except MQError as error:
        live.omissions.append(f"the index has no trace of {asked}, and that of its time could not be read: {error}")
    if read.read_count:
        bound = f" and {MESSAGES_MAX} messages" if read.is_cut else ""
        live.omissions.append(
            f"the index has no trace of {asked}: {read.read_count} trace messages of its time were read, "
            f"up to {WINDOW_MS // 60_000} minutes{bound} after its birth"
        )


def _records(live: LiveEvidence, message: MessageExt, asked: str, cluster: str, trace_topic: str) -> set[str]:
    """Add the records of a trace message about an id or key; return the topics in them."""
    if message.undecodable is not None:
        live.has_unread_trace = True
        live.omissions.append(f"one trace message about it could not be decoded: {message.undecodable}")
        return set()
    topics: set[str] = set()
    reasons: list[str] = []
    for relation, row in trail.trace_rows(trace_place(message, cluster, trace_topic), message.body):
        if relation is trail.TRACE_REJECTS:
            reasons.append(row["reason"])
        elif relation is trail.BROKER_EVENTS:
            continue  # about no message
        elif row["record_type"] == "TraceLoss":
            live.add_trace(row)
        elif asked in (row["msg_id"], row["offset_msg_id"], *row["keys"].split()):
            live.add_trace(row)
            if row["msg_id"]:
                live.ids.add(row["msg_id"])
            if row["topic"]:
                topics.add(row["topic"])
    if reasons:
        live.has_unread_trace = True
        live.omissions.append(
            f"{len(reasons)} trace records in one message about it did not decode, the first: {reasons[0]}"
        )
    return topics


def _business_topics(admin: SyncAdmin, live: LiveEvidence) -> set[str]:
    try:
        known = admin.cluster()
        names = business_topics(admin.topics(), known.cluster_addr_table, known.broker_addr_table)
    except MQError as error:
        live.is_reachable = False
        live.omissions.append(f"the cluster's topics could not be queried: {error}")
        return set()
    if len(names) > TOPICS_MAX:
        live.is_reachable = False
        live.omissions.append(
            f"no trace record names its topic, and only {TOPICS_MAX} topics are searched one by one, of {len(names)}"
        )
        return set()
    return set(names)


def _note_query(live: LiveEvidence, what: str, failures: Any, cut_off: bool) -> None:
    for broker, error in failures.items():
        live.is_reachable = False
        live.omissions.append(f"{what}: broker {broker} could not be queried: {error}")
    if cut_off:
        live.omissions.append(f"{what}: a broker returned its newest 64 messages; there may be more")


class _Seeker:
    """Finds stored copies of an id or key, and samples the groups that read their topics."""

    def __init__(self, admin: SyncAdmin, live: LiveEvidence, cluster: str, now_ms: int) -> None:
        self._admin = admin
        self._live = live
        self._cluster = cluster
        self._now_ms = now_ms
        self._has_delays = False
        self._seen: set[tuple[str, int]] = set()
        self._committed: dict[str, list[GroupOffsets]] | None = None

    def messages(self, asked: str, topics: list[str]) -> None:
        """Query the topics, the schedule topic, then the retry and dead-letter topics of the groups that read them."""
        found: set[str] = set()
        for topic in topics:
            self._live.sources.append(f"topic {topic} of {self._cluster}")
            if self._ask(topic, asked):
                found.add(topic)
        if not found:
            found |= self._by_offset_ids(asked)
        if self._ask(SCHEDULE_TOPIC, asked, is_optional=True):
            waiting = [dict(row["properties"]) for row in self._live.stored if row["topic"] == SCHEDULE_TOPIC]
            found |= {target for one in waiting if (target := one.get(PROPERTY_REAL_TOPIC))}
        traced = {row["topic"] for row in self._live.rows.get(trail.TRACE_EVENTS.name, ()) if row.get("topic")}
        concerned = sorted(name for name in found | traced if group_of(name) is None)
        groups = sorted({group for topic in concerned for group in self._groups(topic)})
        for group in groups:
            popped = [pop_retry_topic(topic, group, v2=v2) for topic in concerned for v2 in (False, True)]
            for topic in (retry_topic(group), dlq_topic(group), *popped):
                self._ask(topic, asked, is_optional=True)
        if concerned:
            _sample(self._admin, self._live, self.committed, concerned, groups, self._cluster, self._now_ms)

    def _ask(self, topic: str, asked: str, *, is_optional: bool = False) -> bool:
        """Add the copies in a topic; return whether there are any. is_optional: the topic may not exist."""
        is_found = False
        for unique in (True, False):
            try:
                result = self._admin.query(topic, asked, unique=unique)
            except RouteNotFound:
                if not is_optional:
                    self._live.omissions.append(
                        f"topic {topic!r} has no route: it was deleted, or its brokers are down"
                    )
                return is_found
            except MQError as error:
                self._live.is_reachable = False
                self._live.omissions.append(f"topic {topic!r} could not be queried: {error}")
                return is_found
            _note_query(self._live, f"messages of {topic!r}", result.failures, result.cut_off)
            for message in result.messages:
                is_found = True
                if (message.broker_name, message.physical_offset) not in self._seen:
                    self._seen.add((message.broker_name, message.physical_offset))
                    self._add(message, topic)
        return is_found

    def _by_offset_ids(self, asked: str) -> set[str]:
        """Add the copies that the trace names by the broker's id, which needs no index; return their topics."""
        rows = self._live.rows.get(trail.TRACE_EVENTS.name, ())
        ids = {row["offset_msg_id"] for row in rows if row.get("msg_id") == asked and row.get("offset_msg_id")}
        topics = set()
        for offset_id in sorted(ids):
            for message in _at(self._admin, offset_id):
                if message.msg_id == asked and (message.broker_name, message.physical_offset) not in self._seen:
                    self._seen.add((message.broker_name, message.physical_offset))
                    self._add(message, message.topic)
                    topics.add(message.topic)
        return topics

    def _add(self, message: MessageExt, topic: str) -> None:
        self._live.stored.append(_stored(message, topic))
        self._live.ids.add(message.msg_id)
        if PROPERTY_DELAY in message.properties and not self._has_delays:
            self._has_delays = True
            self._find_delays(message.broker_name)

    def _find_delays(self, broker_name: str) -> None:
        try:
            address = self._admin.masters().get(broker_name, "")
            text = self._admin.broker_config(address).get("messageDelayLevel", DELAY_LEVELS_DEFAULT)
            self._live.delays_ms = parse_delay_levels(text)
        except MQError as error:
            self._live.omissions.append(f"the delay levels could not be queried, so the defaults are used: {error}")

    def _groups(self, topic: str) -> set[str]:
        """Return the groups that read a topic: by the brokers, by their committed offsets and by the trace."""
        groups = {
            row["group_name"]
            for row in self._live.rows.get(trail.TRACE_EVENTS.name, ())
            if row["record_type"] in ("SubBefore", "SubAfter")
        }
        groups |= {each.group for offsets in self.committed.values() for each in offsets if each.topic == topic}
        try:
            gathered = self._admin.groups_of_topic(topic)
        except MQError as error:
            self._live.omissions.append(f"consumer groups of {topic!r} could not be queried: {error}")
        else:
            for name, failure in gathered.failures.items():
                self._live.omissions.append(f"consumer groups of {topic!r} on {name} could not be queried: {failure}")
            groups.update(group for names in gathered.values() for group in names.group_list)
        return {group for group in groups if is_business_group(group)}

    @property
    def committed(self) -> dict[str, list[GroupOffsets]]:
        """The committed offsets by master, queried once."""
        if self._committed is None:
            self._committed = {}
            try:
                masters = self._admin.masters()
            except MQError as error:
                self._live.omissions.append(f"offsets could not be sampled: {error}")
                masters = {}
            for name, address in masters.items():
                try:
                    self._committed[name] = list(self._admin.committed_offsets(address).by_group())
                except MQError as error:
                    self._live.omissions.append(f"offsets on {name} could not be sampled: {error}")
        return self._committed


def _stored(message: MessageExt, topic: str) -> Row:
    """Return a row of lake.STORED."""
    return {
        "topic": topic,
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "offset_msg_id": message.offset_msg_id,
        "own_unique_key": message.properties.get(PROPERTY_UNIQ_KEY, ""),
        "properties": list(message.properties.items()),
        "stored_body_size": None,
        "body_crc": message.body_crc,
        "store_size": message.store_size,
        "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": str(message.born_host),
        "store_timestamp_ms": message.store_timestamp_ms,
        "store_host": str(message.store_host),
        "reconsume_times": message.reconsume_times,
    }


def _sample(
    admin: SyncAdmin,
    live: LiveEvidence,
    committed: Mapping[str, list[GroupOffsets]],
    topics: list[str],
    groups: list[str],
    cluster: str,
    now_ms: int,
) -> None:
    try:
        masters = admin.masters()
    except MQError as error:
        live.omissions.append(f"clients could not be sampled: {error}")
        return
    stamp = {"cluster": cluster, "sampled_ms": now_ms}
    for name, offsets in committed.items():
        for topic, group, is_broadcast, queues in offsets:
            if (topic in topics or topic.startswith(RETRY_PREFIX)) and group in groups and not is_broadcast:
                for queue_id, offset in queues.items():
                    row = {"group_name": group, "topic": topic, "broker_name": name, "queue_id": queue_id}
                    live.add(trail.GROUP_OFFSETS.name, {**stamp, **row, "consumer_offset": offset})
    for group in groups:
        _sample_group(admin, live, group, list(masters.values()), stamp)
    for topic in topics:
        try:
            gathered = admin.topic_stats(topic)
            for name, failure in gathered.failures.items():
                live.omissions.append(f"ranges of {topic!r} on {name} could not be sampled: {failure}")
            for name, stats in gathered.found.items():
                for queue, reach in stats.offset_table.items():
                    row = {"broker_name": name, "topic": topic, "queue_id": queue.queue_id}
                    # The index was queried for the message, so the queue counts as read to its end.
                    ends = {"min_offset": reach.min_offset, "max_offset": reach.max_offset}
                    ends["read_offset"] = reach.max_offset
                    live.add(trail.QUEUE_RANGES.name, {**stamp, **row, **ends})
        except MQError as error:
            live.omissions.append(f"ranges of {topic!r} could not be sampled: {error}")


def _sample_group(admin: SyncAdmin, live: LiveEvidence, group: str, addresses: list[str], stamp: Row) -> None:
    answers: list[ConsumerConnections] = []
    is_complete = True
    for address in addresses:
        try:
            answers.append(admin.consumer_connections(group, address))
        except ConsumerNotOnline:
            continue
        except MQError as error:
            is_complete = False
            live.omissions.append(f"clients of {group!r} could not be queried: {error}")
    for relation, row in trail.group_rows(group, answers, is_complete=is_complete):
        live.add(relation.name, {**stamp, **row})
