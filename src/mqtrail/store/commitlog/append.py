"""Appending: records built and placed, then written with one write a segment. The store's hot path.

All records of a call are built before any is written. Queues advance while they are built, and are reset if the call
fails; the log advances when all is written. So a failed call has no effect.

Source of the layout: mqtrail.wire.record; of the rules: MessageExtEncoder, CommitLog.asyncPutMessage, apache/rocketmq
store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from mqtrail.wire import (
    MAGIC_BLANK,
    RECORD_V4,
    MessageIllegal,
    MessageSysFlag,
    RecordError,
    body_crc,
    encode_record,
)

from ..base import Appended, BatchPlaces, Buffer, PendingRecord
from ..errors import StoreBroken
from .batch import EncodedBatch
from .log import BLANK, BLANK_SIZE_MIN, CommitLog
from .queue import ENTRY, ConsumeQueue

RECORD_BASE = RECORD_V4.size + 2  # with IPv4 hosts, without body, topic field and properties
TRANSACTION_MASK = int(MessageSysFlag.TRANSACTION_MASK)
TRANSACTION_COMMIT = int(MessageSysFlag.TRANSACTION_COMMIT)
V6_BITS = 0x30  # of the sysFlag: born and store host are IPv6
PROPERTIES_LENGTHS = [struct.pack(">h", size) for size in range(2048)]  # the usual ones, prepared
PROPERTIES_LENGTH = struct.Struct(">h")

_new_ticket = tuple.__new__  # a NamedTuple's own constructor takes three times as long


class Appender:
    """Builds and writes records of one store."""

    def __init__(
        self,
        log: CommitLog,
        queues: dict[tuple[str, int], ConsumeQueue],
        open_queue: Callable[[str, int], ConsumeQueue],
        store_host: bytes,
        record_size_max: int,
    ) -> None:
        self._log = log
        self._queues = queues
        self._open_queue = open_queue
        self._store_host = store_host
        self._record_size_max = record_size_max
        self._is_v6 = len(store_host) != 8

    def append(self, records: Sequence[PendingRecord], store_ms: int) -> list[Appended]:
        """Store all of records or none; return their tickets.

        Records may be plain tuples of PendingRecord's fields, which are made faster. StoreFull: no room. StoreBroken:
        the disk failed before. MessageIllegal: a record that cannot be stored.
        """
        log = self._log
        if log.fault is not None:
            raise StoreBroken(log.fault)
        position = log.end_offset
        segment_size = log.segments.size
        segment_end = position - position % segment_size + segment_size
        parts: list[tuple[int, list[Buffer]]] = []  # the start of a run of bytes, and its pieces
        pieces: list[Buffer] = []
        part_start = position
        if position == segment_end - segment_size:
            log.prepare(position)
        tickets: list[Appended] = []
        moved: list[tuple[ConsumeQueue, int]] = []  # queues, and their next offsets before the call
        last = -1
        queues, size_max, host, is_v6 = self._queues, self._record_size_max, self._store_host, self._is_v6
        pack, pack_entry, crc, lengths, new = RECORD_V4.pack, ENTRY.pack, body_crc, PROPERTIES_LENGTHS, _new_ticket
        try:
            for (
                topic, queue_id, body, properties, tags_code, born_ms, born_host, flag, sys_flag, times, prepared
            ) in records:  # fmt: skip
                queue = queues.get((topic, queue_id)) or self._open_queue(topic, queue_id)
                field = queue.topic_field
                body_size = len(body)
                properties_size = len(properties)
                size = RECORD_BASE + body_size + len(field) + properties_size
                plain = not is_v6 and len(born_host) == 8
                if not plain:
                    size += len(born_host) + len(host) - 16
                if size > size_max or properties_size > 32767:
                    raise too_large(size, size_max, body_size, properties_size)
                if position + size + BLANK_SIZE_MIN > segment_end:
                    log.prepare(segment_end)
                    pieces.append(BLANK.pack(segment_end - position, MAGIC_BLANK))
                    parts.append((part_start, pieces))
                    pieces, part_start = [], segment_end
                    position, segment_end = segment_end, segment_end + segment_size
                if sys_flag & TRANSACTION_MASK and sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
                    queue_offset = 0  # prepared and rolled back messages are in no queue
                else:
                    queue_offset = queue.next_offset
                    moved.append((queue, queue_offset))
                    queue.buffer += pack_entry(position, size, tags_code)
                    queue.next_offset = queue_offset + 1
                if plain:
                    pieces += (
                        pack(
                            size, queue.magic, crc(body), queue_id, flag, queue_offset, position, sys_flag & ~V6_BITS,
                            born_ms, born_host, store_ms, host, times, prepared, body_size,
                        ),
                        body,
                        field,
                        lengths[properties_size] if properties_size < 2048 else PROPERTIES_LENGTH.pack(properties_size),
                        properties,
                    )  # fmt: skip
                else:
                    pieces.append(
                        encode_record(
                            topic,
                            body,
                            properties,
                            queue_id=queue_id,
                            queue_offset=queue_offset,
                            physical_offset=position,
                            flag=flag,
                            sys_flag=sys_flag,
                            born_timestamp_ms=born_ms,
                            born_host=born_host,
                            store_timestamp_ms=store_ms,
                            store_host=host,
                            reconsume_times=times,
                            prepared_transaction_offset=prepared,
                        )
                    )
                last = position
                position += size
                tickets.append(new(Appended, (last, size, queue_offset, position)))
            if last < 0:
                return tickets
            parts.append((part_start, pieces))
            self._write(parts)
        except BaseException as error:
            for queue, queue_offset in reversed(moved):
                queue.set_back(queue_offset)
            if isinstance(error, struct.error | RecordError):
                raise MessageIllegal(f"found a number out of its field's range: {error}") from error
            raise
        log.commit(position, last)
        return tickets

    def begin_batch(
        self, topic: str, queue_id: int, append_now: Callable[[EncodedBatch, int], BatchPlaces]
    ) -> EncodedBatch:
        """Return an empty batch, which append_now appends."""
        return EncodedBatch(topic, queue_id, self._store_host, self._check_size, append_now)

    def _check_size(self, size: int, record: PendingRecord) -> None:
        if size > self._record_size_max or len(record.properties) > 32767:
            raise too_large(size, self._record_size_max, len(record.body), len(record.properties))

    def append_batch(self, batch: EncodedBatch, store_ms: int) -> BatchPlaces:
        """Store all records of a batch or none. Errors: as of `append`."""
        log = self._log
        if log.fault is not None:
            raise StoreBroken(log.fault)
        position, segment_size = log.end_offset, log.segments.size
        queue = self._queues.get((batch.topic, batch.queue_id)) or self._open_queue(batch.topic, batch.queue_id)
        queue_offset, count = queue.next_offset, len(batch)
        physical_offsets: list[int] = []
        parts: list[tuple[int, list[Buffer]]] = []
        try:
            while (number := len(physical_offsets)) < count:
                segment_end = position - position % segment_size + segment_size
                if position == segment_end - segment_size:
                    log.prepare(position)
                end = batch.fitting(number, segment_end - position - BLANK_SIZE_MIN)
                pieces: list[Buffer] = []
                parts.append((position, pieces))
                if end > number:
                    places, data = batch.place(number, end, position, queue_offset + number, store_ms)
                    physical_offsets += places
                    pieces.append(data)
                    position += len(data)
                if end < count:
                    log.prepare(segment_end)
                    pieces.append(BLANK.pack(segment_end - position, MAGIC_BLANK))
                    position = segment_end
            queue.buffer += batch.entries(physical_offsets)
            queue.next_offset = queue_offset + count
            self._write(parts)
        except BaseException:
            queue.set_back(queue_offset)
            raise
        log.commit(position, physical_offsets[-1])
        return BatchPlaces(queue_offset, physical_offsets, batch.sizes, position)

    def _write(self, parts: list[tuple[int, list[Buffer]]]) -> None:
        """Write each run of bytes; if a write fails, zero the written bytes. StoreBroken: zeroing failed as well."""
        end = self._log.end_offset
        try:
            for position, pieces in parts:
                data = b"".join(pieces)
                end = position + len(data)
                self._log.put(position, data)
        except BaseException as error:
            self._log.take_back(end)
            if self._log.fault is not None:
                raise StoreBroken(self._log.fault) from error
            raise


def too_large(size: int, size_max: int, body_size: int, properties_size: int) -> MessageIllegal:
    """Return the error for a record that is larger than the store takes."""
    if properties_size > 32767:
        return MessageIllegal(f"found properties of {properties_size} bytes, expected at most 32767: send fewer")
    return MessageIllegal(
        f"found a record of {size} bytes (body {body_size}), expected at most {size_max}: send less, or raise "
        "maxMessageSize"
    )
