"""A member's log: entries with the positions that their leader gave them, found by index.

    ledger = LedgerLog(disk, "n0")
    ledger.append(entries)           of a leader, or this member's own
    ledger.begin_flush()()           makes all of it durable
    ledger.truncate(index)           cuts off what is behind an entry; never what is committed: the caller knows

One thread calls it; what begin_flush returns may run in another one, but not during `truncate` or `restart_at`.

A start reads the entries from the last checkpoint on. Above the durable mark the first bytes that are no whole entry
end the log: the torn tail of a crash, which is wiped. Below the mark they are damage: the start is refused. In a folder
of Apache's, which has no mark, it reads as far back as Apache's member does.

Source: DLedgerMmapFileStore, openmessaging/dledger 0.3.1.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mqtrail.wire import (
    LEDGER_MAGIC,
    LEDGER_PADDING_SIZE_MIN,
    LedgerEntry,
    LedgerHead,
    RecordError,
    decode_ledger_entry,
    encode_ledger_entry,
    ledger_padding,
    ledger_unit,
)

from ..commitlog.cutting import copy_tail
from ..commitlog.mark import Mark
from ..disk import Disk
from ..errors import LogDiffers, StoreBroken, StoreError
from ..segments import used_size
from .entry_index import EntryIndex
from .entry_log import EntryLog
from .state_files import StateFiles, check_owner

SEGMENT_SIZE: Final = 1 << 30
INDEX_UNITS: Final = 5 * 1024 * 1024  # of one index file
SEGMENTS_READ: Final = 3  # at least, in a folder of Apache's
HEADS_MAX: Final = 2_000  # units that a start writes at once
NOTHING: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStart:
    """What a start found. wiped_size: bytes behind the last entry that were none. scanned_from: a position."""

    scanned_from: int
    wiped_size: int
    rebuilt_units: int


class _Cut:
    """What is to be cut off. path: of the file with it, once it is cut off."""

    def __init__(self, head: LedgerHead) -> None:
        """head: of the entry that will be the last one."""
        self.head = head
        self.end = head.position + head.size
        self.path: str | None = None


class LedgerLog:
    """See the module. begin_index, end_index: the first and the last entry; -1: there is none.

    committed_index: of the checkpoint at the start; the caller keeps it up. start: what the start found. defers_cuts:
    see `truncate`.
    """

    def __init__(
        self,
        disk: Disk,
        self_id: str,
        *,
        segment_size: int = SEGMENT_SIZE,
        index_units: int = INDEX_UNITS,
        check_crc: bool = True,
        group: str = "",
    ) -> None:
        """group: the one that the log belongs to; "": it is not checked.

        StoreError: the files are damaged below the durable mark, or are those of another version, setting, member or
        group.
        """
        self._disk = disk
        self.folder = f"dledger-{self_id}"
        check_owner(disk, self.folder, group)
        self._log = EntryLog(disk, segment_size, f"{self.folder}/data")
        self._index = EntryIndex(disk, f"{self.folder}/index", index_units)
        self._indexed = 0  # up to this position the index is durable
        self._pending: deque[tuple[int, int]] = deque()  # end and index of appended entries that are not flushed
        self._durable_index = -1
        self._cut: _Cut | None = None
        self.defers_cuts = False
        self.begin_index = self.end_index = self.end_term = -1
        self.start = self._recover(check_crc)
        self.state = StateFiles(disk, self.folder, self.end_term)
        self.committed_index = min(self.state.read_committed(), self.end_index)

    # Term and vote.

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def voted(self) -> str | None:
        return self.state.voted

    def set_term(self, term: int, voted: str | None) -> None:
        """Keep term and vote, durably."""
        self.state.set_term(term, voted)

    # Reading.

    @property
    def data(self) -> EntryLog:
        """The data files, for readers."""
        return self._log

    @property
    def fault(self) -> str | None:
        """Why nothing can be appended until the log is opened again."""
        return self._log.fault

    def position_behind(self, index: int) -> int:
        """Return where an entry ends; of one that the log does not have: where the log begins."""
        head = self.head(index)
        return self.first_position if head is None else head.position + head.size

    @property
    def end_position(self) -> int:
        """Position behind the last entry."""
        return self._log.end_offset

    @property
    def first_position(self) -> int:
        """Position of the first kept byte."""
        return self._log.first_offset

    @property
    def flushed_position(self) -> int:
        """Everything before it survives power loss."""
        return self._log.flushed_offset

    @property
    def durable_index(self) -> int:
        """Index of the last entry that survives power loss; -1: none does."""
        self._note_flushed()
        return self._durable_index

    def _note_flushed(self) -> None:
        flushed = self._log.flushed_offset
        while self._pending and self._pending[0][0] <= flushed:
            self._durable_index = self._pending.popleft()[1]

    @property
    def segment_size(self) -> int:
        """Bytes of a data file, the same at all members."""
        return self._log.segments.size

    def place(self, size: int) -> int:
        """Return the position of the next entry, which has so many bytes."""
        return self._log.place(size)

    def place_behind(self, end: int, size: int) -> int:
        """Return the position of an entry of so many bytes behind one that ends there."""
        return self._log.place_behind(end, size)

    def head(self, index: int) -> LedgerHead | None:
        """Return an entry's head without its CRCs; None: the log does not have it."""
        if not self.begin_index <= index <= self.end_index or index < 0:
            return None
        return self._index.unit(index)

    def term_at(self, index: int) -> int | None:
        """Return an entry's term; None: the log does not have it."""
        head = self.head(index)
        return None if head is None else head.term

    def entry(self, index: int) -> LedgerEntry | None:
        """Return an entry; None: the log does not have it. StoreError: its bytes are damaged."""
        head = self.head(index)
        if head is None:
            return None
        try:
            entry = decode_ledger_entry(self._log.read(head.position, head.size))
        except RecordError as error:
            raise self._damaged(head.position, error) from error
        if (entry.index, entry.term, entry.position) != (index, head.term, head.position):
            raise self._damaged(head.position, f"found entry {entry.index} of term {entry.term}, expected {index}")
        return entry

    def entries(self, first: int, count_max: int, size_max: int) -> list[LedgerEntry]:
        """Return entries from an index on: at least one, if there is one, and at most size_max bytes of more."""
        found: list[LedgerEntry] = []
        size = 0
        for index in range(first, min(self.end_index, first + count_max - 1) + 1):
            head = self.head(index)
            size += 0 if head is None else head.size
            if found and size > size_max:
                break
            entry = self.entry(index)
            if entry is None:
                break
            found.append(entry)
        return found

    # Changing. Durable after `begin_flush`, unless it says otherwise.

    def append(self, entries: Sequence[LedgerEntry]) -> None:
        """Append entries, all or none. LogDiffers: they do not continue this log. StoreFull, StoreBroken."""
        log = self._log
        if log.fault is not None:
            raise StoreBroken(log.fault)
        if self._cut is not None:
            raise StoreError(f"found {self.folder}/ being cut off, expected a log at rest: append again a moment later")
        if not entries:
            return
        parts = self._parts(entries)
        end = log.end_offset
        try:
            if not log.segments.starts:
                log.begin_at(entries[0].position)
                end = log.end_offset
            for position, pieces in parts:
                log.prepare(log.segments.start_of(position))
                data = b"".join(pieces)
                end = position + len(data)
                log.put(position, data)
            self._index.put(entries)
        except BaseException as error:
            log.take_back(end)
            if log.fault is not None:
                raise StoreBroken(log.fault) from error
            raise
        last = entries[-1]
        log.commit(last.end, last.position)
        self._pending.append((last.end, last.index))
        if self.begin_index < 0:
            self.begin_index = entries[0].index
        self.end_index, self.end_term = last.index, last.term

    def _parts(self, entries: Sequence[LedgerEntry]) -> list[tuple[int, list[bytes]]]:
        """Return runs of bytes, one a segment, each with its position."""
        log = self._log
        segment_size = log.segments.size
        end, index, term = log.end_offset, self.end_index, self.end_term
        parts: list[tuple[int, list[bytes]]] = []
        for entry in entries:
            left = segment_size - end % segment_size
            is_first = not parts and not log.segments.starts
            place = entry.position if is_first else end + left if entry.size + LEDGER_PADDING_SIZE_MIN > left else end
            if is_first and (entry.position < 0 or entry.position % segment_size):
                raise LogDiffers(self._cannot_begin(entry))
            if entry.index != index + 1 or entry.term < term or entry.position != place:
                raise LogDiffers(
                    f"found entry {entry.index} of term {entry.term} at position {entry.position}, expected entry "
                    f"{index + 1} of term {term} or later at {place}: mappedFileSizeCommitLog must be the same at all "
                    "members"
                )
            if not entry.is_known:
                raise LogDiffers(
                    f"found entry {entry.index} with magic {entry.magic}, expected {LEDGER_MAGIC}: a later version of "
                    "DLedger made it; run DLedger 0.3.1.2 at all members"
                )
            if entry.size + LEDGER_PADDING_SIZE_MIN > segment_size:
                raise LogDiffers(
                    f"found an entry of {entry.size} bytes, expected at most {segment_size - LEDGER_PADDING_SIZE_MIN}: "
                    "mappedFileSizeCommitLog must be the same at all members"
                )
            if place != end and not is_first:
                parts = parts or [(end, [])]
                parts[-1][1].append(ledger_padding(left))
            if not parts or place % segment_size == 0:
                parts.append((place, []))
            parts[-1][1].append(encode_ledger_entry(entry))
            end, index, term = entry.end, entry.index, entry.term
        return parts

    def _cannot_begin(self, entry: LedgerEntry) -> str:
        return (
            f"found entry {entry.index} at position {entry.position} as the first one of a log, expected a multiple of "
            f"{self.segment_size}, where a file begins: mappedFileSizeCommitLog must be the same at all members; a "
            "leader whose own log begins inside a file cannot be copied from"
        )

    def truncate(self, index: int) -> str | None:
        """Cut off all entries behind one, durably; return the file with what was cut off, None: nothing was.

        defers_cuts: note it only; begin_truncate and end_truncate do it. See is_cutting.
        """
        head = self.head(index)
        assert head is not None, f"entry {index} is not in the log, {self.begin_index} to {self.end_index}"
        if index == self.end_index:
            return None
        self._cut = _Cut(head)
        if self.defers_cuts:
            return None
        try:
            self.begin_truncate()()
        finally:
            path = self.end_truncate()
        return path

    @property
    def is_cutting(self) -> bool:
        """Whether `truncate` waits for another thread: until `end_truncate` nothing may change or flush the log."""
        return self._cut is not None

    def begin_truncate(self) -> Callable[[], None]:
        """Return a function for any thread that cuts off what `truncate` asked for, durably; `end_truncate` follows."""
        cut, log, disk = self._cut, self._log, self._disk
        assert cut is not None, "found no cut to make, expected `truncate` to ask for one"

        def run() -> None:
            path = copy_tail(disk, log, cut.end)
            log.wipe_behind(cut.end, cut.head.position)
            cut.path = path

        return run

    def end_truncate(self) -> str | None:
        """Go on at the new end; return the file with what was cut off. None: nothing was, and the log is as it was."""
        cut, self._cut = self._cut, None
        if cut is None or cut.path is None:
            return None
        head, end = cut.head, cut.end
        self._log.end_cut(end, head.position)
        self._pending = deque((at, index) for at, index in self._pending if index <= head.index)
        self._indexed = min(self._indexed, head.position)
        if self._log.flushed_offset < end:
            self._pending.append((end, head.index))
        else:
            self._pending.clear()
            self._durable_index = head.index
        self.end_index, self.end_term = head.index, head.term
        return cut.path

    def restart_at(self, entry: LedgerEntry) -> None:
        """Drop the whole log, durably, and begin again with this entry.

        For a member that is so far behind that its leader has removed what follows its log: all that it has was
        committed. A crash in between leaves a part of the old log, or none.
        """
        log = self._log
        if entry.position < 0 or entry.position % self.segment_size:
            raise LogDiffers(self._cannot_begin(entry))
        log.forget()
        self._index.clear()
        self._pending.clear()
        self._indexed = 0
        self._durable_index = -1
        self.begin_index, self.end_index, self.end_term = -1, entry.index - 1, -1
        try:
            self.append([entry])
        except BaseException:
            self.end_index = -1
            raise

    def expire_first(self, committed_index: int) -> int:
        """Remove the oldest data file if all of it is committed and flushed; return the bytes freed."""
        segments = self._log.segments
        if self._cut is not None or len(segments.starts) < 2 or segments.starts[1] > self._log.flushed_offset:
            return 0
        head = self._log.entry_head(segments.starts[1])
        if head is None or head.index > committed_index:
            return 0
        freed = segments.drop_first()
        self.begin_index = head.index
        self._index.drop_before(head.index)
        return freed

    def begin_flush(self) -> Callable[[], int]:
        """Note the log's end; return a function that makes the log durable up to it and returns the flushed position.

        It may run in any thread, one at a time.
        """
        self._note_flushed()  # under ASYNC_FLUSH nothing else does
        return self._log.begin_flush(self._indexed)

    def begin_checkpoint(self, committed_index: int) -> Callable[[], None]:
        """Note the log's end and what is committed; return a function that makes log and index durable and notes it.

        The next start reads from there on. It may run in any thread, not beside a function of begin_flush. StoreFull:
        all is durable, and only the note is missing.
        """
        self._note_flushed()
        position, end_index = self._log.end_offset, self.end_index
        sync_index = self._index.begin_sync()
        sync_log = self._log.begin_flush(self._indexed)

        def checkpoint() -> None:
            try:
                sync_index()
            except BaseException as error:
                self._log.fault = f"the sync of {self.folder}/index failed ({error!r})"
                raise
            sync_log()
            self._indexed = position
            self.state.note_checkpoint(min(committed_index, end_index), end_index)

        return checkpoint

    def close(self, committed_index: int) -> None:
        """Make everything durable, and close the files."""
        try:
            self.begin_checkpoint(committed_index)()
            self._log.begin_flush(self._indexed)()
            self._log.sync_mark()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files as they are."""
        self._log.close()
        self._index.close()

    # Recovery.

    def _damaged(self, position: int, why: object) -> StoreError:
        path = self._log.segments.path(self._log.segments.start_of(position))
        return StoreError(
            f"found damage at position {position} ({path}): {why}; restore the file, or remove {self.folder}/ and "
            "mqtrail-durable: then this member copies the log from the others, which must have all of it"
        )

    def _recover(self, check_crc: bool) -> LedgerStart:
        log = self._log
        mark = self._trusted_mark()
        if not log.segments.starts:
            self._index.clear()
            log.begin(0, 0, -1, scanned_from=0)
            return LedgerStart(scanned_from=0, wiped_size=0, rebuilt_units=0)
        flushed = 0 if mark is None else mark.flushed_offset
        torn_from = NOTHING if log.is_foreign else flushed
        scan = _Scan(log, self._index, flushed, torn_from, check_crc, self._damaged)
        scanned_from = self._scan_start(mark)
        scan.run(scanned_from)
        if scan.last is None and scanned_from > log.first_offset:
            scanned_from = log.first_offset
            scan.run(scanned_from)
        last, end = scan.last, scan.position
        if end < flushed:
            raise StoreError(
                f"found the log of {self.folder}/ to end at position {end}, expected {flushed} bytes, which were "
                "flushed: restore the missing files, or remove the file mqtrail-durable to accept the loss"
            )
        if last is None and log.is_foreign and used_size(log.segments.file(log.first_offset), 0, self.segment_size):
            raise self._damaged(log.first_offset, "found no entry at the start of the log")
        wiped = log.wipe(end) if log.segments.has(end) else 0
        log.begin(end, flushed, -1 if last is None else last.position, scanned_from=scanned_from)
        if not log.is_foreign:
            log.rewrite(flushed)
        if last is not None:
            first = log.entry_head(log.first_offset)
            assert first is not None
            self.begin_index = first.index
            self._pending.append((end, last.index))
            self.end_index, self.end_term = last.index, last.term
        self._indexed = 0 if mark is None else scanned_from
        return LedgerStart(scanned_from=scanned_from, wiped_size=wiped, rebuilt_units=scan.rebuilt)

    def _trusted_mark(self) -> Mark | None:
        """Return the mark if it belongs to this log. StoreError: it does, and flushed files are missing."""
        log = self._log
        mark = log.mark
        if mark is None or mark.last_record < log.first_offset or mark.flushed_offset == 0:
            return None
        if mark.flushed_offset > log.segments.end:
            raise StoreError(
                f"found the files of {self.folder}/data to end at position {log.segments.end}, expected "
                f"{mark.flushed_offset} bytes, which were flushed: restore the missing files, or remove the file "
                "mqtrail-durable to accept the loss"
            )
        return mark

    def _scan_start(self, mark: Mark | None) -> int:
        """Return the position of an entry; the log before it is as it was, and so is its index."""
        log = self._log
        starts = log.segments.starts
        candidates = list(reversed(starts[: max(1, len(starts) - SEGMENTS_READ + 1)]))
        if mark is not None:
            candidates = [min(mark.dispatched_offset, mark.last_record)]
        for position in candidates:
            if log.segments.has(position) and self._is_indexed_before(position):
                return position
        return log.first_offset

    def _is_indexed_before(self, position: int) -> bool:
        """Whether the index has the entry before the one at a position."""
        log = self._log
        try:
            head = log.entry_head(position)
            if head is None:  # the next one is in the next file
                position = log.segments.start_of(position) + log.segments.size
                head = log.entry_head(position) if log.segments.has(position) else None
        except RecordError:
            return False
        before = None if head is None else self._index.unit(head.index - 1)
        return head is not None and before is not None and before.index == head.index - 1 and before.position < position


class _Scan:
    """Reads entries, and writes units that the index lacks. position: the log's end; last: the head of its last entry.

    In a folder of ours all units are written: a sync that failed in an earlier process may have left some in memory
    alone. rebuilt: how many were missing or wrong.
    """

    def __init__(
        self,
        log: EntryLog,
        index: EntryIndex,
        flushed: int,
        torn_from: int,
        crc: bool,
        damaged: Callable[[int, object], StoreError],
    ) -> None:
        self._log = log
        self._index = index
        self._flushed = flushed
        self._torn_from = torn_from
        self._crc = crc
        self._damaged = damaged
        self._missing: list[LedgerHead] = []
        self._writes_all = torn_from != NOTHING
        self.position = 0
        self.last: LedgerHead | None = None
        self.rebuilt = 0

    def run(self, position: int) -> None:
        """Read from the position of an entry on. StoreError: damage below the durable mark, or a later version."""
        log = self._log
        self.last, self.position = None, position
        while log.segments.has(self.position):
            try:
                head = log.entry_head(self.position)
                if head is None:
                    self.position = log.segments.start_of(self.position) + log.segments.size
                    continue
                self._check(head)
            except RecordError as error:
                if self.position < self._flushed:
                    raise self._damaged(self.position, error) from error
                break
            self._note(head)
            self.last, self.position = head, head.position + head.size
        self._write()

    def _check(self, head: LedgerHead) -> None:
        last = self.last
        if last is not None and (head.index != last.index + 1 or head.term < last.term):
            raise RecordError(
                f"found entry {head.index} of term {head.term} behind entry {last.index} of term {last.term}"
            )
        self._log.check_body(head, crc=self._crc, torn_from=self._torn_from)

    def _note(self, head: LedgerHead) -> None:
        found = self._index.unit(head.index)
        is_right = found is not None and ledger_unit(found) == ledger_unit(head)
        self.rebuilt += not is_right
        if self._writes_all or not is_right:
            self._writes_all = True  # units that follow each other are written together
            self._missing.append(head)
            if len(self._missing) == HEADS_MAX:
                self._write()

    def _write(self) -> None:
        if self._missing:
            self._index.put(self._missing)
            self._missing = []
