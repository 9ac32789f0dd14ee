"""Large batches: many records of one queue that are encoded piece by piece and appended at once.

Most of the work does not depend on where records go, so callers do it between other requests: `add` encodes records
with zeros for their offsets and store time. `place` fills these in at the append, in a few steps for all records.
Every record of a batch has the same born host and time, so the fields from queue offset to store time lie together.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence

from mqtrail.wire import QUEUE_OFFSET_AT, MessageIllegal, RecordError

from ..base import BatchPlaces, PendingRecord
from .queue import ENTRY

PLACE = struct.Struct(">qq")  # queue offset, physical offset
SYS_FLAG_AT = QUEUE_OFFSET_AT + PLACE.size
SYS_FLAG_AND_BORN_SIZE = 4 + 8  # before the born host
POSITION_SIZE = 8  # of an entry of the queue, which begins with it
IS_LITTLE_ENDIAN = sys.byteorder == "little"


class EncodedBatch:
    """Records of one queue, encoded but for their places. append_now: appends it; see `append`."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        store_host: bytes,
        check: Callable[[int, PendingRecord], None],
        append_now: Callable[[EncodedBatch, int], BatchPlaces],
    ) -> None:
        """check: raises MessageIllegal if a record of this size cannot be stored."""
        self.topic = topic
        self.queue_id = queue_id
        self.sizes: list[int] = []
        self._store_host = store_host
        self._check = check
        self._append_now = append_now
        self._born: tuple[int, int, bytes] | None = None  # sys flag, time, host
        self._data = bytearray()
        self._ends: list[int] = []  # of the records in _data
        self._entries = bytearray()  # of the queue, without physical offsets

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, records: Sequence[PendingRecord]) -> None:
        """Add records of this queue, all born at one time at one host. MessageIllegal: one cannot be stored."""
        for record in records:
            born = record.sys_flag, record.born_timestamp_ms, record.born_host
            assert (record.topic, record.queue_id) == (self.topic, self.queue_id)
            assert born == self._born or self._born is None
            self._born = born
            try:
                encoded = record.encoded(0, 0, store_timestamp_ms=0, store_host=self._store_host)
                entry = ENTRY.pack(0, len(encoded), record.tags_code)
            except (RecordError, struct.error) as error:
                self._check(0, record)
                raise MessageIllegal(f"found a number out of its field's range: {error}") from error
            self._check(len(encoded), record)
            self._data += encoded
            self._entries += entry
            self._ends.append(len(self._data))
            self.sizes.append(len(encoded))

    def append(self, now_ms: int) -> BatchPlaces:
        """Store all records or none; see `MessageStore.begin_batch`."""
        return self._append_now(self, now_ms)

    # For the appender.

    def fitting(self, first: int, room: int) -> int:
        """Return the number after the last record, counted from first, that still fits into so many bytes."""
        return bisect_right(self._ends, self._start(first) + room, first)

    def _start(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    def place(self, first: int, end: int, position: int, queue_offset: int, store_ms: int) -> tuple[list[int], bytes]:
        """Give records [first, end) consecutive places and a store time; return their physical offsets and bytes."""
        assert self._born is not None
        data, start = self._data, self._start(first)
        starts = [start, *self._ends[first : end - 1]]
        same = bytes(data[start + SYS_FLAG_AT : start + SYS_FLAG_AT + SYS_FLAG_AND_BORN_SIZE + len(self._born[2])])
        pack_into = struct.Struct(f">qq{len(same)}sq").pack_into
        moved = position - start
        for number, at in enumerate(starts, queue_offset):
            pack_into(data, at + QUEUE_OFFSET_AT, number, at + moved, same, store_ms)
        with memoryview(data) as view:
            return [at + moved for at in starts], bytes(view[start : self._ends[end - 1]])

    def entries(self, physical_offsets: list[int]) -> bytearray:
        """Return the entries of all records for their queue."""
        positions = array("q", physical_offsets)
        if IS_LITTLE_ENDIAN:
            positions.byteswap()
        data = positions.tobytes()
        for at in range(POSITION_SIZE):
            self._entries[at :: ENTRY.size] = data[at::POSITION_SIZE]
        return self._entries
