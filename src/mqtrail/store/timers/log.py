"""The timer log: one unit for each wait of a message in a slot. Units are appended, and each slot's are linked
backwards.

Units are buffered in memory and written together. `end` is the position of the next one.

Source: TimerLog, apache/rocketmq store/timer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..disk import Disk, File
from ..errors import StoreError
from ..segments import Segments
from .layout import (
    FILLER,
    FILLER_MAGIC,
    UNIT,
    Unit,
    UnitMagic,
)

TIMER_LOG_FOLDER = "timerlog"
GATHERED_SIZE_MAX = 256 * 1024  # bytes of units kept in memory before they are written
READ_UNITS = 4_096  # units that a scan reads at once
READ_SIZE = UNIT.size * READ_UNITS


class TimerLog:
    """The files of one folder. file_size: of each of them."""

    def __init__(self, disk: Disk, file_size: int) -> None:
        self._segments = Segments(disk, TIMER_LOG_FOLDER, file_size, reserve=False)
        self._unsynced: dict[int, File] = {}
        self._gathered = bytearray()
        self._written = self.end = self._segments.end  # `begin` sets the real end

    @property
    def first(self) -> int:
        """Position of the first kept unit."""
        return self._segments.first

    @property
    def starts(self) -> list[int]:
        """Where its files begin."""
        return self._segments.starts

    @property
    def files_end(self) -> int:
        """Position after the last file's last byte; 0 without files."""
        return self._segments.end

    def begin(self, end: int, synced_end: int) -> None:
        """Continue at end. Bytes behind it are ignored and zeroed.

        Bytes between synced_end and end are written again. A sync of the previous process may have failed: then the
        kernel shows these bytes as clean and never writes them.
        """
        self._gathered.clear()
        self._written = self.end = end
        self._segments.drop_from(self._segments.start_of(end) + self._segments.size)
        for start in self._segments.starts:
            file = self._segments.file(start)
            for at in range(max(start, min(synced_end, end)) - start, self._segments.size, READ_SIZE):
                data = file.read_at(at, READ_SIZE)
                kept = data[: max(0, end - start - at)]
                if not data[len(kept) :].strip(b"\0"):
                    data = kept
                if data:
                    file.write_at(at, kept.ljust(len(data), b"\0"))
                    self._unsynced[start] = file

    def append(
        self, previous: int, magic: int, put_ms: int, slot_ms: int, physical_offset: int, size: int, topic_hash: int
    ) -> int:
        """Add a unit; return its position. StoreFull: there is no room for the file it would begin."""
        if len(self._gathered) >= GATHERED_SIZE_MAX:
            self.write()
        room = self._room()
        if room < UNIT.size + FILLER.size:
            self._gathered += FILLER.pack(room, 0, FILLER_MAGIC) + bytes(room - FILLER.size)
            self.end += room
            self.write()
        position = self.end
        self._gathered += UNIT.pack(
            UNIT.size, previous, magic, put_ms, slot_ms - put_ms, physical_offset, size, topic_hash, 0
        )
        self.end += UNIT.size
        return position

    def _room(self) -> int:
        return self._segments.size - self.end % self._segments.size

    def write(self) -> None:
        """Write the buffered units. StoreFull leaves them in memory."""
        while self._gathered:
            start = self._segments.start_of(self._written)
            file = self._segments.file(start) if self._segments.has(start) else self._segments.make(start)
            part = bytes(self._gathered[: start + self._segments.size - self._written])
            file.write_at(self._written - start, part)
            self._unsynced[start] = file
            self._written += len(part)
            del self._gathered[: len(part)]

    def sync(self) -> None:
        """Make what was written durable."""
        for start in list(self._unsynced):
            self._unsynced[start].sync()
            del self._unsynced[start]

    def unit(self, position: int) -> Unit | None:
        """Return the unit at position; None: it has expired, or the position is invalid."""
        if position >= self._written:
            at = position - self._written
            data = bytes(self._gathered[at : at + UNIT.size])
        elif self._segments.has(position):
            start = self._segments.start_of(position)
            data = self._segments.file(start).read_at(position - start, UNIT.size)
        else:
            return None
        return _unit(data)

    def scan(self, position: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position, whole units) of [position, end), without fillers and without units not written yet."""
        size = self._segments.size
        whole = (size - FILLER.size) // UNIT.size * UNIT.size  # a file's filler begins here at the latest
        while position < min(end, self._segments.end):
            start = self._segments.start_of(position)
            left = min(start + whole, end) - position
            if left < UNIT.size:
                position = start + size
                continue
            data = self._segments.file(start).read_at(position - start, min(left, READ_UNITS * UNIT.size))
            yield position, data[: len(data) // UNIT.size * UNIT.size]
            position += len(data) // UNIT.size * UNIT.size

    def last(self, end: int) -> int | None:
        """Return the position of the last unit before end; None: there is none."""
        start = self._segments.start_of(end)
        at = end - UNIT.size
        if at < start:
            whole = (self._segments.size - FILLER.size) // UNIT.size * UNIT.size
            at = start - self._segments.size + whole - UNIT.size
        return at if at >= self._segments.first and self._segments.has(at) else None

    def expire(self, physical_first: int) -> int:
        """Remove files whose units all name expired messages, except the last file; return the bytes freed."""
        freed = 0
        while len(self._segments.starts) > 1 and self._segments.starts[1] <= self._written:
            last = self.last(self._segments.starts[1])
            unit = None if last is None else self.unit(last)
            if unit is None or unit.physical_offset >= physical_first:
                break
            self._unsynced.pop(self._segments.starts[0], None)
            freed += self._segments.drop_first()
        return freed

    def close(self) -> None:
        """Close the files."""
        self._segments.close()

    def destroy(self) -> None:
        """Remove all files, so that the log can be rebuilt."""
        self._gathered.clear()
        self._unsynced.clear()
        self._segments.destroy()
        self._written = self.end = 0


def _unit(data: bytes) -> Unit | None:
    if len(data) < UNIT.size:
        return None
    size, previous, magic, put_ms, distance_ms, physical_offset, record_size, topic_hash, _ = UNIT.unpack(data)
    if size != UNIT.size or not 0 < magic <= UnitMagic.MAX:
        return None
    return Unit(previous, magic, put_ms, put_ms + distance_ms, physical_offset, record_size, topic_hash)


def check_log_file_size(size: int) -> None:
    """Raise StoreError if a file could not hold a unit."""
    if size < UNIT.size + FILLER.size:
        raise StoreError(f"found timer log files of {size} bytes, expected at least {UNIT.size + FILLER.size}")
