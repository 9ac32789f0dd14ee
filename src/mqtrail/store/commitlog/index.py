"""All IndexFiles of a store: opened, rolled, and dropped with those after it when one is damaged.

Source: IndexService, apache/rocketmq store/.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from datetime import datetime

from ..disk import Disk
from ..errors import StoreError
from .config import CommitLogConfig
from .index_file import FOLDER, IndexDamaged, IndexFile
from .index_sums import FOLDER as SUMS_FOLDER
from .index_sums import end_offset_of

CLOSING_MAX = 3  # full files with slots in memory, 20 MB each: at this count, one is written at once
GONE = "found no such file, expected it since its checksums exist"


class IndexLost(Exception):
    """A file of the index was removed: its records must be indexed again, from the index's end on."""


class IndexWrite:
    """What a checkpoint wrote of the index, to be made durable: files whose rest was written because they are full,
    those that got their headers after that, and the last one.

    end_ms, end_offset: up to which record the index was written.
    """

    def __init__(self, index: Index, closing: list[IndexFile], ended: list[IndexFile]) -> None:
        self.end_ms = index.end_ms
        self._end_offset = index.end_offset
        self._index = index
        self._closing = closing
        self._ended = ended
        self._last = index.files[-1:]

    def sync(self) -> None:
        """Make the files durable; in any thread."""
        for file in (*self._closing, *self._ended, *self._last):
            file.sync()

    def settle(self) -> None:
        """Save the checksums of files that are durable but for their headers; in any thread, after `sync`."""
        for file in self._closing:
            if not file.is_synced:  # an earlier checkpoint has done it meanwhile
                file.note_sums()
        for file in self._ended:
            file.is_durable = True
        self._index.saved_offset = self._end_offset


class Index:
    """All IndexFiles of a store, the oldest first."""

    def __init__(
        self,
        disk: Disk,
        config: CommitLogConfig,
        clean_ms: int | None,
        *,
        may_drop: bool = True,
        is_as_left: bool = True,
        physical_first: int = 0,
    ) -> None:
        """clean_ms: after an unclean stop, files with later entries are rebuilt; None: all are good.

        may_drop: damaged files are rebuilt too. Otherwise StoreError: the folder is another broker's, whose settings
        may differ. is_as_left: no other broker has used the folder since; it would have written to the last file.
        physical_first: the log's first offset. A missing file without records from there on is not damage.
        """
        self._physical_first = physical_first
        self._disk = disk
        self._may_drop = may_drop
        self._config = config
        self.files: list[IndexFile] = []
        self.dropped: list[str] = []  # files found damaged at the start, each with what was found
        self.drop_count = 0  # files found damaged since
        self.last_damage = ""  # what was found the last time
        is_whole = True
        present = disk.list(FOLDER)
        missing = self._missing(present)
        names = sorted([*present, *missing])
        for name in names:
            why: str | None = ""
            if is_whole:
                is_last = name == names[-1]
                why = self._load(name, clean_ms, is_as_left or not is_last, is_last) if name in present else GONE
            if why is not None:
                is_whole = False  # files after a removed one would leave a gap
                if why and not may_drop:
                    raise StoreError(
                        f"found {FOLDER}/{name}: {why}: start with the index_slots and index_entries that it was "
                        "created with, or remove the folder: it is built again from the CommitLog"
                    )
                self._remove(name)
                if why:
                    self.dropped.append(f"{FOLDER}/{name}: {why}: built again from the CommitLog")
        self.saved_offset = self.end_offset  # of the last record whose entries are durable

    def _missing(self, present: list[str]) -> list[str]:
        """Return the names of missing files that have sums and whose records the log still has."""
        found = []
        for name in self._disk.list(SUMS_FOLDER):
            if name not in present:
                end_offset = end_offset_of(self._disk.read(f"{SUMS_FOLDER}/{name}"))
                if end_offset is None or end_offset < self._physical_first:
                    self._disk.remove(f"{SUMS_FOLDER}/{name}")
                else:
                    found.append(name)
        return found

    def _load(self, name: str, clean_ms: int | None, has_sums: bool, is_last: bool) -> str | None:
        """Open a file and return None; or return why it must be rebuilt, "" if that was expected."""
        size = self._disk.size(f"{FOLDER}/{name}")
        if size != self._config.index_file_size:
            return f"found {size} bytes, expected {self._config.index_file_size}"
        file = IndexFile(self._disk, name, self._config, is_strict=self._may_drop, may_have_sums=has_sums)
        is_proven = clean_ms is None or file.is_proven(clean_ms)
        if not is_proven and not self._may_drop and not is_last:
            is_proven = file.end_ms == clean_ms  # Apache's broker syncs a full file, then notes its last time
        why = file.why_damaged(is_proven=is_proven)
        if why is None and is_proven:
            why = self._why_apart(file)
        if why is None and is_proven:
            if file.is_empty and self.files:
                file.begin_after(self.end_ms, self.end_offset)
            self.files.append(file)
            return None
        file.close()
        return why or ""

    def _why_apart(self, file: IndexFile) -> str | None:
        """Return an error if the file before this one is missing. None: it is there, expired, or unknown.

        Files before it that end later are copies of other files: they are removed.
        """
        expected = file.before_offset
        if expected is None:
            return None
        while self._may_drop and self.files and self.files[-1].end_offset > expected:
            copied = self.files.pop()
            copied.remove()
            why = f"found its end at physical offset {copied.end_offset}, expected {expected}: removed"
            self.dropped.append(f"{FOLDER}/{copied.name}: {why}")
        found = self.files[-1].end_offset if self.files else -1
        if expected == found or (not self.files and expected < self._physical_first):
            return None
        return f"found that the files before it end at physical offset {found}, expected {expected}"

    def _remove(self, name: str) -> None:
        self._disk.remove(f"{SUMS_FOLDER}/{name}")  # first: sums without a file would mean that it is missing
        self._disk.remove(f"{FOLDER}/{name}")

    def drop_damaged(self, damaged: IndexFile, error: IndexDamaged) -> None:
        """Remove a damaged file and those after it: their records are indexed again.

        StoreError: the folder is another broker's, which may have written it so.
        """
        if not self._may_drop:
            raise StoreError(f"{error}: remove the folder {FOLDER} while the broker is down") from error
        while self.files and self.files[-1] is not damaged:
            self.files.pop().remove()
        self.files.pop().remove()
        self.drop_count += 1
        self.last_damage = str(error)

    def note_sums(self) -> None:
        """Save the checksums of the unfinished file, which is not written any more."""
        if self.files and not self.files[-1].is_full:
            self.files[-1].note_sums()

    @property
    def end_offset(self) -> int:
        """Physical offset of the last indexed record, -1 without one."""
        return self.files[-1].end_offset if len(self.files) > 1 or (self.files and not self.files[-1].is_empty) else -1

    @property
    def end_ms(self) -> int:
        """Store time of the last indexed record, 0 without one."""
        return self.files[-1].end_ms if self.files else 0

    def put(self, hashes: Sequence[int], physical_offsets: Sequence[int], store_ms: int) -> None:
        """Add entries of key hashes, of records stored at store_ms. Call `write_entries` after the last."""
        while hashes:
            if not self.files or self.files[-1].is_full:
                self._roll(store_ms)
            last = self.files[-1]
            room = last.room
            try:
                last.put(hashes[:room], physical_offsets[:room], store_ms)
            except IndexDamaged as error:
                self.drop_damaged(last, error)
                raise IndexLost(str(error)) from error
            hashes, physical_offsets = hashes[room:], physical_offsets[room:]

    def _roll(self, store_ms: int) -> None:
        """Begin a new file. The next checkpoint writes the rest of the full one. StoreFull, OSError: there is none."""
        before = self.files[-1] if self.files else None
        if before is not None:
            before.write_entries()
            with_slots = [file for file in self.files if file.has_slots]
            if len(with_slots) >= CLOSING_MAX:
                with_slots[0].write()
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

    def write_entries(self) -> None:
        """Write the entries added so far; they count from the next `write` on."""
        if self.files:
            self.files[-1].write_entries()

    def write_in_slices(self) -> Generator[None, None, IndexWrite]:
        """Write what is in memory now, and headers of full files whose rest is durable; yield now and then.

        Return what was written; at the end only the last file has more to write.
        """
        if self.files:
            yield from self._write(self.files[-1])
        while (full := next((file for file in self.files if file.is_full and file.has_slots), None)) is not None:
            yield
            if not full.is_removed:
                yield from self._write(full)
        closing = self.closing()
        ended = [file for file in closing if file.is_synced]
        for file in ended:
            file.write_header()
        return IndexWrite(self, [file for file in closing if file not in ended], ended)

    def _write(self, file: IndexFile) -> Iterator[None]:
        for _ in file.write_in_slices():
            yield
            if file.is_removed:
                return

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint has nothing to do."""
        return self.saved_offset == self.end_offset and not self.closing()

    def closing(self) -> list[IndexFile]:
        """Return the full files that are not known to be durable."""
        return [file for file in self.files if file.is_full and not file.is_durable]

    def drop_past(self, physical_end: int) -> None:
        """Remove files with records that the log has lost; earlier records of these files are indexed again."""
        while self.files and self.files[-1].end_offset >= physical_end > 0:
            self.files.pop().remove()

    def expire(self, physical_first: int) -> None:
        """Remove files whose records are all gone, except the last file."""
        while len(self.files) > 1 and self.files[0].end_offset < physical_first:
            self.files.pop(0).remove()

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
