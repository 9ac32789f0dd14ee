"""Cutting off the log's end: the bytes that a slave has and its master does not have.

    truncated/<first byte>-<end>[-<number>]   the bytes that were cut off
    mqtrail-truncating                        in digits: where the log ends after the cut that is under way

The bytes are copied first. Once the note is durable, the cut will happen: a start finds the note and completes it. The
mark is lowered before a byte is wiped, so that a start in between reports no missing bytes. ConsumeQueues, the index
and deleted topics follow as after a crash, in the start that ends the cut.
Source: DefaultMessageStore.truncateFiles, apache/rocketmq store/.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqtrail.wire import RecordError

from ..disk import UNCLEAN_FILE, Disk
from ..errors import LogDiffers
from .log import CommitLog
from .notes import NOTES_FILE
from .queue import ConsumeQueue

TRUNCATED_FOLDER = "truncated"
TRUNCATING_FILE = "mqtrail-truncating"
COPY_CHUNK = 1 << 20


def noted_cut(disk: Disk) -> int | None:
    """Return where the log ends after the cut that is under way; None: there is none."""
    text = (disk.read(TRUNCATING_FILE) or b"").strip()
    return int(text) if text.isdigit() else None


def last_record_before(log: CommitLog, queues: Iterable[ConsumeQueue], end: int) -> int:
    """Return where the record that ends at `end` begins; -1: the log begins at `end`. LogDiffers: none ends there."""
    if end == log.first_offset:
        return -1
    position, last = max((queue.last_before(end) for queue in queues), default=-1), -1
    position = max(position, log.first_offset)
    try:
        while position < end:
            head, _, after = log.scan(position, crc=False)
            if head is not None:
                last = position
            position = after
    except RecordError as error:
        raise LogDiffers(f"found no whole log up to physical offset {end}, where it should end: {error}") from error
    if position != end:
        raise LogDiffers(
            f"found a record at physical offset {last} that ends at {position}, expected one that ends at {end}, where "
            "the log should end: this log and the other one differ before that"
        )
    return last


def copy_tail(disk: Disk, log: CommitLog, end: int) -> str:
    """Copy the bytes from `end` on to a file, durably; return its path. StoreFull, OSError: there is no file."""
    names = disk.list(TRUNCATED_FOLDER)
    name = base = f"{end:020}-{log.end_offset:020}"
    number = 1
    while name in names:
        number += 1
        name = f"{base}-{number}"
    path = f"{TRUNCATED_FOLDER}/{name}"
    try:
        file = disk.open(path, log.end_offset - end)
        at = end
        while at < log.end_offset:
            left = log.segments.start_of(at) + log.segments.size - at
            size = min(COPY_CHUNK, left, log.end_offset - at)
            file.write_at(at - end, bytes(log.read(at, size)))
            at += size
        file.sync()
        file.close()
    except BaseException:
        disk.remove(path)  # a part of it would pass for what was cut off, and each try would leave one more
        raise
    return path


def note_cut(disk: Disk, end: int) -> None:
    """Note, durably, that the log is being cut at `end`."""
    disk.replace(TRUNCATING_FILE, b"%d" % end)


def cut_log(disk: Disk, log: CommitLog, queues: Iterable[ConsumeQueue], end: int) -> None:
    """Wipe the log from `end` on. Nothing but a start may use the files afterwards."""
    last = last_record_before(log, queues, end)
    disk.replace(UNCLEAN_FILE, b"")
    disk.remove(NOTES_FILE)  # it has the ends of longer queues
    log.lower_mark(end, last)
    log.wipe(end)
    if end == 0:
        for folder in ("index", "mqtrail-index"):
            disk.remove(folder)


def end_cut(disk: Disk) -> None:
    """Note that the cut is complete."""
    disk.remove(TRUNCATING_FILE)
