"""Messages that pops handed out and that are not acknowledged yet, and how far the revive log is behind.

    rmq_sys_wheel_timer    check points and acknowledgements, until the messages are visible again
    rmq_sys_REVIVE_LOG_x   both, when they are due: all behind the progress of CID_RMQ_SYS_REVIVE_GROUP

Brokers with enablePopBufferMerge keep recent check points in memory, those with popConsumerKVServiceEnable keep all of
them elsewhere: the answer then has a problem that says that more may be handed out.

Source: PopMessageProcessor, PopReviveService, apache/rocketmq 5.3.3 broker/processor/.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from mqtrail.clock import now_ms
from mqtrail.wire import (
    POP_ACK_TAG,
    POP_BATCH_ACK_TAG,
    POP_CHECK_POINT_TAG,
    PROPERTY_TAGS,
    REVIVE_GROUP,
    BodyError,
    MessageQueue,
    PopAck,
    PopCheckPoint,
    revive_topic,
)

from .access import AdminAccess
from .asking import Asking, BrokerTopic, Ranges
from .timer_topic import READ_MAX, DelayedRecord, TimerTopic

_ACK_TAGS: Final = (POP_ACK_TAG, POP_BATCH_ACK_TAG)
ELSEWHERE: Final = ("enablePopBufferMerge", "popConsumerKVServiceEnable")

_Key = tuple[str, str, int, int, int]  # group, topic, queue id, first offset, time of the pop


@dataclass(frozen=True, slots=True)
class HandedOut:
    """Messages that one pop took from a queue, and that are not acknowledged. visible_ms: when others get them."""

    broker_name: str
    topic: str
    group: str
    queue_id: int
    offsets: tuple[int, ...]
    popped_ms: int
    visible_ms: int


@dataclass(frozen=True, slots=True)
class BrokerPops:
    """The pops of one master. None: unknown. behind_count, behind_ms: of the revive log; 0: nothing is due."""

    broker_name: str
    handed_out: tuple[HandedOut, ...] | None = None
    behind_count: int | None = None
    behind_ms: int | None = None


@dataclass(slots=True)
class _Points:
    """Check points and the offsets that were acknowledged."""

    points: dict[_Key, PopCheckPoint] = field(default_factory=dict)
    acked: dict[_Key, set[int]] = field(default_factory=dict)

    def see(self, one: DelayedRecord) -> None:
        tag = one.properties.get(PROPERTY_TAGS)
        try:
            if tag == POP_CHECK_POINT_TAG:
                point = PopCheckPoint.decode(one.body)
                self.points[point.group, point.topic, point.queue_id, point.start_offset, point.pop_time_ms] = point
            elif tag in _ACK_TAGS:
                ack = PopAck.decode(one.body)
                key = ack.group, ack.topic, ack.queue_id, ack.start_offset, ack.pop_time_ms
                self.acked.setdefault(key, set()).update([ack.offset] if ack.offsets is None else ack.offsets)
        except BodyError:
            return  # it revives nothing either

    def open(self, broker_name: str) -> tuple[HandedOut, ...]:
        """Return what is not acknowledged, what is visible first, first."""
        found = []
        for key, point in self.points.items():
            acked = self.acked.get(key, ())
            offsets = tuple(offset for offset in point.queue_offsets() if offset not in acked)
            if offsets:
                group, topic, queue_id, _, popped_ms = key
                found.append(HandedOut(broker_name, topic, group, queue_id, offsets, popped_ms, point.revive_ms))
        return tuple(sorted(found, key=lambda one: (one.visible_ms, one.topic, one.queue_id, one.offsets)))


class PopReading:
    """Reads what is handed out by the masters of a cluster, once."""

    def __init__(self, admin: AdminAccess) -> None:
        self._asking = Asking(admin)
        self._timer_topic = TimerTopic(self._asking)
        self._logs: dict[str, str] = {}
        self._found: dict[str, BrokerPops] = {}

    async def read(self) -> tuple[list[BrokerPops], tuple[str, ...]]:
        """Return what each master handed out, and a sentence for what is unknown or not read. NoNameServer."""
        await self._asking.find_masters()
        clusters = (await self._asking.admin.cluster()).cluster_addr_table
        self._logs = {name: revive_topic(cluster) for cluster, names in clusters.items() for name in names}
        await self._asking.each_master(self._read_on)
        return [self._found[name] for name in sorted(self._found)], self._asking.problems

    async def _read_on(self, name: str, address: str) -> None:
        self._found[name] = BrokerPops(name)
        log = self._logs.get(name, "")
        table = await self._asking.ask(
            name, "committed offsets", partial(self._asking.admin.committed_offsets, address)
        )
        ranges = await self._asking.ranges(BrokerTopic(name, log))
        is_used = await self._timer_topic.is_used(name)
        if isinstance(table, str) or isinstance(ranges, str) or is_used is None:
            return
        points = _Points()

        def see_waiting(one: DelayedRecord, _: int) -> None:
            if one.is_of_pop:
                points.see(one)

        is_whole = not is_used or await self._timer_topic.read(name, see_waiting)
        done = table.offset_table.get(f"{log}@{REVIVE_GROUP}", {})
        counts = await self._due(MessageQueue(log, name, 0), ranges or {}, done, points)
        self._found[name] = BrokerPops(name, points.open(name), *counts)
        if not is_whole or counts[0] > READ_MAX:
            self._asking.note(f"broker {name}: not all check points were read, so more messages may be handed out")
        settings = await self._asking.ask(name, "settings", partial(self._asking.admin.broker_config, address))
        known: Mapping[str, str] = {} if isinstance(settings, str) else settings
        for setting in ELSEWHERE:
            if known.get(setting) == "true":
                self._asking.note(f"broker {name} has {setting}=true, so more messages may be handed out")

    async def _due(
        self, log: MessageQueue, ranges: Ranges, done: Mapping[int, int], points: _Points
    ) -> tuple[int, int]:
        """Read what is due in the revive log; return how many records, and how long the first one has waited in ms."""
        stored_ms: list[int] = []
        count = 0

        def see(record: bytes) -> None:
            one = DelayedRecord.of(record)
            if one is not None:
                stored_ms.append(one.head.store_timestamp_ms)
                points.see(one)

        for queue_id, (first, end) in ranges.items():
            begin = max(first, done.get(queue_id, -1) + 1)  # the last finished record is committed, not the next one
            count += max(0, end - begin)
            queue = MessageQueue(log.topic, log.broker_name, queue_id)
            why = await self._asking.walk(queue, begin, min(end, begin + READ_MAX), see)
            if why:
                self._asking.note(why)
        return count, max(0, now_ms() - min(stored_ms)) if stored_ms else 0
