"""IndexFile: where the messages with a key are. A hash table in a sparse file, chained through its entries.

    header 40 bytes | slots x 4 bytes | entries x 20 bytes

    header  8 begin timestamp, 8 end timestamp (store times, ms), 8 begin, 8 end physical offset, 4 used slots,
            4 number of the next entry, from 1
    slot    number of the newest entry of its chain, 0: empty
    entry   4 key hash, 8 physical offset, 4 seconds since the begin timestamp, 4 number of the next older entry

No key is kept, so records of another key with the same hash are found too: whoever asked compares.
Source: IndexFile, IndexHeader, IndexService, apache/rocketmq store/.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime

from mqtrail.store.base import StoreError
from mqtrail.store.commitlog.config import CommitLogConfig
from mqtrail.store.disk import Disk, File
from mqtrail.wire import index_key_hash

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
SECONDS_MAX = 2**31 - 1
FOLDER = "index"


class IndexFile:
    """One file of the index."""

    def __init__(self, disk: Disk, name: str, config: CommitLogConfig) -> None:
        self.name = name
        self._slots = config.index_slots
        self._entries = config.index_entries
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
        self._next = max(1, self._next)

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return self._next >= self._entries

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry."""
        return self._next <= 1

    def begin_after(self, timestamp_ms: int, physical_offset: int) -> None:
        """Start a new file where the one before it ended."""
        self.begin_ms = self.end_ms = timestamp_ms
        self.begin_offset = self.end_offset = physical_offset

    def _slot_at(self, key_hash: int) -> int:
        return HEADER.size + key_hash % self._slots * SLOT.size

    def _entry_at(self, number: int) -> int:
        return HEADER.size + self._slots * SLOT.size + number * ENTRY.size

    def put(self, key_hash: int, physical_offset: int, store_ms: int) -> None:
        """Add an entry. `write_header` makes it count."""
        slot_at = self._slot_at(key_hash)
        (previous,) = SLOT.unpack(self._file.read_at(slot_at, SLOT.size))
        if previous <= 0 or previous >= self._next:
            previous = 0
        if self._next == 1:
            self.begin_ms, self.begin_offset = store_ms, physical_offset
        seconds = min(max((store_ms - self.begin_ms) // 1000, 0), SECONDS_MAX) if self.begin_ms > 0 else 0
        self._file.write_at(self._entry_at(self._next), ENTRY.pack(key_hash, physical_offset, seconds, previous))
        self._file.write_at(slot_at, SLOT.pack(self._next))
        self._used += previous == 0
        self._next += 1
        self.end_ms, self.end_offset = store_ms, physical_offset

    def write_header(self) -> None:
        """Write the header with the counts as they are."""
        self._file.write_at(
            0,
            HEADER.pack(self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self._used, self._next),
        )

    def find(self, key_hash: int, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets, the newest first, of entries of this hash stored in [begin_ms, end_ms]."""
        found: list[int] = []
        (number,) = SLOT.unpack(self._file.read_at(self._slot_at(key_hash), SLOT.size))
        while 0 < number < self._next and len(found) < count_max:
            entry_hash, physical_offset, seconds, previous = ENTRY.unpack(
                self._file.read_at(self._entry_at(number), ENTRY.size)
            )
            at_ms = self.begin_ms + seconds * 1000
            if entry_hash == key_hash and begin_ms - 999 <= at_ms <= end_ms:
                found.append(physical_offset)
            if previous == number or seconds < 0 or at_ms < begin_ms - 999:
                break
            number = previous
        return found

    def sync(self) -> None:
        """Make it durable."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Index:
    """All IndexFiles of a store, the oldest first."""

    def __init__(self, disk: Disk, config: CommitLogConfig, clean_ms: int | None) -> None:
        """clean_ms: after an unclean stop, files with later entries are rebuilt; None: all are good."""
        self._disk = disk
        self._config = config
        self.files: list[IndexFile] = []
        for name in disk.list(FOLDER):
            if disk.size(f"{FOLDER}/{name}") != config.index_file_size:
                raise StoreError(
                    f"found {FOLDER}/{name} with {disk.size(f'{FOLDER}/{name}')} bytes, expected "
                    f"{config.index_file_size}: start with the index_slots and index_entries it was made with, or "
                    "remove the folder: it is built again from the CommitLog"
                )
            file = IndexFile(disk, name, config)
            if clean_ms is not None and file.end_ms > clean_ms:
                self._forget(file)
            else:
                self.files.append(file)
        last = self.files[-1] if self.files else None
        if clean_ms is not None and last is not None and not (last.is_full and last.end_ms < clean_ms):
            # Not known to be synced: its slots may name entries that did not survive. It is built again.
            self._forget(self.files.pop())

    def _forget(self, file: IndexFile) -> None:
        file.close()
        self._disk.remove(f"{FOLDER}/{file.name}")

    @property
    def end_offset(self) -> int:
        """Physical offset of the last indexed record, -1 without one."""
        return self.files[-1].end_offset if self.files and not self.files[-1].is_empty else -1

    @property
    def end_ms(self) -> int:
        """Store time of the last indexed record, 0 without one."""
        return self.files[-1].end_ms if self.files else 0

    def put(self, topic: str, keys: Sequence[str], physical_offset: int, store_ms: int) -> None:
        """Index a record under each of keys."""
        for key in keys:
            if not self.files or self.files[-1].is_full:
                self._roll(store_ms)
            self.files[-1].put(index_key_hash(topic, key), physical_offset, store_ms)

    def _roll(self, store_ms: int) -> None:
        before = self.files[-1] if self.files else None
        if before is not None:
            before.write_header()
            before.sync()
        stamp = datetime.fromtimestamp(store_ms / 1000)  # local time, as Apache names them
        while True:
            name = stamp.strftime("%Y%m%d%H%M%S") + f"{stamp.microsecond // 1000:03}"
            if before is None or name > before.name:
                break
            store_ms += 1
            stamp = datetime.fromtimestamp(store_ms / 1000)  # local time, as Apache names them
        file = IndexFile(self._disk, name, self._config)
        if before is not None:
            file.begin_after(before.end_ms, before.end_offset)
        self.files.append(file)

    def commit(self) -> None:
        """Make the entries put so far count."""
        if self.files:
            self.files[-1].write_header()

    def find(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets of records under topic#key, ascending; the newest count_max of them."""
        key_hash = index_key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files):
            if file.is_empty:
                continue
            if file.end_ms >= begin_ms and file.begin_ms <= end_ms:
                found += file.find(key_hash, count_max - len(found), begin_ms, end_ms)
            if len(found) >= count_max or file.begin_ms < begin_ms:
                break
        return sorted(set(found))

    def drop_past(self, physical_end: int) -> None:
        """Remove files that know records which the log has lost; the records before them are indexed again."""
        while self.files and self.files[-1].end_offset >= physical_end > 0:
            self._forget(self.files.pop())

    def expire(self, physical_first: int) -> None:
        """Remove files, never the last, whose records are all gone."""
        while len(self.files) > 1 and self.files[0].end_offset < physical_first:
            self._forget(self.files.pop(0))

    def sync(self) -> None:
        """Make the last file durable; earlier ones were when they became full."""
        if self.files:
            self.files[-1].write_header()
            self.files[-1].sync()

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
