"""Appending bytes of another store: a slave's log equals its master's, byte for byte.

The bytes are written behind the log's end, and its whole records are checked and get their queue entries as at a start
(`scan.py`). Then they become part of the log. If one of them is no record, those before it stay, the others are wiped,
and the caller gets the reason. Padding at a segment's end is copied as it is.
Source: DefaultMessageStore.appendToCommitLog, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mqtrail.wire import MAGIC_BLANK, parse_delay_levels

from ..base import Buffer
from ..disk import Disk
from ..errors import LogDiffers, StoreBroken
from .config import CommitLogConfig
from .log import BLANK, BLANK_SIZE_MIN, CommitLog
from .notes import note_expired
from .queues import ConsumeQueues
from .scan import LogScan

PLACE = struct.Struct(">28xq")  # of a record: what comes before it, its physical offset
COPIED_RECORD_SIZE_MAX = 64 << 20  # bytes of one record, or of the padding of a segment


class LogCopy:
    """Appends to one store. on_begin: called when an empty log begins behind offset 0."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        config: CommitLogConfig,
        on_begin: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._delays_ms = parse_delay_levels(config.message_delay_level)
        self._on_begin = on_begin
        self._scan: LogScan | None = None

    def forget(self) -> None:
        """Forget what was learned about queues, because some were deleted."""
        self._scan = None

    def append(self, physical_offset: int, data: Buffer) -> tuple[int, int]:
        """Store the whole records of data, which begin at physical_offset; return (bytes stored, last store time).

        Bytes behind the last whole record are not stored. LogDiffers: they do not belong to this log; StoreFull: no
        space; StoreBroken: the disk failed before.
        """
        log = self._log
        if log.fault is not None:
            raise StoreBroken(log.fault)
        begins_late = physical_offset > 0 and not log.segments.starts
        if physical_offset != log.end_offset and not begins_late:
            raise LogDiffers(
                f"found bytes for physical offset {physical_offset}, expected {log.end_offset}, the end of this log"
            )
        parts = self._parts(physical_offset, data)
        if not parts:
            return 0, 0
        if begins_late:
            self._begin_at(physical_offset, data)
        end = physical_offset
        try:
            for first, size in parts:
                log.prepare(log.segments.start_of(first))
                at = first - physical_offset
                end = first + size
                log.put(first, bytes(data[at : at + size]))
            self._dispatch(end)
        finally:
            if log.end_offset < end:
                log.take_back(end)
        scan = self._scan
        return end - physical_offset, 0 if scan is None else scan.last_store_ms

    def _begin_at(self, physical_offset: int, data: Buffer) -> None:
        if physical_offset % self._log.segments.size:
            raise LogDiffers(
                f"found a log that begins at physical offset {physical_offset}, expected a multiple of "
                f"{self._log.segments.size}: start the slave with the file size of its master (mappedFileSizeCommitLog)"
            )
        _check_place(physical_offset, data)
        note_expired(self._disk, physical_offset)  # otherwise a start would report the bytes before as missing
        self._log.begin_at(physical_offset)
        self._on_begin()

    def _parts(self, physical_offset: int, data: Buffer) -> list[tuple[int, int]]:
        """Return (place, size) of the runs of whole records, one for each segment."""
        segment_size = self._log.segments.size
        parts: list[tuple[int, int]] = []
        at, first, data_size = 0, 0, len(data)
        left = segment_size - physical_offset % segment_size
        while at + BLANK_SIZE_MIN <= data_size:
            size, magic = BLANK.unpack_from(data, at)
            if not 0 < size <= min(left, COPIED_RECORD_SIZE_MAX) or (magic == MAGIC_BLANK and size != left):
                raise LogDiffers(
                    f"found no record at physical offset {physical_offset + at} of the bytes received (size {size}, "
                    f"magic {magic:#x}), with {left} bytes to the file's end: this log is not a copy of that one, or "
                    "its files have another size (mappedFileSizeCommitLog)"
                )
            if at + size > data_size:
                break
            at += size
            left -= size
            if not left:
                parts.append((physical_offset + first, at - first))
                first, left = at, segment_size
        if at > first:
            parts.append((physical_offset + first, at - first))
        return parts

    def _dispatch(self, end: int) -> None:
        """Check the records up to end, add their queue entries, and let them be part of the log."""
        log = self._log
        scan = self._scan
        if scan is None or scan.position != log.end_offset:
            scan = self._scan = LogScan(
                log,
                self._queues.by_key,
                self._put_entry,
                {},
                self._delays_ms,
                position=log.end_offset,
                crc=True,
                torn_from=None,
                deleted={},
            )
        why = scan.run(end)
        if scan.position > log.end_offset:
            log.commit(scan.position, scan.last_record if scan.last_record >= 0 else log.last_record)
        if why is not None:
            self._scan = None
            raise LogDiffers(
                f"{why}: this log is not a copy of that one, or the bytes were damaged on their way"
            ) from why

    def _put_entry(
        self, topic: str, queue_id: int, queue_offset: int, physical: int, size: int, tags_code: int
    ) -> None:
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is not None and queue_offset < queue.next_offset:
            if self._queues.is_spent(queue):
                self._queues.begin_again(queue)  # its records expired at Apache's master, which then forgot the queue
            else:
                self._queues.delete_topic(topic)  # the other store deleted it, and has it again
        self._queues.put_entry(topic, queue_id, queue_offset, physical, size, tags_code)


def _check_place(physical_offset: int, data: Buffer) -> None:
    """Check the first record before an empty log begins there, which cannot be undone. LogDiffers: it is of another
    place."""
    if BLANK.unpack_from(data)[1] == MAGIC_BLANK:  # padding names no place
        return
    found = PLACE.unpack_from(data)[0] if len(data) >= PLACE.size else -1
    if found != physical_offset:
        raise LogDiffers(
            f"found a record of physical offset {found} at the begin of a log at {physical_offset}, expected its own "
            "place: the peer is not a master of this group"
        )
