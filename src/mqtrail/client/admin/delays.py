"""Messages that wait for their time: at delay levels, and in the timers of 5.x.

SCHEDULE_TOPIC_XXXX has a queue for each delay level, in the order of delivery: what is behind the level's progress (45)
waits. Of a level the next LEVEL_READ_MAX are read. Counts are of all: a level's from its queue, the timers' from the
broker (61).

Source: ScheduleMessageService, TimerMetrics, apache/rocketmq broker/ and store/timer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from mqtrail.wire import (
    DELAY_LEVELS_MS,
    PROPERTY_TIMER_DEL_UNIQKEY,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    MessageQueue,
    MQError,
    delay_of_level,
    parse_delay_levels,
)

from .access import AdminAccess
from .asking import Asking, BrokerTopic
from .timer_topic import PRECISION_MS, READ_MAX, DelayedRecord, TimerTopic

LEVEL_READ_MAX: Final = 1_000  # records of one level of one broker


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits for its time. topic '': it names none. level: its delay level; None: it is a timer.

    is_recalled: it will not be delivered.
    """

    broker_name: str
    msg_id: str
    topic: str
    keys: str
    stored_ms: int
    due_ms: int
    level: int | None = None
    is_recalled: bool = False


@dataclass(frozen=True, slots=True)
class LevelCount:
    """How many messages wait at a delay level of a broker."""

    level: int
    delay_ms: int
    message_count: int


@dataclass(slots=True)
class BrokerDelays:
    """What waits on one master. levels: those at which messages wait. timers: number by topic. None: unknown.

    messages: those that were read, in no order.
    """

    broker_name: str
    levels: tuple[LevelCount, ...] | None = None
    timers: Mapping[str, int] | None = None
    messages: list[DelayedMessage] = field(default_factory=list)


class DelayReading:
    """Reads what waits on the masters of a cluster, once."""

    def __init__(self, admin: AdminAccess) -> None:
        self._asking = Asking(admin)
        self._timer_topic = TimerTopic(self._asking)
        self._found: dict[str, BrokerDelays] = {}

    async def read(self) -> tuple[list[BrokerDelays], tuple[str, ...]]:
        """Return what waits on each master, and a sentence for what is unknown or not read. NoNameServer."""
        await self._asking.find_masters()
        await self._asking.each_master(self._read_on)
        return [self._found[name] for name in sorted(self._found)], self._asking.problems

    async def _read_on(self, name: str, address: str) -> None:
        into = self._found[name] = BrokerDelays(name)
        into.levels = await self._levels(name, address, into.messages)
        into.timers = await self._timers(name, address, into.messages)

    async def _levels(self, name: str, address: str, into: list[DelayedMessage]) -> tuple[LevelCount, ...] | None:
        ranges = await self._asking.ranges(BrokerTopic(name, SCHEDULE_TOPIC))
        if isinstance(ranges, str):
            return None
        kept = {queue_id: ends for queue_id, ends in (ranges or {}).items() if ends[1] > ends[0]}
        if not kept:
            return ()
        ask = partial(self._asking.admin.delay_offsets, address)
        progress = await self._asking.ask(name, "progress of delay levels", ask)
        if isinstance(progress, str):
            return None
        delays_ms = await self._delays_ms(name, address)
        counts = []
        for queue_id, (first, end) in sorted(kept.items()):
            level = queue_id + 1  # queue n of the topic is level n + 1
            begin = max(first, progress.offset_table.get(level, 0))
            if begin < end:
                counts.append(LevelCount(level, delay_of_level(level, delays_ms), end - begin))
                await self._read_level(name, counts[-1], (begin, end), into)
        return tuple(counts)

    async def _read_level(self, name: str, at: LevelCount, span: tuple[int, int], into: list[DelayedMessage]) -> None:
        def see(record: bytes) -> None:
            one = DelayedRecord.of(record)
            if one is not None:
                into.append(_message(name, one, one.head.store_timestamp_ms + at.delay_ms, at.level))

        begin, end = span
        queue = MessageQueue(SCHEDULE_TOPIC, name, at.level - 1)
        why = await self._asking.walk(queue, begin, min(end, begin + LEVEL_READ_MAX), see)
        if why:
            self._asking.note(f"delay level {at.level} of broker {name}: {why}")
        elif at.message_count > LEVEL_READ_MAX:
            self._asking.note(
                f"{at.message_count} messages wait at delay level {at.level} of broker {name}, and the next "
                f"{LEVEL_READ_MAX} are read"
            )

    async def _delays_ms(self, name: str, address: str) -> tuple[int, ...]:
        """Return the delay of each level of a broker; the usual ones if it does not report them."""
        settings = await self._asking.ask(name, "settings", partial(self._asking.admin.broker_config, address))
        try:
            return parse_delay_levels("" if isinstance(settings, str) else settings.get("messageDelayLevel", ""))
        except MQError:
            self._asking.note(f"broker {name} does not report its delay levels: times are of the usual ones")
            return DELAY_LEVELS_MS

    async def _timers(self, name: str, address: str, into: list[DelayedMessage]) -> dict[str, int] | None:
        is_used = await self._timer_topic.is_used(name)
        if not is_used:
            return None if is_used is None else {}
        found: dict[tuple[str, str, int], DelayedMessage] = {}
        recalled: set[tuple[str, int]] = set()

        def see(one: DelayedRecord, out_ms: int) -> None:
            note = one.properties.get(PROPERTY_TIMER_DEL_UNIQKEY)
            if note is not None:  # topic+id, before 5.3.2 the id
                recalled.add((note.removeprefix(f"{one.topic}+"), out_ms))
            elif not one.is_of_pop:  # one that is stored again on its way takes the place of its earlier record
                found[one.topic, one.msg_id, out_ms] = _message(name, one, out_ms + PRECISION_MS)

        is_whole = await self._timer_topic.read(name, see)
        into += [replace(one, is_recalled=(one.msg_id, at_ms) in recalled) for (_, _, at_ms), one in found.items()]
        counts = await self._asking.ask(name, "counts of timers", partial(self._asking.admin.timer_counts, address))
        if isinstance(counts, str):
            return None
        timers = {
            topic: one.count
            for topic, one in sorted(counts.timing_count.items())
            if one.count > 0 and not topic.startswith(REVIVE_TOPIC_PREFIX)
        }
        if not is_whole and sum(timers.values()) > len(found):
            self._asking.note(
                f"broker {name} counts {sum(timers.values())} timers; of the latest {READ_MAX} that it stored "
                f"{len(found)} wait, and earlier ones are not read"
            )
        return timers


def _message(name: str, one: DelayedRecord, due_ms: int, level: int | None = None) -> DelayedMessage:
    return DelayedMessage(name, one.msg_id, one.topic, one.keys, one.head.store_timestamp_ms, due_ms, level)
