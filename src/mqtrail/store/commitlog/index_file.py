"""IndexFile: where the messages with a key are. A hash table in a sparse file, chained through its entries.

    header 40 bytes | slots x 4 bytes | entries x 20 bytes

    header  8 begin timestamp, 8 end timestamp (store times, ms), 8 begin, 8 end physical offset, 4 used slots,
            4 number of the next entry, from 1
    slot    number of the newest entry of its chain, 0: empty
    entry   4 key hash, 8 physical offset, 4 seconds since the begin timestamp, 4 number of the next older entry

The index stores no keys, so it also finds records of other keys with the same hash: the caller compares.

Entries are buffered; one write adds those of a slice. The slots of the unfinished file are spread over 20 MB: they stay
in memory, page by page as they are used, and are written with the header at each checkpoint. A full file takes two
checkpoints: the first writes and syncs everything but the header, then saves the checksums; the second writes the
header. So a full file with a header is complete. After an unclean stop all other files are rebuilt, so nothing is lost.

Each read is checked against a checksum (`index_sums.py`) and the rules of a chain. A damaged file and those after it
are removed and rebuilt; the query fails with this reason instead of finding nothing.
Source: IndexFile, IndexHeader, IndexService, apache/rocketmq store/.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from zlib import crc32

from ..disk import Disk, File
from .config import CommitLogConfig
from .index_sums import BLOCK_ENTRIES, IndexSums, decode_sums
from .index_sums import FOLDER as SUMS_FOLDER

HEADER = struct.Struct(
    ">q"  # begin timestamp
    "q"  # end timestamp
    "q"  # begin physical offset
    "q"  # end physical offset
    "i"  # used slots
    "i"  # next entry number
)
ENTRY = struct.Struct(
    ">i"  # key hash
    "q"  # physical offset
    "i"  # seconds since the begin timestamp
    "i"  # previous entry
)
SLOT = struct.Struct(">i")
assert HEADER.size == 40
assert ENTRY.size == 20
FOLDER = "index"
SECONDS_MAX = 2**31 - 1
PAGE_SLOTS = 1024
PAGES_A_SLICE = 100  # pages of slots written in one slice, 4 KiB each
IS_LITTLE_ENDIAN = sys.byteorder == "little"
UNKNOWN, KNOWN, CHANGED = range(3)  # state of a page of slots in memory


class IndexDamaged(Exception):
    """A file of the index is damaged. The text names the file, what was found, and what was expected."""


class IndexFile:
    """One file of the index."""

    def __init__(
        self, disk: Disk, name: str, config: CommitLogConfig, *, is_strict: bool = True, may_have_sums: bool = True
    ) -> None:
        """is_strict: an impossible chain is damage; otherwise it ends there, as in Apache's broker.

        may_have_sums: check the file with its sums, if it has any.
        """
        self.name = name
        self._disk = disk
        self._is_strict = is_strict
        self._slots = config.index_slots
        self._entries_max = config.index_entries
        self._file: File = disk.open(f"{FOLDER}/{name}", config.index_file_size)
        self.begin_ms: int
        self.end_ms: int
        self.begin_offset: int
        self.end_offset: int
        self._used: int
        self._next: int
        (self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self._used, self._next) = HEADER.unpack(
            self._file.read_at(0, HEADER.size)
        )
        page_sizes = [min(PAGE_SLOTS, self._slots - first) * SLOT.size for first in range(0, self._slots, PAGE_SLOTS)]
        self.is_synced = True  # all but the header is on the disk, and the checksums of all; once it is full
        self.is_durable = True  # all of it is on the disk; once it is full
        self.is_removed = False
        self._sums: IndexSums | None = None
        if may_have_sums:
            self._sums = decode_sums(disk.read(f"{SUMS_FOLDER}/{name}"), page_sizes, ENTRY.size)
        else:
            disk.remove(f"{SUMS_FOLDER}/{name}")  # otherwise entries added without sums would look like damage
        if self._sums is None and self._next <= 1:
            self._sums = IndexSums(page_sizes, ENTRY.size)
        self._sound_block = -1  # number of the block of entries that was checked last
        self._sound_entries = b""
        self._next = self._written = max(1, self._next)  # numbers of the next entry, and of the first not written
        self._gathered = bytearray()  # entries [_written, _next)
        self._table: memoryview | None = None  # the slots as native integers, as far as their pages are known
        self._pages = bytearray()  # what is known of each page of it

    def is_proven(self, clean_ms: int) -> bool:
        """Return whether the file is full and on the disk, after an unclean stop; clean_ms: up to when the index is.

        Files of Apache's broker have no checksums.
        """
        has_sums = self._sums is not None and self._sums.next >= self._entries_max
        return self.is_full and (has_sums or self.end_ms < clean_ms)

    def why_damaged(self, *, is_proven: bool = True) -> str | None:
        """Return what is impossible in the header; None: nothing.

        is_proven: it is known to be durable. Otherwise its checksums may be of an earlier header.
        """
        if not 1 <= self._next <= self._entries_max:
            return f"found {self._next} as the number of its next entry, expected 1 to {self._entries_max}"
        sums = self._sums
        if is_proven and sums is not None and sums.header:
            data = self._file.read_at(0, HEADER.size)
            if sums.header != crc32(data) or sums.next != HEADER.unpack(data)[-1]:
                return "found a header that differs from its saved checksum, expected the same"
        if not (0 <= self.begin_ms <= self.end_ms and 0 <= self.begin_offset <= self.end_offset):
            return (
                f"found times {self.begin_ms} to {self.end_ms} and physical offsets {self.begin_offset} to "
                f"{self.end_offset}, expected rising ones"
            )
        return None

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return self._next >= self._entries_max

    @property
    def has_slots(self) -> bool:
        """Whether it has slots in memory, which may have to be written."""
        return self._table is not None

    @property
    def room(self) -> int:
        """How many further entries fit."""
        return self._entries_max - self._next

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry."""
        return self._next <= 1

    @property
    def before_offset(self) -> int | None:
        """Physical offset of the last record of the file before it, -1 if it is the first; None: unknown."""
        return None if self._sums is None or self.is_empty else self._sums.before_offset

    def begin_after(self, timestamp_ms: int, physical_offset: int) -> None:
        """Start a new file where the one before it ended."""
        self.begin_ms = self.end_ms = timestamp_ms
        self.begin_offset = self.end_offset = physical_offset
        if self._sums is not None:
            self._sums.before_offset = physical_offset

    def _make_table(self) -> memoryview:
        pages = -(-self._slots // PAGE_SLOTS)
        self._pages = bytearray(pages)
        # A mapping of its own has zero pages, which take memory only when touched. A bytearray would write zeros.
        zeros = mmap.mmap(-1, self._slots * SLOT.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._table = memoryview(zeros).cast("i")
        return self._table

    def _load(self, table: memoryview, page: int) -> None:
        """Load a page of the slots."""
        first, last = page * PAGE_SLOTS, min((page + 1) * PAGE_SLOTS, self._slots)
        data = self._page(page)
        if data.count(0) != len(data):
            slots = array("i", data)
            if IS_LITTLE_ENDIAN:
                slots.byteswap()
            table[first:last] = memoryview(slots)

    def _page(self, page: int) -> bytes:
        """Return a page of slots as it is in the file. IndexDamaged."""
        first, last = page * PAGE_SLOTS, min((page + 1) * PAGE_SLOTS, self._slots)
        data = self._file.read_at(HEADER.size + first * SLOT.size, (last - first) * SLOT.size)
        if self._sums is not None and crc32(data) != self._sums.pages[page]:
            raise self._damaged(f"slots {first} to {last - 1} that differ from their saved checksum")
        return data

    def _damaged(self, found: str) -> IndexDamaged:
        return IndexDamaged(f"{FOLDER}/{self.name}: found {found}: it is built again from the CommitLog")

    def put(self, hashes: Sequence[int], physical_offsets: Sequence[int], store_ms: int) -> None:
        """Add entries of key hashes and the physical offsets of their records, in memory; there is room for them.

        `write_entries` and `write` write them to the file.
        """
        table = self._table if self._table is not None else self._make_table()
        self.is_synced = self.is_durable = False
        pages, slots, pack = self._pages, self._slots, ENTRY.pack
        number, used = self._next, 0
        if number == 1:
            self.begin_ms, self.begin_offset = store_ms, physical_offsets[0]
        seconds = min((store_ms - self.begin_ms) // 1000, SECONDS_MAX) if store_ms > self.begin_ms > 0 else 0
        entries = []
        for key_hash, physical_offset in zip(hashes, physical_offsets, strict=True):
            slot = key_hash % slots
            page = slot // PAGE_SLOTS
            if pages[page] != CHANGED:
                if pages[page] == UNKNOWN:
                    self._load(table, page)
                pages[page] = CHANGED
            previous = table[slot]
            if not 0 < previous < number:
                previous = 0
                used += 1
            table[slot] = number
            entries.append(pack(key_hash, physical_offset, seconds, previous))
            number += 1
        self._gathered += b"".join(entries)
        self._next = number
        self._used += used
        self.end_ms, self.end_offset = store_ms, physical_offset

    def write_entries(self) -> None:
        """Write the gathered entries. StoreFull leaves them gathered."""
        if self._gathered:
            data = bytes(self._gathered)
            self._file.write_at(self._entry_at(self._written), data)
            if self._sums is not None:
                self._sums.add_entries(data)
            self._sound_block = -1
            self._gathered.clear()
            self._written = self._next

    def write(self) -> None:
        """Write everything in memory, the header last unless it is full."""
        for _ in self.write_in_slices():
            pass

    def write_in_slices(self) -> Iterator[None]:
        """Write everything in memory, the header last; yield now and then.

        Of a full file the header is written later, and its slots are dropped from memory when all are written. Pages
        that change between slices are written by a later call. A newer header with older pages is harmless, since a
        start after a crash rebuilds this file.
        """
        self.write_entries()
        table = self._table
        if table is None:
            return
        pages = 0
        page = self._pages.find(CHANGED)
        while page >= 0:
            if pages == PAGES_A_SLICE:
                pages = 0
                yield
                self.write_entries()
            pages += 1
            slots = array("i", table[page * PAGE_SLOTS : (page + 1) * PAGE_SLOTS].tobytes())
            if IS_LITTLE_ENDIAN:
                slots.byteswap()
            data = slots.tobytes()
            self._file.write_at(HEADER.size + page * PAGE_SLOTS * SLOT.size, data)
            if self._sums is not None:
                self._sums.pages[page] = crc32(data)
            self._pages[page] = KNOWN
            page = self._pages.find(CHANGED, page + 1)
        if not self.is_full:
            self.write_header()
        elif CHANGED not in self._pages:
            self._table = None

    def _header(self) -> bytes:
        return HEADER.pack(self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self._used, self._next)

    def write_header(self) -> None:
        """Write the header, of a full file once the rest is durable."""
        self._file.write_at(0, self._header())

    def note_sums(self) -> None:
        """Save the checksums of everything, when the rest is durable and does not change any more; in any thread."""
        if self._sums is not None and self._next > 1:
            self._sums.header, self._sums.end_offset = crc32(self._header()), self.end_offset
            self._disk.replace(f"{SUMS_FOLDER}/{self.name}", self._sums.encode())
            if self.is_removed:  # meanwhile: without the file they would mean that it is missing
                self._disk.remove(f"{SUMS_FOLDER}/{self.name}")
        self.is_synced = True

    def remove(self) -> None:
        """Close and remove the file and its checksums."""
        self.is_removed = True
        self.close()
        self._disk.remove(f"{SUMS_FOLDER}/{self.name}")  # first: sums without a file would mean that it is missing
        self._disk.remove(f"{FOLDER}/{self.name}")

    def _entry_at(self, number: int) -> int:
        return HEADER.size + self._slots * SLOT.size + number * ENTRY.size

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        if number >= self._written:
            return ENTRY.unpack_from(self._gathered, (number - self._written) * ENTRY.size)
        if self._sums is None:
            return ENTRY.unpack(self._file.read_at(self._entry_at(number), ENTRY.size))
        block, place = divmod(number, BLOCK_ENTRIES)
        if block != self._sound_block:
            first = block * BLOCK_ENTRIES
            count = min(BLOCK_ENTRIES, self._written - first)
            data = self._file.read_at(self._entry_at(first), count * ENTRY.size)
            if crc32(data) != self._sums.blocks[block]:
                raise self._damaged(f"entries {first} to {first + count - 1} that differ from their saved checksum")
            self._sound_block, self._sound_entries = block, data
        return ENTRY.unpack_from(self._sound_entries, place * ENTRY.size)

    def newest(self, key_hash: int) -> int:
        """Return the number of the newest entry in the chain of a hash, 0 without one. IndexDamaged."""
        slot = key_hash % self._slots
        page, place = divmod(slot, PAGE_SLOTS)
        if self._table is not None and self._pages[page] != UNKNOWN:
            number: int = self._table[slot]
        elif self._sums is not None:
            (number,) = SLOT.unpack_from(self._page(page), place * SLOT.size)
        else:
            (number,) = SLOT.unpack(self._file.read_at(HEADER.size + slot * SLOT.size, SLOT.size))
        if self._is_strict and not 0 <= number < self._next:
            raise self._damaged(f"{number} as the newest entry of slot {slot}, expected one below {self._next}")
        return number

    def walk(
        self, key_hash: int, number: int, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[int], int, int]:
        """Follow a chain from an entry on, over at most count_max entries.

        Return the physical offsets, the newest first, of entries of this hash stored in [begin_ms, end_ms]; the number
        of the entry to continue with, 0 at the end; and how many entries were read. Entries have their time in
        seconds: one in the same second as begin_ms counts. IndexDamaged.
        """
        found: list[int] = []
        slots, read_count = self._slots, 0
        while 0 < number < self._next and read_count < count_max:
            entry_hash, physical_offset, seconds, previous = self._entry(number)
            read_count += 1
            if self._is_strict and not (
                entry_hash % slots == key_hash % slots
                and self.begin_offset <= physical_offset <= self.end_offset
                and seconds >= 0
                and 0 <= previous < number
            ):
                raise self._damaged(
                    f"entry {number} of slot {key_hash % slots} with the hash {entry_hash}, the physical offset "
                    f"{physical_offset}, {seconds} seconds and the older entry {previous}, expected others"
                )
            at_ms = self.begin_ms + seconds * 1000
            if entry_hash == key_hash and begin_ms - 999 <= at_ms <= end_ms:
                found.append(physical_offset)
            if previous >= number or seconds < 0 or at_ms < begin_ms - 999:
                return found, 0, read_count
            number = previous
        return found, number if 0 < number < self._next else 0, read_count

    def sync(self) -> None:
        """Make what was written durable."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
