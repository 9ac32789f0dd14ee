"""The durable mark: the physical offset up to which the CommitLog is on disk, written to its own file after each sync.

    mqtrail-durable, two slots, 512 bytes apart:
    8   number of the note, rising     8   flushed offset     8   where its last record starts, -1: there is none
    8   queues are on disk up to this  4   CRC-32 of the fields before

A note is written after its sync, so its offset is never too high; an older note has a lower offset, which is safe.
Notes are not synced each time: that would double the cost of a flush. They go to one slot until that slot is synced,
then to the other, so a torn note never destroys the last synced one. Apache's broker ignores the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import crc32

from ..disk import SECTOR_SIZE, Disk

MARK_FILE = "mqtrail-durable"
WIPING_FILE = "mqtrail-wiping"
SLOT_SIZE = SECTOR_SIZE
WIPING_UNKNOWN = 1 << 62
FIELDS = struct.Struct(">qqqq")
CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of a note. last_record -1: nothing was ever flushed."""

    flushed_offset: int = 0
    last_record: int = -1
    dispatched_offset: int = 0


class DurableMark:
    """The mark's file. mark: the last note; None: none can be read. is_new: there was no file. is_damaged: the file is
    too short, or it has notes and none can be read."""

    def __init__(self, disk: Disk, name: str = MARK_FILE) -> None:
        found_size = disk.size(name)
        self.is_new = found_size is None
        self._file = disk.open(name, 2 * SLOT_SIZE)
        self.mark: Mark | None = None
        self._number = 0
        self._slot = 0
        self.is_damaged = found_size is not None and found_size < 2 * SLOT_SIZE
        for slot in (0, 1):
            data = self._file.read_at(slot * SLOT_SIZE, FIELDS.size + CRC.size)
            number, *fields = FIELDS.unpack_from(data)
            if number > self._number and CRC.unpack_from(data, FIELDS.size)[0] == crc32(data[: FIELDS.size]):
                self._number, self._slot, self.mark = number, slot, Mark(*fields)
            self.is_damaged |= any(data)
        self.is_damaged &= self.mark is None
        self.sync()  # the note that was just read may not be on the disk

    def note(self, mark: Mark) -> None:
        """Write a note."""
        self._number += 1
        fields = FIELDS.pack(self._number, mark.flushed_offset, mark.last_record, mark.dispatched_offset)
        self._file.write_at(self._slot * SLOT_SIZE, fields + CRC.pack(crc32(fields)))
        self.mark = mark

    def sync(self) -> None:
        """Make the last note durable; the next one goes to the other slot."""
        self._file.sync()
        self._slot = 1 - self._slot

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WipingNote:
    """The physical offset up to which zeros are being written behind the log's end (mqtrail-wiping, in digits).

    If their sync fails, the kernel shows zeros while the disk may still have the old bytes, which would reappear.
    Because of this note the next start writes the zeros again. end_offset 0: nothing is being wiped.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        noted = disk.read(WIPING_FILE)
        # A damaged note shows that bytes were being wiped, but not how far: wipe to the end of the files.
        self.end_offset = 0 if noted is None else int(noted) if noted.isdigit() else WIPING_UNKNOWN

    def note(self, end_offset: int) -> None:
        """Write the note, durably, before the first zero."""
        if end_offset > self.end_offset:
            self._disk.replace(WIPING_FILE, b"%d" % end_offset)
            self.end_offset = end_offset

    def remove(self) -> None:
        """Remove the note: the zeros are durable."""
        if self.end_offset:
            self._disk.remove(WIPING_FILE)
            self.end_offset = 0
