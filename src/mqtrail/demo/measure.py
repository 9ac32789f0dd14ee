"""Reads the brokers' queues at the end of the demo: the part of the truth that only brokers have."""

from collections import defaultdict
from dataclasses import dataclass
from operator import itemgetter

from mqtrail.client import PullStatus, QueueReader, RouteNotFound
from mqtrail.wire import (
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
    MessageExt,
    delay_of_level,
    dlq_topic,
    open_record,
    parse_delay_levels,
)

from .plan import DELAY_LEVELS, GROUPS, REMINDERS, TOPICS

DELAYS_MS = parse_delay_levels(DELAY_LEVELS)


@dataclass(frozen=True, slots=True)
class Holdings:
    """The messages in the brokers' queues, by first key.

    stored: keys with a copy in their topic or the schedule topic. visible_ms: store time of a reminder's first copy in
    its topic. due_ms: when its scheduled copy was due. stored_at: broker and store time of the first copy that groups
    can read; of a scheduled one '' and its store time. send_counts: how often producers stored it, if more than once.
    repeated: keys of which a killed broker delivered the scheduled copy again. dead_letters: group -> keys in its
    %DLQ%. ids: message id -> key.
    """

    stored: frozenset[str]
    visible_ms: dict[str, int]
    due_ms: dict[str, int]
    stored_at: dict[str, tuple[str, int]]
    send_counts: dict[str, int]
    repeated: frozenset[str]
    dead_letters: dict[str, frozenset[str]]
    ids: dict[str, str]


def measure(namesrv: str) -> Holdings:
    """Read every queue of the shop's topics, the schedule topic and the dead-letter topics once."""
    stored: set[str] = set()
    visible_ms: dict[str, int] = {}
    due_ms: dict[str, int] = {}
    stored_at: dict[str, tuple[str, int]] = {}
    sends: dict[str, set[str | int]] = defaultdict(set)
    copies: dict[str, set[str]] = defaultdict(set)
    dead: dict[str, set[str]] = defaultdict(set)
    ids: dict[str, str] = {}
    with QueueReader(namesrv) as reader:
        for topic in TOPICS:
            for message in _read(reader, topic):
                key = message.keys[0]
                stored.add(key)
                copy = (message.broker_name, message.store_timestamp_ms)
                stored_at[key] = min(stored_at.get(key, copy), copy, key=itemgetter(1))
                ids[message.msg_id] = key
                # A broker that was killed can deliver a scheduled message twice; its copies have one born time.
                sends[key].add(message.born_timestamp_ms if topic == REMINDERS else message.offset_msg_id)
                copies[key].add(message.offset_msg_id)
                if topic == REMINDERS:
                    visible_ms[key] = min(visible_ms.get(key, message.store_timestamp_ms), message.store_timestamp_ms)
        for message in _read(reader, SCHEDULE_TOPIC):
            if message.properties.get(PROPERTY_REAL_TOPIC) == REMINDERS:
                key = message.keys[0]
                stored.add(key)
                ids[message.msg_id] = key
                stored_at.setdefault(key, ("", message.store_timestamp_ms))
                due_ms[key] = message.store_timestamp_ms + delay_of_level(message.delay_level, DELAYS_MS)
        for group in GROUPS:
            for message in _read(reader, dlq_topic(group.name)):
                dead[group.name].add(message.keys[0])
    return Holdings(
        frozenset(stored),
        visible_ms,
        due_ms,
        stored_at,
        {key: len(several) for key, several in sends.items() if len(several) > 1},
        frozenset(key for key, several in copies.items() if len(several) > len(sends[key])),
        {group: frozenset(keys) for group, keys in dead.items()},
        ids,
    )


def _read(reader: QueueReader, topic: str) -> list[MessageExt]:
    messages: list[MessageExt] = []
    try:
        queues = reader.queues(topic)
    except RouteNotFound:
        return messages
    for queue in queues:
        first, end = reader.range(queue)
        for result in reader.read_range(queue, first, end):
            if result.status is PullStatus.FOUND:
                messages += [open_record(record, queue.broker_name) for record in result.records]
    return messages
