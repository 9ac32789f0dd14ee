"""The timer store: log, wheel and checkpoint, and their recovery.

The timer topic's records in the CommitLog are the truth. The timer log notes the slot of each record, the wheel the end
of each slot's chain, and the checkpoint up to where both are valid:

    clean stop of ours    the wheel's file is exact: it is read, and nothing is scanned
    any other stop        the log's units that may still wait are put into an empty wheel: one pass, no message read
    checkpoint lost       the topic's whole queue is read again
    log lost              messages before the checkpoint stay delivered; the queue's last days are read again

A save writes units, syncs them, and then replaces the checkpoint: that is the commit point. After an earlier crash, the
start reads the messages behind the old checkpoint's queue offset again, and keeps those of their units that survived
behind its log position.

Before the wheel's file changes, the checkpoint is marked as no longer exact. Before a lost log is rebuilt, it is marked
as being rebuilt. So a start after a crash never uses a file that is only partly written.

Source: TimerMessageStore.recover, apache/rocketmq store/timer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from ..disk import Disk
from ..errors import StoreError
from ..segments import NAME_DIGITS
from .layout import (
    CHECKPOINT,
    CHECKPOINT_FILE_SIZE,
    IS_REBUILDING,
    OWN_MARK,
    OWN_MARK_AT,
    UNIT,
    UNIT_DUE,
    WHEEL_IS_EXACT,
    TimerCheckpoint,
    UnitMagic,
)
from .log import TIMER_LOG_FOLDER, TimerLog, check_log_file_size
from .wheel import TimerWheel

CHECKPOINT_FILE = "config/timercheck"
READ_AGAIN = "the last days of timer messages are read again, none is lost"
WAIT_MAX_MS = 7 * 86_400_000  # no unit waits longer, whatever timerRollWindowSlot its writer had


class TimerFiles:
    """The files of timers. Only one caller uses them at a time: the broker's timers.

    checkpoint: their progress; None: there were no timers yet, or the checkpoint is lost. must_rebuild: the log is
    lost, the checkpoint is not. taken_offset: messages of the queue before it are in the log, as known since the start
    (0: see the checkpoint). report: problems found at the start, for the operator.
    """

    def __init__(self, disk: Disk, log_file_size: int) -> None:
        check_log_file_size(log_file_size)
        self._disk = disk
        self.report: str | None = None
        self.log = self._open_log(log_file_size)
        self.wheel = TimerWheel(disk)
        self.checkpoint: TimerCheckpoint | None = None
        self.taken_offset = 0
        self.must_rebuild = False
        self._on_disk: tuple[TimerCheckpoint, bytes] | None = None  # the checkpoint, and our own mark of it
        self._wheel_sum = 0  # of the wheel's file, as the mark says
        self._is_frozen = False  # a sync failed, and the next would succeed without writing: make no checkpoint

    def _open_log(self, file_size: int) -> TimerLog:
        """Return the log; without its files if one of them is missing, or has another size: it can be built again."""
        try:
            return TimerLog(self._disk, file_size)
        except StoreError as error:
            names = self._disk.list(TIMER_LOG_FOLDER)
            if not all(len(name) == NAME_DIGITS and name.isdigit() for name in names):
                raise
            self.report = str(error)
            self._disk.remove(TIMER_LOG_FOLDER)
            return TimerLog(self._disk, file_size)

    def recover(self, end_offset: int, queue_offset_at: Callable[[int], int | None], queue_first: int) -> None:
        """Recover. end_offset: of the CommitLog. queue_offset_at: queue offset of the record at a physical offset.

        queue_first: offset of the first record of the timer topic's queue.
        """
        data = self._disk.read(CHECKPOINT_FILE)
        known = None if data is None else _decode(data)
        if known is None:
            if self.report or self.log.files_end or (data is not None and any(data)):
                how = "missing" if data is None else "damaged"
                self._note(
                    f"found {CHECKPOINT_FILE} {how}: timer messages still in the CommitLog are delivered again, "
                    "also those that were delivered before"
                )
            self._start_empty()
            return
        saved, own_mark, self._wheel_sum = known
        self._on_disk = saved, own_mark
        checkpoint = saved
        self.checkpoint = checkpoint
        if own_mark == IS_REBUILDING or not self.log.first <= checkpoint.log_position <= self.log.files_end:
            self._note(
                f"found timerlog/ to end at {self.log.files_end}, expected {checkpoint.log_position} or more: "
                f"{READ_AGAIN}"
            )
            self.begin_rebuild()
            return
        if self._lost_first(checkpoint, queue_offset_at, queue_first):
            self._note(
                f"found timerlog/ to begin at {self.log.first}, expected the units of all timer messages from queue "
                f"offset {queue_first} on: {READ_AGAIN}"
            )
            self.begin_rebuild()
            return
        end = self._find_end(checkpoint.log_position, end_offset)
        if end is None:
            return
        self.log.begin(end, checkpoint.log_position)
        if end > checkpoint.log_position:
            last = self.log.last(end)
            unit = None if last is None else self.log.unit(last)
            found = None if unit is None else queue_offset_at(unit.physical_offset)
            if found is None:
                self.log.begin(checkpoint.log_position, checkpoint.log_position)
            else:
                # After the clock was set back, they may wait for a second before the one that was reached.
                read_ms = min(checkpoint.read_ms, self._earliest_ms(checkpoint.log_position, end))
                self.checkpoint = checkpoint = checkpoint._replace(queue_offset=found + 1, read_ms=read_ms)
        self._sync_start()
        if own_mark == WHEEL_IS_EXACT and end == checkpoint.log_position:
            self.wheel.load(checkpoint.read_ms)
            found_sum = self.wheel.checksum(checkpoint.read_ms)
            if found_sum == self._wheel_sum:
                return
            self._note(
                f"found timerwheel with the checksum {found_sum:08x}, expected {self._wheel_sum:08x}: it is built "
                "again from timerlog/, no timer message is lost"
            )
        self._distrust_wheel()
        self._fill_wheel(checkpoint.read_ms, saved)

    def _lost_first(
        self, checkpoint: TimerCheckpoint, queue_offset_at: Callable[[int], int | None], queue_first: int
    ) -> bool:
        """Return whether the log's first file is missing, and retention did not remove it.

        Retention removes a file after all messages of its units. So the first unit is that of the first message, or of
        an earlier one. After a rebuild or Apache's broker, messages that were not taken in may come between two files:
        then one rebuild too many changes nothing.
        """
        if not self.log.first:
            return False
        unit = self.log.unit(self.log.first)
        found = checkpoint.queue_offset if unit is None else queue_offset_at(unit.physical_offset)
        return found is not None and found > queue_first

    def _note(self, found: str) -> None:
        self.report = found if self.report is None else f"{self.report}; {found}"

    def _no_unit(self, position: int) -> None:
        self._note(f"found no unit at position {position} of timerlog/, expected one: {READ_AGAIN}")
        self.begin_rebuild()

    def begin_rebuild(self) -> None:
        """Drop log and wheel: the broker reads the messages of the last days again. Also while it runs."""
        if self.checkpoint is not None:
            self._mark(self.checkpoint, IS_REBUILDING)
        self._start_empty()
        self.must_rebuild = True

    def _sync_start(self) -> None:
        """Make durable what `begin` wrote, before a unit is appended.

        A unit has no checksum. If power fails while one is written over the bytes of an earlier process, a sector of
        each can remain: a unit of one second with the chain of another.
        """
        try:
            self.log.sync()
        except OSError:
            self._is_frozen = True

    def _start_empty(self) -> None:
        self.log.destroy()
        self.wheel.clear()

    def _find_end(self, position: int, end_offset: int) -> int | None:
        """Return the end of the log: after the last valid unit from position on whose message the CommitLog has.

        None: there is no unit before position, where all units were durable.
        """
        last = self.log.last(position)
        unit = None if last is None else self.log.unit(last)
        physical_offset = -1 if unit is None else unit.physical_offset
        end = position
        for start, units in self.log.scan(position, self.log.files_end):
            for at in range(start, start + len(units), UNIT.size):
                unit = self.log.unit(at)
                if unit is None or unit.physical_offset <= physical_offset or unit.size <= 0:  # torn, or another's
                    break
                physical_offset, end = unit.physical_offset, at + UNIT.size
            else:
                continue
            break
        while (last := self.log.last(end)) is not None:
            unit = self.log.unit(last)
            if unit is None:
                self._no_unit(last)
                return None
            if unit.physical_offset + unit.size <= end_offset:
                break
            end = last
        return end

    def _earliest_ms(self, position: int, end: int) -> int:
        """Return the earliest second that one of these units waits for. There is at least one unit."""
        waits = (UNIT_DUE.iter_unpack(units) for _, units in self.log.scan(position, end))
        return min(int(put_ms + distance_ms) for units in waits for _, _, put_ms, distance_ms in units)

    def _fill_wheel(self, read_ms: int, saved: TimerCheckpoint) -> None:
        """Put every unit that may still wait into an empty wheel. saved: the checkpoint, which shows what was
        delivered."""
        self.wheel.clear()
        for start, units in self.log.scan(self._scan_start(read_ms - WAIT_MAX_MS), self.log.end):
            position = start
            for size, magic, put_ms, distance_ms in UNIT_DUE.iter_unpack(units):
                due_ms = put_ms + distance_ms
                if size != UNIT.size or not 0 < magic <= UnitMagic.MAX:
                    self.checkpoint = saved
                    self._no_unit(position)
                    return
                if due_ms >= saved.read_ms or (due_ms >= read_ms and position >= saved.log_position):
                    self.wheel.put(due_ms, position, -1 if magic & UnitMagic.DELETE else 1)
                position += UNIT.size

    def _scan_start(self, put_ms: int) -> int:
        """Return where a scan for units put in at or after put_ms may start: the first unit of a file."""
        starts = [start for start in self.log.starts if start < self.log.end]
        for start in reversed(starts):
            unit = self.log.unit(start)
            if unit is not None and unit.put_ms < put_ms:
                return start
        return self.log.first

    def save(self, checkpoint: TimerCheckpoint, *, exact: bool) -> None:
        """Make a checkpoint and the log up to it durable. exact: the wheel's file matches it.

        The CommitLog must be durable as far as the checkpoint reports delivery.
        """
        if self._is_frozen:
            return
        self.log.write()
        self._distrust_wheel()
        self.wheel.write(checkpoint.read_ms)
        try:
            self.log.sync()
            if exact:
                self.wheel.sync()
        except BaseException:
            self._is_frozen = True
            raise
        if exact:
            self._wheel_sum = self.wheel.checksum(checkpoint.read_ms)
        self._mark(checkpoint, WHEEL_IS_EXACT if exact else b"")
        self.checkpoint, self.must_rebuild = checkpoint, False

    def adopt(self, checkpoint: TimerCheckpoint) -> None:
        """On a slave: keep the master's progress. It has no log and wheel: a start as master builds them from the
        queue."""
        if self._is_frozen or (self.checkpoint is not None and self.checkpoint[:3] == checkpoint[:3]):
            return
        self._mark(checkpoint, IS_REBUILDING)
        self.checkpoint, self.must_rebuild = checkpoint, True

    def distrust(self) -> None:
        """Let the next start build log and wheel from the queue: they may name messages that are being cut off."""
        if self.checkpoint is not None:
            self._mark(self.checkpoint, IS_REBUILDING)

    def _distrust_wheel(self) -> None:
        if self._on_disk is not None and self._on_disk[1] == WHEEL_IS_EXACT:
            self._mark(self._on_disk[0], b"")

    def _mark(self, checkpoint: TimerCheckpoint, own_mark: bytes) -> None:
        """Put the checkpoint's file in place, durably."""
        data = checkpoint.encode()
        if own_mark:
            data = data.ljust(OWN_MARK_AT, b"\0") + OWN_MARK.pack(own_mark, zlib.crc32(data), self._wheel_sum)
        self._disk.replace(CHECKPOINT_FILE, data.ljust(CHECKPOINT_FILE_SIZE, b"\0"))
        self._on_disk = checkpoint, own_mark

    def expire(self, physical_first: int) -> int:
        """Remove files that name only expired messages; return the bytes freed."""
        return self.log.expire(physical_first)

    def close(self) -> None:
        """Close the files as they are."""
        self.log.close()
        self.wheel.close()


def _decode(data: bytes) -> tuple[TimerCheckpoint, bytes, int] | None:
    """Return a file's checkpoint, our mark in it (empty: it has none) and the wheel's checksum; None: the file holds no
    checkpoint."""
    checkpoint = TimerCheckpoint.decode(data)
    if checkpoint is None:
        return None
    has_mark = len(data) >= OWN_MARK_AT + OWN_MARK.size
    own_mark, crc, wheel_sum = OWN_MARK.unpack_from(data, OWN_MARK_AT) if has_mark else (b"", 0, 0)
    return checkpoint, own_mark if crc == zlib.crc32(data[: CHECKPOINT.size]) else b"", wheel_sum
