"""What a cluster itself still knows of one message: its trace, its stored copies, and who reads its topic now.

Read through the brokers' index, so bounded by their retention and by 64 trace messages a query; every bound that was
met is named. Rows have the names of trail's evidence relations, so that the one definition judges them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from mqtrail import trail
from mqtrail.client import RouteNotFound, SyncAdmin
from mqtrail.wire import (
    TRACE_TOPIC,
    Delivered,
    MessageExt,
    MQError,
    Pub,
    PubAttempt,
    Refusal,
    TraceBatch,
    TraceRecord,
    TraceReject,
    iter_trace,
    retry_topic,
)

Row = dict[str, Any]


@dataclass(slots=True)
class LiveEvidence:
    """Evidence rows by relation name, the topics and groups they speak of, and what could not be read."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    omissions: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    is_reachable: bool = True
    ids: set[str] = field(default_factory=set)

    def add(self, relation: str, row: Row) -> None:
        """Add one row."""
        self.rows.setdefault(relation, []).append(row)

    @property
    def knows_message(self) -> bool:
        """Whether a stored copy was found."""
        return bool(self.rows.get(trail.MESSAGE_META.name))

    @property
    def is_traced(self) -> bool:
        """Whether a trace record was found."""
        return bool(self.rows.get(trail.TRACE_EVENTS.name))


def trace_rows(message: MessageExt, cluster: str, trace_topic: str) -> tuple[list[Row], int]:
    """Return the rows of TRACE_EVENTS that one trace message holds, and how many of its records did not decode."""
    rows: list[Row] = []
    rejects = 0
    client_id = ""
    for record_no, record in iter_trace(message.body):
        if isinstance(record, TraceReject):
            rejects += 1
            continue
        if isinstance(record, TraceBatch):
            client_id = record.client_id
        base: Row = {
            "cluster": cluster,
            "broker_name": message.broker_name,
            "trace_topic": trace_topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "record_no": record_no,
            "trace_born_ms": message.born_timestamp_ms,
            "trace_store_ms": message.store_timestamp_ms,
            "trace_born_host": str(message.born_host),
            "trace_client_id": client_id,
            "record_type": type(record).__name__,
        }
        rows += [{**base, **item} for item in _items(record)]
    return rows, rejects


def _items(record: TraceRecord) -> Iterable[Row]:
    """Return the columns of each item of a record: one, or one a message of a batch."""
    row: Row = {}
    for attribute in fields(record):
        value = getattr(record, attribute.name)
        name = trail.TRACE_COLUMN_OF.get(attribute.name, attribute.name)
        row[name] = (
            None if value is None else int(value) if isinstance(value, int) and type(value) is not bool else value
        )
    row = {name: value for name, value in row.items() if name in trail.TRACE_EVENTS.names and value is not None}
    if isinstance(record, Pub | PubAttempt) and "," in record.msg_id:
        ids = record.msg_id.split(",")
        places = str(row.get("offset_msg_id", "")).split(",")
        places += [""] * (len(ids) - len(places))
        return [
            {**row, "msg_id": one, "offset_msg_id": place, "item_no": number, "item_count": len(ids)}
            for number, (one, place) in enumerate(zip(ids, places, strict=False))
        ]
    if isinstance(record, Delivered):
        offsets = [int(one) for one in str(record.offsets).split(",") if one]
        return [
            {**row, "store_queue_offset": one, "item_no": number, "item_count": len(offsets)}
            for number, one in enumerate(offsets)
        ]
    return [{**row, "item_no": 0, "item_count": 1}]


def gather(
    admin: SyncAdmin, asked: str, topic: str, cluster: str, now_ms: int, trace_topic: str = TRACE_TOPIC
) -> LiveEvidence:
    """Ask a cluster what it knows of an id or key. topic: the business topic where known; the trace names it else."""
    live = LiveEvidence()
    try:
        found = admin.query(trace_topic, asked)
    except RouteNotFound:
        live.omissions.append(f"the cluster has no trace topic {trace_topic!r}: nothing is traced there")
    except MQError as error:
        live.is_reachable = False
        live.omissions.append(f"the trace topic could not be asked: {error}")
    else:
        live.sources.append(f"trace topic {trace_topic} of {cluster}")
        _note_query(live, f"trace of {asked!r}", found.failures, found.cut_off)
        topics = {topic} if topic else set()
        for message in found.messages:
            rows, rejects = trace_rows(message, cluster, trace_topic)
            if rejects:
                live.omissions.append(f"{rejects} trace records in one message about it did not decode")
            for row in rows:
                if asked in (row.get("msg_id"), *str(row.get("keys", "")).split()) or row["record_type"] in (
                    "TraceBatch",
                    "TraceLoss",
                ):
                    live.add(trail.TRACE_EVENTS.name, row)
                    if row.get("msg_id"):
                        live.ids.add(row["msg_id"])
                    if row.get("topic"):
                        topics.add(row["topic"])
        _messages(admin, live, asked, sorted(topics), cluster, now_ms)
    return live


def _note_query(live: LiveEvidence, what: str, failures: Any, cut_off: bool) -> None:
    for broker, error in failures.items():
        live.is_reachable = False
        live.omissions.append(f"{what}: broker {broker} could not be asked: {error}")
    if cut_off:
        live.omissions.append(f"{what}: a broker gave its newest 64 messages, there may be more")


def _messages(admin: SyncAdmin, live: LiveEvidence, asked: str, topics: list[str], cluster: str, now_ms: int) -> None:
    groups: dict[str, set[str]] = {}
    for topic in topics:
        try:
            found = admin.query(topic, asked)
        except MQError as error:
            live.omissions.append(f"topic {topic!r} could not be asked: {error}")
            continue
        _note_query(live, f"messages of {topic!r}", found.failures, found.cut_off)
        live.sources.append(f"topic {topic} of {cluster}")
        for message in found.messages:
            live.add(trail.MESSAGE_META.name, _meta(message, topic, cluster, now_ms))
            live.ids.add(message.msg_id)
        try:
            for names in admin.groups_of_topic(topic).values():
                for group in names.group_list:
                    if trail.is_business_group(group):
                        groups.setdefault(group, set()).add(topic)
        except MQError as error:
            live.omissions.append(f"who reads {topic!r} could not be asked: {error}")
    for group in sorted(groups):
        _retries(admin, live, asked, group, cluster, now_ms)
    if topics:
        _sample(admin, live, topics, sorted(groups), cluster, now_ms)


def _retries(admin: SyncAdmin, live: LiveEvidence, asked: str, group: str, cluster: str, now_ms: int) -> None:
    for topic in (retry_topic(group), f"%DLQ%{group}"):
        try:
            found = admin.query(topic, asked)
        except RouteNotFound:
            continue  # no message of this group ever failed
        except MQError as error:
            live.omissions.append(f"{topic} could not be asked: {error}")
            continue
        for message in found.messages:
            live.add(trail.MESSAGE_META.name, _meta(message, topic, cluster, now_ms, group))
            live.ids.add(message.msg_id)


def _meta(message: MessageExt, topic: str, cluster: str, now_ms: int, group: str = "") -> Row:
    properties = message.properties
    return {
        "cluster": cluster,
        "broker_name": message.broker_name,
        "topic": topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "offset_msg_id": message.offset_msg_id,
        "own_unique_key": properties.get("UNIQ_KEY", ""),
        "last_unique_key": properties.get("UNIQ_KEY", ""),
        "keys": properties.get("KEYS", ""),
        "tags": message.tags,
        "born_ms": message.born_timestamp_ms,
        "born_host": str(message.born_host),
        "store_ms": message.store_timestamp_ms,
        "store_host": str(message.store_host),
        "store_size": message.store_size,
        "body_crc": message.body_crc,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "delay_level": int(level) if (level := properties.get("DELAY", "")).isdigit() else None,
        "real_topic": properties.get("REAL_TOPIC", ""),
        "retry_topic": properties.get("RETRY_TOPIC", ""),
        "group_name": group,
        "origin_msg_id": properties.get("ORIGIN_MESSAGE_ID", ""),
        "trace_on": properties.get("TRACE_ON", ""),
        "read_ms": now_ms,
    }


def _sample(
    admin: SyncAdmin, live: LiveEvidence, topics: list[str], groups: list[str], cluster: str, now_ms: int
) -> None:
    try:
        masters = admin.masters()
    except MQError as error:
        live.omissions.append(f"offsets and clients could not be sampled: {error}")
        return
    stamp = {"cluster": cluster, "sampled_ms": now_ms}
    for name, address in masters.items():
        try:
            offsets = admin.committed_offsets(address).offset_table
        except MQError as error:
            live.omissions.append(f"offsets on {name} could not be sampled: {error}")
            continue
        for place, queues in offsets.items():
            topic, _, group = place.partition("@")
            if topic in topics and group in groups:
                for queue_id, offset in queues.items():
                    row = {"group_name": group, "topic": topic, "broker_name": name, "queue_id": queue_id}
                    live.add(trail.GROUP_OFFSETS.name, {**stamp, **row, "consumer_offset": offset})
    for group in groups:
        _sample_group(admin, live, group, list(masters.values()), stamp)
    for topic in topics:
        try:
            for name, stats in admin.topic_stats(topic).found.items():
                for queue, reach in stats.offset_table.items():
                    row = {"broker_name": name, "topic": topic, "queue_id": queue.queue_id}
                    ends = {"min_offset": reach.min_offset, "max_offset": reach.max_offset}
                    live.add(trail.QUEUE_RANGES.name, {**stamp, **row, **ends})
        except MQError as error:
            live.omissions.append(f"ranges of {topic!r} could not be sampled: {error}")


def _sample_group(admin: SyncAdmin, live: LiveEvidence, group: str, addresses: list[str], stamp: Row) -> None:
    seen: set[str] = set()
    status = "OFFLINE"
    for address in addresses:
        try:
            connections = admin.consumer_connections(group, address)
        except Refusal:
            continue  # not online on this broker
        except MQError as error:
            status = "ERROR" if status == "OFFLINE" else status
            live.omissions.append(f"clients of {group!r} could not be asked: {error}")
            continue
        for client in connections.connection_set:
            status = "OK"
            if client.client_id not in seen:
                seen.add(client.client_id)
                row = {"group_name": group, "status": "OK", "client_id": client.client_id}
                live.add(trail.CLIENTS.name, {**stamp, **row, "client_host": client.client_addr})
        for topic, subscription in connections.subscription_table.items():
            row = {
                "group_name": group,
                "topic": topic,
                "expression_type": subscription.expression_type,
                "expression": subscription.sub_string,
                "consume_type": connections.consume_type or "",
                "message_model": connections.message_model or "",
            }
            live.add(trail.SUBSCRIPTIONS.name, {**stamp, **row})
    if status != "OK":
        live.add(trail.CLIENTS.name, {**stamp, "group_name": group, "status": status, "client_id": ""})
