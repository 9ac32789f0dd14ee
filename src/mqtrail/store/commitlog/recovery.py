"""What a start makes of the files it finds: where the log ends, what the derived files lack, what was wiped.

From the place up to which queues are known to be on disk, every record is checked and its entry put again where it is
missing. The first bytes that are no record end the log, if they stand at or above the durable mark: they are the torn
tail of a crash and are wiped. Below the mark they are damage, and the broker refuses to start and names the position.

Where there never was a mark (Apache wrote the folder) the scan begins at the segment that Apache's own rules choose;
where it cannot be read, everything derived is built again from the whole log.
Source of those rules: CommitLog.recoverNormally, recoverAbnormally, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mqtrail.store.base import StoreError
from mqtrail.store.commitlog.config import CommitLogConfig
from mqtrail.store.commitlog.log import CommitLog
from mqtrail.store.commitlog.mark import Mark
from mqtrail.store.commitlog.queue import ConsumeQueue
from mqtrail.store.disk import Disk
from mqtrail.wire import (
    SCHEDULE_TOPIC,
    MessageSysFlag,
    RecordError,
    RecordHead,
    check_record,
    decode_properties,
    delay_of_level,
    parse_delay_levels,
    tags_code,
)

PutEntry = Callable[[str, int, int, int, int, int], None]
CHECKPOINT_SLACK_MS = 3_000  # what Apache takes off the checkpoint's times
IN_QUEUE = (0, MessageSysFlag.TRANSACTION_COMMIT)  # prepared and rolled back messages are in no queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What the start found. wiped_size: bytes that were written and are no record; more may have been lost with them,
    which nobody can count. dangling_entries: queue entries that pointed past the end of the log."""

    unclean: bool
    scanned_from: int
    end_offset: int
    wiped_size: int
    dangling_entries: int
    rebuilt_entries: int
    last_store_ms: int

    def __str__(self) -> str:
        if not self.unclean:
            return f"clean stop before; the log ends at {self.end_offset}"
        loss = (
            f"{self.wiped_size} bytes wiped, {self.dangling_entries} queue entries pointed past the end: messages that "
            "were not yet durable are lost, maybe more than these"
            if self.wiped_size or self.dangling_entries
            else "nothing had to be wiped"
        )
        return f"unclean stop before; the log ends at {self.end_offset}; {loss}"


def queue_code(head: RecordHead, properties: memoryview, delays_ms: Sequence[int]) -> int:
    """Return the tags code that a record's queue entry holds."""
    values = decode_properties(bytes(properties))
    if head.topic == SCHEDULE_TOPIC and values.get("DELAY", "").isdigit() and int(values["DELAY"]) > 0:
        return head.store_timestamp_ms + delay_of_level(int(values["DELAY"]), delays_ms)
    return tags_code(values.get("TAGS", ""))


def recover(
    log: CommitLog,
    queues: Sequence[ConsumeQueue],
    put_entry: PutEntry,
    disk: Disk,
    config: CommitLogConfig,
    unclean: bool,
) -> Recovery:
    """Find the log's end, complete the queues, and begin writing there. StoreError: see the module."""
    delays_ms = parse_delay_levels(config.message_delay_level)
    mark = _trusted(log, log.mark)
    start = _scan_start(log, queues, mark, disk, unclean)
    torn_from = (0 if mark is None else mark.flushed_offset) if unclean else None
    position, last_record, last_store_ms, rebuilt = start, -1, 0, 0
    dangling = 0
    if unclean:
        # Without a mark that can be read nothing says what was synced: all of Apache's entries count, none of ours.
        trusted_end = mark.dispatched_offset if mark is not None else log.segments.end if log.is_foreign else 0
        for queue in queues:
            dangling += _pointing_past(queue, log)
            queue.keep_proven(lambda of, at: _is_right(of, at, log, trusted_end))
    ends = {(queue.topic, queue.queue_id): queue.next_offset for queue in queues}
    while log.segments.has(position):
        try:
            head, view, after = log.scan(position, crc=config.check_crc, torn_from=torn_from)
        except RecordError as error:
            if mark is not None and position < mark.flushed_offset:
                file = log.segments.path(log.segments.start_of(position))
                raise StoreError(
                    f"found damage in the CommitLog at physical offset {position} ({error}), expected whole records up "
                    f"to {mark.flushed_offset}, which were flushed: restore {file} from a copy, or remove the file "
                    "mqtrail-durable to accept the loss of everything from there on"
                ) from error
            break
        if head is not None:
            if head.sys_flag & MessageSysFlag.TRANSACTION_MASK in IN_QUEUE:
                code = queue_code(head, view[head.properties_start : head.properties_end], delays_ms)
                if head.queue_offset >= ends.get((head.topic, head.queue_id), 0):
                    rebuilt += 1
                put_entry(head.topic, head.queue_id, head.queue_offset, position, head.size, code)
            last_record, last_store_ms = position, max(last_store_ms, head.store_timestamp_ms)
        position = after
    if mark is not None and position < mark.flushed_offset:
        raise StoreError(
            f"found the CommitLog to end at physical offset {position}, expected {mark.flushed_offset} bytes, which "
            "were flushed: restore the missing files, or remove the file mqtrail-durable to accept the loss"
        )
    if last_record < 0 and mark is not None:
        last_record = mark.last_record
    # Stale bytes stand behind the end after a crash, and where Apache, which does not wipe, has cut its log.
    is_tidy = not unclean and mark is not None and mark.flushed_offset == position
    wiped = log.wipe(position) if log.segments.has(position) and not is_tidy else 0
    dangling += sum(queue.truncate(position) for queue in queues)
    for queue in queues:
        queue.correct_first(log.first_offset)
    log.begin(position, start if mark is None else mark.flushed_offset, last_record)
    if last_store_ms == 0 and log.last_record >= 0:
        last_store_ms = check_record(_record_at(log, log.last_record), crc=False).store_timestamp_ms
    return Recovery(
        unclean=unclean,
        scanned_from=start,
        end_offset=position,
        wiped_size=wiped,
        dangling_entries=dangling,
        rebuilt_entries=rebuilt,
        last_store_ms=last_store_ms,
    )


def _is_right(queue: ConsumeQueue, queue_offset: int, log: CommitLog, trusted_end: int) -> bool:
    """Whether the record that an entry names is below trusted_end and is the queue's record of this offset."""
    physical_offset, size, _ = queue.entry(queue_offset)
    if physical_offset < log.first_offset:
        return physical_offset > 0 and size > 0  # its record expired
    if size <= 0 or physical_offset + size > trusted_end or not log.segments.has(physical_offset):
        return False
    try:
        head = check_record(_record_at(log, physical_offset), crc=False)
    except RecordError:
        return False
    return (head.topic, head.queue_id, head.queue_offset, head.size) == (
        queue.topic,
        queue.queue_id,
        queue_offset,
        size,
    )


def _pointing_past(queue: ConsumeQueue, log: CommitLog) -> int:
    """Return how many of the queue's last entries name a place where no record stands."""
    count = 0
    for queue_offset in range(queue.next_offset - 1, queue.first_offset - 1, -1):
        physical_offset, size, _ = queue.entry(queue_offset)
        if size > 0 and physical_offset < log.first_offset:
            break
        if size > 0 and log.segments.has(physical_offset):
            try:
                log.scan(physical_offset, crc=False)
                break
            except (RecordError, StoreError):
                pass  # a torn entry may name any place
        count += 1
    return count


def _record_at(log: CommitLog, physical_offset: int) -> memoryview:
    start = log.segments.start_of(physical_offset)
    return log.read(physical_offset, start + log.segments.size - physical_offset)


def _trusted(log: CommitLog, mark: Mark | None) -> Mark | None:
    """Return the mark if it is of this log. StoreError: it is, and files that were flushed are gone.

    Not of this log: Apache's broker went on in the folder until every record of the mark's time had expired.
    """
    if mark is None or mark.last_record < log.first_offset:
        return None
    if mark.flushed_offset > log.segments.end:
        raise StoreError(
            f"found the files of commitlog/ to end at physical offset {log.segments.end}, expected "
            f"{mark.flushed_offset} bytes, which were flushed: restore the missing files, or remove the file "
            "mqtrail-durable to accept the loss"
        )
    return mark


def _scan_start(log: CommitLog, queues: Sequence[ConsumeQueue], mark: Mark | None, disk: Disk, unclean: bool) -> int:
    if not log.segments.starts or not queues:
        return log.first_offset  # nothing to read, or the queues were removed to be built again
    if mark is not None:
        at = mark.dispatched_offset
        if unclean and at > mark.last_record:
            at = mark.last_record  # look at the last flushed record again
        return at if log.segments.has(at) or at == log.segments.end else log.first_offset
    if not log.is_foreign:
        return log.first_offset
    if not unclean:
        known = max((queue.physical_end() for queue in queues), default=0)
        started = [start for start in log.segments.starts if start <= known]
        return started[-1] if started else log.first_offset
    data = disk.read("checkpoint")
    physic, logics, indexed = struct.unpack_from(">qqq", data) if data is not None and len(data) >= 24 else (0, 0, 0)
    clean_ms = max(0, min(physic, logics) - CHECKPOINT_SLACK_MS)
    if indexed:
        clean_ms = min(clean_ms, indexed)
    for start in reversed(log.segments.starts):
        try:
            head, _, _ = log.scan(start, crc=False)
        except RecordError:
            continue
        if head is not None and 0 < head.store_timestamp_ms <= clean_ms:
            return start
    return log.first_offset
