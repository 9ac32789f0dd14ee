"""Damage inside the CommitLog, where records were durable: its error, and how a start may skip it.

The bytes from the damage to the next whole record become one record: a rolled-back message, which is in no queue, with
these bytes as its body. So the log can be read again, by Apache's broker too, and the damaged bytes are kept. Queue
entries that pointed into it become blank, like those of expired records.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqtrail.wire import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    MessageSysFlag,
    RecordError,
    check_record,
    encode_record,
)

from ..base import Damage
from ..errors import StoreError
from .log import BLANK, BLANK_SIZE_MIN, CommitLog
from .queue import ConsumeQueue

TOPIC = "mqtrail-damaged"
TOPIC_SHORT = "x"
NO_HOST = bytes(8)
SKIP_REMEDY = "start once with --skip-damaged (store.skip_damaged) to skip it and lose the messages there"


def damaged(log: CommitLog, position: int, why: object) -> StoreError:
    """Return the error to raise for damaged durable records."""
    known = log.mark
    return StoreError(
        f"found damage in the CommitLog at physical offset {position} ({why}), expected whole records up to "
        f"{known.flushed_offset if known is not None else log.segments.end}, which were flushed: restore "
        f"{log.segments.path(log.segments.start_of(position))} from a copy, or {SKIP_REMEDY}"
    )


def step_over(log: CommitLog, queues: Iterable[ConsumeQueue], position: int, limit: int, why: object) -> Damage:
    """Repair the log at position, which is below limit; return the lost range."""
    end = next_whole(log, position, limit)
    start = log.segments.start_of(position)
    file = log.segments.file(start)
    file.write_at(position - start, _filler(bytes(file.view(position - start, end - position)), position, start, log))
    file.sync()
    for queue in queues:
        queue.blank(position, end)
    return Damage(position, end, str(why))


def next_whole(log: CommitLog, position: int, limit: int) -> int:
    """Return the start of the next whole record or padding inside the segment and below limit; otherwise the lower of
    these two ends."""
    start = log.segments.start_of(position)
    data = log.segments.file(start).read_at(0, log.segments.size)
    stop = min(log.segments.size, limit - start)
    found = stop
    for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        mark = magic.to_bytes(4, "big")
        at = data.find(mark, position - start + BLANK.size, found + BLANK.size)
        while 0 <= at - 4 < found:
            if _is_whole(data, at - 4, start):
                found = at - 4
                break
            at = data.find(mark, at + 1, found + BLANK.size)
    return start + found


def _is_whole(data: bytes, at: int, start: int) -> bool:
    size, magic = BLANK.unpack_from(data, at)
    if magic == MAGIC_BLANK:
        return bool(size == len(data) - at)
    try:
        return check_record(memoryview(data)[at:]).physical_offset == start + at
    except RecordError:
        return False


def _filler(data: bytes, position: int, start: int, log: CommitLog) -> bytes:
    """Return the record that replaces the damaged bytes, of the same size."""
    size = len(data)
    if position + size == start + log.segments.size and size >= BLANK_SIZE_MIN:
        return BLANK.pack(size, MAGIC_BLANK) + data[BLANK.size :]
    topic = TOPIC if size >= RECORD_SIZE_MIN + len(TOPIC) else TOPIC_SHORT
    room = size - RECORD_SIZE_MIN - len(topic)
    if room < 0:
        raise StoreError(
            f"found {size} damaged bytes at physical offset {position}, too few to be skipped: restore "
            f"{log.segments.path(start)} from a copy"
        )
    return encode_record(
        topic,
        data[:room],
        queue_id=0,
        queue_offset=0,
        physical_offset=position,
        born_timestamp_ms=0,
        born_host=NO_HOST,
        store_timestamp_ms=0,
        store_host=NO_HOST,
        sys_flag=int(MessageSysFlag.TRANSACTION_ROLLBACK),
    )
