"""Counts copies of messages that wait in brokers' delay topics for a group's next attempt.

SCHEDULE_TOPIC_XXXX has a queue for each delay level, in the order of delivery: what waits is between the level's
progress (45) and the queue's end, and its records are read, because only they name the topic. The timer of 5.x has its
own counts by topic (61). The counts are complete or unknown: above WAITING_READ_MAX records of one broker none is read.

Source: ScheduleMessageService, TimerMetrics, AdminBrokerProcessor.getTimerMetrics, apache/rocketmq.
"""

from collections import Counter
from functools import partial
from typing import Final

from mqtrail.wire import (
    RAW_REAL_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    MessageQueue,
    RecordError,
    decode_head,
    find_property,
)

from .asking import Asking, BrokerTopic, Ranges

WAITING_READ_MAX: Final = 10_000  # waiting records of one broker's delay levels that are read


class DelayedCopies:
    """Copies for retry topics that wait in the delay topics of brokers. why: the reasons why counts are unknown."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._counts: Counter[str] = Counter()
        self.why: list[str] = []

    def count(self, topic: str) -> int | None:
        """Return how many copies wait for a retry topic; None: unknown."""
        return None if self.why else self._counts[topic]

    async def read(self) -> None:
        """Ask all brokers."""
        await self._asking.each_master(self._read_on)
        self.why += [f"broker {name}: {why}" for name, why in sorted(self._asking.silent.items())]

    async def _read_on(self, name: str, address: str) -> None:
        ranges: list[Ranges] = []
        for topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
            found = await self._asking.ranges(BrokerTopic(name, topic))
            if isinstance(found, str):
                self.why.append(found)
                return
            ranges.append(found or {})
        timer, levels = ranges
        if any(end > 0 for _, end in timer.values()):
            counts = await self._asking.ask(name, "counts of timers", partial(self._asking.admin.timer_counts, address))
            if isinstance(counts, str):
                self.why.append(counts)
                return
            for topic, metric in counts.timing_count.items():
                self._add(topic, metric.count)
        if any(end > first for first, end in levels.values()):
            await self._read_levels(name, address, levels)

    async def _read_levels(self, name: str, address: str, levels: Ranges) -> None:
        admin = self._asking.admin
        table = await self._asking.ask(name, "progress of delay levels", partial(admin.delay_offsets, address))
        if isinstance(table, str):
            self.why.append(table)
            return
        # Queue n of the topic is level n + 1.
        waiting = {
            MessageQueue(SCHEDULE_TOPIC, name, queue_id): (start, end)
            for queue_id, (first, end) in levels.items()
            if (start := max(first, table.offset_table.get(queue_id + 1, 0))) < end
        }
        count = sum(end - start for start, end in waiting.values())
        if count > WAITING_READ_MAX:
            self.why.append(
                f"{count} messages wait in {SCHEDULE_TOPIC} of broker {name}, and at most {WAITING_READ_MAX} are read"
            )
            return
        await self._asking.each(waiting.items(), lambda one: self._read_level(*one))

    async def _read_level(self, queue: MessageQueue, span: tuple[int, int]) -> None:
        why = await self._asking.walk(queue, *span, lambda record: self._add(_real_topic(record), 1))
        if why:
            self.why.append(why)

    def _add(self, topic: str, count: int) -> None:
        if topic.startswith(RETRY_PREFIX):
            self._counts[topic] += count


def _real_topic(record: bytes) -> str:
    """Return the topic to which a waiting record will be delivered; '' if it is not a record or names none."""
    try:
        head = decode_head(record)
    except RecordError:
        return ""
    found = find_property(bytes(record[head.properties_start : head.properties_end]), RAW_REAL_TOPIC)
    return "" if found is None else found.decode("utf-8", "replace")
