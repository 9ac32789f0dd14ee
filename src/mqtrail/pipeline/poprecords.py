"""Records of POP: which messages a group was handed, and which it acknowledged, with the ids of these messages.

A broker writes a check point for each pop, with the queue offsets of its messages, and an acknowledgement for one or
several of them. Both have no id, so the messages are read again at these offsets.
Source: PopMessageProcessor.buildCkMsg, AckMessageProcessor.appendAck, apache/rocketmq broker/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mqtrail import trail
from mqtrail.wire import (
    POP_CHECK_POINT_TAG,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_KEY,
    REVIVE_TOPIC_PREFIX,
    TIME_MS_MAX,
    BodyError,
    MessageQueue,
    PopAck,
    PopCheckPoint,
    number_of,
    pop_topic_of,
)

from .cluster import Cluster
from .columns import STORED_COLUMNS
from .named import Place, filled, is_named, read_at
from .options import SourceOptions

POP_COLUMNS: Final = (*STORED_COLUMNS, "body_text")
POPS_MAX: Final = 20_000  # messages that are read at once
_KEY: Final = re.compile("@(ck|ack|bAck)$")  # end of the UNIQ_KEY of each record
_OFFSETS_MAX: Final = 1_024  # of one record; a pop hands out at most 32 messages


@dataclass(frozen=True, slots=True)
class Popped:
    """What a record says of one message. until_ms: end of the pop; None: the record does not say."""

    place: Place
    topic: str
    group: str
    pop_ms: int
    until_ms: int | None


def popped_messages(cluster: Cluster, timers: pa.Table, options: SourceOptions) -> Iterator[pa.Table]:
    """Yield the stored messages among records of the timer's topic, and a row for each message that a pop's record
    names: columns of STORED_COLUMNS, for trail.message_meta_sql.

    timers: with POP_COLUMNS. A row has the place of the record, of the message the id and its attempts, as
    ORIGIN_MESSAGE_ID its offset id, and the group; born is when it was popped. Records whose messages are gone remain.
    """
    is_pop = pa.array([_KEY.search(key or "") is not None for key in timers["own_unique_key"].to_pylist()])
    rest = timers.filter(pc.invert(is_pop)).select(list(STORED_COLUMNS))
    if len(rest):
        yield rest
    records = timers.filter(is_pop)
    left = set(range(len(records)))
    named, stored_ms = _named(records), records["store_timestamp_ms"].to_pylist()
    while some := list(islice(named, POPS_MAX)):
        messages = read_at(cluster, {popped.place for _, _, popped in some}, options)
        found = [
            (number, properties, one, messages[one.place])
            for number, properties, one in some
            if is_named(messages.get(one.place), stored_ms[number])
        ]
        if found:
            left.difference_update(number for number, *_ in found)
            yield filled(
                records,
                [(number, _properties(properties, one, message)) for number, properties, one, message in found],
                {
                    "born_timestamp_ms": [one.pop_ms for _, _, one, _ in found],
                    "reconsume_times": [message["reconsume_times"] for *_, message in found],
                },
            )
    if left:
        yield records.select(list(STORED_COLUMNS)).take(sorted(left))


def _named(records: pa.Table) -> Iterator[tuple[int, dict[str, str], Popped]]:
    """Yield (row, its properties, what it says of a message). A record that cannot be read says nothing."""
    columns = ("broker_name", "properties", "body_text")
    for number, row in enumerate(records.select(columns).to_pylist()):
        properties = dict(row["properties"])
        if properties.get(PROPERTY_REAL_TOPIC, "").startswith(REVIVE_TOPIC_PREFIX):
            for one in _parsed(properties, row):
                yield number, properties, one


def _parsed(properties: dict[str, str], row: dict[str, Any]) -> list[Popped]:
    body = row["body_text"] or ""
    try:
        if properties.get(PROPERTY_TAGS) == POP_CHECK_POINT_TAG:
            point = PopCheckPoint.decode(body)
            return _each(point, point.queue_offsets(), row["broker_name"], point.revive_ms)
        ack = PopAck.decode(body)
    except BodyError:
        return []
    until_ms = number_of(properties.get(PROPERTY_TIMER_OUT_MS), len(str(TIME_MS_MAX)))
    return _each(ack, (ack.offset,) if ack.offsets is None else ack.offsets, row["broker_name"], until_ms)


def _each(
    record: PopCheckPoint | PopAck, offsets: tuple[int, ...], broker_name: str, until_ms: int | None
) -> list[Popped]:
    if not 0 <= record.pop_time_ms <= TIME_MS_MAX or not record.group or not record.topic:
        return []
    queue = MessageQueue(record.topic, record.broker_name or broker_name, record.queue_id)
    topic = pop_topic_of(record.topic, record.group)
    return [
        Popped((queue, offset), topic, record.group, record.pop_time_ms, until_ms) for offset in offsets[:_OFFSETS_MAX]
    ]


def _properties(record: dict[str, str], one: Popped, message: Any) -> dict[str, str]:
    due = {} if one.until_ms is None else {PROPERTY_TIMER_OUT_MS: str(one.until_ms)}
    return {
        PROPERTY_UNIQ_KEY: message["own_unique_key"],
        PROPERTY_REAL_TOPIC: record[PROPERTY_REAL_TOPIC],
        PROPERTY_RETRY_TOPIC: one.topic,
        PROPERTY_ORIGIN_MESSAGE_ID: message["offset_msg_id"],
        PROPERTY_TAGS: record.get(PROPERTY_TAGS, ""),
        trail.POP_GROUP: one.group,
        **due,
    }
