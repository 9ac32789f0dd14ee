"""Recovery at a start: finds the log's end, completes the derived files, and wipes the torn tail.

Queues are known to be on disk up to some physical offset. From there on, recovery checks every record once and adds its
queue entry again. At or above the durable mark, the first bytes that are not a record end the log: they are the torn
tail of a crash and are wiped. Below the mark they are damage: the broker refuses to start and names the position,
unless it is configured to skip damage (`damage.py`).

Without a mark (Apache wrote the folder) the scan begins at the segment that Apache's rules choose. If the mark cannot
be read, or a queue lacks durable entries, all derived files are rebuilt from the whole log.
Source of those rules: CommitLog.recoverNormally, recoverAbnormally, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from mqtrail.wire import (
    RecordError,
    check_record,
    parse_delay_levels,
)

from ..base import Damage, Recovery
from ..disk import Disk
from ..errors import StoreError
from .config import CommitLogConfig
from .damage import damaged, step_over
from .log import CommitLog
from .mark import Mark
from .notes import Noted, QueueKey
from .queue import ConsumeQueue
from .scan import LogScan, PutEntry

MARK_LOST = (
    "mqtrail-durable: found no readable mark: the whole CommitLog was read, and its end set to the first bytes that "
    "are not a record"
)
CHECKPOINT_SLACK_MS = 3_000  # what Apache subtracts from the checkpoint's times


def recover(
    log: CommitLog,
    queues: Mapping[tuple[str, int], ConsumeQueue],
    put_entry: PutEntry,
    disk: Disk,
    config: CommitLogConfig,
    unclean: bool,
    rebuilt: Sequence[str] = (),
    noted: Noted | None = None,
    deleted: Mapping[str, int] | None = None,
) -> Recovery:
    """Find the log's end, complete the queues, and start writing there. StoreError: see the module.

    queues: all existing ones; put_entry creates others. rebuilt: texts about damaged queues, now empty: read the whole
    log. noted: the queues' ends at the last checkpoint. deleted: topic -> physical offset below which records are void.
    """

    first_start = log.is_foreign and not unclean and not log.segments.starts
    mark = _trusted(log, log.mark)
    known = list(queues.values())
    start = log.first_offset if rebuilt else _scan_start(log, known, mark, disk, unclean)
    ends = {key: queue.next_offset for key, queue in queues.items()}
    is_suspect = unclean or bool(rebuilt)
    dangling = sum(_pointing_past(queue, log) for queue in known) if is_suspect else 0
    if is_suspect and (found := _keep_trusted(log, known, mark, start, {} if noted is None else noted.ends)):
        rebuilt, start = [*rebuilt, *found], log.first_offset
    scan = LogScan(
        log,
        queues,
        put_entry,
        ends,
        parse_delay_levels(config.message_delay_level),
        position=start,
        crc=config.check_crc,
        torn_from=(0 if mark is None else mark.flushed_offset) if unclean else None,
        deleted=deleted or {},
    )
    damage = _read_all(log, queues, scan, mark, config)
    position, last_record = scan.position, scan.last_record
    if mark is not None:
        _check_flushed(mark, position)
        last_record = mark.last_record if last_record < 0 else last_record
    wiped = _wipe(log, mark, position, unclean)
    dangling += sum(queue.truncate(position) for queue in queues.values())
    for queue in queues.values():
        queue.correct_first(log.first_offset)
    _begin(log, mark, start, position, last_record, unclean)
    return Recovery(
        unclean=unclean,
        scanned_from=start,
        end_offset=position,
        wiped_size=wiped,
        dangling_entries=dangling,
        rebuilt_entries=scan.rebuilt,
        last_store_ms=scan.last_store_ms or _last_store_ms(log),
        damage=damage,
        rebuilt=(*rebuilt, MARK_LOST) if log.has_lost_mark else tuple(rebuilt),
        first_start=first_start,
    )


def _keep_trusted(
    log: CommitLog, queues: Sequence[ConsumeQueue], mark: Mark | None, start: int, noted: Mapping[QueueKey, int]
) -> list[str]:
    """Keep the queue entries that the mark proves; return reports of queues that lack durable entries.

    If a queue lacks some, no derived entry is trusted.
    """
    # Without a readable mark it is unknown what was synced: Apache's entries are kept, ours are not.
    trusted_end = min(start, mark.dispatched_offset) if mark is not None else start
    found = _keep_proven(log, queues, trusted_end, noted)
    if found:
        _keep_proven(log, queues, log.first_offset, {})
    return found


def _check_flushed(mark: Mark, position: int) -> None:
    """Check that no flushed byte is missing. StoreError: the log ends before bytes that were flushed."""
    if position < mark.flushed_offset:
        raise StoreError(
            f"found the CommitLog to end at physical offset {position}, expected {mark.flushed_offset} bytes, which "
            "were flushed: restore the missing files, or remove the file mqtrail-durable to accept the loss"
        )


def _begin(log: CommitLog, mark: Mark | None, start: int, position: int, last_record: int, unclean: bool) -> None:
    """Continue the log at position; after a crash write the bytes behind the mark again, since they may not be
    synced."""
    flushed_offset = start if mark is None else mark.flushed_offset
    log.begin(position, flushed_offset, last_record, scanned_from=start)
    if unclean and not log.is_foreign:
        log.rewrite(flushed_offset)


def _wipe(log: CommitLog, mark: Mark | None, position: int, unclean: bool) -> int:
    """Wipe stale bytes behind the log's end; return their size.

    They exist after a crash, and after a stop of Apache's broker, which does not wipe them.
    """
    is_tidy = not unclean and not log.is_wiping and mark is not None and mark.flushed_offset == position
    return log.wipe(position) if log.segments.has(position) and not is_tidy else 0


def _last_store_ms(log: CommitLog) -> int:
    """Return the store time of the log's last record, 0 without one."""
    if log.last_record < 0:
        return 0
    head, _, _ = log.scan(log.last_record, crc=False)
    return 0 if head is None else head.store_timestamp_ms


def _keep_proven(
    log: CommitLog, queues: Sequence[ConsumeQueue], trusted_end: int, noted: Mapping[QueueKey, int]
) -> list[str]:
    """Keep the queue entries of records below trusted_end; return reports of queues that lack some."""
    log.distrust_queues(trusted_end)
    found = []
    for queue in queues:
        wrong = queue.keep_proven(trusted_end, lambda of, at: _is_right(of, at, log, trusted_end))
        if wrong and queue.next_offset < noted.get((queue.topic, queue.queue_id), 0):
            found.append(
                f"consumequeue/{queue.topic}/{queue.queue_id}: found {wrong} entries at its end that name other "
                "records: built again from the CommitLog"
            )
    return found


def _read_all(
    log: CommitLog,
    queues: Mapping[tuple[str, int], ConsumeQueue],
    scan: LogScan,
    mark: Mark | None,
    config: CommitLogConfig,
) -> tuple[Damage, ...]:
    """Read to the end of the flushed bytes and of the whole records behind them; return the skipped damage."""
    damage: list[Damage] = []
    while (why := scan.run()) is not None:
        durable_end = 0 if mark is None else mark.flushed_offset
        if scan.position >= durable_end:
            if isinstance(why, StoreError):
                raise why
            break
        if not config.skip_damaged:
            raise why if isinstance(why, StoreError) else damaged(log, scan.position, why) from why
        damage.append(step_over(log, queues.values(), scan.position, durable_end, why))
    return tuple(damage)


def is_right(queue: ConsumeQueue, queue_offset: int, log: CommitLog) -> bool:
    """Return whether an entry's record is the queue's record of this offset."""
    return _is_right(queue, queue_offset, log, log.segments.end)


def _is_right(queue: ConsumeQueue, queue_offset: int, log: CommitLog, trusted_end: int) -> bool:
    physical_offset, size, _ = queue.entry(queue_offset)
    if physical_offset < log.first_offset:
        return physical_offset > 0 and size > 0  # its record expired
    if size <= 0 or physical_offset + size > trusted_end or not log.segments.has(physical_offset):
        return False
    try:
        head = check_record(_record_at(log, physical_offset), crc=False)
    except RecordError:
        return False
    is_its_offset = head.queue_offset == queue_offset or not log.is_plain  # a DLedger leader may give one twice
    return is_its_offset and (head.topic, head.queue_id, head.size) == (queue.topic, queue.queue_id, size)


def _pointing_past(queue: ConsumeQueue, log: CommitLog) -> int:
    """Return how many of the queue's last entries point to a place without a record."""
    count = 0
    for queue_offset in range(queue.next_offset - 1, queue.first_offset - 1, -1):
        physical_offset, size, _ = queue.entry(queue_offset)
        if size > 0 and physical_offset < log.first_offset:
            break
        if size > 0 and log.segments.has(physical_offset) and log.has_record(physical_offset):
            break  # a torn entry may point anywhere
        count += 1
    return count


def _record_at(log: CommitLog, physical_offset: int) -> memoryview:
    start = log.segments.start_of(physical_offset)
    return log.read(physical_offset, start + log.segments.size - physical_offset)


def _trusted(log: CommitLog, mark: Mark | None) -> Mark | None:
    """Return the mark if it belongs to this log. StoreError: it does, and flushed files are missing.

    The mark is obsolete if Apache's broker has used the folder until every record of the mark's time had expired.
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
