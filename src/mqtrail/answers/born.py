"""Reads the trace of the time in which a message was born, if a broker's index does not have its id.

An id holds its time within a month, by the clock and the time zone of its producer. The zones are taken from the latest
records of the trace topic. The read is bounded: QUEUES_MAX queues, WINDOW_MS after the birth, MESSAGES_MAX messages.
Apache's broker forgets index entries that a kill kept from the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.wire import MessageExt, MessageQueue, MQError

QUEUES_MAX: Final = 64
WINDOW_MS: Final = 600_000  # how long after its birth the trace of a message is read
EARLY_MS: Final = 60_000  # clocks of hosts differ
MESSAGES_MAX: Final = 20_000
PULL_COUNT: Final = 32
QUARTER_MS: Final = 900_000  # zones differ by quarters of an hour
_Range = tuple[MessageQueue, int, int]


@dataclass(slots=True)
class BirthRead:
    """The read of one id. read_count: messages that were read; is_cut: there were more than MESSAGES_MAX."""

    admin: SyncAdmin
    trace_topic: str
    msg_id: str
    now_ms: int
    read_count: int = 0
    is_cut: bool = False

    def messages(self) -> Iterator[MessageExt]:
        """Yield the trace messages with the id. MQError: a broker does not answer."""
        if trail.born_ms(self.msg_id, self.now_ms) is None:
            return
        ranges = self._ranges()
        for birth_ms in sorted(self._births(ranges)):
            for queue, first, end in ranges:
                for message in self._since(queue, birth_ms - EARLY_MS, first, end):
                    if message.store_timestamp_ms > birth_ms + WINDOW_MS or self.is_cut:
                        break
                    if self._is_about(message):
                        yield message

    def _is_about(self, message: MessageExt) -> bool:
        """Return whether a trace message names the id: one that cannot be decoded has it in its keys alone."""
        return self.msg_id.encode() in message.body or self.msg_id in message.keys

    def _ranges(self) -> list[_Range]:
        """The queues of the trace topic with their first offsets and ends."""
        found = [
            (MessageQueue(self.trace_topic, name, queue.queue_id), reach.min_offset, reach.max_offset)
            for name, stats in self.admin.topic_stats(self.trace_topic).found.items()
            for queue, reach in stats.offset_table.items()
        ]
        return sorted(one for one in found if one[1] < one[2])[:QUEUES_MAX]

    def _births(self, ranges: list[_Range]) -> set[int]:
        """Return the possible times of birth, by the time zones of the latest producers."""
        zones_ms = {0}
        for queue, first, end in ranges:
            for message in self._pulled(queue, max(first, end - PULL_COUNT), end):
                zones_ms |= set(_zones(message))
        births = (trail.born_ms(self.msg_id, self.now_ms - zone_ms + EARLY_MS) for zone_ms in zones_ms)
        return {birth_ms + zone_ms for birth_ms, zone_ms in zip(births, zones_ms, strict=True) if birth_ms is not None}

    def _since(self, queue: MessageQueue, at_ms: int, first: int, end: int) -> Iterator[MessageExt]:
        """Yield the messages of a queue from a store time on."""
        try:
            start = self.admin.offset_by_time(queue, at_ms)
        except MQError:
            start = first
        for message in self._pulled(queue, max(start, first), end):
            self.read_count += 1
            self.is_cut = self.read_count > MESSAGES_MAX
            yield message

    def _pulled(self, queue: MessageQueue, offset: int, end: int) -> Iterator[MessageExt]:
        while offset < end:
            answer = self.admin.pull(queue, offset, PULL_COUNT)
            yield from answer.open(queue, offset)
            if answer.next_offset <= offset:
                return
            offset = answer.next_offset


def _zones(message: MessageExt) -> Iterator[int]:
    """Yield the time zone of the producer of each send in a trace message, which the id lacks."""
    place = trail.TracePlace("", "", "", 0, 0, message.born_timestamp_ms, message.store_timestamp_ms, "")
    for relation, row in trail.trace_rows(place, message.body):
        if relation is trail.TRACE_EVENTS and row["record_type"] == "Pub" and row["msg_id"]:
            born_ms = trail.born_ms(row["msg_id"], message.store_timestamp_ms + trail.ZONE_MS)
            if born_ms is not None:
                yield round((message.store_timestamp_ms - born_ms) / QUARTER_MS) * QUARTER_MS
