"""Reads the log from a place on: checks each record once and adds its queue entry.

A start after a crash waits for this, so the usual record (V1, IPv4 hosts, the next one of its queue) is checked field
by field from one `unpack`, without the objects that `CommitLog.scan` makes. All other bytes go to `scan`, which gives
the same answer for all of them.

Source of what is checked: CommitLog.checkMessageAndReturnSize, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from mqtrail.wire import (
    MAGIC_V1,
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    RAW_TAGS,
    RECORD_SIZE_MIN,
    RECORD_V4,
    SCHEDULE_TOPIC,
    MessageSysFlag,
    RecordError,
    RecordHead,
    body_crc,
    decode_properties,
    delay_of_level,
    find_property,
    number_of,
    tags_code,
)

from ..errors import StoreError
from .config import QUEUE_ENTRY_SIZE
from .log import CommitLog
from .queue import ENTRY, ConsumeQueue

PutEntry = Callable[[str, int, int, int, int, int], None]
PROPERTIES_LENGTH = struct.Struct(">h")
RECORD_TAIL_SIZE = 3  # the topic's length and the properties' length, of a V1 record
# Records that go to `scan`: IPv6 hosts, and those that are in no queue.
UNUSUAL = int(MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6 | MessageSysFlag.TRANSACTION_PREPARED)
IN_QUEUE = (0, MessageSysFlag.TRANSACTION_COMMIT)  # prepared and rolled back messages are in no queue
NO_TAGS_TOPICS = frozenset({SCHEDULE_TOPIC})  # whose entries do not have the hash of TAGS
TAGS_KNOWN_MAX = 10_000
QUEUE_OFFSET_MAX = ((1 << 63) - 1) // QUEUE_ENTRY_SIZE
BUFFER_SIZE = 16 * 1024  # bytes of one queue's entries kept in memory


def queue_code(head: RecordHead, properties: memoryview, delays_ms: Sequence[int]) -> int:
    """Return the tags code that a record's queue entry holds."""
    values = decode_properties(bytes(properties))
    level = (
        number_of(values.get(PROPERTY_DELAY, "").encode("utf-8", "replace")) if head.topic == SCHEDULE_TOPIC else None
    )
    if level:
        return head.store_timestamp_ms + delay_of_level(level, delays_ms)
    return tags_code(values.get(PROPERTY_TAGS, ""))


class LogScan:
    """Reads a log. position: the next byte to read; last_record, last_store_ms: the last record read (-1 and 0: none).

    rebuilt: how many entries were added that queues lacked. torn_from: from there on a record may be torn.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: Mapping[tuple[str, int], ConsumeQueue],
        put_entry: PutEntry,
        ends: dict[tuple[str, int], int],
        delays_ms: Sequence[int],
        *,
        position: int,
        crc: bool,
        torn_from: int | None,
        deleted: Mapping[str, int],
    ) -> None:
        """queues: all queues, also those that put_entry makes. ends: queue offset after the last entry of each.

        deleted: topic -> the physical offset below which its records get no entry.
        """
        self._deleted = {topic: end for topic, end in deleted.items() if end > position}
        self._log = log
        self._queues = queues
        self._put_entry = put_entry
        self._ends = ends
        self._delays_ms = delays_ms
        self._crc = crc
        self._torn_from = torn_from
        self._known: dict[bytes, dict[int, tuple[ConsumeQueue, int]]] = {}  # topic field -> queue id -> queue, its end
        self._tags: dict[bytes | None, int] = {None: 0}
        self.position = position
        self.last_record = -1
        self.last_store_ms = 0
        self.rebuilt = 0
        self._know(queues.values())

    def _know(self, queues: Iterable[ConsumeQueue]) -> None:
        """Allow the fast path for these queues."""
        for queue in queues:
            if queue.topic not in NO_TAGS_TOPICS and queue.topic not in self._deleted:
                end = self._ends.get((queue.topic, queue.queue_id), 0)
                self._known.setdefault(queue.topic_field, {})[queue.queue_id] = (queue, end)

    def run(self, end: int | None = None) -> RecordError | StoreError | None:
        """Read until some bytes are not a record, and return the reason; None: the end of the last segment, or `end`.

        end: where a record that is in the log ends.
        """
        segments = self._log.segments
        while segments.has(self.position):
            start = segments.start_of(self.position)
            if self._log.is_plain:
                self._quickly(segments.file(start).view(0, segments.size), start, end)
                if self.position == end:
                    return None
            try:
                self._one()
            except (RecordError, StoreError) as error:
                return error
            if self.position == end:
                return None
        return None

    def _quickly(self, view: memoryview, start: int, log_end: int | None) -> None:
        """Read usual records of one segment, up to the first that is not usual, and not past log_end."""
        unpack, pack_entry, known, tags = RECORD_V4.unpack_from, ENTRY.pack, self._known, self._tags
        at, least = self.position - start, RECORD_V4.size + RECORD_TAIL_SIZE
        stop = len(view) if self._torn_from is None else min(len(view), self._torn_from - start)
        if log_end is not None:
            stop = min(stop, log_end - start)
        last, last_store_ms, rebuilt = self.last_record, self.last_store_ms, 0
        while at + least <= stop:
            (
                size, magic, crc, queue_id, _, queue_offset, physical, sys_flag, _, _, store_ms, _, _, _, body_size,
            ) = unpack(view, at)  # fmt: skip
            if magic != MAGIC_V1 or sys_flag & UNUSUAL or physical != start + at:
                break
            body_start = at + RECORD_V4.size
            topic_start, end = body_start + body_size, at + size
            if body_size < 0 or topic_start + RECORD_TAIL_SIZE > end or end > stop:
                break
            properties_start = topic_start + RECORD_TAIL_SIZE + view[topic_start]
            if (
                properties_start > end
                or PROPERTIES_LENGTH.unpack_from(view, properties_start - 2)[0] != end - properties_start
            ):
                break
            if self._crc and body_crc(view[body_start:topic_start]) != crc:
                break
            try:
                queue, queue_end = known[bytes(view[topic_start : properties_start - 2])][queue_id]
            except KeyError:
                break
            if queue.next_offset != queue_offset:
                break
            properties = bytes(view[properties_start:end])
            tag = find_property(properties, RAW_TAGS) if RAW_TAGS in properties else None
            code = tags.get(tag)
            if code is None:
                code = self._learn(tag)
            queue.buffer += pack_entry(physical, size, code)
            queue.next_offset = queue_offset + 1
            if len(queue.buffer) > BUFFER_SIZE:
                queue.write()
            if queue_offset >= queue_end:
                rebuilt += 1
            last = physical
            if store_ms > last_store_ms:
                last_store_ms = store_ms
            at = end
        self.position, self.last_record, self.last_store_ms = start + at, last, last_store_ms
        self.rebuilt += rebuilt

    def _learn(self, tag: bytes | None) -> int:
        if len(self._tags) >= TAGS_KNOWN_MAX:
            self._tags.clear()
        code = self._tags[tag] = tags_code(None if tag is None else tag.decode("utf-8", "replace"))
        return code

    def _one(self) -> None:
        """Read the record at the position. RecordError: no record. StoreError: of a kind that is not known."""
        log, position = self._log, self.position
        head, view, after = log.scan(position, crc=self._crc, torn_from=self._torn_from)
        if head is not None:
            if position >= self._deleted.get(head.topic, position):
                self._deleted.pop(head.topic, None)
            if head.sys_flag & MessageSysFlag.TRANSACTION_MASK in IN_QUEUE and head.topic not in self._deleted:
                self._check_place(head)
                code = queue_code(head, view[head.properties_start : head.properties_end], self._delays_ms)
                if head.queue_offset >= self._ends.get((head.topic, head.queue_id), 0):
                    self.rebuilt += 1
                self._put_entry(head.topic, head.queue_id, head.queue_offset, head.physical_offset, head.size, code)
                self._know([self._queues[head.topic, head.queue_id]])
            self.last_record, self.last_store_ms = position, max(self.last_store_ms, head.store_timestamp_ms)
        self.position = after

    def _check_place(self, head: RecordHead) -> None:
        """RecordError: no queue can have this place. No checksum covers it, and entries in between cost memory."""
        if head.queue_id < 0 or not 0 <= head.queue_offset <= QUEUE_OFFSET_MAX:
            raise RecordError(
                f"found queue id {head.queue_id} and queue offset {head.queue_offset} at {self.position}, expected 0 "
                f"or more, and at most {QUEUE_OFFSET_MAX}"
            )
        queue = self._queues.get((head.topic, head.queue_id))
        if queue is None or head.queue_offset <= queue.next_offset or queue.is_new:
            return
        space = self.position - queue.last_physical_offset
        if (head.queue_offset - queue.next_offset) * RECORD_SIZE_MIN > space:
            raise RecordError(
                f"found queue offset {head.queue_offset} of {head.topic}/{head.queue_id} at {self.position}, expected "
                f"{queue.next_offset}, or as many more as records fit into {space} bytes"
            )
