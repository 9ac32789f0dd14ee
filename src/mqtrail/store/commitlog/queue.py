"""ConsumeQueue: one queue's entries, 20 bytes each, addressed by queue offset x 20.

    8   physical offset of the record
    4   its size
    8   tags code: Java's hash of TAGS; in SCHEDULE_TOPIC_XXXX when it is due (ms)

Entries are buffered in memory and written together: they derive from the CommitLog, and recovery rebuilds those that a
crash removed. Files are sparse and written by pwrite only.

Source: ConsumeQueue, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mqtrail.wire import MAGIC_V1, MAGIC_V2, topic_length

from ..base import QueueState
from ..disk import Disk, File
from ..segments import Segments, used_size
from .config import QUEUE_ENTRY_SIZE

ENTRY = struct.Struct(
    ">q"  # physical offset
    "i"  # size
    "q"  # tags code
)
assert ENTRY.size == QUEUE_ENTRY_SIZE
BLANK_ENTRY_SIZE_FIELD = 0x7FFFFFFF
BLANK_ENTRY = ENTRY.pack(0, BLANK_ENTRY_SIZE_FIELD, 0)  # fills a queue's first file up to its first entry


class ConsumeQueue(QueueState):
    """The entries of one (topic, queue id)."""

    __slots__ = ("_segments", "_unsynced", "buffer", "first_offset", "magic", "written_offset")

    def __init__(self, disk: Disk, folder: str, topic: str, queue_id: int, file_size: int) -> None:
        name = topic.encode()
        length = topic_length(name)
        super().__init__(topic, queue_id, length + name)
        self.magic = MAGIC_V1 if len(length) == 1 else MAGIC_V2
        self._segments = Segments(disk, f"{folder}/{topic}/{queue_id}", file_size, reserve=False)
        self._unsynced: dict[int, File] = {}
        self.buffer = bytearray()
        self.first_offset = self._segments.first // QUEUE_ENTRY_SIZE
        self.written_offset = self.next_offset = self._find_end()
        self._skip_blank()

    def _find_end(self) -> int:
        """Return the queue offset after the last entry in the files: entries are written in order, and a hole ends
        them."""
        if not self._segments.starts:
            return 0
        for start in reversed(self._segments.starts):
            low, high = 0, self._segments.size // QUEUE_ENTRY_SIZE
            while low < high:  # the first entry without a size
                middle = (low + high) // 2
                if ENTRY.unpack(self._segments.file(start).read_at(middle * QUEUE_ENTRY_SIZE, QUEUE_ENTRY_SIZE))[1] > 0:
                    low = middle + 1
                else:
                    high = middle
            if low:
                return start // QUEUE_ENTRY_SIZE + low
        return self._segments.first // QUEUE_ENTRY_SIZE

    def _skip_blank(self) -> None:
        low, high = self.first_offset, self.written_offset
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] == BLANK_ENTRY_SIZE_FIELD:
                low = middle + 1
            else:
                high = middle
        self.first_offset = low

    @property
    def file_first(self) -> int:
        """Queue offset with which the first file begins; 0 without files."""
        return self._segments.first // QUEUE_ENTRY_SIZE

    @property
    def is_new(self) -> bool:
        """Whether it has no entry and never had one: its first record may have any queue offset."""
        return self.next_offset == 0 and not self._segments.starts and not self.buffer

    @property
    def last_physical_offset(self) -> int:
        """Where its last record is in the log; 0: unknown."""
        return self.entry(self.next_offset - 1)[0] if self.next_offset > self.first_offset else 0

    @property
    def newest_physical_offset(self) -> int:
        """Where the last record that has an entry is in the log; -1: no entry names a record."""
        for queue_offset in range(self.next_offset - 1, self.first_offset - 1, -1):
            if not self.is_blank(queue_offset):
                return self.entry(queue_offset)[0]
        return -1

    def offset_of(self, physical_offset: int, expected: int) -> int | None:
        """Return the queue offset of the entry that names a record, usually the expected one; None: no entry does."""
        for queue_offset in (expected, self._first_at(physical_offset)):
            if (
                self.first_offset <= queue_offset < self.next_offset
                and self.entry(queue_offset)[0] == physical_offset
                and not self.is_blank(queue_offset)
            ):
                return queue_offset
        return None

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Add the entry of the next queue offset. The hot path of `append` does the same inline."""
        if queue_offset != self.next_offset:
            if not self.is_new:
                if queue_offset < self.next_offset:
                    if queue_offset < self.first_offset or self.entry(queue_offset)[0] >= physical_offset:
                        return  # known already: recovery reads records again
                    self.keep(queue_offset)  # its topic was deleted and created again
                else:
                    self._fill(queue_offset)
            else:
                self._begin_at(queue_offset)
        self.buffer += ENTRY.pack(physical_offset, size, tags_code)
        self.next_offset = queue_offset + 1

    def _begin_at(self, queue_offset: int) -> None:
        self.first_offset = self.written_offset = self.next_offset = queue_offset
        start = self._segments.start_of(queue_offset * QUEUE_ENTRY_SIZE)
        file = self._segments.make(start)
        file.write_at(0, BLANK_ENTRY * ((queue_offset * QUEUE_ENTRY_SIZE - start) // QUEUE_ENTRY_SIZE))
        self._unsynced[start] = file

    def _fill(self, queue_offset: int) -> None:
        """Leave the entries in between blank: their records are gone (expired or wiped)."""
        self.buffer += BLANK_ENTRY * (queue_offset - self.next_offset)
        self.next_offset = queue_offset

    def set_back(self, queue_offset: int) -> None:
        """Remove the entries from queue_offset on, which were added by an append that failed."""
        del self.buffer[(queue_offset - self.written_offset) * QUEUE_ENTRY_SIZE :]
        self.next_offset = queue_offset

    @property
    def buffered_size(self) -> int:
        """Bytes of entries not written yet."""
        return len(self.buffer)

    def write(self) -> None:
        """Write the buffered entries to their files. StoreFull leaves them buffered."""
        while self.buffer:
            at = self.written_offset * QUEUE_ENTRY_SIZE
            start = self._segments.start_of(at)
            file = self._segments.file(start) if self._segments.has(at) else self._segments.make(start)
            room = start + self._segments.size - at
            part = bytes(self.buffer[:room])
            file.write_at(at - start, part)
            self._unsynced[start] = file
            del self.buffer[: len(part)]
            self.written_offset += len(part) // QUEUE_ENTRY_SIZE

    def take_unsynced(self) -> list[File]:
        """Return the files written since the last call; the caller syncs them."""
        files = list(self._unsynced.values())
        self._unsynced.clear()
        return files

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Return (physical offset, size, tags code) of an entry in [first_offset, next_offset)."""
        if queue_offset >= self.written_offset:
            return ENTRY.unpack_from(self.buffer, (queue_offset - self.written_offset) * QUEUE_ENTRY_SIZE)
        at = queue_offset * QUEUE_ENTRY_SIZE
        start = self._segments.start_of(at)
        return ENTRY.unpack(self._segments.file(start).read_at(at - start, QUEUE_ENTRY_SIZE))

    def is_blank(self, queue_offset: int) -> bool:
        """Whether the entry is blank: its record is gone."""
        return self.entry(queue_offset)[1] == BLANK_ENTRY_SIZE_FIELD

    def entries(self, queue_offset: int, count: int) -> bytes:
        """Return the packed entries of [queue_offset, queue_offset + n), n <= count: up to the end or a file's end.

        Written and buffered entries are read as one range, so readers do not see where the last write ended.
        """
        count = min(count, self.next_offset - queue_offset)
        if queue_offset >= self.written_offset:
            at = (queue_offset - self.written_offset) * QUEUE_ENTRY_SIZE
            return bytes(self.buffer[at : at + count * QUEUE_ENTRY_SIZE])
        at = queue_offset * QUEUE_ENTRY_SIZE
        start = self._segments.start_of(at)
        size = min(min(count, self.written_offset - queue_offset) * QUEUE_ENTRY_SIZE, start + self._segments.size - at)
        written = self._segments.file(start).read_at(at - start, size)
        found = len(written) // QUEUE_ENTRY_SIZE
        if found < count and queue_offset + found == self.written_offset:
            return written + bytes(self.buffer[: (count - found) * QUEUE_ENTRY_SIZE])
        return written

    def physical_end(self) -> int:
        """Return where the record of the last entry ends; 0 without entries."""
        if self.next_offset <= self.first_offset:
            return 0
        physical_offset, size, _ = self.entry(self.next_offset - 1)
        return physical_offset + size

    def keep_proven(self, physical_end: int, is_right: Callable[[ConsumeQueue, int], bool]) -> int:
        """Keep the entries whose records end at or below physical_end; drop and wipe later ones, which are added again.

        Entries are synced in order, so the kept ones are right if they were durable. Later entries may be torn, missing
        between others, or only in the page cache. A torn one may point anywhere, so the last entry that the search
        keeps is compared with its record. Returns how many entries failed this check.
        """
        low, high = self.first_offset, self.next_offset
        while low < high:
            middle = (low + high) // 2
            physical_offset, size, _ = self.entry(middle)
            if size > 0 and (size == BLANK_ENTRY_SIZE_FIELD or physical_offset + size <= physical_end):
                low = middle + 1
            else:
                high = middle
        end = low
        while end > self.first_offset and not is_right(self, end - 1):
            end -= 1
        self.keep(end)
        return low - end

    def blank(self, physical_first: int, physical_end: int) -> None:
        """Blank the entries of the records in [physical_first, physical_end), which are gone."""
        low = self._first_at(physical_first)
        self.write()
        while low < self.next_offset and physical_first <= self.entry(low)[0] < physical_end:
            at = low * QUEUE_ENTRY_SIZE
            start = self._segments.start_of(at)
            self._unsynced[start] = file = self._segments.file(start)
            file.write_at(at - start, BLANK_ENTRY)
            low += 1

    def go_on_from(self, queue_offset: int) -> None:
        """Continue at queue_offset, which is past the last entry: the entries in between are gone."""
        if self.next_offset > 0 or self._segments.starts or self.buffer:
            self._fill(queue_offset)
        else:
            self._begin_at(queue_offset)

    def keep(self, end: int) -> None:
        """Drop the entries from queue offset `end` on, and zero their bytes in the files."""
        at = end * QUEUE_ENTRY_SIZE
        start = self._segments.start_of(at)
        self._segments.drop_from(start + self._segments.size)
        if self._segments.has(at):
            file = self._segments.file(start)
            left_size = used_size(file, at - start, self._segments.size)
            if left_size:
                file.write_at(at - start, bytes(left_size))
                self._unsynced[start] = file
        self.buffer = self.buffer[: max(0, end - self.written_offset) * QUEUE_ENTRY_SIZE]
        self.written_offset = min(self.written_offset, end)
        self.next_offset = end
        self.first_offset = min(self.first_offset, end)

    def truncate(self, physical_end: int) -> int:
        """Drop entries whose records do not end at or before physical_end; return how many."""
        end = self.next_offset
        while end > self.first_offset:
            physical_offset, size, _ = self.entry(end - 1)
            if size != BLANK_ENTRY_SIZE_FIELD and physical_offset + size <= physical_end:
                break
            end -= 1
        dropped = self.next_offset - end
        if dropped:
            self.keep(end)
        return dropped

    def correct_first(self, physical_first: int) -> None:
        """Move first_offset to the first entry whose record is kept, and drop files that hold none."""
        self.first_offset = low = self._first_at(physical_first)
        while len(self._segments.starts) > 1 and (
            self._segments.starts[0] + self._segments.size <= min(low, self.written_offset) * QUEUE_ENTRY_SIZE
        ):
            self._segments.drop_first()

    def _first_at(self, physical_offset: int) -> int:
        """Return the queue offset of the first entry whose record is at physical_offset or later."""
        low, high = self.first_offset, self.next_offset
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def last_before(self, physical_offset: int) -> int:
        """Return where the last record before physical_offset begins; -1: the queue has none."""
        queue_offset = self._first_at(physical_offset)
        return self.entry(queue_offset - 1)[0] if queue_offset > self.first_offset else -1

    def close(self) -> None:
        """Close the files."""
        self._segments.close()

    def destroy(self) -> None:
        """Remove the files."""
        self.buffer.clear()
        self._segments.destroy()
