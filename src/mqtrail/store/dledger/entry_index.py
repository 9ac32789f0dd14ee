"""The index files: where each entry is. They derive from the data files; a start writes units that are missing.

    <folder>/index/00000000000000000000   units of 32 bytes; the one of an entry is at 32 x its index

Source: DLedgerMmapFileStore, openmessaging/dledger 0.3.1.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mqtrail.wire import LEDGER_UNIT, LedgerEntry, LedgerHead, ledger_unit

from ..disk import Disk, File
from ..segments import Segments

UNIT_SIZE = LEDGER_UNIT.size


class EntryIndex:
    """Units by index. Files are sparse, and written by pwrite."""

    def __init__(self, disk: Disk, folder: str, units: int) -> None:
        """units: of one file."""
        self._files = Segments(disk, folder, units * UNIT_SIZE, reserve=False)
        self._unsynced: dict[int, File] = {}

    def unit(self, index: int) -> LedgerHead | None:
        """Return an entry's head as the index has it; None: there is no unit."""
        at = index * UNIT_SIZE
        if index < 0 or not self._files.has(at):
            return None
        start = self._files.start_of(at)
        data = self._files.file(start).read_at(at - start, UNIT_SIZE)
        magic, position, size, found, term = LEDGER_UNIT.unpack(data)
        return LedgerHead(magic, size, found, term, position) if size else None

    def put(self, heads: Sequence[LedgerEntry | LedgerHead]) -> None:
        """Write the units of entries that follow each other."""
        at = heads[0].index * UNIT_SIZE
        data = b"".join(map(ledger_unit, heads))
        while data:
            start = self._files.start_of(at)
            self._prepare(start)
            part = data[: start + self._files.size - at]
            file = self._files.file(start)
            file.write_at(at - start, part)
            self._unsynced[start] = file
            at += len(part)
            data = data[len(part) :]

    def _prepare(self, start: int) -> None:
        if self._files.has(start):
            return
        if self._files.starts and start != self._files.end:
            self._files.drop_from(0)  # units of a log that was replaced, or lost in part: they are written anew
        self._files.make(start)

    def begin_sync(self) -> Callable[[], None]:
        """Return a function that makes all units written so far durable; it may run in any thread."""
        files, self._unsynced = self._unsynced, {}

        def sync() -> None:
            for file in files.values():
                file.sync()

        return sync

    def drop_before(self, index: int) -> None:
        """Remove the files that have only units of earlier entries."""
        while len(self._files.starts) > 1 and self._files.starts[1] <= index * UNIT_SIZE:
            self._unsynced.pop(self._files.starts[0], None)
            self._files.drop_first()

    def clear(self) -> None:
        """Remove all files."""
        self._unsynced.clear()
        self._files.drop_from(0)

    def close(self) -> None:
        """Close the files."""
        self._files.close()
